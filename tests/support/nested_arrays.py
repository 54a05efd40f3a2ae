"""Comparison of records of episodes, which consist of nested arrays."""

import keras
import numpy as np


def assert_identical(one, other):
    """Asserts equal structure, dtypes and values of two records, also in the padding."""
    keras.tree.assert_same_structure(one, other)
    for a, b in zip(*map(keras.tree.flatten, (one, other)), strict=True):
        if a is not None:
            assert a.dtype == b.dtype
            np.testing.assert_array_equal(a, b)
