"""Trains causal language models of KerasHub from rewards for their completions."""

from tf_reinforce.sequences.model import SequenceReinforce

__all__ = ["SequenceReinforce"]


def __dir__() -> list[str]:
    return __all__
