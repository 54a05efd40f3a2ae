"""Building Keras models, and checking that they fit head, baseline and spaces."""

import inspect
import warnings

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.data import spaces
from tf_reinforce.policies import memory as memories
from tf_reinforce.policies import recurrent
from tf_reinforce.support import validation


def build(model, shapes, spec, name):
    """Creates a Keras model's weights for the given observations.

    A subclassed model without its own `build` is called instead, because the inherited
    method would only mark it as built.

    Args:
        model: Keras model that is not built.
        shapes: Shape of the observations with batch axis, or a structure of shapes.
        spec: Spec of one observation or window.
        name: String for the model in error messages.

    Raises:
        ValueError: If the model cannot take the observations.
    """
    if type(model).build is not keras.Model.build:
        model.build(shapes)
    else:
        call_on_examples(model, spec, name=name)


def call_on_examples(policy, observation_spec, memory=None, name="policy"):
    """Returns a policy's outputs for two observations of random floats and zero integers.

    Args:
        policy: Keras model.
        observation_spec: `tf.TensorSpec` of one observation, or a structure of them.
        memory: `memory.Memory` of a policy that reads earlier steps, which runs for one
            step.
        name: String for the model in error messages.

    Raises:
        ValueError: If the policy cannot take such observations.
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
            # If the structure differs, Keras only warns and mixes up the inputs.
            warnings.filterwarnings("error", ".*structure of `inputs`", UserWarning)
            if memory is not None:
                return memory.step(examples, memory.initial_state(2))[0]
            return policy(examples, training=False)
    except errors as error:
        shapes = records.shapes_with_axes(observation_spec, None)
        received = [tuple(x.shape) for x in getattr(policy, "inputs", None) or ()]
        ranks = [leaf.shape.rank + 2 for leaf in keras.tree.flatten(observation_spec)]
        if memory is None and sorted(map(len, received)) == sorted(ranks):
            raise ValueError(
                f"The {name} has a time axis, but no layer that remembers steps. Use "
                "recurrent layers or tfr.layers.CausalSelfAttention, or pass `context=K` "
                f"for windows of K steps. Received: {policy!r} with inputs of shape "
                f"{received}"
            ) from error
        raise ValueError(
            f"The {name} does not take the observations of this environment. Expected: "
            f"an input of shape {shapes}. Received: {policy!r} with inputs of shape "
            f"{received}, which raises: {validation.one_line(error)}"
        ) from error


def _warn_bounded_logits(policy, head, outputs):
    """Warns if a policy whose outputs are logits ends in softmax or sigmoid.

    The order of the layers in a subclassed model is unknown, but the results of a softmax
    sum to one for any observation.

    Args:
        policy: A built Keras model.
        head: `heads.Head` of the agent.
        outputs: `[2, P]` float tensor, the policy outputs for two observations.
    """
    if not head.is_logit().all():
        return
    last, activation = policy, "softmax" if _sum_to_one(outputs) else "others"
    if symbolic := getattr(policy, "outputs", None):  # in the order "outputs", "values"
        last = symbolic[0]._keras_history.operation
        last = last.layer if isinstance(last, keras.layers.TimeDistributed) else last
        activation = getattr(last, "activation", last)
        activation = getattr(activation, "__name__", type(activation).__name__).lower()
    if activation in ("softmax", "sigmoid"):
        validation.warn(
            f"The outputs of the policy are logits of {head!r}, so the last layer must "
            f"be linear (`activation=None`). Received: {last.name!r}, which ends in "
            f"{activation}. The head applies softmax or sigmoid itself."
        )


def _sum_to_one(outputs):
    numbers = np.asarray(outputs, "float64")
    is_positive = numbers.shape[1] > 1 and np.all(numbers >= 0)
    error = np.abs(numbers.sum(axis=1) - 1.0).max()
    tolerance = 1e-5 if outputs.dtype.size > 2 else 1e-2  # of half precision
    return is_positive and error < tolerance and (numbers[0] != numbers[1]).any()


def normalized_arrays(space, keras_models, with_integers):
    """Returns a flag for each array of an observation: whether it is to be normalized.

    A warning is issued if there is no array to normalize. Another is issued if a model
    has an integer input for a normalized array, because this input would round the
    normalized numbers.

    Args:
        space: Gymnasium observation space.
        keras_models: List of the Keras models that receive the observations.
        with_integers: Bool, False for agents from files that do not normalize integers.
    """
    nest = spaces.to_nest(space)
    parts, names = keras.tree.flatten(nest), keras.tree.flatten(spaces.names(nest))
    inputs = [keras.tree.flatten(getattr(x, "inputs", None) or []) for x in keras_models]
    flags, refused = [], []
    for index, (part, name) in enumerate(zip(parts, names, strict=True)):
        is_integer = part.dtype.kind != "f"
        flag = spaces.is_quantity(part) and (with_integers or not is_integer)
        types = [x[index].dtype for x in inputs if len(x) == len(parts)]
        if flag and is_integer and any("int" in dtype for dtype in types):
            refused.append(name)
            flag = False
        flags.append(flag)
    if refused:
        validation.warn(
            f"`normalize_observations=True` leaves {', '.join(refused)} unchanged, "
            "because a model has an integer input for it. To normalize these integers, "
            'pass `dtype="float32"` to `keras.Input`.'
        )
    elif with_integers and not any(flags):
        validation.warn(
            "`normalize_observations=True` has no effect, because the observations "
            f"contain only categories, flags or images. Received: {space!r}. Omit it."
        )
    return flags


def make_memory(model, observation_spec, options, head, dtype):
    """Returns the `memory.Memory` of a model, or `None` if it reads one observation.

    Args:
        model: A built Keras model.
        observation_spec: `tf.TensorSpec` of one observation, or a structure of them.
        options: `config.AgentOptions`.
        head: `heads.Head` of the agent.
        dtype: Float type of the policy.

    Raises:
        ValueError: If the model does not take such inputs, or mixes time steps otherwise
            than through recurrent layers.
    """
    spec = memories.input_spec(observation_spec, options, head, dtype)
    if options.context is None and not recurrent.is_recurrent(model, spec):
        if len(options.context_inputs) > 1:
            raise ValueError(
                "With `context_inputs`, policy and value model need recurrent layers or "
                "tfr.layers.CausalSelfAttention, or windows (`context`). "
                f"Received: context_inputs={options.context_inputs} and {model!r}"
            )
        return None
    memory = memories.Memory(model, spec, options, dtype)
    if options.context is None:
        memory.runner.check()
    return memory


def check_model_shapes(policy, head, baseline, observation_spec, memory):
    """Raises `ValueError` if a policy does not fit its observations, head or baseline.

    A warning is issued if its outputs are logits, but bounded ones.

    Args:
        policy: A built Keras model.
        head: `heads.Head` of the agent.
        baseline: `baselines.Baseline` of the agent.
        observation_spec: `tf.TensorSpec` of one observation, or a structure of them.
        memory: `memory.Memory` of the policy, or `None`.

    Raises:
        ValueError: If the policy does not take the observations, or its outputs are
            wrongly shaped; also if a value model shares weights with the policy.
    """
    outputs = call_on_examples(policy, observation_spec, memory)
    shapes = keras.tree.map_structure(lambda x: tuple(x.shape), outputs)
    is_shared = baseline.shares_policy
    is_pair = isinstance(outputs, dict) and set(outputs) == {"outputs", "values"}
    is_pair = is_pair and shapes["values"] == (2, 1)
    if not (is_pair if is_shared else tf.is_tensor(outputs)):
        raise ValueError(
            "A policy with two outputs and a `Value()` baseline without a model belong "
            'together: {"outputs": (batch, P), "values": (batch, 1)}. Every other policy '
            f"has one output. Received, for a batch of 2: {shapes} and the baseline "
            f"{type(baseline).__name__}"
        )
    outputs = outputs["outputs"] if is_shared else outputs
    head.check_outputs(outputs.shape)
    _warn_bounded_logits(policy, head, outputs)
    value_model = getattr(baseline, "model", None)
    if value_model is not None:
        _check_value_model(value_model, policy)


def check_layers(keras_models, observation_spec, model_memories):
    """Refuses models with random outputs, and warns of layers with a training mode.

    Args:
        keras_models: List of the policy and, if the baseline has one, the value model.
        observation_spec: As in `check_model_shapes`.
        model_memories: List with the `memory.Memory` of each, or `None`.

    Returns:
        List of the layers of the class `SpectralNormalization`.

    Raises:
        ValueError: If a model returns other outputs when it is called again.
    """
    names = "policy", "value model"
    for model, memory, name in zip(keras_models, model_memories, names):
        pair = [call_on_examples(model, observation_spec, memory, name) for _ in range(2)]
        pairs = zip(*map(keras.tree.flatten, pair), strict=True)
        if not all(np.allclose(x, y, 1e-3, 1e-5, equal_nan=True) for x, y in pairs):
            raise ValueError(
                "Policy and value model must return the same outputs for the same "
                f"observations. Received: {model!r}, whose outputs are random in "
                "inference mode. Remove random layers, because the head of the agent "
                "samples the actions."
            )
    layers = [layer for model in keras_models for layer in model._flatten_layers()]
    differing = [layer for layer in layers if _has_training_mode(layer)]
    inner = {id(x) for y in differing for x in y._flatten_layers(include_self=False)}
    names = [layer.name for layer in differing if id(layer) not in inner]
    if names:
        validation.warn(
            f"The layers {', '.join(names)} run in inference mode, also during "
            "training, because actions and updates must use the same policy."
        )
    return [x for x in layers if isinstance(x, keras.layers.SpectralNormalization)]


_RATES = "rate", "stddev", "dropout", "recurrent_dropout"
_ALIKE = keras.layers.Dense, keras.layers.EinsumDense, keras.layers.Lambda


def _has_training_mode(layer):
    """Returns whether a layer's outputs differ in training mode, judged by its class.

    A layer that contains others passes `training` on to them.
    """
    if "training" not in inspect.signature(layer.call).parameters:
        return False
    rates = [getattr(layer, name) for name in _RATES if hasattr(layer, name)]
    if rates or isinstance(layer, _ALIKE):
        return any(rates)
    return not list(layer._flatten_layers(include_self=False))


def _check_value_model(value_model, policy):
    """Raises `ValueError` if a value model shares weights with the policy."""
    policy_ids = {id(variable) for variable in policy.variables}
    common = [v.path for v in value_model.variables if id(v) in policy_ids]
    if common:
        raise ValueError(
            "The model of a `Value` baseline must not share weights with the policy. "
            f"Received: two models with {', '.join(common)} in common. For shared layers "
            "use one policy with the outputs {'outputs': …, 'values': …}, and "
            "tfr.baselines.Value()."
        )
