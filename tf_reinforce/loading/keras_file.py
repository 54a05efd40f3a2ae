"""Loads an agent from a `.keras` file."""

import inspect
import math
import os
import re
import warnings
from collections.abc import Mapping
from typing import Any

import keras
import tensorflow as tf

from tf_reinforce import agent as agents
from tf_reinforce import validation
from tf_reinforce.loading import archive
from tf_reinforce.loading import objects
from tf_reinforce.loading import weights_file

_SPARE_BYTES = 2**20  # for variables that Keras does not save


def load(
    path: str | os.PathLike,
    custom_objects: Mapping[str, Any] | None = None,
    limits: archive.LoadLimits | None = None,
) -> agents.Reinforce:
    """Loads an agent from a file that `agent.save` wrote.

    The function checks the whole file before it builds a layer. The function imports no
    module, opens no other file, and runs no code that the file names.

    Args:
        path: Path of the `.keras` file.
        custom_objects: Dict from names to the custom classes of the policy.
        limits: `tfr.LoadLimits`, which limits the size of the file and the number of
            layers. `limits` defaults to `tfr.LoadLimits()`.

    Returns:
        `Reinforce`, with the state of its optimizers if the saved agent was compiled.

    Raises:
        FileNotFoundError: If the file does not exist.
        TypeError: If `custom_objects` or `limits` has another type.
        ValueError: If the file is damaged, exceeds the limits, or does not contain an
            agent.
    """
    path = validation.path("path", path)
    limits = archive.LoadLimits() if limits is None else limits
    validation.instance("limits", limits, archive.LoadLimits)
    if not isinstance(custom_objects, Mapping | None):
        raise TypeError(
            "`custom_objects` must be a dict from names to the custom classes of the "
            f"policy. Received: custom_objects={custom_objects!r}"
        )
    with archive.name_file(path):
        config, weights = archive.read(path, limits)
        stored_bytes = weights_file.stored_bytes(weights)
        del weights
        objects.check(config, custom_objects, stored_bytes, limits)
        return _build(path, custom_objects, stored_bytes)


def _build(path, custom_objects, stored_bytes):
    """Returns the agent in a file whose content has been checked."""
    # Of the variables, a compiled agent saves all but the states of random layers.
    budget = _Budget(2 * stored_bytes + _SPARE_BYTES)
    try:
        with tf.variable_creator_scope(budget.create), warnings.catch_warnings():
            # Otherwise, Keras would ignore the saved state of an optimizer.
            warnings.filterwarnings("error", "Skipping")
            agent = keras.saving.load_model(path, custom_objects=custom_objects)
        if budget.exceeded:  # Keras may have ignored the error
            raise ValueError("The variables of the model are too large.")
        return agent
    except Exception as error:
        if budget.exceeded:
            raise ValueError(
                "The layers of the agent would have more weights than the file contains, "
                f"which are {stored_bytes:,} bytes. Expected: layers whose weights are "
                "in the file."
            ) from None
        raise ValueError(_explanation(error)) from error


class _Budget:
    """Limits the size of all variables that are created while an agent is built."""

    def __init__(self, max_bytes):
        self._remaining = max_bytes
        self.exceeded = False

    def create(self, next_creator, **kwargs):
        """Creates a TensorFlow variable, as a function of `tf.variable_creator_scope`."""
        value = kwargs["initial_value"]
        # Keras passes a function that returns the initial value of a `keras.Variable`.
        closure = inspect.getclosurevars(value).nonlocals if callable(value) else {}
        owner = closure.get("self")
        if isinstance(owner, keras.Variable):
            value = tf.TensorSpec(owner._shape, owner._dtype)
            if isinstance(closure.get("initializer"), keras.initializers.Orthogonal):
                # The initial values are replaced by the saved weights, and computing
                # orthogonal matrices would take seconds for large layers.
                kwargs["initial_value"] = lambda: tf.zeros(value.shape, value.dtype)
        if hasattr(value, "shape"):
            self._remaining -= math.prod(value.shape) * tf.as_dtype(value.dtype).size
        self.exceeded = self._remaining < 0
        if self.exceeded:
            raise ValueError("The variables of the model are too large.")
        return next_creator(**kwargs)


def _explanation(error):
    """Returns an explanation of an error from Keras' `load_model`, and a remedy."""
    while error.__cause__ or error.__context__:
        error = error.__cause__ or error.__context__
    call = re.match(r"(\S+)\.__init__\(\) (got an unexpected|missing)", str(error))
    own = call and keras.saving.get_registered_object(f"tf_reinforce>{call[1]}")
    if call is None or own or hasattr(keras.layers, call[1]):
        return (
            "The agent could not be built from its configuration "
            f"({type(error).__name__}: {' '.join(str(error).split())[:300]}). Expected: "
            "the configuration that `agent.save` writes with the installed versions."
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
