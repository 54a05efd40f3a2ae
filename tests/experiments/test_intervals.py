"""Tests interquartile means and their bootstrap intervals."""

import itertools

import numpy as np
import pytest

from tf_reinforce.experiments import intervals


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1.0, 2.0, 9.0], 4.0),  # with three values, none is left out
        ([9.0, 1.0, 2.0, 4.0], 3.0),
        ([0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 100.0], 3.5),
        ([7.0], 7.0),
    ],
)
def test_interquartile_mean_leaves_out_a_quarter_on_each_side(values, expected):
    assert intervals.iqm(np.array(values)) == expected
    stacked = np.stack([values, values], axis=1)
    assert intervals.iqm(stacked).tolist() == [expected, expected]


@pytest.mark.parametrize("values", [[0.0, 3.0, 9.0], [0.0, 1.0, 4.0, 6.0, 11.0, 20.0]])
def test_interval_contains_the_exact_quantiles_of_all_resamples(values):
    """Three seeds have 27 resamples, and six have 46,656, which can be enumerated.

    The interval comes from 2,000 random resamples. Its ends lie between the quantiles of
    the exact distribution that are six standard errors away. With six seeds, the interval
    with a confidence of 90 % ends outside of these quantiles.
    """
    seeds = len(values)
    resamples = np.sort([*itertools.product(values, repeat=seeds)])
    exact = np.sort(resamples[:, seeds // 4 : seeds - seeds // 4].mean(1))
    interval = intervals.iqm_interval(values)
    assert interval.estimate == np.mean(values[seeds // 4 : seeds - seeds // 4])
    for end, probability in ((interval.low, 0.025), (interval.high, 0.975)):
        error = 6 * np.sqrt(probability * (1 - probability) / 2_000)
        low, high = (
            np.quantile(exact, np.clip(probability + sign * error, 0, 1), method=method)
            for sign, method in ((-1, "lower"), (1, "higher"))
        )
        assert low <= end <= high


def test_interval_is_repeatable_and_moves_with_the_values():
    values = np.random.default_rng(0).normal(size=(8, 3))
    one, other = intervals.iqm_interval(values), intervals.iqm_interval(values + 5)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a + 5, b, rtol=1e-12)
    np.testing.assert_array_equal(one, intervals.iqm_interval(values))
    assert (one.low <= one.estimate).all() and (one.estimate <= one.high).all()


def test_single_seed_has_no_interval():
    estimate, low, high = intervals.iqm_interval([4.0])
    assert estimate == 4.0 and np.isnan(low) and np.isnan(high)


def test_difference_of_groups_of_different_sizes():
    interval = intervals.difference_interval([5.0, 6.0, 7.0], [1.0, 2.0])
    assert interval.estimate == 4.5
    assert 3.0 <= interval.low < 4.5 < interval.high <= 6.0
