"""All raw actions of a head, where they can be counted."""

import itertools
import math

import numpy as np

_MOST_ACTIONS = 100_000


def is_whole(head):
    """Whether the head makes whole-number actions."""
    return head.action_dtype is not None and np.issubdtype(head.action_dtype, np.integer)


def raw_actions(head, actions=None):
    """`[K, …]` every raw action of a head with whole-number actions."""
    if actions is None:
        actions = _counted(head)
    actions = np.asarray(actions)
    if actions.shape[1:] != tuple(head.action_shape) or len(actions) < 2:
        raise ValueError(
            f"`actions` must be two or more raw actions of {head!r}, of the shape "
            f"(K, *{tuple(head.action_shape)}). Received: shape {actions.shape}"
        )
    if not np.can_cast(actions.dtype, head.action_dtype, "same_kind"):
        raise ValueError(
            f"`actions` of {head!r} must be of type {head.action_dtype}. "
            f"Received: {actions.dtype}"
        )
    wrong = np.flatnonzero(~possible(head, actions))
    if len(wrong):
        raise ValueError(
            f"`actions` must be raw actions of {head!r}. Received: {actions[wrong[0]]}, "
            "which `head.possible` refuses."
        )
    return actions.astype(head.action_dtype)


def possible(head, actions):
    """`[N]`: which of `[N, …]` are whole raw actions."""
    return np.reshape(head.possible(actions), (len(actions), -1)).all(axis=1)


def _counted(head):
    """Every array of whole numbers from 0 that the head accepts.

    How far to count is asked of each place alone, with zeros in all others.
    """
    ranges, size = [], math.prod(head.action_shape)
    for place in range(size):
        alone = np.zeros((_MOST_ACTIONS + 1, size), "int64")
        alone[:, place] = np.arange(_MOST_ACTIONS + 1)
        accepted = possible(head, alone.reshape(-1, *head.action_shape))
        ranges.append(1 + int(max(np.flatnonzero(accepted), default=-1)))
    count = math.prod(ranges)
    if not 0 < count <= _MOST_ACTIONS:
        raise ValueError(
            f"The raw actions of {head!r} cannot be counted: `head.possible` accepts "
            f"{ranges} numbers for its {size} places; there may be at most "
            f"{_MOST_ACTIONS} combinations. Let `possible` say which there are, give all "
            "raw actions as `actions`, or take a smaller head of the same kind."
        )
    counted = np.array(list(itertools.product(*map(range, ranges))), head.action_dtype)
    counted = counted.reshape(-1, *head.action_shape)
    return counted[possible(head, counted)]
