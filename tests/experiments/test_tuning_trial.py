"""Tests the value of a trial, and the reports of its trainings."""

import dataclasses
import types

import gymnasium as gym
import numpy as np
import optuna
import pytest
import toys

from tf_reinforce.engine import agent_state
from tf_reinforce.experiments import tuning_trial

AGENT = {"hidden": [4], "learning_rate": 0.1, "baseline": "mean", "gamma": 1.0}


@pytest.fixture(scope="module", autouse=True)
def registered():
    """Registers the environments of these tests."""
    ids = {"TuneBandit-v0": toys.Bandit, "TuneClock-v0": toys.Clock}
    for name, entry_point in ids.items():
        gym.register(name, entry_point=entry_point)
    yield
    for name in ids:
        gym.registry.pop(name)


def config(
    env="TuneBandit-v0", objective="steps", target=1.0, budget=400, agent=None, **more
):
    settings = {
        "env_kwargs": {},
        "agent": {**AGENT, **(agent or {})},
        "fit": {"steps": budget, "episodes_per_epoch": 8},
        "evaluation": {"episodes": 4},
    }
    ranges = {"agent": {"gamma": {"low": 0.5, "high": 1.0}}}
    minimize = objective in ("steps", "loss")
    more = {"seeds": 2, **more}
    return tuning_trial.SearchConfig(
        env, settings, ranges, "host", objective, minimize, target, **more
    )


def made_callback(search, model):
    callback = tuning_trial.TrialCallback(search, lambda *_: False, "Any-v0", {}, 0)
    callback._model = model
    return callback


def trained(search):
    """Returns the value and the trainings of a trial."""
    trial = optuna.trial.FixedTrial({"agent.gamma": 0.9})
    value = tuning_trial.run(search, trial, 3)
    return value, trial.user_attrs["trainings"]


def test_missed_target_is_worse_than_any_step_and_better_if_the_return_is_higher():
    for target in (475.0, -200.0, 0.0, 0.78):
        returns = target - np.array([0.0, 0.01, 1.0, 100.0, 1e12, np.inf])
        values = [config(target=target, budget=1000).missed(x) for x in returns]
        assert values[0] == 1000 and values[-1] == 2000
        assert sorted(values) == values and len(set(values[:4])) == 4


def test_trial_ends_at_the_target_and_its_value_is_the_mean_of_the_steps():
    value, trainings = trained(config())
    assert [x["seed"] for x in trainings] == [6, 7]
    assert all(x["reached"] and x["best_return"] == 1.0 for x in trainings)
    steps = [x["env_steps"] for x in trainings]
    assert max(steps) < 400 and value == np.mean(steps)


def test_pruner_receives_the_mean_over_the_trainings_so_far(monkeypatch):
    """Steps increase from each training to the next."""

    def train(search, settings, seed, agent, report):
        for number in (25, 50):
            assert not report(number, 10.0 * seed + number)
        result = types.SimpleNamespace(is_pruned=False, value=10.0 * seed + 50)
        return None, result, {"seed": seed}

    monkeypatch.setattr(tuning_trial, "_train", train)
    trial, reports = optuna.trial.FixedTrial({"agent.gamma": 0.9}), []
    trial.report = lambda value, step: reports.append((step, value))
    assert tuning_trial.run(config(seeds=3), trial, 2) == np.mean([110, 120, 130])
    expected = [85, 110, 102.5, 115, np.mean([110, 120, 105]), 120]
    assert reports == [(200 * (i + 1), value) for i, value in enumerate(expected)]


