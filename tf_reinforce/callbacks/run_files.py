"""Callbacks that write the log and the best model of a run directory."""

import math
import os
from collections.abc import Callable
from typing import Any

import keras

from tf_reinforce.callbacks import episodes
from tf_reinforce.support import validation


class RunLog(keras.callbacks.Callback):
    """Writes one CSV row per update, or per epoch of a Keras model.

    The columns are `epoch` and the log keys of the first row. A resumed run keeps the
    columns of its file. A value that an update does not have is written as `nan`.

    Args:
        filename: Path of the CSV file.
        columns: Strings, log keys that the first row may lack. A `val_…` also needs a
            column without this prefix. `None` stands for the `val_…` of all others.
    """

    chief_only = True  # of several learner processes, only the chief calls it

    def __init__(self, filename: str | os.PathLike, columns: Any = ()) -> None:
        super().__init__()
        self.filename = os.fspath(filename)
        self.append = False
        self._columns = columns
        self._names: list[str] = []

    def get_state(self) -> dict:
        """Returns nothing, because the file has all."""
        return {}

    def set_state(self, state: Any) -> None:
        """Restores nothing."""

    def on_train_begin(self, logs: Any = None) -> None:
        self._names = episodes.read_header(self.filename) if self.append else []
        if not self.append:
            episodes.write_rows(self.filename, "w", [])

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        values = {"epoch": epoch, **logs}
        if not self._names:
            columns = self._columns
            if columns is None:
                columns = {f"val_{name}" for name in logs if not name.startswith("val_")}
            names = {*logs, *columns}
            later = {name for name in columns if name.removeprefix("val_") in names}
            self._names = ["epoch", *sorted({*logs, *later})]
            episodes.write_rows(self.filename, "a", [self._names])
        row = [values.get(name, math.nan) for name in self._names]
        episodes.write_rows(self.filename, "a", [row])


class BestModel(keras.callbacks.Callback):
    """Saves the model whenever a log value is better than in all epochs before.

    The first value is better than none, even NaN or -inf.

    Args:
        monitors: Log keys, of which the first one in the logs counts. A key that ends in
            `loss` is minimized.
        save: Function that saves the model and receives the logs, or `None`. Of several
            learner processes, only the chief saves.
    """

    def __init__(self, monitors: Any, save: Callable | None) -> None:
        super().__init__()
        self.monitors = monitors
        self.save = save
        self.best_value = -math.inf
        self.judged_update = -1  # the number of the last update with a value

    def get_state(self) -> dict:
        """Returns the state for a checkpoint."""
        return {"best_value": self.best_value, "judged_update": self.judged_update}

    def set_state(self, state: dict) -> None:
        """Restores the result of `get_state`, which may come from an untrusted file."""
        validation.instance("best_value", state["best_value"], float)
        validation.whole_number("judged_update", state["judged_update"], low=-1)
        self.best_value, self.judged_update = state["best_value"], state["judged_update"]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        if (name := next((x for x in self.monitors if x in logs), None)) is not None:
            value = -logs[name] if name.endswith("loss") else logs[name]
            self.judge(value, epoch + 1, logs)

    def judge(self, value: float, update: int, logs: Any = None) -> None:
        """Saves the model of an update if its value is the first or the best so far."""
        is_first, self.judged_update = self.judged_update < 0, update
        if is_first or value > self.best_value:
            self.best_value = max(self.best_value, float(value))  # never NaN
            if self.save is not None:
                self.save(logs)
