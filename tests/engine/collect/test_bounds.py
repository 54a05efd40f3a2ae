"""Tests the report of observations that are outside the bounds of their space."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
import toys

import tf_reinforce as tfr
from tf_reinforce.engine.collect import environments

LOW, HIGH = np.array([-1.0, -np.inf, 0.1]), np.array([1.0, 2.0, np.inf])
BOX = gym.spaces.Box(LOW.astype("f"), HIGH.astype("f"))


def record(observations, lengths):
    rows, count = observations.shape[:2]
    zeros = np.zeros((rows - 1, count))
    return tfr.Episodes(observations, zeros, zeros, np.array(lengths), zeros[0] > 0)


@pytest.mark.parametrize("number", range(12))
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
    text = environments.outside_bounds(BOX, record(observations, lengths))
    if not outside:
        assert text is None
        return
    row, b, i = outside[0]
    column = [observations[: n + 1, c, i] for c, n in enumerate(lengths)]
    column = np.concatenate(column)
    step = f"step {row - 1}" if row else "the first observation"
    assert text.startswith(
        f"episode {b}, {step}: component [{i}] of 'observation' is "
        f"{observations[row, b, i]}. Its bounds are [{BOX.low[i]}, {BOX.high[i]}], "
        f"and it was between {column.min()} and {column.max()} "
    )


def test_padding_outside_the_bounds_is_not_reported():
    box = gym.spaces.Box(1, 2, (1,))
    observations = np.array([1, 2, 0, 0], "f").reshape(4, 1, 1)
    assert environments.outside_bounds(box, record(observations, [1])) is None
    assert "component [0]" in environments.outside_bounds(box, record(observations, [2]))


def test_rounding_to_the_float_type_moves_no_observation_outside():
    """0.1 is larger in float32 than in float64."""
    box = gym.spaces.Box(0, 0.1, (1,), np.float64)
    observations = np.full((2, 1, 1), 0.1, "f")
    assert environments.outside_bounds(box, record(observations, [1])) is None


class Outside(toys.Clock):
    observation_space = gym.spaces.Box(0, 2, (1,))  # the last observation is 3


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
