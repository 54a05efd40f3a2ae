"""Tests axes and grids of small observation spaces."""

import math
import operator

import gymnasium as gym
import keras
import numpy as np
import pytest

from tf_reinforce.experiments import observation_axes

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete
VISITED = np.array([[0.0, 5.0], [2.0, 5.0]], np.float32)


def test_axes_have_the_bounds_of_the_space_or_the_visited_range():
    """The visited range is moved outwards by a twentieth, and has no width of zero."""
    space = Box(np.float32([-1, -np.inf]), np.float32([3, np.inf]))
    first, second = observation_axes.find(space, VISITED)
    assert (first.points[0], first.points[-1]) == (-1, 3)
    assert first.name == "observation[0]" and not first.integer
    np.testing.assert_allclose(second.points[[0, -1]], [4.999, 5.001], rtol=1e-6)
    infinite = Box(-np.inf, np.inf, (1,), np.float32)
    [axis] = observation_axes.find(infinite, VISITED[:, :1])
    np.testing.assert_allclose(axis.points[[0, -1]], [-0.1, 2.1], rtol=1e-6)


@pytest.mark.parametrize(
    ("space", "points"),
    [
        (Discrete(4, start=2), [[2, 3, 4, 5]]),
        (gym.spaces.MultiDiscrete([2, 3], start=[0, 7]), [[0, 1], [7, 8, 9]]),
        (gym.spaces.MultiBinary(2), [[0, 1], [0, 1]]),
        (gym.spaces.Dict(b=Discrete(2), a=Discrete(1)), [[0], [0, 1]]),
        (
            gym.spaces.Tuple([Discrete(2), Box(-2, 0, (1,), np.int8)]),
            [[0, 1], [-2, -1, 0]],
        ),
    ],
)
def test_grid_contains_all_members_of_small_discrete_spaces(space, points):
    visited = keras.tree.map_structure(lambda x: np.array([x]), space.sample())
    axes = observation_axes.find(space, visited)
    assert [axis.points.tolist() for axis in axes] == points
    grid = observation_axes.grid(space, axes)
    count = math.prod(map(len, points))
    members = [
        keras.tree.map_structure(operator.itemgetter(row), grid) for row in range(count)
    ]
    assert all(map(space.contains, members)) and len(set(map(str, members))) == count


def test_last_axis_varies_fastest():
    space = Box(0, 1, (2,), np.float32)
    axes = observation_axes.find(space, VISITED)
    grid = observation_axes.grid(space, axes)
    shape = [len(axis.points) for axis in axes]
    np.testing.assert_allclose(grid[:, 0].reshape(shape)[:, 0], axes[0].points)
    np.testing.assert_allclose(grid[:, 1].reshape(shape)[0], axes[1].points)
    assert grid.dtype == np.float32


@pytest.mark.parametrize(
    "space",
    [
        Box(0, 1, (3,)),
        Box(0, 255, (84, 84, 3), np.uint8),
        Discrete(10**5),
        gym.spaces.Tuple([Discrete(32), Discrete(11), Discrete(2)]),
    ],
)
def test_larger_spaces_have_no_axes(space):
    visited = np.zeros([2, *(space.shape or ())])
    assert observation_axes.find(space, visited) is None
