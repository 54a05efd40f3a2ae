"""Reads the files inside a `.keras` archive, within limits."""

import contextlib
import dataclasses
import json
import math
import os
import stat
import struct
import zipfile
import zlib
from typing import Any

from tf_reinforce import validation

CONFIG, METADATA, WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
ASSETS = "assets/"  # the folder of files that layers write, for example vocabularies

_HEADER, _END = b"PK\x03\x04", b"PK\x05\x06"
_LARGE_END = b"PK\x06\x07"  # in archives of more than 2 GiB
_END_SIZE, _LARGE_END_SIZE = 22, 20
_LARGE_ARCHIVE = 2**31 - 1
_MAX_LIST_BYTES = 2**20  # of the list of files at the end of an archive
_CONFIG_BYTES_PER_LAYER = 2**13
_MAX_DIGITS = 20  # of an integer in the configuration
_MAX_DEPTH = 100  # of nested lists and objects in the configuration


@dataclasses.dataclass(frozen=True)
class LoadLimits:
    """Limits of the agent files that `tfr.load` accepts.

    The limits protect against files that would fill the memory or take minutes to load.

    Args:
        max_bytes: Int, the largest size of the file. The sizes that a file declares must
            agree with the size of the file, so that `max_bytes` also limits the memory.
        max_layers: Int, the largest number of layers and calls of layers in all models. A
            recurrent layer or an attention layer counts as 16 layers, and a sequential
            model of n layers as n²/16 further layers, because Keras builds them slowly.

    Example:

    >>> LoadLimits(max_bytes=2**30).max_layers
    256
    """

    max_bytes: int = 2**27
    max_layers: int = 256

    def __post_init__(self) -> None:
        for name in ("max_bytes", "max_layers"):
            value = validation.positive_int(name, getattr(self, name))
            object.__setattr__(self, name, value)


