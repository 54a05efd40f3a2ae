"""Counts of how often each category was chosen."""

import math

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce import validation
from tf_reinforce.data import seeding
from tf_reinforce.functional import eligibility
from tf_reinforce.heads import base
from tf_reinforce.heads import categorical

_NONE = -1e30  # a logit without any probability, far from overflowing


@keras.saving.register_keras_serializable("tf_reinforce")
class Multinomial(base.Head):
    """Counts of `N` independent choices among `K`; the policy puts out `[..., K]` logits.

        π(n|s) = N! Πₖ pₖ^nₖ / nₖ!,    p = softmax(z)

    For environments whose action says how much of each: where N units go, how a budget
    is split. The environment receives the counts.

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

    action_dtype = "int64"

    def __init__(self, categories, trials, **kwargs):
        super().__init__(**kwargs)
        self.categories = validation.positive_int("categories", categories)
        self.trials = validation.positive_int("trials", trials)
        self.outputs_size = self.categories
        self.action_shape = (self.categories,)
        self.noise = seeding.NoiseSpec("uniform", (self.trials, self.categories))
        self.mask_size = self.categories

    def distribution(self, outputs):
        return _Counts(self.trials, outputs)

    def eligibility(self, outputs, actions):
        return eligibility.multinomial_logits(outputs, actions, self.trials)

    def sample(self, outputs, noise):
        logits = categorical.centred(outputs)[..., None, :]
        chosen = tf.argmax(logits + categorical.gumbel(noise), axis=-1)
        return self._count(chosen)

    def mode(self, outputs):
        # One more of category k multiplies the probability by N pₖ / (nₖ + 1): the most
        # likely counts are those of the N largest quotients pₖ / j.
        steps = tf.math.log(tf.range(1.0, self.trials + 1.0))
        logits = categorical.centred(outputs)[..., None, :]
        gains = logits - tf.cast(steps, outputs.dtype)[:, None]
        shape = tf.concat(
            [tf.shape(outputs)[:-1], [self.trials * self.categories]], axis=0
        )
        _, largest = tf.math.top_k(tf.reshape(gains, shape), self.trials)
        return self._count(largest % self.categories)

    def _count(self, chosen):
        """`[..., N]` categories to `[..., K]` counts."""
        return tf.reduce_sum(tf.one_hot(chosen, self.categories, dtype=tf.int64), axis=-2)

    def mask_outputs(self, outputs, mask):
        return categorical.without(outputs, base.marked(mask, 0))

    def has_legal_action(self, mask):
        return (mask != 0).any(axis=-1)

    def is_legal(self, actions, mask):
        return ((mask != 0) | (actions == 0)).all(axis=-1)

    def parameters(self, outputs):
        return {"logits": outputs, "probs": tf.nn.softmax(outputs)}

    def to_environment(self, actions):
        return actions

    def matches_space(self, space):
        if isinstance(space, gym.spaces.MultiDiscrete):
            low, high = np.asarray(space.start), space.start + space.nvec - 1
        elif isinstance(space, gym.spaces.Box) and space.dtype.kind in "iu":
            low, high = space.low, space.high
        else:
            return False
        enough = np.all(low <= 0) and np.all(high >= self.trials)
        return space.shape == (self.categories,) and bool(enough)

    def is_valid(self, actions):
        whole = np.sum(actions, axis=-1, keepdims=True) == self.trials
        return (actions >= 0) & whole

    def get_config(self):
        return {
            **super().get_config(),
            "categories": self.categories,
            "trials": self.trials,
        }

    def __repr__(self):
        return f"Multinomial({self.categories}, trials={self.trials})"


class _Counts(tfp.distributions.Multinomial):
    """TFP's, which scores whole numbers too, and impossible ones as such.

    TFP leaves the entropy out. Every count is binomial by itself, so that
    H = -ln N! - N Σ p ln p + Σₖ E[ln nₖ!] takes N + 1 terms per category. They cancel,
    and are therefore added up in float64.
    """

    def __init__(self, trials, logits):
        super().__init__(tf.cast(trials, logits.dtype), logits=logits)
        self._trials = trials

    def _log_prob(self, counts):
        counts = tf.cast(counts, self.dtype)
        whole = tf.reduce_sum(counts, axis=-1) == self.total_count
        possible = whole & tf.reduce_all(counts >= 0, axis=-1)
        impossible = tf.constant(-math.inf, self.dtype)
        return tf.where(possible, super()._log_prob(counts), impossible)

    def _entropy(self):
        # Logits of what is masked lie lower still, and N of them would be infinite.
        logits = tf.maximum(tf.cast(self.logits, tf.float64), _NONE)
        log_p, log_rest = _log_shares(logits)
        n = tf.range(self._trials + 1.0, dtype=tf.float64)
        log_factorial = tf.math.lgamma(n + 1.0)
        choices = log_factorial[-1] - log_factorial - log_factorial[::-1]
        ways = n * log_p[..., None] + n[::-1] * log_rest[..., None]
        expected = tf.reduce_sum(tf.exp(choices + ways) * log_factorial, axis=[-1, -2])
        spread = tf.reduce_sum(tf.exp(log_p) * log_p, axis=-1)
        return tf.cast(expected - log_factorial[-1] - n[-1] * spread, self.dtype)


def _log_shares(logits):
    """`[..., K]` each: ln p and ln(1 - p), finite however sure the choice is.

    1 - p itself would be zero, and its logarithm's gradient no number.
    """
    whole = tf.reduce_logsumexp(logits, axis=-1, keepdims=True)
    alone = tf.eye(logits.shape[-1], dtype=tf.bool)
    none = tf.constant(_NONE, logits.dtype)
    others = tf.where(alone, none, logits[..., None, :])
    return logits - whole, tf.reduce_logsumexp(others, axis=-1) - whole
