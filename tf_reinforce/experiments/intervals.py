"""Estimates interquartile means over seeds, and their confidence intervals."""

from typing import NamedTuple

import numpy as np

_RESAMPLES = 2_000
_CONFIDENCE = 0.95


class Interval(NamedTuple):
    """An estimate, and the ends of its 95 % interval; NaN with fewer than two seeds."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray


def iqm(values, axis=0):
    """Returns the interquartile mean: the mean without the lower and the upper quarter.

    Of n values, floor(n / 4) are left out on each side. With fewer than four values, the
    result is the mean (Agarwal et al. 2021, section 4.3).
    """
    return _stats().trim_mean(values, 0.25, axis=axis)


def iqm_interval(values):
    """Returns the interquartile mean over seeds with a percentile bootstrap interval.

    Args:
        values: Array `[seeds, ...]`, or list of floats.

    Returns:
        `Interval` of arrays `[...]`. With fewer than ten seeds, the interval is narrower
        than its confidence of 95 % says.
    """
    values = np.asarray(values, np.float64)
    return _bootstrap((values,), iqm, iqm(values))


def difference_interval(values, reference):
    """Returns the difference of the interquartile means of two groups of seeds.

    Args:
        values, reference: Lists of floats, one for each seed. Seeds are not paired.
    """
    groups = np.asarray(values, np.float64), np.asarray(reference, np.float64)
    return _bootstrap(groups, _difference, _difference(*groups))


def _difference(values, reference, axis=0):
    return iqm(values, axis) - iqm(reference, axis)


def _bootstrap(groups, statistic, estimate):
    if min(map(len, groups)) < 2:
        unknown = np.full(np.shape(estimate), np.nan)
        return Interval(estimate, unknown, unknown)
    result = _stats().bootstrap(
        groups,
        statistic,
        n_resamples=_RESAMPLES,
        confidence_level=_CONFIDENCE,
        method="percentile",
        vectorized=True,
        axis=0,
        rng=np.random.default_rng(0),
    )
    return Interval(estimate, *result.confidence_interval)


def _stats():
    try:
        from scipy import stats
    except ImportError as error:
        raise ImportError(
            "Intervals over seeds need SciPy. Install it with "
            '`pip install "tf-reinforce[plot]"`.'
        ) from error
    return stats
