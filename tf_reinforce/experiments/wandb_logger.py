"""Defines a callback that logs the updates of a run to Weights & Biases."""

import math
import pathlib
import re
import uuid

import keras

from tf_reinforce import files

_ID_FILE = "wandb_id.txt"


class WandbLogger(keras.callbacks.Callback):
    """Logs every update of a run to Weights & Biases, over environment steps.

    The environment variables of wandb decide where the logs are sent. With
    `WANDB_MODE=offline`, they are only written to the folder `wandb` of the run
    directory. A training that continues logs to the same run of Weights & Biases.

    Args:
        project: String, the name of the project.
        directory: `pathlib.Path` of the run directory.
        config: Dict of the settings of the run.
    """

    chief_only = True  # of several learner processes, only the chief calls it

    def __init__(self, project, directory, config):
        super().__init__()
        self.project = project
        self.directory = directory
        self.config = config

    def on_train_begin(self, logs=None):
        import wandb  # an optional package

        self._run = wandb.init(
            project=self.project,
            name=self.directory.name,
            id=_run_id(self.directory / _ID_FILE),
            dir=self.directory,
            config=self.config,
            resume="allow",
            settings=wandb.Settings(silent=True),
        )

    def on_epoch_end(self, epoch, logs=None):
        finite = {name: x for name, x in logs.items() if math.isfinite(x)}
        self._run.log(finite, step=int(logs["env_steps"]))

    def on_train_end(self, logs=None):
        self._run.finish()

    def on_train_error(self):
        """Marks the run as failed."""
        self._run.finish(exit_code=1)


def _run_id(path):
    """Returns the id in a file, or a new id, which is written to the file."""
    if path.exists():
        files.expect_regular_file(path)
        text = path.read_text(encoding="utf-8")[:64].strip()
        if re.fullmatch(r"[A-Za-z0-9_-]+", text):
            return text
    identifier = uuid.uuid4().hex[:8]
    with files.atomic_write(path) as temporary:
        pathlib.Path(temporary).write_text(f"{identifier}\n")
    return identifier
