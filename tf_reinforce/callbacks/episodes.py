"""Callbacks that log episodes, print progress, or stop at a target return."""

import csv
import datetime
import math
import os
import sys
import time
from typing import Any, TextIO

import keras
import numpy as np
import rich.console
import rich.progress
import rich.text

from tf_reinforce.support import files
from tf_reinforce.support import validation

WIDTH = 80  # columns of a line of progress in a plain stream
COLUMNS = ("episode", "update", "episode_return", "episode_length", "terminated")


class EpisodeCallback(keras.callbacks.Callback):
    """A Keras callback that also receives the episodes of an update.

    The method `on_episodes_collected` is called before the update. After the update,
    `on_episode_end` is called once for each episode, in the order in which the episodes
    started, followed by `on_train_batch_end`.

    If your callback has a state that an interrupted training needs to continue, define
    the methods `get_state()` and `set_state(state)`. The checkpoints of `fit(...,
    resume=...)` then contain the state, which may consist of dicts, lists, numbers,
    strings and NumPy arrays. When the training continues, `set_state` is called after
    `on_train_begin`.

    Example:

    >>> class Longest(EpisodeCallback):
    ...     longest = 0
    ...     def on_episode_end(self, episode, logs=None):
    ...         self.longest = max(self.longest, logs["episode_length"])
    """

    def on_episodes_collected(self, episodes: Any, logs: Any = None) -> None:
        """Receives all episodes of an update, before it is made.

        Args:
            episodes: `Episodes` of NumPy arrays.
            logs: Dict with `update` (int, the number of the update, from 0).
        """

    def on_episode_end(self, episode: int, logs: Any = None) -> None:
        """Receives one episode's number and logs.

        Args:
            episode: Int, the number of the episode, from 0 over all calls of `fit`.
            logs: Dict with `episode_return` (float, the undiscounted sum of the rewards),
                `episode_length` (int, in steps), `terminated` (bool, False for a
                truncated episode), `update` (int, the number of the update, from 0),
                the `info_keys` of `fit`, and `success` if the environment reports it
                (floats; NaN for a key that the episode lacks).
        """

    def on_train_error(self) -> None:
        """Is called in place of `on_train_end` if the training raises an error."""

    @property
    def _info_keys(self) -> tuple[str, ...]:
        return (self.params or {}).get("info_keys", ())


def write_rows(filename: str, mode: str, rows: Any) -> None:
    """Writes rows of a CSV file, and closes it.

    Args:
        filename: String.
        mode: `"w"` to replace the file, `"a"` to append.
        rows: Iterable of rows.
    """
    kept = "Rows that were written before are unchanged."
    with (
        files.explain_failed_write(filename, kept),
        open(filename, mode, newline="") as file,
    ):
        csv.writer(file).writerows(rows)


def read_header(filename: str) -> list[str]:
    """Returns the first row of a CSV file, which may come from an untrusted source."""
    with open(filename, newline="") as file:
        try:
            return next(csv.reader(file), [])
        except csv.Error as error:
            raise ValueError(f"{filename} is no CSV file: {error}") from None


class EpisodeLogger(EpisodeCallback):
    """Writes one CSV row per episode.

    The file has the columns `episode`, `update`, `episode_return`, `episode_length`,
    `terminated`, and the `info_keys` of `fit`. All rows of an update are written
    together, and the file is closed between updates.

    Args:
        filename: Path of the CSV file.
        append: Bool, whether to append to an existing file instead of replacing it when
            training begins.
    """

    chief_only = True  # of several learner processes, only the chief calls it

    def __init__(self, filename: str | os.PathLike, *, append: bool = False) -> None:
        super().__init__()
        self.filename = validation.path("filename", filename)
        self.append = validation.boolean("append", append)
        self._rows: list = []

    def on_train_begin(self, logs: Any = None) -> None:
        self._rows, columns = [], [*COLUMNS, *self._info_keys]
        has_rows = os.path.exists(self.filename) and os.path.getsize(self.filename)
        if not (self.append and has_rows):
            write_rows(self.filename, "w", [columns])
            return
        if (header := read_header(self.filename)) != columns:
            raise ValueError(
                f"`append` needs a file with the columns {columns}. Received: "
                f"{self.filename!r} with the columns {repr(header)[:1000]}"
            )

    def on_episode_end(self, episode: int, logs: Any = None) -> None:
        values = {**logs, "episode": episode, "terminated": int(logs["terminated"])}
        self._rows.append([values[name] for name in (*COLUMNS, *self._info_keys)])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        write_rows(self.filename, "a", self._rows)
        self._rows = []


