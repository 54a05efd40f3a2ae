"""Splits the steps of a batch into minibatches."""

from typing import NamedTuple

import keras
import tensorflow as tf


class Minibatches(NamedTuple):
    """`N` steps in some order, cut into parts whose sizes differ by one at the most.

    Example:

    >>> parts = Minibatches.of(tf.constant([3, 0, 4, 2, 1]), size=3)
    >>> [parts.at(number).numpy().tolist() for number in range(parts.count)]
    [[3, 0], [4, 2, 1]]
    """

    order: tf.Tensor  # [N] int32
    count: tf.Tensor  # scalar int64, how many parts; at least 1

    @classmethod
    def of(cls, order, size):
        """Parts of about so many steps: as many as come nearest; `None`: all in one."""
        steps = tf.size(order, tf.int64)
        size = tf.maximum(steps if size is None else tf.constant(size, tf.int64), 1)
        return cls(order, tf.maximum((steps + size // 2) // size, 1))

    def at(self, number):
        """`[n]` int32, the steps of one part."""
        number = tf.cast(number, tf.int64)
        steps = tf.size(self.order, tf.int64)
        return self.order[
            number * steps // self.count : (number + 1) * steps // self.count
        ]


def repeat(times, body):
    """Calls `body(number)` for the numbers below `times`, one after the other."""

    def again(number):
        body(number)
        return [number + 1]

    zero = tf.constant(0, tf.int64)
    tf.while_loop(lambda number: number < tf.cast(times, tf.int64), again, [zero])


def on_rows(function, inputs):
    """Calls a function from `[N, …]` to `[N, …]`, also where N is zero.

    On no rows TensorFlow's convolutions can return the shape of their input. So the
    function is called on one row of zeros in that case, and its result is dropped.

    Args:
        function: Function from a structure of `[N, …]` tensors to one of `[N, …]`
            tensors. A `None` in what it returns stays.
        inputs: Structure of `[N, …]` tensors. They are not copied unless N is zero.

    Returns:
        What the function returns for the N rows.
    """
    count = tf.shape(keras.tree.flatten(inputs)[0])[0]
    added = tf.cast(tf.equal(count, 0), tf.int32)

    def filled(array):
        return tf.pad(array, [[0, added], *[[0, 0]] * (len(array.shape) - 1)])

    results = function(keras.tree.map_structure(filled, inputs))
    return keras.tree.map_structure(lambda x: x if x is None else x[:count], results)
