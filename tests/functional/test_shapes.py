"""Arrays with the same axes have the same shape, in eager mode and in a graph."""

import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.functional import shapes


@pytest.mark.parametrize("shape", [(3, 1), (1, 3), (4,), (1,), ()])
def test_shapes_that_would_broadcast_are_refused(shape):
    for pair in [((3,), shape), (shape, (3,))]:
        with pytest.raises(ValueError, match="must have the same shape of rank"):
            shapes.expect([(np.ones(x), "N") for x in pair])


def test_a_scalar_has_no_axis():
    shapes.expect([(2.0, ()), (np.float32(1), ()), (tf.ones([]), ())])
    with pytest.raises(ValueError, match=r"rank 0. Received: \(1,\)"):
        shapes.expect([(tf.ones([1]), ())])


def test_sizes_that_are_unknown_while_a_graph_is_traced_are_compared_when_it_runs():
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


def test_a_size_that_is_known_refuses_another_while_a_graph_is_traced():
    @tf.function(input_signature=[tf.TensorSpec((None, 3))])
    def double(a):
        shapes.expect([(a, "TB"), (tf.ones([2, 1]), "TB")])

    with pytest.raises(ValueError, match="must have the same shape of rank"):
        double.get_concrete_function()


def test_sizes_that_are_known_cost_no_operation():
    @tf.function(input_signature=[tf.TensorSpec((2, 3))] * 2)
    def pair(a, b):
        shapes.expect([(a, "TB"), (b, "TB")])

    operations = pair.get_concrete_function().graph.get_operations()
    assert {operation.type for operation in operations} == {"Placeholder"}
