"""`Multinomial`, for counts of categories."""

import math
from typing import Any

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.data import seeding
from tf_reinforce.functional import eligibility
from tf_reinforce.heads import categorical
from tf_reinforce.support import validation

_MIN_LOGIT = -1e30  # gives probability zero; N × `_MIN_LOGIT` is finite


@keras.saving.register_keras_serializable("tf_reinforce")
class Multinomial(categorical.LogitsHead):
    """Counts of `N` draws among `K` categories; the policy returns `[..., K]` logits.

        π(n|s) = N! Πₖ pₖ^nₖ / nₖ!,    p = softmax(z)

    For actions that distribute N units over K categories, for example a budget. The
    environment receives the counts.

    Args:
        categories: Positive int, `K`.
        trials: Positive int, `N`.

    Example:

    >>> head = Multinomial(3, trials=5)
    >>> logits = tf.math.log([[0.6, 0.3, 0.1]])
    >>> head.mode(logits).numpy().tolist()
    [[3, 2, 0]]
    >>> head.eligibility(logits, tf.constant([[3, 2, 0]])).numpy().round(4).tolist()
    [[0.0, 0.5, -0.5]]
    """

    argument_names = ("categories", "trials")

    def __init__(self, categories: int, trials: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.categories = validation.size("categories", categories)
        self.trials = validation.size("trials", trials)
        self.choices = self.action_shape = (self.categories,)
        self.outputs_size = self.mask_size = self.categories
        self.noise = seeding.NoiseSpec("uniform", (self.trials, self.categories))

    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        return _MultinomialWithEntropy(self.trials, outputs)

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        return eligibility.multinomial_logits(outputs, actions, self.trials)

    def sample(self, outputs: tf.Tensor, noise: Any) -> Any:
        logits = categorical.center_logits(outputs)[..., None, :]
        return self._count(tf.argmax(logits + categorical.gumbel(noise), axis=-1))

    def mode(self, outputs: tf.Tensor) -> Any:
        # Increasing the count nₖ by one multiplies the probability by a multiple of pₖ /
        # (nₖ + 1). The most likely counts of N draws follow from the N largest quotients
        # pₖ / j.
        log_j = tf.math.log(tf.range(1.0, self.trials + 1.0))
        logits = categorical.center_logits(outputs)[..., None, :]
        log_quotients = logits - tf.cast(log_j, outputs.dtype)[:, None]
        size = self.trials * self.categories
        shape = tf.concat([tf.shape(outputs)[:-1], [size]], axis=0)
        _, indices = tf.math.top_k(tf.reshape(log_quotients, shape), self.trials)
        return self._count(indices % self.categories)

    def _count(self, categories: Any) -> Any:
        """Converts drawn categories `[..., trials]` to counts `[..., categories]`."""
        # tf2onnx does not convert `tf.one_hot` of a matrix to integers.
        numbers = tf.range(self.categories, dtype=categories.dtype)
        one_hot = tf.cast(categories[..., None] == numbers, tf.int64)
        return tf.reduce_sum(one_hot, axis=-2)

    def is_legal(self, actions: Any, mask: np.ndarray) -> Any:
        return ((mask != 0) | (actions == 0)).all(axis=-1)

    def to_environment(self, actions: Any) -> Any:
        return actions

    def matches_space(self, space: gym.Space) -> bool:
        if isinstance(space, gym.spaces.MultiDiscrete):
            low, high = np.asarray(space.start), space.start + space.nvec - 1
        elif isinstance(space, gym.spaces.Box) and space.dtype.kind in "iu":
            low, high = space.low, space.high
        else:
            return False
        inside = np.all(low <= 0) and np.all(high >= self.trials)
        return space.shape == (self.categories,) and bool(inside)

    def is_valid(self, actions: Any) -> Any:
        correct_sum = np.sum(actions, axis=-1, keepdims=True) == self.trials
        return (actions >= 0) & correct_sum


class _MultinomialWithEntropy(tfp.distributions.Multinomial):
    """TFP's Multinomial with an entropy, integer counts, and -∞ for invalid ones.

    The count nₖ of each category is binomial. The entropy of N choices with probabilities
    p is therefore H = -ln N! - N Σ p ln p + Σₖ E[ln nₖ!], where each expectation is a sum
    over N + 1 counts. The terms nearly cancel each other, so they are summed in float64.
    """

    def __init__(self, trials: int, logits: tf.Tensor) -> None:
        super().__init__(tf.cast(trials, logits.dtype), logits=logits)
        self._trials = trials

    def _log_prob(self, counts: Any) -> Any:
        counts = tf.cast(counts, self.dtype)
        correct_sum = tf.reduce_sum(counts, axis=-1) == self.total_count
        valid = correct_sum & tf.reduce_all(counts >= 0, axis=-1)
        minus_infinity = tf.constant(-math.inf, self.dtype)
        return tf.where(valid, super()._log_prob(counts), minus_infinity)

    def _entropy(self) -> Any:
        # Masked logits are below `_MIN_LOGIT`; N times such a logit would be infinite.
        logits = tf.maximum(tf.cast(self.logits, tf.float64), _MIN_LOGIT)
        log_p, log_1_minus_p = _log_probs_and_complements(logits)
        n = tf.range(self._trials + 1.0, dtype=tf.float64)
        log_factorial = tf.math.lgamma(n + 1.0)
        log_binomial = log_factorial[-1] - log_factorial - log_factorial[::-1]
        log_powers = n * log_p[..., None] + n[::-1] * log_1_minus_p[..., None]
        probs = tf.exp(log_binomial + log_powers)
        expected = tf.reduce_sum(probs * log_factorial, axis=[-1, -2])
        sum_p_log_p = tf.reduce_sum(tf.exp(log_p) * log_p, axis=-1)
        return tf.cast(expected - log_factorial[-1] - n[-1] * sum_p_log_p, self.dtype)


def _log_probs_and_complements(logits: Any) -> Any:
    """Returns ln p and ln(1 - p) for p = softmax(logits), both always finite.

    If p rounds to one, a subtraction 1 - p would give zero, and a NaN gradient.
    """
    total = tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
    diagonal = tf.eye(logits.shape[-1], dtype=tf.bool)
    min_logit = tf.constant(_MIN_LOGIT, logits.dtype)
    others = tf.where(diagonal, min_logit, logits[..., None, :])
    return logits - total, tf.reduce_logsumexp(others, axis=-1) - total
