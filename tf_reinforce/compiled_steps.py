"""Prepares the gradient steps of an update for XLA.

XLA compiles a program for each combination of shapes. The number of steps N of a batch is
different in each update, so arrays of N steps are padded to a power of two.
"""

import tensorflow as tf


def compiled(function):
    """Returns a function of tensors that XLA compiles when it is called."""
    return tf.function(function, jit_compile=True, autograph=False)


def has_losses_of_inputs(model):
    """Returns whether the last call of a model has added losses that are no regularizers.

    Such losses, from `add_loss` or an `activity_regularizer`, can depend on the inputs of
    the call. Padding would change them. The regularizers of weights do not depend on the
    inputs.
    """
    regularized = [v for v in model.trainable_variables if v.regularizer is not None]
    return len(model.losses) > len(regularized)


def padded_rows(count):
    """Returns the smallest power of two above `count`, as a scalar int32.

    The array of `padded_rows(N)` rows has at least one row of padding, whose index is N.
    """
    return tf.cast(power_of_two(tf.cast(count, tf.int64)), tf.int32)


def power_of_two(count):
    """Returns the smallest power of two above a scalar int64 of at least 0."""
    powers = tf.constant([2**exponent for exponent in range(62)], tf.int64)
    return tf.reduce_min(tf.where(powers > count, powers, powers[-1]))


def count_steps(array, is_padding):
    """Returns the number of steps, without padding, in an array `[N]`, as an int32.

    Args:
        array: `[N]` tensor.
        is_padding: `[N]` bool, or `None` if no step is padding.
    """
    if is_padding is None:
        return tf.size(array)
    return tf.math.count_nonzero(~is_padding, dtype=tf.int32)
