"""Checks that policy, head, baseline and spaces fit together."""

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.policies import models
from tf_reinforce.policies import recurrent


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
        models.call_on_zeros(policy, observation_spec, recurrent_policy) for _ in range(2)
    )
    _check_deterministic(policy, outputs, repeated)
    shapes = keras.tree.map_structure(lambda x: tuple(x.shape), outputs)
    is_shared = baseline.shares_policy
    has_values = isinstance(outputs, dict) and set(outputs) == {"outputs", "values"}
    if (is_shared and not (has_values and shapes["values"] == (2, 1))) or (
        not is_shared and not tf.is_tensor(outputs)
    ):
        raise ValueError(
            "A policy with two outputs and a `Value()` baseline without a model belong "
            'together. The two outputs are {"outputs": (batch, P), "values": (batch, '
            "1)}, with P outputs for the head. Every other policy has one output. "
            f"Received, for a batch of 2: {shapes} and the baseline "
            f"{type(baseline).__name__}"
        )
    head.check_outputs((outputs["outputs"] if is_shared else outputs).shape)
    value_model = getattr(baseline, "model", None)
    if value_model is not None:
        _check_value_model(value_model, policy, observation_spec)
    return recurrent_policy


def _check_deterministic(policy, outputs, repeated):
    """Raises `ValueError` unless two calls of the policy returned equal outputs."""
    pairs = zip(keras.tree.flatten(outputs), keras.tree.flatten(repeated), strict=True)
    close = [np.allclose(x, y, 1e-3, 1e-5, equal_nan=True) for x, y in pairs]
    if not all(close):
        raise ValueError(
            "A policy must return the same outputs for the same observations. If the "
            "outputs differ between calls, an update computes the log-probabilities of "
            f"a policy that did not sample the actions. Received: {policy!r}, whose "
            "outputs differ between calls in inference mode. Remove random layers from "
            "the policy, because the head of the agent samples the actions."
        )


def _check_value_model(value_model, policy, observation_spec):
    """Raises `ValueError` if a value model is recurrent or shares policy weights."""
    if recurrent.is_recurrent(value_model, observation_spec):
        raise ValueError(
            "The model of a `Value` baseline takes one observation at a time, without a "
            f"time axis. Received: {value_model!r}, which has recurrent layers. For a "
            "recurrent value function that shares the layers of the policy, use a policy "
            "with the outputs {'outputs': …, 'values': …} and tfr.baselines.Value()."
        )
    policy_ids = {id(variable) for variable in policy.variables}
    common = [v.path for v in value_model.variables if id(v) in policy_ids]
    if common:
        raise ValueError(
            "The policy and the model of a `Value` baseline must not share weights. "
            f"Received: two models with {', '.join(common)} in common. To share layers, "
            "use one policy with the outputs {'outputs': …, 'values': …} and "
            "tfr.baselines.Value()."
        )
