"""Enumerates a head's raw actions."""

import keras
import numpy as np

from tf_reinforce import heads
from tf_reinforce.heads import base
from tf_reinforce.support import validation

_MAX_ACTIONS = 100_000


def build(head):
    """Builds a head if it is not built; raises `TypeError` if it is no head."""
    validation.instance("head", head, heads.Head)
    if not head.built:
        head.build((None, head.outputs_size))


def is_integer(head):
    """Returns whether a head's actions consist of integers only."""
    specs = keras.tree.flatten(head.action_spec("float64"))
    return all(spec.dtype.is_integer for spec in specs)


def raw_actions(head):
    """Returns all K raw actions of a head with integer actions, as arrays `[K, …]`.

    Raw actions are the head's samples, before their conversion to environment units. They
    are all arrays of non-negative integers that `head.is_valid` accepts, and for a
    composite, all combinations of those of its parts.

    Raises:
        ValueError: If the head has real actions, or more than 100,000 actions.
    """
    if not is_integer(head):
        raise ValueError(
            f"`head` must have integer actions, which are enumerated. Received: {head!r}"
        )
    leaves = getattr(head, "leaves", None)
    arrays = base.combinations(leaves or [head], _MAX_ACTIONS)
    if arrays is None:
        raise ValueError(
            f"The raw actions of {head!r} cannot be enumerated: `head.is_valid` must "
            f"accept 1 to {_MAX_ACTIONS} combinations of numbers. Change it, or use a "
            "smaller head."
        )
    return keras.tree.pack_sequence_as(head.heads, arrays) if leaves else arrays[0]


def validate_mask(head, mask):
    """Returns an action mask as an int8 vector, or raises an error if it is invalid."""
    mask = np.asarray(mask)
    is_mask = mask.shape == (head.mask_size,) and mask.dtype.kind in "biu" and mask.size
    if not is_mask or not head.has_legal_action(mask.astype("int8")):
        raise ValueError(
            f"An action mask of {head!r} must be {head.mask_size} whole numbers, in the "
            "format of `head.flatten_mask`, and must have at least one legal action. "
            f"Received: {mask.tolist()}"
        )
    return mask.astype("int8")


def is_legal(head, actions, mask):
    """Returns `[N]` bool, True for each raw action that the mask allows."""
    masks = np.tile(mask, (1, count(actions), 1))
    return head.is_legal(select(actions, None), masks)[0]


def count(actions):
    """Returns N for an array `[N, …]` of actions, or for nested arrays."""
    return len(keras.tree.flatten(actions)[0])


def select(actions, index):
    """Returns the actions at an index into an array `[N, …]`, or into nested arrays."""
    return keras.tree.map_structure(lambda part: part[index], actions)


def to_matrix(actions):
    """Returns N actions, an array `[N, …]` or nested arrays, as one matrix of N rows."""
    parts = keras.tree.flatten(actions)
    return np.concatenate([np.reshape(part, (len(part), -1)) for part in parts], axis=1)
