"""Atomic writes: a file or folder is replaced completely or not at all."""

import contextlib
import errno
import hashlib
import json
import math
import os
import pathlib
import re
import shutil
import tempfile

from tf_reinforce.support import locks
from tf_reinforce.support import validation

EXPORT_MARK = "tf_reinforce_export.json"  # the file that lists an export's files
_MAX_MARK_BYTES = 2**20
# The error numbers of a disk that is full, read-only or broken.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)

# The names of temporary folders: `.NAME.RANDOM.tmp`, for the file or folder NAME.
_TEMPORARY_NAME = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")
_PREVIOUS = "before"  # in a temporary folder, the folder that is being replaced


@contextlib.contextmanager
def atomic_write(path, overwrite=True):
    """Yields a temporary path to write to, then moves the file to `path`.

    An existing file stays unchanged if an exception occurs, the disk is full or the
    process is killed. What a killed process has left behind is removed by the next call
    for the same path.

    Args:
        path: Path of the file; its folder is created if necessary.
        overwrite: Bool, whether to replace an existing file.

    Yields:
        Path of the file to write, in a temporary folder beside `path`.

    Raises:
        FileExistsError: If `path` exists and `overwrite` is False.
        OSError: If writing fails. The error names `path` and the cause, for example a
            full disk.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "numbers.txt")
    >>> with atomic_write(path) as temporary:
    ...     _ = pathlib.Path(temporary).write_text("1 2 3")
    >>> path.read_text()
    '1 2 3'
    """
    path = os.path.abspath(path)
    if os.path.exists(path) and not overwrite:
        raise FileExistsError(f"{path} exists. To replace it, pass overwrite=True.")
    # In a temporary folder, the file keeps its extension, which Keras requires, and Keras
    # may write more than one file.
    with explain_failed_write(path), _temporary_folder(path) as temporary_folder:
        temporary = os.path.join(temporary_folder, os.path.basename(path))
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
        _flush(os.path.dirname(path))


@contextlib.contextmanager
def atomic_model_file(filepath, overwrite, ending, what, model=None):
    """Yields a temporary path for a Keras model's file, like `atomic_write`.

    Args:
        filepath, overwrite: Arguments of a method that saves a model.
        ending: String, the required ending of the file name, which tells Keras the
            format.
        what: String for the error message, what is saved.
        model: Keras model whose variables must fit on the disk, or `None`.

    Raises:
        ValueError: If the file name has another ending.
    """
    path = validation.path("filepath", filepath)
    overwrite = validation.boolean("overwrite", overwrite)
    if not path.endswith(ending):
        raise ValueError(
            f"`filepath` of {what} must be one that ends in {ending}. Received: {path!r}"
        )
    with atomic_write(path, overwrite) as temporary:
        if model is not None:
            optimizer = getattr(model, "optimizer", None)
            variables = [*model.variables, *getattr(optimizer, "variables", ())]
            sizes = [x.value.dtype.size * math.prod(x.shape) + 2**12 for x in variables]
            # HDF5 ends the process if the disk is full while it closes a file.
            if sizes and hasattr(os, "posix_fallocate"):  # not on macOS
                with open(temporary, "wb") as file:
                    os.posix_fallocate(file.fileno(), 0, sum(sizes))
        yield temporary


@contextlib.contextmanager
def atomic_folder(path):
    """Yields a new empty folder to write to, then renames it to `path`.

    An existing folder first moves to `.NAME.*.tmp/before`. If an exception occurs, it
    moves back at once. If the process is killed, it moves back at the next write to
    `path`.

    Args:
        path: Path of the folder. The caller makes sure that it may be replaced.

    Raises:
        OSError: As in `atomic_write`.
    """
    path = os.path.abspath(path)
    with explain_failed_write(path), _temporary_folder(path) as temporary_folder:
        new = os.path.join(temporary_folder, "new")
        previous = os.path.join(temporary_folder, _PREVIOUS)
        os.mkdir(new)
        yield new
        for root, _, names in os.walk(new):
            for name in (*names, ""):
                _flush(os.path.join(root, name))
        with contextlib.suppress(FileNotFoundError):
            os.rename(path, previous)
        try:
            os.rename(new, path)
        except BaseException:
            if os.path.exists(previous):
                os.rename(previous, path)
            raise
        _flush(os.path.dirname(path))


