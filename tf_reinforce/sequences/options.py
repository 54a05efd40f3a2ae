"""Holds the options of the policy gradient of completions."""

import dataclasses
import math

from tf_reinforce.support import validation


@dataclasses.dataclass(frozen=True)
class SequenceOptions:
    """The options of `SequenceReinforce`, which its docstring describes."""

    group_size: int
    kl_coef: float
    temperature: float
    max_completion_length: int
    max_turns: int
    passes: int
    minibatch_size: int | None
    microbatch_size: int | None
    ratio_clip: float
    scale_advantages: bool
    length_normalization: bool

    def __post_init__(self):
        for name in ("group_size", "max_completion_length", "max_turns", "passes"):
            validation.positive_int(name, getattr(self, name))
        for name in ("minibatch_size", "microbatch_size"):
            validation.positive_int_or_none(name, getattr(self, name))
        for name in ("scale_advantages", "length_normalization"):
            validation.boolean(name, getattr(self, name))
        lowest = {"kl_coef": 0, "temperature": 2.0**-126, "ratio_clip": 1}
        for name, low in lowest.items():
            validation.within(name, getattr(self, name), low, math.inf)
        if self.group_size < 2:
            raise ValueError(
                "`group_size` must be at least 2, because the baseline of a completion "
                "is the mean reward of the other completions of its prompt. Received: "
                f"group_size={self.group_size}"
            )

    @property
    def has_minibatches(self):
        """Returns whether an update may make more than one gradient step."""
        return self.passes > 1 or self.minibatch_size is not None
