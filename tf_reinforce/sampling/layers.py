"""Keras layers: attention over time for policies, and samples for `ScoreFunction`."""

from tf_reinforce.policies.attention import CausalSelfAttention
from tf_reinforce.sampling.sample import Sample

__all__ = ["CausalSelfAttention", "Sample"]

__dir__ = __all__.copy  # what tab completion shows
