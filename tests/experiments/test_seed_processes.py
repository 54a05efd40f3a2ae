"""Tests the training of several seeds in processes side by side."""

import contextlib
import io
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
from tf_reinforce.experiments import seed_processes
from tf_reinforce.experiments import tuning_jobs

TRAIN = ["train", "FrozenLake-v1", "--epochs", "4", "--episodes-per-epoch", "8"]
TRAIN += ["--hidden", "8", "--eval-episodes", "4"]


def prepared(folder, seeds):
    seed_processes.prepare(folder, {"env": "CartPole-v1"}, seeds, "a command")
    return seed_processes.folders(folder)


def test_each_seed_has_a_run_directory_with_its_configuration(tmp_path):
    found = prepared(tmp_path / "a" / "runs", [9, 10, 8])
    assert list(found) == [8, 9, 10]
    for seed, path in found.items():
        config = json.loads((path / "config.json").read_text())
        assert path.name == f"seed_{seed}"
        assert (path / "command.txt").read_text() == "a command\n"
        del config["tf_reinforce"]  # the version
        assert config == {"env": "CartPole-v1", "seed": seed}
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(FileExistsError):
        prepared(tmp_path / "a" / "runs", [1])
    assert sorted(tmp_path.rglob("*")) == before


def test_other_folders_are_no_seeds(tmp_path):
    found = prepared(tmp_path / "runs", [0])
    for name in ("seed_x", "seed_", "other", "seed_-1", "seed_1"):
        (tmp_path / "runs" / name).mkdir()
    assert seed_processes.folders(tmp_path / "runs") == found
    assert seed_processes.folders(found[0]) == {}  # a run directory
    assert seed_processes.folders(tmp_path / "none") == {}


def run(commands, tmp_path, jobs=2):
    lines = []
    found = prepared(tmp_path / "runs", list(commands))
    processes = seed_processes.Processes(commands, found, jobs, lines.append)
    return processes.run(), processes, lines, found


def test_exit_codes_and_outputs_of_the_processes(tmp_path):
    commands = {0: ["--version"], 1: ["no-such-command"], 2: ["--version"]}
    code, processes, lines, found = run(commands, tmp_path)
    assert code == 2 and processes.exit_codes == {0: 0, 1: 2, 2: 0}
    assert sorted(lines)[0] == "seed 0: trained" and len(lines) == 3
    assert sorted(lines)[1].startswith("seed 1: exit code 2: tf-reinforce: error: ")
    assert (found[0] / "output.txt").read_text().strip() == tfr.__version__


@pytest.mark.parametrize("number", [None, "3"])
def test_trainings_and_trials_use_one_thread_unless_the_user_set_a_number(
    number, tmp_path, monkeypatch
):
    environments, asked, name = [], [], "TF_NUM_INTRAOP_THREADS"
    ended = types.SimpleNamespace(wait=int, poll=lambda: 0, returncode=0)

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
    tuning_jobs.use_one_thread_per_operation()
    assert asked == ([1] if number is None else [])


def test_interrupted_process_is_no_failure(tmp_path):
    path = tmp_path / seed_processes.OUTPUT
    path.write_text("")
    processes = seed_processes.Processes({}, {0: tmp_path}, 1, print)
    processes._starts[0] = 0
    for code in (130, 143, -2, -15):
        assert processes._outcome(0, code) == "interrupted"
    assert processes._outcome(0, 2) == "exit code 2: no output"


def test_output_of_an_earlier_process_is_not_reported(tmp_path):
    lines, found = [], prepared(tmp_path / "runs", [0])
    for command in ("no-such-command", "--version"):
        processes = seed_processes.Processes({0: [command]}, found, 1, lines.append)
        processes.run()
    assert lines[0].startswith("seed 0: exit code 2: ") and lines[1] == "seed 0: trained"
    assert "no-such-command" in (found[0] / "output.txt").read_text()


