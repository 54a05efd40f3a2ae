"""Plots of learning curves."""

import pathlib

from tf_reinforce.experiments import comparison
from tf_reinforce.experiments import curves
from tf_reinforce.support import extras
from tf_reinforce.support import files

# Visible on white and dark pages; the first ones also suit the color-blind.
_COLORS = "#2f81f7", "#e8710a", "#1fa35c", "#d6409f", "#8e6bd8", "#b08800", "#0e9aa7"
_GRAY = "#7d8590"
_MAX_LINES = 2  # more seeds are drawn as an interval


def draw(runs, keys=("episode_return",), axis="steps", window=None):
    """Draws learning curves, one panel per log key and one line per run.

    If a run has three or more seeds, its line shows the interquartile mean over the
    seeds, and the area around the line is the 95 % bootstrap interval. One or two seeds
    are drawn as separate lines.

    Args:
        runs: List of `curves.Run`s.
        keys: Sequence of log keys.
        axis: String, a key of `curves.X_AXES`.
        window: Positive int, the number of updates to average over, or `None` for a
            fiftieth of them.

    Returns:
        A `matplotlib.figure.Figure` with a transparent background.

    Raises:
        ImportError: Without matplotlib or SciPy.
        ValueError: If a run does not have a key.
    """
    size = 8.0, 1.0 + 3.2 * len(keys)
    figure = _matplotlib("figure").Figure(figsize=size, layout="constrained")
    figure.patch.set_alpha(0.0)
    grid = figure.subplots(len(keys), 1, sharex=True, squeeze=False)[:, 0]
    for panel, key in zip(grid, keys, strict=True):
        for index, run in enumerate(runs):
            _draw_run(panel, run, key, axis, window, _COLORS[index % len(_COLORS)])
        _style(panel, key.replace("_", " "))
    grid[-1].set_xlabel(curves.X_AXES[axis], color=_GRAY)
    grid[-1].xaxis.set_major_formatter(_matplotlib("ticker").EngFormatter())
    envs = sorted({run.env for run in runs if run.env})
    grid[0].set_title(", ".join(envs), color=_GRAY)
    grid[0].legend(frameon=False, labelcolor=_GRAY)
    return figure


def _draw_run(panel, run, key, axis, window, color):
    window = window or max(1, max(len(x.columns["epoch"]) for x in run.curves) // 50)
    label = f"{run.name} ({len(run.curves)} seeds)" if len(run.curves) > 1 else run.name
    if len(run.curves) <= _MAX_LINES:
        for curve in run.curves:
            y = curves.smooth(curve.column(key), window)
            panel.plot(curve.x(axis), y, color=color, label=label, linewidth=1.5)
            label = None
        return
    grid, values = curves.on_common_grid(run.curves, key, axis, window)
    interval = comparison.iqm_interval(values)
    panel.plot(grid, interval.estimate, color=color, label=label, linewidth=1.8)
    panel.fill_between(grid, interval.low, interval.high, color=color, alpha=0.25, lw=0)


def _style(panel, label):
    """Labels a panel, in colors that are visible on light and dark pages."""
    panel.set_ylabel(label, color=_GRAY)
    panel.patch.set_alpha(0.0)
    panel.tick_params(which="both", colors=_GRAY)
    panel.grid(color=_GRAY, alpha=0.3, linewidth=0.6)
    for spine in panel.spines.values():
        spine.set_color(_GRAY)


def save(figure, path):
    """Writes a figure in the format of the file's extension, for example PNG or SVG."""
    kind = pathlib.Path(path).suffix.removeprefix(".").lower()
    # Without the time, equal figures make equal files.
    times = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    with files.atomic_write(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=120, metadata=times.get(kind))


def _matplotlib(name):
    return extras.load(f"matplotlib.{name}", "plot")
