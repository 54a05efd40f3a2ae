"""Trains Keras models that contain `Sample` layers, with the score-function estimator."""

from tf_reinforce.score_function.model import ScoreFunction

__all__ = ["ScoreFunction"]


def __dir__() -> list[str]:
    return __all__
