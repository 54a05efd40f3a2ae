"""Tests that the minibatches of compiled and of other updates have the same steps."""

import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.data import minibatches


@pytest.mark.parametrize("steps, size", [(20, 6), (7, 2), (3, 9), (130, 65), (259, 64)])
def test_compiled_minibatches_are_the_others_with_padding(steps, size):
    """Together they are the permutation; N stands for padding."""
    permutation = np.random.default_rng(steps).permutation(steps).astype("int32")
    parts = minibatches.Minibatches.split(tf.constant(permutation), size)
    offsets = parts.offsets()
    plain = [parts.minibatch(i).numpy() for i in range(int(parts.count))]
    np.testing.assert_array_equal(np.concatenate(plain), permutation)
    for i, rows in enumerate(plain):
        padded = parts.minibatch(i, offsets).numpy()
        padding = np.full(len(offsets) - len(rows), steps)
        np.testing.assert_array_equal(padded, np.concatenate([rows, padding]))