class StopAtReturn(keras.callbacks.Callback):
    """Stops training when the mean return of an epoch reaches a target.

    Args:
        target: Finite float, in the units of the reward.
        monitor: String, a log key: `"episode_return"` is the mean return of the training
            episodes, and `"val_episode_return"` that of the validation episodes. With the
            latter, the agent is also validated whenever the training episodes reach the
            target. A key that the logs cannot have gives a warning.
    """

    def __init__(self, target: float, *, monitor: str = "episode_return") -> None:
        super().__init__()
        self.target = validation.within("target", target, -math.inf, math.inf)
        self.monitor = validation.instance("monitor", monitor, str)
        self._has_warned = False

    def validation_is_due(self, logs: dict) -> bool:
        """Returns whether the training episodes of an update reach the target."""
        trained = self.monitor.removeprefix("val_")
        return trained != self.monitor and logs.get(trained, -math.inf) >= self.target

    def updates_until_due(self, epoch: int) -> int:
        """Returns 1 with a validation, because each update may reach the target."""
        return 1 if self.monitor.startswith("val_") else sys.maxsize

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        logs = logs or {}
        if logs.get(self.monitor, -math.inf) >= self.target:
            self.model.stop_training = True
        elif self.monitor not in logs and not (self._has_warned or self._may_come(logs)):
            self._has_warned = True
            validation.warn(
                f"StopAtReturn cannot stop the training without {self.monitor!r} in the "
                "logs. Choose one of their keys as `monitor`; a key `val_…` also needs "
                f"`validation_env` or `resume`. Received: {', '.join(sorted(logs))}."
            )

    def _may_come(self, logs: dict) -> bool:
        """Returns whether later logs may have the key that these lack."""
        name = self.monitor.removeprefix("val_")
        is_validated = name != self.monitor
        if is_validated and not (self.params or {}).get("validates", True):
            return False
        return name == "success" or (is_validated and name in logs)


class ProgressLine(keras.callbacks.Callback):
    """Shows progress: a live display in a terminal or in a notebook, else plain lines.

    The live display has a bar of the used part of the budget and the remaining time.
    Below it, a line of blocks shows the mean returns of all updates so far, and another
    line has facts about the last update. A line leaves out facts that would not fit, in a
    plain stream into 80 columns. The first update is slow, because TensorFlow compiles
    its functions then, so the remaining time is estimated from the later ones.

    Args:
        every: Float ≥ 0, the minimum number of seconds between two plain lines. With 0,
            there is one for each update.
        live: Bool, whether a terminal or a notebook shows a live display.
        stream: A text stream, by default standard output.
    """

    chief_only = True  # of several learner processes, only the chief calls it

    def __init__(
        self, *, every: float = 1.0, live: bool = True, stream: TextIO | None = None
    ) -> None:
        super().__init__()
        self.live = validation.boolean("live", live)
        self.every = validation.within("every", every, 0, math.inf)
        self.stream = validation.stream("stream", stream)

    def get_state(self) -> dict:
        """Returns nothing, because lines and times belong to one process."""
        return {}

    def set_state(self, state: Any) -> None:
        """Restores nothing."""

    def on_train_begin(self, logs: Any = None) -> None:
        self._out = out = self.stream or sys.stdout
        console = rich.console.Console(file=out, force_terminal=out.isatty())
        is_terminal = console.is_interactive and not console.options.ascii_only
        in_notebook = console.is_jupyter and self.stream is None
        is_live = self.live and (is_terminal or in_notebook)
        self._display: Any = _LiveDisplay(console, disable=not is_live)
        self._interval = min(self.every, 0.1) if is_live else self.every
        self._last_written = time.perf_counter()
        # Time and position after the first call.
        self._start: tuple[float, int] | None = None
        self._seconds_per_unit = math.nan  # seconds per update or per step
        self._pending = ""  # line that is not yet written

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        now, epochs = time.perf_counter(), self.params.get("epochs")
        end_step = self.params.get("end_env_steps")
        position, end = (logs["env_steps"], end_step) if end_step else (epoch + 1, epochs)
        # Updates that were made in one call are reported together.
        if logs["env_steps"] == getattr(self.model, "env_steps", logs["env_steps"]):
            start, first = self._start = self._start or (now, position)
            if position > first:
                self._seconds_per_unit = (now - start) / (position - first)
        title = f"update {epoch + 1}" + (f"/{epochs}" if epochs else "")
        seconds = self._seconds_per_unit * max(0, (end or 0) - position)
        left = ""
        if end and seconds >= 0:
            left = f"left {datetime.timedelta(seconds=int(seconds))}"
        facts = _describe(logs, end_step, self.params.get("info_keys", ()))
        if self._display.disable:
            facts = {"title": title, **facts, "left": left}
            self._pending = _fitting_line(facts, WIDTH) + "\n"
        else:
            facts = _fitting_line(facts, self._display.console.width)
            changes = dict(description=title, completed=position, total=end, facts=facts)
            self._display.update(self._display.row, **changes, note=left)
            self._display.returns.append(logs["episode_return"])
        if now - self._last_written >= self._interval or (end and position >= end):
            self._display.draw()
            self._write(self._pending)
            self._last_written, self._pending = now, ""

    def on_test_begin(self, logs: Any = None) -> None:
        self._display.draw(note="evaluating …")

    def on_train_end(self, logs: Any = None) -> None:
        self.on_train_error()
        self._write(self._pending)

    def on_train_error(self) -> None:
        """Ends the live display, so the error appears below it."""
        self._display.draw(note="")
        self._display.stop()

    def _write(self, text: str) -> None:
        if text:
            encoding = getattr(self._out, "encoding", None) or "utf-8"
            self._out.write(text.encode(encoding, "replace").decode(encoding))
            self._out.flush()


