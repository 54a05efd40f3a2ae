"""Decides whether XLA compiles gradient steps, and prepares them for XLA.

XLA compiles a program for each combination of shapes. The number of steps N of a batch is
different in each update, so arrays of N steps are padded to a power of two.
"""

import tensorflow as tf

from tf_reinforce.support import tracing

_CONVOLUTIONS = "Conv2D", "Conv3D", "DepthwiseConv2d"  # how operations' names begin


def obstacle(call, model, observation_spec, is_requested):
    """Returns why XLA does not compile the gradient steps of a model, `""` if it does.

    On a CPU, XLA runs the gradients of convolutions several times slower than TensorFlow,
    and all other layers at least as fast. The choice follows from the operations of the
    model and not from measured times, which would differ between two equal trainings.

    Args:
        call: Function of a batch of observations that calls the model.
        model: Keras model.
        observation_spec: `tf.TensorSpec` of one observation, or a structure of them.
        is_requested: Bool, whether the user wants XLA also where it is slower.
    """
    if not all(layer.supports_jit for layer in model._flatten_layers()):
        return "layers without XLA"
    spec = tf.nest.map_structure(
        lambda leaf: tf.TensorSpec((None, *leaf.shape), leaf.dtype), observation_spec
    )
    graph = tf.function(call, autograph=False).get_concrete_function(spec).graph
    tracing.release(graph)
    # Such losses can depend on the inputs of a call, which padding would change.
    if has_losses_of_inputs(model):
        return "losses of layers"
    if is_requested or tf.config.list_logical_devices("GPU"):
        return ""
    return "convolutions" if _has_convolutions(graph) else ""


def _has_convolutions(graph):
    definition = graph.as_graph_def()
    functions = [function.node_def for function in definition.library.function]
    nodes = (node for part in (definition.node, *functions) for node in part)
    return any(node.op.startswith(_CONVOLUTIONS) for node in nodes)


def compiled(function):
    """Returns a function of tensors that XLA compiles when it is called."""
    return tf.function(function, jit_compile=True, autograph=False)


def has_losses_of_inputs(model):
    """Returns whether the last call of a model has added losses that are no regularizers.

    Such losses come from `add_loss` or an `activity_regularizer`. The regularizers of
    weights do not depend on the inputs.
    """
    regularized = [v for v in model.trainable_variables if v.regularizer is not None]
    return len(model.losses) > len(regularized)


def padded_rows(count):
    """Returns the smallest power of two above `count`, as a scalar int32.

    The array of `padded_rows(N)` rows has at least one row of padding, whose index is N.
    """
    return tf.cast(power_of_two(tf.cast(count, tf.int64)), tf.int32)


def power_of_two(count):
    """Returns the smallest power of two above a scalar int64 of at least 0."""
    powers = tf.constant([2**exponent for exponent in range(62)], tf.int64)
    return tf.reduce_min(tf.where(powers > count, powers, powers[-1]))


def count_steps(array, is_padding):
    """Returns the number of steps, without padding, in an array `[N]`, as an int32.

    Args:
        array: `[N]` tensor.
        is_padding: `[N]` bool, or `None` if no step is padding.
    """
    if is_padding is None:
        return tf.size(array)
    return tf.math.count_nonzero(~is_padding, dtype=tf.int32)
