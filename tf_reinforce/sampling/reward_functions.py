"""Reward functions of inputs and outputs, and checks of what they return."""

import keras
import numpy as np
import tensorflow as tf
from tensorflow.types import experimental

from tf_reinforce.functional import shapes
from tf_reinforce.support import validation


class RewardFunction:
    """Calls a user's function for the rewards of a batch, and checks what it returns.

    A `tf.function` becomes part of the training step. Any other callable receives NumPy
    arrays.

    Attributes:
        function: The callable, `function(inputs, outputs)` or `function(inputs, outputs,
            targets)`.
        is_compiled: Bool, whether it is a `tf.function`.
        error: The exception of the last failed call, or `None`. TensorFlow replaces it by
            one of its own.
    """

    def __init__(self, function):
        if not callable(function):
            raise TypeError(
                "`reward` must be a function `reward(inputs, outputs)`. Received: "
                f"reward={function!r}"
            )
        self.function = function
        self.is_compiled = isinstance(function, experimental.PolymorphicFunction)
        self.error = None
        self._requirement = (
            f"The reward function {name_of(function)!r} must return one number for each "
            "row of its arguments, in an array of shape (rows,)."
        )

    def __call__(self, inputs, outputs, targets):
        """Returns the rewards of R rows, `[R]` float64, without gradients.

        Args:
            inputs, outputs: Tensors `[R, …]` or nested tensors.
            targets: Tensors `[R, …]`, nested tensors, or `None` for no targets.
        """
        arguments = [inputs, outputs] if targets is None else [inputs, outputs, targets]
        if not self.is_compiled:
            return tf.stop_gradient(self._python_rewards(arguments))
        rewards = tf.stop_gradient(tf.cast(self.function(*arguments), tf.float64))
        if rewards.shape.rank != 1:
            raise ValueError(f"{self._requirement} Received: shape {rewards.shape}")
        # The reshape fails if there is not one reward for each row.
        return tf.reshape(rewards, tf.shape(keras.tree.flatten(outputs)[0])[:1])

    def _python_rewards(self, arguments):
        def call(*arrays):
            arrays = [array.copy() for array in arrays]  # the function may change them
            try:
                rows = len(arrays[0])
                rewards = self.function(*keras.tree.pack_sequence_as(arguments, arrays))
                rewards = shapes.unmasked("rewards", rewards)
                if rewards.shape != (rows,) or rewards.dtype.kind not in "biuf":
                    received = f"shape {rewards.shape} of type {rewards.dtype}"
                    raise ValueError(
                        f"{self._requirement} Received: {received} for {rows} rows"
                    )
                return rewards.astype(np.float64)
            except Exception as error:
                self.error = error
                raise

        rewards = tf.numpy_function(call, keras.tree.flatten(arguments), tf.float64)
        rewards.set_shape([None])
        return rewards


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
        f"The function {name!r} of the saved model is not known, so the model can "
        "predict, but not train. Register it with keras.saving before loading, or pass "
        f"custom_objects={{{name!r}: function}} to `load_model`."
    )
    validation.warn(message)

    def unknown(*args, **columns):
        raise ValueError(message)

    unknown.__name__ = name
    return unknown
