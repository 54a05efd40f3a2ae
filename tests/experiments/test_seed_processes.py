"""Tests the training of several seeds in parallel processes."""

import json
import os
import signal
import subprocess
import sys
import threading
import types

import numpy as np
import pytest
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.experiments import curves
from tf_reinforce.experiments import seed_processes
from tf_reinforce.experiments import tuning
from tf_reinforce.support import version


def prepared(folder, seeds, **config):
    config = {"env": "CartPole-v1", **config}
    seed_processes.prepare(folder, config, seeds, "a command")
    return seed_processes.folders(folder)


def run(commands, tmp_path, jobs=2):
    lines, found = [], prepared(tmp_path / "runs", list(commands))
    return seed_processes.run(commands, found, jobs, lines.append), lines, found


def test_each_seed_has_a_run_directory_with_its_configuration(tmp_path):
    found = prepared(tmp_path / "a" / "runs", [9, 10, 8])
    assert list(found) == [8, 9, 10]
    for seed, path in found.items():
        config = json.loads((path / "config.json").read_text())
        assert path.name == f"seed_{seed}"
        assert (path / "command.txt").read_text() == "a command\n"
        assert config == {
            **version.stamp(),
            "env": "CartPole-v1",
            "seed": seed,
            "fit": {},
        }
    for name in ("seed_x", "seed_", "other", "seed_-1", "seed_1"):
        (tmp_path / "a" / "runs" / name).mkdir()  # no seeds
    assert seed_processes.folders(tmp_path / "a" / "runs") == found
    assert seed_processes.folders(found[8]) == {}  # a run directory
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileExistsError):
        prepared(tmp_path / "a" / "runs", [1])
    assert sorted(tmp_path.rglob("*")) == before


def test_exit_codes_and_outputs_of_the_processes(tmp_path, monkeypatch):
    """At most two processes run at the same time."""
    started, start = [], subprocess.Popen

    def count(*arguments, **options):
        started.append(start(*arguments, **options))
        assert sum(process.poll() is None for process in started) <= 2
        return started[-1]

    monkeypatch.setattr(subprocess, "Popen", count)
    before = signal.getsignal(signal.SIGTERM)
    commands = {0: ["--version"], 1: ["no-such-command"], 2: ["--version"]}
    code, lines, found = run(commands, tmp_path)
    assert code == 2 and [process.returncode for process in started] == [0, 2, 0]
    assert sorted(lines)[0] == "seed 0: trained" and len(lines) == 3
    assert sorted(lines)[1].startswith("seed 1: exit code 2: tf-reinforce: error: ")
    assert (found[0] / "output.txt").read_text().strip() == tfr.__version__
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("number", [None, "3"])
def test_trainings_and_trials_use_one_thread_unless_the_user_set_a_number(
    number, tmp_path, monkeypatch
):
    environments, asked, name = [], [], "TF_NUM_INTRAOP_THREADS"
    ended = types.SimpleNamespace(poll=lambda: 0, returncode=0)

    def start(*_, env, **__):
        environments.append(env)
        return ended

    monkeypatch.delenv(name, raising=False)
    if number is not None:
        monkeypatch.setenv(name, number)
    monkeypatch.setattr(subprocess, "Popen", start)
    assert run({0: [], 1: []}, tmp_path)[0] == 0
    assert environments == 2 * [{**os.environ, name: number or "1"}]
    setting = "set_intra_op_parallelism_threads"
    monkeypatch.setattr(tf.config.threading, setting, asked.append)
    tuning._use_one_thread_per_operation()
    assert asked == ([1] if number is None else [])


def test_output_is_not_written_through_a_link(tmp_path):
    found = prepared(tmp_path / "runs", [0])
    (tmp_path / "other.txt").write_text("before")
    (found[0] / "output.txt").symlink_to(tmp_path / "other.txt")
    with pytest.raises(OSError, match="symbolic"):
        seed_processes.run({0: ["--version"]}, found, 1, print)
    assert (tmp_path / "other.txt").read_text() == "before"


