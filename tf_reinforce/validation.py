"""Validates arguments; an error says what was expected and received."""

import functools
import inspect
import math
import numbers

import keras
import numpy as np


def positive_int(name, value):
    """`value` as an int of at least 1, or an error that names the argument.

    Example:

    >>> positive_int("epochs", 3)
    3
    """
    whole = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not whole or value < 1:
        raise ValueError(
            f"`{name}` must be a whole number of at least 1. Received: {name}={value!r}"
        )
    return int(value)


def positive_int_or_none(name, value):
    """`value` as an int of at least 1, or `None` for everything at once, or an error."""
    return None if value is None else positive_int(name, value)


def boolean(name, value):
    """`value` as True or False, or an error: the text "false" is neither."""
    if not isinstance(value, (bool, np.bool_)):
        raise ValueError(f"`{name}` must be True or False. Received: {name}={value!r}")
    return bool(value)


def positive_ints(name, values):
    """`values` as a list of ints of at least 1, or an error."""
    if not isinstance(values, (list, tuple)):
        raise ValueError(
            f"`{name}` must be a list of whole numbers. Received: {name}={values!r}"
        )
    return [positive_int(name, value) for value in values]


def within(name, value, low, high):
    """`value` as a finite float in [low, high], or an error."""
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    real = number and math.isfinite(value)
    if not real or not low <= value <= high:
        raise ValueError(
            f"`{name}` must be a finite number in [{low}, {high}]. "
            f"Received: {name}={value!r}"
        )
    return float(value)


def one_of(name, value, allowed):
    """`value`, or an error that lists what is allowed."""
    if value not in allowed:
        raise ValueError(f"`{name}` must be one of {allowed}. Received: {name}={value!r}")
    return value


def instance(name, value, kind):
    """`value`, or an error that names the class it must be of."""
    if not isinstance(value, kind):
        raise TypeError(
            f"`{name}` must be a {kind.__module__.split('.')[0]}.{kind.__name__}. "
            f"Received: {name}={value!r} of type {type(value).__name__}"
        )
    return value


def expect_changeable(part, name, value):
    """Refuses a new value for an argument of a Keras layer that is built.

    Traced programs hold such an argument as a constant: some of them would follow the
    change, others would not. Weights, `trainable` and an optimizer may change.

    Args:
        part: Keras layer, a part of an agent.
        name: The attribute to be set.
        value: What to set it to, for the message.

    Raises:
        AttributeError: when the layer is built and its constructor has such an argument.
    """
    if getattr(part, "built", False) and name in _fixed(type(part)):
        kind = type(part).__name__
        raise AttributeError(
            f"`{name}` of a {kind} is fixed once the {kind} is built: traced programs "
            f"hold it as a constant. Received: {name}={value!r}. Make another {kind} and "
            "another agent with it; `other.set_weights(agent.get_weights())` copies "
            "what was learned."
        )


@functools.cache
def _fixed(kind):
    """The names of the arguments of a layer's constructor and of those above it."""
    ours = kind.__mro__[: kind.__mro__.index(keras.layers.Layer)]
    names = {
        name
        for each in ours
        if "__init__" in vars(each)
        for name in inspect.signature(each.__init__).parameters
    }
    return frozenset(names - {"self", "args", "kwargs", "name", "optimizer"})
