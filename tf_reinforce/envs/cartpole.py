"""CartPole: a cart balances a pole."""

import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.envs import base

GRAVITY, FORCE, SECONDS = 9.8, 10.0, 0.02
POLE_MASS, HALF_LENGTH = 0.1, 0.5
TOTAL_MASS = POLE_MASS + 1.0
POLE_MOMENT = POLE_MASS * HALF_LENGTH
FARTHEST, STEEPEST = 2.4, 12 * 2 * math.pi / 360


class CartPole(base.TensorEnv):
    """Gymnasium's CartPole-v1: one reward for every step until the pole falls.

    A state is an observation, `[B, 4]`: position, velocity, angle, angular velocity.
    The step with which the pole falls, or the cart leaves the track, is rewarded too.

    Reference:
        Barto, Sutton & Anderson (1983), Neuronlike adaptive elements that can solve
        difficult learning control problems. doi:10.1109/TSMC.1983.6313077;
        equations: Florian (2007), Correct equations for the dynamics of the cart-pole
        system. https://coneural.org/florian/papers/05_cart_pole.pdf
    """

    max_episode_steps, reward_threshold = 500, 475.0
    action_space = gym.spaces.Discrete(2)
    _high = np.array([2 * FARTHEST, np.inf, 2 * STEEPEST, np.inf], "float32")
    observation_space = gym.spaces.Box(-_high, _high)
    initial_noise = seeding.NoiseSpec("uniform", (4,))

    def initial(self, noise):
        return noise * 0.1 - 0.05

    def observation(self, state):
        return state

    def transition(self, state, action, noise):
        x, speed, angle, turning = tf.unstack(state, axis=-1)
        force = tf.where(tf.equal(action, 1), FORCE, -FORCE)
        force = tf.cast(force, self.dtype)
        cosine, sine = tf.cos(angle), tf.sin(angle)
        push = (force + POLE_MOMENT * tf.square(turning) * sine) / TOTAL_MASS
        inertia = 4.0 / 3.0 - POLE_MASS * tf.square(cosine) / TOTAL_MASS
        swing = (GRAVITY * sine - cosine * push) / (HALF_LENGTH * inertia)
        pull = push - POLE_MOMENT * swing * cosine / TOTAL_MASS
        derivative = [speed, pull, turning, swing]
        return state + SECONDS * tf.stack(derivative, axis=-1)

    def reward(self, state, action, next_state):
        return tf.ones_like(state[:, 0])

    def terminal(self, state):
        return (tf.abs(state[:, 0]) > FARTHEST) | (tf.abs(state[:, 2]) > STEEPEST)
