"""Keras callbacks that receive episodes."""

from tf_reinforce.callbacks.advice import Finding
from tf_reinforce.callbacks.diagnostics import Diagnostics
from tf_reinforce.callbacks.episodes import EpisodeCallback
from tf_reinforce.callbacks.episodes import EpisodeLogger
from tf_reinforce.callbacks.episodes import ProgressLine
from tf_reinforce.callbacks.episodes import StopAtReturn
from tf_reinforce.callbacks.tensorboard import TensorBoardLogger

__all__ = [
    "Diagnostics",
    "EpisodeCallback",
    "EpisodeLogger",
    "Finding",
    "ProgressLine",
    "StopAtReturn",
    "TensorBoardLogger",
]

__dir__ = __all__.copy  # what tab completion shows
