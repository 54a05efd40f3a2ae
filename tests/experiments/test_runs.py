"""Tests the folder of a run that fails at once."""

import pytest

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


def test_folder_of_another_training_is_unchanged(tmp_path):
    def write_and_lock():
        with runs.new_directory(tmp_path, "CartPole-v1", 0):
            run_config.write(tmp_path, {})  # by the other training
            locks.FolderLock(tmp_path).__enter__()

    with locks.FolderLock(tmp_path), pytest.raises(locks.FolderLocked):
        write_and_lock()
    assert (tmp_path / "config.json").exists()
