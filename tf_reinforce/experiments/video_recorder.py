"""Videos of the policy during training."""

import inspect
import pathlib

import keras

from tf_reinforce.experiments import recording
from tf_reinforce.support import extras
from tf_reinforce.support import validation


class VideoRecorder(keras.callbacks.Callback):
    """Records a video before the first update, and after every `every` updates.

    The file name contains the number of updates, for example `update_000100.mp4`. By
    default, all videos show the most likely actions in an episode with the same reset
    seed, so you can compare them. Recording does not change the result of the training.

    Args:
        env: As for `recording.record`.
        directory: Path of the folder for the videos, which is created.
        every: Positive int, in updates.
        **options: Further arguments of `recording.record`, for example `seed`.

    Raises:
        ValueError, TypeError: If an argument is invalid.
        ImportError: Without imageio-ffmpeg.

    Example:

    >>> recorder = VideoRecorder("CartPole-v1", "runs/1/videos", every=50, seed=7)
    >>> recorder.path(update=100).name
    'update_000100.mp4'
    """

    chief_only = True  # of several learner processes, one writes the videos

    def __init__(self, env, directory, every=100, **options):
        super().__init__()
        self.env = env
        self.directory = pathlib.Path(directory)
        self.every = validation.positive_int("every", every)
        self.options = options
        inspect.signature(recording.record).bind(None, env, self.path(0), **options)
        extras.load("imageio_ffmpeg", "video")

    def path(self, update):
        """Returns the path of the video after a number of updates."""
        return self.directory / f"update_{update:06d}.mp4"

    def on_train_begin(self, logs=None):
        self._record()

    def updates_until_due(self, epoch):
        """Returns the number of updates until the next video."""
        return self.every - epoch % self.every

    def on_epoch_end(self, epoch, logs=None):
        if (epoch + 1) % self.every == 0:
            self._record()

    def _record(self):
        path = self.path(self.model.updates)
        recording.record(self.model, self.env, path, **self.options)
