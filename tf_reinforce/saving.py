"""Loads agents from `.keras` files, also files of strangers."""

import contextlib
import inspect
import io
import json
import math
import os
import re
import warnings
import zipfile
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from tf_reinforce.support import startup
from tf_reinforce.support import validation
from tf_reinforce.support import version

if TYPE_CHECKING:
    from tf_reinforce import agent

MAX_BYTES = 2**27
_CONFIG, _METADATA, _WEIGHTS = "config.json", "metadata.json", "model.weights.h5"
_MAX_CONFIG_BYTES = 2**20  # unless `max_bytes` is above the default
_DAMAGE = zipfile.BadZipFile, OSError, RuntimeError, LookupError, EOFError
_SPARE_BYTES = 2**20  # for variables that Keras does not save
_TOO_LARGE = "Its layers need more weights than it contains."

# Arrays of strings or of structures would be of any size.
_NUMBERS = re.compile(r"bool|b?float\d+|u?int\d+")


def load(
    path: str | os.PathLike,
    custom_objects: Mapping[str, Any] | None = None,
    max_bytes: int = MAX_BYTES,
) -> "agent.Reinforce":
    """Loads an agent that `agent.save` wrote.

    You can also load a file from a stranger, because loading runs no code from the file
    and reads no other file.

    Args:
        path: Path of the `.keras` file.
        custom_objects: Dict from names to your own classes in the agent, unless they are
            registered with Keras.
        max_bytes: Int, the largest size of the file. It also limits the memory for the
            weights.

    Returns:
        `Reinforce`, with its optimizers' state if it was compiled.

    Raises:
        FileNotFoundError: If the file does not exist.
        TypeError: If `custom_objects` is not a dict.
        ValueError: If the file is too large, damaged, or contains no agent.
    """
    path = validation.path("path", path)
    max_bytes = validation.positive_int("max_bytes", max_bytes)
    custom_objects = {} if custom_objects is None else custom_objects
    validation.instance("custom_objects", custom_objects, Mapping)
    config = read(path, max_bytes)
    with _named(path):
        _expect_agent(config, custom_objects)
        return _build(path, custom_objects)


@contextlib.contextmanager
def _named(path):
    """Adds the file's path to a `ValueError` from the `with` block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded. {error}") from error.__cause__


def read(path: str, max_bytes: int = MAX_BYTES) -> dict:
    """Returns the current configuration in a `.keras` file.

    TensorFlow is not needed. A file that Keras cannot have written raises the errors of
    `load`.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no file {path}.")
    with _named(path):
        size = os.path.getsize(path)
        if not os.path.isfile(path) or not path.endswith(".keras"):
            raise ValueError("An agent is a file `….keras`, and no folder or device.")
        if size > max_bytes:
            raise ValueError(
                f"The file has {size:,} bytes, and the limit is {max_bytes:,}. Pass "
                f"tfr.load(path, max_bytes={size}), or `--max-bytes {size}`."
            )
        try:
            config = _read(path, size, max_bytes)
        except _DAMAGE as error:
            text = f"The file is truncated, damaged or no archive of Keras ({error})."
            raise ValueError(text) from None
        if isinstance(config, dict) and isinstance(own := config.get("config"), dict):
            config["config"] = version.current("Reinforce", "The agent", own)
        return config


def _read(path, size, max_bytes):
    import h5py

    with zipfile.ZipFile(path) as archive:
        if sum(x.file_size for x in archive.infolist()) > size:
            raise zipfile.BadZipFile("its files are larger than the archive itself")
        for name in archive.namelist():
            known = name in (_CONFIG, _METADATA, _WEIGHTS) or name.startswith("assets/")
            if not known or ".." in name.split("/"):
                raise ValueError(f"The archive contains the unknown file {name[:100]!r}.")
        if damaged := archive.testzip():
            raise zipfile.BadZipFile(f"the checksum of {damaged} is wrong")
        text, weights = archive.read(_CONFIG), archive.read(_WEIGHTS)
    if len(text) > _MAX_CONFIG_BYTES * max(1, max_bytes // MAX_BYTES):
        raise ValueError(f"{_CONFIG} is too large; a larger `max_bytes` raises it.")
    arrays = []
    with h5py.File(io.BytesIO(weights)) as file:
        file.visititems(lambda name, part: arrays.append(getattr(part, "nbytes", 0)))
    if sum(arrays) > len(weights):
        raise zipfile.BadZipFile("its weights declare more numbers than it contains")
    try:
        return json.loads(text, object_hook=_expect_numbers)
    except (json.JSONDecodeError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"{_CONFIG} is not valid JSON ({error}).") from None


def _expect_numbers(part):
    """Returns a part of a configuration; raises if it is an array of other values."""
    if part.get("class_name") in ("__numpy__", "__tensor__"):
        config = part.get("config")
        dtype = str(config.get("dtype") if isinstance(config, dict) else None)[:100]
        if not _NUMBERS.fullmatch(dtype):
            raise ValueError(f"The file contains an array of the type {dtype}.")
    return part


def _expect_agent(config, custom_objects):
    """Raises `ValueError` unless a config describes an agent; Keras checks its parts."""
    with startup.quiet_first_import():
        import keras

        from tf_reinforce import agent

    is_object = isinstance(config, dict) and isinstance(config.get("config"), dict)
    name = is_object and (config.get("registered_name") or config.get("class_name"))
    kind = None
    if isinstance(name, str):
        kind = keras.saving.get_registered_object(name, custom_objects)
    if not isinstance(kind, type) or not issubclass(kind, agent.Reinforce):
        raise ValueError(
            "The file contains no agent. Load other models with keras.saving.load_model."
        )


def _build(path, custom_objects):
    """Builds the agent from a file whose configuration has been checked."""
    import keras
    import tensorflow as tf

    remaining = 2 * os.path.getsize(path) + _SPARE_BYTES

    def create(next_creator, **kwargs):
        nonlocal remaining
        value = kwargs["initial_value"]
        closure = inspect.getclosurevars(value).nonlocals if callable(value) else {}
        owner = closure.get("self", value)  # Keras passes a function of a variable
        if hasattr(owner, "shape"):
            dtype = tf.as_dtype(keras.backend.standardize_dtype(owner.dtype))
            remaining -= math.prod(owner.shape) * dtype.size
        if remaining < 0:
            raise ValueError(_TOO_LARGE)
        return next_creator(**kwargs)

    try:
        scope = tf.variable_creator_scope(create)
        with scope, warnings.catch_warnings(record=True) as caught:
            warnings.filterwarnings("always", "Skipping")
            agent = keras.saving.load_model(path, custom_objects=custom_objects)
        for warning in caught:  # of a layer or optimizer whose saved state is missing
            if str(warning.message).startswith("Skipping"):
                raise warning.message
            warnings.warn(warning.message, stacklevel=4)
    except Exception as error:  # Keras and custom classes raise errors of any type
        cause = error
        while remaining >= 0 and (
            inner := cause.__cause__
            or (None if cause.__suppress_context__ else cause.__context__)
        ):
            cause = inner
        text = validation.one_line(cause)
        text = re.split("If you trust|Make sure|Full object|config=", text)[0][:300]
        raise ValueError(
            f"The agent cannot be built ({type(cause).__name__}: {text}). Load it with "
            "the versions that saved it, and import what registers your functions and "
            "classes, or pass `custom_objects={name: …}` or `--agent MODULE:FUNCTION`."
        ) from error
    if remaining < 0:  # Keras may have ignored the error
        raise ValueError(_TOO_LARGE)
    return agent
