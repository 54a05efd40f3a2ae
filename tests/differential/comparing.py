"""Compares the results of two programs, and raises `Disagreement` if they differ."""

import numpy as np
import tensorflow as tf


class Disagreement(AssertionError):
    """Raised if two programs that should be equal have different results."""


def assert_close(name, actual, expected, tolerance):
    """Raises if two lists of arrays differ by more than the tolerance."""
    for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        ours, theirs = (as_float64(x) for x in (ours, theirs))
        if ours.shape != theirs.shape:
            raise Disagreement(f"{name} {index}: shapes {ours.shape} and {theirs.shape}")
        difference = np.abs(ours - theirs).max(initial=0.0)
        if not difference <= tolerance:
            raise Disagreement(
                f"{name} {index}: difference {difference:.3g}, "
                f"tolerance {tolerance:.3g}; {ours.ravel()[:4]} and {theirs.ravel()[:4]}"
            )


def as_float64(array):
    """Returns a gradient, dense or `IndexedSlices`, as a float64 NumPy array."""
    if isinstance(array, tf.IndexedSlices):
        array = tf.convert_to_tensor(array)
    return np.asarray(array, "float64")


def assert_equal_bits(name, actual, expected):
    """Raises unless two lists of arrays are equal in type, shape and every bit."""
    for index, (ours, theirs) in enumerate(zip(actual, expected, strict=True)):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            raise Disagreement(f"{name} {index}: {ours.dtype} {ours.shape} and "
                               f"{theirs.dtype} {theirs.shape}")  # fmt: skip
        if ours.tobytes() != theirs.tobytes() and not np.array_equal(
            ours, theirs, equal_nan=ours.dtype.kind == "f"
        ):
            raise Disagreement(
                f"{name} {index}: the bits differ; {ours.ravel()[:4]} and "
                f"{theirs.ravel()[:4]}"
            )