def test_at_most_jobs_processes_run_at_the_same_time(tmp_path, monkeypatch):
    most, start = [], seed_processes.Processes._start

    def count(self, seed, arguments):
        start(self, seed, arguments)
        most.append(len(self._running))

    monkeypatch.setattr(seed_processes.Processes, "_start", count)
    commands = {seed: ["--version"] for seed in range(5)}
    assert run(commands, tmp_path, jobs=2)[0] == 0
    assert len(most) == 5 and max(most) == 2


def test_last_lines_of_running_trainings_are_reported_once(tmp_path, monkeypatch):
    monkeypatch.setattr(seed_processes, "_REPORT_SECONDS", 0.0)
    lines, found = [], prepared(tmp_path / "runs", [3, 4])
    (found[3] / "output.txt").write_text("old\nupdate 1\nupdate 2\n\n")
    (found[4] / "output.txt").write_text("old")
    processes = seed_processes.Processes({}, found, 1, lines.append)
    processes._running, processes._starts = {3: None, 4: None}, {3: 4, 4: 3}
    for _ in range(2):
        processes._report_progress()
    assert lines == ["seed 3: update 2"]


def test_steps_and_seconds_are_those_of_all_trainings(tmp_path):
    found = prepared(tmp_path / "runs", [0, 1, 2])
    for seed in (0, 1):  # the third training has not ended
        rows = "epoch,env_steps,steps_per_second\n0,10,5\n1,40,10\n"
        (found[seed] / "log.csv").write_text(rows)
        evaluation = json.dumps({"episode_return": 3.0 + seed})
        (found[seed] / "evaluation.json").write_text(evaluation)
    expected = {"returns": {0: 3.0, 1: 4.0}, "env_steps": 80, "seconds": 10.0}
    assert seed_processes.results(found) == expected


@pytest.mark.parametrize("target, code", [(4.0, 0), (4.5, 1)])
def test_target_of_seeds_is_reached_if_the_median_equals_it(
    target, code, tmp_path, capsys
):
    config = {"env": "CartPole-v1", "target_return": target}
    seed_processes.prepare(tmp_path / "runs", config, range(3), "a command")
    returns = 3.0, 9.0, 4.0
    for number, path in seed_processes.folders(tmp_path / "runs").items():
        (path / "log.csv").write_text("epoch,env_steps,steps_per_second\n0,10,5\n")
        evaluation = json.dumps({"episode_return": returns[number]})
        (path / "evaluation.json").write_text(evaluation)
    words = ["train", "--resume", str(tmp_path / "runs"), "--require-target"]
    assert cli.main(words) == code
    assert f", {2 - code} of 3 at {target:g}\n" in capsys.readouterr().out


def test_output_is_not_written_through_a_link(tmp_path):
    found = prepared(tmp_path / "runs", [0])
    (tmp_path / "other.txt").write_text("before")
    (found[0] / "output.txt").symlink_to(tmp_path / "other.txt")
    processes = seed_processes.Processes({0: ["--version"]}, found, 1, print)
    with pytest.raises(OSError, match="symbolic"):
        processes.run()
    assert (tmp_path / "other.txt").read_text() == "before"


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

        def wait(self, seconds):
            assert self.signals, "the process would train to its end"

        def poll(self):
            return self.returncode

        @property
        def returncode(self):
            return 128 + self.signals[0] if self.signals else None

    monkeypatch.setattr(subprocess, "Popen", Process)
    code, processes, lines, _ = run(dict.fromkeys(range(3), []), tmp_path)
    assert [process.signals for process in started] == [[number], [number]]
    assert code == 128 + number and lines == [
        "seed 0: interrupted",
        "seed 1: interrupted",
    ]


def test_signal_handlers_are_restored(tmp_path):
    before = signal.getsignal(signal.SIGTERM)
    run({0: ["--version"]}, tmp_path)
    assert signal.getsignal(signal.SIGTERM) is before


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
    """Returns the exit code and the printed text of a process, when it has ended."""
    printed, _ = process.communicate()
    return process.returncode, printed


