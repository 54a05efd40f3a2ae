"""Draws the progress of a training in a terminal or in a notebook."""

import collections
import logging
import math
import sys
import time
from typing import NamedTuple

import rich.console
import rich.live
import rich.progress_bar
import rich.table
import rich.text

_BLOCKS = "▁▂▃▄▅▆▇█"
_SPARKLINE = 40  # columns, each of which shows a mean over equally many updates
_BAR = 40  # columns
# In a terminal with 16 colors, Rich's own color of a finished bar would be that of the
# rest of the bar.
_BAR_STYLES = dict(style="bright_black", complete_style="cyan", finished_style="green")
_LOGGERS = (None, "tf_reinforce", "absl", "tensorflow")  # `None` is the root logger
_SECONDS = 0.1  # shortest time from one drawing to the next


class Progress(NamedTuple):
    """What a display shows after an update.

    Attributes:
        title: String, the number of the update.
        share: Float from 0 to 1, the share of the budget, or `None` without a budget.
        remaining: String, the remaining time, or an empty string.
        returns: String, the returns of training and evaluation.
        facts: String, the other facts.
    """

    title: str
    share: float | None
    remaining: str
    returns: str
    facts: str


class LenientStream:
    """A text stream that prints a `?` for a character that its encoding does not have."""

    def __init__(self, stream):
        self._stream = stream

    def write(self, text):
        encoding = getattr(self._stream, "encoding", None) or "utf-8"
        return self._stream.write(text.encode(encoding, "replace").decode(encoding))

    def __getattr__(self, name):
        return getattr(self._stream, name)


class LiveDisplay:
    """Draws a bar, the history of the returns and the facts of the last update.

    Args:
        stream: A text stream that is a terminal, or `None` for a notebook.
    """

    def __init__(self, stream):
        self._returns = History(_SPARKLINE)
        self._progress = None
        self._note = ""
        self._is_open = False
        self._drawn = -math.inf  # time of the last drawing
        self._screen = _Notebook() if stream is None else _Terminal(stream)

    def update(self, progress, mean_return):
        """Draws the progress after an update with a mean return."""
        self._progress, self._note = progress, ""
        self._returns.append(mean_return)
        if time.monotonic() - self._drawn >= _SECONDS:
            self._draw()

    def announce(self, note):
        """Draws a note, for example `"evaluating …"`, until the next update."""
        self._note = note
        self._draw()

    def close(self):
        """Ends the drawing, and leaves its last state on the screen."""
        if self._progress is not None or self._is_open:
            self._note = ""
            self._draw()
            self._screen.close()
            self._is_open = False

    def _draw(self):
        self._drawn = time.monotonic()
        picture = render(self._progress, self._returns.means(), self._note)
        if not self._is_open:
            self._screen.open()
            self._is_open = True
        self._screen.draw(picture)


class _Terminal:
    """Redraws lines in place; other printed text and logs appear above the lines."""

    def __init__(self, stream):
        self._stream = stream

    def open(self):
        console = rich.console.Console(file=self._stream, force_terminal=True)
        # Without a hidden cursor, a process that is killed leaves the terminal usable.
        console.show_cursor = lambda show=True: False
        self._live = rich.live.Live(console=console, auto_refresh=False)
        streams = {sys.stdout: "stdout", sys.stderr: "stderr"}
        self._handlers = [
            (handler, handler.stream, streams[handler.stream])
            for name in _LOGGERS
            for handler in logging.getLogger(name).handlers
            if isinstance(handler, logging.StreamHandler) and handler.stream in streams
        ]
        self._live.start()  # replaces `sys.stdout` and `sys.stderr`
        for handler, _, name in self._handlers:
            handler.setStream(getattr(sys, name))

    def draw(self, picture):
        self._live.update(picture, refresh=True)

    def close(self):
        self._live.stop()
        for handler, stream, _ in self._handlers:
            handler.setStream(stream)


class _Notebook:
    """Replaces the output of a notebook's cell."""

    def open(self):
        self._handle = None

    def draw(self, picture):
        from_ipython = sys.modules["IPython"].display
        if self._handle is None:
            self._handle = from_ipython.display(picture, display_id=True)
        else:
            self._handle.update(picture)

    def close(self):
        self._handle = None


def in_notebook():
    """Returns whether the process runs the cells of a notebook."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return type(shell).__name__ == "ZMQInteractiveShell"


def render(progress, returns, note):
    """Returns a table for Rich with the progress of a training.

    Args:
        progress: `Progress`, or `None` before the first update.
        returns: Sequence of floats, the history of the mean returns.
        note: String, which follows the bar.
    """
    table = rich.table.Table.grid(padding=(0, 2, 0, 0))
    if progress is None:
        table.add_row(_text(note, "dim"))
        return table
    head = [_text(progress.title, "bold")]
    if progress.share is not None:
        bar = rich.progress_bar.ProgressBar(
            1.0, min(progress.share, 1.0), _BAR, **_BAR_STYLES
        )
        head += [bar, _text(f"{min(progress.share, 1.0):.0%}")]
    head += [_text(x, "dim") for x in (progress.remaining, note) if x]
    rows = rich.table.Table.grid(padding=(0, 2, 0, 0))
    rows.add_row(*head)
    table.add_row(rows)
    second = rich.text.Text(no_wrap=True, overflow="ellipsis")
    second.append(f"{sparkline(returns)} ", "cyan")
    second.append(progress.returns, "bold")
    table.add_row(second)
    table.add_row(_text(progress.facts, "dim"))
    return table


def _text(text, style=""):
    return rich.text.Text(text, style, no_wrap=True, overflow="ellipsis")


def sparkline(values):
    """Returns a text with a block for each value; the highest block is the maximum.

    Example:

    >>> sparkline([0, 5, 10]), sparkline([3, 3]), sparkline([])
    ('▁▅█', '▄▄', '')
    """
    if not len(values):
        return ""
    low, high = min(values), max(values)
    if low == high:
        return _BLOCKS[3] * len(values)
    scale = (len(_BLOCKS) - 1) / (high - low)
    return "".join(_BLOCKS[int((value - low) * scale + 0.5)] for value in values)


class History:
    """Keeps a bounded number of means over equally many successive values.

    If there are too many means, each two neighbors become one mean.

    Args:
        limit: Even int, the largest number of means.
    """

    def __init__(self, limit):
        self._limit = limit
        self._size = 1  # values in each complete mean
        self._means = []
        self._rest = collections.deque()

    def append(self, value):
        """Adds a value."""
        self._rest.append(value)
        if len(self._rest) == self._size:
            if len(self._means) == self._limit:
                pairs = zip(self._means[::2], self._means[1::2], strict=True)
                self._means = [(first + second) / 2 for first, second in pairs]
                self._size *= 2
                return
            self._means.append(sum(self._rest) / self._size)
            self._rest.clear()

    def means(self):
        """Returns the list of means; the last one may have fewer values."""
        rest = [sum(self._rest) / len(self._rest)] if self._rest else []
        return [*self._means, *rest]
