"""Refuses to change arguments that traced programs contain as constants."""

import functools
import inspect

import keras


def expect_changeable(part, name, value):
    """Raises an error if an argument of a built Keras layer would be changed.

    Traced programs contain arguments of layers as constants. If a layer argument changed,
    some programs would use the new value and others the old value. Weights, `trainable`
    and an optimizer may change after the layer is built.

    Args:
        part: Keras layer of an agent whose argument would be changed.
        name: String, the name of the attribute that would be set.
        value: The new value of the attribute, for the error message.

    Raises:
        AttributeError: If `part` is built, and `name` is an argument of its constructor
            or of the constructor of a base class.
    """
    if getattr(part, "built", False) and name in _fixed_arguments(type(part)):
        kind = type(part).__name__
        raise AttributeError(
            f"`{name}` of a {kind} is fixed once the {kind} is built, because traced "
            f"programs contain the value as a constant. Received: {name}={value!r}. "
            f"Create another {kind} and another agent with the new value, and copy the "
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
