"""Draws the learning curves of runs."""

import os

import numpy as np

from tf_reinforce import files
from tf_reinforce.experiments import curves
from tf_reinforce.experiments import intervals

# Visible on white and on dark pages; the first ones differ also for the color-blind.
COLORS = "#2f81f7", "#e8710a", "#1fa35c", "#d6409f", "#8e6bd8", "#b08800", "#0e9aa7"
_GRAY = "#7d8590"
_MAX_LINES = 2  # with so many seeds, each one is drawn, in place of an interval
FORMATS = "png", "svg", "pdf"


def draw(runs, keys=("episode_return",), axis="steps", window=None):
    """Draws log keys of runs, one panel for each key and one line for each run.

    With three or more seeds, a line is the interquartile mean over seeds, and an area is
    its 95 % bootstrap interval. With one or two seeds, there is a line for each seed.

    Args:
        runs: List of `curves.Run`s.
        keys: Sequence of log keys.
        axis: String, a key of `curves.X_AXES`.
        window: Positive int, the number of updates whose mean is drawn, or `None` for a
            fiftieth of the updates.

    Returns:
        A `matplotlib.figure.Figure` with a transparent background.

    Raises:
        ImportError: Without matplotlib, or SciPy.
        ValueError: If a run does not have a key.
    """
    figure_module, ticker = _matplotlib()
    height = 1.0 + 3.2 * len(keys)
    figure = figure_module.Figure(figsize=(8.0, height), layout="constrained")
    figure.patch.set_alpha(0.0)
    panels = np.atleast_1d(figure.subplots(len(keys), 1, sharex=True))
    for panel, key in zip(panels, keys, strict=True):
        for index, run in enumerate(runs):
            _draw_run(panel, run, key, axis, window, COLORS[index % len(COLORS)])
        _style(panel, key.replace("_", " "))
    panels[-1].set_xlabel(curves.X_AXES[axis], color=_GRAY)
    panels[-1].xaxis.set_major_formatter(ticker.EngFormatter())
    envs = sorted({run.env for run in runs if run.env})
    panels[0].set_title(", ".join(envs), color=_GRAY)
    panels[0].legend(frameon=False, labelcolor=_GRAY)
    return figure


def _draw_run(panel, run, key, axis, window, color):
    window = window or curves.default_window(run.curves)
    label = f"{run.name} ({len(run.curves)} seeds)" if len(run.curves) > 1 else run.name
    if len(run.curves) <= _MAX_LINES:
        for curve in run.curves:
            y = curves.smooth(curve.column(key), window)
            panel.plot(curve.x(axis), y, color=color, label=label, linewidth=1.5)
            label = None
        return
    grid, values = curves.on_common_grid(run.curves, key, axis, window)
    interval = intervals.iqm_interval(values)
    panel.plot(grid, interval.estimate, color=color, label=label, linewidth=1.8)
    panel.fill_between(grid, interval.low, interval.high, color=color, alpha=0.25, lw=0)


def _style(panel, label):
    panel.set_ylabel(label, color=_GRAY)
    panel.patch.set_alpha(0.0)
    panel.tick_params(colors=_GRAY)
    panel.grid(color=_GRAY, alpha=0.3, linewidth=0.6)
    for spine in panel.spines.values():
        spine.set_color(_GRAY)


def save(figure, path):
    """Writes a figure as a PNG, SVG or PDF file, which its extension selects."""
    kind = check_path(path)
    with files.atomic_write(path) as temporary:
        figure.savefig(temporary, format=kind, dpi=120, metadata=_metadata(kind))


def check_path(path):
    """Returns the format that the extension of a path names; raises `ValueError`."""
    kind = os.path.splitext(os.fspath(path))[1].removeprefix(".").lower()
    if kind not in FORMATS:
        expected = ", ".join(f".{kind}" for kind in FORMATS)
        raise ValueError(
            f"A picture must have one of the extensions {expected}. Received: {path}"
        )
    return kind


def _metadata(kind):
    """Returns metadata without the time, so that equal figures make equal files."""
    return {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)


def _matplotlib():
    try:
        from matplotlib import figure
        from matplotlib import ticker
    except ImportError as error:
        raise ImportError(
            "Pictures need matplotlib. Install it with "
            '`pip install "tf-reinforce[plot]"`.'
        ) from error
    return figure, ticker
