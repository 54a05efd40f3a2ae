"""Agents that read earlier steps, and what their models have to return, by definition."""

import warnings

import keras
import numpy as np
import tensorflow as tf
import toy_envs

import tf_reinforce as tfr

ALL = "observations", "actions", "rewards"
SHAPES = {"observations": (2,), "actions": (1,), "rewards": ()}


def model(kind, names=("observations",), context=None, sizes=1, dtype="float32"):
    """Returns a policy or value model with random weights.

    Args:
        kind: `"dense"`, `"conv"`, `"attention"` or `"gru"`.
        names: The `context_inputs`.
        context: Int, the steps of a window, or `None` for sequences.
        sizes: Int, the number of outputs, or a dict from names to them.
        dtype: Float type.
    """
    layers, options = keras.layers, {"dtype": dtype}
    inputs = {
        name: keras.Input((context, *SHAPES[name]), name=name, **options) for name in names
    }
    parts = [
        keras.ops.expand_dims(x, -1) if name == "rewards" else x
        for name, x in inputs.items()
    ]
    x = layers.Concatenate(**options)(parts) if len(parts) > 1 else parts[0]
    x = layers.Dense(5, "tanh", **options)(x)
    if kind == "dense":
        x = layers.Flatten(**options)(x)
    elif kind == "conv":
        x = layers.Flatten(**options)(layers.Conv1D(4, 2, padding="same", **options)(x))
    elif kind == "gru":
        is_window = context is not None  # LiteRT needs an unrolled one
        x = layers.GRU(
            4, return_sequences=not is_window, unroll=is_window, **options
        )(x)
    elif context is None:
        attention = tfr.layers.CausalSelfAttention
        x = layers.Add(**options)([x, attention(2, 4, window=3, **options)(x)])
        x = attention(1, 2, window=4, gate="gru", **options)(x)
    else:
        x = layers.MultiHeadAttention(2, 3, **options)(x, x)[:, -1]
    inputs = inputs if len(names) > 1 else inputs["observations"]
    sizes = sizes if isinstance(sizes, dict) else {"outputs": sizes}
    outputs = {
        name: layers.Dense(size, name=name, **options)(x) for name, size in sizes.items()
    }
    result = keras.Model(inputs, outputs if len(outputs) > 1 else outputs["outputs"])
    rng = np.random.default_rng(0)
    for weight in result.weights:
        weight.assign(weight + 0.5 * rng.normal(size=weight.shape))
    return result


KINDS = {
    "dense": dict(kind="dense", names=ALL, context=3),
    "one step": dict(kind="dense", names=("observations", "rewards"), context=1),
    "conv": dict(kind="conv", context=4),
    "masked attention": dict(kind="attention", names=ALL, context=4),
    "gru of a window": dict(kind="gru", names=("observations", "actions"), context=5),
    "gru": dict(kind="gru", names=ALL),
    "attention": dict(kind="attention", names=ALL),
    "attention without actions": dict(kind="attention"),
}


def agent(name, env=toy_envs.Recall, **settings):
    """Returns a built agent with one of `KINDS`, whose actions are real numbers."""
    options = KINDS[name]
    kept = {"context": options.get("context")}
    kept["context_inputs"] = options.get("names", ("observations",))
    result = tfr.Reinforce(model(**options), **kept, **settings)
    result.compile(keras.optimizers.SGD(0.01))
    result.build_for_spaces(env().observation_space, env().action_space)
    if result.normalizer is not None:
        rng = np.random.default_rng(1)
        result.normalizer.update(rng.normal(1.0, 2.0, (50, 2)).astype("float32"))
    return result


def history(agent, episodes, b):
    """Returns what a model reads at each step of an episode, and after the last.

    t                 0     1     2    …    T
    observation       s₀    s₁    s₂   …    s_T
    action, reward    0     a₀    a₁   …    a_T₋₁
    """
    length = int(episodes.lengths[b])
    observations = np.asarray(episodes.observations)[: length + 1, b]
    if agent.normalizer is not None:
        observations = agent.normalizer(observations).numpy()
    parts = {"observations": observations}
    for name in agent.context_inputs[1:]:
        array = np.asarray(getattr(episodes, name))[:length, b].astype(observations.dtype)
        parts[name] = np.concatenate([np.zeros_like(array[:1]), array])
    return parts


def windows(parts, size):
    """Returns the windows of each step, padded with zeros, and which rows are steps."""
    rows = len(parts["observations"])
    result = {
        name: np.zeros((rows, size, *array.shape[1:]), array.dtype)
        for name, array in parts.items()
    }
    valid = np.zeros((rows, size), bool)
    for t in range(rows):
        for place in range(size):
            step = t - (size - 1 - place)
            if step >= 0:
                valid[t, place] = True
                for name, array in parts.items():
                    result[name][t, place] = array[step]
    return result, valid


def outputs(agent, episodes, b, own_model=None):
    """Returns a model's results at each step of an episode, and after the last."""
    called, parts = own_model or agent.policy, history(agent, episodes, b)
    is_nested = len(agent.context_inputs) > 1
    if agent.context is None:
        sequences = {name: array[None] for name, array in parts.items()}
        result = called(sequences if is_nested else sequences["observations"])
        return keras.tree.map_structure(lambda x: x[0], result)
    inputs, valid = windows(parts, agent.context)
    inputs = inputs if is_nested else inputs["observations"]
    mask = keras.tree.map_structure(lambda _: tf.constant(valid), inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not support masking", UserWarning)
        return called(keras.tree.map_structure(tf.constant, inputs), mask=mask)
