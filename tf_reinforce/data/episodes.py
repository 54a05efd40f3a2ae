"""The record of whole episodes, one per column, and the specs of its observations."""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import spaces
from tf_reinforce.functional import shapes


class Episodes(NamedTuple):
    """`B` whole episodes of at most `T` steps, one episode per column.

    `Episodes` holds only what was recorded, and nothing that is computed later, such as
    returns. The rows after the last step of an episode are padding. The padding never
    changes an update or a statistic, even if it is NaN.

    Example:

    >>> import numpy as np
    >>> episodes = Episodes(
    ...     observations=np.zeros((3, 1, 4), "float32"),
    ...     actions=np.array([[0], [1]], "int64"),
    ...     rewards=np.array([[1.0], [1.0]]),
    ...     lengths=np.array([2]),
    ...     terminated=np.array([True]),
    ... )
    >>> episodes.count
    1
    """

    observations: tf.Tensor  # [T + 1, B, ...]  row `length` follows the last action
    actions: tf.Tensor  # [T, B, ...]  as sampled, before clipping; may be nested
    rewards: tf.Tensor  # [T, B]  as the environment returned the rewards
    lengths: tf.Tensor  # [B] int: number of steps of each episode; later rows are padding
    terminated: tf.Tensor  # [B] bool: True if the episode terminated, False if truncated
    masks: tf.Tensor | None = None  # [T, B, M] int8: zero marks an illegal action

    @property
    def count(self):
        """Returns the number of episodes, `B`."""
        return self.lengths.shape[0]


_EPISODE_AXES = 1, 1, 1, 0, 0, 1  # axis of the episodes in each field of the record


class ValidSteps(NamedTuple):
    """Indices of the `N` steps, without padding, in arrays of `T` rows, `B` episodes."""

    indices: tf.Tensor  # [N, 2]  (row, column) of each valid step, sorted by row
    shape: tf.Tensor  # [2]  the sizes T and B

    def gather(self, arrays):
        """Returns the valid steps, `[N, …]`, of each array in a structure.

        Arrays have B columns and at least T rows. Rows beyond T are dropped.
        """
        return keras.tree.map_structure(lambda x: tf.gather_nd(x, self.indices), arrays)

    def zero_padding(self, arrays):
        """Returns `[T, B, …]` arrays with zeros for padding."""
        is_valid = self.scatter(tf.ones(tf.shape(self.indices)[:1], tf.int32)) > 0

        def zeroed(array):
            shape = tf.concat([self.shape, tf.ones([len(array.shape) - 2], tf.int32)], 0)
            rows = array[: self.shape[0]]
            return tf.where(tf.reshape(is_valid, shape), rows, tf.zeros([], rows.dtype))

        return keras.tree.map_structure(zeroed, arrays)

    def scatter(self, values):
        """Returns `[T, B]` with N values at the valid steps, else zeros."""
        return tf.scatter_nd(self.indices, values, self.shape)


def valid(lengths, rows):
    """Returns `[rows, B]` bools, False for padding.

    Example:

    >>> valid([1, 2], 2).numpy().tolist()
    [[True, True], [False, True]]
    """
    return tf.range(rows)[:, None] < tf.cast(lengths, tf.int32)[None]


def valid_steps(lengths, rows):
    """Returns the `ValidSteps` of arrays of `rows` rows, from the episodes' lengths."""
    is_valid = valid(lengths, rows)
    return ValidSteps(tf.cast(tf.where(is_valid), tf.int32), tf.shape(is_valid))


def trim(episodes, rows=None):
    """Removes rows that are padding in every episode.

    Their number does not change the loss, not even in the last bit.

    Args:
        episodes: `Episodes`.
        rows: Int, the rows to keep, by default the longest episode's length.
    """
    rows = tf.reduce_max(episodes.lengths) if rows is None else rows

    def first_rows(arrays, rows):
        return keras.tree.map_structure(lambda array: array[:rows], arrays)

    return episodes._replace(
        observations=first_rows(episodes.observations, rows + 1),
        actions=first_rows(episodes.actions, rows),
        rewards=episodes.rewards[:rows],
        masks=None if episodes.masks is None else episodes.masks[:rows],
    )


def concatenate(records):
    """Joins several `Episodes` in order.

    Args:
        records: List of `Episodes`, whose arrays have the same number of rows.
    """

    def join(axis, *arrays):
        return keras.tree.map_structure(lambda *parts: tf.concat(parts, axis), *arrays)

    return Episodes(*map(join, _EPISODE_AXES, *records))


def select_episodes(episodes, begin, end):
    """Returns the episodes `begin` to `end - 1`."""

    def select(axis, arrays):
        if arrays is None:
            return None
        columns = (slice(None),) * axis + (slice(begin, end),)
        return keras.tree.map_structure(lambda array: array[columns], arrays)

    return Episodes(*map(select, _EPISODE_AXES, episodes))


