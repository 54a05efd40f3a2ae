"""Keras layers that draw samples, for models trained by `ScoreFunction`."""

from tf_reinforce.sampling.sample import Sample

__all__ = ["Sample"]

__dir__ = __all__.copy  # what tab completion shows
