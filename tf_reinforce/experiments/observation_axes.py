"""Finds the axes of small observation spaces, and makes grids of observations."""

import math
from typing import NamedTuple

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce.data import spaces

MAX_AXES = 2  # observations with more numbers have no map
_MAX_WIDTH = 1e6  # wider bounds are replaced by the range of played episodes
_POINTS = {1: 401, 2: 121}  # points of a real axis, for one and for two axes
_MAX_VALUES = 1000  # values of an integer axis


class Axis(NamedTuple):
    """One number of an observation."""

    name: str
    leaf: int  # index of the array of the observation
    column: int  # index of the number in the flat array
    points: np.ndarray  # the values of the grid, in increasing order
    integer: bool


def count_numbers(space):
    """Returns how many numbers an observation of a Gymnasium space has."""
    leaves = keras.tree.flatten(spaces.to_nest(space))
    return sum(math.prod(leaf.shape) for leaf in leaves)


def find(space, observations):
    """Returns a list of one or two `Axis`, or `None` if the space has more numbers.

    The ends of an axis are the bounds of the space. If a bound is infinite, they are
    the ends of the range of `observations`, moved outwards by a twentieth of the range.

    Args:
        space: Gymnasium space of the observations.
        observations: `[N, …]` arrays, nested like the space: observations of episodes.
    """
    if not 1 <= count_numbers(space) <= MAX_AXES:
        return None
    leaves = keras.tree.flatten(spaces.to_nest(space))
    names = keras.tree.flatten(spaces.names(spaces.to_nest(space)))
    arrays = keras.tree.flatten(observations)
    axes = []
    for number, (leaf, name, array) in enumerate(zip(leaves, names, arrays)):
        rows = np.reshape(array, [len(array), -1])
        for index, (low, high, integer) in enumerate(_bounds(leaf)):
            label = f"{name}[{index}]" if math.prod(leaf.shape) > 1 else name
            column = rows[:, index].astype("float64")
            points = _points(low, high, integer, column, count_numbers(space))
            if points is None:
                return None
            axes.append(Axis(label, number, index, points, integer))
    return axes


def _bounds(leaf):
    """Yields low, high and whether the number is an integer, for each number."""
    if isinstance(leaf, gym.spaces.Discrete):
        return [(int(leaf.start), int(leaf.start + leaf.n - 1), True)]
    if isinstance(leaf, gym.spaces.MultiDiscrete):
        low = np.ravel(leaf.start)
        return [(a, a + n - 1, True) for a, n in zip(low, np.ravel(leaf.nvec))]
    if isinstance(leaf, gym.spaces.MultiBinary):
        return [(0, 1, True)] * math.prod(leaf.shape)
    integer = leaf.dtype.kind in "iu"
    return [(a, b, integer) for a, b in zip(np.ravel(leaf.low), np.ravel(leaf.high))]


def _points(low, high, integer, column, count):
    """Returns the points of an axis, or `None` if an integer axis has too many."""
    low, high = float(low), float(high)
    if not high - low < _MAX_WIDTH:
        margin = max(0.05 * (column.max() - column.min()), 1e-3)
        low, high = column.min() - margin, column.max() + margin
    if not integer:
        return np.linspace(low, high, _POINTS[count])
    low, high = round(low), round(high)
    return np.arange(low, high + 1) if high - low < _MAX_VALUES else None


def grid(space, axes):
    """Returns the observations at all points of the axes, `[N, …]` nested arrays.

    The last axis varies fastest, so that a result `[N]` has the shape of the axes in
    their order.
    """
    leaves = keras.tree.flatten(spaces.to_nest(space))
    columns = np.meshgrid(*(axis.points for axis in axes), indexing="ij")
    count = columns[0].size
    arrays = [np.zeros([count, math.prod(leaf.shape)], leaf.dtype) for leaf in leaves]
    for column, axis in zip(columns, axes):
        arrays[axis.leaf][:, axis.column] = column.ravel()
    shaped = [x.reshape(count, *leaf.shape) for x, leaf in zip(arrays, leaves)]
    return keras.tree.pack_sequence_as(spaces.to_nest(space), shaped)
