"""Action masks of a tensor environment, as tensors."""

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
        self._path, self._layout = path, layout

    @property
    def size(self):
        """M, the number of entries of a flat mask."""
        return self._layout.size

    def flat(self, state, observation, count):
        """Returns `[B, M]` int8, the masks of B states, as `MaskLayout.flatten` would.

        An entry that is not accepted there becomes -1.

        Args:
            state: The states of the environment.
            observation: Their observations.
            count: Int, B.

        Raises:
            ValueError: If there is no mask at the path, or a part of it has a wrong
                number of entries.
        """
        mask = {"action_mask": self.env.action_mask(state)}
        try:
            mask = self._path.lookup(observation, mask)
        except KeyError:
            mask = None
        if mask is None:
            raise ValueError(
                f"`action_mask` must be the place of a mask in {self.env!r}: a part of "
                "the observation, or 'info/action_mask' if its method `action_mask` "
                f"returns one. Received: action_mask={self._path.where!r}"
            )
        layouts, parts = self._layout.parts(), spaces.flatten(mask)
        if len(layouts) != len(parts):
            raise ValueError(
                f"An action mask of {self._layout.owner} must have {len(layouts)} parts. "
                f"Received: {len(parts)} parts from {self.env!r}"
            )
        pairs = zip(layouts, parts, strict=True)
        return tf.concat([self._flat_part(*pair, count) for pair in pairs], axis=1)

    def _flat_part(self, layout, part, count):
        largest = layout.largest
        if part is None:  # every action is legal
            return tf.fill([count, layout.size], tf.constant(largest, tf.int8))
        part = tf.reshape(part, [count, -1])
        if part.shape[1] != layout.size:
            raise ValueError(
                f"An action mask of {layout.owner} must have {layout.size} entries. "
                f"Received: {part.shape[1]} entries from {self.env!r}"
            )
        if part.dtype.is_bool or not (layout.is_flags or part.dtype.is_floating):
            return tf.cast(tf.cast(part, tf.bool), tf.int8)
        values = tf.cast(tf.range(largest + 1), part.dtype)
        is_valid = tf.reduce_any(part[..., None] == values, axis=-1)
        return tf.where(is_valid, tf.cast(part, tf.int8), tf.constant(_INVALID, tf.int8))

    def has_legal_action(self, masks):
        """Returns `[B]` bool, whether each flat mask is valid and allows an action."""
        valid = tf.reduce_all(masks != _INVALID, axis=1)
        for first, end in self._layout.choices():
            valid &= tf.reduce_any(masks[:, first:end] > 0, axis=1)
        return valid
