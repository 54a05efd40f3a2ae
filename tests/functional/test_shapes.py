"""Tests `shapes.expect`, which compares the sizes of equal axes in eager mode and in
graphs.
"""

import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.functional import shapes


@pytest.mark.parametrize("shape", [(3, 1), (1, 3), (4,), (1,), ()])
def test_expect_raises_for_shapes_that_would_broadcast(shape):
    for pair in [((3,), shape), (shape, (3,))]:
        with pytest.raises(ValueError, match="must have the same shape of rank"):
            shapes.expect([(np.ones(x), "N") for x in pair])


def test_unknown_static_sizes_are_compared_when_the_graph_runs():
    @tf.function(input_signature=[tf.TensorSpec((None, None))] * 3)
    def total(a, b, c):
        shapes.expect([(a, "TB"), (b, "TB"), (c, "TB")])
        return tf.reduce_sum(a * b * c)

    assert total(tf.ones([2, 3]), tf.ones([2, 3]), tf.ones([2, 3])) == 6
    for wrong in [(1, 3), (2, 1), (1, 1)]:
        with pytest.raises(
            tf.errors.InvalidArgumentError, match=r"\[T, B\] must have the same shape"
        ):
            total(tf.ones([2, 3]), tf.ones([2, 3]), tf.ones(wrong))


def test_known_static_size_that_differs_raises_while_tracing():
    @tf.function(input_signature=[tf.TensorSpec((None, 3))])
    def double(a):
        shapes.expect([(a, "TB"), (tf.ones([2, 1]), "TB")])

    with pytest.raises(ValueError, match="must have the same shape of rank"):
        double.get_concrete_function()
