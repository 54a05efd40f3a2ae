"""Tests that the same seed gives the same bits in every run and process."""

import keras
import numpy as np
import pytest
import sweeps
from repeatable_runs import BATCH
from repeatable_runs import NAMES
from repeatable_runs import digest
from repeatable_runs import logs
from repeatable_runs import reference
from repeatable_runs import renewed
from repeatable_runs import train
from repeatable_runs import weights

import tf_reinforce as tfr


@pytest.mark.parametrize("name", sweeps.some(NAMES, always=["Pendulum-v1"]))
def test_two_runs_with_the_same_seed_are_equal(name):
    keras.utils.set_random_seed(99)
    np.random.seed(99)
    assert digest(*train(name)) == reference(name)[2]


@pytest.mark.parametrize("name", sweeps.some(NAMES, always=["CartPole-v1"]))
@pytest.mark.parametrize("num_envs", [1, 16])
def test_number_of_environments_does_not_change_the_training(name, num_envs):
    agent, history = train(name, num_envs=num_envs, make=renewed)
    expected = reference(name)
    assert logs(history) == expected[1]
    assert weights(agent) == expected[0]


@pytest.mark.parametrize("name", NAMES)
def test_another_seed_gives_another_run(name):
    """The weights start equal: only the seeds of environment and actions differ."""
    agent = renewed(name)
    history = agent.fit(name, epochs=4, seed=1, num_envs=4, **BATCH)
    assert logs(history)["loss"] != reference(name)[1]["loss"]
    first = history.history["episode_return"][0]
    assert first.hex() != reference(name)[1]["episode_return"][0]


@pytest.mark.parametrize("name", sweeps.some(NAMES, always=["Pendulum-v1"]))
def test_training_in_two_halves_equals_one_training_also_after_loading(name, tmp_path):
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


def test_evaluation_does_not_change_the_agent_or_its_training():
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
