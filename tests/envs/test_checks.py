"""Tests the constants by which equal tensor environments share a compiled program."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce import envs
from tf_reinforce.envs import checks


class Scaled(envs.Bandit):
    factor = 1.0

    def __init__(self, high=1.0, **attributes):
        super().__init__([1.0, 2.0, 3.0])
        self.observation_space = gym.spaces.Box(0.0, np.float32(high), (1,), np.float32)
        self.owner = self  # a reference cycle
        vars(self).update(attributes)


def different_scaled(**attributes):
    return type("Scaled", (Scaled,), attributes)()


FUNCTION, VARIABLE = (lambda x: x), tf.Variable(1.0)
EQUAL = [
    {},
    dict(values=[0.0, float("nan")]),
    dict(table=np.array([1.0, np.nan]), tensor=tf.constant([3.0])),
    dict(function=FUNCTION, variable=VARIABLE),
    dict(inner=gym.spaces.Dict({"a": gym.spaces.Discrete(3)})),
]


@pytest.mark.parametrize("attributes", EQUAL, ids=lambda x: " ".join(x))
def test_equal_environments_have_equal_constants(attributes):
    """The random generator of a space is not a constant."""
    first, second = Scaled(**attributes), Scaled(**attributes)
    first.observation_space.sample()
    constants = checks.constants(first)
    assert constants == checks.constants(second)
    assert hash(constants) == hash(checks.constants(second))


ABOVE = np.nextafter(np.float32(1), np.float32(2))
DIFFERENT = {
    "value": lambda: Scaled(values=[1.0, 2.0, 3.5]),
    "type of a number": lambda: Scaled(values=[1, 2, 3]),
    "new attribute": lambda: Scaled(other=1),
    "space": lambda: Scaled(ABOVE),
    "kind of space": lambda: Scaled(observation_space=gym.spaces.Discrete(2)),
    "class": lambda: different_scaled(),
    "class attribute": lambda: different_scaled(factor=2.0),
    "method": lambda: different_scaled(reward=lambda self, *args: 9.0),
    "owner": lambda: Scaled(owner=Scaled()),
    "attribute that overrides one of the class": lambda: Scaled(factor=2.0),
}


@pytest.mark.parametrize("name", DIFFERENT)
def test_different_environments_have_different_constants(name):
    """Gymnasium calls two spaces equal whose bounds differ by a rounding error."""
    assert Scaled().observation_space == Scaled(ABOVE).observation_space
    assert checks.constants(DIFFERENT[name]()) != checks.constants(Scaled())


@pytest.mark.parametrize("make", [lambda: lambda x: x, lambda: tf.Variable(1.0), object])
def test_other_object_with_the_id_of_a_deleted_one_changes_the_constants(make):
    """The constants keep their objects alive, so that no id is used again."""
    env = Scaled(part=make())
    before = [checks.constants(env)]
    for _ in range(100):
        env.part = None
        env.part = make()
        assert checks.constants(env) not in before
        before.append(checks.constants(env))
