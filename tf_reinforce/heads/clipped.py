"""`ClippedGaussian`, for Gaussian actions clipped to bounds."""

import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.functional import eligibility
from tf_reinforce.heads import base
from tf_reinforce.heads import gaussian

_MAX_Z = 40.0  # limit of |z|; in float64 the probability beyond is zero


@keras.saving.register_keras_serializable("tf_reinforce")
class ClippedGaussian(gaussian.GaussianHead):
    """A vector of `A` reals inside bounds, from `A` policy outputs (the means).

        x = μ(s) + σ ε,    a = min(max(x, low), high)
        π(a|s) = Φ((low - μ) / σ) at low,    Φ((μ - high) / σ) at high,
                 N(a; μ, σ²) between

    All samples beyond a bound have the same effect on the environment, so the probability
    of an action at the bound is the total probability of these samples. Compared with
    `Gaussian`, the policy gradient has the same expectation, and its variance is never
    larger.

    The raw action is the clipped sample. The environment receives this sample unchanged,
    or rounded if `integer=True`.

    The `mode` is the clipped mean, which is the median of the action. A most likely
    action does not exist, because the bounds have probabilities while the numbers between
    them have densities.

    Args:
        size: Positive int, `A`.
        low: Number, or `A` numbers, the lower bounds; -∞ for none.
        high: Number, or `A` numbers, the upper bounds; ∞ for none.
        shape, integer, initial_scale, state_dependent_scale: As for `Gaussian`.

    Example:

    >>> head = ClippedGaussian(1, -2.0, 2.0)
    >>> head.build((None, 1))
    >>> means = tf.constant([[2.0]])
    >>> raw = head.sample(means, noise=tf.constant([[3.0]]))
    >>> raw.numpy().tolist(), head.distribution(means).prob(raw).numpy().tolist()
    ([[2.0]], [0.5])

    Reference:
        Fujita & Maeda (2018), Clipped action policy gradient. arXiv:1802.07564
    """

    @property
    def support(self) -> base.Support:  # type: ignore[override]
        return base.Support(self.low, self.high, atoms=True)

    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        mean, scale = self.parameters(outputs).values()
        low, high = self.bounds(mean)
        clipped = _ClippedNormal(loc=mean, scale=scale, low=low, high=high)
        return tfp.distributions.Independent(clipped, 1)

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        mean, scale = self.parameters(outputs).values()
        low, high = (bound + tf.zeros_like(mean) for bound in self.bounds(mean))
        clipped = self.clip(tf.cast(actions, mean.dtype))
        slopes = eligibility.clipped_gaussian(mean, scale, low, high, clipped)
        return self.chain_rule(outputs, slopes)

    def sample(self, outputs: tf.Tensor, noise: Any) -> Any:
        return self.clip(super().sample(outputs, noise))

    def mode(self, outputs: tf.Tensor) -> Any:
        return self.clip(super().mode(outputs))

    def is_valid(self, actions: Any) -> Any:
        # `is_valid` rounds bounds to the nearest number of the type. For example, the
        # float32 number nearest to 0.1 is above 0.1, and is the bound.
        with np.errstate(over="ignore"):  # a bound beyond the type becomes infinite
            low = np.asarray(self.low, actions.dtype)
            high = np.asarray(self.high, actions.dtype)
        return np.isfinite(actions) & (actions >= low) & (actions <= high)


class _ClippedNormal(gaussian.TransformedNormal):
    """A clipped normal distribution, with a probability at each bound."""

    parameter_names = ("loc", "scale", "low", "high")

    def _log_prob(self, actions: Any) -> Any:
        below, above = actions <= self.low, actions >= self.high
        z = (actions - self.loc) / self.scale
        # Unused entries are set to zero, because the gradient of a large z would be NaN.
        tail_z = tf.where(below, z, tf.where(above, -z, 0.0))
        density_z = tf.where(below | above, tf.zeros_like(z), z)
        density = -(density_z**2) / 2 - tf.math.log(self.scale) - math.log(math.tau) / 2
        return tf.where(below | above, _log_cdf(tail_z), density)

    def _mode(self) -> Any:
        return tf.minimum(tf.maximum(self.loc, self.low), self.high)

    def _entropy(self) -> Any:
        """Returns ∫ -p ln p between the bounds, and -P ln P at each of them."""
        a = self._z_of_bound(self.low, -_MAX_Z)
        b = self._z_of_bound(self.high, _MAX_Z)
        atoms = [tf.math.xlogy(p, p) for p in (_cdf(a), _cdf(-b))]
        # The difference of the two smaller tail probabilities loses fewer digits.
        left = tf.where(a + b > 0, -b, a)
        right = tf.where(a + b > 0, -a, b)
        inside = _cdf(right) - _cdf(left)
        edges = (a * tf.exp(-(a**2) / 2) - b * tf.exp(-(b**2) / 2)) / math.sqrt(math.tau)
        normal_entropy = tf.math.log(self.scale) + math.log(math.tau) / 2 + 0.5
        return normal_entropy * inside + edges / 2 - atoms[0] - atoms[1]

    def _z_of_bound(self, bound: Any, infinite_z: Any) -> Any:
        """Returns z = (bound - mean) / scale, limited to ±`_MAX_Z`.

        Args:
            bound: `[..., A]` float, may be infinite.
            infinite_z: Float, the result for an infinite bound.
        """
        finite = tf.abs(bound) <= bound.dtype.max
        difference = tf.where(finite, bound, 0.0) - self.loc
        near = finite & (tf.abs(difference) < _MAX_Z * self.scale)
        # Without `near`, a quotient may be infinite and its gradient NaN.
        z = tf.where(near, difference, 0.0) / self.scale
        limit = tf.where(finite, _MAX_Z * tf.sign(difference), infinite_z)
        return tf.where(near, z, limit)


def _cdf(z: Any) -> Any:
    """Returns Φ(z), the normal distribution function, which may underflow to zero."""
    return tf.math.erfc(-z / math.sqrt(2.0)) / 2


def _log_cdf(z: Any) -> Any:
    """Returns the logarithm of `_cdf(z)`; value and gradient are accurate for every z."""
    lower, upper = tf.minimum(z, 0.0), tf.maximum(z, 0.0)
    sqrt_2 = math.sqrt(2.0)
    tail = tf.math.log(tfp.math.erfcx(-lower / sqrt_2) / 2) - lower**2 / 2
    return tf.where(z < 0, tail, tf.math.log1p(-tf.math.erfc(upper / sqrt_2) / 2))
