"""Defines the trainings that `worker_kills.py` compares.

A training is a function that returns a compiled agent, the environment, and arguments of
`fit`. Each training makes a few updates with several environments.
"""

import functools
import hashlib
import math
import random
import sys
import time

import cloudpickle
import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr
from tf_reinforce.engine import agent_state

NUM_ENVS = 8
SEED = 11

# Workers receive the environments of this file without it: it imports TensorFlow.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class NodesOfActors(keras.callbacks.Callback):
    """Collects the ids of the nodes on which actors run, in the attribute `ids`."""

    def __init__(self):
        super().__init__()
        self.ids = set()

    def on_epoch_end(self, epoch, logs=None):
        from ray._private import state

        for actor in state.actors().values():
            if actor["State"] == "ALIVE":
                self.ids.add(actor["Address"]["NodeID"])


class Maze(gym.Env):
    """A random walk with nested observations and nested, masked actions.

    An illegal action raises an error. The seed determines the lengths of episodes.
    """

    observation_space = gym.spaces.Dict(
        place=gym.spaces.Box(-math.inf, math.inf, (2,)),
        flags=gym.spaces.Tuple([gym.spaces.Discrete(3), gym.spaces.MultiBinary(2)]),
    )
    action_space = gym.spaces.Dict(
        choice=gym.spaces.Discrete(4, start=1),
        rest=gym.spaces.Tuple(
            [gym.spaces.Box(-1, 1, (2,)), gym.spaces.MultiDiscrete([2, 3])]
        ),
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        return self._observation(), self._info()

    def step(self, action):
        choice, (push, pair) = action["choice"], action["rest"]
        choices, (_, pairs) = self.mask["choice"], self.mask["rest"]
        if not choices[choice - 1] or not all(m[i] for m, i in zip(pairs, pair)):
            raise ValueError(f"{action} is illegal with the mask {self.mask}")
        self.place = 0.9 * self.place + 0.1 * (push + choice - pair)
        self.place += 0.1 * self.np_random.normal(size=2)
        terminated = bool(self.np_random.random() < 0.05)
        reward = -float(np.sum(self.place**2))
        return self._observation(), reward, terminated, False, self._info()

    def _observation(self):
        flags = self.np_random.integers(3), self.np_random.integers(2, size=2)
        flags = flags[0], flags[1].astype("int8")
        return {"place": self.place.astype("float32"), "flags": flags}

    def _info(self):
        self.mask = {
            "choice": self._legal(4),
            "rest": (None, (self._legal(2), self._legal(3))),
        }
        return {"action_mask": self.mask}

    def _legal(self, count):
        legal = self.np_random.integers(2, size=count, dtype=np.int8)
        legal[self.np_random.integers(count)] = 1
        return legal


class RandomDurations(Maze):
    """A maze whose steps take random times, which no seed determines."""

    def step(self, action):
        time.sleep(random.uniform(0, 0.002))
        return super().step(action)


def _with_value(env, hidden=(16,), **fit):
    value = {"kind": "value", "hidden": [16], "passes": 2, "minibatch_size": 32}
    options = {"baseline": value, "gae_lambda": 0.9, "normalize_observations": True}
    return tfr.Reinforce.for_env(env, hidden=hidden, **options), env, fit


def _cart_pole():
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(16,))
    return agent, "CartPole-v1", {"episodes_per_epoch": 20}


def _maze(env):
    options = {"action_mask": "info/action_mask", "normalize_observations": True}
    agent = tfr.Reinforce.for_env(env, hidden=(16,), **options)
    return agent, env, {"episodes_per_epoch": 16, "max_episode_steps": 40}


def _recurrent():
    """Returns a training whose number of episodes depends on their lengths."""
    inputs = keras.Input((None, 4))
    features = keras.layers.GRU(8, return_sequences=True)(inputs)
    agent = tfr.Reinforce(keras.Model(inputs, keras.layers.Dense(2)(features)))
    agent.compile(keras.optimizers.Adam(0.01))
    return agent, "CartPole-v1", {"steps_per_epoch": 300}


TRAININGS = {
    "CartPole-v1": _cart_pole,
    "Pendulum-v1, value, normalizer": functools.partial(
        _with_value, "Pendulum-v1", episodes_per_epoch=12, max_episode_steps=80
    ),
    "nested spaces, masks": functools.partial(_maze, Maze),
    "nested spaces, random durations": functools.partial(_maze, RandomDurations),
    "recurrent, steps_per_epoch": _recurrent,
    "HalfCheetah-v5": functools.partial(
        _with_value, "HalfCheetah-v5", episodes_per_epoch=12, max_episode_steps=60
    ),
}


class EpisodeDigest(tfr.callbacks.EpisodeCallback):
    """Computes a digest of all episodes, in the order in which callbacks receive them."""

    def __init__(self):
        super().__init__()
        self.sha = hashlib.sha256()

    def on_episodes_collected(self, episodes, logs=None):
        for path, array in keras.tree.flatten_with_path(episodes._asdict()):
            if array is not None:
                self.sha.update(repr((path, array.dtype.str, array.shape)).encode())
                self.sha.update(array.tobytes())

    def on_episode_end(self, episode, logs=None):
        self.sha.update(repr((episode, sorted(logs.items()))).encode())


def train(name, epochs, without=(), callbacks=(), **options):
    """Trains an agent, and returns it with the digests of the training.

    Args:
        name: Name of a training.
        epochs: Int, the number of updates.
        without: Log keys that the digest of the logs does not contain. It never contains
            the seconds.
        callbacks: Further callbacks.
        options: Further arguments of `fit`.

    Returns:
        The agent, Keras' `History`, and a dict with the digests of weights (also of
        counters and optimizers), logs and episodes.
    """
    keras.utils.set_random_seed(0)  # for the policies that are made with Keras
    agent, env, fit = TRAININGS[name]()
    episodes = EpisodeDigest()
    fit = {"epochs": epochs, "seed": SEED, "num_envs": NUM_ENVS, "verbose": 0, **fit}
    history = agent.fit(env, callbacks=[episodes, *callbacks], **fit, **options)
    weights = hashlib.sha256()
    for variable in agent_state.variables(agent):
        weights.update(variable.numpy().tobytes())
    logs = {k: v for k, v in history.history.items() if k not in without}
    digests = {
        "weights": weights.hexdigest(),
        "logs": digest_of_numbers(logs),
        "episodes": episodes.sha.hexdigest(),
    }
    return agent, history, digests


def digest_of_numbers(logs):
    """Returns the digest of a dict from log keys to one number, or to one per update."""
    exact = {
        key: [float(value).hex() for value in np.atleast_1d(values)]
        for key, values in sorted(logs.items())
        if key != "steps_per_second"
    }
    return hashlib.sha256(repr(exact).encode()).hexdigest()
