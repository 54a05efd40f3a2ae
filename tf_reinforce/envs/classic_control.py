"""Gymnasium's tasks of classic control as tensor environments."""

import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.envs import base

GRAVITY = 9.8  # also of Acrobot
FORCE, CART_TIME_STEP = 10.0, 0.02
POLE_MASS, HALF_LENGTH = 0.1, 0.5
TOTAL_MASS = POLE_MASS + 1.0
POLE_MASS_LENGTH = POLE_MASS * HALF_LENGTH
TRACK_END, MAX_ANGLE = 2.4, 12 * 2 * math.pi / 360


class CartPole(base.TensorEnv):
    """Gymnasium's CartPole-v1: the reward is 1 for every step until the pole falls.

    The state equals the observation. It is a tensor `[B, 4]` with the position and
    velocity of the cart, and the angle and angular velocity of the pole. The step in
    which the pole falls or the cart leaves the track is also rewarded.

    Reference:
        Barto, Sutton & Anderson (1983), Neuronlike adaptive elements that can solve
        difficult learning control problems. doi:10.1109/TSMC.1983.6313077;
        equations: Florian (2007), Correct equations for the dynamics of the cart-pole
        system. https://coneural.org/florian/papers/05_cart_pole.pdf
    """

    max_episode_steps, reward_threshold = 500, 475.0
    action_space = gym.spaces.Discrete(2)
    _high = np.array([2 * TRACK_END, np.inf, 2 * MAX_ANGLE, np.inf], "float32")
    observation_space = gym.spaces.Box(-_high, _high)
    initial_noise = seeding.NoiseSpec("uniform", (4,))

    def initial(self, noise):
        return noise * 0.1 - 0.05

    def observation(self, state):
        return state

    def transition(self, state, action, noise):
        _, velocity, angle, angular_velocity = tf.unstack(state, axis=-1)
        force = tf.where(tf.equal(action, 1), FORCE, -FORCE)
        force = tf.cast(force, self.dtype)
        cosine, sine = tf.cos(angle), tf.sin(angle)
        centrifugal = POLE_MASS_LENGTH * tf.square(angular_velocity) * sine
        push = (force + centrifugal) / TOTAL_MASS
        inertia = 4.0 / 3.0 - POLE_MASS * tf.square(cosine) / TOTAL_MASS
        angular_acceleration = GRAVITY * sine - cosine * push
        angular_acceleration /= HALF_LENGTH * inertia
        reaction = POLE_MASS_LENGTH * angular_acceleration * cosine / TOTAL_MASS
        acceleration = push - reaction
        derivative = [velocity, acceleration, angular_velocity, angular_acceleration]
        return state + CART_TIME_STEP * tf.stack(derivative, axis=-1)

    def reward(self, state, action, next_state):
        return tf.ones_like(state[:, 0])

    def terminal(self, state):
        return (tf.abs(state[:, 0]) > TRACK_END) | (tf.abs(state[:, 2]) > MAX_ANGLE)


LINK_TIME_STEP = 0.2
MAX_VELOCITIES = 4 * math.pi, 9 * math.pi


