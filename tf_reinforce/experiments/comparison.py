"""Compares runs by interquartile means over seeds, with confidence intervals."""

import collections
from typing import NamedTuple

import numpy as np

from tf_reinforce.experiments import curves
from tf_reinforce.support import extras

_LAST = 0.1  # share of the updates whose episodes are the last ones


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
    return extras.load("scipy.stats", "plot").trim_mean(values, 0.25, axis=axis)


def iqm_interval(values, reference=None):
    """Returns the interquartile mean over seeds with a percentile bootstrap interval.

    Args:
        values: Array `[seeds, ...]`, or list of floats.
        reference: Values of other seeds, whose interquartile mean is subtracted. Seeds
            are not paired.

    Returns:
        `Interval` of arrays `[...]`. With fewer than ten seeds, the interval is narrower
        than its confidence of 95 % says.
    """
    groups = [np.asarray(x, np.float64) for x in (values, reference) if x is not None]
    estimate = _iqm_or_difference(*groups)
    if min(map(len, groups)) < 2:
        unknown = np.full(np.shape(estimate), np.nan)
        return Interval(estimate, unknown, unknown)
    result = extras.load("scipy.stats", "plot").bootstrap(
        groups,
        _iqm_or_difference,
        n_resamples=2_000,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(0),
    )
    return Interval(estimate, *result.confidence_interval)


def _iqm_or_difference(values, *reference, axis=0):
    return iqm(values, axis) - (iqm(*reference, axis) if reference else 0.0)


# What a comparison states about a run; see `compare`.
Row = collections.namedtuple(
    "Row", "name env seeds env_steps seconds last_return evaluation difference"
)


def compare(runs):
    """Returns a list of `Row`s, one for each `curves.Run`.

    A row has name, environment id and number of seeds of the run, the mean environment
    steps and seconds of a training, and three `Interval`s: of the mean return of the
    episodes in the last tenth of the updates; of the evaluation after training, `None` if
    not all seeds have one; and of the difference of the evaluation to the first run, or
    of the last tenth if a run has no evaluation. The difference is `None` for the first
    run, and for a run with another environment.
    """
    complete = [len(run.evaluations) == len(run.curves) for run in runs]
    lasts = [[_last_return(curve) for curve in run.curves] for run in runs]
    scores = [run.evaluations for run in runs] if all(complete) else lasts
    rows = []
    for index, run in enumerate(runs):
        has_difference = index > 0 and run.env == runs[0].env
        scored = (scores[index], scores[0]) if has_difference else None
        has_speed = all("steps_per_second" in curve.columns for curve in run.curves)
        seconds = [curve.x("seconds")[-1] for curve in run.curves if has_speed]
        rows.append(
            Row(
                run.name,
                run.env,
                seeds=len(run.curves),
                env_steps=np.mean([curve.x("steps")[-1] for curve in run.curves]),
                seconds=np.mean(seconds or [np.nan]),
                last_return=iqm_interval(lasts[index]),
                evaluation=iqm_interval(run.evaluations) if complete[index] else None,
                difference=iqm_interval(*scored) if scored else None,
            )
        )
    return rows


def _last_return(curve):
    """Returns the mean return of the episodes in the last tenth of the updates."""
    values = curve.column("episode_return")
    return curves.smooth(values, max(1, round(_LAST * len(values))))[-1]


def table(rows):
    """Returns a comparison as text, a line for each run."""
    titles = "run", "environment", "seeds", "steps", "seconds"
    lines = [[*titles, "return of the last 10 %", "evaluation", "difference"]]
    for row in rows:
        seconds = "" if np.isnan(row.seconds) else f"{row.seconds:.3g}"
        line = [
            row.name,
            row.env or "?",
            str(row.seeds),
            f"{row.env_steps:,.0f}",
            seconds,
        ]
        intervals = row.last_return, row.evaluation, row.difference
        lines.append([*line, *map(_format, intervals)])
    return align(lines)


def _format(interval):
    """Returns a text such as "487 [462, 500]", or an empty text for `None`."""
    if interval is None:
        return ""
    estimate, low, high = map(float, interval)
    ends = "" if np.isnan(low) else f" [{low:.4g}, {high:.4g}]"
    return f"{estimate:.4g}{ends}"


def align(rows):
    """Returns rows of texts as lines with aligned columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(x.ljust(n) for x, n in zip(row, widths)).rstrip() for row in rows]
    return "\n".join(lines)
