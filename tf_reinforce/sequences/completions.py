"""Defines the record of prompts and of the completions that a language model samples."""

from typing import Any, NamedTuple

import tensorflow as tf


class Completions(NamedTuple):
    """R completions, each behind its prompt, in rows of L tokens.

    A completion begins behind the prompt. It consists of tokens that the model has
    sampled, among them the end token, and of tokens of replies.
    """

    token_ids: tf.Tensor  # [R, L] int32, prompt, completion and padding
    padding_mask: tf.Tensor  # [R, L] bool, False for padding
    sampled: tf.Tensor  # [R, L] bool, True for tokens that the model has sampled
    log_probs: tf.Tensor  # [R, L] float, of the sampled tokens, when they were sampled
    truncated: tf.Tensor  # [R] bool, True if the length limit has ended the completion
    others: dict[str, Any]  # further inputs of the model, `[R, …]`

    @property
    def inputs(self):
        """Returns the inputs of the language model, a dict."""
        own = {"token_ids": self.token_ids, "padding_mask": self.padding_mask}
        return {**self.others, **own}

    @property
    def row_log_probs(self):
        """Returns the log-probability of each completion, `[R]`, when it was sampled."""
        return tf.reduce_sum(self.log_probs, axis=1)

    def rows(self, indices):
        """Returns the `Completions` of some rows."""
        return tf.nest.map_structure(lambda x: tf.gather(x, indices), self)


def expect_rewards(completions, rewards):
    """Raises an error unless there is one reward for each of the completions."""
    if not isinstance(completions, Completions):
        raise TypeError(
            "`completions` must be `model.sample(prompts).completions`. Received: a "
            f"value of type {type(completions).__name__}"
        )
    expected = completions.token_ids.shape[:1]
    if not rewards.shape.is_compatible_with(expected):
        raise ValueError(
            f"Expected: one reward for each completion, shape {tuple(expected)}. "
            f"Received: rewards of the shape {tuple(rewards.shape)}"
        )


def from_prompts(inputs, group_size, dtype):
    """Returns `Completions` without sampled tokens: each prompt `group_size` times.

    Args:
        inputs: Dict of inputs of the language model for P prompts, at least `token_ids`
            and `padding_mask`, each `[P, L]`.
        group_size: Int, how many consecutive rows begin with the same prompt.
        dtype: Float type of log-probabilities.
    """
    inputs = {name: tf.repeat(x, group_size, axis=0) for name, x in inputs.items()}
    token_ids = tf.cast(inputs.pop("token_ids"), tf.int32)
    padding_mask = tf.cast(inputs.pop("padding_mask"), tf.bool)
    sampled, log_probs = tf.zeros_like(padding_mask), tf.zeros(token_ids.shape, dtype)
    truncated = tf.zeros(token_ids.shape[:1], tf.bool)
    return Completions(token_ids, padding_mask, sampled, log_probs, truncated, inputs)
