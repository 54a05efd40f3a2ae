"""Tests agents in situations that are allowed and rare."""

import asyncio
import concurrent.futures
import copy
import functools
import os
import pickle
import resource
import subprocess
import sys

import cloudpickle
import gymnasium as gym
import numpy as np
import pytest

import tf_reinforce as tfr

BUDGET = dict(epochs=2, episodes_per_epoch=4, max_episode_steps=12, verbose=0)


def make_agent(env="CartPole-v1", **options):
    return tfr.Reinforce.for_env(env, hidden=(4,), seed=0, **options)


def trained(env="CartPole-v1", agent=None, **options):
    """Returns the weights after two updates as bytes."""
    agent = agent or make_agent(env)
    agent.fit(env, **BUDGET, **options)
    return [x.tobytes() for x in agent.get_weights()]


class Walk(gym.Env):
    """A random walk, which ends outside of [-3, 3]."""

    observation_space = gym.spaces.Box(-9, 9, (2,))
    action_space = gym.spaces.MultiDiscrete([2, 2])
    mutates = False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place, self.info = np.zeros(2, np.float32), {"legal": np.ones(4, np.int8)}
        return self._result()[0], self._result()[-1]

    def step(self, action):
        self.place += action - self.np_random.random(2).astype("f")
        reward = np.float64(self.place[0])
        self.info["legal"][:] = [1, self.place[0] < 1, 1, 1]
        if self.mutates:
            action[:] = 0
        ended = bool(abs(self.place).max() > 3)
        observation, info = self._result()
        return observation, reward, ended, False, info

    def _result(self):
        if self.mutates:
            return self.place, self.info
        return self.place.copy(), copy.deepcopy(self.info)


class MutatingWalk(Walk):
    """Returns its own arrays, and changes them and the action in the next step."""

    mutates = True


def walk_with(env, **options):
    return trained(env, make_agent(env, action_mask="info/legal"), **options)


def test_environment_may_change_its_arrays_in_place():
    assert walk_with(MutatingWalk, num_envs=3) == walk_with(Walk, num_envs=3)


@pytest.mark.slow
def test_agent_trains_in_a_thread_in_asyncio_and_beside_another_agent():
    expected = trained()

    async def in_asyncio():
        return trained()

    assert asyncio.run(in_asyncio()) == expected
    with concurrent.futures.ThreadPoolExecutor(2) as threads:
        assert list(threads.map(lambda _: trained(), range(2))) == [expected] * 2


@pytest.mark.slow
def test_copied_and_pickled_agents_act_and_train_on_alike():
    agent = make_agent(normalize_observations=True)
    agent.fit("CartPole-v1", **BUDGET)
    copies = [
        copy.deepcopy(agent),
        pickle.loads(pickle.dumps(agent)),
        cloudpickle.loads(cloudpickle.dumps(agent)),
    ]
    observations = np.random.default_rng(0).normal(size=(9, 4)).astype("float32")
    expected = agent.act(observations, seed=1).tolist()
    for other in copies:
        assert other.act(observations, seed=1).tolist() == expected
        for one, another in zip(
            agent.optimizer.variables, other.optimizer.variables, strict=True
        ):
            np.testing.assert_array_equal(one, another)


TRAIN = """
import os, tf_reinforce as tfr
agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,), seed=0)
agent.fit("CartPole-v1", epochs=1, episodes_per_epoch=2, workers=2, verbose=0,
          resume="run")
agent.save("agent.keras")
agent.export("policy", format="litert")
print(tfr.load("agent.keras").act([[0.0, 0, 0, 0]], deterministic=True))
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "situation", ["no home", "read-only TMPDIR", "LC_ALL=C", "odd path", "20 files"]
)
def test_process_in_an_odd_situation_trains_saves_and_exports(situation, tmp_path):
    (tmp_path / "tmp").mkdir(mode=0o500)
    folder = tmp_path / ("a b 'c' %d {x} $y ; é" if situation == "odd path" else "plain")
    folder.mkdir()
    environment = dict(os.environ)
    if situation == "no home":
        environment.pop("HOME", None)
    elif situation == "read-only TMPDIR":
        environment["TMPDIR"] = str(tmp_path / "tmp")
    elif situation == "LC_ALL=C":
        environment["LC_ALL"] = "C"
    limits = 40, resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    limit = functools.partial(resource.setrlimit, resource.RLIMIT_NOFILE, limits)
    process = subprocess.run(
        [sys.executable, "-c", TRAIN],
        cwd=folder,
        env=environment,
        preexec_fn=limit if situation == "20 files" else None,
        text=True,
        capture_output=True,
    )
    assert process.returncode == 0, process.stderr
    assert process.stdout.strip() in ("[0]", "[1]")
    names = {path.name for path in folder.iterdir()}
    assert names == {"agent.keras", "policy", "run"}
