"""Checks the expected gradient of a `SequenceReinforce` by enumeration of completions."""

import functools
import itertools
import math
from typing import Any

import numpy as np
import tensorflow as tf

from tf_reinforce.functional import losses
from tf_reinforce.sequences import conversation
from tf_reinforce.sequences import model as sequence_models
from tf_reinforce.sequences import prompts as prompt_tables
from tf_reinforce.support import validation
from tf_reinforce.testing import expectations


def check_sequence_gradient(
    model: sequence_models.SequenceReinforce,
    prompts: Any,
    *,
    tolerance: float | None = 1e-9,
) -> expectations.GradientReport:
    """Checks that the expected gradient is the gradient of the expected reward.

        E[g] = -∇ 1/P Σ_x Σ_y π(y|x) [r(x, y) - β log (π(y|x) / π_ref(y|x))]

    In the equation, g is the gradient that `SequenceReinforce.gradients` returns for a
    batch of P prompts x, each with `group_size` completions. The expectation is a sum
    over all completions of all rows of the batch, weighted by their probabilities. The
    right side is differentiated without the log-derivative trick. The completions pass
    through the sampling of the model, with its cache, so that a difference between
    sampling and scoring is also found. No token is drawn.

    Args:
        model: `tfr.sequences.SequenceReinforce` with a small vocabulary and small
            `max_completion_length`. Its language model should be float64, for example
            `GPT2Backbone(..., dtype="float64")`.
        prompts: List of P prompts, or dict of columns with P entries each.
        tolerance: Float, the largest accepted difference between an entry of both
            gradients. `tolerance=None` accepts any difference.

    Returns:
        `GradientReport`, whose `trajectories` is the number of completions of all
        prompts, and `batches` the number of enumerated batches.

    Raises:
        AssertionError: If the difference of both gradients exceeds the tolerance, or if
            the probabilities of all completions of a prompt do not sum to one.
        ValueError: If there are too many completions or batches.
    """
    validation.instance("model", model, sequence_models.SequenceReinforce)
    columns = prompt_tables.read_table(prompts).columns
    return _AllCompletions(model, columns).check(tolerance)


class _AllCompletions:
    """Enumerates all completions of each prompt."""

    def __init__(self, model, columns):
        self.model = model
        self.num_prompts = len(columns["prompts"])
        strings = self._strings()
        sampled = self._replay(columns, strings)
        prompt_numbers = np.repeat(np.arange(self.num_prompts), len(strings))
        ids = sampled.columns["completion_ids"]
        keys = [(number, *row) for number, row in zip(prompt_numbers, ids, strict=True)]
        # Strings that differ only after the end token give the same completion.
        rows = sorted({key: row for row, key in reversed(list(enumerate(keys)))}.values())
        self.prompt_of = prompt_numbers[rows]
        self.completions = sampled.completions.rows(rows)
        texts = {name: [x[i] for i in rows] for name, x in sampled.columns.items()}
        self.rewards = model.rewards(texts)[0]

    def _strings(self):
        """Returns all strings of tokens of the largest length, `[count, length]`."""
        size = self.model.causal_lm.backbone.vocabulary_size
        length = self.model.options.max_completion_length
        expectations.check_count(size**length)
        return np.array(list(itertools.product(range(size), repeat=length)), "int32")

    def _replay(self, columns, strings):
        """Returns the `SampledTexts` in which each prompt is continued by each string."""
        model = self.model
        replayed = tf.constant(np.tile(strings, [self.num_prompts, 1]))
        sample = functools.partial(model.policy.sample, replayed=replayed)
        converse = conversation.Conversation(
            sample,
            model.encoding,
            model.policy.dtype,
            model.reply,
            model.options.max_turns,
        )
        return converse(columns, len(strings), None)

    def exact(self):
        """Returns the gradient of minus the objective, and all probabilities."""
        policy, options = self.model.policy, self.model.options
        with tf.GradientTape() as tape:
            log_probs = tf.reduce_sum(policy.log_probs(self.completions)[0], axis=1)
            probs = tf.exp(log_probs)
            values = tf.constant(self.rewards, probs.dtype)
            if options.kl_coef:
                weights = [x.value for x in self.model.reference_weights]
                reference = policy.log_probs(self.completions, weights)[0]
                ratios = log_probs - tf.reduce_sum(reference, axis=1)
                values -= options.kl_coef * ratios
            loss = -tf.reduce_sum(probs * values) / self.num_prompts
        gradient = losses.gradients(tape, loss, self.model.trainable_variables)
        return expectations.flat(gradient), probs.numpy()

    def expected(self, probs):
        """Returns the expected gradient, and the number of batches."""
        size = self.model.options.group_size
        rows = [np.flatnonzero(self.prompt_of == n) for n in range(self.num_prompts)]
        choices = [group for group in rows for _ in range(size)]

        @tf.function(autograph=False)
        def gradients(indices, rewards):
            return self.model.gradients(self.completions.rows(indices), rewards)[0]

        total, count = np.zeros(1), 0
        for batch in expectations.batches(choices):
            indices = np.array(batch)
            gradient = gradients(tf.constant(indices), tf.constant(self.rewards[indices]))
            total = total + math.prod(probs[indices]) * expectations.flat(gradient)
            count += 1
        return total, count

    def check(self, tolerance):
        """Returns the `GradientReport`; raises an error if its `error` is too large."""
        exact, probs = self.exact()
        expectations.check_probabilities(
            np.bincount(self.prompt_of, probs),
            "completions of a prompt",
            "Check whether the language model is float64, and `reply` deterministic.",
        )
        sampled = self.completions.row_log_probs.numpy()
        difference = np.abs(sampled - np.log(probs)).max()
        if tolerance is not None and not difference <= tolerance:
            raise AssertionError(
                "The log-probabilities of completions must be equal in sampling and in "
                f"scoring. Received: a largest difference of {difference}"
            )
        expected, batches = self.expected(probs)
        hint = "`scale_advantages` and `length_normalization` are biased."
        message = "the expected reward", f"{hint} See docs/correctness.md."
        counts = {"trajectories": len(probs), "batches": batches}
        return expectations.compare(expected, exact, tolerance, message, **counts)
