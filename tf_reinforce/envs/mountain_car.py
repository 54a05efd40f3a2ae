"""Defines MountainCar, in which a weak car swings out of a valley."""

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tf_reinforce.envs import base

MIN_POSITION, MAX_POSITION, MAX_SPEED = -1.2, 0.6, 0.07
_LOW = np.array([MIN_POSITION, -MAX_SPEED], "float32")
_HIGH = np.array([MAX_POSITION, MAX_SPEED], "float32")


class MountainCar(base.TensorEnv):
    """Gymnasium's MountainCar-v0: the reward is -1 for every step until the goal.

    The state of MountainCar equals the observation: position and velocity of the car,
    `[B, 2]` for `B` episodes. The goal of the car is on the right side of the valley. A
    wall at the left end of the valley stops the car.

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

    The reward of a step is minus the cost of the force, plus 100 at the goal. A force
    outside of [-1, 1] is clipped before it moves the car. The cost of the force is
    computed from the force before clipping.
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
