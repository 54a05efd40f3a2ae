"""Logs for TensorBoard, over environment steps."""

import math
import os
from typing import Any

import numpy as np
import tensorflow as tf

from tf_reinforce.callbacks import episodes as episode_callbacks
from tf_reinforce.data import spaces
from tf_reinforce.support import files
from tf_reinforce.support import validation

_TIME = "env_steps", "episode_length", "steps_per_second"


class TensorBoardLogger(episode_callbacks.EpisodeCallback):
    """Writes the logs of each update for TensorBoard, over the environment steps.

    Each log key becomes a scalar in one of four groups, for example
    `episode/episode_return`, `update/loss`, `time/steps_per_second` and
    `validation/episode_return`. Values that are not finite are left out, for example
    `val_episode_return` after an update without an evaluation. You can also use
    `keras.callbacks.TensorBoard`, but then the x axis is the number of updates.

    Histograms show how the numbers in an array are distributed. With `histograms=True`,
    they are written for all weights, under names that begin with `weights/`, and for the
    actions that the policy sampled for the update, under the name `update/actions`.

    When `fit(..., resume=...)` continues a training, the updates after the checkpoint are
    made again and also written again, with the same values at the same steps.

    Args:
        log_dir: Path of the folder of event files. It may contain other files.
        histograms: Bool, whether to write histograms.
        every: Positive int. Histograms are written at the first update and then at every
            N-th.

    Example:

    >>> import tf_reinforce as tfr
    >>> logger = tfr.callbacks.TensorBoardLogger("runs/first/tensorboard")
    """

    chief_only = True  # of several learner processes, only the chief calls it

    def __init__(
        self, log_dir: str | os.PathLike, *, histograms: bool = False, every: int = 10
    ) -> None:
        super().__init__()
        self.log_dir = validation.path("log_dir", log_dir)
        self.histograms = validation.boolean("histograms", histograms)
        self.every = validation.positive_int("every", every)
        self._writer: Any = None
        self._actions: list = []

    def on_episodes_collected(self, episodes: Any, logs: Any = None) -> None:
        if self.histograms and logs["update"] % self.every == 0:
            valid = np.arange(len(episodes.rewards))[:, None] < episodes.lengths
            actions = spaces.flatten(episodes.actions)
            self._actions = [np.asarray(x)[valid] for x in actions]

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        written = "Events that were written before are unchanged."
        with files.explain_failed_write(self.log_dir, written):
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(os.fspath(self.log_dir))
            with self._writer.as_default(step=int(logs["env_steps"])):
                for name, value in logs.items():
                    if math.isfinite(value):
                        tf.summary.scalar(self._tag(name), value)
                if self._actions:
                    self._write_histograms()
        self._actions = []

    def _tag(self, key: str) -> str:
        """Returns the group and name of a log key.

        TensorBoard sorts both by the alphabet. The returns come first, because lengths,
        which are constant in many environments, belong to another group.
        """
        if key.startswith("val_"):
            return f"validation/{key.removeprefix('val_')}"
        if key.startswith("episode_return") or key in ("success", *self._info_keys):
            return f"episode/{key}"
        return f"{'time' if key in _TIME else 'update'}/{key}"

    def _write_histograms(self) -> None:
        for number, actions in enumerate(self._actions):
            suffix = "" if len(self._actions) == 1 else f"/{number}"
            tf.summary.histogram(f"update/actions{suffix}", actions)
        for variable in self.model.weights:
            if variable.dtype.startswith(("float", "bfloat")):
                tf.summary.histogram(f"weights/{variable.path}", variable.value)

    def on_train_error(self) -> None:
        self.on_train_end()

    def on_train_end(self, logs: Any = None) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
