"""Acrobot: a torque between two hanging links swings them up."""

import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.envs import base

SECONDS, GRAVITY = 0.2, 9.8
FASTEST = 4 * math.pi, 9 * math.pi


class Acrobot(base.TensorEnv):
    """Gymnasium's Acrobot-v1, as in the book: -1 for every step until the tip is up.

    Masses, lengths and moments of inertia are 1; the centres of mass are in the middle.
    A state is `[B, 4]`: the angle of the first link from hanging down, that of the
    second to the first, both in [-π, π), and their angular velocities. A step is one of
    Runge and Kutta's fourth order.

    Reference:
        Sutton (1996), Generalization in reinforcement learning: successful examples
        using sparse coarse coding. Advances in Neural Information Processing Systems 8.
    """

    max_episode_steps, reward_threshold = 500, -100.0
    action_space = gym.spaces.Discrete(3)
    _high = np.array([1, 1, 1, 1, *FASTEST], "float32")
    observation_space = gym.spaces.Box(-_high, _high)
    initial_noise = seeding.NoiseSpec("uniform", (4,))

    def initial(self, noise):
        return noise * 0.2 - 0.1

    def observation(self, state):
        first, second, *turning = tf.unstack(state, axis=-1)
        angles = [f(angle) for angle in (first, second) for f in (tf.cos, tf.sin)]
        return tf.stack([*angles, *turning], axis=-1)

    def transition(self, state, action, noise):
        torque = tf.cast(action, self.dtype) - 1.0
        k1 = _derivative(state, torque)
        k2 = _derivative(state + SECONDS / 2 * k1, torque)
        k3 = _derivative(state + SECONDS / 2 * k2, torque)
        k4 = _derivative(state + SECONDS * k3, torque)
        state += SECONDS / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        angles = tf.math.floormod(state[:, :2] + math.pi, 2 * math.pi) - math.pi
        fastest = tf.constant(FASTEST, self.dtype)
        turning = tf.clip_by_value(state[:, 2:], -fastest, fastest)
        return tf.concat([angles, turning], axis=-1)

    def reward(self, state, action, next_state):
        return tf.cast(self.terminal(next_state), self.dtype) - 1.0

    def terminal(self, state):
        return -tf.cos(state[:, 0]) - tf.cos(state[:, 0] + state[:, 1]) > 1.0


def _derivative(state, torque):
    """The angular velocities, and the accelerations that follow from all of it."""
    first, second, speed1, speed2 = tf.unstack(state, axis=-1)
    cosine, sine = tf.cos(second), tf.sin(second)
    inertia = 3.5 + cosine  # of both links about the joint; the second's own is 1.25
    coupling = 1.25 + 0.5 * cosine
    weight2 = 0.5 * GRAVITY * tf.sin(first + second)
    weight = 1.5 * GRAVITY * tf.sin(first) + weight2
    fling = 0.5 * sine * tf.square(speed2) + sine * speed1 * speed2
    pull = weight - fling
    swing = torque + coupling / inertia * pull - 0.5 * sine * tf.square(speed1) - weight2
    acceleration2 = swing / (1.25 - tf.square(coupling) / inertia)
    acceleration1 = -(coupling * acceleration2 + pull) / inertia
    return tf.stack([speed1, speed2, acceleration1, acceleration2], axis=-1)