class _LiveDisplay(rich.progress.Progress):
    """A bar, and below it the history of the returns and the facts of the last update.

    In a terminal, other printed text appears above it.
    """

    def __init__(self, console: rich.console.Console, disable: bool) -> None:
        self.returns: list = []
        self._handle: Any = None
        # With 16 colors, Rich would draw a finished bar in the color of the rest.
        bar = rich.progress.BarColumn(40, "bright_black", "cyan", "green")
        percent = rich.progress.TaskProgressColumn()
        columns = "[bold]{task.description}", bar, percent, "[dim]{task.fields[note]}"
        super().__init__(*columns, console=console, auto_refresh=False, disable=disable)
        # With a hidden cursor, a killed process would leave the terminal unusable.
        console.show_cursor = lambda show=True: False  # type: ignore[method-assign]
        self.row = self.add_task("", total=None)

    def get_renderables(self) -> Any:
        if self.returns:
            yield from super().get_renderables()
            yield rich.text.Text(_sparkline(self.returns))
            facts = self.tasks[0].fields["facts"]
            yield rich.text.Text(facts, no_wrap=True, overflow="ellipsis")

    def draw(self, **changes: Any) -> None:
        """Draws the last update, if there is one, with changed fields of its row."""
        self.update(self.row, **changes)
        if self.returns and self.console.is_jupyter:
            display = sys.modules["IPython"].display.display
            self._handle = self._handle or display(self, display_id=True)
            self._handle.update(self)
        elif self.returns:
            self.start()  # replaces `sys.stdout` and `sys.stderr`
            self.refresh()


def _sparkline(values: list) -> str:
    """Returns a text of at most 40 blocks, means over about equally many values.

    The highest block is the maximum.

    Example:

    >>> _sparkline([0, 5, 10]), _sparkline([3, 3])
    ('▁▅█', '▁▁')
    """
    parts = np.array_split(values, min(40, len(values)))
    means = np.array([part.mean() for part in parts])
    scale = 7 / (np.ptp(means) or 1.0)
    return "".join("▁▂▃▄▅▆▇█"[int(x * scale + 0.5)] for x in means - means.min())


def _describe(logs: Any, end_step: int | None, info_keys: Any) -> dict[str, str]:
    """Returns facts about an update, by name."""
    total = f"/{end_step:,}" if end_step else ""
    evaluated = logs.get("val_episode_return", math.nan)
    return {
        "return": f"return {logs['episode_return']:.1f}",
        "evaluation": f"evaluation {evaluated:.1f}" if math.isfinite(evaluated) else "",
        "info": " · ".join(f"{key} {logs[key]:.4g}" for key in info_keys),
        "length": f"length {logs['episode_length']:.0f}",
        "entropy": f"entropy {logs['entropy']:.3f}",
        "steps": f"{logs['env_steps']:,.0f}{total} steps",
        "speed": f"{logs['steps_per_second']:,.0f} steps/s",
    }


def _fitting_line(facts: dict[str, str], width: int) -> str:
    """Joins facts to a line; leaves out the least important ones if it is too long.

    Example:

    >>> _fitting_line({"return": "return 1.0", "length": "length 9", "left": ""}, 15)
    'return 1.0'
    """
    kept = {name: text for name, text in facts.items() if text}
    for name in ("length", "speed", "entropy", "left", "steps", "evaluation", "info"):
        if len(" · ".join(kept.values())) > width:
            kept.pop(name, None)
    return " · ".join(kept.values())
