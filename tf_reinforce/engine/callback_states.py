"""States of Keras callbacks and lengths of their logs, in checkpoints."""

import contextlib
import copy
import hashlib
import inspect
import json
import logging
import os

import keras

from tf_reinforce.engine import checkpoints
from tf_reinforce.support import files

log = logging.getLogger("tf_reinforce")

# The attribute with the values of all others before the first training.
_BEFORE = "_attributes_before_training"
# Attributes of a process or of a call of `fit`, not of a training.
_OF_PROCESS = {*vars(keras.callbacks.Callback()), "_is_tracing", "_profiler_started"}
_OF_PROCESS |= {_BEFORE}
# Keras' callbacks with a monitor set this function, and negate `min_delta`, at the end of
# the first epoch.
_MONITOR = "monitor_op"


class CallbackStates:
    """Saves and restores the callbacks of one training.

    If a callback has the method `get_state`, the result of this method is saved.
    Otherwise, the attributes that training has changed are saved, as far as they are
    data: numbers, texts, arrays, and lists, tuples, sets and dicts of these. Texts and
    paths that were passed to the constructor count as options, and are not restored.

    When a training continues, states are matched with callbacks by class, and within a
    class by order. Call `restore_logs`, `begin` and `set` in this order. The method
    `begin` belongs after `on_train_begin`, which resets callbacks and empties logs.

    Args:
        callbacks: List of Keras callbacks, before `on_train_begin`.
    """

    def __init__(self, callbacks):
        self._callbacks = {}  # from names such as "EarlyStopping 0"
        for callback in callbacks:
            _check_methods(callback)
            kind = type(callback).__name__
            number = sum(type(x).__name__ == kind for x in self._callbacks.values())
            self._callbacks[f"{kind} {number}"] = callback
        # As in a notebook, the same callbacks may have been used before.
        self._used = [x for x in callbacks if _BEFORE in vars(x)]
        for callback in callbacks:
            if _BEFORE not in vars(callback):
                setattr(callback, _BEFORE, copy.deepcopy(_attributes(callback)))
        self._constants = {}  # digests of attributes that `on_train_begin` leaves alone
        self._appending = {}

    def check_logs(self, states):
        """Raises `ValueError` if a log file is no regular file, or has lost rows.

        Args:
            states: Result of `get` at a checkpoint, or an empty list without one.
        """
        sizes = {state["name"]: state.get("log_bytes") or 0 for state in states}
        for name, callback in self._callbacks.items():
            path = _log_path(callback)
            if path is None:
                continue
            files.expect_no_link(path)
            size = 0
            if os.path.exists(path):
                files.expect_regular_file(path)
                size = os.path.getsize(path)
            if size < sizes.get(name, 0):
                raise ValueError(
                    f"The log file {path} has lost rows: it has {size} bytes, and had "
                    f"{sizes[name]} at the checkpoint. Restore the file, or train in a "
                    "new folder."
                )

    def restore_logs(self, states):
        """Removes log rows after a checkpoint, and lets callbacks append further ones.

        If an earlier call of `fit` has changed the same callbacks, its changes are
        undone.
        """
        for callback in self._used:
            for name, (value, _) in copy.deepcopy(vars(callback)[_BEFORE]).items():
                if name != _MONITOR and not _is_parameter(callback, name):
                    _set_attribute(callback, name, value)
        for state in states:
            callback = self._callbacks.get(state["name"])
            if callback is not None and state.get("log_bytes") is not None:
                os.truncate(_log_path(callback), state["log_bytes"])
                self._appending[state["name"]] = callback.append
                callback.append = True

    def begin(self):
        """Marks the end of `on_train_begin`, which may have changed attributes."""
        for name, append in self._appending.items():
            self._callbacks[name].append = append
        for name, callback in self._callbacks.items():
            before, now = vars(callback)[_BEFORE], _attributes(callback)
            for key in before.keys() & now.keys():
                if before[key][1] == now[key][1]:
                    self._constants[name, key] = now[key][1]

    def set(self, states):
        """Restores the states, and warns of those without a callback."""
        missing = [x["name"] for x in states if x["name"] not in self._callbacks]
        if missing:
            log.warning(
                "The checkpoint contains states of callbacks that were not passed to "
                "`fit`: %s. Pass the callbacks of the interrupted training.",
                ", ".join(missing),
            )
        for state in states:
            if state["name"] in self._callbacks:
                _set_state(self._callbacks[state["name"]], state)

    def get(self):
        """Returns the states of all callbacks that have one, after flushing log files.

        Returns:
            List of dicts of JSON values and NumPy arrays. They include the lengths of log
            files.
        """
        states = []
        for name, callback in self._callbacks.items():
            if isinstance(callback, keras.callbacks.ProgbarLogger):
                continue  # whether there is one depends on `verbose`
            changed = {
                key: value
                for key, (value, digest) in _attributes(callback).items()
                if self._constants.get((name, key)) != digest
            }
            state = {"attributes": changed}
            if hasattr(callback, "get_state"):
                state["state"] = callback.get_state()
            path = _log_path(callback)
            if path is not None:
                state["log_bytes"] = _flushed_size(path)
            if path is not None or any(state.values()):
                states.append({"name": name, **state})
        return states


