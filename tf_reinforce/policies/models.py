"""Builds and inspects Keras models: number type, constants, outputs and layers."""

import inspect
import warnings

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import tensor_specs
from tf_reinforce.support import validation


def build(model, shapes, spec, name):
    """Builds a Keras model for observations, and thereby creates its weights.

    A subclassed model without a method `build` is built by a call. The method that the
    model inherits from Keras would only mark it as built.

    Args:
        model: Keras model that is not built.
        shapes: Shape of the observations with the batch axis, or a structure of shapes.
        spec: Spec of an observation of the policy, or `None` if only shapes are known.
        name: String that describes the model in an error message.

    Raises:
        ValueError: If the model cannot take the observations.
    """
    if type(model).build is not keras.Model.build:
        model.build(shapes)
    else:
        spec = spec or tensor_specs.specs_from_shapes(shapes, "float32")
        call_on_examples(model, spec, name=name)


def float_type(policy):
    """Returns the float type of the observations, outputs and actions of a policy.

    Args:
        policy: A built Keras model. The weights of the policy may have several number
            types.

    Returns:
        `"float64"` if at least one weight is float64, else `"float32"`, even if all
        weights are in half precision.
    """
    has_float64 = any(weight.dtype == "float64" for weight in policy.weights)
    return "float64" if has_float64 else "float32"


def constants(*models):
    """Returns the parts of Keras models that are constant in a traced TensorFlow program.

    The constant parts are the set of variables, which Keras' `enable_lora` extends, and
    the statistics that `adapted_layers` returns.

    Returns:
        Tuple of the constants. If two calls of `constants` return equal tuples, a program
        that was traced at the first call is still valid at the second call.
    """
    variable_ids = [id(v) for model in models for v in model.variables]
    statistics = [(name, array.tobytes()) for name, array in adapted_layers(*models)]
    return tuple(variable_ids), tuple(statistics)


def adapted_layers(*models):
    """Returns the statistics of layers with `adapt`, as a list of `(name, array)`.

    Keras layers with `adapt`, for example `Normalization`, store their statistics (such
    as mean and variance) twice: as weights, and as plain tensors that `call` reads.
    """
    return [
        (name, np.asarray(value))
        for model in models
        for layer in model._flatten_layers()
        if hasattr(layer, "finalize_state")
        for name, value in vars(layer).items()
        if isinstance(value, tf.Tensor)
    ]


def call_on_examples(policy, observation_spec, recurrent_policy=None, name="policy"):
    """Returns the outputs of a policy for two observations: random floats, other zeros.

    Args:
        policy: Keras model of the policy.
        observation_spec: `tf.TensorSpec` of one observation, or a structure of
            `tf.TensorSpec`s.
        recurrent_policy: `recurrent.RecurrentPolicy` if the policy is recurrent. For a
            recurrent policy, `call_on_examples` computes one step.
        name: String that describes the model in an error message.

    Raises:
        ValueError: If the policy cannot take observations of the spec.
    """
    rng = np.random.default_rng(0)

    def example(leaf):
        shape = (2, *leaf.shape)
        numbers = rng.normal(size=shape) if leaf.dtype.is_floating else np.zeros(shape)
        return tf.cast(numbers, leaf.dtype)

    examples = keras.tree.map_structure(example, observation_spec)
    errors = ValueError, TypeError, KeyError, tf.errors.InvalidArgumentError, UserWarning
    try:
        with warnings.catch_warnings():
            # If the inputs have another structure, Keras only warns and assigns arrays to
            # wrong inputs.
            warnings.filterwarnings("error", ".*structure of `inputs`", UserWarning)
            if recurrent_policy is not None:
                states = recurrent_policy.initial_state(2)
                return recurrent_policy.step(examples, states)[0]
            return policy(examples, training=False)
    except errors as error:
        shapes = keras.tree.map_structure(lambda x: (None, *x.shape), observation_spec)
        received = [tuple(x.shape) for x in getattr(policy, "inputs", None) or ()]
        raise ValueError(
            f"The {name} does not take the observations of this environment. "
            f"Expected: an input of shape {shapes}. Received: {policy!r} with inputs of "
            f"shape {received}, which raises: {error}"
        ) from error


