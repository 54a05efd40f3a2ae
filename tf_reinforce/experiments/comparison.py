"""Compares runs in a table of interquartile means over seeds."""

import dataclasses

import numpy as np

from tf_reinforce.experiments import curves
from tf_reinforce.experiments import intervals

_LAST = 0.1  # share of the updates whose episodes are the last ones


@dataclasses.dataclass(frozen=True)
class Row:
    """What a comparison states about a run.

    Attributes:
        name: String, the name of the run.
        env: String, the environment id, or `None`.
        seeds: Int, the number of seeds.
        env_steps: Float, the mean number of environment steps of a training.
        seconds: Float, the mean seconds of collecting and updating of a training.
        last_return: `intervals.Interval` of the mean return of the episodes in the last
            tenth of the updates.
        evaluation: `intervals.Interval` of the mean return of the evaluation after
            training, or `None` if not all seeds have one.
        difference: `intervals.Interval` of the difference of `evaluation` to the first
            run, or of `last_return` if a run has no evaluation; `None` for the first
            run, and for a run with another environment.
    """

    name: str
    env: str | None
    seeds: int
    env_steps: float
    seconds: float
    last_return: intervals.Interval
    evaluation: intervals.Interval | None
    difference: intervals.Interval | None


def compare(runs):
    """Returns a list of `Row`s, one for each `curves.Run`."""
    has_evaluations = all(len(run.evaluations) == len(run.curves) for run in runs)
    rows, first = [], None
    for run in runs:
        lasts = [_last_return(curve) for curve in run.curves]
        scores = run.evaluations if has_evaluations else lasts
        difference = None
        if first is None:
            first = run.env, scores
        elif run.env == first[0]:
            difference = intervals.difference_interval(scores, first[1])
        complete = len(run.evaluations) == len(run.curves)
        rows.append(
            Row(
                name=run.name,
                env=run.env,
                seeds=len(run.curves),
                env_steps=np.mean([curve.x("steps")[-1] for curve in run.curves]),
                seconds=np.mean([_seconds(curve) for curve in run.curves]),
                last_return=intervals.iqm_interval(lasts),
                evaluation=intervals.iqm_interval(run.evaluations) if complete else None,
                difference=difference,
            )
        )
    return rows


def _seconds(curve):
    has_speed = "steps_per_second" in curve.columns
    return curve.x("seconds")[-1] if has_speed else np.nan


def _last_return(curve):
    """Returns the mean return of the episodes in the last tenth of the updates."""
    values = curve.column("episode_return")
    count = max(1, round(_LAST * len(values)))
    return curves.smooth(values, count)[-1]


def table(rows):
    """Returns a comparison as text, a line for each run."""
    lines = [["run", "environment", "seeds", "steps", "seconds"]]
    lines[0] += ["return of the last 10 %", "evaluation", "difference"]
    for row in rows:
        line = [row.name, row.env or "?", str(row.seeds), f"{row.env_steps:,.0f}"]
        line.append("" if np.isnan(row.seconds) else f"{row.seconds:.3g}")
        line += map(format_interval, (row.last_return, row.evaluation, row.difference))
        lines.append(line)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(
            cell.ljust(width) for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )


def format_interval(interval):
    """Returns a text such as "487 [462, 500]", or an empty text for `None`."""
    if interval is None:
        return ""
    estimate, low, high = map(float, interval)
    if np.isnan(low):
        return f"{estimate:.4g}"
    return f"{estimate:.4g} [{low:.4g}, {high:.4g}]"
