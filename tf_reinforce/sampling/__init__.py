"""Trains Keras models that contain `Sample` layers, with the score-function estimator."""

from tf_reinforce.sampling.model import ScoreFunction

__all__ = ["ScoreFunction"]

__dir__ = __all__.copy  # what tab completion shows