@contextlib.contextmanager
def name_file(path):
    """Raises a `ValueError` of a `with` block again, with the path of the agent file."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded. {error}") from error.__cause__


# For files that the same process has written.
OWN_FILE = LoadLimits(max_bytes=2**40, max_layers=10**6)


def read(path: str, limits: LoadLimits) -> tuple[Any, bytes]:
    """Returns the configuration and the bytes of the weights of a `.keras` file.

    The size and the kind of the file, the list of files and all checksums are checked
    before a file inside the archive is read.

    Args:
        path: Path of the file.
        limits: `LoadLimits`.

    Raises:
        FileNotFoundError: If the file does not exist.
        ValueError: If the file is not a regular file, too large, truncated, damaged, or
            not an archive that Keras writes.
    """
    _expect_file(path, limits)
    with open(path, "rb") as file:
        _expect_complete(file)
        try:
            with zipfile.ZipFile(file) as archive:
                _expect_known_files(archive, limits)
                damaged_name = archive.testzip()
                if damaged_name is not None:
                    raise ValueError(
                        f"The file {damaged_name} in the archive is damaged, because its "
                        "checksum does not match its content. Use another copy of the "
                        "file."
                    )
                config, weights = archive.read(CONFIG), archive.read(WEIGHTS)
        # Wrong bits in a header can cause unknown methods or invalid offsets.
        except (
            zipfile.BadZipFile,
            RuntimeError,
            EOFError,
            OSError,
            UnicodeError,
            struct.error,
            zlib.error,
        ) as error:
            raise ValueError(
                "The list of files in the archive is damaged "
                f"({error or type(error).__name__}). Use another copy of the file."
            ) from None
    return _parse(config), weights


def _expect_file(path, limits):
    """Raises an error unless `path` is a regular file of an allowed size."""
    if not os.path.exists(path) and not os.path.islink(path):
        raise FileNotFoundError(f"There is no file {path}.")
    try:
        status = os.stat(path)
    except OSError as error:
        raise ValueError(
            f"The path is a link that leads to no file ({error.strerror}). Expected: the "
            "path of a file that `agent.save` wrote."
        ) from None
    if stat.S_ISDIR(status.st_mode):
        raise ValueError(
            "The path of an agent must be a file that `agent.save` wrote. Received: the "
            f"folder {path}"
        )
    if not stat.S_ISREG(status.st_mode):
        raise ValueError(
            "The path is a pipe, a socket or a device. Expected: a regular file that "
            "`agent.save` wrote."
        )
    if not path.endswith(".keras"):
        raise ValueError(
            "The name of an agent file must end in .keras, because `agent.save` and "
            "`tf-reinforce train` write such files. If it is one, rename the file."
        )
    if status.st_size > limits.max_bytes:
        raise ValueError(
            f"The file has {status.st_size:,} bytes, which is more than the limit of "
            f"{limits.max_bytes:,} bytes. To load a larger agent, raise the limit: "
            f"tfr.load(path, limits=tfr.LoadLimits(max_bytes={status.st_size})), or "
            f"`--max-bytes {status.st_size}` on the command line."
        )


def _expect_complete(file):
    """Raises `ValueError` unless a file starts and ends like a zip archive of Keras."""
    size = os.fstat(file.fileno()).st_size
    head = file.read(len(_HEADER))
    if not head:
        raise ValueError(
            "The file is empty. An agent file must not be truncated. Use another copy of "
            "the file."
        )
    if not _HEADER.startswith(head):
        kind = "an HDF5 file" if head == b"\x89HDF" else "of another kind"
        raise ValueError(
            f"The file is {kind}, and not a zip archive. Expected: a .keras file that "
            "`agent.save` wrote."
        )
    file.seek(max(0, size - _END_SIZE - _LARGE_END_SIZE))
    tail = file.read()
    end = tail[-_END_SIZE:]
    if len(end) < _END_SIZE or not end.startswith(_END):
        raise ValueError(
            "The file is truncated or damaged, because the end of the zip archive is "
            "missing. Use another copy of the file."
        )
    list_size, list_start = struct.unpack("<LL", end[12:20])
    is_large = size > _LARGE_ARCHIVE
    if list_size > _MAX_LIST_BYTES:
        raise ValueError(
            f"The list of files in the archive has {list_size:,} bytes. Expected: an "
            "archive of a few files, as `agent.save` writes it."
        )
    if not is_large and (
        list_start + list_size != size - _END_SIZE or tail.startswith(_LARGE_END)
    ):
        raise ValueError(
            "The file is truncated or damaged, because its size does not agree with the "
            "end of the zip archive. Use another copy of the file."
        )


def _expect_known_files(archive, limits):
    """Raises `ValueError` unless an archive has the files that Keras writes."""
    names, total = set(), 0
    for info in archive.infolist():
        name, total = info.filename, total + info.file_size
        if name in names:
            raise ValueError(
                f"The archive contains the file {name} twice. Expected: one file of each "
                "name, as `agent.save` writes them."
            )
        names.add(name)
        _expect_known_file(info)
    for name in (CONFIG, METADATA, WEIGHTS):
        if name not in names:
            raise ValueError(
                f"The archive does not contain the file {name}, and is no Keras archive. "
                "Expected: a .keras file that `agent.save` wrote."
            )
    if total > os.fstat(archive.fp.fileno()).st_size:
        raise ValueError(
            f"The files in the archive have {total:,} bytes, which is more than the "
            "archive itself. Expected: a .keras file that `agent.save` wrote."
        )
    largest = _CONFIG_BYTES_PER_LAYER * limits.max_layers
    if archive.getinfo(CONFIG).file_size > largest:
        raise ValueError(
            f"{CONFIG} has {archive.getinfo(CONFIG).file_size:,} bytes, which is more "
            f"than the limit of {largest:,} bytes for {limits.max_layers} layers. To "
            "load an agent of more layers, raise the limit: "
            "tfr.load(path, limits=tfr.LoadLimits(max_layers=…)), or `--max-layers N` on "
            "the command line."
        )


def _expect_known_file(info):
    """Raises `ValueError` unless a file in an archive is one that Keras writes."""
    name = info.filename
    if info.flag_bits & 1:
        raise ValueError(
            f"The file {name} in the archive is encrypted. Expected: files without a "
            "password, as `agent.save` writes them."
        )
    if info.compress_type != zipfile.ZIP_STORED:
        raise ValueError(
            f"The file {name} in the archive is compressed. Expected: uncompressed "
            "files, as `agent.save` writes them."
        )
    parts = name.replace("\\", "/").split("/")
    if ".." in parts or name.startswith(("/", "\\")) or ":" in name:
        raise ValueError(
            f"The archive contains the file {name!r}, which would be outside of the "
            "archive. Expected: the files that `agent.save` writes."
        )
    if name not in (CONFIG, METADATA, WEIGHTS) and not name.startswith(ASSETS):
        raise ValueError(
            f"The archive contains the unknown file {name!r}. Expected: only the files "
            "that `agent.save` writes."
        )


def _parse(data):
    """Returns the content of a JSON file without NaN and without repeated keys."""
    try:
        content = json.loads(
            data.decode("utf-8"),
            parse_constant=_constant,
            parse_int=_integer,
            object_pairs_hook=_without_repeated_keys,
        )
    except UnicodeDecodeError:
        raise ValueError(f"{CONFIG} is not text in UTF-8.") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"{CONFIG} is not valid JSON: {error}.") from None
    except RecursionError:
        content, depth = None, math.inf
    else:
        depth = _depth(content)
    if depth > _MAX_DEPTH:
        raise ValueError(
            f"{CONFIG} contains more than {_MAX_DEPTH} nested lists and objects. "
            "Expected: the configuration of an agent, as `agent.save` writes it."
        )
    return content


def _constant(name):
    if name == "NaN":
        raise ValueError(
            f"{CONFIG} contains NaN. Expected: numbers that are not NaN, as in the "
            "configuration of an agent."
        )
    return float(name)


def _integer(text):
    if len(text) > _MAX_DIGITS:
        raise ValueError(
            f"{CONFIG} contains an integer of {len(text)} digits. Expected: at most "
            f"{_MAX_DIGITS} digits."
        )
    return int(text)


def _without_repeated_keys(pairs):
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _ in pairs]
        key = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"{CONFIG} contains the key {key[:100]!r} twice in one object.")
    return result


def _depth(content):
    """Returns the number of nested lists and objects in the content of a JSON file."""
    depth, level = 0, [content]
    while level := [x for x in level if isinstance(x, (dict, list))]:
        depth += 1
        level = [
            child
            for part in level
            for child in (part.values() if isinstance(part, dict) else part)
        ]
    return depth
