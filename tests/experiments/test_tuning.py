"""Tests a whole search: its folder, interruptions, failures, results and command."""

import json
import multiprocessing
import os
import pathlib
import re
import signal
import subprocess
import sys

import numpy as np
import optuna
import pytest

from tf_reinforce import cli
from tf_reinforce.experiments import tuning
from tf_reinforce.experiments import tuning_trial
from tf_reinforce.settings import toml_files

STATES = optuna.trial.TrialState
SETTINGS = {
    "env_kwargs": {},
    "agent": {"hidden": [8], "learning_rate": 0.01, "baseline": "mean", "gamma": 0.99},
    "fit": {"steps": 1000, "episodes_per_epoch": 8},
    "evaluation": {},
}
RANGES = {
    "agent": {
        "learning_rate": {"low": 1e-3, "high": 1e-1, "log": True},
        "hidden": {"choices": [[8], [16, 16]]},
    }
}


def config(**changes):
    fields = dict(settings=SETTINGS, ranges=RANGES, engine="host", objective="steps")
    fields |= dict(env="CartPole-v1", minimize=True, target=475.0, seed=0, seeds=2)
    return tuning_trial.SearchConfig(**{**fields, **changes})


@pytest.fixture
def fast(monkeypatch):
    """Replaces training by a function of the settings; returns a dict for errors."""
    fails = {}

    def run(search, trial, index):
        agent = search.draw(trial)["agent"]
        if index in fails:
            raise fails[index]
        rate = agent["learning_rate"]
        value = 100 + 200 * abs(np.log10(rate) + 2.5) + len(agent["hidden"])
        training = dict(seed=index, env_steps=100, value=value, reached=True, seconds=0.5)
        trial.set_user_attr("trainings", [{**training, "best_return": 480.0}])
        for step in (250, 500):
            trial.report(value, step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return value

    monkeypatch.setattr(tuning_trial, "run", run)
    return fails


def search(folder, count, **changes):
    """Runs a search; returns a tuple for each finished trial, and the best index."""
    with tuning.open_search(folder, config(**changes)) as running:
        tuning.run_trials(running, count, 1, lambda index: None)
        return trials(running), running.best()


def trials(running):
    finished = running.finished().items()
    return [(index, x.state.name, x.value, x.params) for index, x in finished]


def test_interrupted_search_continues_to_the_same_trials(fast, tmp_path):
    expected = search(tmp_path / "whole", 12)
    assert "PRUNED" in {state for _, state, *_ in expected[0]}
    for index in (0, 3, 7):
        fast[index] = KeyboardInterrupt()
        with pytest.raises(KeyboardInterrupt):
            search(tmp_path / "parts", 12)
        del fast[index]
    assert search(tmp_path / "parts", 12) == expected
    assert search(tmp_path / "parts", 5) == expected  # nothing is missing


def test_failed_trials_are_stored_with_their_message(fast, tmp_path):
    fast[1] = FloatingPointError("the loss is nan")
    fast[2] = KeyboardInterrupt()
    for _ in range(5):  # then the trial without an end counts as failed
        with pytest.raises(KeyboardInterrupt):
            search(tmp_path, 4)
    found, best = search(tmp_path, 4)
    assert [state for _, state, *_ in found] == ["COMPLETE", "FAIL", "FAIL", "COMPLETE"]
    with tuning.open_search(tmp_path, config()) as running:
        line = tuning.trial_line(running, 1)
        assert line == "trial 1: failed: FloatingPointError: the loss is nan"
    assert search(tmp_path, 4) == (found, best)  # failed trials are not tried again


def test_bug_ends_a_search(fast, tmp_path):
    fast[0] = ZeroDivisionError("it is broken")
    with pytest.raises(ZeroDivisionError, match="it is broken"):
        search(tmp_path, 20)
    assert search(tmp_path, 0) == ([], None)


def test_search_continues_after_an_incomplete_line_and_with_a_lock(fast, tmp_path):
    """Without repair, Optuna could never read the journal again."""
    expected = search(tmp_path / "whole", 4)
    search(tmp_path / "parts", 2)
    journal = tmp_path / "parts" / tuning.JOURNAL
    journal.with_name("journal.log.lock").symlink_to(journal)
    with open(journal, "ab") as file:
        file.write(b'{"op_code": 4, "worker_')
    assert search(tmp_path / "parts", 3)[0] == expected[0][:3]
    assert search(tmp_path / "parts", 4) == expected


def test_folder_of_something_else_is_refused_and_unchanged(fast, tmp_path):
    (tmp_path / "mine.txt").write_text("mine")
    with pytest.raises(FileExistsError):
        search(tmp_path, 1)
    assert [x.name for x in tmp_path.iterdir()] == ["mine.txt"]
    new = tmp_path / "new"
    with tuning.open_search(new, config()), pytest.raises(OSError, match="uses the fol"):
        search(new, 1)
    before = sorted((x.name, x.read_bytes()) for x in new.iterdir())
    changes = {"seed": 1, "settings": {**SETTINGS, "fit": {"steps": 5}}}
    for name, value in changes.items():
        with pytest.raises(ValueError, match=f"a run, or a search with another `{name}`"):
            search(new, 2, **{name: value})
    assert sorted((x.name, x.read_bytes()) for x in new.iterdir()) == before
    with tuning.open_search(tmp_path / "own", config(suggest="my_module:space")):
        pass
    for name in ("my_module:other", None):
        with pytest.raises(ValueError, match="a search with another `suggest`"):
            search(tmp_path / "own", 2, suggest=name)


def test_first_trial_has_the_settings_and_the_seed_changes_the_others(fast, tmp_path):
    def parameters(folder, **changes):
        return [x[3] for x in search(tmp_path / folder, 11, prune=False, **changes)[0]]

    first = parameters("first")
    assert first[0] == {"agent.learning_rate": 0.01, "agent.hidden": "[8]"}
    assert parameters("seed", seed=1)[3:] != first[3:]


def test_confirmed_trial_with_the_best_mean_is_the_best(fast, tmp_path, monkeypatch):
    """The best trials are confirmed once; trainings of two of them fail."""
    search(tmp_path, 8)
    calls, results = [], [[1000.0, 1000.0], ValueError("broken"), [1.0, 1.0]]
    results += [FloatingPointError("nan"), [1000.0, 1000.0]]

    def confirm(search, settings):
        calls.append(settings["agent"]["learning_rate"])
        result = results[len(calls) - 1]
        if isinstance(result, Exception):
            raise result
        return result

    monkeypatch.setattr(tuning_trial, "confirm", confirm)
    for _ in range(2):
        with tuning.open_search(tmp_path, config()) as running:
            for index in running.unconfirmed():
                running.confirm(index)
            first, second, third, fourth, fifth, *others = running.ranked()
            assert running.best() == third
            value = running.trainings(third)[0]["value"]
            assert running.confirmed(third) == pytest.approx((2 + value) / 3)
            for index in (second, fourth, *others):
                assert running.confirmed(index) is None
            assert running.confirmed(fifth) is not None
            line = tuning.confirmed_line(running, second)
            assert line.endswith("further training failed: ValueError: broken")
            header, *rows = tuning.table(running).splitlines()
            assert "  confirmed (steps)" in header
            assert max(map(len, [header, *rows])) <= 80
            assert rows[1].strip() in tuning.trial_line(running, first)
            best = [row.split()[0] for row in rows if row.endswith("best")]
            assert best == [str(third)]
            tuning.write_preset(running, tmp_path / "best.toml")
            preset = toml_files.read(tmp_path / "best.toml")
            assert preset["env"] == "CartPole-v1" and preset["fit"] == SETTINGS["fit"]
            assert preset["agent"] == running.settings(third)["agent"]
    assert len(calls) == 5


@pytest.mark.usefixtures("hears_ctrl_c")
def test_ctrl_c_while_a_child_process_starts_ends_the_search(
    tmp_path, monkeypatch, capsys
):
    kind = multiprocessing.get_context("spawn").Process
    start = kind.start
    monkeypatch.setattr(
        kind, "start", lambda x: (start(x), signal.raise_signal(signal.SIGINT))
    )
    command = f"tune FrozenLake-v1 --jobs 2 --trials 2 --run-dir {tmp_path}/search"
    assert cli.main(command.split()) == 130
    assert "interrupted; 0 finished trials are stored" in capsys.readouterr().out


@pytest.mark.slow
def test_command_searches_trains_and_continues(tmp_path, monkeypatch, capsys):
    """Real trainings on a tiny budget."""
    monkeypatch.chdir(tmp_path)
    pathlib.Path("own.toml").write_text(
        'env = "FrozenLake-v1"\n'
        "[ranges.agent]\nlearning_rate = {low = 0.001, high = 0.1, log = true}\n"
    )
    command = "tune FrozenLake-v1 --steps 200 --hidden 4 --trainings 1 --confirm 1"
    command += " --preset own.toml --target-return 0.9 --run-dir dir"
    command = f"{command} --episodes-per-epoch 4"
    assert cli.main([*command.split(), "--trials", "1"]) == 0
    assert "trial 0: 0 of 1 reach 0.9" in capsys.readouterr().out
    assert cli.main([*command.split(), "--trials", "2"]) == 0
    printed = capsys.readouterr().out
    assert "finished trials: 1 of 2" in printed
    assert "trial 0:" not in printed and "trial 1:" in printed
    names = ".lock best.toml config.json journal.log versions.json"
    assert sorted(os.listdir("dir")) == names.split()
    assert "best settings: dir/best.toml" in printed
    words = ["train", "FrozenLake-v1", "--preset", "dir/best.toml", "--epochs", "1"]
    assert cli.main([*words, "--run-dir", "run"]) == 0
    assert cli.main(command.replace("--hidden 4", "--hidden 8").split()) == 2
    assert "another `settings`" in capsys.readouterr().err


TOY = """
import gymnasium, toy_envs
gymnasium.register("KilledToy-v0", entry_point=toy_envs.Clock)
"""


@pytest.mark.slow
@pytest.mark.parametrize("more", [[], ["--jobs", "2"]])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_killed_command_continues_and_loses_no_finished_trial(number, more, tmp_path):
    command = "tune killed_toy:KilledToy-v0 --steps 60 --hidden 4 --trainings 1 --trials"
    command += " 8 --run-dir dir --episodes-per-epoch 4 --confirm 1"
    command = [sys.executable, "-m", "tf_reinforce", *command.split(), *more]
    (tmp_path / "killed_toy.py").write_text(TOY)
    paths = {"PYTHONPATH": os.pathsep.join(sys.path), "PYTHONUNBUFFERED": "1"}
    options = dict(stdout=subprocess.PIPE, text=True, env={**os.environ, **paths})
    with subprocess.Popen(command, cwd=tmp_path, **options) as process:
        lines = [next(x for x in process.stdout if x.startswith("trial "))]
        process.send_signal(number)
        lines += [x for x in process.stdout if x.startswith("trial ")]
    assert process.returncode in (-number, 130)
    ended = subprocess.run(command, cwd=tmp_path, check=True, **options).stdout
    trials = [x for x in ended.splitlines() if re.match(r"trial \d+:", x)]
    again = {x.split(":")[0] for x in trials if "further" not in x}
    assert not again & {x.split(":")[0] for x in lines} and 0 < len(again) < 8
    content = json.loads((tmp_path / "dir" / "config.json").read_text())
    content = {x: content[x] for x in content if x in vars(config())}
    search = tuning_trial.SearchConfig(**content)
    with tuning.open_search(tmp_path / "dir", search) as running:
        assert list(running.finished()) == list(range(8))


@pytest.mark.slow
def test_killed_and_old_processes_are_replaced(tmp_path, monkeypatch):
    """Here, a process is old after two trials. No trial is lost."""
    monkeypatch.setattr(tuning, "_MAX_TRIALS", 2)
    fit = {"steps": 60, "episodes_per_epoch": 4}
    tiny = config(env="FrozenLake-v1", target=2.0, settings={**SETTINGS, "fit": fit})
    processes, indices = set(), []

    def notify(index):
        indices.append(index)
        children = multiprocessing.active_children()
        processes.update(child.pid for child in children)
        if len(indices) == 1:
            children[0].kill()

    with tuning.open_search(tmp_path, tiny) as running:
        tuning.run_trials(running, 6, 2, notify)
        found = trials(running)
        tried = {x.user_attrs[tuning.INDEX] for x in running.study.trials}
    assert [index for index, *_ in found] == sorted(indices) == list(range(6))
    assert tried == set(range(6)) and len(processes) >= 4
    assert all(state in ("COMPLETE", "PRUNED") for _, state, *_ in found)
