"""Writes files and folders atomically, so that a failed write changes nothing."""

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
    """Yields a temporary path to write to, and then moves the written file to `path`.

    An existing file at `path` stays unchanged if the process is killed, the disk is full
    or an exception is raised. The next call for `path` removes what a killed process has
    left in its temporary folder.

    Args:
        path: Path of the file, whose folder is created if it does not exist.
        overwrite: Bool, whether to replace an existing file.

    Yields:
        Path of the file to write, in a temporary folder beside `path`.

    Raises:
        FileExistsError: If `path` exists and `overwrite` is False.
        OSError: If the file cannot be written, for example because the disk is full. The
            error names `path` and the cause.

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
    """Yields a temporary path for a file of a Keras model, as `atomic_write` does.

    Args:
        filepath, overwrite: Arguments of a method that saves a model.
        ending: String, the ending of the file name, from which Keras knows the format.
        what: String for the error message, what is saved.
        model: Keras model for whose variables there must be space, or `None`.

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
    """Yields a new empty folder to write to, and then renames the folder to `path`.

    An existing folder is first renamed to `.NAME.*.tmp/before`, and is renamed back if an
    exception is raised, or by the next write to `path` if the process was killed.

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
    """Removes a folder, so that a killed process leaves the whole folder or no folder.

    The folder is first renamed to a temporary folder, which the next call of a function
    of the module `files` for the same path removes.
    """
    path = os.path.abspath(path)
    with _temporary_folder(path) as temporary_folder:
        os.rename(path, os.path.join(temporary_folder, "old"))


def remove_leftovers(folder):
    """Removes the temporary folders that killed processes have left in a folder.

    On a file system without locks, all temporary folders remain, because a process may
    write to them.
    """
    for name in os.listdir(folder):
        if _TEMPORARY_NAME.fullmatch(name):
            _remove_if_unused(os.path.join(folder, name))


@contextlib.contextmanager
def _temporary_folder(path):
    """Yields a new folder beside `path`; removes leftovers of killed processes.

    A process locks its temporary folders, so that other processes do not remove them.
    """
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    for other in os.listdir(folder):
        if other.startswith(f".{name}.") and _TEMPORARY_NAME.fullmatch(other):
            _remove_if_unused(os.path.join(folder, other))
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
    """Removes a temporary folder unless a process may be writing to the folder.

    Only a lock shows that no process writes. On a file system without locks, the folder
    remains. If the folder contains the only copy of a replaced folder, the copy is moved
    back.
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
    """Raises errors of the operating system again, with the path that was to be written.

    Some libraries raise these errors without a path. An error with the attribute
    `explained` is raised unchanged.

    Args:
        path: Path of the file or folder.
        consequence: String, a sentence about the files that exist.
        numbers: Error numbers that are explained, or `None` for all.
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
    """Yields the path of a folder to make, and then replaces the folder of an export.

    An existing folder must be empty, or contain only unchanged files that an earlier call
    has written. The file `EXPORT_MARK` lists these files and their SHA-256 digests.

    Args:
        path: Path of the folder that is replaced, as in `atomic_folder`.

    Raises:
        ValueError: If `path` is a file, or a folder that contains other files.
    """
    expect_replaceable_folder(path)
    with atomic_folder(path) as new:
        os.rmdir(new)
        yield new
        text = json.dumps({"files": _digests(new)}, indent=2, sort_keys=True) + "\n"
        pathlib.Path(new, EXPORT_MARK).write_text(text)


def expect_replaceable_folder(path):
    """Raises a `ValueError` unless `atomic_replace_folder` can replace the folder.

    Args:
        path: Path of the folder, which may not exist.

    Raises:
        ValueError: If `path` is a file, or a folder that contains files which no earlier
            call of `atomic_replace_folder` has written, or which have changed since.
    """
    path = os.path.abspath(path)
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"An export is a folder. Received: the file {path}")
    mark, listed = pathlib.Path(path, EXPORT_MARK), {}
    # The list of a stranger may name any file, but cannot contain the digest of a file
    # that the user adds later.
    with contextlib.suppress(OSError, ValueError, TypeError, KeyError, RecursionError):
        expect_regular_file(mark, _MAX_MARK_BYTES)
        listed = dict(json.loads(mark.read_text())["files"])
    others = [item[0] for item in _digests(path).items() if item not in listed.items()]
    if {*others} - {EXPORT_MARK} or mark.is_symlink():
        raise ValueError(
            "The folder of an export must be new, empty or an earlier export. Received: "
            f"{path}, which contains other or changed files "
            f"({', '.join(sorted({*others} - {EXPORT_MARK})[:3])}). No file was replaced."
        )


def _digests(folder):
    """Returns the SHA-256 digests of all files in a folder, by their relative paths.

    It is `None` for an empty folder, and `""` for a link or a file that is not regular.
    """
    digests = {}
    for path in pathlib.Path(folder).rglob("*"):
        if path.is_dir() and not path.is_symlink():
            if any(path.iterdir()):
                continue
            digest = None
        elif path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                digest = hashlib.file_digest(file, "sha256").hexdigest()
        else:
            digest = ""
        digests[str(path.relative_to(folder))] = digest
    return digests


def expect_no_pattern(path):
    """Raises a `ValueError` if TensorFlow could not load a SavedModel from `path`.

    TensorFlow reads the path of a SavedModel as a pattern of file names.
    """
    path = os.path.abspath(path)
    if {*path} & {*"*?[\\"}:
        raise ValueError(
            "The path of a SavedModel must not contain * ? [ \\, which TensorFlow takes "
            f"for a pattern. Received: {path}. Choose another folder or format."
        )


def expect_regular_file(path, max_bytes=None):
    """Raises an error unless `path` is a regular file; never waits for a pipe or device.

    Raises:
        FileNotFoundError: If there is nothing at `path`.
        ValueError: If `path` is a folder, a pipe, a device or a socket, or if it has more
            than `max_bytes`.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no file {path}.")
    size = os.path.getsize(path)
    if not os.path.isfile(path) or (max_bytes is not None and size > max_bytes):
        limit = "" if max_bytes is None else f" of at most {max_bytes} bytes"
        raise ValueError(
            f"{path} must be a regular file{limit}, not a folder, pipe, device or socket."
        )


def expect_no_link(path):
    """Raises a `ValueError` if `path` is a symbolic link.

    A folder of a stranger may contain links to files of the user, which must not change.
    """
    if os.path.islink(path):
        raise ValueError(
            f"{path} must not be a symbolic link, because the training writes to it. "
            "Replace the link by its target."
        )


def _flush(path):
    """Writes the buffers of a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expect_empty_folder(path):
    """Raises `FileExistsError` unless the path is an empty folder or does not exist.

    Files that killed processes have left (`.lock` and temporary folders) do not count.

    Args:
        path: `pathlib.Path` of a run directory.
    """
    names = {x.name for x in path.iterdir()} if path.is_dir() else set()
    names = {x for x in names - {locks.FILE_NAME} if not _TEMPORARY_NAME.fullmatch(x)}
    if names or (path.exists() and not path.is_dir()):
        raise FileExistsError(
            f"{path} is not an empty folder, and existing runs are not overwritten. "
            f"Choose another --run-dir, or continue the run with --resume {path}."
        )
