"""Checks the expected gradient of logged decisions against the gradient of the value."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.functional import losses
from tf_reinforce.sampling import logged_actions
from tf_reinforce.sampling import model as score_functions
from tf_reinforce.sampling import recording
from tf_reinforce.testing import expectations


def check_logged_gradient(
    score_function: score_functions.ScoreFunction,
    contexts: Any,
    rewards: np.ndarray,
    propensities: np.ndarray,
    *,
    estimator: str = "ips",
    clip: float | None = None,
    top_k: int | None = None,
    reward_model: keras.Model | None = None,
    tolerance: float | None = 1e-9,
) -> expectations.GradientReport:
    """Checks that the expected gradient of a log is the gradient of the policy's value.

        E[g] = ∇ 1/N Σₙ Σₐ π(a|xₙ) r(xₙ, a)

    In the equation, g is the gradient with which `ScoreFunction.fit_logged` trains on a
    log with one decision for each of N contexts. The expectation is a sum over all logs
    that the logging policy can write, weighted by their probabilities. With `top_k=K`,
    α(a|x) = 1 - (1 - π(a|x))ᴷ replaces π(a|x) on the right side.

    Args:
        score_function: `tfr.ScoreFunction` whose model is float64 and has one `Sample`
            layer with the head `Categorical(K)`.
        contexts: `[N, …]` inputs of the model.
        rewards: `[N, K]` floats, the rewards of all actions.
        propensities: `[N, K]` floats, the probabilities of all actions under the logging
            policy; each row sums to one. The logging policy never chooses actions with a
            probability of zero.
        estimator, clip, top_k, reward_model: As in `ScoreFunction.fit_logged`.
        tolerance: Float, the largest accepted difference between an entry of both
            gradients. `tolerance=None` accepts any difference.

    Returns:
        `GradientReport`, whose `trajectories` is the number K of actions, and `batches`
        the number of enumerated logs.

    Raises:
        AssertionError: If the difference of both gradients exceeds the tolerance.
        ValueError: If the logs cannot be enumerated.
    """
    model = score_function.model
    options = logged_actions.LoggedOptions(estimator, clip, top_k, reward_model)
    rewards, propensities = (np.asarray(x, "float64") for x in (rewards, propensities))
    rows = np.arange(len(rewards))

    def gradient(actions):
        logged = contexts, actions, rewards[rows, actions], propensities[rows, actions]
        batch = logged_actions.validated(model, logged, options)
        with tf.GradientTape() as tape:
            scored = logged_actions.scores(model, batch, options, training=True)
            estimate = logged_actions.terms(scored, batch, options)
            value = -logged_actions.surrogate(scored, estimate, options)
        return losses.gradients(tape, value, model.trainable_variables)

    return expectations.compare(
        expectations.expected(propensities, gradient),
        _exact_gradient(model, contexts, rewards, top_k or 1),
        rewards.shape[1],
        tolerance,
        "the value of the policy",
        "`clip` and `snips` are biased (docs/correctness.md).",
    )


def _exact_gradient(model, contexts, rewards, k):
    """Returns the gradient of 1/N Σₙ Σₐ α(a|xₙ) r(xₙ, a) as a vector."""
    total = 0.0
    with tf.GradientTape() as tape:
        for action in range(rewards.shape[1]):
            with recording.recording([np.full(len(rewards), action)]) as recorder:
                model(contexts, training=True)
            alphas = 1.0 - (1.0 - tf.exp(recorder.log_probs)) ** k
            total += tf.reduce_mean(alphas * rewards[:, action])
    return expectations.flat(losses.gradients(tape, total, model.trainable_variables))
