"""Trains KerasHub's causal language models from rewards for their completions."""

from tf_reinforce.sequences.model import SequenceReinforce

__all__ = ["SequenceReinforce"]


def __dir__() -> list[str]:
    return __all__
