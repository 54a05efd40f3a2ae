"""Splits the steps of a batch into minibatches."""

from typing import NamedTuple

import keras
import tensorflow as tf


class Minibatches(NamedTuple):
    """A permutation of `N` steps, split into minibatches of nearly equal size.

    The sizes of any two minibatches differ by at most one step.

    Example:

    >>> batches = Minibatches.split(tf.constant([3, 0, 4, 2, 1]), size=3)
    >>> [batches.minibatch(index).numpy().tolist() for index in range(batches.count)]
    [[3, 0], [4, 2, 1]]
    """

    permutation: tf.Tensor  # [N] int32, a permutation of the N steps
    count: tf.Tensor  # scalar int64, the number of minibatches; at least 1

    @classmethod
    def split(cls, permutation, size):
        """Splits a permutation into minibatches of about `size` steps.

        For N steps, the number of minibatches is N / `size`, rounded to an integer of at
        least 1.

        Args:
            permutation: `[N]` int32 tensor, the indices of the steps in random order.
            size: Positive int, the approximate number of steps of a minibatch, or `None`
                for one minibatch of all steps.
        """
        steps = tf.size(permutation, tf.int64)
        size = tf.maximum(steps if size is None else tf.constant(size, tf.int64), 1)
        return cls(permutation, tf.maximum((steps + size // 2) // size, 1))

    def minibatch(self, index):
        """Returns `[n]` int32, the indices of the n steps of one minibatch."""
        index = tf.cast(index, tf.int64)
        steps = tf.size(self.permutation, tf.int64)
        return self.permutation[
            index * steps // self.count : (index + 1) * steps // self.count
        ]


def call_repeatedly(times, body):
    """Calls `body(index)` for the indices 0 to `times - 1`, one after the other."""

    def step(index):
        body(index)
        return [index + 1]

    zero = tf.constant(0, tf.int64)
    tf.while_loop(lambda index: index < tf.cast(times, tf.int64), step, [zero])


def call_on_rows(function, inputs):
    """Calls a function on a batch of N rows, also if N is zero.

    If a batch has no rows, TensorFlow's convolutions can return a tensor of the wrong
    shape. `call_on_rows` therefore replaces an empty batch by one row of zeros, and
    removes this row from the result of the function.

    Args:
        function: Function from a structure of `[N, …]` tensors to a structure of
            `[N, …]` tensors. The result of `function` may contain `None`.
        inputs: Structure of `[N, …]` tensors. The inputs are not copied unless N is zero.

    Returns:
        The result of `function` for the N rows of `inputs`.
    """
    count = tf.shape(keras.tree.flatten(inputs)[0])[0]
    padding = tf.cast(tf.equal(count, 0), tf.int32)

    def pad(array):
        return tf.pad(array, [[0, padding], *[[0, 0]] * (len(array.shape) - 1)])

    results = function(keras.tree.map_structure(pad, inputs))
    return keras.tree.map_structure(lambda x: x if x is None else x[:count], results)
