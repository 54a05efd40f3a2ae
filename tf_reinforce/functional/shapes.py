"""Checks the shapes of arrays, and that no entry of an array is masked."""

import numpy as np
import tensorflow as tf


def expect(arrays):
    """Raises an error if two arrays whose axes have the same letters differ in shape.

    Sizes that are unknown while a graph is traced are compared when the graph runs. The
    function `expect` does not call `tf.debugging.assert_shapes`, whose checks made up a
    quarter of all operations in the graph of an update.

    Args:
        arrays: List of pairs of an array and a string with one letter for each axis of
            the array. For a scalar, pass `()` in place of the string, and for any rank
            `None`.

    Raises:
        ValueError: If the number of axes of an array differs from its number of letters,
            or if two arrays with equal letters differ in shape.
        InvalidArgumentError: If two arrays with equal letters differ in a size that is
            known only when a graph runs.

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
        shapes = [_static_shape(array) for array in group]
        compatible = [shapes[0].is_compatible_with(shape) for shape in shapes]
        rank = shapes[0].rank if axes is None else len(axes)
        letters = ", ".join("…" if axes is None else axes)
        message = f"Arrays [{letters}] must have the same shape of rank {rank}"
        if not all(compatible) or any(shape.rank != rank for shape in shapes):
            raise ValueError(f"{message}. Received: {', '.join(map(str, shapes))}")
        if len(group) > 1 and not all(shape.is_fully_defined() for shape in shapes):
            sizes = tf.stack([tf.shape(array) for array in group])
            tf.debugging.Assert(tf.reduce_all(sizes == sizes[:1]), [message, sizes])


def _static_shape(array):
    return tf.TensorShape(array.shape if hasattr(array, "shape") else np.shape(array))


def unmasked(name, values):
    """Returns values as a NumPy array; raises `ValueError` if an entry is masked."""
    if np.ma.is_masked(values):
        raise ValueError(
            f"`{name}` must have no masked entries, because the numbers below a mask are "
            f"arbitrary. Received: {np.ma.count_masked(values)} masked entries. Remove "
            "them, or replace them with `.filled(…)`."
        )
    return np.asarray(values)
