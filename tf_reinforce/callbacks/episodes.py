"""Callbacks that log episodes, print progress, or stop at a target return."""

import csv
import datetime
import math
import os
import sys
import time
from typing import Any, TextIO

import keras

from tf_reinforce.callbacks import live_display
from tf_reinforce.support import files
from tf_reinforce.support import validation

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
                truncated episode) and `update` (int, the number of the update, from 0).
        """

    def on_train_error(self) -> None:
        """Is called in place of `on_train_end` if the training raises an error."""


class EpisodeLogger(EpisodeCallback):
    """Writes one CSV row per episode.

    The file has the columns `episode`, `update`, `episode_return`, `episode_length` and
    `terminated`. All rows of an update are written together, and the file is closed
    between updates.

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
        self._rows = []
        has_rows = os.path.exists(self.filename) and os.path.getsize(self.filename)
        if not (self.append and has_rows):
            self._write("w", [COLUMNS])

    def on_episode_end(self, episode: int, logs: Any = None) -> None:
        values = {**logs, "episode": episode, "terminated": int(logs["terminated"])}
        self._rows.append([values[name] for name in COLUMNS])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        self._write("a", self._rows)
        self._rows = []

    def _write(self, mode: str, rows: Any) -> None:
        appended = "Rows that were written before are unchanged."
        with (
            files.explain_failed_write(self.filename, appended),
            open(self.filename, mode, newline="") as file,
        ):
            csv.writer(file).writerows(rows)


class StopAtReturn(keras.callbacks.Callback):
    """Stops training when the mean return of an epoch reaches a target.

    Args:
        target: Finite float, in the units of the reward.
        monitor: String, a log key: `"episode_return"` is the mean return of the training
            episodes, and `"val_episode_return"` that of the validation episodes.
    """

    def __init__(self, target: float, *, monitor: str = "episode_return") -> None:
        super().__init__()
        self.target = validation.within("target", target, -math.inf, math.inf)
        self.monitor = validation.instance("monitor", monitor, str)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if (logs or {}).get(self.monitor, -math.inf) >= self.target:
            self.model.stop_training = True


class ProgressLine(keras.callbacks.Callback):
    """Shows progress: a live display in a terminal or in a notebook, else plain lines.

    The live display has a bar that shows the used part of the budget and the remaining
    time. The mean returns of all updates so far appear as a line of blocks, next to facts
    about the last update. The first update is slow, because TensorFlow compiles its
    functions then, so the remaining time is estimated from the later ones.

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
        self._out = live_display.LenientStream(self.stream or sys.stdout)
        in_notebook = self.stream is None and live_display.in_notebook()
        is_terminal = self._out.isatty() and os.environ.get("TERM") != "dumb"
        self._display: Any = None
        if self.live and (in_notebook or is_terminal):
            self._display = live_display.LiveDisplay(None if in_notebook else self._out)
        self._last_written = time.perf_counter()
        # Time and position after the first call.
        self._start: tuple[float, int] | None = None
        self._seconds_per_unit = math.nan  # seconds per update or per step
        self._pending = ""  # line that is not yet written
        self._has_begun = False

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        if epoch and not self._has_begun:
            steps = getattr(self.model, "env_steps", 0)
            self._write(f"continuing after update {epoch} ({steps:,} steps)\n")
        self._has_begun = True

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
        remaining = ""
        if end and seconds >= 0:
            remaining = f"left {datetime.timedelta(seconds=int(seconds))}"
        returns, facts = _describe(logs, end_step)
        if self._display is not None:
            shown = title, position / end if end else None, remaining, returns, facts
            self._display.update(logs["episode_return"], *shown)
            return
        line = " · ".join(filter(None, (title, returns, facts, remaining)))
        self._pending = f"{line}\n"
        if now - self._last_written >= self.every or (end and position >= end):
            self._write(self._pending)
            self._last_written, self._pending = now, ""

    def on_test_begin(self, logs: Any = None) -> None:
        if self._display is not None:
            self._display.draw("evaluating …")

    def on_train_end(self, logs: Any = None) -> None:
        self.on_train_error()
        self._write(self._pending)

    def on_train_error(self) -> None:
        """Ends the live display, so the error appears below it."""
        if self._display is not None:
            self._display.close()

    def _write(self, text: str) -> None:
        if text:
            self._out.write(text)
            self._out.flush()


def _describe(logs: Any, end_step: int | None) -> tuple[str, str]:
    """Returns the returns and further facts of an update."""
    returns = f"return {logs['episode_return']:.1f}"
    if math.isfinite(logs.get("val_episode_return", math.nan)):
        returns += f" · evaluation {logs['val_episode_return']:.1f}"
    total = f"/{end_step:,}" if end_step else ""
    facts = (
        f"length {logs['episode_length']:.0f} · entropy {logs['entropy']:.3f} · "
        f"{logs['env_steps']:,.0f}{total} steps · {logs['steps_per_second']:,.0f} steps/s"
    )
    return returns, facts
