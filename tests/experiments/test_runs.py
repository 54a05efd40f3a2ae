"""Tests the folder of a run that fails at once, and the files of many seeds."""

import json
import types

import pytest

from tf_reinforce.experiments import multi_seed
from tf_reinforce.experiments import runs
from tf_reinforce.settings import run_config
from tf_reinforce.support import locks


def fail_in(path, *names):
    """Fails in a new run directory to which the run and the user have written files."""
    new = runs.new_directory(path, "CartPole-v1", 0)
    with pytest.raises(RuntimeError), new as folder:
        with locks.FolderLock(folder):
            run_config.write(folder, {"env": "CartPole-v1"})
            (folder / "log.csv").touch()
            (folder / "episodes.csv").write_text("episode,update\n")
            for name in names:
                (folder / name).write_text("content")
        raise RuntimeError
    return {file.name for file in path.iterdir()} if path.exists() else None


def test_failed_run_removes_its_files_and_keeps_those_of_the_user(tmp_path):
    """The folder stays if it contains the user's files."""
    assert fail_in(tmp_path / "new") is None
    assert fail_in(tmp_path / "other", "notes.txt") == {"notes.txt"}
    (tmp_path / "old").mkdir()
    assert fail_in(tmp_path / "old") is None


@pytest.mark.parametrize("name", ["log.csv", "checkpoints"])
def test_failed_run_with_results_keeps_all_files(name, tmp_path):
    """Results are log rows and checkpoints."""
    names = {"config.json", "versions.json", "log.csv", "episodes.csv"}
    names |= {locks.FILE_NAME, name}
    assert fail_in(tmp_path / "run", name) == names


class Trained:
    """An agent with a seed, whose return is known."""

    def __init__(self, seed):
        self.seed = seed

    def evaluate(self, env, *, seed, **options):
        return {"episode_return": {4: 1.0, 5: 3.0, 6: 2.0}[self.seed], "seed": seed}

    def save(self, path):
        path.write_text(str(self.seed))


def test_each_of_many_seeds_is_evaluated_with_its_own_and_the_best_is_saved(
    tmp_path, monkeypatch
):
    def train(make, twin, seeds, *, resume, **options):
        budgets.append(options)
        history = {"loss": [[1.0] * 3] * 2}
        return types.SimpleNamespace(
            agent=Trained, history=history, seeds=seeds, env_steps=9
        )

    monkeypatch.setattr(multi_seed, "train_seeds", train)
    budgets, policy = [], types.SimpleNamespace(name="p", count_params=lambda: 3)
    budget = {"epochs": 2, "episodes_per_epoch": 4, "max_episode_steps": 7}
    settings = {"fit": {**budget, "num_envs": 8}, "evaluation": {}, "env_kwargs": {}}
    arguments = lambda seed: types.SimpleNamespace(policy=policy), "Clock-v0", tmp_path
    found = runs.train_seeds(*arguments, settings, None, [4, 5, 6])
    assert budgets == [budget] and found["returns"] == {4: 1.0, 5: 3.0, 6: 2.0}
    assert (tmp_path / "agent.keras").read_text() == "5"
    metrics = json.loads((tmp_path / "evaluation.json").read_text())
    assert {name: x["seed"] for name, x in metrics.items()} == {"4": 4, "5": 5, "6": 6}
    rows = (tmp_path / "log.csv").read_text().splitlines()
    assert rows[:2] == ["epoch,seed,loss", "0,4,1.0"] and len(rows) == 1 + 2 * 3


def test_path_of_a_run_has_no_character_of_an_environment_id_that_separates():
    path = runs.default_directory("my_module:team/Grid-v0", "seed3")
    assert path.parts[:2] == ("runs", "my_module_team_Grid-v0") and len(path.parts) == 3
    assert path.name.endswith("_seed3")


def test_folder_of_another_training_is_unchanged(tmp_path):
    def write_and_lock():
        with runs.new_directory(tmp_path, "CartPole-v1", 0):
            run_config.write(tmp_path, {})  # by the other training
            locks.FolderLock(tmp_path).__enter__()

    with locks.FolderLock(tmp_path), pytest.raises(locks.FolderLocked):
        write_and_lock()
    assert (tmp_path / "config.json").exists()
