"""Repeatable: the same seed gives the same bits, wherever and however it is run."""

import functools
import hashlib
import os
import pathlib
import subprocess
import sys

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
from test_compiled import rewinding

import tf_reinforce as tfr

NAMES = ("CartPole-v1", "Pendulum-v1")
BATCH = {"episodes_per_epoch": 5, "max_episode_steps": 60, "verbose": 0}


def make(name, seed=0):
    """An agent with everything that has a state: normalizer, value model, Adam."""
    keras.utils.set_random_seed(0)  # of the value model; the policy has its own seed
    value = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    return tfr.Reinforce.for_env(
        name,
        hidden=(16,),
        seed=seed,
        baseline=tfr.baselines.Value(value),
        gae_lambda=0.95,
        normalize_observations=True,
    )


@functools.cache
def traced(name):
    agent = make(name)
    return agent, rewinding(agent, gym.make(name))


def renewed(name):
    """One agent for many tests, as new: its programs are traced once."""
    agent, rewind = traced(name)
    rewind()
    return agent


def weights(agent):
    """A SHA-256 for each weight, counter and optimizer variable."""
    variables = [*agent.variables, *agent.optimizer.variables]
    return [hashlib.sha256(variable.numpy()).hexdigest() for variable in variables]


def logs(history):
    return {
        name: [float(value).hex() for value in values]
        for name, values in history.history.items()
        if name != "steps_per_second"
    }


def digest(agent, history):
    """One SHA-256 for all weights and all logs."""
    facts = weights(agent), sorted(logs(history).items())
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def train(name, num_envs=4, epochs=4, make=make):
    agent = make(name)
    history = agent.fit(name, epochs=epochs, seed=0, num_envs=num_envs, **BATCH)
    return agent, history


@functools.cache
def reference(name):
    """What four epochs from seed 0 give: weights and logs."""
    agent, history = train(name, make=renewed)
    return weights(agent), logs(history), digest(agent, history)


@pytest.mark.parametrize("name", sweeps.some(NAMES, always=["Pendulum-v1"]))
def test_two_runs_with_one_seed_are_one_run(name):
    keras.utils.set_random_seed(99)
    np.random.seed(99)
    assert digest(*train(name)) == reference(name)[2]


def test_two_processes_with_one_seed_are_one_run():
    here = pathlib.Path(__file__)
    path = os.pathsep.join([str(here.parent), str(here.parent.parent)])
    said = subprocess.run(
        [
            sys.executable,
            "-c",
            "import test_repeatable as t; print(t.digest(*t.train('CartPole-v1')))",
        ],
        env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": "123"},
        stdout=subprocess.PIPE,
        check=True,
        text=True,
    ).stdout
    assert said.split()[-1] == reference("CartPole-v1")[2]


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("num_envs", [1, 16])
def test_the_number_of_environments_does_not_change_one_bit(name, num_envs):
    agent, history = train(name, num_envs=num_envs, make=renewed)
    expected = reference(name)
    assert logs(history) == expected[1]
    assert weights(agent) == expected[0]


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_is_another_run(name):
    """Also where only the environment's and the action's seeds differ."""
    agent = renewed(name)
    history = agent.fit(name, epochs=4, seed=1, num_envs=4, **BATCH)
    assert logs(history)["loss"] != reference(name)[1]["loss"]
    first = history.history["episode_return"][0]
    assert first.hex() != reference(name)[1]["episode_return"][0]


@pytest.mark.parametrize("name", sweeps.some(NAMES, always=["Pendulum-v1"]))
def test_training_goes_on_where_it_stopped_also_from_a_file(name, tmp_path):
    agent, first = train(name, epochs=2, make=renewed)
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    assert weights(loaded) == weights(agent)
    for half in (agent, loaded):
        second = half.fit(name, epochs=2, seed=0, num_envs=4, **BATCH)
        whole, joined = reference(name)[1], logs(first)
        for key, values in logs(second).items():
            assert joined[key] + values == whole[key], key
        assert weights(half) == reference(name)[0]


def test_evaluation_changes_nothing_and_training_does_not_notice():
    agent, _ = train("CartPole-v1", epochs=2, make=renewed)
    before = weights(agent)
    options = {"episodes": 7, "max_episode_steps": 60}
    figures = {}
    for deterministic in (True, False):
        one, again = (
            agent.evaluate("CartPole-v1", deterministic=deterministic, **options)
            for _ in range(2)
        )
        assert one == again
        figures[deterministic] = one
    assert figures[True] != figures[False]
    agent.act(np.zeros((3, 4), "float32"))
    agent.predict(np.zeros((3, 4), "float32"), verbose=0)
    assert weights(agent) == before
    agent.fit("CartPole-v1", epochs=2, seed=0, num_envs=4, **BATCH)
    assert weights(agent) == reference("CartPole-v1")[0]


def test_evaluation_does_not_depend_on_the_number_of_environments():
    agent, _ = train("CartPole-v1", epochs=1, make=renewed)
    for deterministic in (True, False):
        one, *others = (
            agent.evaluate("CartPole-v1", 9, deterministic, num_envs=n)
            for n in (1, 4, 16)
        )
        assert others == [one, one]


def test_evaluation_plays_other_episodes_than_training():
    """Under the same seed; so does validation."""
    agent = renewed("CartPole-v1")
    options = {"episodes": 5, "max_episode_steps": 60, "deterministic": False}
    evaluated = agent.evaluate("CartPole-v1", **options)
    trained = reference("CartPole-v1")[1]
    returns = {evaluated["episode_return"].hex(), trained["episode_return"][0]}
    spreads = {evaluated["episode_return_std"].hex(), trained["episode_return_std"][0]}
    assert len(returns) + len(spreads) == 4


def test_validation_and_callbacks_do_not_change_training():
    agent = renewed("CartPole-v1")
    seen = []
    history = agent.fit(
        "CartPole-v1",
        epochs=4,
        num_envs=4,
        validation_env="CartPole-v1",
        validation_episodes=3,
        callbacks=[
            keras.callbacks.LambdaCallback(on_epoch_end=lambda e, _: seen.append(e))
        ],
        **BATCH,
    )
    assert len(history.history["val_episode_return"]) == len(seen) == 4
    assert weights(agent) == reference("CartPole-v1")[0]
