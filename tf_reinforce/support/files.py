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

import filelock

from tf_reinforce.support import locks
from tf_reinforce.support import validation

# The file in an export that lists all files of the export.
EXPORT_MARK = "tf_reinforce_export.json"
_MAX_MARK_BYTES = 2**20


@contextlib.contextmanager
def atomic_write(path, overwrite=True):
    """Yields a temporary path to write to, and then moves the written file to `path`.

    An existing file at `path` stays unchanged if the process is killed, the disk is full
    or an exception is raised. An incomplete file can only be in the temporary folder. If
    a process is killed while it writes `path`, the next call of `atomic_write` for `path`
    removes the temporary folder of the killed process.

    Args:
        path: Path of the file. The folder of the file is created if the folder does not
            exist.
        overwrite: Bool, whether to replace an existing file. With `overwrite=False`, an
            existing file raises an error.

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
    path = os.path.abspath(os.fspath(path))
    if os.path.exists(path) and not overwrite:
        raise FileExistsError(
            f"The file {path} exists. To replace an existing file, pass overwrite=True."
        )
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
            f"`filepath` of {what} must be a name that ends in {ending}. Received: "
            f"filepath={path!r}"
        )
    with atomic_write(path, overwrite) as temporary:
        if model is not None:
            optimizer = getattr(model, "optimizer", None)
            variables = [*model.variables, *getattr(optimizer, "variables", ())]
            sizes = [x.value.dtype.size * math.prod(x.shape) for x in variables]
            expect_space(temporary, sum(sizes) + 2**12 * len(sizes))
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
    path = os.path.abspath(os.fspath(path))
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
    path = os.path.abspath(os.fspath(path))
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


# The error numbers of a disk that is full, read-only or broken.
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)

# The names of temporary folders: `.NAME.RANDOM.tmp`, for the file or folder NAME.
_TEMPORARY_NAME = re.compile(r"\..+\.[a-z0-9_]{8}\.tmp")
_PREVIOUS = "before"  # in a temporary folder, the folder that is being replaced


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
        except filelock.Timeout:  # another process is removing the folder
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
        number, cause = getattr(error, "errno", None), getattr(error, "strerror", None)
        if type(error).__module__.startswith("tensorflow."):
            # TensorFlow's errors of a failed write contain the cause in their text.
            number = next((n for n in DISK_ERRORS if os.strerror(n) in str(error)), None)
            cause = number and os.strerror(number)
        is_failed_write = isinstance(error, OSError) or number is not None
        if not is_failed_write or hasattr(error, "explained"):
            raise
        if numbers and number not in numbers:
            raise
        message = (
            f"{path} could not be written: {cause or error or type(error).__name__}. "
            f"{consequence} Free space or change the permissions, and try again."
        )
        # With an error number, `OSError` makes an error of the type of `error`.
        arguments = [message] if number is None else [number, message]
        explained = OSError(*arguments)
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
        digests = {name: _digest(os.path.join(new, name)) for name in _files_in(new)}
        with open(os.path.join(new, EXPORT_MARK), "w") as file:
            text = json.dumps({"files": digests}, indent=2, sort_keys=True)
            file.write(text + "\n")


def expect_replaceable_folder(path):
    """Raises a `ValueError` unless `atomic_replace_folder` can replace the folder.

    Args:
        path: Path of the folder, which may not exist.

    Raises:
        ValueError: If `path` is a file, or a folder that contains files which no earlier
            call of `atomic_replace_folder` has written, or which have changed since.
    """
    path = os.path.abspath(os.fspath(path))
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(
            "The path of an export must be a folder, not a file. Received: the file "
            f"{path}"
        )
    listed = _read_mark(path)
    other_names = [
        name
        for name in _files_in(path) - {EXPORT_MARK}
        if name not in listed or listed[name] != _digest(os.path.join(path, name))
    ]
    if other_names or os.path.islink(os.path.join(path, EXPORT_MARK)):
        raise ValueError(
            "The folder of an export must be new, empty or an earlier export. "
            f"Received: {path}, which contains other or changed files "
            f"({', '.join(sorted(other_names)[:3])}). No file was replaced. Choose "
            "another folder."
        )


def _files_in(folder):
    """Returns the relative paths of all files, links and empty folders in a folder."""
    return {
        str(path.relative_to(folder))
        for path in pathlib.Path(folder).rglob("*")
        if path.is_symlink() or not path.is_dir() or not any(path.iterdir())
    }


def _read_mark(folder):
    """Returns the files that an export lists, with their digests.

    The list of a stranger may name any file, but cannot contain the digest of a file that
    the user adds later.
    """
    path = os.path.join(folder, EXPORT_MARK)
    try:
        expect_regular_file(path)
        with open(path) as file:
            return dict(json.loads(file.read(_MAX_MARK_BYTES))["files"])
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        return {}


def _digest(path):
    """Returns the SHA-256 digest of a regular file; `None` for an empty folder."""
    if os.path.isdir(path) and not os.path.islink(path):
        return None
    if os.path.islink(path) or not os.path.isfile(path):
        return ""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def expect_no_pattern(path):
    """Raises a `ValueError` if TensorFlow could not load a SavedModel from `path`.

    TensorFlow reads the path of a SavedModel as a pattern of file names.
    """
    path = os.path.abspath(os.fspath(path))
    characters = sorted(set(path) & set("*?[\\"))
    if characters:
        raise ValueError(
            "The path of a SavedModel must not contain the characters * ? [ \\, because "
            "TensorFlow would read them as a pattern and not find the files. Received: "
            f"{path}. Choose another folder, or the format onnx or litert."
        )


def expect_space(path, size):
    """Raises an `OSError` unless a new file of `size` bytes can be written to `path`.

    HDF5 ends the process if the disk is full while it closes a file.
    """
    with open(path, "wb") as file:
        if hasattr(os, "posix_fallocate"):  # not on macOS
            os.posix_fallocate(file.fileno(), 0, size)


def expect_regular_file(path, max_bytes=None):
    """Raises an error unless `path` is a regular file; never waits for a pipe or device.

    Raises:
        FileNotFoundError: If there is nothing at `path`.
        ValueError: If `path` is a folder, a pipe, a device or a socket, or if it has more
            than `max_bytes`.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no file {path}.")
    if not os.path.isfile(path):
        raise ValueError(
            f"{path} must be a regular file, not a folder, pipe, device or socket."
        )
    size = os.path.getsize(path)
    if max_bytes is not None and size > max_bytes:
        raise ValueError(
            f"{path} must have at most {max_bytes} bytes. Received: {size} bytes"
        )


def expect_no_link(path):
    """Raises a `ValueError` if `path` is a symbolic link.

    A folder of a stranger may contain links to files of the user, which must not change.
    """
    if os.path.islink(path):
        raise ValueError(
            f"{path} must not be a symbolic link, because the training writes to it. "
            f"Received: a link to {os.readlink(path)}. Replace the link by its target."
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
    if path.exists() and (not path.is_dir() or any(map(_is_content, path.iterdir()))):
        raise FileExistsError(
            f"{path} is not an empty folder, and existing runs are not overwritten. "
            "Choose another folder with --run-dir, or, if it is a run, continue it with "
            f"--resume {path}."
        )


def _is_content(path):
    """Returns whether a file or folder is neither a lock nor a temporary folder."""
    return path.name != locks.FILE_NAME and not _TEMPORARY_NAME.fullmatch(path.name)
