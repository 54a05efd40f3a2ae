"""Checks that policy, head, baseline and spaces fit together."""

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import spaces
from tf_reinforce.policies import call_modes
from tf_reinforce.policies import models
from tf_reinforce.policies import recurrent
from tf_reinforce.support import validation


def normalized_arrays(space, keras_models, with_integers):
    """Returns whether `normalize_observations` normalizes each array of an observation.

    Warns of integers that a model takes as integers, which would round normalized
    numbers, and of observations without any array that can be normalized.

    Args:
        space: Gymnasium observation space.
        keras_models: List of the Keras models that receive the observations.
        with_integers: Bool, False for agents of files that do not normalize integers.
    """
    nest = spaces.to_nest(space)
    parts, names = keras.tree.flatten(nest), keras.tree.flatten(spaces.names(nest))
    inputs = [keras.tree.flatten(getattr(x, "inputs", None) or []) for x in keras_models]
    flags, refused = [], []
    for index, (part, name) in enumerate(zip(parts, names, strict=True)):
        types = [x[index].dtype for x in inputs if len(x) == len(parts)]
        is_refused = any("int" in dtype for dtype in types)
        is_integer = part.dtype.kind != "f"
        flag = spaces.is_quantity(part) and (with_integers or not is_integer)
        if flag and is_integer and is_refused:
            refused.append(name)
        flags.append(flag and not (is_integer and is_refused))
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


def check_model_shapes(policy, head, baseline, observation_spec):
    """Raises `ValueError` if a policy does not match its observations, head or baseline.

    Args:
        policy: A built Keras model.
        head: `heads.Head` of the agent.
        baseline: `baselines.Baseline` of the agent.
        observation_spec: `tf.TensorSpec` of one observation, or a structure of
            `tf.TensorSpec`s.

    Returns:
        `recurrent.RecurrentPolicy` if the policy is recurrent, else `None`.

    Raises:
        ValueError: If the policy does not take the observations or returns random or
            wrongly shaped outputs, or if a value model is recurrent or shares weights
            with the policy.
    """
    recurrent_policy = None
    if recurrent.is_recurrent(policy, observation_spec):
        recurrent_policy = recurrent.RecurrentPolicy(policy, observation_spec)
        recurrent_policy.check()
    outputs, repeated = (
        models.call_on_examples(policy, observation_spec, recurrent_policy)
        for _ in range(2)
    )
    pairs = zip(keras.tree.flatten(outputs), keras.tree.flatten(repeated), strict=True)
    if not all(np.allclose(x, y, 1e-3, 1e-5, equal_nan=True) for x, y in pairs):
        raise _random_outputs(policy)
    shapes = keras.tree.map_structure(lambda x: tuple(x.shape), outputs)
    is_shared = baseline.shares_policy
    has_values = isinstance(outputs, dict) and set(outputs) == {"outputs", "values"}
    if (is_shared and not (has_values and shapes["values"] == (2, 1))) or (
        not is_shared and not tf.is_tensor(outputs)
    ):
        raise ValueError(
            "A policy with two outputs and a `Value()` baseline without a model belong "
            'together: {"outputs": (batch, P), "values": (batch, 1)}. Every other policy '
            f"has one output. Received, for a batch of 2: {shapes} and the baseline "
            f"{type(baseline).__name__}"
        )
    head.check_outputs((outputs["outputs"] if is_shared else outputs).shape)
    value_model = getattr(baseline, "model", None)
    if value_model is not None:
        _check_value_model(value_model, policy, observation_spec)
    return recurrent_policy


def _random_outputs(model):
    return ValueError(
        "Policy and value model must return the same outputs for the same observations. "
        f"Received: {model!r}, whose outputs are random in inference mode. Remove random "
        "layers, because the head of the agent samples the actions."
    )


def check_call_modes(keras_models, observation_spec, recurrent_policy):
    """Checks how policy and value model behave in inference and in training mode.

    Warns of layers that would compute something else in training mode.

    Args:
        keras_models: List of the policy and, if the baseline has one, the value model.
        observation_spec: As in `check_model_shapes`.
        recurrent_policy: `recurrent.RecurrentPolicy`, or `None`.

    Returns:
        List with, for each model, the list of its layers that in training mode only
        change their own variables.

    Raises:
        ValueError: If the outputs of a model are random.
    """
    differing, updating = [], []
    for index, model in enumerate(keras_models):
        spec = observation_spec
        if index == 0 and recurrent_policy is not None:
            model = recurrent_policy.sequence_model
            spec = keras.tree.map_structure(
                lambda x: tf.TensorSpec((3, *x.shape), x.dtype), spec
            )
        modes = call_modes.call_modes(model, spec)
        if modes.is_random:
            raise _random_outputs(model)
        differing += modes.differing
        updating.append(modes.updating)
    if differing:
        validation.warn(
            f"The layers {', '.join(differing)} run in inference mode, also during "
            "training, because actions and updates must use the same policy.",
        )
    return updating


def _check_value_model(value_model, policy, observation_spec):
    """Raises `ValueError` if a value model is recurrent or shares policy weights."""
    policy_ids = {id(variable) for variable in policy.variables}
    common = [v.path for v in value_model.variables if id(v) in policy_ids]
    received = f"two models with {', '.join(common)} in common" if common else ""
    if recurrent.is_recurrent(value_model, observation_spec):
        received = f"{value_model!r}, which has recurrent layers"
    if received:
        raise ValueError(
            "The model of a `Value` baseline takes one observation at a time, without a "
            f"time axis, and must not share weights with the policy. Received: "
            f"{received}. For shared or recurrent layers, use one policy with the "
            "outputs {'outputs': …, 'values': …} and tfr.baselines.Value()."
        )
