"""Defines Pendulum, in which a weak torque swings a pendulum up."""

import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.envs import base

TIME_STEP, GRAVITY, MAX_SPEED, MAX_TORQUE = 0.05, 10.0, 8.0, 2.0


class Pendulum(base.TensorEnv):
    """Gymnasium's Pendulum-v1: the reward is minus a cost of angle, velocity and torque.

    An episode of Pendulum has 200 steps. The state of Pendulum is `[B, 2]` for `B`
    episodes: the angle from the upright position, in [-π, π), and the angular velocity. A
    torque outside of [-2, 2] is clipped, both for the dynamics and for the cost of the
    torque.
    """

    max_episode_steps = 200
    action_space = gym.spaces.Box(-MAX_TORQUE, MAX_TORQUE, (1,))
    _high = np.array([1, 1, MAX_SPEED], "float32")
    observation_space = gym.spaces.Box(-_high, _high)
    initial_noise = seeding.NoiseSpec("uniform", (2,))

    def initial(self, noise):
        return (2.0 * noise - 1.0) * tf.constant([math.pi, 1.0], self.dtype)

    def observation(self, state):
        angle, velocity = tf.unstack(state, axis=-1)
        return tf.stack([tf.cos(angle), tf.sin(angle), velocity], axis=-1)

    def transition(self, state, action, noise):
        angle, velocity = tf.unstack(state, axis=-1)
        acceleration = 1.5 * GRAVITY * tf.sin(angle) + 3.0 * self._torque(action)
        velocity += acceleration * TIME_STEP
        velocity = tf.clip_by_value(velocity, -MAX_SPEED, MAX_SPEED)
        return tf.stack([_wrap_angle(angle + velocity * TIME_STEP), velocity], axis=-1)

    def reward(self, state, action, next_state):
        angle, velocity = tf.unstack(state, axis=-1)
        cost = tf.square(self._torque(action))
        return -(tf.square(angle) + 0.1 * tf.square(velocity) + 0.001 * cost)

    def terminal(self, state):
        return tf.zeros_like(state[:, 0], tf.bool)

    def _torque(self, action):
        return tf.clip_by_value(action[:, 0], -MAX_TORQUE, MAX_TORQUE)


def _wrap_angle(angle):
    """Returns the angle plus the multiple of 2π that brings the angle into [-π, π)."""
    return tf.math.floormod(angle + math.pi, 2 * math.pi) - math.pi
