"""Pendulum: a weak torque swings a pendulum up and holds it there."""

import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.envs import base

SECONDS, GRAVITY, FASTEST, STRONGEST = 0.05, 10.0, 8.0, 2.0


class Pendulum(base.TensorEnv):
    """Gymnasium's Pendulum-v1: the cost of angle, speed and torque, 200 steps long.

    A state is `[B, 2]`: the angle from upright in [-π, π), and the angular velocity.
    A torque outside of [-2, 2] acts, and costs, as the nearest inside.
    """

    max_episode_steps = 200
    action_space = gym.spaces.Box(-STRONGEST, STRONGEST, (1,))
    _high = np.array([1, 1, FASTEST], "float32")
    observation_space = gym.spaces.Box(-_high, _high)
    initial_noise = seeding.NoiseSpec("uniform", (2,))

    def initial(self, noise):
        return (2.0 * noise - 1.0) * tf.constant([math.pi, 1.0], self.dtype)

    def observation(self, state):
        angle, turning = tf.unstack(state, axis=-1)
        return tf.stack([tf.cos(angle), tf.sin(angle), turning], axis=-1)

    def transition(self, state, action, noise):
        angle, turning = tf.unstack(state, axis=-1)
        swing = 1.5 * GRAVITY * tf.sin(angle) + 3.0 * self._torque(action)
        turning = tf.clip_by_value(turning + swing * SECONDS, -FASTEST, FASTEST)
        return tf.stack([_wrapped(angle + turning * SECONDS), turning], axis=-1)

    def reward(self, state, action, next_state):
        angle, turning = tf.unstack(state, axis=-1)
        effort = tf.square(self._torque(action))
        return -(tf.square(angle) + 0.1 * tf.square(turning) + 0.001 * effort)

    def terminal(self, state):
        return tf.zeros_like(state[:, 0], tf.bool)

    def _torque(self, action):
        return tf.clip_by_value(action[:, 0], -STRONGEST, STRONGEST)


def _wrapped(angle):
    return tf.math.floormod(angle + math.pi, 2 * math.pi) - math.pi
