"""Writes files and folders atomically, so that a failed write changes nothing."""

import contextlib
import os
import re
import shutil
import tempfile
import zipfile
import zlib

# The names of the files and folders in a SavedModel.
SAVED_MODEL_CONTENTS = ("saved_model.pb", "fingerprint.pb", "variables", "assets")


@contextlib.contextmanager
def atomic_write(path, overwrite=True):
    """Yields a temporary path to write to, and then moves the written file to `path`.

    An existing file at `path` stays unchanged if the process is killed, the disk is full
    or an exception is raised. An incomplete file can only be in the temporary folder.

    Args:
        path: Path of the file. The folder of the file is created if the folder does not
            exist.
        overwrite: Bool, whether to replace an existing file. With `overwrite=False`, an
            existing file raises an error.

    Yields:
        Path of the file to write, in a temporary folder beside `path`.

    Raises:
        FileExistsError: If `path` exists and `overwrite` is False.

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
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    # In a temporary folder, the file keeps its extension, which Keras requires, and Keras
    # may write more than one file.
    temporary_folder = tempfile.mkdtemp(prefix=f".{name}.", dir=folder)
    try:
        temporary = os.path.join(temporary_folder, name)
        yield temporary
        _flush(temporary)
        os.replace(temporary, path)
        _flush(folder)
    finally:
        shutil.rmtree(temporary_folder, ignore_errors=True)


@contextlib.contextmanager
def atomic_replace_folder(path, names):
    """Yields a temporary path to write to, and then replaces the folder `path`.

    If an exception is raised, an existing folder at `path` stays unchanged. The old
    folder NAME is first renamed to `.NAME.*/before`, and stays there if the process is
    killed before the new folder is renamed to NAME.

    Args:
        path: Path of the folder that is replaced.
        names: Strings, the names of files and folders that the existing folder may
            contain. A folder with files of other names is not replaced.

    Yields:
        Path of a temporary folder beside `path`, which the caller creates.

    Raises:
        ValueError: If `path` is a file, or a folder that contains files of other names.
    """
    expect_replaceable_folder(path, names)
    path = os.path.abspath(os.fspath(path))
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    temporary_folder = tempfile.mkdtemp(prefix=f".{name}.", dir=folder)
    try:
        temporary = os.path.join(temporary_folder, "new")
        previous = os.path.join(temporary_folder, "before")
        yield temporary
        for root, _, files in os.walk(temporary):
            for file in files:
                _flush(os.path.join(root, file))
            _flush(root)
        _flush(temporary)
        existed = os.path.exists(path)
        if existed:
            os.rename(path, previous)
        try:
            os.rename(temporary, path)
        except BaseException:
            if existed:
                os.rename(previous, path)
            raise
        _flush(folder)
    finally:
        shutil.rmtree(temporary_folder, ignore_errors=True)


def expect_replaceable_folder(path, names):
    """Raises a `ValueError` unless `atomic_replace_folder` can replace the folder.

    Args:
        path: Path of the folder, which may not exist.
        names: The names of files and folders that the folder may contain.

    Raises:
        ValueError: If `path` is a file, or a folder that contains files of other names.
    """
    path = os.path.abspath(os.fspath(path))
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(
            "The path of an export must be a folder, not a file. Received: the file "
            f"{path}"
        )
    other_names = set(os.listdir(path) if os.path.exists(path) else ()) - set(names)
    if other_names:
        raise ValueError(
            "The folder of an export must be new, empty or an earlier export. "
            f"Received: {path}, which contains other files "
            f"({', '.join(sorted(other_names)[:3])}). No file was replaced. Choose "
            "another folder for the export."
        )


def check_archive(path):
    """Raises an error unless `path` is a complete `.keras` file.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If `path` is a folder, or the file is truncated, damaged, or no Keras
            archive.
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no file {path}.")
    if os.path.isdir(path):
        raise ValueError(
            "The path of an agent must be a file that `agent.save` wrote. "
            f"Received: the folder {path}"
        )
    try:
        with open(path, "rb") as file:
            names, damaged_name = _read_archive(file)
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"{path} is not a complete agent file: {error}. An agent file must not be "
            "truncated, damaged or of another kind. Expected: a .keras file written by "
            "`agent.save`."
        ) from None
    if damaged_name or not {"config.json", "metadata.json"} <= names:
        raise ValueError(
            f"{path} is damaged or no Keras archive"
            + (f" (first damaged part: {damaged_name})." if damaged_name else ".")
            + " Expected: a .keras file written by `agent.save`."
        )


def _read_archive(file):
    """Returns the file names in a zip archive, and a damaged file name or `None`.

    Raises:
        zipfile.BadZipFile: If the list of files or a header in the archive is damaged.
    """
    try:
        with zipfile.ZipFile(file) as archive:
            return set(archive.namelist()), archive.testzip()
    # Wrong bits in a header can cause unknown methods, encryption or invalid offsets.
    except (RuntimeError, EOFError, OSError, UnicodeError, zlib.error) as error:
        raise zipfile.BadZipFile(f"{error or type(error).__name__}") from None


def _flush(path):
    """Writes the buffers of a file or folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def expect_empty_folder(path):
    """Raises `FileExistsError` unless the path is an empty folder or does not exist.

    Args:
        path: `pathlib.Path` of a run directory.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(
            f"{path} is not an empty folder, and existing runs are not overwritten. "
            "Choose another folder with --run-dir, or remove the existing folder."
        )


def load_advice(error):
    """Returns an explanation of an error from Keras' `load_model`, and a remedy."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    call = re.match(r"(\S+)\.__init__\(\) (got an unexpected|missing)", str(error))
    if call is None:
        return (
            "If the file contains custom layers, pass the layers: tfr.load(path, "
            "custom_objects={'Name': Name}), or register their classes with "
            "keras.saving.register_keras_serializable. Keras reports "
            f"({type(error).__name__}): {str(error)[:200]}"
        )
    name, problem = call.groups()
    if problem == "missing":
        return (
            f"The class {name} has arguments that are not in its config: {error}. "
            f"Implement `get_config` of {name} so that it returns all arguments of "
            f"`__init__`, or `from_config`. After the change of the class {name}, "
            "save the agent again."
        )
    return (
        f"The class {name} does not take all arguments in its config: {error}. Expected: "
        f"{name}.__init__(self, ..., **kwargs), which calls super().__init__(**kwargs) "
        "with name, dtype and trainable; or `get_config` and `from_config` that agree."
    )