def remove_folder(path):
    """Removes a folder whole: a killed process never leaves only a part of it.

    The folder first moves into a temporary folder. If this process is killed, the next
    write to the same path removes the temporary folder.
    """
    path = os.path.abspath(path)
    with _temporary_folder(path) as temporary_folder:
        os.rename(path, os.path.join(temporary_folder, "old"))


def remove_leftovers(folder, prefix=""):
    """Removes temporary folders that killed processes have left in a folder.

    On file systems without locks, these folders stay, because a process could still write
    there.
    """
    for name in os.listdir(folder):
        if name.startswith(prefix) and _TEMPORARY_NAME.fullmatch(name):
            _remove_if_unused(os.path.join(folder, name))


@contextlib.contextmanager
def _temporary_folder(path):
    """Yields a new locked folder beside `path`, after removing leftovers.

    The lock keeps other processes from removing it.
    """
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    remove_leftovers(folder, f".{name}.")
    while True:
        temporary = tempfile.mkdtemp(prefix=f".{name}.", suffix=".tmp", dir=folder)
        lock = locks.lock_file(temporary)
        try:
            lock.acquire()
        except TimeoutError:  # another process is removing the folder
            continue
        except OSError:  # the same, or a file system without locks
            pass
        if os.path.exists(temporary):
            break
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
        lock.release()


def _remove_if_unused(path):
    """Removes a temporary folder if its lock shows that no process is writing there.

    The only copy of a replaced folder is moved back first. On file systems without locks,
    everything stays.
    """
    if os.path.islink(path):
        return
    with contextlib.suppress(OSError), locks.lock_file(path):
        folder, name = os.path.split(path)
        target = os.path.join(folder, name[1:].rsplit(".", 2)[0])
        previous = os.path.join(path, _PREVIOUS)
        if os.path.isdir(previous) and not os.path.exists(target):
            os.rename(previous, target)
        shutil.rmtree(path, ignore_errors=True)


@contextlib.contextmanager
def explain_failed_write(
    path, consequence="A file that existed before is unchanged.", numbers=None
):
    """Adds the path and a remedy to errors of the operating system.

    Some libraries raise these errors without a path. An error with the attribute
    `explained` is passed on unchanged.

    Args:
        path: Path of the file or folder.
        consequence: String, a sentence about the files that exist.
        numbers: Error numbers to explain, or `None` for all.
    """
    try:
        yield
    except Exception as error:
        number = getattr(error, "errno", None)
        if type(error).__module__.startswith("tensorflow."):  # its text has the cause
            number = next((n for n in DISK_ERRORS if os.strerror(n) in str(error)), None)
        is_failed_write = isinstance(error, OSError) or number is not None
        is_other = numbers is not None and number not in numbers
        if not is_failed_write or is_other or hasattr(error, "explained"):
            raise
        cause = os.strerror(number) if number else error or type(error).__name__
        message = (
            f"{path} could not be written: {cause}. "
            f"{consequence} Free space or change the permissions, and try again."
        )
        # With an error number, `OSError` makes an error of the type of `error`.
        explained = OSError(number, message) if number else OSError(message)
        explained.explained = True
        raise explained from error


