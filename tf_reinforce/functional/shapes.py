"""Checks of shapes, masked entries and numbers that are not finite."""

import numpy as np
import tensorflow as tf


def expect(arrays):
    """Raises an error if two arrays with the same axes differ in shape.

    Sizes that are unknown while a graph is traced are compared when the graph runs. The
    function `tf.debugging.assert_shapes` does the same, but adds more operations to the
    graph.

    Args:
        arrays: List of pairs: an array, and a string with a letter for each axis. Use
            `()` for a scalar, and `None` for any rank.

    Raises:
        ValueError: If an array has another number of axes than letters, or two arrays
            with equal letters differ in shape.
        InvalidArgumentError: If they differ in a size that is known only when a graph
            runs.

    Example:

    >>> expect([(np.ones(3), "N"), (np.zeros(3), "N"), (2.0, ())])
    >>> expect([(np.ones(3), "N"), (np.zeros([3, 1]), "N")])
    Traceback (most recent call last):
        ...
    ValueError: Arrays [N] must have the same shape of rank 1. Received: (3,), (3, 1)
    """
    groups = {}
    for array, axes in arrays:
        groups.setdefault(axes, []).append(array)
    for axes, group in groups.items():
        shapes = [tf.TensorShape(np.shape(array)) for array in group]
        compatible = [shapes[0].is_compatible_with(shape) for shape in shapes]
        rank = shapes[0].rank if axes is None else len(axes)
        letters = ", ".join("…" if axes is None else axes)
        message = f"Arrays [{letters}] must have the same shape of rank {rank}"
        if not all(compatible) or any(shape.rank != rank for shape in shapes):
            raise ValueError(f"{message}. Received: {', '.join(map(str, shapes))}")
        if len(group) > 1 and not all(shape.is_fully_defined() for shape in shapes):
            sizes = tf.stack([tf.shape(array) for array in group])
            tf.debugging.Assert(tf.reduce_all(sizes == sizes[:1]), [message, sizes])


def unmasked(name, values):
    """Returns values as a NumPy array; raises if they are ragged or masked."""
    if np.ma.is_masked(values):
        raise ValueError(
            f"`{name}` must have no masked entries, because the numbers below a mask are "
            f"arbitrary. Received: {np.ma.count_masked(values)} masked entries. Remove "
            "them, or replace them with `.filled(…)`."
        )
    try:
        return np.asarray(values)
    except ValueError as error:
        text = f"`{name}` must be an array. Received: {repr(values)[:200]} ({error})"
        raise ValueError(text) from None


def all_finite(tensors):
    """Returns whether all numbers of a list of tensors are finite, a scalar bool."""
    finite = [tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors]
    return tf.reduce_all(finite) if finite else tf.constant(True)
