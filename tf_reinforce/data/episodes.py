"""Defines the record of whole episodes, one episode per column."""

import functools
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf


class Episodes(NamedTuple):
    """`B` whole episodes of at most `T` steps, from reset to end, one per column.

    The record contains no computed values, and no `done`. Rows after the last step of an
    episode are padding. Padding is always ignored, even if it is NaN.

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
    actions: tf.Tensor  # [T, B, ...]  as sampled, before clipping or offsets; may nest
    rewards: tf.Tensor  # [T, B]  as the environment returned them
    lengths: tf.Tensor  # [B] int: number of steps; later rows are padding
    terminated: tf.Tensor  # [B] bool: True: terminated; False: truncated
    masks: tf.Tensor | None = None  # [T, B, M] int8: zero if a choice is illegal

    @property
    def count(self):
        """The number of episodes, `B`."""
        return self.lengths.shape[0]


class ValidSteps(NamedTuple):
    """Indices of the `N` valid steps in `[T, B]`, without padding."""

    indices: tf.Tensor  # [N, 2]  (row, column), rows first
    shape: tf.Tensor  # [2]  (T, B)

    def gather(self, arrays):
        """Returns `[N, …]` for every `[T, B, …]` array of a structure.

        Arrays may have more than T rows, as observations do. These rows are left out.
        """
        return keras.tree.map_structure(
            lambda array: tf.gather_nd(array, self.indices), arrays
        )

    def zero_padding(self, arrays):
        """Returns `[T, B, …]` arrays with zeros in the padding; see `gather`."""
        is_valid = self.scatter(tf.ones(tf.shape(self.indices)[:1], tf.int32)) > 0

        def zeroed(array):
            shape = tf.concat([self.shape, tf.ones([len(array.shape) - 2], tf.int32)], 0)
            rows = array[: self.shape[0]]
            return tf.where(tf.reshape(is_valid, shape), rows, tf.zeros([], rows.dtype))

        return keras.tree.map_structure(zeroed, arrays)

    def scatter(self, values):
        """Returns `[T, B]` from `[N]` values, with zeros in the padding."""
        return tf.scatter_nd(self.indices, values, self.shape)


def valid(lengths, rows):
    """Returns `[rows, B]` bool: True for steps of an episode, False for padding.

    Example:

    >>> valid([1, 2], 2).numpy().tolist()
    [[True, True], [False, True]]
    """
    return tf.range(rows)[:, None] < tf.cast(lengths, tf.int32)[None]


def valid_steps(lengths, rows):
    """Returns the `ValidSteps` of episodes with these lengths in `[rows, B]`."""
    is_valid = valid(lengths, rows)
    return ValidSteps(tf.cast(tf.where(is_valid), tf.int32), tf.shape(is_valid))


def trim(episodes, rows=None):
    """Returns the record without the rows that are padding in every column.

    So a loss does not depend on the amount of padding, not even in the last bit.

    Args:
        episodes: `Episodes`.
        rows: Int, the number of steps to keep; the longest episode by default.
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
    """Returns one record with the episodes of several records, in their order.

    Args:
        records: List of `Episodes` with the same number of rows.
    """

    def concat(axis, *arrays):
        return tf.concat(arrays, axis)

    fields = zip(*records, strict=True)
    axes = 1, 1, 1, 0, 0, 1  # the axis of the episodes in each field
    return Episodes(
        *(
            keras.tree.map_structure(functools.partial(concat, axis), *arrays)
            for axis, arrays in zip(axes, fields, strict=True)
        )
    )


def select_episodes(episodes, begin, end):
    """Returns the episodes `begin` to `end - 1` of a record, as a record."""

    def columns(arrays):
        return keras.tree.map_structure(lambda array: array[:, begin:end], arrays)

    return Episodes(
        columns(episodes.observations),
        columns(episodes.actions),
        columns(episodes.rewards),
        episodes.lengths[begin:end],
        episodes.terminated[begin:end],
        None if episodes.masks is None else columns(episodes.masks),
    )


