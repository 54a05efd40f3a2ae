"""Defines CartPole, in which a cart balances a pole."""

import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.envs import base

GRAVITY, FORCE, TIME_STEP = 9.8, 10.0, 0.02
POLE_MASS, HALF_LENGTH = 0.1, 0.5
TOTAL_MASS = POLE_MASS + 1.0
POLE_MASS_LENGTH = POLE_MASS * HALF_LENGTH
MAX_POSITION, MAX_ANGLE = 2.4, 12 * 2 * math.pi / 360


class CartPole(base.TensorEnv):
    """Gymnasium's CartPole-v1: the reward is 1 for every step until the pole falls.

    The state of CartPole equals the observation: position and velocity of the cart, angle
    and angular velocity of the pole, `[B, 4]` for `B` episodes. The step in which the
    pole falls, or the cart leaves the track, also has the reward 1.

    Reference:
        Barto, Sutton & Anderson (1983), Neuronlike adaptive elements that can solve
        difficult learning control problems. doi:10.1109/TSMC.1983.6313077;
        equations: Florian (2007), Correct equations for the dynamics of the cart-pole
        system. https://coneural.org/florian/papers/05_cart_pole.pdf
    """

    max_episode_steps, reward_threshold = 500, 475.0
    action_space = gym.spaces.Discrete(2)
    _high = np.array([2 * MAX_POSITION, np.inf, 2 * MAX_ANGLE, np.inf], "float32")
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
        return state + TIME_STEP * tf.stack(derivative, axis=-1)

    def reward(self, state, action, next_state):
        return tf.ones_like(state[:, 0])

    def terminal(self, state):
        return (tf.abs(state[:, 0]) > MAX_POSITION) | (tf.abs(state[:, 2]) > MAX_ANGLE)
