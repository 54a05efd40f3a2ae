"""Connects policies and heads of agents with sampling models, without copying weights."""

import keras

from tf_reinforce import agent as agents
from tf_reinforce.sampling import sample
from tf_reinforce.support import validation


def sampling_model(agent):
    """Returns a Keras model that samples the actions of an agent from its observations.

    The model contains the policy and the head of the agent, and its observation
    normalizer if the agent has one.

    Args:
        agent: `tfr.Reinforce` with a functional or sequential policy.

    Raises:
        ValueError: If the agent has no head yet, or its policy has no fixed inputs.
    """
    validation.instance("agent", agent, agents.Reinforce)
    policy, head = agent.policy, agent.head
    if head is None or not policy.built:
        raise ValueError(
            "`agent` is not built. Pass a head to `Reinforce`, or call `agent.fit(env)`."
        )
    if isinstance(getattr(policy, "output_shape", {}), dict):
        raise ValueError(
            "The policy of the agent must be a functional or sequential Keras model. "
            f"Received: {type(policy).__name__} {policy.name!r}"
        )
    symbolic = getattr(policy, "_functional", policy)._inputs_struct
    inputs = keras.tree.map_structure(
        lambda x: keras.Input(x.shape[1:], dtype=x.dtype, name=x.name), symbolic
    )
    observations = inputs if agent.normalizer is None else agent.normalizer(inputs)
    return keras.Model(inputs, sample.Sample(head)(policy(observations)))


def policy_and_head(model):
    """Returns the policy and the head of a functional model that ends in a sample.

    Args:
        model: Functional Keras model whose output is the output of a `Sample` layer.

    Returns:
        A Keras model of the layers before the `Sample` layer, and the head of the layer.
        Both share their weights with `model`.

    Raises:
        ValueError: If the output of the model is not that of a `Sample` layer without an
            action mask, or other `Sample` layers come before it.
    """
    outputs = keras.tree.flatten(getattr(model, "output", None))
    operations = {id(getattr(x, "_keras_history", (None,))[0]) for x in outputs}
    sample_layers = sample.sample_layers(model)
    if len(sample_layers) != 1 or operations != {id(sample_layers[0])}:
        raise ValueError(
            "The model must be a functional Keras model whose only `Sample` layer "
            f"returns its output. Received: model {model.name!r} with "
            f"{len(sample_layers)} Sample layers. Pass policy and head to "
            "`tfr.Reinforce(policy, head)` yourself."
        )
    history = outputs[0]._keras_history
    node = history.operation._inbound_nodes[history.node_index]
    if len(node.input_tensors) > 1:
        raise ValueError(
            "An agent reads its masks from the environment. Received: a `Sample` layer "
            "with `action_mask`. Use `tfr.Reinforce(policy, head, action_mask=…)`."
        )
    return keras.Model(model._inputs_struct, node.input_tensors[0]), sample_layers[0].head


def expect_own_heads(model):
    """Raises `ValueError` if two `Sample` layers share a head, which no file restores."""
    sample_heads = [id(layer.head) for layer in sample.sample_layers(model)]
    if len(set(sample_heads)) < len(sample_heads):
        raise ValueError(
            "Each `Sample` layer must have a head of its own. Received: "
            f"{len(sample_heads)} layers have {len(set(sample_heads))} heads. Call one "
            "`Sample` layer several times to share a head."
        )