@pytest.mark.slow
def test_seeds_in_processes_equal_trainings_of_one_seed(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("TF_NUM_INTRAOP_THREADS", "1")
    more = ["--seeds", "3", "--seed", "5", "--require-target"]
    code, printed = finish(program(*TRAIN, *more, "--run-dir", tmp_path / "many"))
    assert code == 1, printed  # the target is missed
    assert "training 3 of 3 seeds, each in its own process, " in printed
    assert "FrozenLake-v1: 3 seeds, " in printed
    assert f"tf-reinforce compare {tmp_path}/many" in printed
    one = program(*TRAIN, "--seed", "6", "--run-dir", tmp_path / "one")
    assert finish(one)[0] == 0
    many = tmp_path / "many" / "seed_6"
    np.testing.assert_array_equal(weights(many), weights(tmp_path / "one"))
    assert (many / "episodes.csv").read_text() == (
        tmp_path / "one" / "episodes.csv"
    ).read_text()
    with contextlib.redirect_stdout(io.StringIO()) as table:
        assert cli.main(["compare", str(tmp_path / "many")]) == 0
    assert "FrozenLake-v1  3 " in table.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_seeds_continue_to_the_same_weights(number, code, tmp_path):
    """The signal arrives while two of three trainings run, and the third waits."""
    long = [*TRAIN, "--epochs", "60", "--seeds", "3", "--jobs", "2", "--checkpoint-every"]
    code_of_whole, _ = finish(program(*long, "1", "--run-dir", tmp_path / "whole"))
    assert code_of_whole == 0
    process = program(*long, "1", "--run-dir", tmp_path / "part")
    first = tmp_path / "part" / "seed_0" / "log.csv"
    event = threading.Event()
    while not (first.exists() and first.stat().st_size):  # the first update has ended
        event.wait(0.05)
        assert process.poll() is None
    process.send_signal(number)
    found, printed = finish(process)
    assert found == code, printed
    assert f"to continue: tf-reinforce train --resume {tmp_path}/part" in printed
    assert not (tmp_path / "part" / "seed_2" / "log.csv").exists()
    found, printed = finish(program("train", "--resume", tmp_path / "part"))
    assert found == 0, printed
    for seed in range(3):
        name = f"seed_{seed}"
        np.testing.assert_array_equal(
            weights(tmp_path / "part" / name), weights(tmp_path / "whole" / name)
        )
    again = program("train", "--resume", tmp_path / "part")
    assert "the trainings of all 3 seeds have ended" in finish(again)[1]


def test_options_that_do_not_belong_to_resumed_seeds_are_refused(tmp_path, capsys):
    prepared(tmp_path / "runs", [0])
    assert cli.main(["train", "--resume", str(tmp_path / "runs"), "--gamma", "0.9"]) == 2
    assert "Received: --gamma" in capsys.readouterr().err
    assert cli.main(["train", "--resume", str(tmp_path / "runs"), "--jobs", "0"]) == 2
    assert "jobs" in capsys.readouterr().err
    assert cli.main(["train", "--resume", str(tmp_path / "runs"), "--seeds", "2"]) == 2
    assert "runs, 1. Received: --seeds 2" in capsys.readouterr().err
    config = json.dumps({"env": "some_module:Grid-v0", "seed": 0})
    (tmp_path / "runs" / "seed_0" / "config.json").write_text(config)
    assert cli.main(["train", "--resume", str(tmp_path / "runs")]) == 2
    command = f"tf-reinforce train some_module:Grid-v0 --resume {tmp_path}/runs"
    assert command in capsys.readouterr().err
    assert cli.main(["train", "CartPole-v1", "--epochs", "1", "--jobs", "2"]) == 2
    assert "--jobs 2 without --seeds" in capsys.readouterr().err
