"""Tests that single settings of a training are replaced."""

import copy

import pytest

from tf_reinforce.settings import config
from tf_reinforce.settings import toml_files


@pytest.mark.parametrize(
    "before, path, value, after",
    [
        ({"gamma": 0.9}, "gamma", 1, {"gamma": 1}),
        ({"baseline": {"a": 1}}, "baseline.b", 4, {"baseline": {"a": 1, "b": 4}}),
        (
            {"baseline": "value"},
            "baseline.passes",
            4,
            {"baseline": {**config.VALUE_NETWORK, "passes": 4}},
        ),
        (
            {"head": "Gaussian"},
            "head.initial_scale",
            1,
            {"head": {"kind": "Gaussian", "initial_scale": 1}},
        ),
    ],
)
def test_one_setting_changes_and_the_argument_does_not(before, path, value, after):
    """Keys of a named baseline or head make a table of its settings."""
    settings = {"agent": copy.deepcopy(before), "fit": {}}
    found = toml_files.override(settings, ("agent", *path.split(".")), value)
    assert found["agent"] == after and settings["agent"] == before


def test_alternatives_of_fit_replace_each_other():
    fit = {"epochs": 5, "num_envs": 4, "steps_per_epoch": 64}
    settings = {"agent": {"gamma": 0.9}, "fit": fit}
    for name, gone in ("steps", "epochs"), ("episodes_per_epoch", "steps_per_epoch"):
        expected = {key: x for key, x in fit.items() if key != gone} | {name: 2}
        assert toml_files.override(settings, ("fit", name), 2)["fit"] == expected
    assert toml_files.override(settings, ("fit", "num_envs"), None)["fit"] == {
        name: fit[name] for name in ("epochs", "steps_per_epoch")
    }
    with pytest.raises(ValueError, match=r"`gamma` must be a table.* gamma=0\.9"):
        toml_files.override(settings, ("agent", "gamma", "first"), 1)


@pytest.mark.parametrize(
    "text, path, value",
    [
        ("steps=10_000", "fit.steps", 10_000),
        ("agent.baseline.passes=4", "agent.baseline.passes", 4),
        ("max_kl=null", "agent.max_kl", None),
        ("head={kind = 'Beta'}", "agent.head", {"kind": "Beta"}),
        ("evaluation.episodes=7", "evaluation.episodes", 7),
        ("fit.max_episode_steps=3", "fit.max_episode_steps", 3),
    ],
)
def test_name_and_value_of_a_setting(text, path, value):
    assert toml_files.parse_setting(text) == (tuple(path.split(".")), value)


@pytest.mark.parametrize(
    "text", ["gama=0.9", "gamma", "agent.steps=3", "max_episode_steps=3", "=1", "agent=1"]
)
def test_what_is_no_setting_is_refused(text):
    with pytest.raises(ValueError, match=f"NAME=VALUE.* Received: '{text}'"):
        toml_files.parse_setting(text)
