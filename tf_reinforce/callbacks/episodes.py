"""Calls back for each episode, logs it, prints progress, and stops at a return."""

import csv
import math
import os
import sys
import time

import keras

COLUMNS = ("episode", "update", "episode_return", "episode_length", "terminated")


class EpisodeCallback(keras.callbacks.Callback):
    """A Keras callback that also hears of the episodes.

    `on_episodes_collected` is called once for each update, before it is made;
    `on_episode_end` then once for each of its episodes, in the order in which they
    started, before `on_train_batch_end`.

    Example:

    >>> class Longest(EpisodeCallback):
    ...     longest = 0
    ...     def on_episode_end(self, episode, logs=None):
    ...         self.longest = max(self.longest, logs["episode_length"])
    """

    def on_episodes_collected(self, episodes, logs=None):
        """Called with what an update is about to learn from.

        Args:
            episodes: `Episodes` of NumPy arrays.
            logs: Dict with `update` (int, from 0), `stepping_seconds` (float, in
                environments; zero for a `TensorEnv`, whose steps are part of acting),
                `acting_seconds` (float, for the rest of collecting) and `vector_env`
                (bool, whether the environment is a `VectorEnv`).
        """

    def on_episode_end(self, episode, logs=None):
        """Called with the number of the episode, from 0 over the agent's life.

        Args:
            episode: Int.
            logs: Dict with `episode_return` (float, the plain sum of its rewards),
                `episode_length` (int, steps), `terminated` (bool) and `update`
                (int, from 0).
        """


class EpisodeLogger(EpisodeCallback):
    """Writes one CSV row per episode.

    Columns: `episode`, `update`, `episode_return`, `episode_length`, `terminated`.

    The rows of an update are written together, and nothing stays open in between.

    Args:
        filename: Path of the file.
        append: Bool. False replaces the file when training begins.
    """

    def __init__(self, filename, *, append=False):
        super().__init__()
        self.filename = os.fspath(filename)
        self.append = append
        self._rows = []

    def on_train_begin(self, logs=None):
        self._rows = []
        there = os.path.exists(self.filename) and os.path.getsize(self.filename)
        if not (self.append and there):
            self._write("w", [COLUMNS])

    def on_episode_end(self, episode, logs=None):
        total, length = logs["episode_return"], logs["episode_length"]
        ended = int(logs["terminated"])
        self._rows.append((episode, logs["update"], total, length, ended))

    def on_epoch_end(self, epoch, logs=None):
        self._write("a", self._rows)
        self._rows = []

    def _write(self, mode, rows):
        with open(self.filename, mode, newline="") as file:
            csv.writer(file).writerows(rows)


class StopAtReturn(keras.callbacks.Callback):
    """Stops training when the mean return of an epoch reaches a target.

    Args:
        target: Finite float, in the units of the reward.
        monitor: Log key. Defaults to the batch that was trained on;
            `"val_episode_return"` asks the validation episodes instead.
    """

    def __init__(self, target, *, monitor="episode_return"):
        super().__init__()
        if not math.isfinite(target):
            raise ValueError(f"`target` must be finite. Received: target={target}")
        self.target = target
        self.monitor = monitor

    def on_epoch_end(self, epoch, logs=None):
        if (logs or {}).get(self.monitor, -math.inf) >= self.target:
            self.model.stop_training = True


class ProgressLine(keras.callbacks.Callback):
    """One live line on a terminal, plain lines elsewhere.

    Args:
        every: Positive float, the least seconds between two plain lines.
        stream: Where to write. Defaults to standard output.
    """

    def __init__(self, *, every=1.0, stream=None):
        super().__init__()
        self.every = every
        self.stream = stream

    def on_train_begin(self, logs=None):
        self._out = self.stream or sys.stdout
        self._live = self._out.isatty()
        self._began = self._said = time.perf_counter()
        self._first = None
        self._open = None

    def on_epoch_end(self, epoch, logs=None):
        now = time.perf_counter()
        self._first = epoch if self._first is None else self._first
        line = self._line(epoch, logs, now)
        if self._live:
            self._out.write(f"\r{line}\x1b[K")
            self._out.flush()
            self._open = True
        elif now - self._said >= self.every or epoch + 1 == self.params.get("epochs"):
            self._said, self._open = now, None
            self._out.write(line + "\n")
        else:
            self._open = line

    def on_train_end(self, logs=None):
        if self._open:
            self._out.write("\n" if self._live else f"{self._open}\n")

    def _line(self, epoch, logs, now):
        epochs = self.params.get("epochs")
        parts = [
            f"update {epoch + 1}" + (f"/{epochs}" if epochs else ""),
            f"return {logs['episode_return']:.1f}",
            f"length {logs['episode_length']:.0f}",
            f"entropy {logs['entropy']:.3f}",
            f"{logs['env_steps']:,.0f} steps",
            f"{logs['steps_per_second']:,.0f} steps/s",
        ]
        if math.isfinite(logs.get("val_episode_return", math.nan)):
            parts.insert(2, f"evaluation {logs['val_episode_return']:.1f}")
        if epochs:
            done = epoch - self._first + 1
            left = (now - self._began) / done * (epochs - epoch - 1)
            parts.append(f"left {int(left) // 60}:{int(left) % 60:02d}")
        return " · ".join(parts)
