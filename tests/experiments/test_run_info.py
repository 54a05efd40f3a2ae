"""Tests the description of runs and agent files."""

import json
import shutil

import pytest

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.experiments import run_info

CONFIG = {"env": "CartPole-v1", "seed": 3, "agent": {"gamma": 0.9}, "fit": {}}


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    (folder / "log.csv").write_text(
        "epoch,env_steps,episode_return,val_episode_return\n0,10,1.5,7\n1,30,2.5,nan\n"
    )
    return folder


def test_run_has_settings_last_numbers_of_the_log_and_evaluation(run, capsys):
    expected = {"settings": CONFIG, "log": {"epoch": 1.0, "env_steps": 30.0}}
    expected["log"] |= {"episode_return": 2.5, "val_episode_return": 7.0}
    assert run_info.read(run) == expected
    (run / "evaluation.json").write_text('{"episode_return": 40.5}')
    expected["evaluation"] = {"episode_return": 40.5}
    assert cli.main(["info", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == expected
    assert cli.main(["info", str(run)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["agent.gamma", "0.9"] in lines and ["env_steps", "30"] in lines
    assert lines[-2:] == [["evaluation"], ["episode_return", "40.5"]]


def test_agent_file_has_settings(tmp_path, capsys):
    agent = tfr.Reinforce.for_env("Pendulum-v1", hidden=(4,), baseline="time_step")
    agent.save(tmp_path / "agent.keras")
    settings = run_info.read(tmp_path / "agent.keras")["settings"]
    assert settings["head"] == "Gaussian" and settings["baseline"] == "TimeStep"
    assert settings["action_space"]["kind"] == "Box" and settings["gamma"] == 0.99
    assert cli.main(["info", str(tmp_path / "agent.keras")]) == 0
    assert "action_space.kind" in capsys.readouterr().out


@pytest.mark.parametrize("kind", ["folders", "one program"])
def test_each_seed_has_a_last_row_and_an_evaluation(kind, run, capsys):
    table = "epoch,seed,env_steps,episode_return\n0,4,10,1.5\n0,5,20,2.5\n"
    (run / "log.csv").write_text(table)
    evaluation = {"4": {"episode_return": 0.5}, "5": {"episode_return": 1.0}}
    (run / "evaluation.json").write_text(json.dumps(evaluation))
    if kind == "folders":
        for seed, row in ((4, "0,10,1.5"), (5, "0,20,2.5")):
            shutil.copytree(run, run.parent / "group" / f"seed_{seed}")
            folder = run.parent / "group" / f"seed_{seed}"
            (folder / "log.csv").write_text(f"epoch,env_steps,episode_return\n{row}\n")
            (folder / "evaluation.json").write_text(json.dumps(evaluation[str(seed)]))
        run = run.parent / "group"
    facts = run_info.read(run)
    assert [facts["log"][seed]["episode_return"] for seed in "45"] == [1.5, 2.5]
    assert facts["evaluation"] == evaluation
    assert facts["settings"]["agent"] == {"gamma": 0.9}
    assert cli.main(["info", str(run)]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["5.episode_return", "2.5"] in lines and ["4.episode_return", "0.5"] in lines


@pytest.mark.parametrize(
    "name, content",
    [
        ("evaluation.json", "{"),
        ("evaluation.json", "[" * 100_000),
        ("evaluation.json", " " * (2**20 + 1)),
        ("config.json", "[1]"),
        ("log.csv", "epoch\nmany\n"),
        ("agent.keras", "no archive"),
    ],
)
def test_damaged_files_are_named(run, name, content, capsys):
    (run / name).write_text(content)
    path = run / name if name == "agent.keras" else run
    assert cli.main(["info", str(path)]) == 2
    assert name in capsys.readouterr().err


def test_control_characters_of_a_file_are_not_printed(run, capsys):
    (run / "config.json").write_text(json.dumps({"env": "\x1b]0;title\x07 train"}))
    assert cli.main(["info", str(run)]) == 0
    assert "\x1b" not in capsys.readouterr().out
