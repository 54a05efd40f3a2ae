"""Comparison of runs by interquartile means over seeds, with confidence intervals."""

import collections
from typing import NamedTuple

import numpy as np

from tf_reinforce.experiments import curves
from tf_reinforce.support import extras

_LAST = 0.1  # share of the updates that counts as the end of training
_WIDTH = 16  # of a setting's value


class Interval(NamedTuple):
    """An estimate and the ends of its 95 % interval, NaN with fewer than two seeds."""

    estimate: np.ndarray
    low: np.ndarray
    high: np.ndarray


def iqm(values, axis=0):
    """Returns the interquartile mean: the mean without the lowest and highest quarters.

    Of n values, floor(n / 4) are left out on each side, so the result for fewer than four
    values is their plain mean (Agarwal et al. 2021, section 4.3).
    """
    return extras.load("scipy.stats", "plot").trim_mean(values, 0.25, axis=axis)


def iqm_interval(values, reference=None):
    """Returns the interquartile mean over seeds with a percentile bootstrap interval.

    With fewer than ten seeds, the interval is too narrow for a confidence of 95 %.

    Args:
        values: `[seeds, ...]` array, or list of floats.
        reference: Values of other seeds, whose interquartile mean is subtracted. Seeds
            are not paired.

    Returns:
        `Interval` of `[...]` arrays.
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


# One run in a comparison; see `compare`.
Row = collections.namedtuple(
    "Row", "name env model seeds env_steps seconds last_return evaluation difference"
)


def compare(runs):
    """Returns a `Row` for each `curves.Run`.

    Steps and seconds are means over the trainings. The other results are `Interval`s:

    - `last_return`: mean return of the episodes in the last tenth of the updates.
    - `evaluation`: mean return in the evaluation after training.
    - `difference`: how much the evaluation exceeds that of the first run.

    If a run was not evaluated for every seed, its `evaluation` is `None`. All differences
    then compare `last_return` instead. The first run has no difference, and neither has a
    run in another environment.
    """
    complete = [len(run.evaluations) == len(run.curves) for run in runs]
    lasts = [[_last_return(curve) for curve in run.curves] for run in runs]
    scores = [run.evaluations for run in runs] if all(complete) else lasts
    rows = []
    for index, run in enumerate(runs):
        has_difference = index > 0 and run.env == runs[0].env
        scored = (scores[index], scores[0]) if has_difference else None
        is_agent = all("env_steps" in curve.columns for curve in run.curves)
        axis = "steps" if is_agent else "updates"
        has_speed = all("steps_per_second" in curve.columns for curve in run.curves)
        seconds = [curve.x("seconds")[-1] for curve in run.curves if has_speed]
        rows.append(
            Row(
                run.name,
                run.env,
                run.model,
                seeds=len(run.curves),
                env_steps=np.mean([curve.x(axis)[-1] for curve in run.curves]),
                seconds=np.mean(seconds or [np.nan]),
                last_return=iqm_interval(lasts[index]),
                evaluation=iqm_interval(run.evaluations) if complete[index] else None,
                difference=iqm_interval(*scored) if scored else None,
            )
        )
    return rows


def _last_return(curve):
    """Returns the mean return, or other score, in the last tenth of the updates."""
    values = curve.column(curve.score)
    return curves.smooth(values, max(1, round(_LAST * len(values))))[-1]


def table(rows):
    """Returns a comparison as text: what each run is, and a table of results.

    Below the results of a run, a second line has the ends of their intervals.
    """
    about = []
    lines = [["run", "seeds", "steps", "last 10 %", "evaluation", "difference"]]
    for row in rows:
        seconds = "" if np.isnan(row.seconds) else f"{row.seconds:.3g} s of updates"
        about.append([row.name, row.env or "?", row.model or "?", seconds])
        results = row.last_return, row.evaluation, row.difference
        estimates, ends = zip(*map(_format, results))
        lines.append([row.name, str(row.seeds), f"{row.env_steps:,.0f}", *estimates])
        if any(ends):
            lines.append(["", "", "", *ends])
    return f"{curves.align(about)}\n\n{curves.align(lines)}"


def differences(runs):
    """Returns the settings that differ between runs as text, empty if none does.

    A run that lacks a setting has its default. Of agents made by different functions,
    only the settings that all have are compared.
    """
    filled = [{name: x for name, x in run.settings.items() if x} for run in runs]
    settings = [dict(curves.flat(one)) for one in filled]
    rows, makers = [], {one.get("make_agent") for one in settings}
    for name in dict.fromkeys(name for one in settings for name in one):
        values = [one.get(name, "-") for one in settings]
        is_known = not name.startswith("agent.") or "-" not in values or len(makers) == 1
        if is_known and len(set(values)) > 1:
            rows.append([name, *map(_cut, values)])
    return curves.align([["setting", *(run.name for run in runs)], *rows]) if rows else ""


def _cut(text):
    return text if len(text) <= _WIDTH else f"{text[: _WIDTH - 1]}…"


def _format(interval):
    """Returns an estimate and its interval as texts: "487" and "[462, 500]"."""
    if interval is None:
        return "", ""
    estimate, low, high = map(float, interval)
    ends = "" if np.isnan(low) else f"[{_short(low)}, {_short(high)}]"
    return _short(estimate), ends


def _short(number):
    return f"{number:,.0f}" if abs(number) >= 1000 else f"{number:.4g}"
