"""Defines the record of whole episodes, one episode per column."""

import functools
from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf


class Episodes(NamedTuple):
    """`B` whole episodes of at most `T` steps, from reset to end, one per column.

    Facts only: nothing here is computed, and there is no `done`. Whatever stands
    behind an episode's last step is padding and never counts, NaN included.

    Example:

    >>> import numpy as np
    >>> one = Episodes(
    ...     observations=np.zeros((3, 1, 4), "float32"),
    ...     actions=np.array([[0], [1]], "int64"),
    ...     rewards=np.array([[1.0], [1.0]]),
    ...     lengths=np.array([2]),
    ...     terminated=np.array([True]),
    ... )
    >>> one.count
    1
    """

    observations: tf.Tensor  # [T + 1, B, ...]  row `length` follows the last action
    actions: tf.Tensor  # [T, B, ...]  as sampled: before clipping or offsets; may nest
    rewards: tf.Tensor  # [T, B]  as the environment gave them
    lengths: tf.Tensor  # [B] int: steps that happened; the rest is padding
    terminated: tf.Tensor  # [B] bool: the task ended it; False: the clock cut it
    masks: tf.Tensor | None = None  # [T, B, M] int8: zero where a choice is illegal

    @property
    def count(self):
        """`B`, the number of episodes."""
        return self.lengths.shape[0]


class ValidSteps(NamedTuple):
    """Addresses of `N` valid rows in `[T, B]`: where padding ends."""

    addresses: tf.Tensor  # [N, 2]  (row, column), rows first
    shape: tf.Tensor  # [2]  (T, B)

    def gather(self, columns):
        """`[T, B, …]` to `[N, …]`, for every array of a structure.

        Columns may have more than T rows, as observations do: these are passed over.
        """
        return keras.tree.map_structure(
            lambda array: tf.gather_nd(array, self.addresses), columns
        )

    def zero_padding(self, columns):
        """`[T, B, …]` with zeros in the padding, whatever stood there; see `gather`."""
        happened = self.scatter(tf.ones(tf.shape(self.addresses)[:1], tf.int32)) > 0

        def cleaned(array):
            shape = tf.concat([self.shape, tf.ones([len(array.shape) - 2], tf.int32)], 0)
            rows = array[: self.shape[0]]
            return tf.where(tf.reshape(happened, shape), rows, tf.zeros([], rows.dtype))

        return keras.tree.map_structure(cleaned, columns)

    def scatter(self, values):
        """`[N]` back to `[T, B]`, with zeros in the padding."""
        return tf.scatter_nd(self.addresses, values, self.shape)


def valid(lengths, rows):
    """`[rows, B]` bool: True where a step happened.

    Example:

    >>> valid([1, 2], 2).numpy().tolist()
    [[True, True], [False, True]]
    """
    return tf.range(rows)[:, None] < tf.cast(lengths, tf.int32)[None]


def valid_steps(lengths, rows):
    """The addresses of the valid entries of `[rows, B]`; see `ValidSteps`."""
    inside = valid(lengths, rows)
    return ValidSteps(tf.cast(tf.where(inside), tf.int32), tf.shape(inside))


def trim(episodes, rows=None):
    """Cuts the rows that are padding in every column, or all behind so many.

    With it a loss does not know how much padding a record carried, to the last bit.
    """
    rows = tf.reduce_max(episodes.lengths) if rows is None else rows

    def first(columns, rows):
        return keras.tree.map_structure(lambda array: array[:rows], columns)

    return episodes._replace(
        observations=first(episodes.observations, rows + 1),
        actions=first(episodes.actions, rows),
        rewards=episodes.rewards[:rows],
        masks=None if episodes.masks is None else episodes.masks[:rows],
    )


def concatenate(parts):
    """Records of so many rows each as one record, one's episodes after the other's."""

    def joined(axis, *arrays):
        return tf.concat(arrays, axis)

    fields = zip(*parts, strict=True)
    axes = 1, 1, 1, 0, 0, 1  # of the episodes
    return Episodes(
        *(
            keras.tree.map_structure(functools.partial(joined, axis), *arrays)
            for axis, arrays in zip(axes, fields, strict=True)
        )
    )


def select_episodes(episodes, begin, end):
    """Some episodes of a record, as a record."""

    def only(columns):
        return keras.tree.map_structure(lambda array: array[:, begin:end], columns)

    return Episodes(
        only(episodes.observations),
        only(episodes.actions),
        only(episodes.rewards),
        episodes.lengths[begin:end],
        episodes.terminated[begin:end],
        None if episodes.masks is None else only(episodes.masks),
    )


def specs(structure, raw, mask_size):
    """The record as `tf.TensorSpec`s for any number of steps and episodes."""
    spec = tf.TensorSpec

    def columns(structure):
        return keras.tree.map_structure(
            lambda leaf: spec((None, None, *leaf.shape), leaf.dtype), structure
        )

    return Episodes(
        columns(structure),
        columns(raw),
        spec((None, None), tf.float64),
        spec((None,), tf.int32),
        spec((None,), tf.bool),
        spec((None, None, mask_size), tf.int8),
    )


def validate(episodes, structure, raw, mask_size=0):
    """Returns the record as NumPy arrays of the expected types, or refuses it.

    TensorFlow broadcasts in silence: actions `[T, B, 1]` under log-probabilities
    `[T, B]` would teach nonsense. Here nothing broadcasts.

    Args:
        episodes: `Episodes` of arrays or tensors.
        structure: `tf.TensorSpec`, or a structure of them: one observation.
        raw: The same for one raw action; whole numbers are never made from fractions.
        mask_size: Int, `M`; zero where no action is ever illegal.

    Returns:
        `Episodes` of NumPy arrays; rewards in float64, masks `[T, B, M]`.

    Raises:
        ValueError: naming the field, its shape or value, and what was expected.
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
        _columns("observations", episodes.observations, structure, (rows + 1, count)),
        _columns("actions", episodes.actions, raw, (rows, count)),
        _array("rewards", rewards, (rows, count), "float64"),
        lengths,
        _array("terminated", episodes.terminated, (count,), "bool"),
        _masks(episodes.masks, (rows, count, mask_size)),
    )


def _columns(name, columns, structure, leading):
    """Arrays `[*leading, …]`, nested as the structure and of its types."""
    try:
        keras.tree.assert_same_structure(structure, columns)
    except ValueError:
        received = keras.tree.map_structure(np.shape, columns)
        raise ValueError(
            f"`{name}` must be nested as the {name.removesuffix('s')} space. "
            f"Expected: {structure}. Received arrays of the shapes {received}"
        ) from None
    return keras.tree.map_structure(
        lambda leaf, array: _array(name, array, (*leading, *leaf.shape), leaf.dtype.name),
        structure,
        columns,
    )


def _masks(masks, shape):
    if masks is None and shape[-1]:
        raise ValueError(
            f"The agent acts under masks, and the record has none. Expected: `masks` of "
            f"the shape {shape}, int8. Received: None. Record them with the episodes."
        )
    if masks is not None and not shape[-1] and np.shape(masks) != shape:
        raise ValueError(
            "The record has masks, and the agent uses none. Make it with "
            '`Reinforce(policy, action_mask="info/action_mask")`. Received: masks of the '
            f"shape {np.shape(masks)}"
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
            "Nothing is broadcast: reshape it."
        )
    if not np.can_cast(values.dtype, dtype, "same_kind"):
        raise ValueError(
            f"`{name}` must be of type {dtype}. Received: {values.dtype}. "
            "Convert it, so that no fraction is cut in silence."
        )
    return np.asarray(values, dtype)
