"""Saves and restores the states of Keras callbacks, and the lengths of their logs."""

import collections
import copy
import hashlib
import inspect
import json
import logging
import os
import types
from collections.abc import Mapping

import keras
import numpy as np

from tf_reinforce.support import files

log = logging.getLogger("tf_reinforce")

# The attribute with the values of all others before the first training.
_BEFORE = "_attributes_before_training"
# Attributes that belong to a process or to a call of `fit`, and not to a training.
_OF_PROCESS = {*vars(keras.callbacks.Callback()), "_is_tracing", "_profiler_started"}
_OF_PROCESS |= {_BEFORE}


# Keras' callbacks with a monitor set this function, and negate `min_delta`, at the end of
# the first epoch.
_MONITOR = "monitor_op"


class CallbackStates:
    """The states of the callbacks of one training.

    The state of a callback is the result of its method `get_state`. Without this method,
    it consists of all attributes that the training has changed: numbers, texts, arrays,
    and lists, tuples, sets and dicts of them. Other objects, such as files and functions,
    are no state. Texts and paths that the constructor received are options.

    Args:
        callbacks: List of Keras callbacks, before `on_train_begin`.
    """

    def __init__(self, callbacks):
        self.callbacks = callbacks
        for callback in callbacks:
            _check_methods(callback)
        self._used = [x for x in callbacks if _BEFORE in vars(x)]
        for callback in callbacks:
            if _BEFORE not in vars(callback):
                has_state = hasattr(callback, "get_state")
                before = {} if has_state else copy.deepcopy(dict(_attributes(callback)))
                setattr(callback, _BEFORE, before)
        self._constants = [
            {name: _digest(value) for name, value in vars(callback)[_BEFORE].items()}
            for callback in callbacks
        ]
        self._appending = [(x, x.append) for x in callbacks if _log_path(x) is not None]

    def rewind(self):
        """Undoes the changes of an earlier call, in a notebook, to the same callbacks."""
        for callback in self._used:
            for name, value in copy.deepcopy(vars(callback)[_BEFORE]).items():
                if name != _MONITOR and not _is_parameter(callback, name):
                    _set_attribute(callback, name, _unpack(value))

    def begin(self):
        """Marks the end of `on_train_begin`, which may have changed attributes."""
        for callback, append in self._appending:  # `truncate_logs` has changed it
            callback.append = append
        for constants, callback in zip(self._constants, self.callbacks, strict=True):
            if constants:
                now = {name: _digest(value) for name, value in _attributes(callback)}
                for name in [x for x in constants if now.get(x) != constants[x]]:
                    del constants[name]

    def get(self):
        """Returns the states of all callbacks that have a state.

        Log files are flushed to the disk, and their lengths are a part of the state.

        Returns:
            List of dicts of JSON values and NumPy arrays.
        """
        states = []
        constants = dict(zip(map(id, self.callbacks), self._constants, strict=True))
        for name, callback in _named(self.callbacks):
            state = {"attributes": {}}
            if isinstance(callback, keras.callbacks.ProgbarLogger):
                continue  # whether there is one depends on `verbose`
            if hasattr(callback, "get_state"):
                state["state"] = callback.get_state()
            else:
                state["attributes"] = _changed(callback, constants[id(callback)])
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
            "the callback; `resume` also restores callbacks and log files."
        )
    present = [x for x in ("get_state", "set_state") if hasattr(callback, x)]
    if len(present) == 1:
        raise TypeError(
            "With `resume`, a callback with a state must have the methods `get_state()` "
            "and `set_state(state)`. Received: the callback "
            f"{type(callback).__name__}, which only has `{present[0]}`."
        )


def _attributes(callback):
    """Yields the names and packed values of the attributes that may be a state."""
    for name, value in vars(callback).items():
        if name in _OF_PROCESS or _is_option(callback, name):
            continue
        if name == _MONITOR:
            value = value is not None  # a function
        try:
            yield name, _pack(value)
        except (TypeError, RecursionError):
            continue  # an object that is no data


