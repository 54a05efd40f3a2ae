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
_MAX_DEPTH = 100
_DAMAGE = zipfile.BadZipFile, OSError, RuntimeError, LookupError, EOFError
_SPARE_BYTES = 2**20  # for variables that Keras does not save

# The modules under whose names Keras serializes parts of models.
_PARTS = (
    "activations constraints dtype_policies initializers layers losses metrics models "
    "optimizers optimizers.schedules quantizers random regularizers"
)
_MODULES = {"builtins", "keras", *(f"keras.{name}" for name in _PARTS.split())}
# The operations of functional models are classes of Keras without a public name.
_OPERATIONS = ("keras.src.layers.", "keras.src.models.", "keras.src.ops.")


def load(
    path: str | os.PathLike,
    custom_objects: Mapping[str, Any] | None = None,
    max_bytes: int = MAX_BYTES,
) -> "agent.Reinforce":
    """Loads an agent that `agent.save` wrote.

    The file may come from a stranger: loading runs no code from it, imports no module,
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
    config, stored_bytes = read(path, max_bytes)
    with _named(path):
        _expect_agent(config, custom_objects)
        return _build(path, custom_objects, stored_bytes)


@contextlib.contextmanager
def _named(path):
    """Adds the file's path to a `ValueError` from the `with` block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded. {error}") from error.__cause__


def read(path: str, max_bytes: int = MAX_BYTES) -> tuple[dict, int]:
    """Returns a `.keras` file's current configuration and its weights' size in bytes.

    It needs no TensorFlow, and raises the errors of `load` if Keras cannot have written
    the file.
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
            config, stored_bytes = _read(path, size, max_bytes)
        except _DAMAGE as error:
            text = f"The file is truncated, damaged or no archive of Keras ({error})."
            raise ValueError(text) from None
        if isinstance(config, dict) and isinstance(own := config.get("config"), dict):
            config["config"] = version.current("Reinforce", "The agent", own)
        return config, stored_bytes


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
    limit = _MAX_CONFIG_BYTES * max(1, max_bytes // MAX_BYTES)
    if len(text) > limit:
        raise ValueError(f"{_CONFIG} is too large; a larger `max_bytes` raises it.")
    arrays = []
    with h5py.File(io.BytesIO(weights)) as file:
        file.visititems(lambda name, part: arrays.append(getattr(part, "nbytes", 0)))
    if sum(arrays) > len(weights):
        raise zipfile.BadZipFile("its weights declare more numbers than it contains")
    try:
        return json.loads(text), sum(arrays)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{_CONFIG} is not valid JSON ({error}).") from None


def _expect_agent(config, custom_objects):
    """Raises `ValueError` unless a config describes an agent of known classes."""
    with startup.quiet_first_import():
        import keras

        from tf_reinforce import agent

    def registered(part):
        name = part.get("registered_name") or part["class_name"]
        name = part.get("config") if name == "function" else name
        known = isinstance(name, str)
        return keras.saving.get_registered_object(name, custom_objects) if known else None

    level = [config]
    for _ in range(_MAX_DEPTH):
        for part in (x for x in level if isinstance(x, dict) and "class_name" in x):
            module = str(part.get("module"))
            is_known = module in _MODULES or module.startswith(_OPERATIONS)
            if not is_known and not _is_value(part) and registered(part) is None:
                name = str(part.get("registered_name") or part["class_name"])[:100]
                where = f"{part.get('module') or ''}.{name}".strip(".")[:200]
                raise ValueError(
                    f"It needs {where!r}, which is no part of Keras or tf_reinforce; "
                    "nothing was imported or run. For a class of your own, pass "
                    f"tfr.load(path, custom_objects={{{name!r}: …}})."
                )
        level = [
            child
            for part in level
            if isinstance(part, (dict, list))
            for child in (part.values() if isinstance(part, dict) else part)
        ]
    if level:
        raise ValueError(f"{_CONFIG} has more than {_MAX_DEPTH} levels.")
    is_object = isinstance(config, dict) and "class_name" in config
    kind = registered(config) if is_object else None
    is_agent = isinstance(kind, type) and issubclass(kind, agent.Reinforce)
    if not is_agent or not isinstance(config.get("config"), dict):
        raise ValueError(
            "The file contains no agent. Load other models with keras.saving.load_model."
        )


def _is_value(part):
    """Returns whether a part of a configuration is a number, a slice or alike."""
    config = part["config"] if isinstance(part.get("config"), dict) else {}
    # An array of strings or of structures would be of any size.
    dtype = str(config.get("dtype", "bool"))
    kinds = "keras_tensor", "numpy", "tensor", "bytes", "ellipsis", "slice"
    is_value = part["class_name"] in [f"__{kind}__" for kind in kinds]
    return is_value and re.fullmatch(r"bool|b?float\d+|u?int\d+", dtype)


def _build(path, custom_objects, stored_bytes):
    """Builds the agent from a file whose configuration has been checked."""
    import keras
    import tensorflow as tf

    remaining = 2 * stored_bytes + _SPARE_BYTES

    def create(next_creator, **kwargs):
        nonlocal remaining
        value = kwargs["initial_value"]
        # Keras passes a function that returns the initial value of a `keras.Variable`.
        closure = inspect.getclosurevars(value).nonlocals if callable(value) else {}
        owner = closure.get("self", value)
        if hasattr(owner, "shape"):
            dtype = tf.as_dtype(keras.backend.standardize_dtype(owner.dtype))
            remaining -= math.prod(owner.shape) * dtype.size
        if remaining < 0:
            raise ValueError("Its layers need more weights than it contains.")
        return next_creator(**kwargs)

    try:
        with (
            tf.variable_creator_scope(create),
            warnings.catch_warnings(record=True) as caught,
        ):
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
        text = " ".join(str(cause).split())
        text = re.split("If you trust|Make sure|Full object|config=", text)[0][:300]
        raise ValueError(
            f"The agent cannot be built ({type(cause).__name__}: {text}). Load it "
            "with the versions that saved it. A class of your own needs a `get_config`."
        ) from error
    if remaining < 0:  # Keras may have ignored the error
        raise ValueError("Its layers need more weights than it contains.")
    return agent
