"""Keras layers that draw samples, for models trained by `ScoreFunction`."""

from tf_reinforce.sampling.sample import Sample

__all__ = ["Sample"]


def __dir__() -> list[str]:
    return __all__