def _changed(callback, constants):
    """Returns the attributes that differ from their values before the training."""
    return {
        name: value
        for name, value in _attributes(callback)
        if constants.get(name) != _digest(value)
    }


def _digest(packed):
    def of_array(array):
        content = hashlib.sha256(array.tobytes()).hexdigest()
        return [array.dtype.name, array.shape, content]

    return hashlib.sha256(json.dumps(packed, default=of_array).encode()).hexdigest()


def _is_option(callback, name):
    """Returns whether an attribute is a text or path that the constructor received.

    A checkpoint of a stranger could otherwise make a callback write to another file.
    """
    is_text = isinstance(getattr(callback, name, None), (str, os.PathLike))
    return is_text and _is_parameter(callback, name)


def _is_parameter(callback, name):
    """Returns whether an attribute is named like an argument of the constructor."""
    constructors = (vars(kind).get("__init__") for kind in type(callback).__mro__[:-1])
    parameters = (inspect.signature(x).parameters for x in constructors if x is not None)
    return any(name.lstrip("_") in names for names in parameters)


def check_logs(callbacks, states):
    """Raises a `ValueError` if a log file is no regular file, or has lost rows.

    Args:
        callbacks: List of Keras callbacks.
        states: Result of `CallbackStates.get` at a checkpoint. A training without a
            checkpoint passes an empty list.
    """
    expected = {
        id(x): state.get("log_bytes") or 0 for x, state in _matches(callbacks, states)
    }
    for callback in callbacks:
        path = _log_path(callback)
        if path is None:
            continue
        files.expect_no_link(path)
        if os.path.exists(path):
            files.expect_regular_file(path)
        size = os.path.getsize(path) if os.path.isfile(path) else 0
        if size < expected.get(id(callback), 0):
            raise ValueError(
                f"The log file {path} has lost rows: it has {size} bytes, and had "
                f"{expected[id(callback)]} at the checkpoint. Restore the file, or train "
                "in a new folder."
            )


def is_valid(states):
    """Returns whether states from a file have the form of `CallbackStates.get`."""
    return isinstance(states, list) and all(
        isinstance(state, dict)
        and isinstance(state.get("name"), str)
        and isinstance(state.get("attributes"), dict)
        and type(state.get("log_bytes") or 0) is int
        and (state.get("log_bytes") or 0) >= 0
        and (state["name"] != "History 0" or _is_history(**state["attributes"]))
        for state in states
    )


def _is_history(epoch=(), history=types.MappingProxyType({}), **_):
    return isinstance(epoch, (list, tuple)) and isinstance(history, Mapping)


def truncate_logs(callbacks, states):
    """Removes log rows after a checkpoint, and makes the callbacks append further rows.

    The function is called before `on_train_begin`, which would empty a log file.
    """
    for callback, state in _matches(callbacks, states):
        if state.get("log_bytes") is not None:
            callback.append = True
            os.truncate(_log_path(callback), state["log_bytes"])


def set_states(callbacks, states):
    """Restores the states of callbacks; called after `on_train_begin`, which resets them.

    A callback is matched by its class, and by its number among callbacks of this class. A
    state without a callback is named in the log. A callback without a state starts anew.
    """
    used = []
    for callback, state in _matches(callbacks, states):
        used.append(state["name"])
        _set_state(callback, state)
    missing = [state["name"] for state in states if state["name"] not in used]
    if missing:
        log.warning(
            "The checkpoint contains states of callbacks that were not passed to `fit`: "
            "%s. Pass the callbacks of the interrupted training.",
            ", ".join(missing),
        )


def _set_state(callback, state):
    fixed = {*_OF_PROCESS, _MONITOR}
    try:
        if state["attributes"].get(_MONITOR):
            callback._set_monitor_op()
        for name, value in state["attributes"].items():
            if name not in fixed and not _is_option(callback, name):
                _set_attribute(callback, name, _unpack(value))
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
    elif isinstance(current, dict) and isinstance(value, dict):
        _fill(current, value)
    else:
        setattr(callback, name, value)


