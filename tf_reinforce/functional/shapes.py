"""Refuses shapes that would broadcast."""

import numpy as np
import tensorflow as tf


def expect(arrays):
    """Raises unless every array has its axes, and arrays of the same axes one shape.

    In a graph, sizes that are unknown while it is traced are compared when it runs.
    `tf.debugging.assert_shapes` made a quarter of the operations of an update.

    Args:
        arrays: List of pairs: an array, and a string with a letter for each of its
            axes; `()` for a scalar.

    Raises:
        ValueError: when the shapes differ.
        InvalidArgumentError: when they differ only once a graph runs.

    Example:

    >>> expect([(np.ones(3), "N"), (np.zeros(3), "N"), (2.0, ())])
    >>> expect([(np.ones(3), "N"), (np.zeros([3, 1]), "N")])
    Traceback (most recent call last):
        ...
    ValueError: Arrays [N] must have one shape of rank 1. Received: (3,), (3, 1)
    """
    groups = {}
    for array, axes in arrays:
        groups.setdefault(axes, []).append(array)
    for axes, group in groups.items():
        shapes = [_static(array) for array in group]
        alike = [shapes[0].is_compatible_with(shape) for shape in shapes]
        if not all(alike) or any(shape.rank != len(axes) for shape in shapes):
            raise ValueError(
                f"Arrays [{', '.join(axes)}] must have one shape of rank {len(axes)}. "
                f"Received: {', '.join(map(str, shapes))}"
            )
        if len(group) > 1 and not all(shape.is_fully_defined() for shape in shapes):
            sizes = tf.stack([tf.shape(array) for array in group])
            same = tf.reduce_all(sizes == sizes[:1])
            said = f"Arrays [{', '.join(axes)}] must have one shape. Received:"
            tf.debugging.Assert(same, [said, sizes])


def _static(array):
    return tf.TensorShape(array.shape if hasattr(array, "shape") else np.shape(array))
