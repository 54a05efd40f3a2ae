"""Enumerates the actions of a head."""

import itertools
import math

import keras
import numpy as np

from tf_reinforce import heads

_MOST_ACTIONS = 100_000


def is_whole(head):
    """Whether the head makes whole-number actions, in all of their parts."""
    return all(
        spec.dtype.is_integer for spec in keras.tree.flatten(head.action_spec("float64"))
    )


def raw_actions(head, actions=None):
    """`[K, …]` every raw action of a head with whole-number actions, nested as these."""
    if actions is None:
        actions = _counted(head)
    raw = head.action_spec("float64")
    try:
        arrays = keras.tree.map_structure_up_to(raw, np.asarray, actions)
    except (TypeError, ValueError):
        raise ValueError(
            f"`actions` must be arrays, nested as the raw actions of {head!r}. "
            f"Received: {actions!r}"
        ) from None
    actions = keras.tree.map_structure(
        lambda spec, part: _checked(head, spec, part), raw, arrays
    )
    if len({len(part) for part in keras.tree.flatten(actions)}) > 1 or count(actions) < 2:
        raise ValueError(
            f"`actions` must be two or more raw actions of {head!r}. Received: "
            f"{[len(part) for part in keras.tree.flatten(actions)]} of them"
        )
    wrong = np.flatnonzero(~is_valid(head, actions))
    if len(wrong):
        raise ValueError(
            f"`actions` must be raw actions of {head!r}. Received: "
            f"{pick(actions, wrong[0])}, which `head.is_valid` refuses."
        )
    return actions


def is_valid(head, actions):
    """`[N]`: which of `[N, …]` are whole raw actions."""
    return rows(head.is_valid(actions)).all(axis=1)


def checked_mask(head, mask):
    """`[M]` int8, a mask that leaves the head a legal action."""
    mask = np.asarray(mask)
    if mask.shape != (head.mask_size,) or mask.dtype.kind not in "biu" or not mask.size:
        raise ValueError(
            f"A mask of {head!r} must be {head.mask_size} whole numbers, as "
            f"`head.flatten_mask` returns them. Received: {mask.tolist()}"
        )
    mask = mask.astype("int8")
    if not head.has_legal_action(mask):
        raise ValueError(
            f"A mask must leave {head!r} a legal action. Received: {mask.tolist()}"
        )
    return mask


def is_legal(head, actions, mask):
    """`[N]`: which of `[N, …]` raw actions are legal under a mask `[M]`."""
    masks = np.tile(mask, (1, count(actions), 1))
    return head.is_legal(pick(actions, None), masks)[0]


def count(actions):
    """`N` of `[N, …]`, or of a structure of them."""
    return len(keras.tree.flatten(actions)[0])


def pick(actions, index):
    """Some of `[N, …]`, or of a structure of them."""
    return keras.tree.map_structure(lambda part: part[index], actions)


def rows(actions):
    """`[N, …]`, or a structure of them, as one array `[N, places]`."""
    parts = keras.tree.flatten(actions)
    return np.concatenate([np.reshape(part, (len(part), -1)) for part in parts], axis=1)


def _checked(head, spec, part):
    if part.shape[1:] != tuple(spec.shape) or part.ndim == 0:
        raise ValueError(
            f"`actions` must be two or more raw actions of {head!r}, of the shape "
            f"(K, *{tuple(spec.shape)}). Received: shape {part.shape}"
        )
    if not np.can_cast(part.dtype, spec.dtype.name, "same_kind"):
        raise ValueError(
            f"`actions` of {head!r} must be of type {spec.dtype.name}. "
            f"Received: {part.dtype}"
        )
    return part.astype(spec.dtype.name)


def _counted(head):
    """Every action: of a composite, all combinations of those of its leaves."""
    if not isinstance(head, heads.Composite):
        return _counted_arrays(head)
    leaves = [_counted_arrays(leaf) for leaf in head.leaves]
    _refuse_too_many(head, [len(leaf) for leaf in leaves])
    grid = np.meshgrid(*(np.arange(len(leaf)) for leaf in leaves), indexing="ij")
    parts = [leaf[index.ravel()] for leaf, index in zip(leaves, grid, strict=True)]
    return keras.tree.pack_sequence_as(head.heads, parts)


def _counted_arrays(head):
    """Every array of whole numbers from 0 that the head accepts.

    How far to count is asked of each place alone, with zeros in all others.
    """
    ranges, size = [], math.prod(head.action_shape)
    for place in range(size):
        alone = np.zeros((_MOST_ACTIONS + 1, size), "int64")
        alone[:, place] = np.arange(_MOST_ACTIONS + 1)
        accepted = is_valid(head, alone.reshape(-1, *head.action_shape))
        ranges.append(1 + int(max(np.flatnonzero(accepted), default=-1)))
    _refuse_too_many(head, ranges)
    counted = np.array(list(itertools.product(*map(range, ranges))), head.action_dtype)
    counted = counted.reshape(-1, *head.action_shape)
    return counted[is_valid(head, counted)]


def _refuse_too_many(head, ranges):
    if not 0 < math.prod(ranges) <= _MOST_ACTIONS:
        raise ValueError(
            f"The raw actions of {head!r} cannot be counted: `head.is_valid` accepts "
            f"{ranges} numbers for its {len(ranges)} places; there may be at most "
            f"{_MOST_ACTIONS} combinations. Let `is_valid` say which there are, give all "
            "raw actions as `actions`, or take a smaller head of the same kind."
        )