def _fill(current, value):
    """Gives a dict the content of another one; the dicts in it remain the same."""
    kept = {k: x for k, x in current.items() if isinstance(x, dict)}
    current.clear()
    for key, new in value.items():
        if isinstance(new, dict) and key in kept:
            _fill(kept[key], new)
            new = kept[key]
        current[key] = new


def _named(callbacks):
    """Yields `(name, callback)`, with names such as `"EarlyStopping 0"`."""
    counts = collections.Counter()
    for callback in callbacks:
        name = type(callback).__name__
        yield f"{name} {counts[name]}", callback
        counts[name] += 1


def _matches(callbacks, states):
    """Yields `(callback, state)` for each callback with a state in a checkpoint."""
    by_name = {state["name"]: state for state in states}
    for name, callback in _named(callbacks):
        if name in by_name:
            yield callback, by_name[name]


def _log_path(callback):
    """Returns the path of the log file that a callback appends rows to, or `None`."""
    has_log = hasattr(callback, "append") and hasattr(callback, "filename")
    return callback.filename if has_log else None


def _flushed_size(path):
    """Flushes a file to the disk, and returns its size in bytes."""
    if not os.path.isfile(path):
        return None
    with open(path, "rb") as file:
        os.fsync(file.fileno())
        return os.fstat(file.fileno()).st_size


# In a packed value, the dict {_KIND: name, _VALUE: list or array} stands for an object.
_KIND, _VALUE = "tf_reinforce.kind", "tf_reinforce.value"
_COLLECTIONS = {
    kind.__name__: kind for kind in (tuple, set, frozenset, collections.deque)
}


def _pack(value):
    """Returns a value as dicts with texts as keys, lists, numbers, texts and arrays.

    Raises:
        TypeError: If the value is another object, or contains one.
    """
    if isinstance(value, keras.Variable) or keras.ops.is_tensor(value):
        value = keras.ops.convert_to_numpy(value)
    if isinstance(value, (np.ndarray, np.generic)):
        if value.dtype.kind not in "biuf" and value.dtype.name != "bfloat16":
            raise TypeError(f"an array of {value.dtype} is no data")
        is_array = isinstance(value, np.ndarray)
        return value if is_array else {_KIND: "scalar", _VALUE: np.asarray(value)}
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _pack(x) for key, x in value.items()}
        return {_KIND: "dict", _VALUE: [[_pack(k), _pack(x)] for k, x in value.items()]}
    if isinstance(value, list):
        if value and all(type(x) is float for x in value):  # takes less space
            return {_KIND: "floats", _VALUE: np.array(value)}
        return [_pack(x) for x in value]
    if type(value) is collections.deque and value.maxlen is not None:
        return {_KIND: "bounded deque", _VALUE: [value.maxlen, *map(_pack, value)]}
    kind = type(value).__name__
    if type(value) is _COLLECTIONS.get(kind):
        items = sorted(value) if isinstance(value, (set, frozenset)) else value
        return {_KIND: kind, _VALUE: [_pack(x) for x in items]}
    raise TypeError(f"{kind} is no data")


def _unpack(value):
    """Inverts `_pack`; a variable or tensor becomes an array."""
    if isinstance(value, dict) and value.keys() == {_KIND, _VALUE}:
        kind, content = value[_KIND], value[_VALUE]
        if kind == "floats":
            return content.tolist()
        if kind == "scalar":
            return content[()]
        items = [_unpack(x) for x in content]
        if kind == "dict":
            return {key: x for key, x in items}
        if kind == "bounded deque":
            return collections.deque(items[1:], maxlen=items[0])
        return _COLLECTIONS[kind](items)
    if isinstance(value, dict):
        return {key: _unpack(x) for key, x in value.items()}
    return [_unpack(x) for x in value] if isinstance(value, list) else value
