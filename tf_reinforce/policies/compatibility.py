"""Checks that policy, head, baseline and spaces fit together."""

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.policies import models
from tf_reinforce.policies import recurrent


def check_model_shapes(policy, head, baseline, structure):
    """Refuses parts that do not fit.

    Args:
        policy: Keras model, built.
        head: `heads.Head`.
        baseline: `baselines.Baseline`.
        structure: `tf.TensorSpec`, or a structure of them: one observation.

    Returns:
        The `recurrent.RecurrentPolicy` of a policy that remembers, else `None`.

    Raises:
        ValueError: with what was expected and what there is.
    """
    memory = None
    if recurrent.is_recurrent(policy, structure):
        memory = recurrent.RecurrentPolicy(policy, structure)
        memory.check()
    outputs = models.call_on_zeros(policy, structure, memory)
    _expect_same(policy, outputs, models.call_on_zeros(policy, structure, memory))
    shapes = keras.tree.map_structure(lambda x: tuple(x.shape), outputs)
    shared = baseline.shares_policy
    two = isinstance(outputs, dict) and set(outputs) == {"outputs", "values"}
    if (shared and not (two and shapes["values"] == (2, 1))) or (
        not shared and not tf.is_tensor(outputs)
    ):
        raise ValueError(
            'A policy with two outputs, {"outputs": (batch, P), "values": (batch, '
            "1)}, and a `Value()` baseline without a model belong together; any "
            f"other has one output. Received, for a batch of 2: {shapes} and the "
            f"baseline {type(baseline).__name__}"
        )
    head.check_outputs((outputs["outputs"] if shared else outputs).shape)
    critic = getattr(baseline, "model", None)
    if critic is not None:
        _check_critic(critic, policy, structure)
    return memory


def _expect_same(policy, outputs, again):
    pairs = zip(keras.tree.flatten(outputs), keras.tree.flatten(again), strict=True)
    near = [np.allclose(one, two, 1e-3, 1e-5, equal_nan=True) for one, two in pairs]
    if not all(near):
        raise ValueError(
            "A policy must put out the same for the same observations, or actions are "
            "scored by another policy than the one that chose them. Received: "
            f"{policy!r}, whose outputs differ from call to call in inference mode. "
            "Leave chance to the head."
        )


def _check_critic(critic, policy, structure):
    if recurrent.is_recurrent(critic, structure):
        raise ValueError(
            "The model of a `Value` baseline sees one observation at a time, "
            f"[N, …]. Received: {critic!r}, which has recurrent layers. A value that "
            "remembers shares the policy: a policy with the outputs {'outputs': …, "
            "'values': …} and tfr.baselines.Value()."
        )
    own = {id(variable) for variable in policy.variables}
    common = [variable.path for variable in critic.variables if id(variable) in own]
    if common:
        raise ValueError(
            "The policy and the model of a `Value` baseline have weights of their own. "
            f"Received: two models with {', '.join(common)} in common. Share a trunk "
            "through one policy with the outputs {'outputs': …, 'values': …} and "
            "tfr.baselines.Value()."
        )
