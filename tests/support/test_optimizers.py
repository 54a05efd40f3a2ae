"""Tests sums of gradients over replicas."""

import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.support import optimizers


@pytest.mark.parametrize("weight, expected", [(0.0, [0.0, 0.0]), (0.5, [np.nan, 1.0])])
def test_replica_without_weight_adds_zero_even_to_nan(weight, expected):
    """A replica without episodes may compute 0 / 0."""
    strategy = tf.distribute.MirroredStrategy(["/cpu:0"])

    def results(replica, count):
        assert count == 1
        tensors = [tf.constant([np.nan, 2.0], x) for x in ("float32", "float64")]
        return tf.constant(weight, tf.float64), [*tensors, tf.cast(replica, "float32")]

    *sums, number = optimizers.sum_over_replicas(strategy, results)
    for total, dtype in zip(sums, ("float32", "float64"), strict=True):
        assert total.dtype == dtype and number == 0
        np.testing.assert_array_equal(total, expected)
