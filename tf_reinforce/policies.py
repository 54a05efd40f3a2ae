"""Policy models: the default one, and what is asked of anybody's."""

import warnings

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import seeding, spaces


def default(structure, hidden, outputs_size, seed):
    """A stack of tanh layers on all numbers of an observation.

    Args:
        structure: `tf.TensorSpec`, or a structure of them: one observation.
        hidden: Positive ints, sizes of the hidden layers.
        outputs_size: Positive int, `P`.
        seed: Int; the weights are a function of it.

    Returns:
        Keras model from `[N, …]` to `[N, P]`, orthogonal weights; those of the last
        layer are scaled by 0.01, so that the first policy is nearly even.

    Example:

    >>> default(tf.TensorSpec((4,), "float32"), (64, 64), 2, seed=0).count_params()
    4610
    """
    rng = seeding.generator(seed, "weights")

    def dense(units, activation, gain):
        initializer = keras.initializers.Orthogonal(gain, seed=int(rng.integers(2**31)))
        return keras.layers.Dense(units, activation, kernel_initializer=initializer)

    names = spaces.names(structure)
    inputs = keras.tree.map_structure(
        lambda leaf, name: keras.Input(leaf.shape, dtype=leaf.dtype.name, name=name),
        structure,
        names,
    )
    parts = [keras.layers.Flatten()(x) for x in keras.tree.flatten(inputs)]
    x = keras.layers.Concatenate()(parts) if len(parts) > 1 else parts[0]
    for units in hidden:
        x = dense(units, "tanh", np.sqrt(2.0))(x)
    return keras.Model(inputs, dense(outputs_size, None, 0.01)(x), name="policy")


def try_out(policy, structure, memory=None):
    """The outputs of a policy for two observations of zeros.

    Args:
        policy: Keras model.
        structure: `tf.TensorSpec`, or a structure of them: one observation.
        memory: `recurrence.Recurrence`, where the policy is to take one step.

    Raises:
        ValueError: when the policy does not take such observations, with both shapes.
    """
    zeros = keras.tree.map_structure(
        lambda leaf: tf.zeros((2, *leaf.shape), leaf.dtype), structure
    )
    try:
        if memory is not None:
            return memory.step(zeros, memory.initial(2))[0]
        return policy(zeros, training=False)
    except (ValueError, TypeError, KeyError, tf.errors.InvalidArgumentError) as error:
        shapes = keras.tree.map_structure(lambda leaf: (None, *leaf.shape), structure)
        raise ValueError(
            "The policy does not take the observations of this environment. "
            f"Expected: an input of shape {shapes}. Received: {policy!r}, which says: "
            f"{error}"
        ) from error


def announce_inference(policy):
    """Says which dropout, noise and batch normalisation layers do nothing of theirs."""
    kinds = (
        keras.layers.Dropout,
        keras.layers.SpatialDropout1D,
        keras.layers.SpatialDropout2D,
        keras.layers.SpatialDropout3D,
        keras.layers.AlphaDropout,
        keras.layers.GaussianDropout,
        keras.layers.GaussianNoise,
        keras.layers.BatchNormalization,
    )
    layers = policy._flatten_layers(include_self=False, recursive=True)
    names = [layer.name for layer in layers if isinstance(layer, kinds)]
    if names:
        warnings.warn(
            f"The layers {', '.join(names)} run in inference mode, also while "
            "training: the policy that acts and the one that learns must be the same.",
            stacklevel=3,
        )