@contextlib.contextmanager
def atomic_replace_folder(path):
    """Yields a path at which to make a folder, then replaces an earlier export by it.

    To protect other files, an old folder is only replaced if it is empty or contains
    nothing but unchanged files of an earlier call. These files are listed in
    `EXPORT_MARK` with their SHA-256 digests.

    Args:
        path: Path of the folder, as in `atomic_folder`.

    Raises:
        ValueError: If `path` is a file, or a folder with other files.
    """
    expect_replaceable_folder(path)
    with atomic_folder(path) as new:
        os.rmdir(new)
        yield new
        text = json.dumps({"files": _digests(new)}, indent=2, sort_keys=True) + "\n"
        pathlib.Path(new, EXPORT_MARK).write_text(text)


def expect_replaceable_folder(path):
    """Checks that `atomic_replace_folder` may replace `path`, which need not exist.

    Raises:
        ValueError: If it is a file, or a folder with files that no earlier call wrote or
            that have changed since.
    """
    path = os.path.abspath(path)
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"An export is a folder. Received: the file {path}")
    mark, listed = pathlib.Path(path, EXPORT_MARK), {}
    # A list from someone else may name any file, but cannot know the digest of one that
    # the user adds later.
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        expect_regular_file(mark, _MAX_MARK_BYTES)
        listed = dict(json.loads(mark.read_text())["files"])
    found = {x for x, digest in _digests(path).items() if digest != listed.get(x)}
    if others := sorted(found if mark.is_symlink() else found - {EXPORT_MARK}):
        raise ValueError(
            "The folder of an export must be new, empty or an earlier export. Received: "
            f"{path}, which contains other or changed files ({', '.join(others[:3])}). "
            "No file was replaced."
        )


def _digests(folder):
    """Returns the SHA-256 digests of a folder's files, by relative path.

    Links and special files have `""`. Folders are left out.
    """
    digests = {}
    for path in pathlib.Path(folder).rglob("*"):
        name = str(path.relative_to(folder))
        if path.is_symlink() or not path.is_dir():
            digests[name] = ""
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                digests[name] = hashlib.file_digest(file, "sha256").hexdigest()
    return digests


def expect_no_pattern(path):
    """Raises `ValueError` for a path from which TensorFlow cannot load a SavedModel.

    TensorFlow reads it as a pattern of file names.
    """
    path = os.path.abspath(path)
    if {*path} & {*"*?[\\"}:
        raise ValueError(
            "The path of a SavedModel must not contain * ? [ \\, which TensorFlow takes "
            f"for a pattern. Received: {path}. Choose another folder or format."
        )


def expect_regular_file(path, max_bytes=None, kind="file"):
    """Checks that `path` is a regular file, without ever waiting for a pipe or device.

    The error for a missing file calls it `kind`.

    Raises:
        FileNotFoundError: If nothing is there.
        ValueError: If it is something else, or larger than `max_bytes`.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no {kind} {path}.")
    size = os.path.getsize(path)
    if not os.path.isfile(path) or (max_bytes is not None and size > max_bytes):
        limit = "" if max_bytes is None else f" of at most {max_bytes} bytes"
        raise ValueError(
            f"{path} must be a regular file{limit}, not a folder, pipe, device or socket."
        )


def expect_no_link(path):
    """Raises `ValueError` if `path` is a symbolic link.

    In a folder from someone else, a link could make a training overwrite the user's
    files.
    """
    if os.path.islink(path):
        raise ValueError(
            f"{path} must not be a symbolic link, because the training writes to it. "
            "Replace the link by its target."
        )


def _flush(path):
    """Writes a file's or folder's buffers to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expect_empty_folder(path):
    """Raises `FileExistsError` unless a run directory is empty or does not exist.

    Leftovers of killed processes (`.lock` and temporary folders) do not count.

    Args:
        path: `pathlib.Path`.
    """
    names = {x.name for x in path.iterdir()} if path.is_dir() else set()
    names = {x for x in names - {locks.FILE_NAME} if not _TEMPORARY_NAME.fullmatch(x)}
    if names or (path.exists() and not path.is_dir()):
        raise FileExistsError(
            f"{path} is not an empty folder, and existing runs are not overwritten. "
            f"Choose another --run-dir, or continue the run with --resume {path}."
        )