def specs(observation_spec, action_spec, mask_size):
    """Returns the `tf.TensorSpec`s of `Episodes` of any size.

    Args:
        observation_spec, action_spec, mask_size: As in `validate`.
    """
    spec = tf.TensorSpec
    return Episodes(
        with_axes(observation_spec, None, None),
        with_axes(action_spec, None, None),
        spec((None, None), tf.float64),
        spec((None,), tf.int32),
        spec((None,), tf.bool),
        spec((None, None, mask_size), tf.int8),
    )


def validate(episodes, observation_spec, action_spec, mask_size=0):
    """Returns `Episodes` as NumPy arrays of the expected types, or raises an error.

    Every shape is compared with the specs, because TensorFlow broadcasts wrong shapes
    without a warning. For example, actions `[T, B, 1]` instead of `[T, B]` could cause a
    wrong update.

    Args:
        episodes: `Episodes` of arrays or tensors.
        observation_spec: `tf.TensorSpec` of one observation, or a structure of them.
        action_spec: The same for one raw action, as sampled before clipping. Float
            actions are never converted to integers.
        mask_size: Int, the entries `M` of an action mask; zero if the agent has none.

    Returns:
        `Episodes` of NumPy arrays, with rewards in float64 and masks `[T, B, M]`.

    Raises:
        ValueError: If a field has a wrong shape, type or value.
    """
    rewards = shapes.unmasked("rewards", episodes.rewards)
    if rewards.ndim != 2 or rewards.size == 0:
        raise ValueError(
            "`rewards` must be [T, B] with at least one step and one episode. "
            f"Received: shape {rewards.shape}"
        )
    rows, count = rewards.shape
    lengths = _array("lengths", episodes.lengths, (count,), "int32")
    if lengths.min() < 1 or lengths.max() > rows:
        raise ValueError(
            f"`lengths` must lie between 1 and {rows}, the number of rows of the "
            f"record. Received: lengths={lengths.tolist()}"
        )
    return Episodes(
        _nested(
            "observations", episodes.observations, observation_spec, (rows + 1, count)
        ),
        _nested("actions", episodes.actions, action_spec, (rows, count)),
        _array("rewards", rewards, (rows, count), "float64"),
        lengths,
        _array("terminated", episodes.terminated, (count,), "bool"),
        _masks(episodes.masks, (rows, count, mask_size)),
    )


def _nested(name, arrays, spec, batch_shape):
    """Returns arrays nested and typed like `spec`, with leading axes `batch_shape`."""
    try:
        keras.tree.assert_same_structure(spec, arrays)
    except ValueError:
        received = keras.tree.map_structure(np.shape, arrays)
        raise ValueError(
            f"`{name}` must be nested like the {name.removesuffix('s')} space. "
            f"Expected: {spec}. Received: arrays of the shapes {received}"
        ) from None

    def check(leaf, array):
        return _array(name, array, (*batch_shape, *leaf.shape), leaf.dtype.name)

    return keras.tree.map_structure(check, spec, arrays)


def _masks(masks, shape):
    if masks is None and not shape[-1]:
        return np.zeros(shape, "int8")
    if masks is None or not shape[-1] and np.shape(masks) != shape:
        raise ValueError(
            "Episodes have `masks` if and only if the agent has an `action_mask`. "
            f"Expected: masks of the shape {shape}. Received: "
            f"{None if masks is None else np.shape(masks)}"
        )
    return _array("masks", masks, shape, "int8")


def _array(name, values, shape, dtype):
    values = shapes.unmasked(name, values)
    if values.shape != shape:
        raise ValueError(
            f"`{name}` must have the shape {shape}. Received: shape {values.shape}. "
            "Arrays of a record are not broadcast. Reshape the array."
        )
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        raise ValueError(
            f"`{name}` must be of type {dtype}. Received: {values.dtype}. Convert the "
            "array explicitly, because a conversion may lose fractions."
        )
    return np.asarray(values, dtype)


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


def with_axes(spec, *sizes):
    """Returns a nested spec with leading axes of these sizes, `None` for any size."""
    return keras.tree.map_structure(
        lambda leaf: tf.TensorSpec((*sizes, *leaf.shape), leaf.dtype), spec
    )


def shapes_with_axes(spec, *sizes):
    """Returns the shapes of a nested spec as tuples, with leading axes of these sizes."""
    return keras.tree.map_structure(lambda leaf: (*sizes, *leaf.shape), spec)


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
        shapes: Shape with the batch axis first, or dicts, tuples and lists of them.
        float_dtype: The float type of every observation; shapes contain no types.

    Example:

    >>> specs_from_shapes({"speed": (None, 2)}, "float32")
    {'speed': TensorSpec(shape=(2,), dtype=tf.float32, name=None)}
    """
    return keras.tree.map_shape_structure(
        lambda shape: tf.TensorSpec(shape[1:], float_dtype),
        keras.tree.lists_to_tuples(shapes),  # files contain lists
    )


def expect_shapes(agent_spec, environment_spec):
    """Raises `ValueError` if agent and environment differ in observation shapes."""
    expected, received = map(shapes_with_axes, (agent_spec, environment_spec))
    if expected != received:
        raise ValueError(
            "The agent was built for observations of other shapes. Expected: "
            f"{expected}. Received: {received}"
        )
