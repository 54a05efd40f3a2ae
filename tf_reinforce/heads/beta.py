"""Bounded real actions with a Beta distribution."""

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.data import seeding
from tf_reinforce.functional import eligibility
from tf_reinforce.heads import base
from tf_reinforce.heads import box

_LEAST, _MOST = 1e-6, 1e6
_ATTEMPTS = 31


@keras.saving.register_keras_serializable("tf_reinforce")
class Beta(box.Box):
    """A vector of `A` reals inside finite bounds; the policy puts out `[..., 2 A]`.

        y ~ Beta(α, β),    α = 1 + softplus(z),    a = low + (high - low) y

    First the z of the α, then of the β. Both are above one, so that the density has one
    peak and none at the bounds; α - 1 and β - 1 lie between 1e-6 and 1e6 whatever the
    outputs are. Equal outputs far below zero are a uniform choice.

    The raw action is y, inside (0, 1) and never at its ends: a number that would be
    rounded to one of them takes the nearest before it. `log_prob` is the density of y.

    Args:
        size: Positive int, `A`.
        low: Number or `A` numbers, finite.
        high: Number or `A` numbers, finite.
        shape, whole: As of `Gaussian`.

    Example:

    >>> head = Beta(1, 0.0, 10.0)
    >>> raw = head.mode(tf.constant([[3.0, 3.0]]))
    >>> raw.numpy().tolist(), head.to_environment(raw).numpy().tolist()
    ([[0.5]], [[5.0]])

    Reference:
        Chou, Maturana & Scherer (2017), Improving stochastic policy gradients in
        continuous control with deep reinforcement learning using the Beta distribution.
    """

    def __init__(self, size, low, high, **kwargs):
        super().__init__(size, low, high, **kwargs)
        self.require_finite()
        self.outputs_size = 2 * self.size
        self.noise = seeding.NoiseSpec("uniform", (self.size, _ATTEMPTS, 2))
        self.support = base.Support(0.0, 1.0, atoms=False)

    def distribution(self, outputs):
        alpha, beta = self.parameters(outputs).values()
        return tfp.distributions.Independent(_Exact(alpha, beta), 1)

    def eligibility(self, outputs, actions):
        numbers = [*self._excess(outputs), actions]
        alpha, beta, y = (tf.cast(x, tf.float64) for x in numbers)
        slopes = tf.concat(eligibility.beta(1.0 + alpha, 1.0 + beta, y), axis=-1)
        bend = tf.where(outputs < _MOST - _LEAST, tf.sigmoid(outputs), 0.0)
        return tf.cast(slopes, outputs.dtype) * bend

    def sample(self, outputs, noise):
        return drawn(*self._excess(outputs), noise)

    def mode(self, outputs):
        alpha, beta = self._excess(outputs)
        return _open(alpha / (alpha + beta))

    def parameters(self, outputs):
        alpha, beta = self._excess(outputs)
        return {"concentration1": 1.0 + alpha, "concentration0": 1.0 + beta}

    def relative_scale(self, outputs):
        alpha, beta = self.parameters(outputs).values()
        total = alpha + beta
        return 2.0 * tf.sqrt(alpha * beta / (total + 1.0)) / total

    def to_environment(self, actions):
        return super().to_environment(self.between(actions, 1.0 - actions))

    def is_valid(self, actions):
        return (actions > 0) & (actions < 1)

    def _excess(self, outputs):
        """α - 1 and β - 1, `[..., A]` each."""
        # LiteRT's softplus is ln(1 + eˣ), infinite from 89 on.
        soft = tf.nn.softplus(tf.minimum(outputs, 40.0)) + tf.nn.relu(outputs - 40.0)
        excess = tf.minimum(soft + _LEAST, _MOST)
        return excess[..., : self.size], excess[..., self.size :]


def drawn(alpha, beta, noise):
    """Beta numbers by rejection from a logistic distribution of their log-odds.

    Every attempt takes uniform u and w, proposes V = λ ln(u / (1 - u)) from the log-odds
    of the mean, ln(α / β), and is accepted where

        (α + β) [ln(p e^V + 1 - p) - p V] ≤ -ln(4 u (1 - u) w),    p = α / (α + β),
        λ² = (α + β - 2) / (2 α β - α - β).

    This is Cheng's rule, for the smaller of α and β in place of α (y then counts from
    the other end), written so that it loses no digits for numbers near one or large. An
    attempt is refused with a probability of at most 1 - e / 4, all 31 with less than
    5e-16; then the first is taken.

    Args:
        alpha: `[...]` float above zero, α - 1.
        beta: `[...]` float above zero, β - 1.
        noise: `[..., K, 2]` uniform on [0, 1), K attempts.

    Returns:
        `[...]` float inside (0, 1).

    Reference:
        Cheng (1978), Generating Beta variates with nonintegral shape parameters,
        algorithm BB. doi:10.1145/359460.359482
    """
    alpha, beta = alpha[..., None], beta[..., None]
    # Zero stands for the numbers below the least that the generator draws.
    noise = tf.maximum(noise, np.finfo(noise.dtype.as_numpy_dtype).eps / 4)
    u, w = noise[..., 0], noise[..., 1]
    total, both = alpha + beta, 2.0 + alpha + beta
    p = (1.0 + tf.minimum(alpha, beta)) / both
    rest = (1.0 + tf.maximum(alpha, beta)) / both
    spread = tf.sqrt(total / (total + 2.0 * alpha * beta))
    log_u, log_rest = tf.math.log(u), tf.math.log(1.0 - u)
    odds = spread * (log_u - log_rest)
    cost = both * (_log1p(p * _expm1(odds)) - p * odds)
    accepted = cost <= -(log_u + log_rest + tf.math.log(4.0 * w))
    first = tf.argmax(tf.cast(accepted, tf.int32), axis=-1)
    chosen = tf.one_hot(first, noise.shape[-2], dtype=noise.dtype)
    part = p * tf.exp(odds)
    shares = tf.where(alpha <= beta, part, rest) / (part + rest)
    return _open(tf.reduce_sum(chosen * shares, axis=-1))


def _open(shares):
    """Numbers in [0, 1] without the ends, where densities have no logarithm."""
    limits = np.finfo(shares.dtype.as_numpy_dtype)
    return tf.clip_by_value(shares, limits.tiny, 1.0 - limits.epsneg)


def _log1p(x):
    """ln(1 + x) to the last digits, in operations that LiteRT has (after Kahan)."""
    near = 1.0 + x
    lost = near == 1.0
    exact = tf.math.log(near) * x / tf.where(lost, tf.ones_like(x), near - 1.0)
    return tf.where(lost, x, exact)


def _expm1(x):
    """e^x - 1 in the same way."""
    near = tf.exp(x)
    lost = near == 1.0
    exact = (near - 1.0) * x / tf.where(lost, tf.ones_like(x), tf.math.log(near))
    return tf.where(lost, x, exact)


class _Exact(tfp.distributions.Beta):
    """TFP's, worked out in float64: its terms grow with α and β, and cancel."""

    def _in_double(self):
        return tfp.distributions.Beta(
            tf.cast(self.concentration1, tf.float64),
            tf.cast(self.concentration0, tf.float64),
        )

    def _log_prob(self, shares):
        exact = self._in_double().log_prob(tf.cast(shares, tf.float64))
        return tf.cast(exact, self.dtype)

    def _entropy(self):
        return tf.cast(self._in_double().entropy(), self.dtype)
