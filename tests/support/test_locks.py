"""Tests that a folder is locked for one process, and only while it lives."""

import os

import pytest

from tf_reinforce.support import locks


def lock_in_fork(folder, then):
    """Calls `then` in a forked process that holds the lock; returns the wait status."""
    process = os.fork()
    if process == 0:
        with locks.FolderLock(folder):
            then()
            os._exit(0)
    return os.waitpid(process, 0)[1]


def test_nested_statements_lock_once_and_another_training_is_refused(tmp_path):
    with locks.FolderLock(tmp_path) as lock:
        with lock:
            pass
        with pytest.raises(locks.FolderLocked, match=f"uses the folder {tmp_path}"):
            locks.FolderLock(tmp_path).__enter__()
    with locks.FolderLock(tmp_path):
        pass


def test_lock_of_a_process_that_was_killed_is_stale(tmp_path):
    assert lock_in_fork(tmp_path, lambda: os.kill(os.getpid(), 9)) == 9
    with locks.FolderLock(tmp_path):
        pass


def test_lock_of_another_process_is_refused(tmp_path):
    with locks.FolderLock(tmp_path):
        process = os.fork()
        if process == 0:
            try:
                locks.FolderLock(tmp_path).__enter__()
            except locks.FolderLocked:
                os._exit(7)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 7


def test_lock_does_not_write_to_the_target_of_a_link(tmp_path):
    """A stranger's run directory could link to a file of the user."""
    (tmp_path / "other").write_text("content")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / ".lock").symlink_to(tmp_path / "other")
    with pytest.raises(OSError, match="symbolic links"):
        locks.FolderLock(tmp_path / "run").__enter__()
    assert (tmp_path / "other").read_text() == "content"
