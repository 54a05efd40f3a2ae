"""Finds observations that are outside the bounds of the observation space."""

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce.data import spaces


def outside_bounds(space, episodes):
    """Describes an observation outside its bounds, or returns `None` if there is none.

    Args:
        space: The observation space of one environment.
        episodes: `Episodes` of NumPy arrays.

    Returns:
        A text with the episode and the step of the first observation outside its bounds,
        its first component outside, the bounds and the range of this component; or
        `None`.
    """
    nest = spaces.to_nest(space)
    names = keras.tree.flatten(spaces.names(nest))
    leaves = keras.tree.flatten(nest)
    arrays = keras.tree.flatten(episodes.observations)
    for name, leaf, array in zip(names, leaves, arrays, strict=True):
        if isinstance(leaf, gym.spaces.Box) and _has_bounds(leaf):
            # Round the bounds like the observations, so that rounding moves no
            # observation outside.
            low, high = leaf.low.astype(array.dtype), leaf.high.astype(array.dtype)
            # In parts, so that long episodes need no memory for the comparisons.
            parts = (array[i : i + 1024] for i in range(0, len(array), 1024))
            if any((x < low).any() or (x > high).any() for x in parts):
                text = _describe(name, array, low, high, episodes.lengths)
                if text is not None:
                    return text
    return None


def _has_bounds(box):
    """Returns whether a value of the number type can be outside the bounds of a box."""
    if box.dtype.kind == "f":
        return bool(np.isfinite([box.low, box.high]).any())
    lowest, highest = False, True
    if box.dtype.kind != "b":
        lowest, highest = np.iinfo(box.dtype).min, np.iinfo(box.dtype).max
    return bool((box.low > lowest).any() or (box.high < highest).any())


def _describe(name, array, low, high, lengths):
    rows = np.arange(len(array))[:, None]
    valid = (rows <= lengths).reshape(*array.shape[:2], *[1] * (array.ndim - 2))
    outside = ((array < low) | (array > high)) & valid
    if not outside.any():  # only padding is outside
        return None
    row, episode, *component = map(int, np.argwhere(outside)[0])
    values = array[(slice(None), slice(None), *component)][valid.reshape(array.shape[:2])]
    place = tuple(component)
    step = "the first observation" if row == 0 else f"step {row - 1}"
    count = int(outside.any(axis=(0, 1)).sum())
    return (
        f"episode {episode}, {step}: component {component} of {name!r} is "
        f"{array[row, episode][place]}. The bounds of the component are "
        f"[{low[place]}, {high[place]}], and it was between {values.min()} and "
        f"{values.max()} in the {len(lengths)} episodes of this collection. {count} of "
        f"{low.size} components were outside their bounds. The training continues. "
        "Correct the observation space of the environment, or clip the observations."
    )
