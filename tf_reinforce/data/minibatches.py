"""Splits a batch's steps into minibatches."""

from typing import NamedTuple

import keras
import tensorflow as tf

from tf_reinforce.support import compilation


class Minibatches(NamedTuple):
    """A permutation of `N` steps, split into minibatches that differ by at most one step.

    Example:

    >>> batches = Minibatches.split(tf.constant([3, 0, 4, 2, 1]), size=3)
    >>> [batches.minibatch(index).numpy().tolist() for index in range(batches.count)]
    [[3, 0], [4, 2, 1]]
    """

    permutation: tf.Tensor  # [N] int32, a permutation of the N steps
    count: tf.Tensor  # scalar int64, the number of minibatches; at least 1
    num_steps: tf.Tensor  # scalar int64, N; further rows of the permutation are unused

    @classmethod
    def split(cls, permutation, size):
        """Splits a permutation into N / `size` minibatches, rounded to at least 1.

        Args:
            permutation: `[N]` int32 tensor, the indices of the steps in random order.
            size: Positive int, the approximate steps of a minibatch, or `None` for one.
        """
        steps = tf.size(permutation, tf.int64)
        size = tf.maximum(steps if size is None else tf.constant(size, tf.int64), 1)
        return cls(permutation, tf.maximum((steps + size // 2) // size, 1), steps)

    def minibatch(self, index, offsets=None):
        """Returns `[n]` int32, the indices of the steps of one minibatch.

        Args:
            index: Scalar int, the number of the minibatch.
            offsets: `[C]` int64 from `offsets()`, or `None`. With it, the result is
                `[C]`: the n indices, then N for padding. XLA compiles a program for each
                size, so it needs minibatches of few sizes.
        """
        index = tf.cast(index, tf.int64)
        begin = index * self.num_steps // self.count
        end = (index + 1) * self.num_steps // self.count
        if offsets is None:
            return self.permutation[begin:end]
        places = begin + offsets
        indices = tf.gather(self.permutation, tf.minimum(places, self.num_steps - 1))
        return tf.where(places < end, indices, tf.cast(self.num_steps, indices.dtype))

    def offsets(self):
        """Returns `[C]` int64, the numbers from 0 to C - 1, for `minibatch`.

        The number C is at least the size of each minibatch, and it is a multiple of a
        power of two. Minibatches of similar sizes therefore share the same C, so XLA does
        not compile a program for each size. For example, minibatches of 63 to 66 steps
        all have C = 68.
        """
        largest = -(-self.num_steps // self.count)
        unit = compilation.power_of_two(tf.maximum(largest // 24, 1))
        return tf.range(-(-(largest + unit // 2) // unit) * unit)

    def padded(self, rows):
        """Returns equal `Minibatches` whose permutation has `rows` rows, for XLA."""
        padding = [[0, rows - tf.size(self.permutation, rows.dtype)]]
        return self._replace(permutation=tf.pad(self.permutation, padding))


def in_episodes(permutation, steps):
    """Makes a random order of steps into one in which episodes stay together.

    Minibatches for a model that reads whole episodes are cut from it. The episodes stand
    on a circle in random order, and the result goes around it once, from a random step
    on. Every step is therefore in a minibatch with the same probability as in the given
    order, and the gradient of a minibatch remains unbiased.

    Args:
        permutation: `[N]` int32, a random permutation of the N steps, which determines
            the order of the episodes and the first step.
        steps: `records.ValidSteps` of the N steps.

    Returns:
        `[N]` int32, a permutation of the N steps.

    Example:

    >>> from tf_reinforce.data.episodes import valid_steps
    >>> steps = valid_steps([2, 3], 3)  # the episodes have steps 0, 2 and 1, 3, 4
    >>> in_episodes(tf.constant([3, 0, 4, 2, 1]), steps).numpy().tolist()
    [3, 4, 0, 2, 1]
    """
    rows, columns = tf.unstack(steps.indices, axis=1)
    # The place of an episode's first step in the permutation, N for all other steps.
    places = tf.where(rows == 0, tf.argsort(permutation), tf.size(rows))
    places = tf.math.unsorted_segment_min(places, columns, steps.shape[1])
    places = tf.cast(tf.gather(places, columns), tf.int64)
    length = tf.cast(steps.shape[0], tf.int64)
    order = tf.argsort(places * length + tf.cast(rows, tf.int64))
    first = tf.reduce_sum(tf.where(tf.equal(order, permutation[:1])))  # 0 if N is 0
    return tf.roll(order, -first, axis=0)


def call_repeatedly(times, body):
    """Calls `body(index)` for the indices 0 to `times - 1` in order."""

    def step(index):
        body(index)
        return [index + 1]

    zero = tf.constant(0, tf.int64)
    tf.while_loop(lambda index: index < tf.cast(times, tf.int64), step, [zero])


def call_on_rows(function, inputs):
    """Calls a function on a batch of N rows, also if N is zero.

    TensorFlow's convolutions can return a wrong shape for a batch without rows. An empty
    batch is therefore replaced by a row of zeros, and this row is removed from the
    result.

    Args:
        function: Function from a structure of `[N, …]` tensors to another, which may
            contain `None`.
        inputs: Structure of `[N, …]` tensors, not copied unless N is zero.
    """
    count = tf.shape(keras.tree.flatten(inputs)[0])[0]
    results = function(pad_rows(inputs, 0, tf.cast(tf.equal(count, 0), tf.int32)))
    return keras.tree.map_structure(lambda x: x if x is None else x[:count], results)


def pad_rows(arrays, before, after):
    """Adds rows of zeros before and after the rows of nested arrays."""

    def pad(array):
        return tf.pad(array, [[before, after], *[[0, 0]] * (len(array.shape) - 1)])

    return keras.tree.map_structure(pad, arrays)
