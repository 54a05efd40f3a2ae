"""Warns about layers that cannot be made again from their configuration."""

import inspect

import keras

from tf_reinforce.support import user_warnings

_DEFAULTS = keras.Layer.from_config.__func__, keras.Model.from_config.__func__
_IN_EVERY_CONFIG = {"name", "trainable", "dtype"}


def warn_if_not_loadable(model):
    """Warns about layers in a saved model that a file cannot restore as they are.

    Keras makes a layer from its configuration, which contains `name`, `trainable` and
    `dtype`. A class with a `from_config` of its own is not checked. Of a subclass of
    `keras.Model` without `get_config`, Keras 3.15 stores the default values of the
    arguments, also if other values were passed.

    Args:
        model: Keras model.
    """
    problems = {}
    for layer in model._flatten_layers():
        if getattr(type(layer).from_config, "__func__", None) in _DEFAULTS:
            problems[type(layer)] = _problem(layer)
    for layer_class, problem in problems.items():
        if problem is not None:
            name = layer_class.__name__
            user_warnings.warn(
                f"The class {name} {problem}. Expected: {name}.__init__(self, ..., "
                "**kwargs), which calls super().__init__(**kwargs), and `get_config`, "
                "which returns all other arguments. Correct the class, and save again.",
            )


def _problem(layer):
    """Returns why a layer cannot be made from its configuration, or `None`."""
    signature = inspect.signature(type(layer))
    try:
        signature.bind(**layer.get_config())
    except TypeError as error:
        return f"does not take its own configuration: {error}"
    named = {
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    has_config = not getattr(layer.get_config, "_is_default", False)
    missing = sorted(named - _IN_EVERY_CONFIG)
    if isinstance(layer, keras.Model) and missing and not has_config:
        return f"has no `get_config`, which returns its arguments {', '.join(missing)}"
    return None
