"""Checks the expected gradient of a `SequenceReinforce` by enumerating completions."""

import functools
import itertools
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.functional import losses
from tf_reinforce.sequences import conversation
from tf_reinforce.sequences import model as sequence_models
from tf_reinforce.sequences import training
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

    In this equation, g is the gradient that `SequenceReinforce.gradients` returns for a
    batch of P prompts x, each with `group_size` completions y. To compute the left side,
    the gradients for all combinations of completions are averaged with their
    probabilities. The right side is differentiated without the log-derivative trick.

    No token is drawn at random. The completions nevertheless pass through the model's
    sampling with its cache, so the check also reveals any difference between sampling and
    scoring.

    Args:
        model: `tfr.sequences.SequenceReinforce` with a small vocabulary and a small
            `max_completion_length`. Its language model should be float64, for example
            `GPT2Backbone(..., dtype="float64")`.
        prompts: List of P prompts, or dict of columns with P entries each.
        tolerance: Float, the largest accepted difference between entries of the two
            gradients, or `None` to accept any.

    Returns:
        `GradientReport`. Its `trajectories` counts the completions of all prompts.

    Raises:
        AssertionError: If the difference exceeds the tolerance, or the probabilities of a
            prompt's completions do not sum to one.
        ValueError: If there are too many completions or batches.
    """
    validation.instance("model", model, sequence_models.SequenceReinforce)
    columns = training.read(prompts)
    completions, rewards, prompt_of = all_completions(model, columns)
    policy, options, num_prompts = model.policy, model.options, len(columns["prompts"])
    with tf.GradientTape() as tape:
        log_probs = tf.reduce_sum(policy.log_probs(completions)[0], axis=1)
        values = tf.constant(rewards, log_probs.dtype)
        if options.kl_coef:
            # In another way than that of the estimator, which must not check itself.
            pairs = zip(model.trainable_variables, model.reference_weights, strict=True)
            with keras.StatelessScope([(v, x.value) for v, x in pairs]):
                reference = policy.log_probs(completions)[0]
            values -= options.kl_coef * (log_probs - tf.reduce_sum(reference, axis=1))
        loss = -tf.reduce_sum(tf.exp(log_probs) * values) / num_prompts
    exact = expectations.flat(losses.gradients(tape, loss, model.trainable_variables))
    difference = np.abs(completions.row_log_probs - log_probs).max()
    if tolerance is not None and not difference <= tolerance:
        raise AssertionError(
            "The log-probabilities of completions must be equal in sampling and in "
            f"scoring. Received: a largest difference of {difference}"
        )

    @tf.function(autograph=False)
    def gradients(indices, rewards):
        return model.gradients(completions.rows(indices), rewards)[0]

    probs = np.exp(log_probs) * (prompt_of == np.arange(num_prompts)[:, None])
    expected = expectations.expected(
        np.repeat(probs, options.group_size, axis=0),
        lambda rows: gradients(tf.constant(rows), tf.constant(rewards[rows])),
    )
    results = expected, exact, len(rewards)
    return expectations.compare(*results, tolerance, "the expected reward")


def all_completions(model, columns):
    """Returns all completions of all prompts, with their rewards and prompt numbers."""
    options, num_prompts = model.options, len(columns["prompts"])
    size, length = model.causal_lm.backbone.vocabulary_size, options.max_completion_length
    expectations.check_count(size**length)
    # Each prompt is continued by each string of tokens.
    strings = np.array(list(itertools.product(range(size), repeat=length)), "int32")
    replayed = tf.constant(np.tile(strings, [num_prompts, 1]))
    sample = functools.partial(model.policy.sample, replayed=replayed)
    sampled = conversation.converse(model, sample, columns, len(strings), None)
    numbers = np.repeat(np.arange(num_prompts), len(strings))
    ids = sampled.columns["completion_ids"]
    # Strings that differ only after the end token give the same completion.
    first = {}
    for row, key in enumerate(zip(numbers, map(tuple, ids), strict=True)):
        first.setdefault(key, row)
    rows = list(first.values())
    texts = {name: [x[i] for i in rows] for name, x in sampled.columns.items()}
    return sampled.completions.rows(rows), model.rewards(texts)[0], numbers[rows]
