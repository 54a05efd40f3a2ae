"""Splits arrays of actions into one action for each environment."""

import gymnasium as gym
import numpy as np

from tf_reinforce.data import nests
from tf_reinforce.data import spaces


def action_unbatcher(space):
    """Returns a function that splits arrays `[size, …]` into a list of `size` actions."""
    nest = spaces.to_nest(space)
    leaves = nests.flatten(nest)
    unbatchers = [_leaf_unbatcher(leaf) for leaf in leaves]
    if nest is leaves[0]:
        return lambda env_actions: unbatchers[0](env_actions[0])
    indices = nests.pack(nest, list(range(len(leaves))))

    def unbatch(env_actions):
        columns = [f(array) for f, array in zip(unbatchers, env_actions, strict=True)]
        return [_pack(indices, parts) for parts in zip(*columns, strict=True)]

    return unbatch


def _leaf_unbatcher(leaf):
    """Returns a function that lists the rows of an array in the number type of a space.

    For a `Box` of shape (), the list contains arrays of shape (), not NumPy scalars,
    because a member of a `Box` is an array.
    """
    dtype = leaf.dtype
    is_scalar_box = isinstance(leaf, gym.spaces.Box) and not leaf.shape
    to_list = _scalar_arrays if is_scalar_box else list
    return lambda array: to_list(array if array.dtype is dtype else array.astype(dtype))


def _scalar_arrays(array):
    """Returns the numbers of an array `[size]` as a list of arrays of shape ()."""
    return [np.array(action) for action in array]


def _pack(indices, parts):
    """Returns one action, nested like its space, from the list of its parts."""
    if isinstance(indices, dict):
        return {key: _pack(index, parts) for key, index in indices.items()}
    if isinstance(indices, tuple):
        return tuple(_pack(index, parts) for index in indices)
    return parts[indices]
