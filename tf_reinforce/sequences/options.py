"""Holds the options of the policy gradient of completions."""

import dataclasses
import math

from tf_reinforce.support import validation


@dataclasses.dataclass(frozen=True)
class SequenceOptions:
    """The options of `SequenceReinforce`, which its docstring describes."""

    group_size: int = 4
    kl_coef: float = 0.05
    temperature: float = 1.0
    max_completion_length: int = 256
    max_turns: int = 1
    passes: int = 1
    minibatch_size: int | None = None
    microbatch_size: int | None = None
    ratio_clip: float = 2.0
    scale_advantages: bool = False
    length_normalization: bool = False

    def __post_init__(self):
        for name, check, *limits in _CHECKS:
            check(name, getattr(self, name), *limits)
        if self.group_size < 2:
            raise ValueError(
                "`group_size` must be at least 2, because the baseline of a completion "
                "is the mean reward of the other completions of its prompt. Received: "
                f"group_size={self.group_size}"
            )
        if not self.temperature > 0:
            raise ValueError(
                "`temperature` must be above 0. `evaluate` selects the most likely "
                f"tokens. Received: temperature={self.temperature}"
            )

    @property
    def has_minibatches(self):
        """Returns whether an update may make more than one gradient step."""
        return self.passes > 1 or self.minibatch_size is not None


_CHECKS = [
    ("group_size", validation.positive_int),
    ("kl_coef", validation.within, 0, math.inf),
    ("temperature", validation.within, 0, math.inf),
    ("max_completion_length", validation.positive_int),
    ("max_turns", validation.positive_int),
    ("passes", validation.positive_int),
    ("minibatch_size", validation.positive_int_or_none),
    ("microbatch_size", validation.positive_int_or_none),
    ("ratio_clip", validation.within, 1, math.inf),
    ("scale_advantages", validation.boolean),
    ("length_normalization", validation.boolean),
]

# Names of other libraries, and what `SequenceReinforce` uses instead.
_INSTEAD = {
    "sampler": "completions are always sampled from the distribution that is scored; "
    "`temperature` is its only parameter",
    "beta": "pass `kl_coef`",
    "num_generations": "pass `group_size`",
    "max_tokens": "pass `max_completion_length`",
    "max_length": "pass `max_completion_length`",
    "max_new_tokens": "pass `max_completion_length`",
    "num_iterations": "pass `passes`",
    "epsilon": "pass `ratio_clip`",
    "reward_funcs": "pass the reward functions as the second argument `rewards`",
    "top_k": "only the full softmax is the distribution that is scored",
    "top_p": "only the full softmax is the distribution that is scored",
    "loss": "the rewards define the loss",
    "learning_rate": "pass an optimizer to `compile`",
    "batch_size": "pass `batch_size` to `fit`",
    "args": "pass the options as arguments of the constructor, `compile` and `fit`",
    "scale_rewards": "pass `scale_advantages`, a bool",
    "max_prompt_length": "prompts are never shortened; the `sequence_length` of the "
    "preprocessor limits prompt and completion",
    "steps_per_generation": "pass `minibatch_size`",
    "gradient_accumulation_steps": "pass `microbatch_size`, a number of completions",
    "per_device_train_batch_size": "pass `batch_size`, a number of prompts, to `fit`",
    "eos_token_id": "pass `stop_token_ids`, a list",
    "optimizer": "pass the optimizer to `compile`",
    "num_train_epochs": "pass `epochs` to `fit`",
    "validation_batch_size": "the validation has the `batch_size` of `fit`",
    "x": "pass `prompts`",
    "y": "pass the targets as a column of the prompts, for the reward functions",
    "metrics": "pass further reward functions with the weight 0, which are logged",
    "validation_split": "pass `validation_data`, prompts",
    "validation_steps": "pass `validation_data` of the size that you need",
}


def expect_known(kwargs, method="SequenceReinforce", allowed=()):
    """Raises `TypeError` if a keyword argument is not one of the method.

    Args:
        kwargs: Dict of keyword arguments that the signature does not contain.
        method: String, the name of the method.
        allowed: Names of further keyword arguments.
    """
    for name, value in kwargs.items():
        if name not in allowed:
            hint = f": {_INSTEAD[name]}" if name in _INSTEAD else ""
            raise TypeError(
                f"`{method}` has no argument {name!r}{hint}. Received: {name}={value!r}"
            )


def validated_reply(reply, max_turns):
    """Returns the argument `reply`; raises an error if it does not fit `max_turns`."""
    if reply is not None and not callable(reply):
        raise TypeError(
            "`reply` must be a function `reply(prompts, completions, **columns)` that "
            f"returns a string or `None` for each completion. Received: reply={reply!r}"
        )
    if (reply is None) != (max_turns == 1):
        raise ValueError(
            "Completions of several turns need both a function `reply` and a `max_turns` "
            f"of at least 2. Received: reply={reply!r}, max_turns={max_turns}"
        )
    return reply
