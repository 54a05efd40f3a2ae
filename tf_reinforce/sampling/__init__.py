"""Trains Keras models that contain `Sample` layers, with the score-function estimator."""

from tf_reinforce.sampling.model import ScoreFunction

__all__ = ["ScoreFunction"]


def __dir__() -> list[str]:
    return __all__
