"""Checks of what reward functions return, and their names in files."""

import keras

from tf_reinforce.functional import shapes
from tf_reinforce.support import validation


def checked(function, rewards, rows):
    """Returns the rewards from a function as a float64 array, one for each row."""
    rewards = shapes.unmasked("rewards", rewards)
    if rewards.shape != (rows,) or rewards.dtype.kind not in "biuf":
        raise ValueError(
            f"The reward function {name_of(function)!r} must return one number for each "
            f"of {rows} rows. Received: shape {rewards.shape} of type {rewards.dtype}"
        )
    return rewards.astype("float64")


def name_of(function):
    """Returns a function's name, or the class of another callable."""
    return getattr(function, "__name__", type(function).__name__)


def registered_name(function):
    """Returns the name under which Keras knows a reward function."""
    inner = getattr(function, "python_function", function)
    # Keras cannot name an object of another kind, for example a `functools.partial`.
    objects = [x for x in (function, inner) if hasattr(x, "__name__")]
    names = [keras.saving.get_registered_name(x) for x in objects]
    registered = [name for name in names if ">" in str(name)]
    return registered[0] if registered else name_of(inner)


def find(name):
    """Returns the function for a name from `registered_name`.

    If Keras does not know it, a warning says how to register it, and the returned
    function raises an error when called.
    """
    function = keras.saving.get_registered_object(name)
    if function is not None:
        return function
    message = (
        f"The function {name!r} of the saved model is unknown, and needed for training. "
        "Register it with keras.saving, or pass `custom_objects` to `load_model`."
    )
    validation.warn(message)

    def unknown(*args, **columns):
        raise ValueError(message)

    unknown.__name__ = name
    return unknown
