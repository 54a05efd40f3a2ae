"""Saves and restores the states of Keras callbacks, and the lengths of their logs."""

import logging
import os

import keras
import numpy as np

from tf_reinforce import files

log = logging.getLogger("tf_reinforce")

# The attributes of Keras callbacks that change in training.
_ATTRIBUTES = {
    keras.callbacks.EarlyStopping: (
        "wait",
        "stopped_epoch",
        "best",
        "best_weights",
        "best_epoch",
    ),
    keras.callbacks.ReduceLROnPlateau: ("wait", "best", "cooldown_counter"),
    keras.callbacks.ModelCheckpoint: (
        "best",
        "_batches_seen_since_last_saving",
        "_last_batch_seen",
    ),
    keras.callbacks.SwapEMAWeights: ("_ema_weights_in_model",),
    keras.callbacks.TensorBoard: ("_global_train_batch", "_global_test_batch"),
    keras.callbacks.CSVLogger: ("keys",),
    keras.callbacks.History: ("epoch", "history"),
}


def check_methods(callback):
    """Raises `TypeError` if a callback has only one of `get_state` and `set_state`."""
    names = "get_state", "set_state"
    present = [name for name in names if hasattr(callback, name)]
    if len(present) == 1:
        kind = type(callback).__name__
        raise TypeError(
            "With `resume`, a callback with a state must have the methods `get_state()` "
            f"and `set_state(state)`. Received: the callback {kind}, which only has "
            f"`{present[0]}`. Add the other method to {kind}, or rename the method."
        )


def get_states(callbacks):
    """Returns the states of all callbacks that have a state.

    The state of a callback consists of the attributes in `_ATTRIBUTES`, of the result of
    its method `get_state`, and of the length of its log file. Log files are flushed to
    the disk.

    Returns:
        List of dicts of JSON values and NumPy arrays, one for each callback with a state.
    """
    states = []
    for name, callback in _named(callbacks):
        names = _attribute_names(callback)
        state = {"attributes": {x: _pack(getattr(callback, x, None)) for x in names}}
        if hasattr(callback, "get_state"):
            state["state"] = callback.get_state()
        path = _log_path(callback)
        if path is not None:
            state["log_bytes"] = _flushed_size(path)
        if names or len(state) > 1:
            states.append({"name": name, **state})
    return states


def check_logs(callbacks, states):
    """Raises a `ValueError` if a log file is no regular file, or has lost rows.

    Args:
        callbacks: List of Keras callbacks.
        states: Result of `get_states` at a checkpoint. A training without a checkpoint
            passes an empty list.
    """
    for callback in callbacks:
        path = _log_path(callback)
        if path is not None:
            files.expect_no_link(path)
            if os.path.exists(path):
                files.expect_regular_file(path)
    for callback, state in _matches(callbacks, states):
        path, expected = _log_path(callback), state.get("log_bytes") or 0
        size = os.path.getsize(path) if path and os.path.isfile(path) else 0
        if path is not None and size < expected:
            raise ValueError(
                f"The log file {path} has lost rows: it has {size} bytes. Expected: "
                f"at least {expected} bytes, as at the checkpoint. Restore the file, "
                "or train in a new folder."
            )


def is_valid(states):
    """Returns whether states that were read from a file have the form of `get_states`."""
    return isinstance(states, list) and all(
        isinstance(state, dict)
        and isinstance(state.get("name"), str)
        and isinstance(state.get("attributes"), dict)
        and _is_length(state.get("log_bytes"))
        and all(
            check(state["attributes"][name])
            for name, check in _ATTRIBUTE_CHECKS.items()
            if name in state["attributes"]
        )
        for state in states
    )


def _is_length(value):
    return value is None or (type(value) is int and value >= 0)


def _is_list_of(kind, value):
    return isinstance(value, list) and all(type(x) is kind for x in value)


# The logs of a training would fail with values of other types.
_ATTRIBUTE_CHECKS = {
    "keys": lambda keys: keys is None or _is_list_of(str, keys),
    "epoch": lambda epochs: _is_list_of(int, epochs),
    "history": lambda history: (
        isinstance(history, dict)
        and all(isinstance(_unpack(x), list) for x in history.values())
    ),
}


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
        for name in _attribute_names(callback):
            if name in state["attributes"]:
                setattr(callback, name, _unpack(state["attributes"][name]))
        if "state" in state:
            _set_state(callback, state)
    missing = [state["name"] for state in states if state["name"] not in used]
    if missing:
        log.warning(
            "The checkpoint contains states of callbacks that were not passed to `fit`: "
            "%s. Pass the callbacks of the interrupted training.",
            ", ".join(missing),
        )


def _set_state(callback, state):
    try:
        callback.set_state(state["state"])
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise ValueError(
            f"The checkpoint contains an invalid state of the callback {state['name']} "
            f"({type(error).__name__}: {error}). Expected: the result of its method "
            "`get_state`. To train from the start, use another folder."
        ) from error


def _named(callbacks):
    """Yields `(name, callback)`, with names such as `"EarlyStopping 0"`."""
    counts: dict[str, int] = {}
    for callback in callbacks:
        name = type(callback).__name__
        yield f"{name} {counts.get(name, 0)}", callback
        counts[name] = counts.get(name, 0) + 1


def _matches(callbacks, states):
    """Yields `(callback, state)` for each callback with a state in a checkpoint."""
    by_name = {state["name"]: state for state in states}
    for name, callback in _named(callbacks):
        if name in by_name:
            yield callback, by_name[name]


def _attribute_names(callback):
    return [
        name
        for kind, names in _ATTRIBUTES.items()
        if isinstance(callback, kind)
        for name in names
    ]


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


def _pack(value):
    """Returns a value with lists of floats as arrays, which keep them exactly."""
    if isinstance(value, dict):
        return {key: _pack(x) for key, x in value.items()}
    if isinstance(value, list) and value and all(type(x) is float for x in value):
        return {_FLOATS: np.array(value)}
    return value


_FLOATS = "tf_reinforce.floats"


def _unpack(value):
    """Inverts `_pack`."""
    if isinstance(value, dict):
        if value.keys() == {_FLOATS}:
            return value[_FLOATS].tolist()
        return {key: _unpack(x) for key, x in value.items()}
    return value
