"""Training steps that change no weight if a loss, reward or gradient is not finite."""

import functools

import keras
import tensorflow as tf


class CheckedSteps:
    """Prevents updates from values that are not finite, and raises an error instead.

    A step compiled by XLA cannot raise an error, so it writes the reason into a variable,
    which the function from `checked` reads afterwards.

    Args:
        reward: `RewardFunction`, whose errors are raised again, or `None`.
    """

    def __init__(self, reward):
        self._reward = reward
        # The number of the first example whose loss is not finite; -1 if all are finite,
        # and -2 if all losses but not all gradients are finite.
        self._first_invalid = tf.Variable(-1, dtype=tf.int64, trainable=False)

    def run_if_finite(self, update, gradients, states, costs, numbers, inputs):
        """Calls `update` if all costs and gradients are finite; else restores `states`.

        Args:
            update: Function without arguments.
            gradients: List of float tensors.
            states: Result of `states` before the forward pass.
            costs: `[R]` float, the losses of the rows.
            numbers: `[R]` int64, the number of each row's example.
            inputs: `[R, …]` inputs of the rows, or nested arrays. They show which example
                is to blame when a layer that mixes examples makes all costs invalid.
        """
        invalid = ~tf.math.is_finite(costs)
        causes = tf.logical_and(invalid, _not_finite(inputs, invalid))
        causes = tf.where(tf.reduce_any(causes), causes, invalid)
        example = tf.gather(numbers, tf.argmax(causes))
        finite = [tf.reduce_all(tf.math.is_finite(x)) for x in gradients]
        status = tf.where(tf.reduce_all(finite) if finite else True, -1, -2)
        status = tf.where(tf.reduce_any(invalid), example, tf.cast(status, tf.int64))

        def apply():
            update()
            return 0

        def restore():
            for variable, value in states:
                variable.assign(value)
            return 0

        # With several steps in one call, the first invalid step prevents all later steps.
        before = self._first_invalid.read_value()
        status = tf.where(tf.equal(before, -1), status, before)
        self._first_invalid.assign(status)
        tf.cond(tf.equal(status, -1), apply, restore)

    def checked(self, function, example):
        """Returns a training function that raises an error after an invalid step.

        Args:
            function: The training or test function of Keras.
            example: Format string with which the error names an example by its number.
        """
        if hasattr(function, "unchecked"):
            return function

        @functools.wraps(function)
        def run(iterator):
            if self._reward is not None:
                self._reward.error = None
            try:
                result = function(iterator)
            except Exception as error:
                self._first_invalid.assign(-1)
                cause = getattr(self._reward, "error", None)  # TensorFlow replaces it
                raise cause or error from (error if cause else None)
            self._raise_if_invalid(example)
            return result

        run.unchecked = function
        return run

    def _raise_if_invalid(self, example):
        status = int(self._first_invalid.numpy())
        if status == -1:
            return
        self._first_invalid.assign(-1)
        what = "a gradient" if status == -2 else example.format(status)
        raise FloatingPointError(
            "All losses, rewards and gradients of a training step must be finite. "
            f"Received: {what} is NaN or infinite. The step changed no weight."
        )


def states(model):
    """Returns pairs of variables that a forward pass may change, and their values.

    These are moving statistics and the states of random generators.
    """
    return [(v, tf.identity(v)) for v in model.non_trainable_variables]


def _not_finite(inputs, like):
    """Returns `[R]` bool, whether a row of the inputs contains NaN or infinity."""
    result = tf.zeros_like(like)
    for array in keras.tree.flatten(inputs):
        if isinstance(array, (tf.SparseTensor, tf.RaggedTensor)):
            continue
        array = tf.convert_to_tensor(array)
        if array.dtype.is_floating:
            axes = tf.range(1, tf.rank(array))
            result |= tf.reduce_any(~tf.math.is_finite(array), axis=axes)
    return result
