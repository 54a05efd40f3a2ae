"""Defines the 20 configurations that `repeatability.py` trains.

A configuration is a function of the number of environments. It returns a compiled agent,
the environment, and arguments of `fit`.
"""

import functools
import math

import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr

DENSE = keras.layers.Dense


class Walk(gym.Env):
    """A random walk, on which actions of any space have an influence.

    Args:
        space: `gymnasium.Space` of the actions.
        masked: Bool, whether `info` contains a random action mask of a `Discrete` space.
    """

    observation_space = gym.spaces.Box(-math.inf, math.inf, (3,))

    def __init__(self, space, masked=False):
        self.action_space = space
        self.masked = masked

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = self.np_random.normal(size=3)
        return self._observation(), self._info()

    def step(self, action):
        push = float(np.sum(gym.spaces.flatten(self.action_space, action)))
        noise = self.np_random.normal(size=3)
        self.position = 0.9 * self.position + 0.1 * noise + 0.1 * np.tanh(push)
        reward = float(-np.sum(self.position**2) - 0.01 * push)
        terminated = bool(self.np_random.random() < 0.1)
        return self._observation(), reward, terminated, False, self._info()

    def _observation(self):
        return self.position.astype("float32")

    def _info(self):
        if not self.masked:
            return {}
        mask = self.np_random.integers(2, size=int(self.action_space.n), dtype=np.int8)
        mask[self.np_random.integers(len(mask))] = 1
        return {"action_mask": mask}


BOX = gym.spaces.Box(-1, 1, (2,))
CHOICES = gym.spaces.MultiDiscrete([2, 3])
NESTED = gym.spaces.Dict(
    box=BOX, flags=gym.spaces.MultiBinary(2), one=gym.spaces.Discrete(3)
)


def default(env, fit=None, **options):
    """Returns a configuration with the default policy of `for_env`."""

    def configuration(num_envs):
        agent = tfr.Reinforce.for_env(env, hidden=(8,), **options)
        return agent, env, fit or {}

    return configuration


def walk(space, fit=None, masked=False, **options):
    env = functools.partial(Walk, space, masked)
    return default(env, fit, **options)


def value():
    """Returns a value baseline with its own network."""
    return {"kind": "value", "hidden": [8], "passes": 2, "minibatch_size": 16}


def recurrent(layer, shared=False, **options):
    """Returns a configuration with a recurrent policy for CartPole."""

    def configuration(num_envs):
        inputs = keras.Input((None, 4))
        features = layer(4, return_sequences=True)(inputs)
        outputs, baseline = DENSE(2)(features), "leave_one_out"
        if shared:
            outputs = {"outputs": outputs, "values": DENSE(1)(features)}
            baseline = tfr.baselines.Value()
        policy = keras.Model(inputs, outputs)
        agent = tfr.Reinforce(policy, baseline=baseline, **options)
        agent.compile(keras.optimizers.Adam(1e-2))
        return agent, "CartPole-v1", {}

    return configuration


def typed(dtype):
    """Returns a configuration with a policy of another dtype policy."""

    def configuration(num_envs):
        layers = DENSE(8, "tanh", dtype=dtype), DENSE(2, dtype=dtype)
        policy = keras.Sequential([keras.Input((4,), dtype="float32"), *layers])
        agent = tfr.Reinforce(policy, normalize_observations=True)
        agent.compile(keras.optimizers.Adam(1e-2, beta_2=0.9))
        return agent, "CartPole-v1", {}

    return configuration


def compiled(name, fit=None, updates_per_call=1, **options):
    """Returns a configuration with a tensor environment."""

    def configuration(num_envs):
        env = tfr.envs.Catch() if name == "Catch" else tfr.envs.make(name)
        agent = tfr.Reinforce.for_env(env, hidden=(8,), **options)
        agent.compile(keras.optimizers.Adam(1e-2), steps_per_execution=updates_per_call)
        return agent, env, fit or {}

    return configuration


def vector_env(num_envs):
    env = gym.make_vec("CartPole-v1", num_envs, vectorization_mode="sync")
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(8,))
    return agent, env, {"max_episode_steps": 500}


DECAY = keras.optimizers.schedules.CosineDecay(0.1, 10)
BEST = dict(baseline=value(), gae_lambda=0.9, normalize_observations=True)

CONFIGURATIONS = {
    "categorical": default("CartPole-v1"),
    "moving average, running scale": default(
        "CartPole-v1", baseline="moving_average", scale_advantages="running"
    ),
    "time step, discounted states": default(
        "CartPole-v1", baseline="time_step", gamma=0.9, discount_states=True
    ),
    "groups, whole returns": default(
        "CartPole-v1", baseline=tfr.baselines.LeaveOneOut(2), returns="whole"
    ),
    "minibatches, passes": default("CartPole-v1", minibatch_size=8, passes=3),
    "steps per epoch": default(
        "CartPole-v1", {"episodes_per_epoch": None, "steps_per_epoch": 40}
    ),
    "gaussian, value, normalizer": default("Pendulum-v1", **BEST),
    "beta, minibatches": default("Pendulum-v1", head="Beta", minibatch_size=8),
    "tanh gaussian, reward scale": default(
        "Pendulum-v1", head="TanhGaussian", scale_rewards=True
    ),
    "clipped gaussian, schedule": default(
        "Pendulum-v1",
        head={"kind": "ClippedGaussian", "state_dependent_scale": True},
        entropy_coef=DECAY,
    ),
    "multi categorical": walk(CHOICES, on_truncation="drop"),
    "composite": walk(NESTED, **BEST),
    "masked": walk(gym.spaces.Discrete(4), masked=True, action_mask="info/action_mask"),
    "gru, minibatches": recurrent(keras.layers.GRU, minibatch_size=8),
    "lstm, shared values": recurrent(keras.layers.LSTM, shared=True, gae_lambda=0.9),
    "float64": typed("float64"),
    "compiled": compiled("CartPole-v1", updates_per_call=2),
    "compiled beta, value": compiled("Pendulum-v1", head="Beta", **BEST),
    "workers": walk(NESTED, {"workers": 2}, baseline="mean", mean_over="steps"),
    "vector_env": vector_env,
}
