"""Defines Acrobot, in which a torque between two hanging links swings the links up."""

import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.envs import base

TIME_STEP, GRAVITY = 0.2, 9.8
MAX_VELOCITIES = 4 * math.pi, 9 * math.pi


class Acrobot(base.TensorEnv):
    """Gymnasium's Acrobot-v1: the reward is -1 for every step until the links are up.

    An episode ends with the reward 0 when the tip of the second link is more than one
    link length above the fixed joint. The masses, lengths and moments of inertia of both
    links are 1. The centre of mass of each link is in the middle of the link. States are
    `[B, 4]`, two angles and two angular velocities for each of `B` episodes. The first
    angle is the angle between the first link and the downward vertical. The second angle
    is the angle of the second link relative to the first link. Both angles of a state are
    in [-π, π). The Runge-Kutta method of fourth order integrates one step of Acrobot.

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
        k2 = _derivative(state + TIME_STEP / 2 * k1, torque)
        k3 = _derivative(state + TIME_STEP / 2 * k2, torque)
        k4 = _derivative(state + TIME_STEP * k3, torque)
        state += TIME_STEP / 6.0 * (k1 + 2.0 * k2 + 2.0 * k3 + k4)
        angles = tf.math.floormod(state[:, :2] + math.pi, 2 * math.pi) - math.pi
        limits = tf.constant(MAX_VELOCITIES, self.dtype)
        velocities = tf.clip_by_value(state[:, 2:], -limits, limits)
        return tf.concat([angles, velocities], axis=-1)

    def reward(self, state, action, next_state):
        return tf.cast(self.terminal(next_state), self.dtype) - 1.0

    def terminal(self, state):
        return -tf.cos(state[:, 0]) - tf.cos(state[:, 0] + state[:, 1]) > 1.0


def _derivative(state, torque):
    """Returns `[B, 4]`, the velocities and accelerations of both angles in `B` states.

    The variables `d1`, `d2`, `phi1` and `phi2` are named as in Sutton & Barto (1998),
    section 11.3.
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
