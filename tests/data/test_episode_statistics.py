"""Tests the statistics of finished episodes against NumPy."""

import numpy as np
import pytest

from tf_reinforce.data import episode_statistics
from tf_reinforce.data import episodes as records

LENGTHS = np.array([2, 4, 1])


def record():
    """Returns a record with NaN in the padding, which must not influence any result."""
    rewards = np.random.default_rng(0).normal(size=(6, 3))
    rewards[np.arange(6)[:, None] >= LENGTHS] = np.nan
    return records.Episodes(
        observations=np.zeros((7, 3, 1), "float32"),
        actions=np.zeros((6, 3), "int32"),
        rewards=rewards,
        lengths=LENGTHS,
        terminated=np.array([True, False, True]),
    )


def sums():
    return np.nansum(record().rewards, axis=0)


def test_batch_metrics_equal_numpy_statistics():
    truth = {
        "episode_return": np.mean(sums()),
        "episode_return_min": np.min(sums()),
        "episode_return_max": np.max(sums()),
        "episode_return_std": np.std(sums()),
        "episode_length": np.mean(LENGTHS),
        "episodes": 3,
        "env_steps": 7,
    }
    found = episode_statistics.batch_metrics(record(), {})
    assert list(found) == list(truth)
    assert all(type(value) is float for value in found.values())
    np.testing.assert_allclose(list(found.values()), list(truth.values()), rtol=1e-14)


def test_episode_returns_use_rewards_that_are_not_clipped_or_scaled():
    """The rewards are integers and quarters, so that their sums are exact."""
    rewards = np.array([[-7.0, 1e6, 0.25], [100.0, 0.5, np.nan]])
    given = record()._replace(rewards=rewards, lengths=np.array([2, 2, 1]))
    assert episode_statistics.episode_returns(given).tolist() == [93.0, 1e6 + 0.5, 0.25]


def test_metrics_do_not_depend_on_padding():
    """NumPy sums in pairs, so that a longer column could be rounded in another way."""
    short = record()
    long = short._replace(rewards=np.pad(short.rewards, [(0, 300), (0, 0)]))
    expected = episode_statistics.batch_metrics(short, {})
    assert episode_statistics.batch_metrics(long, {}) == expected


@pytest.mark.parametrize(
    "success, share",
    [
        ([1.0, 0.0, 1.0], 2 / 3),
        ([1.0, np.nan, 0.0], 1 / 3),
        ([np.nan, np.nan, 1.0], 1 / 3),
    ],
)
def test_episodes_without_success_count_as_failures_if_another_reports_it(success, share):
    info = episode_statistics.reported({"success": np.array(success)})
    found = episode_statistics.batch_metrics(record(), info)
    assert found["success"] == pytest.approx(share, abs=1e-15)


def test_episode_logs_numbers_episodes_from_first():
    returns, given = episode_statistics.episode_returns(record()), record()
    columns = returns, given.lengths, given.terminated, {}
    found = list(episode_statistics.episode_logs(*columns, first=40, update=8))
    assert [number for number, _ in found] == [40, 41, 42]
    for column, (_, logs) in enumerate(found):
        values = float(returns[column]), int(LENGTHS[column]), column != 1, 8
        names = "episode_return", "episode_length", "terminated", "update"
        assert repr(logs) == repr(dict(zip(names, values, strict=True)))
