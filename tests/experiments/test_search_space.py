"""Tests the ranges of a search: their errors, and the settings drawn from them."""

import math
import pathlib
import re
import tomllib

import optuna
import pytest

from tf_reinforce import presets
from tf_reinforce.experiments import search_space
from tf_reinforce.settings import toml_files

ROOT = pathlib.Path(__file__).parents[2]
AGENT = {"gamma": 0.99, "learning_rate": 0.01, "hidden": [64, 64], "baseline": "mean"}
SETTINGS = {"agent": AGENT, "fit": {"steps": 1000, "episodes_per_epoch": 16}}
RATE = {"low": 1e-4, "high": 1e-1, "log": True}


def test_ranges_of_the_document_are_valid():
    text = (ROOT / "docs" / "tuning.md").read_text()
    [block] = re.findall(r"```toml\n(.*?)```", text, re.DOTALL)
    ranges = search_space.parse(tomllib.loads(block)["ranges"])
    names = [item.name.partition(".")[2] for item in ranges]
    assert names == ["learning_rate", "hidden", "gamma", "episodes_per_epoch"]
    search_space.check(ranges, SETTINGS)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("agent.gamma", {"low": 0.9}, "low < high"),
        ("agent.learning_rate", {"low": 0.1, "high": 0.1}, "low < high"),
        ("agent.entropy_coef", {"low": 0, "high": 0.1, "log": True}, "low > 0"),
        ("agent.passes", {"low": 1.5, "high": 3}, "whole number"),
        ("agent.gae_lambda", {"low": 0.9, "high": math.nan}, "finite"),
        ("agent.hidden", {"choices": [[32]]}, "different values"),
        ("agent.baseline", {"choices": ["mean", "none"], "low": 1}, "different values"),
        ("agent.returns", {"choices": ["to_go", "whole"], "step": 1}, "'step'"),
        ("fit.steps", {"low": 10, "high": 100}, "same in all trainings"),
    ],
)
def test_invalid_range_is_refused_with_its_name(name, value, expected):
    table, key = name.split(".")
    with pytest.raises(ValueError, match=expected) as error:
        search_space.parse({table: {key: value}})
    assert name in str(error.value)


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("agent.gama", {"low": 0.9, "high": 0.99}, "invalid key 'gama'"),
        ("agent.gamma", {"low": 0.9, "high": 1.5}, "gamma=1.5"),
        ("agent.baseline", {"choices": ["mean", "median"]}, "median"),
        ("fit.episodes_per_epoch", {"low": 0, "high": 8}, "episodes_per_epoch=0"),
        ("agent.learning_rate.first", RATE, "`learning_rate` must be a table"),
    ],
)
def test_range_is_checked_at_both_ends_against_the_settings(path, value, expected):
    table, key, *more = path.split(".")
    value = {more[0]: value} if more else value
    ranges = search_space.parse({table: {key: value}})
    with pytest.raises(ValueError, match=expected) as error:
        search_space.check(ranges, SETTINGS)
    assert f"The range of `{path}`" in str(error.value)


@pytest.mark.parametrize("table, key", [("agent", "passes"), ("agent", "learning_rate")])
@pytest.mark.parametrize("log", [True, False])
def test_logarithm_of_a_number_is_uniform_only_if_the_range_is_logarithmic(
    table, key, log
):
    """Numbers up to 100 are half of the range on a logarithmic scale.

    The tolerance is six standard errors.
    """
    content = {table: {key: {"low": 1, "high": 10_000, "log": log}}}
    [item] = search_space.parse(content)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    count = 200
    share = sum(item.suggest(study.ask()) <= 100 for _ in range(count)) / count
    expected = 0.5 if log else 0.01
    error = math.sqrt(expected * (1 - expected) / count)
    assert abs(share - expected) <= 6 * error


@pytest.mark.parametrize("name", presets.names())
def test_default_ranges_contain_the_settings_of_every_preset(name):
    """So the first trial has the settings of the preset."""
    preset = toml_files.read(name)
    agent = {**AGENT, "baseline": "leave_one_out", **preset["agent"]}
    settings = {"agent": agent, "fit": preset["fit"]}
    ranges = search_space.default_ranges(settings)
    search_space.check(ranges, settings)
    parameters = search_space.start_trials(ranges, settings)[0]
    trial = optuna.trial.FixedTrial(parameters)
    values = {item.path: item.suggest(trial) for item in ranges}
    assert search_space.substitute(settings, values)["agent"] == agent
    assert search_space.parse(search_space.to_table(ranges)) == ranges


def test_first_trials_move_one_number_half_of_the_way_to_one_end():
    table = {
        "agent": {
            "learning_rate": {"low": 0.001, "high": 0.1, "log": True},
            "gamma": {"low": 0.5, "high": 1.0},
            "hidden": {"choices": [[64, 64], [8]]},
        },
        "fit": {"episodes_per_epoch": {"low": 4, "high": 17, "log": True}},
    }
    agent = {"learning_rate": 0.01, "gamma": 1.0, "hidden": [64, 64]}
    settings = {"agent": agent, "fit": {"episodes_per_epoch": 16}}
    first, *others = search_space.start_trials(search_space.parse(table), settings)
    rate, discount = "agent.learning_rate", "agent.gamma"
    episodes = "fit.episodes_per_epoch"
    assert first == {rate: 0.01, discount: 1.0, "agent.hidden": "[64, 64]", episodes: 16}
    moves = [(rate, 1e-2 / 10**0.5), (rate, 1e-2 * 10**0.5)]
    moves += [(discount, 0.75), (episodes, 8)]
    for other, (name, value) in zip(others, moves, strict=True):
        assert other == {**first, name: pytest.approx(value, rel=1e-12)}
    outside = search_space.parse({"agent": {"gamma": {"low": 0.5, "high": 0.9}}})
    assert search_space.start_trials(outside, settings) == []
