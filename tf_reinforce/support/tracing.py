"""Removes references that would keep the graphs of traced functions in memory."""

import tensorflow as tf
import tensorflow_probability as tfp
from tensorflow.python.framework import ops


def release(graph):
    """Removes the references of registries and caches to a graph, after its tracing.

    Without these references, the graph is freed together with its traced function.
    TensorFlow keeps the gradient functions of `tf.custom_gradient` in a registry. For
    example, Keras optimizers and TensorFlow Probability use `tf.custom_gradient`.
    TensorFlow Probability keeps symbolic tensors in the cache of its bijectors.

    After the call, a gradient tape cannot differentiate through the traced function.

    Args:
        graph: `tf.Graph` of a concrete function, which contains all gradients that the
            function computes.
    """
    definition = graph.as_graph_def()
    # The branches of conditions and the bodies of loops are functions of this graph. All
    # other functions can be those of a `tf.function` that is used elsewhere too.
    own = [
        function.node_def
        for function in definition.library.function
        if not function.signature.name.startswith("__")
    ]
    for part in (definition.node, *own):
        for node in part:
            name = node.attr["_gradient_op_type"].s.decode()
            if name.startswith("CustomGradient-"):
                ops.gradient_registry._registry.pop(name, None)
    cache = tfp.bijectors.Bijector._cache.storage
    for key in list(cache):
        if any(map(tf.is_symbolic_tensor, tf.nest.flatten(key()))):
            cache.pop(key, None)
