"""Tests the report of observations that are outside the bounds of their space."""

import warnings

import gymnasium as gym
import keras
import numpy as np
import pytest
import toys

import tf_reinforce as tfr
from tf_reinforce.engine.collect import bounds

LOW, HIGH = np.array([-1.0, -np.inf, 0.1]), np.array([1.0, 2.0, np.inf])
BOX = gym.spaces.Box(LOW.astype("f"), HIGH.astype("f"))


def record(observations, lengths):
    rows, count = observations.shape[:2]
    zeros = np.zeros((rows - 1, count))
    return tfr.Episodes(observations, zeros, zeros, np.array(lengths), zeros[0] > 0)


@pytest.mark.parametrize("number", range(30))
def test_report_names_the_first_component_outside_as_a_loop_does(number):
    rng = np.random.default_rng(number)
    lengths = rng.integers(1, 5, 3)
    observations = rng.normal(0.5, 0.7, (6, 3, 3)).astype("f")
    observations[..., 2] += 1
    for b, length in enumerate(lengths):
        observations[length + 1 :, b] = 0  # padding, outside the last component's bounds
    outside = [
        (row, b, i)
        for row in range(6)
        for b in range(3)
        for i in range(3)
        if row <= lengths[b] and not BOX.low[i] <= observations[row, b, i] <= BOX.high[i]
    ]
    text = bounds.outside_bounds(BOX, record(observations, lengths))
    if not outside:
        assert text is None
        return
    row, b, i = outside[0]
    column = [observations[: n + 1, c, i] for c, n in enumerate(lengths)]
    column = np.concatenate(column)
    step = f"step {row - 1}" if row else "the first observation"
    assert f"episode {b}, {step}: component [{i}] of 'observation'" in text
    assert f"is {observations[row, b, i]}. " in text
    assert f"[{BOX.low[i]}, {BOX.high[i]}]" in text
    assert f"between {column.min()} and {column.max()} " in text
    assert "in the 3 episodes of this collection. " in text
    assert f"{len({i for *_, i in outside})} of 3 components" in text


def test_padding_outside_the_bounds_is_not_reported():
    box = gym.spaces.Box(1, 2, (1,))
    observations = np.array([1, 2, 0, 0], "f").reshape(4, 1, 1)
    assert bounds.outside_bounds(box, record(observations, [1])) is None
    assert "component [0]" in bounds.outside_bounds(box, record(observations, [2]))


def test_rounding_to_the_float_type_moves_no_observation_outside():
    """0.1 is larger in float32 than in float64."""
    box = gym.spaces.Box(0, 0.1, (1,), np.float64)
    observations = np.full((2, 1, 1), 0.1, "f")
    assert bounds.outside_bounds(box, record(observations, [1])) is None


def test_nested_integer_observation_outside_its_bounds_is_named():
    space = gym.spaces.Dict(
        kind=gym.spaces.Discrete(3),
        image=gym.spaces.Box(0, 255, (2, 2), np.uint8),
        level=gym.spaces.Box(0, 9, (2, 2), np.int16),
    )
    observations = keras.tree.map_structure(
        lambda x: np.zeros((2, 1, *x.shape), x.dtype), dict(space.spaces)
    )
    assert bounds.outside_bounds(space, record_of(observations)) is None
    observations["level"][1, 0, 0, 1] = 10
    text = bounds.outside_bounds(space, record_of(observations))
    assert "step 0: component [0, 1] of 'level' is 10" in text


@pytest.mark.parametrize("high", [True, False])
def test_bool_observation_is_compared_with_its_bounds(high):
    box = gym.spaces.Box(0, int(high), (2, 2), bool)
    observations = np.zeros((2, 1, 2, 2), bool)
    observations[1, 0, 0, 1] = True
    text = bounds.outside_bounds(box, record(observations, [1]))
    if high:
        assert text is None
    else:
        assert "step 0: component [0, 1] of 'observation' is True" in text


def record_of(observations):
    zeros = np.zeros((1, 1))
    return tfr.Episodes(observations, zeros, zeros, np.array([1]), zeros[0] > 0)


class Outside(toys.Clock):
    observation_space = gym.spaces.Box(0, 2, (1,))  # the last observation is 3


class Bits(toys.Clock):
    observation_space = gym.spaces.Box(0, 1, (10, 10, 4), bool)

    def reset(self, **options):
        _, info = super().reset(**options)
        return np.ones((10, 10, 4), bool), info

    def step(self, action):
        return np.zeros((10, 10, 4), bool), *super().step(action)[1:]


def test_environment_with_a_bool_box_trains_and_passes_the_check():
    agent = tfr.Reinforce.for_env(Bits, hidden=())
    agent.fit(Bits, epochs=1, episodes_per_epoch=2, verbose=0)
    assert agent.updates == 1
    assert not tfr.check_env(Bits, episodes=2).errors


@pytest.mark.parametrize("kind", ["plain", "vector"])
def test_training_warns_once_of_observations_outside_their_bounds(kind):
    agent = tfr.Reinforce.for_env(Outside, hidden=())
    env = gym.vector.SyncVectorEnv([Outside] * 2) if kind == "vector" else Outside
    options = {"validation_env": Outside, "validation_episodes": 1, "verbose": 0}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agent.fit(env, epochs=3, episodes_per_epoch=2, num_envs=2, **options)
        agent.evaluate(env, episodes=2)
    (text,) = [str(one.message) for one in caught]
    assert "step 2: component [0] of 'observation' is 3.0." in text
    assert "[0.0, 2.0], and it was between 0.0 and 3.0" in text
    assert agent.updates == 3