def specs(observation_spec, action_spec, mask_size):
    """Returns the `tf.TensorSpec`s of a record with any number of steps and episodes.

    Args:
        observation_spec, action_spec, mask_size: See `validate`.
    """
    spec = tf.TensorSpec

    def batched(structure):
        return keras.tree.map_structure(
            lambda leaf: spec((None, None, *leaf.shape), leaf.dtype), structure
        )

    return Episodes(
        batched(observation_spec),
        batched(action_spec),
        spec((None, None), tf.float64),
        spec((None,), tf.int32),
        spec((None,), tf.bool),
        spec((None, None, mask_size), tf.int8),
    )


def validate(episodes, observation_spec, action_spec, mask_size=0):
    """Returns the record as NumPy arrays of the expected types, or raises an error.

    TensorFlow broadcasts without a warning. For example, actions `[T, B, 1]` and
    log-probabilities `[T, B]` would make a wrong update. So every shape is checked, and
    nothing is broadcast.

    Args:
        episodes: `Episodes` of arrays or tensors.
        observation_spec: `tf.TensorSpec` of one observation, or a structure of them.
        action_spec: `tf.TensorSpec` of one raw action, or a structure of them. Floats are
            never converted to integers.
        mask_size: Int, `M`; zero if the agent does not mask actions.

    Returns:
        `Episodes` of NumPy arrays; rewards in float64, masks `[T, B, M]`.

    Raises:
        ValueError: If a field has a wrong shape, type or value; the message says which.
    """
    rewards = np.asarray(episodes.rewards)
    if rewards.ndim != 2 or rewards.size == 0:
        raise ValueError(
            "`rewards` must be [T, B] with at least one step and one episode. "
            f"Received: shape {rewards.shape}"
        )
    rows, count = rewards.shape
    lengths = _array("lengths", episodes.lengths, (count,), "int32")
    if lengths.min() < 1 or lengths.max() > rows:
        raise ValueError(
            f"`lengths` must lie in 1 to {rows}, the rows of the record. "
            f"Received: lengths={lengths.tolist()}"
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
    """Returns arrays `[*batch_shape, …]` with the structure and types of the spec."""
    try:
        keras.tree.assert_same_structure(spec, arrays)
    except ValueError:
        received = keras.tree.map_structure(np.shape, arrays)
        raise ValueError(
            f"`{name}` must be nested like the {name.removesuffix('s')} space. "
            f"Expected: {spec}. Received: arrays of the shapes {received}"
        ) from None
    return keras.tree.map_structure(
        lambda leaf, array: _array(
            name, array, (*batch_shape, *leaf.shape), leaf.dtype.name
        ),
        spec,
        arrays,
    )


def _masks(masks, shape):
    if masks is None and shape[-1]:
        raise ValueError(
            f"The agent uses action masks, and the record has none. Expected: `masks` of "
            f"the shape {shape}, int8. Received: None. Record masks with the episodes."
        )
    if masks is not None and not shape[-1] and np.shape(masks) != shape:
        raise ValueError(
            "The record has action masks, and the agent uses none. Expected: masks=None. "
            f"Received: masks of the shape {np.shape(masks)}. Create the agent with "
            '`Reinforce(policy, action_mask="info/action_mask")`.'
        )
    if masks is None:
        return np.zeros(shape, "int8")
    masks = np.asarray(masks)
    return _array(
        "masks", masks.astype("int8") if masks.dtype == bool else masks, shape, "int8"
    )


def _array(name, values, shape, dtype):
    values = np.asarray(values)
    if values.shape != shape:
        raise ValueError(
            f"`{name}` must have the shape {shape}. Received: shape {values.shape}. "
            "Nothing is broadcast; reshape the array."
        )
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        raise ValueError(
            f"`{name}` must be of type {dtype}. Received: {values.dtype}. "
            "Convert the array yourself, because a conversion may lose fractions."
        )
    return np.asarray(values, dtype)