class Acrobot(base.TensorEnv):
    """Gymnasium's Acrobot-v1: the reward is -1 for every step until the links are up.

    An episode ends when the tip of the second link is more than one link length above the
    fixed joint. The last step has the reward 0.

    The state is a tensor `[B, 4]` with two angles in [-π, π), followed by the two angular
    velocities. The first angle is measured from the downward vertical, and the second
    angle is relative to the first link. Both links have length, mass and moment of
    inertia 1, and their centre of mass is in the middle.

    Reference:
        Sutton (1996), Generalization in reinforcement learning: successful examples
        using sparse coarse coding. Advances in Neural Information Processing Systems 8;
        equations: Sutton & Barto (1998), Reinforcement learning: an introduction,
        section 11.3 (`book_or_nips = "book"` in Gymnasium).
    """

    max_episode_steps, reward_threshold = 500, -100.0
    action_space = gym.spaces.Discrete(3)
    _high = np.array([1, 1, 1, 1, *MAX_VELOCITIES], "float32")
    observation_space = gym.spaces.Box(-_high, _high)
    initial_noise = seeding.NoiseSpec("uniform", (4,))

    def initial(self, noise):
        return noise * 0.2 - 0.1

    def observation(self, state):
        angle1, angle2, *velocities = tf.unstack(state, axis=-1)
        angles = [f(angle) for angle in (angle1, angle2) for f in (tf.cos, tf.sin)]
        return tf.stack([*angles, *velocities], axis=-1)

    def transition(self, state, action, noise):
        torque = tf.cast(action, self.dtype) - 1.0
        k1 = _derivative(state, torque)
        k2 = _derivative(state + LINK_TIME_STEP / 2 * k1, torque)
        k3 = _derivative(state + LINK_TIME_STEP / 2 * k2, torque)
        k4 = _derivative(state + LINK_TIME_STEP * k3, torque)
        state += LINK_TIME_STEP / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        angles = _wrap_angle(state[:, :2])
        limits = tf.constant(MAX_VELOCITIES, self.dtype)
        velocities = tf.clip_by_value(state[:, 2:], -limits, limits)
        return tf.concat([angles, velocities], axis=-1)

    def reward(self, state, action, next_state):
        return tf.cast(self.terminal(next_state), self.dtype) - 1.0

    def terminal(self, state):
        return -tf.cos(state[:, 0]) - tf.cos(state[:, 0] + state[:, 1]) > 1.0


def _derivative(state, torque):
    """Returns `[B, 4]`, the velocities and accelerations of both angles.

    `d1`, `d2`, `phi1` and `phi2` are named as in Sutton & Barto (1998), section 11.3.
    """
    angle1, angle2, velocity1, velocity2 = tf.unstack(state, axis=-1)
    cosine, sine = tf.cos(angle2), tf.sin(angle2)
    d1 = 3.5 + cosine  # inertia of both links about the fixed joint
    d2 = 1.25 + 0.5 * cosine  # 1.25: inertia of the second link about its joint
    phi2 = 0.5 * GRAVITY * tf.sin(angle1 + angle2)
    gravity = 1.5 * GRAVITY * tf.sin(angle1) + phi2
    centrifugal = 0.5 * sine * tf.square(velocity2) + sine * velocity1 * velocity2
    phi1 = gravity - centrifugal
    net_torque = torque + d2 / d1 * phi1 - 0.5 * sine * tf.square(velocity1) - phi2
    acceleration2 = net_torque / (1.25 - tf.square(d2) / d1)
    acceleration1 = -(d2 * acceleration2 + phi1) / d1
    return tf.stack([velocity1, velocity2, acceleration1, acceleration2], axis=-1)


MIN_POSITION, MAX_POSITION, MAX_SPEED = -1.2, 0.6, 0.07
_LOW = np.array([MIN_POSITION, -MAX_SPEED], "float32")
_HIGH = np.array([MAX_POSITION, MAX_SPEED], "float32")


class MountainCar(base.TensorEnv):
    """Gymnasium's MountainCar-v0: the reward is -1 for every step until the goal.

    The state equals the observation. It is a tensor `[B, 2]` with the position and
    velocity of the car. The goal is on the right side of the valley, and a wall at the
    left end stops the car.

    Reference:
        Moore (1990), Efficient memory-based learning for robot control. PhD thesis,
        University of Cambridge.
    """

    max_episode_steps, reward_threshold = 200, -110.0
    action_space: gym.Space = gym.spaces.Discrete(3)
    observation_space = gym.spaces.Box(_LOW, _HIGH)
    goal = 0.5

    def initial(self, noise):
        return tf.stack([noise * 0.2 - 0.6, tf.zeros_like(noise)], axis=-1)

    def observation(self, state):
        return state

    def transition(self, state, action, noise):
        return _next_state(state, (tf.cast(action, self.dtype) - 1.0) * 0.001)

    def reward(self, state, action, next_state):
        return -tf.ones_like(state[:, 0])

    def terminal(self, state):
        return (state[:, 0] >= self.goal) & (state[:, 1] >= 0.0)


