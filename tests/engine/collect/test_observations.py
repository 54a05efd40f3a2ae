"""Tests observations of every space, from the environment to a custom policy."""

import collections

import gymnasium as gym
import keras
import numpy as np
import pytest
import toys

import tf_reinforce as tfr
from tf_reinforce.data import episodes as records
from tf_reinforce.engine.collect import batched_envs

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete
PAIR = gym.spaces.Dict(gear=Discrete(5), speed=Box(-1, 1, (2,)))


# Reading observations


def read_observation(space, observation):
    """Returns the recorded arrays of one observation, as a list."""
    reader = batched_envs.ObservationReader(space, "float32")
    leaves = keras.tree.flatten(records.observation_spec(space, "float32"))
    rows = [np.zeros((1, *x.shape), x.dtype.as_numpy_dtype) for x in leaves]
    reader(0, observation, rows)
    return [row[0] for row in rows]


@pytest.mark.parametrize("kind", [int, np.int64, np.uint8, np.array])
def test_discrete_observation_may_have_any_integer_type(kind):
    (value,) = read_observation(Discrete(4, start=2), kind(5))
    assert value == 5 and value.dtype == "int64"


OUTSIDE = [1, 6, np.int64(6), np.array(1), True, 2**70]
NO_INTEGERS = [2.0, "2", None, np.float32(2), np.array([2])]


@pytest.mark.parametrize("wrong", [*OUTSIDE, *NO_INTEGERS])
def test_discrete_observation_outside_its_space_raises(wrong):
    with pytest.raises(batched_envs.IndexedFault, match=r"of Discrete\(4, start=2\)"):
        read_observation(Discrete(4, start=2), wrong)


@pytest.mark.parametrize(
    "space, right, wrong",
    [
        (gym.spaces.MultiDiscrete([3, 2], start=[1, 0]), [3, 1], [4, 1]),
        (gym.spaces.MultiDiscrete([3, 2], start=[1, 0]), [1, 0], [0, 0]),
        (gym.spaces.MultiDiscrete([3, 2], np.int8), [2, 1], [256, 0]),
        (gym.spaces.MultiBinary(2), [0, 1], [0, 2]),
    ],
)
def test_multi_discrete_and_binary_observations_outside_the_space_raise(
    space, right, wrong
):
    """A cast of 256 to eight bits would give 0, which is inside the space."""
    (value,) = read_observation(space, np.array(right))
    assert value.tolist() == right and value.dtype == space.dtype
    with pytest.raises(batched_envs.IndexedFault, match="member of Multi"):
        read_observation(space, np.array(wrong))


def test_nested_observations_are_read_by_key_or_index():
    """Some environments return an OrderedDict for a Dict space, or a list for a Tuple
    space.
    """
    space = gym.spaces.Dict(b=Discrete(9), a=gym.spaces.Tuple([Discrete(9)] * 2))
    for observation in (
        {"b": 3, "a": (1, 2)},
        {"a": [1, 2], "b": 3},
        collections.OrderedDict(b=3, a=(1, 2)),
    ):
        assert read_observation(space, observation) == [1, 2, 3]


class ChangesObservations(gym.vector.SyncVectorEnv):
    """Three environments whose observations are changed by a function after each step."""

    def __init__(self, space, change):
        super().__init__([lambda: toys.Observing(space)] * 3)
        self.change = change

    def step(self, actions):
        observations, *rest = super().step(actions)
        return self.change(observations), *rest


def second(value):
    """Returns a function that replaces the second entry of an array."""
    return lambda array: np.array([array[0], np.full_like(array[1], value), array[2]])


@pytest.mark.parametrize(
    "space, change, message",
    [
        (Discrete(5), second(5), "Environment 1, .*observation is 5"),
        (Discrete(5, start=2), lambda x: x - 5, "member of Discrete.5, start=2"),
        (gym.spaces.MultiDiscrete([3, 2]), second(2), r"1, .*observation is \[2, 2\]"),
        (gym.spaces.MultiBinary(2), second(-1), r"1, .*observation is \[-1, -1\]"),
        (Discrete(5), lambda x: x / 2, "is of type float64. Expected: .* Discrete"),
        (PAIR, lambda x: {"gear": x["gear"]}, "not nested like .*: {'gear"),
    ],
    ids=["outside", "below", "multi", "flag", "fraction", "key"],
)
def test_vector_observation_outside_its_space_raises(space, change, message):
    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space), hidden=())
    with pytest.raises(tfr.collect.EnvironmentFault, match=message):
        agent.collect(ChangesObservations(space, change), 6)
