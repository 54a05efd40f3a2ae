"""Observations as `tf.TensorSpec`s."""

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import spaces


def observation_spec(space, float_dtype, keeps_float64=False):
    """Returns one observation as a structure of `tf.TensorSpec`, without batch axis.

    Args:
        space: A Gymnasium observation space.
        float_dtype: The float type in which the policy computes. Float observations are
            recorded in it, so acting and learning use the same bits; integers keep
            theirs.
        keeps_float64: Bool, whether float64 observations stay float64. Rounding before
            the normalization would lose small differences of large numbers.

    Example:

    >>> import gymnasium as gym
    >>> speed = gym.spaces.Box(0, 1, (2,))
    >>> observation_spec(gym.spaces.Dict(speed=speed), "float32")
    {'speed': TensorSpec(shape=(2,), dtype=tf.float32, name=None)}
    >>> observation_spec(gym.spaces.Discrete(3), "float32")
    TensorSpec(shape=(), dtype=tf.int64, name=None)
    """

    def leaf_spec(part):
        keeps = keeps_float64 and part.dtype == np.float64
        is_float = np.issubdtype(part.dtype, np.floating) and not keeps
        return tf.TensorSpec(part.shape, float_dtype if is_float else part.dtype)

    return keras.tree.map_structure(leaf_spec, spaces.to_nest(space))


def normalized_shapes(observation_spec, is_normalized):
    """Returns the shapes of normalized arrays with a batch axis, and `()` for others.

    Args:
        observation_spec: `tf.TensorSpec` of one observation, or a structure of them.
        is_normalized: List of bools, one for each array.

    Example:

    >>> spec = {"speed": tf.TensorSpec((2,)), "gear": tf.TensorSpec((), "int64")}
    >>> normalized_shapes(spec, [False, True])
    {'speed': (None, 2), 'gear': ()}
    """
    flags = keras.tree.pack_sequence_as(observation_spec, is_normalized)
    return keras.tree.map_structure(
        lambda leaf, flag: (None, *leaf.shape) if flag else (), observation_spec, flags
    )


def with_floats(observation_spec, is_normalized, float_dtype):
    """Returns a spec in which normalized arrays have the policy's float type.

    Args:
        observation_spec, is_normalized: As in `normalized_shapes`.
        float_dtype: The float type in which the policy computes.
    """
    flags = keras.tree.pack_sequence_as(observation_spec, is_normalized)
    return keras.tree.map_structure(
        lambda leaf, flag: tf.TensorSpec(leaf.shape, float_dtype) if flag else leaf,
        observation_spec,
        flags,
    )


def specs_from_shapes(shapes, float_dtype):
    """Returns an observation spec from shapes, for an agent without observation space.

    Args:
        shapes: Shape with the batch axis first, or dicts and tuples of them.
        float_dtype: The float type of every observation; shapes contain no types.

    Example:

    >>> specs_from_shapes({"speed": (None, 2)}, "float32")
    {'speed': TensorSpec(shape=(2,), dtype=tf.float32, name=None)}
    """
    if isinstance(shapes, dict):
        return {
            key: specs_from_shapes(child, float_dtype) for key, child in shapes.items()
        }
    if all(size is None or isinstance(size, int) for size in shapes):
        return tf.TensorSpec(tuple(shapes)[1:], float_dtype)
    return tuple(specs_from_shapes(child, float_dtype) for child in shapes)


def expect_shapes(agent_spec, environment_spec):
    """Raises `ValueError` if agent and environment differ in observation shapes."""
    expected, received = (
        keras.tree.map_structure(lambda leaf: tuple(leaf.shape), spec)
        for spec in (agent_spec, environment_spec)
    )
    if expected != received:
        raise ValueError(
            "The agent was built for observations of other shapes. Expected: "
            f"{expected}. Received: {received}"
        )
