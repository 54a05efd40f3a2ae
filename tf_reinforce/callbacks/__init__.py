"""Callbacks that know episodes, beside Keras' own."""

from tf_reinforce.callbacks.diagnostics import Diagnostics
from tf_reinforce.callbacks.episodes import (
    EpisodeCallback,
    EpisodeLogger,
    ProgressLine,
    StopAtReturn,
)
from tf_reinforce.callbacks.findings import Finding

__all__ = [
    "Diagnostics",
    "EpisodeCallback",
    "EpisodeLogger",
    "Finding",
    "ProgressLine",
    "StopAtReturn",
]
