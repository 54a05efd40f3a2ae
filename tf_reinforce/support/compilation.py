"""Prepares gradient steps for XLA, and cleans up after tracing.

XLA compiles a program for each combination of shapes, but every update has another number
of steps. Arrays over steps are therefore padded to a power of two, so that few shapes
occur.
"""

import functools
import inspect
import itertools

import tensorflow as tf
import tensorflow_probability as tfp
from tensorflow.python.framework import ops

_CONVOLUTIONS = "Conv2D", "Conv3D", "DepthwiseConv2d"  # how operations' names begin


def obstacle(call, model, batch_spec, is_requested):
    """Returns why XLA should not compile a model's gradient steps, `""` if it should.

    On a CPU, XLA runs the gradients of convolutions several times slower than TensorFlow,
    and all other layers at least as fast. The decision therefore depends on the
    operations of the model. Measured times would not do, because they could lead to
    different decisions in two equal trainings.

    Args:
        call: Function of a batch of observations that calls the model.
        model: Keras model.
        batch_spec: `tf.TensorSpec` of a batch of observations, or a structure of them.
        is_requested: Bool, whether the user wants XLA even where it is slower.
    """
    if not all(layer.supports_jit for layer in model._flatten_layers()):
        return "layers without XLA"
    graph = tf.function(call, autograph=False).get_concrete_function(batch_spec).graph
    release(graph)
    # Such losses can depend on the inputs of a call, which padding would change.
    if has_losses_of_inputs(model):
        return "losses of layers"
    if is_requested or tf.config.list_logical_devices("GPU"):
        return ""
    definition = graph.as_graph_def()
    functions = [function.node_def for function in definition.library.function]
    nodes = itertools.chain(definition.node, *functions)
    return "convolutions" if any(n.op.startswith(_CONVOLUTIONS) for n in nodes) else ""


def compiled(function):
    """Returns a function of tensors that XLA compiles when it is first called."""
    return tf.function(function, jit_compile=True, autograph=False)


def run_if(condition, function):
    """Calls a function if a scalar bool tensor is true."""

    def branch():
        function()
        return 0

    tf.cond(condition, branch, lambda: 0)


def has_losses_of_inputs(model):
    """Returns whether a model's last call added losses other than weight regularizers.

    Such losses depend on the inputs, and come from `add_loss` or an
    `activity_regularizer`.
    """
    regularized = [v for v in model.trainable_variables if v.regularizer is not None]
    return len(model.losses) > len(regularized)


def padded_rows(count):
    """Returns the smallest power of two above `count`, as a scalar int32.

    The result is never `count` itself, so at least one row of padding remains, at the
    index `count`.
    """
    return tf.cast(power_of_two(tf.cast(count, tf.int64)), tf.int32)


def power_of_two(count):
    """Returns the smallest power of two above a scalar int64 of at least 0."""
    powers = tf.constant([2**exponent for exponent in range(62)], tf.int64)
    return tf.reduce_min(tf.where(powers > count, powers, powers[-1]))


def count_steps(array, is_padding):
    """Returns how many of the steps in an array `[N]` are no padding, as an int32.

    Args:
        array: `[N]` tensor.
        is_padding: `[N]` bool, or `None` without padding.
    """
    if is_padding is None:
        return tf.size(array)
    return tf.math.count_nonzero(~is_padding, dtype=tf.int32)


def share_of_steps(batch, indices):
    """Returns which steps of a minibatch are padding, and its share of the batch's steps.

    Args:
        batch: Named tuple with `[N]` arrays `returns` and `is_padding`, see
            `count_steps`.
        indices: `[n]` int, the steps of the minibatch.

    Returns:
        `[n]` bool, or `None` without padding, and a scalar float64.
    """
    is_padding = batch.is_padding
    if is_padding is not None:
        is_padding = tf.gather(is_padding, indices)
    count = count_steps(indices, is_padding)
    return is_padding, count / count_steps(batch.returns, batch.is_padding)


def release(graph):
    """Lets a traced graph be freed together with its function.

    Two caches would otherwise keep the graph in memory. The first is the registry of
    TensorFlow for `tf.custom_gradient`, which Keras optimizers and TensorFlow Probability
    use. The second belongs to the bijectors of TensorFlow Probability and stores symbolic
    tensors. Afterwards, a gradient tape cannot differentiate through the function.

    Args:
        graph: `tf.Graph` of a concrete function, already containing every gradient that
            the function computes.
    """
    definition = graph.as_graph_def()
    # Branches of conditions and bodies of loops belong to this graph. Other functions may
    # come from a `tf.function` that is used elsewhere too.
    own = [
        function.node_def
        for function in definition.library.function
        if not function.signature.name.startswith("__")
    ]
    for node in itertools.chain(definition.node, *own):
        name = node.attr["_gradient_op_type"].s.decode()
        if name.startswith("CustomGradient-"):
            ops.gradient_registry._registry.pop(name, None)
    cache = tfp.bijectors.Bijector._cache.storage
    for key in list(cache):
        if any(map(tf.is_symbolic_tensor, tf.nest.flatten(key()))):
            cache.pop(key, None)


class FixedArguments:
    """Base of Keras layers that refuse to change constructor arguments once built.

    Traced programs contain the arguments as constants. If an argument could change,
    programs that were traced before would go on with the old value, and others would use
    the new one. Weights and the attributes `trainable` and `optimizer` may change.

    Attributes:
        argument_names: Tuple of the arguments, attributes of the same name, that
            `get_config` returns; they need no conversion.
    """

    _fixed: frozenset[str] = frozenset()  # by default all constructor arguments
    argument_names: tuple[str, ...] = ()

    def get_config(self) -> dict:
        values = {name: getattr(self, name) for name in self.argument_names}
        plain = {k: list(x) if isinstance(x, tuple) else x for k, x in values.items()}
        return {**super().get_config(), **plain}  # type: ignore[misc]

    def __setattr__(self, name, value):
        fixed = self._fixed or _fixed_arguments(type(self))
        if name in fixed and getattr(self, "built", False):
            kind = type(self).__name__
            raise AttributeError(
                f"`{name}` of a {kind} is fixed once the {kind} is built. Received: "
                f"{name}={value!r}. Make another agent, and copy the weights."
            )
        super().__setattr__(name, value)


@functools.cache
def _fixed_arguments(layer_class):
    """Returns the constructor arguments of a layer class and its bases."""
    bases = layer_class.__mro__[: layer_class.__mro__.index(FixedArguments)]
    names = {
        name
        for base in bases
        if "__init__" in vars(base)
        for name in inspect.signature(base.__init__).parameters
    }
    return frozenset(names - {"self", "args", "kwargs", "name", "optimizer"})
