"""Prevents updates from values that are not finite, and raises errors of such steps."""

import functools

import tensorflow as tf


class CheckedSteps:
    """Runs the update of a training step only if all its values are finite.

    A compiled training step cannot raise an error under XLA. A training step that must
    not update the weights therefore writes the reason into a variable, which
    `checked` reads after the step.

    Args:
        reward: `RewardFunction`, whose errors are raised again, or `None`.
    """

    def __init__(self, reward):
        self._reward = reward
        # The number of the first example whose loss is not finite; -1 if all are finite,
        # and -2 if all losses but not all gradients are finite. The list prevents that
        # Keras saves the variable.
        self._first_invalid = tf.Variable(-1, dtype=tf.int64, trainable=False)

    def run_if_finite(self, update, restore, costs, gradients, samples):
        """Calls `update` if all costs and all gradients are finite, else `restore`.

        Args:
            update: Function without arguments, which makes the update.
            restore: Function without arguments, which undoes changes of the forward pass.
            costs: `[R]` float, the losses of the rows.
            gradients: List of float tensors.
            samples: Int, how many consecutive rows belong to one example.
        """
        invalid = ~tf.math.is_finite(costs)
        example = tf.argmax(invalid) // samples
        finite = [tf.reduce_all(tf.math.is_finite(x)) for x in gradients]
        status = tf.where(tf.reduce_all(finite) if finite else True, -1, -2)
        status = tf.where(tf.reduce_any(invalid), example, tf.cast(status, tf.int64))

        def call(function):
            function()
            return 0

        # With several steps in one call, the first invalid step prevents all later steps.
        before = self._first_invalid.read_value()
        status = tf.where(tf.equal(before, -1), status, before)
        self._first_invalid.assign(status)
        finite = tf.equal(status, -1)
        tf.cond(finite, lambda: call(update), lambda: call(restore))

    def checked(self, function):
        """Returns a training function that raises an error after an invalid step."""
        if hasattr(function, "unchecked"):
            return function

        @functools.wraps(function)
        def run(iterator):
            if self._reward is not None:
                self._reward.forget_error()
            try:
                result = function(iterator)
            except Exception as error:
                self._first_invalid.assign(-1)
                cause = error if self._reward is None else self._reward.cause(error)
                raise cause from (None if cause is error else error)
            self._raise_if_invalid()
            return result

        run.unchecked = function
        return run

    def _raise_if_invalid(self):
        status = int(self._first_invalid.numpy())
        if status == -1:
            return
        self._first_invalid.assign(-1)
        if status == -2:
            what = "a gradient, while all losses are finite"
        else:
            what = f"the loss or reward of example {status} (from 0) of the batch"
        raise FloatingPointError(
            "All losses, rewards and gradients of a training step must be finite. "
            f"Received: {what} is NaN or infinite. The step changed no weight."
        )
