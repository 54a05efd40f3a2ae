"""Defines an environment that sleeps, for measurements of worker processes.

Worker processes import this module by its name, so that it must not import TensorFlow.
"""

import time

import gymnasium as gym
import numpy as np


class Sleeping(gym.Env):
    """An environment whose steps take a given time without using a core.

    Args:
        step_seconds: Float, the seconds that each step sleeps.
        length: Int, the mean number of steps of an episode.
        spread: Int, below `length`. The number of steps of an episode is uniform between
            `length - spread` and `length + spread`, and depends only on the reset seed.
        size: Int, the number of floats in an observation.
    """

    action_space = gym.spaces.Discrete(2)

    def __init__(self, step_seconds=0.01, length=50, spread=0, size=4):
        self.observation_space = gym.spaces.Box(-1, 1, (size,), np.float32)
        self.step_seconds, self.mean_length, self.spread = step_seconds, length, spread

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        low, high = self.mean_length - self.spread, self.mean_length + self.spread
        self.length = int(self.np_random.integers(low, high, endpoint=True))
        self.now = 0
        return np.zeros(self.observation_space.shape, np.float32), {}

    def step(self, action):
        if self.step_seconds:
            time.sleep(self.step_seconds)
        self.now += 1
        observation = np.zeros(self.observation_space.shape, np.float32)
        return observation, 1.0, self.now == self.length, False, {}
