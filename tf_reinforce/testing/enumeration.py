"""Enumerates the raw actions of a head."""

import itertools
import math

import keras
import numpy as np

from tf_reinforce import heads

_MAX_ACTIONS = 100_000


def is_integer(head):
    """Returns whether all parts of the head's actions are integers."""
    return all(
        spec.dtype.is_integer for spec in keras.tree.flatten(head.action_spec("float64"))
    )


def raw_actions(head, actions=None):
    """Returns all K raw actions of a head with integer actions, as arrays `[K, …]`.

    A raw action is a sample of the head, before its conversion to environment units.

    Args:
        head: `tfr.heads.Head`.
        actions: `[K, …]` integers, all K raw actions, nested like the actions of the
            head. `actions` defaults to every array of non-negative integers that
            `head.is_valid` accepts.

    Raises:
        ValueError: If `actions` are not valid raw actions of the head, or the head has
            more than 100,000 actions.
    """
    if actions is None:
        actions = _all_actions(head)
    action_spec = head.action_spec("float64")
    try:
        arrays = keras.tree.map_structure_up_to(action_spec, np.asarray, actions)
    except (TypeError, ValueError):
        raise ValueError(
            f"`actions` must be arrays, nested like the raw actions of {head!r}. "
            f"Received: {actions!r}"
        ) from None
    actions = keras.tree.map_structure(
        lambda spec, part: _validate_part(head, spec, part), action_spec, arrays
    )
    if len({len(part) for part in keras.tree.flatten(actions)}) > 1 or count(actions) < 2:
        raise ValueError(
            f"`actions` must be two or more raw actions of {head!r}, with one row per "
            "action in every array. Received: arrays with "
            f"{[len(part) for part in keras.tree.flatten(actions)]} rows"
        )
    invalid = np.flatnonzero(~is_valid(head, actions))
    if len(invalid):
        raise ValueError(
            f"`actions` must be raw actions of {head!r}. Received: "
            f"{select(actions, invalid[0])}, which `head.is_valid` does not accept."
        )
    return actions


def is_valid(head, actions):
    """Returns `[N]` bool, True for each of N actions whose parts are all valid."""
    return to_matrix(head.is_valid(actions)).all(axis=1)


def validate_mask(head, mask):
    """Returns an action mask as a vector of int8, or raises an error if it is invalid."""
    mask = np.asarray(mask)
    if mask.shape != (head.mask_size,) or mask.dtype.kind not in "biu" or not mask.size:
        raise ValueError(
            f"An action mask of {head!r} must be {head.mask_size} whole numbers, in the "
            f"format of `head.flatten_mask`. Received: {mask.tolist()}"
        )
    mask = mask.astype("int8")
    if not head.has_legal_action(mask):
        raise ValueError(
            f"An action mask of {head!r} must have at least one legal action. Received: "
            f"{mask.tolist()}"
        )
    return mask


def is_legal(head, actions, mask):
    """Returns `[N]` bool, True for each of N raw actions that an action mask allows."""
    masks = np.tile(mask, (1, count(actions), 1))
    return head.is_legal(select(actions, None), masks)[0]


def count(actions):
    """Returns the number N of actions in an array `[N, …]` or in nested arrays."""
    return len(keras.tree.flatten(actions)[0])


def select(actions, index):
    """Returns the actions at an index of an array `[N, …]` or of nested arrays."""
    return keras.tree.map_structure(lambda part: part[index], actions)


def to_matrix(actions):
    """Returns N actions, an array `[N, …]` or nested arrays, as one matrix of N rows."""
    parts = keras.tree.flatten(actions)
    return np.concatenate([np.reshape(part, (len(part), -1)) for part in parts], axis=1)


def _validate_part(head, spec, part):
    if part.shape[1:] != tuple(spec.shape) or part.ndim == 0:
        raise ValueError(
            f"`actions` must be K ≥ 2 raw actions of {head!r}, with the shape (K, "
            f"*{tuple(spec.shape)}). Received: shape {part.shape}"
        )
    if not np.can_cast(part.dtype, spec.dtype.name, "same_kind"):
        raise ValueError(
            f"`actions` of {head!r} must be of type {spec.dtype.name}. "
            f"Received: {part.dtype}"
        )
    return part.astype(spec.dtype.name)


def _all_actions(head):
    """Returns all raw actions of a head, or all combinations of a composite's actions."""
    if not isinstance(head, heads.Composite):
        return _all_arrays(head)
    leaves = [_all_arrays(leaf) for leaf in head.leaves]
    _check_count(head, [len(leaf) for leaf in leaves])
    grid = np.meshgrid(*(np.arange(len(leaf)) for leaf in leaves), indexing="ij")
    parts = [leaf[index.ravel()] for leaf, index in zip(leaves, grid, strict=True)]
    return keras.tree.pack_sequence_as(head.heads, parts)


def _all_arrays(head):
    """Returns every array of non-negative integers that the head accepts as an action.

    For each entry, the enumeration ends at the largest integer that the head accepts if
    all other entries are zero.
    """
    sizes, num_entries = [], math.prod(head.action_shape)
    for entry in range(num_entries):
        candidates = np.zeros((_MAX_ACTIONS + 1, num_entries), "int64")
        candidates[:, entry] = np.arange(_MAX_ACTIONS + 1)
        accepted = is_valid(head, candidates.reshape(-1, *head.action_shape))
        sizes.append(1 + int(max(np.flatnonzero(accepted), default=-1)))
    _check_count(head, sizes)
    actions = np.array(list(itertools.product(*map(range, sizes))), head.action_dtype)
    actions = actions.reshape(-1, *head.action_shape)
    return actions[is_valid(head, actions)]


def _check_count(head, sizes):
    if not 0 < math.prod(sizes) <= _MAX_ACTIONS:
        raise ValueError(
            f"The raw actions of {head!r} cannot be enumerated: the parts of an action "
            f"must have 1 to {_MAX_ACTIONS} combinations of values. Received: "
            f"`head.is_valid` accepts {sizes} values for the {len(sizes)} parts. Change "
            "`is_valid`, pass all raw actions as `actions`, or use a smaller head of the "
            "same kind."
        )