def test_confirmation_uses_the_same_seeds_for_all_trials_and_no_seed_of_a_trial(
    monkeypatch,
):
    seeds = []

    def train(search, settings, seed, agent):
        seeds.append(seed)
        return None, types.SimpleNamespace(value=2.0 * len(seeds)), {}

    monkeypatch.setattr(tuning_trial, "_train", train)
    search = config(confirm=3)
    assert tuning_trial.confirm(search, search.settings) == [2, 4, 6]
    assert tuning_trial.confirm(search, {**search.settings, "agent": {}}) == [8, 10, 12]
    assert seeds[:3] == seeds[3:] and len(set(seeds)) == 3
    of_trials = {seed for index in range(10_000) for seed in search.trial_seeds(index)}
    assert not of_trials & set(seeds)


@pytest.mark.parametrize(
    ("returns", "expected"),
    [
        ([10.0], 40),
        ([3.0, 7.0, 10.0], 100),  # after 120 steps
        ([3.0, 7.0, 5.0], config(target=10.0, budget=100).missed(7.0)),
    ],
)
def test_value_is_the_steps_to_the_target_or_the_best_return_below(returns, expected):
    """With updates of 40 steps, the target may be reached after the budget of 100.

    This must not count as worse than missing it.
    """
    remaining = iter(returns)
    metrics = lambda *_, **__: {"episode_return": next(remaining)}  # noqa: E731
    model = types.SimpleNamespace(updates=1, evaluate=metrics)
    callback = made_callback(config(target=10.0, budget=100), model)
    for epoch in range(len(returns)):
        callback.on_epoch_end(epoch, {"env_steps": 40 * (epoch + 1)})
    assert callback.value == expected
    assert callback.reached == (returns[-1] == 10.0)


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["host", "compiled"])
def test_evaluations_of_a_trial_have_the_time_limit_of_the_settings(engine):
    """CartPole episodes are longer than three steps, with reward 1 each."""
    search = config("CartPole-v1", "return", None, 100)
    search = dataclasses.replace(search, engine=engine)
    search.settings["evaluation"]["max_episode_steps"] = 3
    *_, training = tuning_trial._train(search, search.settings, 0)
    assert training["best_return"] == training["value"] == 3.0


@pytest.mark.slow
def test_second_training_equals_the_training_of_a_new_agent():
    """It reuses the first agent's programs."""
    agent = {"baseline": {"kind": "value", "hidden": [4]}, "normalize_observations": True}
    agent |= {"learning_rate": {"first": 0.1, "last": 0.01}}
    search, results = config("TuneClock-v0", "return", None, 48, agent), []
    for reuses in (True, False):
        last = None
        for seed in (1, 2):
            last = last if reuses else None
            last, *_ = tuning_trial._train(search, search.settings, seed, last)
        results.append([np.asarray(x) for x in agent_state.variables(last)])
    assert len(results[0]) == len(results[1]) > 20
    for reused, new in zip(*results, strict=True):
        np.testing.assert_array_equal(reused, new)


def test_mean_of_a_log_key_over_the_last_tenth_of_the_updates_is_the_value():
    """The third step of a `Clock` has reward 3; all returns are 6."""
    value, trainings = trained(config("TuneClock-v0", "episode_return"))
    assert value == 6.0 and trainings[0]["best_return"] is None
    search = config(objective="loss", budget=100)
    callback = made_callback(search, types.SimpleNamespace())
    losses = np.arange(25.0) ** 2
    for epoch, loss in enumerate(losses):
        callback.on_epoch_end(epoch, {"env_steps": 4 * (epoch + 1), "loss": loss})
    assert callback.value == np.mean(losses[-3:])


def test_log_key_of_an_objective_is_checked_in_the_first_update():
    with pytest.raises(ValueError, match="entropy.*Received: retrun"):
        trained(config(objective="retrun"))


def test_reached_target_is_reported_for_the_rest_of_the_budget():
    """Otherwise the pruner could not compare later trials with it."""
    reports = {}

    def report(number, value):
        reports[number] = value
        return False

    search = config(target=-1.0)
    tuning_trial._train(search, search.settings, 0, None, report)
    assert list(reports) == list(range(1, 51)) and set(reports.values()) == {8.0}
