"""Reads and checks the masks of legal actions of a tensor environment, as tensors."""

import tensorflow as tf

from tf_reinforce.data import mask_layouts
from tf_reinforce.data import nests


class MaskInGraph:
    """The action masks of a tensor environment, as flat tensors.

    Args:
        env: `TensorEnv` with action masks.
        path: `action_masks.MaskPath`, the place of the mask: `"info/action_mask"` for the
            method `action_mask` of the environment, or a part of the observation.
        layout: `mask_layouts.MaskLayout` of the head, with M entries.
    """

    def __init__(self, env, path, layout):
        self._env, self._path, self._layout = env, path, layout

    @property
    def size(self):
        """Returns M, the number of entries of a flat mask."""
        return self._layout.size

    def flat(self, state, observation):
        """Returns `[B, M]` int8, the masks of B states, as `MaskLayout.flatten` does.

        Raises:
            ValueError: If the environment has no mask at the path, or if the mask does
                not have M entries.
        """
        mask = self._env.action_mask(state)
        try:
            mask = self._path.lookup(observation, {"action_mask": mask})
        except KeyError:
            mask = None
        if mask is None:
            raise ValueError(
                f"`action_mask` must be the place of a mask in {self._env!r}. Expected: "
                "'info/action_mask' for an environment whose method `action_mask` "
                "returns the legal actions, or a part of the observation. Received: "
                f"action_mask={self._path.where!r}"
            )
        leaves = [leaf for leaf in nests.flatten(mask) if leaf is not None]
        count = leaves[0].shape[0]
        flat = [tf.cast(tf.reshape(leaf, [count, -1]), tf.int8) for leaf in leaves]
        flat = tf.concat(flat, axis=1)
        if flat.shape[1] != self.size:
            raise ValueError(
                f"An action mask of {self._layout.owner} must have {self.size} entries. "
                f"Received: {flat.shape[1]} entries from {self._env!r}"
            )
        return flat

    def has_legal_action(self, masks):
        """Returns `[B]` bool, whether each flat mask is valid, and allows an action.

        A valid mask contains zeros, ones and twos; for flags, two allows both values.
        """
        valid = tf.reduce_all((masks >= 0) & (masks <= mask_layouts.FREE), axis=1)
        for first, end in self._layout.choices():
            valid &= tf.reduce_any(masks[:, first:end] != 0, axis=1)
        return valid
