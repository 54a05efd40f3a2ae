"""How two programs are compared, and what is raised when they disagree."""

import numpy as np
import tensorflow as tf


class Disagreement(AssertionError):
    """Two programs that should say the same do not."""


def close(what, found, expected, allowed):
    """Raises when two lists of arrays are further apart than allowed."""
    for place, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        ours, theirs = (plain(x) for x in (ours, theirs))
        if ours.shape != theirs.shape:
            raise Disagreement(f"{what} {place}: shapes {ours.shape} and {theirs.shape}")
        apart = np.abs(ours - theirs).max(initial=0.0)
        if not apart <= allowed:
            raise Disagreement(
                f"{what} {place}: {apart:.3g} apart, {allowed:.3g} allowed; "
                f"{ours.ravel()[:4]} and {theirs.ravel()[:4]}"
            )


def plain(array):
    """As NumPy's float64, whatever TensorFlow made of a gradient."""
    if isinstance(array, tf.IndexedSlices):
        array = tf.convert_to_tensor(array)
    return np.asarray(array, "float64")


def same_bits(what, found, expected):
    """Raises unless two lists of arrays are equal in type and in every bit."""
    for place, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        ours, theirs = np.asarray(ours), np.asarray(theirs)
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            raise Disagreement(f"{what} {place}: {ours.dtype} {ours.shape} and "
                               f"{theirs.dtype} {theirs.shape}")  # fmt: skip
        if ours.tobytes() != theirs.tobytes() and not np.array_equal(
            ours, theirs, equal_nan=ours.dtype.kind == "f"
        ):
            raise Disagreement(
                f"{what} {place}: not to the bit; {ours.ravel()[:4]} and "
                f"{theirs.ravel()[:4]}"
            )
