"""Tests episodes that are much longer than the blocks in which steps are stored."""

import sys

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest
import sweeps

import tf_reinforce as tfr

# Workers import no module of tests, which would import TensorFlow.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

LENGTHS = (700, 1, 255, 300, 512, 256, 257, 31, 64)


class Numbered(gym.Env):
    """Observes its episode and its step, in `size` numbers."""

    action_space = gym.spaces.Discrete(2)

    def __init__(self, lengths=LENGTHS, size=2):
        self.lengths = lengths
        self.observation_space = gym.spaces.Box(0.0, 1e6, (size,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.step_number = 0
        self.length = self.lengths[int(self.np_random.integers(len(self.lengths)))]
        return self._observation(), {}

    def step(self, action):
        self.step_number += 1
        ends = self.step_number == self.length
        return self._observation(), float(self.step_number), ends, False, {}

    def _observation(self):
        observation = np.zeros(self.observation_space.shape, "float32")
        observation[:2] = self.length, self.step_number
        return observation


@pytest.mark.parametrize(
    "options", [sweeps.rare({"num_envs": 2}), {"num_envs": 3, "workers": 2}]
)
@pytest.mark.parametrize("budget", [{"episodes": 16}, {"steps": 3000}])
def test_steps_of_long_and_short_episodes_are_complete_and_in_order(options, budget):
    agent = tfr.Reinforce.for_env(Numbered, hidden=())
    episodes = agent.collect(Numbered, seed=1, **budget, **options)
    rows = np.arange(len(episodes.observations))
    assert set(episodes.lengths) > {700, 1, 256}
    for column, length in enumerate(episodes.lengths):
        lengths, steps = episodes.observations[:, column].T
        np.testing.assert_array_equal(lengths, np.where(rows <= length, length, 0))
        np.testing.assert_array_equal(steps, np.where(rows <= length, rows, 0))
        rewards = np.where(rows[1:] <= length, rows[1:], 0)
        np.testing.assert_array_equal(episodes.rewards[:, column], rewards)


def peak():
    """Returns the largest resident memory since the last call, in bytes."""
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("VmHWM"))
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")
    return int(line.split()[1]) * 1024


@pytest.mark.parametrize(
    "method, length, workers",
    [
        ("collect", 5000, 1),
        sweeps.rare("collect", 20_000, 2),
        sweeps.rare("fit", 50_000, 1),
    ],
)
def test_long_episodes_need_little_more_memory_than_their_arrays(method, length, workers):
    """In float32, eight episodes of L + 1 observations with 200 numbers."""
    kwargs = dict(lengths=(length,), size=200)
    agent = tfr.Reinforce.for_env(Numbered, env_kwargs=kwargs, hidden=(4,))
    fit = dict(epochs=1, episodes_per_epoch=8, verbose=0)
    budget = dict(episodes=8) if method == "collect" else fit
    options = dict(env_kwargs=kwargs, max_episode_steps=length + 1, workers=workers)
    peak()
    before = peak()
    getattr(agent, method)(Numbered, **budget, **options)
    assert peak() - before < 1.5 * 8 * (length + 1) * 200 * 4
