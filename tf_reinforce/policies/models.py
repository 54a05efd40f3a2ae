"""Answers questions about any Keras policy: its type, its constants, its layers."""

import warnings

import keras
import numpy as np
import tensorflow as tf


def float_type(policy):
    """The type in which a policy's observations, outputs and actions are computed.

    Args:
        policy: Keras model, built. Its weights may be of several types.

    Returns:
        `"float64"` if a weight is float64, else `"float32"`, also for half precision.
    """
    double = any(weight.dtype == "float64" for weight in policy.weights)
    return "float64" if double else "float32"


def constants(*models):
    """What traced programs hold of Keras models as constants, as a tuple to compare.

    The variables there are, of which `enable_lora` adds some, and what `adapted` names.
    """
    variables = [id(v) for model in models for v in model.variables]
    numbers = [(name, array.tobytes()) for name, array in adapted_layers(*models)]
    return tuple(variables), tuple(numbers)


def adapted_layers(*models):
    """The statistics of layers that `adapt`: `(name, array)` each.

    Keras computes them from weights, and keeps them as plain tensors beside these.
    """
    return [
        (name, np.asarray(value))
        for model in models
        for layer in model._flatten_layers()
        if hasattr(layer, "finalize_state")
        for name, value in vars(layer).items()
        if isinstance(value, tf.Tensor)
    ]


def call_on_zeros(policy, structure, memory=None):
    """The outputs of a policy for two observations of zeros.

    Args:
        policy: Keras model.
        structure: `tf.TensorSpec`, or a structure of them: one observation.
        memory: `recurrent.RecurrentPolicy`, where the policy is to take one step.

    Raises:
        ValueError: when the policy does not take such observations, with both shapes.
    """
    zeros = keras.tree.map_structure(
        lambda leaf: tf.zeros((2, *leaf.shape), leaf.dtype), structure
    )
    wrong = ValueError, TypeError, KeyError, tf.errors.InvalidArgumentError, UserWarning
    try:
        with warnings.catch_warnings():
            # Keras says this and goes on, with arrays in each other's places.
            warnings.filterwarnings("error", ".*structure of `inputs`", UserWarning)
            if memory is not None:
                return memory.step(zeros, memory.initial(2))[0]
            return policy(zeros, training=False)
    except wrong as error:
        shapes = keras.tree.map_structure(lambda leaf: (None, *leaf.shape), structure)
        raise ValueError(
            "The policy does not take the observations of this environment. "
            f"Expected: an input of shape {shapes}. Received: {policy!r}, which says: "
            f"{error}"
        ) from error


def warn_inference_layers(policy):
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
