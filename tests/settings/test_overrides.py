"""Tests that single settings of a training are overridden by name."""

import copy

import pytest

from tf_reinforce.settings import config
from tf_reinforce.settings import toml_files

SETTINGS = {
    "preset": None,
    "agent": {"gamma": 0.9, "baseline": {"kind": "value", "passes": 1}},
    "fit": {"epochs": 5, "num_envs": 4, "steps_per_epoch": 64},
    "evaluation": {},
}


@pytest.mark.parametrize(
    "text, path, value",
    [
        ("gamma=0.9", ("agent", "gamma"), 0.9),
        ("agent.gamma = 0.9", ("agent", "gamma"), 0.9),
        ("steps=10_000", ("fit", "steps"), 10_000),  # a number in TOML, not in JSON
        ("scale_advantages=null", ("agent", "scale_advantages"), None),
        ("scale_advantages=batch", ("agent", "scale_advantages"), "batch"),
        ("normalize_observations=true", ("agent", "normalize_observations"), True),
        ('baseline={"kind": "value"}', ("agent", "baseline"), {"kind": "value"}),
        ('baseline={kind = "value"}', ("agent", "baseline"), {"kind": "value"}),
        ("baseline.passes=4", ("agent", "baseline", "passes"), 4),
        ("fit.max_episode_steps=7", ("fit", "max_episode_steps"), 7),
    ],
)
def test_name_and_value_of_a_setting(text, path, value):
    assert toml_files.parse_setting(text) == (path, value)


@pytest.mark.parametrize(
    "text, expected",
    [
        ("gamma", "form NAME=VALUE, for example gamma=0.9. Received: 'gamma'"),
        ("=3", "form NAME=VALUE"),
        ("agent.=3", "form NAME=VALUE"),
        ("gama=3", "invalid key 'gama'. Did you mean 'gamma'? Expected one of: action"),
        ("agent.steps=3", "[agent] of agent.steps=3 has the invalid key 'steps'"),
        ("agent=3", "invalid key 'agent'"),
        ("max_episode_steps=3", "fit.max_episode_steps or evaluation.max_episode_steps"),
    ],
)
def test_other_forms_and_unknown_names_are_refused(text, expected):
    with pytest.raises(ValueError) as error:
        toml_files.parse_setting(text)
    assert expected in str(error.value)


def test_one_setting_changes_and_the_argument_does_not():
    before = copy.deepcopy(SETTINGS)
    result = toml_files.override(SETTINGS, ("agent", "baseline", "passes"), 4)
    expected = copy.deepcopy(SETTINGS)
    expected["agent"]["baseline"]["passes"] = 4
    assert result == expected and before == SETTINGS


def test_alternatives_of_fit_replace_each_other():
    fit = SETTINGS["fit"]
    for name, value, gone in (
        ("steps", 100, "epochs"),
        ("episodes_per_epoch", 2, "steps_per_epoch"),
        ("steps_per_epoch", None, "steps_per_epoch"),
    ):
        expected = {key: x for key, x in fit.items() if key != gone}
        expected |= {} if value is None else {name: value}
        assert toml_files.override(SETTINGS, ("fit", name), value)["fit"] == expected


def test_keys_of_a_named_baseline_or_head_make_a_table_of_its_settings():
    settings = {"agent": {"baseline": "value", "head": "Gaussian"}, "fit": {}}
    settings = toml_files.override(settings, ("agent", "baseline", "passes"), 4)
    settings = toml_files.override(settings, ("agent", "head", "initial_scale"), 1)
    assert settings["agent"] == {
        "baseline": {**config.VALUE_NETWORK, "passes": 4},
        "head": {"kind": "Gaussian", "initial_scale": 1},
    }
    with pytest.raises(ValueError, match=r"`gamma` must be a table .* gamma=0\.9"):
        toml_files.override(SETTINGS, ("agent", "gamma", "first"), 1)
