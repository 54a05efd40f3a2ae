"""Tests the plan of a training without a preset."""

import json
import sys
import textwrap

import gymnasium as gym
import pytest

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.cli import entry
from tf_reinforce.cli import plans
from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings
from tf_reinforce.settings import run_config

PLAIN = {"baseline": "leave_one_out", "learning_rate": 0.01, "gamma": 0.99}


def settings(*words):
    """Returns the settings of a training without a preset of its environment."""
    words = words if "--preset" in words else (*words, "--no-preset")
    options = entry.make_parser().parse_args(["train", *words])
    return plans.make(options).settings


def is_part(part, whole):
    return all(whole.get(name) == value for name, value in part.items())


@pytest.mark.parametrize(
    "words, baseline",
    [
        (("CartPole-v1",), "leave_one_out"),
        (("Taxi-v4", "--engine", "host"), "leave_one_out"),
        (("Pendulum-v1", "--baseline", "mean"), "mean"),
        (("FrozenLake8x8-v1", "--baseline", "none"), "none"),
        (("Pendulum-v1", "--baseline", "{kind = 'value'}"), {"kind": "value"}),
    ],
)
def test_twins_of_discrete_tasks_and_other_baselines_train_plain_reinforce(
    words, baseline, capsys
):
    found = settings(*words)
    assert is_part({**PLAIN, "baseline": baseline}, found["agent"])
    assert found["fit"] == {"num_envs": 8, "epochs": 300}
    assert "without a preset" not in capsys.readouterr().out


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
    """The last line names the preset, if there is one."""
    found = settings(*words)
    assert found["agent"]["gamma"] == default_settings.gamma(limit)
    assert found["agent"]["passes"] == 10
    assert found["agent"]["gae_lambda"] == (0.8 if words[0] == "Pendulum-v1" else 0.95)
    assert found["agent"]["baseline"] == config.VALUE_NETWORK
    assert found["fit"]["steps_per_epoch"] == 2048 and found["fit"]["num_envs"] == 4
    assert found["evaluation"]["every"] == every
    first, second, *others = capsys.readouterr().out.splitlines()
    assert second == "a value network, and 10 passes over each update's steps. " + HINT
    kind = "Box" if words[0] == "Pendulum-v1" else "Discrete"
    assert first.startswith(f"without a preset, the settings follow from {kind} actions")
    assert f"episodes of at most {limit} steps" in first
    has_preset = words[0] != "FrozenLake8x8-v1"
    hints = ["has a preset with tuned settings" in line for line in others]
    assert hints == [True] * has_preset


HINT = "Plain REINFORCE: --baseline leave_one_out"


def test_info_keys_of_options_and_presets_need_the_host_engine(tmp_path, capsys):
    path = tmp_path / "own.toml"
    path.write_text('env = "CartPole-v1"\n[fit]\ninfo_keys = ["a"]\n')
    for words, keys in ((["--preset", str(path)], ["a"]), (["--info-keys", "b"], ["b"])):
        options = entry.make_parser().parse_args(["train", "CartPole-v1", *words])
        plan = plans.make(options)
        assert plan.settings["fit"]["info_keys"] == keys and plan.twin() is None
        command = ["train", "CartPole-v1", "--engine", "compiled", *words]
        assert cli.main(command) == 2
        assert (
            f"reads no info; `--engine host` does. Received: {{'info_keys': {keys}"
            in (capsys.readouterr().err)
        )
    assert cli.main(["train", "CartPole-v1", "--info-keys", "a", "loss"]) == 2
    assert "Received: 'loss'" in capsys.readouterr().err


def test_options_override_the_settings_of_the_environment():
    words = "--gamma", "0.5", "--episodes-per-epoch", "3", "--eval-every", "7"
    more = "--set", "baseline.passes=3", "--set", "max_kl=null"
    found = settings("Pendulum-v1", *words, "--passes", "2", *more)
    agent = {"gamma": 0.5, "passes": 2, "gae_lambda": 0.8, "max_kl": None}
    assert is_part(agent, found["agent"])
    assert found["agent"]["baseline"]["passes"] == 3
    assert found["fit"] == {"num_envs": 4, "episodes_per_epoch": 3, "epochs": 300}
    assert found["callbacks"] == {}  # there is no reward threshold
    assert found["evaluation"] == {"every": 7}


def test_settings_given_by_set_choose_the_other_settings_as_options_do():
    for words, name in (
        ("Pendulum-v1 {} baseline=mean", "baseline"),
        ("Pendulum-v1 {} fit.max_episode_steps=50", "max-episode-steps"),
        ("CartPole-v1 {} baseline=value", "baseline"),
    ):
        value = words.partition("=")[2]
        option = [*words.split(" {}")[0].split(), f"--{name}", value]
        found, expected = settings(*words.format("--set").split()), settings(*option)
        assert found["agent"] == expected["agent"] and found["fit"] == expected["fit"]


def test_compiled_engine_gets_no_number_of_steps():
    found = settings("Pendulum-v1", "--engine", "compiled")
    assert found["fit"] == {"num_envs": 8, "epochs": 300}


