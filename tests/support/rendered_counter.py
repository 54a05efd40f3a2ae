"""Environments whose pictures show their steps and actions, or that die."""

import os
import signal

import gymnasium as gym
import numpy as np


class Counter(gym.Env):
    """Two to five steps, or `length`, with reward 1.5.

    The upper half of a picture has ten times the step number as its gray value, the lower
    half a hundred times the last action.
    """

    metadata = {"render_modes": ["rgb_array", "ansi"], "render_fps": 10}
    observation_space = gym.spaces.Box(0.0, 1.0, (1,), np.float32)
    action_space = gym.spaces.Discrete(3)

    def __init__(self, render_mode="rgb_array", length=None):
        self.render_mode = render_mode
        self.length = length

    def reset(self, seed=None, options=None):
        super().reset(seed=seed)
        self.end = self.length or int(self.np_random.integers(2, 6))
        self.steps = self.action = 0
        return self.np_random.random(1, np.float32), {}

    def step(self, action):
        self.steps, self.action = self.steps + 1, int(action)
        observation = self.np_random.random(1, np.float32)
        return observation, 1.5, self.steps >= self.end, False, {}

    def render(self):
        return picture(self.steps, self.action)


def picture(steps, action):
    """Returns the picture after some steps, the last with this `action`."""
    array = np.zeros((200, 300, 3), np.uint8)
    array[:100], array[100:] = 10 * steps, 100 * action
    return array


class Dying(Counter):
    def step(self, action):
        os.kill(os.getpid(), signal.SIGSEGV)
