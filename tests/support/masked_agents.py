"""An environment that refuses illegal actions, and agents with masks."""

import sys

import cloudpickle
import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr

PLACES = ("info/action_mask", "info/legal", "observation/action_mask", "observation/1")


class Riddle(gym.Env):
    """Step and seed determine which of four actions are legal.

    Illegal ones raise an error. The reward is the action.
    """

    action_space = gym.spaces.Discrete(4, start=2)
    length = 5

    def __init__(self, place="info/action_mask", mask=None):
        self.place = place
        self.mask = mask
        numbers = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)
        legal = gym.spaces.MultiBinary(4)
        self.observation_space = {
            "observation/action_mask": gym.spaces.Dict(x=numbers, action_mask=legal),
            "observation/1": gym.spaces.Tuple([numbers, legal]),
        }.get(place, numbers)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now = 0
        return self._answer()

    def step(self, action):
        assert self.action_space.contains(action)
        assert self.legal[action - 2], "an illegal action"
        self.now += 1
        observation, info = self._answer()
        return observation, float(action), self.now == self.length, False, info

    def _answer(self):
        self.legal = np.zeros(4, np.int8)
        ended = self.now == self.length
        if not ended:  # after the last step, no action is legal
            chosen = self.np_random.integers(4, size=2)
            self.legal[chosen] = 1
        legal = self.legal if self.mask is None else self.mask(self.now, self.legal)
        numbers = np.array([self.now], np.float32)
        if self.place == "observation/action_mask":
            return {"x": numbers, "action_mask": legal}, {}
        if self.place == "observation/1":
            return (numbers, legal), {}
        return numbers, {} if legal is None else {self.place.split("/")[1]: legal}


def learner(place="info/action_mask", **settings):
    """Returns an agent that reads the mask at `place`; its policy ignores the mask."""
    x = keras.Input((1,), name="x")
    outputs = keras.layers.Dense(4, kernel_initializer="ones")(x)
    legal = keras.Input((4,), dtype="int8", name="action_mask")
    inputs = {
        "observation/action_mask": {"x": x, "action_mask": legal},
        "observation/1": (x, legal),
    }.get(place, x)
    policy = keras.Model(inputs, outputs)
    agent = tfr.Reinforce(policy, action_mask=place, **settings)
    agent.compile(keras.optimizers.SGD(0.1))
    return agent


# Worker processes receive the environments without this module, which imports TensorFlow.
cloudpickle.register_pickle_by_value(sys.modules[__name__])
