"""The progress of a training, drawn in a terminal or a notebook."""

import logging
import math
import sys
import time

import numpy as np
import rich.console
import rich.live
import rich.progress_bar
import rich.table
import rich.text

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARKLINE = 40  # columns, each of which shows a mean over equally many updates
_BAR = 40  # columns
# With 16 colors, Rich would draw a finished bar in the color of the unfinished part.
_BAR_STYLES = dict(style="bright_black", complete_style="cyan", finished_style="green")
_LOGGERS = (None, "tf_reinforce", "absl", "tensorflow")  # `None` is the root logger
_SECONDS = 0.1  # shortest time from one drawing to the next


class LenientStream:
    """A text stream that prints `?` for characters its encoding does not have."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        return self._stream.write(text.encode(encoding, "replace").decode(encoding))

    def __getattr__(self, name):
        return getattr(self._stream, name)


class LiveDisplay:
    """Draws a bar, the history of the returns and the facts of the last update.

    In a terminal, other printed text and logs appear above it.

    Args:
        stream: A text stream that is a terminal, or `None` for a notebook.
    """

    def __init__(self, stream):
        self._stream = stream
        self._screen = None  # has the method `update`, while the display is open
        self._handlers = []  # pairs of a log handler and the name of its stream
        self._returns, self._shown = [], None
        self._drawn = -math.inf  # time of the last drawing

    def update(self, mean_return, *shown):
        """Draws the progress after an update; `shown` are arguments of `render`."""
        self._returns.append(mean_return)
        self._shown = shown
        if time.monotonic() - self._drawn >= _SECONDS:
            self.draw()

    def draw(self, note=""):
        """Draws the last update with a note, for example `"evaluating …"`."""
        if self._shown is None:
            return
        self._drawn = time.monotonic()
        picture = render(*self._shown, columns(self._returns), note)
        if self._stream is None and self._screen is None:
            display = sys.modules["IPython"].display.display
            self._screen = display(picture, display_id=True)
        elif self._stream is None:
            self._screen.update(picture)
        else:
            if self._screen is None:
                self._open_terminal()
            self._screen.update(picture, refresh=True)

    def close(self):
        """Ends the drawing, and leaves its last state on the screen."""
        self.draw()
        if self._stream is not None and self._screen is not None:
            self._screen.stop()
            self._redirect_logs()
        self._screen = None

    def _open_terminal(self):
        console = rich.console.Console(file=self._stream, force_terminal=True)
        # Without a hidden cursor, a process that is killed leaves the terminal usable.
        console.show_cursor = lambda show=True: False
        self._screen = rich.live.Live(console=console, auto_refresh=False)
        self._handlers = [
            (handler, name)
            for logger in _LOGGERS
            for handler in logging.getLogger(logger).handlers
            for name in ("stdout", "stderr")
            if getattr(handler, "stream", None) is getattr(sys, name)
        ]
        self._screen.start()  # replaces `sys.stdout` and `sys.stderr`
        self._redirect_logs()

    def _redirect_logs(self):
        for handler, name in self._handlers:
            handler.setStream(getattr(sys, name))


def in_notebook():
    """Returns whether the process runs the cells of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def render(title, share, remaining, training_return, facts, returns, note):
    """Returns a table for Rich with the progress of a training.

    Args:
        title: String, the number of the update.
        share: Float from 0 to 1, the used share of the budget, or `None` without one.
        remaining: String, the remaining time, or an empty string.
        training_return: String, the returns of training and evaluation.
        facts: String, further facts.
        returns: Sequence of floats, the history of the mean returns.
        note: String, which follows the bar.
    """
    head = [_text((title, "bold"))]
    if share is not None:
        share = min(share, 1.0)
        bar = rich.progress_bar.ProgressBar(1.0, share, _BAR, **_BAR_STYLES)
        head += [bar, _text(f"{share:.0%}")]
    head += [_text((text, "dim")) for text in (remaining, note) if text]
    table, first_row = (rich.table.Table.grid(padding=(0, 2, 0, 0)) for _ in range(2))
    first_row.add_row(*head)
    table.add_row(first_row)
    table.add_row(_text((f"{sparkline(returns)} ", "cyan"), (training_return, "bold")))
    table.add_row(_text((facts, "dim")))
    return table


def _text(*parts):
    return rich.text.Text.assemble(*parts, no_wrap=True, overflow="ellipsis")


def sparkline(values):
    """Returns a text with a block for each value; the highest block is the maximum.

    Example:

    >>> sparkline([0, 5, 10]), sparkline([3, 3]), sparkline([])
    ('▁▅█', '▄▄', '')
    """
    low, high = min(values, default=0), max(values, default=0)
    if low == high:
        return _BLOCKS[3] * len(values)
    scale = (len(_BLOCKS) - 1) / (high - low)
    return "".join(_BLOCKS[int((value - low) * scale + 0.5)] for value in values)


def columns(values):
    """Returns at most 40 means over equally many values; the last may have fewer."""
    size = 1
    while size * _SPARKLINE < len(values):
        size *= 2
    return [np.mean(values[i : i + size]) for i in range(0, len(values), size)]
