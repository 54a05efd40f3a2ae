"""Tests that files and folders are replaced as a whole, or not at all."""

import errno
import fcntl
import os

import pytest

from tf_reinforce.support import files


def contents(folder):
    """Returns the contents of all files below a folder except the lists of exports."""
    return {
        str(path.relative_to(folder)): path.read_text()
        for path in folder.rglob("*")
        if path.is_file() and path.name != files.EXPORT_MARK
    }


def fill(folder, **texts):
    os.makedirs(folder, exist_ok=True)
    for name, text in texts.items():
        with open(os.path.join(folder, name), "w") as file:
            file.write(text)


def write(path, text="new", **options):
    with files.atomic_write(path, **options) as aside:
        fill(os.path.dirname(aside), **{os.path.basename(aside): text})


def export(folder, **texts):
    """Writes an export, which contains a list of its files."""
    with files.atomic_replace_folder(folder) as aside:
        fill(aside, **texts)


class Interrupted(BaseException):
    """Like `KeyboardInterrupt`, not an `Exception`."""


def test_atomic_write_syncs_the_data_before_the_rename(tmp_path, monkeypatch):
    """Otherwise a power cut after the rename could leave an empty file."""
    happened, flush, replace = [], os.fsync, os.replace

    def flushing(descriptor):
        happened.append(os.fstat(descriptor).st_ino)
        flush(descriptor)

    def replacing(source, target):
        happened.append("renamed")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", flushing)
    monkeypatch.setattr(os, "replace", replacing)
    fill(tmp_path, a="old")
    write(tmp_path / "a")
    file, folder = (os.stat(path).st_ino for path in (tmp_path / "a", tmp_path))
    assert happened == [file, "renamed", folder]
    assert contents(tmp_path) == {"a": "new"} and os.listdir(tmp_path) == ["a"]


@pytest.mark.parametrize("error", [RuntimeError, Interrupted])
@pytest.mark.parametrize("existed", [False, True])
def test_atomic_write_keeps_the_old_file_if_the_body_raises(tmp_path, error, existed):
    old = {"a": "old"} if existed else {}
    fill(tmp_path, **old)
    with pytest.raises(error), files.atomic_write(tmp_path / "a") as aside:
        fill(os.path.dirname(aside), a="half")
        raise error
    assert os.listdir(tmp_path) == [*old] and contents(tmp_path) == old


def test_atomic_write_without_overwrite_raises_if_the_file_exists(tmp_path):
    fill(tmp_path, a="old")
    with pytest.raises(FileExistsError, match="a exists. .* pass overwrite=True"):
        write(tmp_path / "a", overwrite=False)
    write(tmp_path / "b", overwrite=False)
    assert contents(tmp_path) == {"a": "old", "b": "new"}


def test_failed_write_names_path_and_cause(tmp_path):
    """Keras raises errors of the operating system without a path."""
    message = "a could not be written: No space left"
    with (
        pytest.raises(OSError, match=message) as error,
        files.atomic_write(tmp_path / "a"),
    ):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert error.value.errno == errno.ENOSPC and contents(tmp_path) == {}


def test_replace_folder_replaces_the_old_folder(tmp_path):
    export(tmp_path / "model", a="old", gone="old")
    with files.atomic_replace_folder(tmp_path / "model") as aside:
        fill(aside, a="new", b="new")
        fill(os.path.join(aside, "deep"), c="new")
        assert contents(tmp_path / "model")["a"] == "old"
    assert contents(tmp_path / "model") == {"a": "new", "b": "new", "deep/c": "new"}
    assert os.listdir(tmp_path) == ["model"]
    for error in (RuntimeError, Interrupted):
        with pytest.raises(error), files.atomic_replace_folder(tmp_path / "model") as x:
            fill(x, a="half")
            raise error
    assert contents(tmp_path / "model") == {"a": "new", "b": "new", "deep/c": "new"}
    assert os.listdir(tmp_path) == ["model"]


def replace_by_pipe(folder):
    (folder / "a").unlink()
    os.mkfifo(folder / "a")  # reading it would wait for ever


# How the user changes an export, and the name of the file that must stay.
CHANGES = {
    "file": (lambda x: fill(x, thesis="mine"), "thesis"),
    "nested file": (lambda x: fill(x / "assets", thesis="mine"), "assets/thesis"),
    "link": (lambda x: (x / "thesis").symlink_to(x), "thesis"),
    "changed file": (lambda x: fill(x, a="mine"), "a"),
    "pipe": (replace_by_pipe, "a"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_folder_with_other_or_changed_files_is_not_replaced(tmp_path, change):
    model = tmp_path / "model"
    model.mkdir()  # may be empty
    export(model, a="old", b="old")
    export(model, a="new")  # replaces its own files
    apply, name = CHANGES[change]
    apply(model)
    before = contents(model)
    with pytest.raises(ValueError, match=rf"other or changed files \({name}\)\. No file"):
        export(model, a="newer")
    assert contents(model) == before


MARKS = ["[]", '{"files": 3}', '{"files": [[]]}', '{"files": {"thesis.txt": ""}}']


@pytest.mark.parametrize("mark", MARKS)
def test_file_of_the_user_stays_if_a_stranger_wrote_the_list(tmp_path, mark):
    """A repository's folder may list a file that the user adds later."""
    export(tmp_path / "model", a="old")
    (tmp_path / "model" / files.EXPORT_MARK).write_text(mark)
    (tmp_path / "model" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="other or changed files .*thesis.txt"):
        export(tmp_path / "model", a="new")
    assert contents(tmp_path / "model") == {"a": "old", "thesis.txt": "mine"}


def test_next_write_removes_the_leftovers_of_killed_processes(tmp_path):
    mine, others = (tmp_path / f".{name}.abcd1234.tmp" for name in "ab")
    fill(mine, half="half")
    fill(others, half="half")
    write(tmp_path / "a")
    assert not mine.exists() and others.exists()
    files.remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["a"]


def test_file_system_without_locks_keeps_all_temporary_folders(tmp_path, monkeypatch):
    """Nothing can be locked there, so a process may still be writing to them."""

    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with files.atomic_write(tmp_path / "a") as aside:
        fill(os.path.dirname(aside), a="one")
        write(tmp_path / "a", "two")
        files.remove_leftovers(tmp_path)
    assert contents(tmp_path) == {"a": "one"}


@pytest.mark.parametrize("name", ["model", "model.v1", ".model.v1.tmp"])
def test_folder_that_was_moved_aside_by_a_killed_process_comes_back(tmp_path, name):
    """It was killed after moving the old folder, and before moving the new one."""
    fill(tmp_path / "model.v2", a="other")
    fill(tmp_path / f".{name}.abcd1234.tmp" / "before", a="old")
    files.remove_leftovers(tmp_path)
    assert contents(tmp_path) == {f"{name}/a": "old", "model.v2/a": "other"}


def test_regular_files_are_expected(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match="must be a regular file"):
            files.expect_regular_file(path)
