"""Tests the settings of `tf-reinforce train` without a preset."""

import json

import pytest

from tf_reinforce import cli
from tf_reinforce.cli import parsers
from tf_reinforce.cli import train_settings
from tf_reinforce.presets import default_settings

PLAIN = {"baseline": "leave_one_out", "learning_rate": 0.01, "gamma": 0.99}


def settings(*words):
    options = parsers.make_parser().parse_args(["train", *words])
    return train_settings.check_train_options(options)[1]


def is_part(part, whole):
    return all(whole.get(name) == value for name, value in part.items())


@pytest.mark.parametrize(
    "words",
    [
        ("CartPole-v1",),
        ("Taxi-v4", "--engine", "host"),
        ("Pendulum-v1", "--baseline", "mean"),
        ("FrozenLake8x8-v1", "--baseline", "none"),
    ],
)
def test_twins_of_discrete_tasks_and_other_baselines_train_plain_reinforce(words, capsys):
    found = settings(*words)
    expected = {**PLAIN, "baseline": words[-1]} if "--baseline" in words else PLAIN
    assert is_part(expected, found["agent"]) and found["fit"] == {"num_envs": 8}
    assert "no preset" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "words, limit, every",
    [
        (("FrozenLake8x8-v1",), 200, 10),
        (("CartPole-v1", "--baseline", "value"), 500, 24),
        (("CartPole-v1", "--baseline", "value", "--max-episode-steps", "900"), 900, 44),
        (("Pendulum-v1",), 200, 10),
    ],
)
def test_other_environments_get_a_value_baseline(words, limit, every, capsys):
    """The rest of the line names the preset, if there is one."""
    found = settings(*words)
    assert found["agent"]["gamma"] == default_settings.gamma(limit)
    assert found["agent"]["passes"] == 10 and found["agent"]["gae_lambda"] == 0.95
    assert found["fit"]["steps_per_epoch"] == 2048 and found["fit"]["num_envs"] == 4
    assert found["evaluation"]["every"] == every
    printed = capsys.readouterr().out
    assert f"no preset: settings for a value baseline, {kind(words)}" in printed
    assert f"a time limit of {limit} steps: gamma" in printed
    has_preset = words[0] != "FrozenLake8x8-v1"
    assert ("there is a preset for" in printed) == has_preset


def kind(words):
    return "Box actions" if words[0] == "Pendulum-v1" else "Discrete actions"


def test_options_and_set_override_the_chosen_settings():
    words = "--gamma", "0.5", "--episodes-per-epoch", "3", "--eval-every", "7"
    found = settings("Pendulum-v1", *words, "--set", "passes=2")
    assert found["agent"]["gamma"] == 0.5 and found["agent"]["passes"] == 2
    assert found["fit"]["episodes_per_epoch"] == 3
    assert "steps_per_epoch" not in found["fit"]
    assert found["evaluation"] == {"every": 7}


def test_compiled_engine_gets_no_number_of_steps():
    assert settings("Pendulum-v1", "--engine", "compiled")["fit"] == {"num_envs": 8}


def test_run_directory_contains_the_chosen_settings(tmp_path, capsys):
    small = ["--episodes-per-epoch", "2", "--max-episode-steps", "20", "--hidden", "4"]
    run = ["--run-dir", str(tmp_path / "run"), "--epochs", "1", "--eval-episodes", "2"]
    assert cli.main(["train", "Pendulum-v1", "--engine", "host", *small, *run]) == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["agent"]["ratio_clip"] == [0.2, 0.2]
    assert config["agent"]["head"] == "ClippedGaussian"
    assert config["fit"]["num_envs"] == 4 and config["engine"] == "host"
    assert "no preset" in capsys.readouterr().out