def _check_methods(callback):
    """Raises an error if a callback cannot be resumed."""
    if isinstance(callback, keras.callbacks.BackupAndRestore):
        raise ValueError(
            "`resume` and the callback BackupAndRestore both restore a training. Remove "
            "the callback."
        )
    present = [x for x in ("get_state", "set_state") if hasattr(callback, x)]
    if len(present) == 1:
        raise TypeError(
            "With `resume`, a callback with a state needs `get_state()` and "
            f"`set_state(state)`. Received: the callback {type(callback).__name__}, "
            f"which only has `{present[0]}`."
        )


def _attributes(callback):
    """Returns the attributes that may be a state, as a dict of `(value, digest)`."""
    result, has_state = {}, hasattr(callback, "get_state")
    for name, value in vars(callback).items():
        if has_state or name in _OF_PROCESS or _is_option(callback, name):
            continue
        if name == _MONITOR:
            value = value is not None  # a function
        with contextlib.suppress(TypeError, RecursionError):  # an object that is no data
            result[name] = value, _digest(value)
    return result


def _digest(value):
    """Returns a SHA-256 digest; raises `TypeError` if a value is no data."""
    arrays = []
    digest = hashlib.sha256(json.dumps(checkpoints.encode(value, arrays)).encode())
    for array in arrays:
        digest.update(repr((array.dtype.name, array.shape)).encode() + array.tobytes())
    return digest.hexdigest()


def _is_option(callback, name):
    """Returns whether an attribute is a text or path that the constructor received.

    Such attributes must not be restored, because a stranger's checkpoint could otherwise
    make a callback write to another file.
    """
    is_text = isinstance(getattr(callback, name, None), (str, os.PathLike))
    return is_text and _is_parameter(callback, name)


def _is_parameter(callback, name):
    """Returns whether an attribute is named like an argument of the constructor."""
    constructors = (vars(kind).get("__init__") for kind in type(callback).__mro__[:-1])
    parameters = (inspect.signature(x).parameters for x in constructors if x is not None)
    return any(name.lstrip("_") in names for names in parameters)


def _set_state(callback, state):
    try:
        if state["attributes"].get(_MONITOR):
            callback._set_monitor_op()
        for name, value in state["attributes"].items():
            fixed = name == _MONITOR or name in _OF_PROCESS
            if not fixed and not _is_option(callback, name):
                _set_attribute(callback, name, value)
        if "state" in state:
            callback.set_state(state["state"])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"The checkpoint contains an invalid state of the callback {state['name']} "
            f"({type(error).__name__}: {error}). To train from the start, use another "
            "folder."
        ) from error


def _set_attribute(callback, name, value):
    """Sets an attribute; a dict or a Keras variable remains the same object."""
    current = getattr(callback, name, None)
    if isinstance(current, keras.Variable):
        current.assign(value)
    elif isinstance(current, dict):
        _fill(current, value)
    else:
        setattr(callback, name, value)


def _fill(current, value):
    """Gives a dict the content of another; the dicts in it remain the same objects."""
    kept = dict(current)
    current.clear()
    for key, new in value.items():
        both = isinstance(new, dict) and isinstance(kept.get(key), dict)
        current[key] = _fill(kept[key], new) if both else new
    return current


def _log_path(callback):
    """Returns the log file that a callback appends rows to, or `None`."""
    has_log = hasattr(callback, "append") and hasattr(callback, "filename")
    return callback.filename if has_log else None


def _flushed_size(path):
    """Flushes a file to the disk, and returns its size in bytes."""
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size
