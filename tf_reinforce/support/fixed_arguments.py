"""Prevents changes of the arguments of built Keras layers."""

import functools
import inspect

import keras


def expect_changeable(part, name, value):
    """Raises an error if an argument of a built Keras layer would be changed.

    Traced programs contain arguments of layers as constants. Programs traced before a
    change of an argument would use the old value, and programs traced later the new
    value. The weights, `trainable` and `optimizer` of a built layer may change.

    Args:
        part: Keras layer of an agent whose argument would be changed.
        name: String, the name of the attribute that would be set.
        value: The new value of the attribute, for the error message.

    Raises:
        AttributeError: If `part` is built, and `name` is an argument of the constructor
            of its class or of a base class.
    """
    if getattr(part, "built", False) and name in _fixed_arguments(type(part)):
        kind = type(part).__name__
        raise AttributeError(
            f"`{name}` of a {kind} is fixed once the {kind} is built. Received: "
            f"{name}={value!r}. Make another agent with another {kind}, and copy the "
            "weights with `other.set_weights(agent.get_weights())`."
        )


@functools.cache
def _fixed_arguments(layer_class):
    """Returns the argument names of the constructors of a layer class and its bases."""
    bases = layer_class.__mro__[: layer_class.__mro__.index(keras.layers.Layer)]
    names = {
        name
        for base in bases
        if "__init__" in vars(base)
        for name in inspect.signature(base.__init__).parameters
    }
    return frozenset(names - {"self", "args", "kwargs", "name", "optimizer"})
