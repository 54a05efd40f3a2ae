"""Action masks of a tensor environment, as tensors."""

import contextlib

import tensorflow as tf

from tf_reinforce.data import spaces

_INVALID = -1  # instead of an entry that the host engine does not accept


class MaskInGraph:
    """The action masks of a tensor environment, as flat tensors.

    Args:
        env: `TensorEnv` with action masks.
        path: `action_masks.MaskPath`: `"info/action_mask"` for the environment's method
            `action_mask`, or a part of the observation.
        layout: `action_masks.MaskLayout` of the head, with M entries.
    """

    def __init__(self, env, path, layout):
        self.env = env
        self.size = layout.size  # M
        self._path, self._layout = path, layout

    def flat(self, state, observation, count):
        """Returns `[B, M]` int8, the masks of B states, as `MaskLayout.flatten` would.

        An entry that is not accepted there becomes -1.

        Args:
            state: The states of the environment.
            observation: Their observations.
            count: Int, B.

        Raises:
            ValueError: If there is no mask of M entries at the path.
        """
        mask = {"action_mask": self.env.action_mask(state)}
        layouts, parts = self._layout.parts(), [None]
        with contextlib.suppress(KeyError):
            parts = spaces.flatten(self._path.lookup(observation, mask))
        flat = [None if part is None else tf.reshape(part, [count, -1]) for part in parts]
        expected = [layout.size for layout in layouts]
        sizes = [None if part is None else part.shape[1] for part in flat]
        has_mask = len(sizes) == len(expected) and sizes != [None]
        if not (has_mask and all(x in (None, y) for x, y in zip(sizes, expected))):
            raise ValueError(
                "`action_mask` must be the place of a mask, with parts of "
                f"{expected} entries, in {self.env!r}: a part of the observation, or "
                "'info/action_mask' if its method `action_mask` returns one. Received: "
                f"{sizes} entries at action_mask={self._path.where!r}"
            )
        pairs = zip(layouts, flat, strict=True)
        return tf.concat([_flat_part(*pair, count) for pair in pairs], axis=1)

    def has_legal_action(self, masks):
        """Returns `[B]` bool, whether each flat mask is valid and allows an action."""
        valid = tf.reduce_all(masks != _INVALID, axis=1)
        for first, end in self._layout.choices():
            valid &= tf.reduce_any(masks[:, first:end] > 0, axis=1)
        return valid


def _flat_part(layout, part, count):
    if part is None:  # every action is legal
        return tf.fill([count, layout.size], tf.constant(layout.largest, tf.int8))
    if part.dtype.is_bool or not (layout.is_flags or part.dtype.is_floating):
        return tf.cast(tf.cast(part, tf.bool), tf.int8)
    values = tf.cast(tf.range(layout.largest + 1), part.dtype)
    is_valid = tf.reduce_any(part[..., None] == values, axis=-1)
    return tf.where(is_valid, tf.cast(part, tf.int8), tf.constant(_INVALID, tf.int8))