class MountainCarContinuous(MountainCar):
    """Gymnasium's MountainCarContinuous-v0: the action is a real number, the force.

    The reward is minus the cost of the force, plus 100 at the goal. The force that moves
    the car is clipped to [-1, 1], but the cost is computed from the force before
    clipping.
    """

    max_episode_steps, reward_threshold = 999, 90.0
    action_space = gym.spaces.Box(-1, 1, (1,))
    goal = 0.45

    def transition(self, state, action, noise):
        force = tf.clip_by_value(action[:, 0], -1.0, 1.0)
        return _next_state(state, force * 0.0015)

    def reward(self, state, action, next_state):
        cost = tf.square(action[:, 0])
        return 100.0 * tf.cast(self.terminal(next_state), self.dtype) - 0.1 * cost


def _next_state(state, force):
    """Returns the next states of `B` cars on a hill of height sin(3 · position)."""
    position, velocity = tf.unstack(state, axis=-1)
    velocity += force - 0.0025 * tf.cos(3.0 * position)
    velocity = tf.clip_by_value(velocity, -MAX_SPEED, MAX_SPEED)
    position = tf.clip_by_value(position + velocity, MIN_POSITION, MAX_POSITION)
    stopped = (position <= MIN_POSITION) & (velocity < 0.0)
    velocity = tf.where(stopped, tf.zeros_like(velocity), velocity)
    return tf.stack([position, velocity], axis=-1)


PENDULUM_TIME_STEP, PENDULUM_GRAVITY, MAX_TURN_SPEED, MAX_TORQUE = 0.05, 10.0, 8.0, 2.0


class Pendulum(base.TensorEnv):
    """Gymnasium's Pendulum-v1: the reward is minus a cost of angle, velocity and torque.

    The state is a tensor `[B, 2]` with the angle from upright, in [-π, π), and the
    angular velocity. Torques are clipped to [-2, 2], and both the dynamics and the cost
    use the clipped torque. An episode has 200 steps.
    """

    max_episode_steps = 200
    action_space = gym.spaces.Box(-MAX_TORQUE, MAX_TORQUE, (1,))
    _high = np.array([1, 1, MAX_TURN_SPEED], "float32")
    observation_space = gym.spaces.Box(-_high, _high)
    initial_noise = seeding.NoiseSpec("uniform", (2,))

    def initial(self, noise):
        return (2.0 * noise - 1.0) * tf.constant([math.pi, 1.0], self.dtype)

    def observation(self, state):
        angle, velocity = tf.unstack(state, axis=-1)
        return tf.stack([tf.cos(angle), tf.sin(angle), velocity], axis=-1)

    def transition(self, state, action, noise):
        angle, velocity = tf.unstack(state, axis=-1)
        acceleration = 1.5 * PENDULUM_GRAVITY * tf.sin(angle) + 3.0 * self._torque(action)
        velocity += acceleration * PENDULUM_TIME_STEP
        velocity = tf.clip_by_value(velocity, -MAX_TURN_SPEED, MAX_TURN_SPEED)
        return tf.stack(
            [_wrap_angle(angle + velocity * PENDULUM_TIME_STEP), velocity], axis=-1
        )

    def reward(self, state, action, next_state):
        angle, velocity = tf.unstack(state, axis=-1)
        cost = tf.square(self._torque(action))
        return -(tf.square(angle) + 0.1 * tf.square(velocity) + 0.001 * cost)

    def terminal(self, state):
        return tf.zeros_like(state[:, 0], tf.bool)

    def _torque(self, action):
        return tf.clip_by_value(action[:, 0], -MAX_TORQUE, MAX_TORQUE)


def _wrap_angle(angle):
    """Returns the angle plus the multiple of 2π that brings it into [-π, π)."""
    return tf.math.floormod(angle + math.pi, 2 * math.pi) - math.pi
