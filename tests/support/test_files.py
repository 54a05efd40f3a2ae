"""Tests that files are replaced atomically."""

import errno
import fcntl
import json
import os

import pytest

from tf_reinforce.support import files


def listing(folder):
    """Returns the contents of every file below a folder, by relative path."""
    return {
        os.path.relpath(os.path.join(root, name), folder): open_text(root, name)
        for root, _, names in os.walk(folder)
        for name in names
    }


def open_text(*parts):
    with open(os.path.join(*parts)) as file:
        return file.read()


def write(path, text):
    with open(path, "w") as file:
        file.write(text)


def fill(folder, **files):
    os.makedirs(folder)
    for name, text in files.items():
        write(os.path.join(folder, name), text)


class Interrupted(BaseException):
    """An exception that is no `Exception`, as `KeyboardInterrupt` is."""


def test_atomic_write_replaces_the_old_file(tmp_path):
    write(tmp_path / "a.txt", "old")
    with files.atomic_write(str(tmp_path / "a.txt")) as aside:
        write(aside, "new")
        assert open_text(tmp_path, "a.txt") == "old"
    assert listing(tmp_path) == {"a.txt": "new"}
    assert os.listdir(tmp_path) == ["a.txt"]


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
    with files.atomic_write(tmp_path / "a.txt") as aside:
        write(aside, "one")
    file, folder = (os.stat(path).st_ino for path in (tmp_path / "a.txt", tmp_path))
    assert happened == [file, "renamed", folder]


@pytest.mark.parametrize("error", [RuntimeError, Interrupted])
@pytest.mark.parametrize("existed", [False, True])
def test_atomic_write_keeps_the_old_file_if_the_body_raises(tmp_path, error, existed):
    if existed:
        write(tmp_path / "a.txt", "old")
    with pytest.raises(error), files.atomic_write(tmp_path / "a.txt") as aside:
        write(aside, "half")
        raise error
    assert os.listdir(tmp_path) == (["a.txt"] if existed else [])
    assert listing(tmp_path) == ({"a.txt": "old"} if existed else {})


def test_atomic_write_without_overwrite_raises_if_the_file_exists(tmp_path):
    write(tmp_path / "a.txt", "old")
    with (
        pytest.raises(FileExistsError, match="a.txt exists. .* pass overwrite=True"),
        files.atomic_write(tmp_path / "a.txt", overwrite=False),
    ):
        raise AssertionError("the body must not run")
    with files.atomic_write(tmp_path / "b.txt", overwrite=False) as aside:
        write(aside, "new")
    assert listing(tmp_path) == {"a.txt": "old", "b.txt": "new"}


def export(folder, **texts):
    """Writes an export, which contains the list of its files."""
    with files.atomic_replace_folder(folder) as aside:
        fill(aside, **texts)


def contents(folder):
    """Returns the contents of all files below a folder but the lists of exports."""
    return {
        path: text
        for path, text in listing(folder).items()
        if os.path.basename(path) != files.EXPORT_MARK
    }


def test_replace_folder_replaces_the_old_folder(tmp_path):
    export(tmp_path / "model", a="old", gone="old")
    with files.atomic_replace_folder(tmp_path / "model") as aside:
        fill(aside, a="new", b="new")
        fill(os.path.join(aside, "deep"), c="new")
        assert open_text(tmp_path, "model", "a") == "old"
    assert contents(tmp_path / "model") == {"a": "new", "b": "new", "deep/c": "new"}
    assert os.listdir(tmp_path) == ["model"]


def add_file(folder):
    (folder / "thesis").write_text("mine")


def add_nested_file(folder):
    (folder / "assets" / "thesis").write_text("mine")


def add_empty_folder(folder):
    (folder / "thesis").mkdir()


def add_link(folder):
    (folder / "thesis").symlink_to(folder)


@pytest.mark.parametrize("add", [add_file, add_nested_file, add_empty_folder, add_link])
def test_replace_folder_raises_if_the_folder_contains_other_files(tmp_path, add):
    model = tmp_path / "model"
    with files.atomic_replace_folder(model) as aside:
        fill(os.path.join(aside, "assets"), a="old")
    export(model, a="new")  # replaces its own files
    (model / "assets").mkdir()
    (model / "assets" / "b").write_text("mine")
    with pytest.raises(ValueError, match="contains other or changed files .assets/b."):
        export(model, a="newer")
    (model / "assets" / "b").unlink()
    add(model)
    with pytest.raises(ValueError, match="contains other or changed files .*thesis"):
        export(model, a="newer")
    assert contents(model)["a"] == "new"


@pytest.mark.parametrize("mark", ["", "[]", "3", "{}", '{"files": 3}', '{"files": [[]]}'])
def test_replace_folder_raises_if_the_list_of_files_is_damaged(tmp_path, mark):
    export(tmp_path / "model", a="old")
    (tmp_path / "model" / files.EXPORT_MARK).write_text(mark)
    with pytest.raises(ValueError, match="contains other or changed files"):
        export(tmp_path / "model", a="new")