def test_preset_file_with_a_value_baseline_keeps_all_other_settings(tmp_path):
    path = tmp_path / "my.toml"
    path.write_text('env = "Pendulum-v1"\n[agent]\nbaseline = "value"\n')
    agent = settings("Pendulum-v1", "--preset", str(path))["agent"]
    assert agent["baseline"] == config.VALUE_NETWORK
    assert is_part({"learning_rate": 0.01, "gamma": 0.99}, agent)
    assert "passes" not in agent


@pytest.mark.parametrize(
    "words, preset, stops",
    [
        ("CartPole-v1", True, True),
        ("CartPole-v1 --gamma 0.9 --eval-every 7", True, True),
        ("CartPole-v1 --epochs 9", True, False),
        ("CartPole-v1 --set steps=900", True, False),
        ("CartPole-v1 --preset", True, False),
        ("CartPole-v1 --no-preset", False, True),
        ("CartPole-v1 --seeds 2 --epochs 9", False, False),  # in one program
        ("CartPole-v1 --seeds 2 --epochs 9 --engine host", True, False),
        ("Pendulum-v1", True, True),  # at the target of the preset
        ("Pendulum-v1 --engine compiled", False, False),  # the preset counts steps
        ("Pendulum-v1 --baseline mean", False, False),  # the preset has gae_lambda
        ("FrozenLake-v1 --env-arg map_name=8x8", False, True),
        ("FrozenLake-v1 --env-arg map_name=8x8 --preset", True, False),
    ],
)
def test_training_takes_the_preset_of_its_environment_and_says_so(
    words, preset, stops, capsys
):
    """Unless the preset does not fit the options; its target ends a free training."""
    options = entry.make_parser().parse_args(["train", *words.split()])
    found = plans.make(options).settings
    printed = capsys.readouterr().out
    name = words.split()[0]
    assert found["preset"] == (name if preset else None)
    is_said = f"training with the preset {name}, which reached" in printed
    assert is_said == (preset and "--preset" not in words)
    reason = "which does not fit: `gae_lambda` below 1 needs a value baseline"
    assert (reason in printed) == ("--baseline" in words)
    if "does not fit" in printed:
        assert printed.splitlines()[-1].startswith("training without the preset Pend")
    assert ("has a preset with settings for another task: add" in printed) == (
        "--env-arg" in words and not preset
    )
    assert ("stop_at_return" in found["callbacks"]) == stops
    own = tfr.presets.read(name)["agent"]["learning_rate"]
    assert (found["agent"]["learning_rate"] == own) == preset
    if "--gamma" in words:
        assert found["agent"]["gamma"] == 0.9 and found["evaluation"]["every"] == 7


def test_auto_is_the_preset_of_an_environment_that_has_one():
    """Also of an instance; an environment without a preset has the defaults."""
    named = tfr.Reinforce.for_env("Pendulum-v1", preset="Pendulum-v1")
    for env in ("Pendulum-v1", gym.make("Pendulum-v1")):
        agent = tfr.Reinforce.for_env(env, preset="auto")
        assert agent._settings == named._settings
        assert agent._fit_defaults["evaluation"] == named._fit_defaults["evaluation"]
    lake = dict(env="FrozenLake-v1", env_kwargs={"map_name": "8x8"})
    for other in (dict(env="FrozenLake8x8-v1"), lake):
        agent = tfr.Reinforce.for_env(**other, preset="auto")
        assert agent._settings["preset"] is None
        assert "evaluation" not in agent._fit_defaults


SMALL = ["--episodes-per-epoch", "2", "--max-episode-steps", "20", "--hidden", "4"]
ONCE = ["--epochs", "1", "--eval-episodes", "2"]


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes a module that registers an environment; returns its id."""
    (tmp_path / "own_points.py").write_text(
        textwrap.dedent(
            """
            import gymnasium as gym
            from gymnasium.envs.classic_control import pendulum
            kind = dict(entry_point=pendulum.PendulumEnv, max_episode_steps=100)
            gym.register("OwnPoints-v0", **kind)
            """
        )
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_points:OwnPoints-v0"
    gym.registry.pop("OwnPoints-v0", None)
    sys.modules.pop("own_points", None)


SAID = "without a preset, the settings follow from Box actions and episodes of at most"


@pytest.mark.parametrize("command", ["train", "tune"])
def test_environment_of_a_module_determines_the_settings(command, module, capsys):
    options = entry.make_parser().parse_args([command, module, "--steps", "1000"])
    found = plans.make(options).settings
    assert found["agent"]["head"] == "ClippedGaussian"
    assert found["agent"]["baseline"] == config.VALUE_NETWORK
    assert f"{SAID} 100 steps" in capsys.readouterr().out


def test_earlier_run_with_the_name_of_the_value_baseline_keeps_its_settings(tmp_path):
    run = ["--run-dir", str(tmp_path), "--engine", "host"]
    assert cli.main(["train", "CartPole-v1", *run, *SMALL, *ONCE]) == 0
    path = tmp_path / "config.json"
    content = json.loads(path.read_text())
    content["agent"]["baseline"] = "value"
    path.write_text(json.dumps(content))
    found = run_config.read_training(tmp_path, {}, {})["agent"]["baseline"]
    assert found == {"kind": "value"}