@pytest.mark.parametrize("target, code", [(4.0, 0), (4.5, 1)])
def test_target_of_seeds_is_reached_if_the_median_equals_it(
    target, code, tmp_path, capsys
):
    found = prepared(tmp_path / "runs", range(3), target_return=target)
    for number, path in found.items():
        rows = "epoch,env_steps,steps_per_second\n0,10,5\n1,40,10\n"
        (path / "log.csv").write_text(rows)
        evaluation = {"episode_return": (3.0, 9.0, 4.0)[number]}
        (path / "evaluation.json").write_text(json.dumps(evaluation))
    returns = {0: 3.0, 1: 9.0, 2: 4.0}
    expected = {"returns": returns, "env_steps": 120, "seconds": 15.0}
    assert curves.results(found) == expected
    words = ["train", "--resume", str(tmp_path / "runs"), "--require-target"]
    assert cli.main(words) == code
    assert f", {2 - code} of 3 at {target:g}\n" in capsys.readouterr().out


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_reaches_each_process_once_also_one_that_starts(
    number, tmp_path, monkeypatch
):
    """The signal arrives while the second of three processes is being started."""
    started = []

    class Process:
        def __init__(self, *_, **__):
            self.signals = []
            if started:
                signal.raise_signal(number)
            started.append(self)

        def send_signal(self, number):
            self.signals.append(number)

        def poll(self):
            assert self.signals, "the process would train to its end"
            return self.returncode

        @property
        def returncode(self):
            return 128 + self.signals[0] if self.signals else None

    monkeypatch.setattr(subprocess, "Popen", Process)
    code, lines, _ = run(dict.fromkeys(range(3), []), tmp_path)
    assert [process.signals for process in started] == [[number], [number]]
    assert code == 128 + number
    assert lines == ["seed 0: interrupted", "seed 1: interrupted"]


def weights(folder):
    agent = tfr.load(folder / "last.keras")
    return np.concatenate([np.ravel(x) for x in agent.get_weights()])


def program(*arguments):
    return subprocess.Popen(
        [sys.executable, "-m", "tf_reinforce", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def finish(process):
    """Waits for a process, and returns its exit code and output."""
    printed, _ = process.communicate()
    return process.returncode, printed


@pytest.mark.slow
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_seeds_continue_to_the_weights_of_one_training(
    number, code, tmp_path, monkeypatch
):
    """The signal arrives while two of three trainings run and the third waits."""
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    train = "train FrozenLake-v1 --engine host --epochs 60 --episodes-per-epoch 8"
    train += " --hidden 8 --eval-episodes 4 --checkpoint-every 1"
    train = train.split()
    many = [*train, "--seeds", "3", "--jobs", "2", "--run-dir", tmp_path / "many"]
    process = program(*many)
    first = tmp_path / "many" / "seed_0" / "log.csv"
    event = threading.Event()
    while not (first.exists() and first.stat().st_size):  # the first update has ended
        event.wait(0.05)
        assert process.poll() is None
    process.send_signal(number)
    found, printed = finish(process)
    assert found == code, printed
    assert f"to continue: tf-reinforce train --resume {tmp_path}/many" in printed
    assert not (tmp_path / "many" / "seed_2" / "log.csv").exists()
    found, printed = finish(program("train", "--resume", tmp_path / "many"))
    assert found == 0 and "FrozenLake-v1: 3 seeds, " in printed
    for seed in range(3):
        whole = tmp_path / "whole" / f"{seed}"
        assert finish(program(*train, "--seed", seed, "--run-dir", whole))[0] == 0
        part = tmp_path / "many" / f"seed_{seed}"
        np.testing.assert_array_equal(weights(part), weights(whole))
        logs = [(x / "episodes.csv").read_text() for x in (part, whole)]
        assert logs[0] == logs[1]


def test_control_characters_of_a_run_are_not_printed(tmp_path, capsys):
    """The files may come from a stranger, and would change what a terminal shows."""
    [path] = prepared(tmp_path / "runs", [0], env="\x1b[2J", fit={"epochs": 1}).values()
    (path / "log.csv").write_text("epoch,env_steps,steps_per_second\n0,1,1\n")
    (path / "evaluation.json").write_text('{"episode_return": 1.0}')
    assert cli.main(["train", "--resume", str(tmp_path / "runs")]) == 0
    assert "?[2J: 1 seeds, 1 steps" in capsys.readouterr().out
    (path / "evaluation.json").unlink()  # the process ends before it has an output
    (path / seed_processes.OUTPUT).write_text("\x1b[2J")
    assert cli.main(["train", "--resume", str(tmp_path / "runs")]) == 2
    printed = capsys.readouterr()
    assert "seed 0: exit code 2: " in printed.out
    assert "\x1b" not in printed.out + printed.err


def test_options_that_do_not_belong_to_resumed_seeds_are_refused(tmp_path, capsys):
    [path] = prepared(tmp_path / "runs", [0]).values()
    resume = ["train", "--resume", str(tmp_path / "runs")]
    for option in (["--gamma", "0.9"], ["--seeds", "2"]):
        assert cli.main([*resume, *option]) == 2
        assert f"`{option[0]}` has no effect with --resume" in capsys.readouterr().err
    config = json.dumps({"env": "some_module:Grid-v0", "seed": 0})
    (path / "config.json").write_text(config)
    assert cli.main(resume) == 2
    command = f"tf-reinforce train some_module:Grid-v0 --resume {tmp_path}/runs"
    assert command in capsys.readouterr().err
