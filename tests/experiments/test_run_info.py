"""Tests the description of runs and agent files."""

import json

import pytest

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.experiments import run_info


@pytest.fixture
def run(tmp_path):
    folder = tmp_path / "run"
    folder.mkdir()
    config = {"env": "CartPole-v1", "seed": 3, "agent": {"gamma": 0.9}, "fit": {}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "log.csv").write_text(
        "epoch,env_steps,episode_return,val_episode_return\n0,10,1.5,7\n1,30,2.5,nan\n"
    )
    (folder / "command.txt").write_text("tf-reinforce train CartPole-v1\n")
    (folder / "versions.json").write_text('{"keras": "3"}')
    (folder / "videos").mkdir()
    (folder / "videos" / "a.mp4").write_bytes(b"12345")
    return folder


def test_facts_of_a_training_that_has_not_ended(run):
    facts = run_info.read(run)
    assert facts["run"] == {
        "env": "CartPole-v1",
        "seed": 3,
        "command": "tf-reinforce train CartPole-v1",
    }
    assert facts["training"] == {
        "updates": 2,
        "env_steps": 30.0,
        "episode_return": 2.5,
        "val_episode_return": 7.0,
        "state": "not ended: continue with --resume",
    }
    assert facts["settings"] == {"agent": {"gamma": 0.9}}
    assert facts["versions"] == {"keras": "3"}
    assert facts["files"]["videos"] == 5 and "agent" not in facts


def test_facts_of_an_ended_training_and_its_agent(run, capsys):
    (run / "evaluation.json").write_text('{"episode_return": 40.5}')
    agent = tfr.Reinforce.for_env("Pendulum-v1", hidden=(4,), baseline="time_step")
    agent.save(run / "agent.keras")
    facts = run_info.read(run)
    assert facts["training"]["evaluation"] == {"episode_return": 40.5}
    assert facts["training"]["state"] == "ended"
    assert facts["agent"]["head"] == "Gaussian"
    assert facts["agent"]["baseline"] == "TimeStep"
    assert facts["agent"]["action_space"]["kind"] == "Box"
    assert run_info.read(run / "agent.keras")["agent"]["head"] == "Gaussian"
    assert cli.main(["info", str(run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == facts
    assert cli.main(["info", str(run)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert any(x.split() == ["evaluation.episode_return", "40.5"] for x in printed)


def test_folder_of_several_seeds_has_a_section_for_each(run):
    group = run.parent / "group"
    group.mkdir()
    run.rename(group / "seed_3")
    facts = run_info.read(group)
    assert facts["seeds"]["3"]["updates"] == 2
    assert facts["run"]["env"] == "CartPole-v1" and facts["run"]["seeds"] == [3]
    assert "seed" not in facts["run"] and facts["settings"] == {"agent": {"gamma": 0.9}}
    lines = run_info.table(facts).splitlines()
    place = lines.index("seed 3")
    assert lines[0] == "run" and lines[place + 1].split() == ["updates", "2"]


@pytest.mark.parametrize(
    "name, content",
    [
        ("versions.json", "{"),
        ("versions.json", "[" * 100_000),
        ("evaluation.json", " " * (2**20 + 1)),
        ("config.json", "[1]"),
        ("log.csv", "epoch\nmany\n"),
        ("agent.keras", "no archive"),
    ],
)
def test_damaged_files_are_named(run, name, content, capsys):
    (run / name).write_text(content)
    assert cli.main(["info", str(run)]) == 2
    assert name in capsys.readouterr().err


def test_other_folders_and_missing_files_are_refused(tmp_path, capsys):
    assert cli.main(["info", str(tmp_path)]) == 2
    assert "contains no config.json" in capsys.readouterr().err
    assert cli.main(["info", str(tmp_path / "none")]) == 2
    assert f"There is no file or folder {tmp_path}/none" in capsys.readouterr().err


def test_control_characters_of_a_file_are_not_printed(run, capsys):
    (run / "command.txt").write_text("\x1b]0;title\x07 train")
    assert cli.main(["info", str(run)]) == 0
    assert "\x1b" not in capsys.readouterr().out


def test_each_seed_of_one_program_has_a_section(run, capsys):
    config = {"env": "CartPole-v1", "seeds": [4, 5], "fit": {}}
    (run / "config.json").write_text(json.dumps(config))
    (run / "log.csv").write_text(
        "epoch,seed,env_steps,episode_return\n0,4,10,1.5\n0,5,20,2.5\n"
    )
    (run / "evaluation.json").write_text(
        '{"4": {"episode_return": 40.5}, "5": {"episode_return": 50.5}}'
    )
    facts = run_info.read(run)
    assert "training" not in facts
    assert [facts["seeds"][seed]["episode_return"] for seed in "45"] == [1.5, 2.5]
    assert facts["seeds"]["5"]["evaluation"] == {"episode_return": 50.5}
    assert cli.main(["info", str(run)]) == 0
    sections = [x for x in capsys.readouterr().out.splitlines() if x[0] != " "]
    assert sections[:3] == ["run", "seed 4", "seed 5"]
