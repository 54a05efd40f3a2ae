"""Trains KerasHub's causal language models from rewards for their completions."""

from tf_reinforce.sequences.model import SequenceReinforce

__all__ = ["SequenceReinforce"]

__dir__ = __all__.copy  # what tab completion shows
