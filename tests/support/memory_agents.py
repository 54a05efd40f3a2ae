"""Agents that read earlier steps, and what their models have to return, by definition."""

import warnings

import keras
import numpy as np
import oracle
import tensorflow as tf
import toy_envs

import tf_reinforce as tfr

ALL = "observations", "actions", "rewards"
VECTOR, NESTED = (2,), {"near": (2,), "far": (1,)}  # shapes of observations


def model_inputs(names, context, observations, is_discrete, dtype):
    """Returns the inputs of a model, and the parts of them as `[N, K, …]` floats."""
    inputs, parts = {}, []
    for name in names:
        shape = {"observations": observations, "actions": (1,), "rewards": ()}[name]
        own, kind = {name: shape}, dtype
        if name == "actions" and is_discrete:
            own, kind = {name: ()}, "int32"
        if isinstance(shape, dict):
            own = shape
        leaves = {
            k: keras.Input((context, *v), name=k, dtype=kind) for k, v in own.items()
        }
        inputs[name] = leaves if isinstance(shape, dict) else leaves[name]
        for leaf in leaves.values():
            x = keras.ops.cast(leaf, dtype) if kind == "int32" else leaf
            parts.append(keras.ops.expand_dims(x, -1) if len(leaf.shape) == 2 else x)
    return inputs, parts


def model(
    kind,
    names=("observations",),
    context=None,
    sizes=1,
    dtype="float32",
    observations=VECTOR,
    is_discrete=False,
):
    """Returns a policy or value model with random weights.

    Args:
        kind: `"dense"`, `"conv"`, `"attention"` or `"gru"`.
        names: The `context_inputs`.
        context: Int, the steps of a window, or `None` for sequences.
        sizes: Int, the number of outputs, or a dict from names to them.
        dtype: Float type.
        observations: Shape of an observation, or a dict of shapes.
        is_discrete: Bool, whether actions are integers instead of `[…, 1]` floats.
    """
    layers, options = keras.layers, {"dtype": dtype}
    inputs, parts = model_inputs(names, context, observations, is_discrete, dtype)
    x = layers.Concatenate(**options)(parts) if len(parts) > 1 else parts[0]
    x = layers.Dense(5, "tanh", **options)(x)
    if kind == "dense":
        x = layers.Flatten(**options)(x)
    elif kind == "conv":
        x = layers.Flatten(**options)(layers.Conv1D(4, 2, padding="same", **options)(x))
    elif kind == "gru":
        is_window = context is not None  # LiteRT needs an unrolled one
        x = layers.GRU(4, return_sequences=not is_window, unroll=is_window, **options)(x)
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


def normalized_rows(agent, episodes, b):
    """Returns the observations of an episode as its agent normalizes them."""
    rows = episodes.observations[: int(episodes.lengths[b]) + 1, b]
    return rows if agent.normalizer is None else agent.normalizer(rows).numpy()


def history(rows, names, episodes, b):
    """Returns what a model reads at each step of an episode, and after the last.

    t                 0     1     2    …    T
    observation       s₀    s₁    s₂   …    s_T
    action, reward    0     a₀    a₁   …    a_T₋₁
    """
    parts, length = {"observations": rows}, int(episodes.lengths[b])
    for name in names[1:]:
        array = np.asarray(getattr(episodes, name))[:length, b]
        if array.dtype.kind == "f":
            array = array.astype(keras.tree.flatten(rows)[0].dtype)
        parts[name] = np.concatenate([np.zeros_like(array[:1]), array])
    return parts


def windows(parts, size):
    """Returns the windows of each step, padded with zeros, and which rows are steps."""
    rows = len(keras.tree.flatten(parts)[0])
    valid = np.zeros((rows, size), bool)

    def window(array):
        result = np.zeros((rows, size, *array.shape[1:]), array.dtype)
        for t in range(rows):
            for place in range(size):
                step = t - (size - 1 - place)
                if step >= 0:
                    valid[t, place] = True
                    result[t, place] = array[step]
        return result

    return keras.tree.map_structure(window, parts), valid


def call(model, parts, context):
    """Returns a model's results at each step of an episode, and after the last."""
    parts = parts if len(parts) > 1 else parts["observations"]
    if context is None:
        result = model(keras.tree.map_structure(lambda x: tf.constant(x[None]), parts))
        return keras.tree.map_structure(lambda x: x[0], result)
    inputs, valid = windows(parts, context)
    mask = keras.tree.map_structure(lambda _: tf.constant(valid), inputs)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*does not support masking", UserWarning)
        return model(keras.tree.map_structure(tf.constant, inputs), mask=mask)


def outputs(agent, episodes, b):
    """Returns the outputs of a policy at each step of an episode, and after the last."""
    rows = normalized_rows(agent, episodes, b)
    parts = history(rows, agent.context_inputs, episodes, b)
    return call(agent.policy, parts, agent.context)


class Oracle(oracle.Oracle):
    """The documented update, with models that read earlier steps."""

    def reads_episodes(self, model):
        return not self.options.context and any(map(is_memory, model.layers))

    def run(self, model, record, e):
        rows = keras.tree.map_structure(np.asarray, self.rows(record, e))
        if not self.options.context and not self.reads_episodes(model):
            return model(rows)
        parts = history(rows, self.options.context_inputs, record, e)
        return call(model, parts, self.options.context)


def is_memory(layer):
    return isinstance(layer, keras.layers.RNN | tfr.layers.CausalSelfAttention)