def warn_bounded_logits(policy, head):
    """Warns if a policy whose outputs are logits ends in softmax or sigmoid.

    A subclassed model is not inspected, because the order of its layers is not known.

    Args:
        policy: A built Keras model.
        head: `heads.Head` of the agent.
    """
    is_logit = head.is_logit()
    symbolic = getattr(policy, "outputs", None) or ()  # in the order "outputs", "values"
    ends = [
        f"the layer {name!r}, which ends in {activation}"
        for tensor in symbolic[:1]
        for name, activation, start, stop in _bounded_ends(tensor, 0, len(is_logit))
        if is_logit[start:stop].any()
    ]
    if ends:
        validation.warn(
            f"The outputs of the policy are logits of {head!r}, so the last layer must "
            f"be linear (`activation=None`). Received: {' and '.join(ends)}. The head "
            "applies softmax or sigmoid itself. Remove the activation of the last layer."
        )


_BOUNDED = ("softmax", "sigmoid")
_IDENTITIES = (
    keras.layers.Dropout,
    keras.layers.Flatten,
    keras.layers.Identity,
    keras.layers.Reshape,
)


def _bounded_ends(tensor, start, stop):
    """Yields `(layer name, activation, start, stop)` of each final softmax or sigmoid.

    Args:
        tensor: A symbolic tensor that becomes columns `start` to `stop` of the policy
            outputs.
        start, stop: Ints, the range of columns of the policy outputs.
    """
    operation, node_index, tensor_index = tensor._keras_history
    inputs = operation._inbound_nodes[node_index].input_tensors
    if isinstance(operation, keras.layers.TimeDistributed):
        operation = operation.layer
    activation = getattr(operation, "activation", operation)
    activation = getattr(activation, "__name__", type(activation).__name__).lower()
    sizes = [part.shape[-1] for part in inputs]
    if isinstance(operation, keras.Model):
        if getattr(operation, "outputs", None):
            yield from _bounded_ends(operation.outputs[tensor_index], start, stop)
    elif activation in _BOUNDED:
        yield operation.name, activation, start, stop
    elif isinstance(operation, _IDENTITIES) or (
        isinstance(operation, keras.layers.Activation) and activation == "linear"
    ):
        yield from _bounded_ends(inputs[0], start, stop)
    elif isinstance(operation, keras.layers.Concatenate) and sum(sizes) == stop - start:
        for part, size in zip(inputs, sizes, strict=True):
            yield from _bounded_ends(part, start, start + size)
            start += size


_DEFAULTS = keras.Layer.from_config.__func__, keras.Model.from_config.__func__
_IN_EVERY_CONFIG = {"name", "trainable", "dtype"}


def warn_if_not_loadable(model):
    """Warns about layers in a saved model that a file cannot restore as they are.

    Keras makes a layer from its configuration, which contains `name`, `trainable` and
    `dtype`. A class with a `from_config` of its own is not checked. Of a subclass of
    `keras.Model` without `get_config`, Keras 3.15 stores the default values of the
    arguments, also if other values were passed.

    Args:
        model: Keras model.
    """
    problems = {}
    for layer in model._flatten_layers():
        if getattr(type(layer).from_config, "__func__", None) in _DEFAULTS:
            problems[type(layer)] = _problem(layer)
    for layer_class, problem in problems.items():
        if problem is not None:
            name = layer_class.__name__
            validation.warn(
                f"The class {name} {problem}. Expected: {name}.__init__(self, ..., "
                "**kwargs), which calls super().__init__(**kwargs), and `get_config`, "
                "which returns all other arguments. Correct the class, and save again.",
            )


def _problem(layer):
    """Returns why a layer cannot be made from its configuration, or `None`."""
    signature = inspect.signature(type(layer))
    try:
        signature.bind(**layer.get_config())
    except TypeError as error:
        return f"does not take its own configuration: {error}"
    named = {
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    }
    has_config = not getattr(layer.get_config, "_is_default", False)
    missing = sorted(named - _IN_EVERY_CONFIG)
    if isinstance(layer, keras.Model) and missing and not has_config:
        return f"has no `get_config`, which returns its arguments {', '.join(missing)}"
    return None