@pytest.mark.parametrize("listed", [["a", "thesis.txt"], {"a": "0", "thesis.txt": "0"}])
def test_file_of_the_user_stays_if_the_list_of_a_stranger_names_it(tmp_path, listed):
    """A folder of a repository may list a file that the user adds later."""
    export(tmp_path / "model", a="old")
    mark = tmp_path / "model" / files.EXPORT_MARK
    digests = json.loads(mark.read_text())["files"]
    if isinstance(listed, dict):
        listed["a"] = digests["a"]
    mark.write_text(json.dumps({"files": listed}))
    (tmp_path / "model" / "thesis.txt").write_text("mine")
    with pytest.raises(ValueError, match="other or changed files .*thesis.txt"):
        export(tmp_path / "model", a="new")
    assert contents(tmp_path / "model") == {"a": "old", "thesis.txt": "mine"}


def test_changed_file_of_an_export_is_not_replaced(tmp_path):
    export(tmp_path / "model", a="old", b="old")
    (tmp_path / "model" / "a").write_text("changed by the user")
    with pytest.raises(ValueError, match="contains other or changed files .a.\\."):
        export(tmp_path / "model", a="new")
    (tmp_path / "model" / "a").unlink()
    os.mkfifo(tmp_path / "model" / "a")  # reading it would wait for ever
    with pytest.raises(ValueError, match="contains other or changed files .a.\\."):
        export(tmp_path / "model", a="new")


def test_replaceable_folder_is_checked_without_a_change(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "empty").mkdir()
    files.expect_replaceable_folder(tmp_path / "new" / "folder")
    files.expect_replaceable_folder(tmp_path / "empty")
    with pytest.raises(ValueError, match="No file was replaced"):
        files.expect_replaceable_folder(tmp_path)
    with pytest.raises(ValueError, match="Received: the file"):
        files.expect_replaceable_folder(tmp_path / "file")
    assert sorted(os.listdir(tmp_path)) == ["empty", "file"]


@pytest.mark.parametrize("error", [RuntimeError, Interrupted])
def test_replace_folder_keeps_the_old_folder_if_the_body_raises(tmp_path, error):
    export(tmp_path / "model", a="old")
    with (
        pytest.raises(error),
        files.atomic_replace_folder(tmp_path / "model") as aside,
    ):
        fill(aside, a="half")
        raise error
    assert contents(tmp_path) == {"model/a": "old"}
    assert os.listdir(tmp_path) == ["model"]


def leave(folder, name):
    """Makes the temporary folder that a killed process leaves."""
    path = folder / f".{name}.abcd1234.tmp"
    fill(path, half="half")
    return path


def test_next_write_removes_the_leftovers_of_killed_processes(tmp_path):
    mine, others = leave(tmp_path, "a.txt"), leave(tmp_path, "b.txt")
    with files.atomic_write(tmp_path / "a.txt") as aside:
        write(aside, "one")
    assert not mine.exists() and others.exists()
    files.remove_leftovers(tmp_path)
    assert os.listdir(tmp_path) == ["a.txt"]


def test_file_system_without_locks_keeps_all_temporary_folders(tmp_path, monkeypatch):
    """A process may be writing to them, because nothing can be locked."""

    def refuse(descriptor, operation):
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr(fcntl, "flock", refuse)
    with files.atomic_write(tmp_path / "a.txt") as aside:
        write(aside, "one")
        with files.atomic_write(tmp_path / "a.txt") as other:
            write(other, "two")
        files.remove_leftovers(tmp_path)
        assert open_text(aside) == "one"
    assert listing(tmp_path) == {"a.txt": "one"}


@pytest.mark.parametrize("name", ["model", "model.v1", ".model.v1.tmp"])
def test_folder_that_was_moved_aside_by_a_killed_process_comes_back(tmp_path, name):
    """The process was killed after the old folder was moved, and before the new one."""
    fill(tmp_path / "other", a="other")
    fill(tmp_path / "model.v2", a="other")
    fill(tmp_path / f".{name}.abcd1234.tmp" / "before", a="old")
    files.remove_leftovers(tmp_path)
    others = {"other/a": "other", "model.v2/a": "other"}
    assert listing(tmp_path) == {f"{name}/a": "old", **others}


def test_new_folder_is_complete_or_missing(tmp_path):
    with pytest.raises(Interrupted), files.atomic_folder(tmp_path / "n") as aside:
        write(os.path.join(aside, "a"), "half")
        raise Interrupted
    assert os.listdir(tmp_path) == []
    with files.atomic_folder(tmp_path / "n") as aside:
        write(os.path.join(aside, "a"), "one")
    assert listing(tmp_path) == {"n/a": "one"}
    files.remove_folder(tmp_path / "n")
    assert os.listdir(tmp_path) == []


def test_failed_write_names_path_and_cause(tmp_path):
    """Keras raises errors of the operating system without a path."""
    path = tmp_path / "a.txt"
    write(path, "old")
    message = "a.txt could not be written: No space left"
    with pytest.raises(OSError, match=message) as error, files.atomic_write(path):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    assert error.value.errno == errno.ENOSPC
    assert listing(tmp_path) == {"a.txt": "old"}


def test_regular_files_are_expected(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(ValueError, match="must be a regular file"):
            files.expect_regular_file(path)
