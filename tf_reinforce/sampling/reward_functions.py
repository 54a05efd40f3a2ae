"""Calls reward functions on batches of inputs and outputs, and checks the rewards."""

import keras
import numpy as np
import tensorflow as tf
from tensorflow.types import experimental

from tf_reinforce.functional import shapes
from tf_reinforce.support import user_warnings


class RewardFunction:
    """Returns a reward for each row of a batch.

    A `tf.function` becomes a part of the training step. Any other callable receives NumPy
    arrays.

    Attributes:
        function: The callable `function(inputs, outputs)` or `function(inputs, outputs,
            targets)`.
        is_compiled: Bool, whether the callable is a `tf.function`.
    """

    def __init__(self, function):
        if not callable(function):
            raise TypeError(
                "`reward` must be a function `reward(inputs, outputs)` that returns one "
                f"reward for each row. Received: reward={function!r} of type "
                f"{type(function).__name__}"
            )
        self.function = function
        self.is_compiled = isinstance(function, experimental.PolymorphicFunction)
        name = _name(function)
        self._requirement = (
            f"The reward function {name!r} must return one number for each row of its "
            "arguments, in an array of shape (rows,)."
        )
        self._error = None  # the exception of the last failed call

    def __call__(self, inputs, outputs, targets):
        """Returns the rewards of R rows of inputs, outputs and targets, `[R]` float64.

        Args:
            inputs, outputs: Tensors `[R, …]` or nested tensors.
            targets: Tensors `[R, …]`, nested tensors, or `None` for no targets.
        """
        arguments = [inputs, outputs] if targets is None else [inputs, outputs, targets]
        if self.is_compiled:
            rewards = self._compiled_rewards(arguments)
        else:
            rewards = self._python_rewards(arguments)
        return tf.stop_gradient(rewards)

    def _compiled_rewards(self, arguments):
        rewards = tf.cast(self.function(*arguments), tf.float64)
        if rewards.shape.rank != 1:
            raise ValueError(f"{self._requirement} Received: shape {rewards.shape}")
        counts = [tf.size(rewards), tf.shape(keras.tree.flatten(arguments[1])[0])[0]]
        message = f"{self._requirement} Received: number of rewards and of rows"
        tf.debugging.Assert(tf.equal(*counts), [message, *counts])
        return tf.reshape(rewards, counts[1:])  # XLA drops the assertion

    def _python_rewards(self, arguments):
        def call(*arrays):
            arrays = [array.copy() for array in arrays]  # the function may change them
            try:
                rewards = self.function(*keras.tree.pack_sequence_as(arguments, arrays))
                rewards = self._validate(rewards, len(arrays[0]))
                return rewards.astype(np.float64)
            except Exception as error:
                self._error = error
                raise

        rewards = tf.numpy_function(call, keras.tree.flatten(arguments), tf.float64)
        rewards.set_shape([None])
        return rewards

    def _validate(self, rewards, rows):
        """Returns the rewards as an array `[rows]`, or raises an error."""
        if rewards is None:
            raise TypeError(f"{self._requirement} Received: None")
        rewards = shapes.unmasked("rewards", rewards)
        if rewards.dtype.kind not in "biuf":
            raise TypeError(f"{self._requirement} Received: type {rewards.dtype}")
        if rewards.shape != (rows,):
            raise ValueError(
                f"{self._requirement} Received: shape {rewards.shape} for {rows} rows"
            )
        return rewards

    def forget_error(self):
        """Forgets the exception of an earlier call, before a new step."""
        self._error = None

    def cause(self, error):
        """Returns the error of the reward function that made TensorFlow raise `error`.

        TensorFlow replaces exceptions of Python functions, and adds a stack trace to
        messages. If the reward function is not the cause, the result is `error`.
        """
        cause, self._error = self._error, None
        if cause is not None:
            return cause
        message = str(error).replace("\\'", "'")  # TensorFlow escapes the quotes
        if (
            isinstance(error, tf.errors.InvalidArgumentError)
            and self._requirement in message
        ):
            received = message.partition(self._requirement)[2].partition("\n")[0]
            return ValueError(self._requirement + received)
        return error


def registered_name(function):
    """Returns the name under which Keras knows a reward function."""
    inner = getattr(function, "python_function", function)
    # Keras cannot name an object of another kind, for example a `functools.partial`.
    objects = [x for x in (function, inner) if hasattr(x, "__name__")]
    names = [keras.saving.get_registered_name(x) for x in objects]
    registered = [name for name in names if ">" in str(name)]
    return registered[0] if registered else _name(inner)


def _name(function):
    return getattr(function, "__name__", type(function).__name__)


def find(name):
    """Returns the reward function with a name that `registered_name` has returned.

    If Keras knows no function with the name, the result is `None`, and a warning states
    how to load the function.
    """
    function = keras.saving.get_registered_object(name)
    if function is None:
        user_warnings.warn(
            f"The function {name!r} of the saved model is not known. The model can "
            "predict, but whatever needs the function raises an error, for example "
            "training and evaluation. Decorate the function with "
            "@keras.saving.register_keras_serializable(), or pass "
            f"custom_objects={{{name!r}: function}} to `load_model`."
        )
    return function
