"""Writes files and folders atomically: they are whole or absent."""

import contextlib
import os
import shutil
import tempfile
import zipfile
import zlib


@contextlib.contextmanager
def atomic_write(path, overwrite=True):
    """Yields a path beside `path`; what was written there takes its place at the end.

    A kill, a full disk or an exception on the way leaves the previous file as it was
    and nothing beside it that a reader could mistake for it.

    Args:
        path: Path of the file. Its folder is made if it does not exist.
        overwrite: Bool. False refuses to replace a file.

    Yields:
        Path with the same name, in a folder of its own beside it.

    Raises:
        FileExistsError: when the file exists and `overwrite` is False.

    Example:

    >>> import pathlib, tempfile
    >>> path = pathlib.Path(tempfile.mkdtemp(), "numbers.txt")
    >>> with atomic_write(path) as aside:
    ...     _ = pathlib.Path(aside).write_text("1 2 3")
    >>> path.read_text()
    '1 2 3'
    """
    path = os.path.abspath(os.fspath(path))
    if os.path.exists(path) and not overwrite:
        raise FileExistsError(f"{path} exists. Pass overwrite=True to replace it.")
    folder, name = os.path.split(path)
    os.makedirs(folder, exist_ok=True)
    # A folder of its own: Keras wants the ending, and may write more than one file.
    aside = tempfile.mkdtemp(prefix=f".{name}.", dir=folder)
    try:
        written = os.path.join(aside, name)
        yield written
        _flush(written)
        os.replace(written, path)
        _flush(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextlib.contextmanager
def atomic_replace_folder(path, names):
    """The same for a whole folder, which takes the place of one of its own kind.

    Args:
        path: Path of the folder.
        names: What such a folder may hold. One that holds anything else stays.

    Raises:
        ValueError: when `path` exists and is not such a folder.
    """
    path = os.path.abspath(os.fspath(path))
    folder, name = os.path.split(path)
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"A folder was expected. Received: the file {path}")
    strange = set(os.listdir(path) if os.path.exists(path) else ()) - set(names)
    if strange:
        raise ValueError(
            f"{path} holds other things ({', '.join(sorted(strange)[:3])}), and nothing "
            "was replaced. Choose a folder that is new, empty or an earlier export."
        )
    os.makedirs(folder, exist_ok=True)
    aside = tempfile.mkdtemp(prefix=f".{name}.", dir=folder)
    try:
        written, before = os.path.join(aside, "new"), os.path.join(aside, "before")
        yield written
        for root, _, files in os.walk(written):
            for file in files:
                _flush(os.path.join(root, file))
            _flush(root)
        _flush(written)
        existed = os.path.exists(path)
        if existed:
            os.rename(path, before)
        try:
            os.rename(written, path)
        except BaseException:
            if existed:
                os.rename(before, path)
            raise
        _flush(folder)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def check_archive(path):
    """Refuses what is not a whole `.keras` file, with one sentence for each reason.

    Raises:
        FileNotFoundError: when nothing is there.
        ValueError: when it is a folder, truncated, damaged, or no Keras archive.
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no file {path}.")
    if os.path.isdir(path):
        raise ValueError(f"An agent file was expected. Received: the folder {path}")
    try:
        with open(path, "rb") as file:
            names, broken = _parts(file)
    except zipfile.BadZipFile as error:
        raise ValueError(
            f"{path} is not a whole agent file: {error}. It was cut short, damaged, "
            "or is of another kind. Expected: a .keras file written by `agent.save`."
        ) from None
    if broken or not {"config.json", "metadata.json"} <= names:
        raise ValueError(
            f"{path} is damaged or no Keras archive"
            + (f" (first bad part: {broken})." if broken else ".")
        )


def _parts(file):
    """The names in an archive and the first bad one; damage is always a `BadZipFile`."""
    try:
        with zipfile.ZipFile(file) as archive:
            return set(archive.namelist()), archive.testzip()
    # Flipped bits in a header look like unknown methods, encryption or odd offsets.
    except (RuntimeError, EOFError, OSError, UnicodeError, zlib.error) as error:
        raise zipfile.BadZipFile(f"{error or type(error).__name__}") from None


def _flush(path):
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
