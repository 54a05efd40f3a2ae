"""Real actions with a Gaussian distribution, clipped to bounds."""

import math

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.functional import eligibility
from tf_reinforce.heads import base
from tf_reinforce.heads import normal

_FAR = 40.0  # standard deviations: what lies beyond has no weight in float64


@keras.saving.register_keras_serializable("tf_reinforce")
class ClippedGaussian(normal.GaussianHead):
    """A vector of `A` reals in their bounds; the policy puts out `[..., A]` means.

        x = μ(s) + σ ε,    a = min(max(x, low), high)
        π(a|s) = Φ((low - μ) / σ) at low,    Φ((μ - high) / σ) at high,
                 N(a; μ, σ²) between

    Whatever lies beyond a bound is one action for the environment, and is scored as
    one: with the probability of all of it. The gradient has the same expectation as that
    of `Gaussian` and never a larger variance.

    The raw action is the clipped one: it is all that the score depends on, and what the
    environment received (but for rounding), so that its actions can be scored as they
    are. Bounds are rounded inwards to the type of an action, as they are for sending.

    `mode` is the clipped mean: the median, and the likeliest action of its kind. (The
    probability of a bound and a density between them cannot be compared.)

    Args:
        size: Positive int, `A`.
        low: Number or `A` numbers, the least action; -∞ for none.
        high: Number or `A` numbers, the greatest; ∞ for none.
        shape, whole, initial_scale, state_dependent_scale: As of `Gaussian`.

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

    def __init__(self, size, low, high, **kwargs):
        super().__init__(size, low, high, **kwargs)
        self.support = base.Support(self.low, self.high, atoms=True)

    def distribution(self, outputs):
        mean, scale = self.parameters(outputs).values()
        low, high = self.bounds(mean)
        return tfp.distributions.Independent(_Clipped(mean, scale, low, high), 1)

    def eligibility(self, outputs, actions):
        mean, scale = self.parameters(outputs).values()
        low, high = (bound + tf.zeros_like(mean) for bound in self.bounds(mean))
        inside = self.inside(tf.cast(actions, mean.dtype))
        slopes = eligibility.clipped_gaussian(mean, scale, low, high, inside)
        return self.to_outputs(outputs, slopes)

    def sample(self, outputs, noise):
        return self.inside(super().sample(outputs, noise))

    def mode(self, outputs):
        return self.inside(super().mode(outputs))

    def is_valid(self, actions):
        # To the nearest of the type: 0.1 in float32 lies beyond 0.1, and is that bound.
        with np.errstate(over="ignore"):  # what it cannot hold at all is infinite
            low = np.asarray(self.low, actions.dtype)
            high = np.asarray(self.high, actions.dtype)
        return np.isfinite(actions) & (actions >= low) & (actions <= high)


class _Clipped(normal.TransformedNormal):
    """A clipped normal number: two probabilities and a density between them."""

    def __init__(self, loc, scale, low, high):
        super().__init__(loc, scale, low=low, high=high)
        self.low = low
        self.high = high

    @classmethod
    def _parameter_properties(cls, dtype, num_classes=None):
        names = ("loc", "scale", "low", "high")
        return {name: tfp.util.ParameterProperties() for name in names}

    def _log_prob(self, actions):
        below, above = actions <= self.low, actions >= self.high
        z = (actions - self.loc) / self.scale
        # Zero where it is not looked at: its gradient would be no number far out.
        outer = tf.where(below, z, tf.where(above, -z, 0.0))
        inner = tf.where(below | above, tf.zeros_like(z), z)
        density = -(inner**2) / 2 - tf.math.log(self.scale) - math.log(math.tau) / 2
        return tf.where(below | above, _log_cdf(outer), density)

    def _mode(self):
        return tf.minimum(tf.maximum(self.loc, self.low), self.high)

    def _entropy(self):
        """-P ln P of either end, and ∫ φ(z) [z²/2 + ln σ + ln √2π] dz between them."""
        a = self._distance(self.low, -_FAR)
        b = self._distance(self.high, _FAR)
        ends = [tf.math.xlogy(p, p) for p in (_cdf(a), _cdf(-b))]
        left = tf.where(a + b > 0, -b, a)  # differences of the smaller tails
        right = tf.where(a + b > 0, -a, b)
        between = _cdf(right) - _cdf(left)
        edges = (a * tf.exp(-(a**2) / 2) - b * tf.exp(-(b**2) / 2)) / math.sqrt(math.tau)
        each = tf.math.log(self.scale) + math.log(math.tau) / 2 + 0.5
        return each * between + edges / 2 - ends[0] - ends[1]

    def _distance(self, bound, endless):
        """A bound in deviations from the mean, where it is within sight of it."""
        finite = tf.abs(bound) <= bound.dtype.max
        gap = tf.where(finite, bound, 0.0) - self.loc
        near = finite & (tf.abs(gap) < _FAR * self.scale)
        # A quotient out of sight may be infinite, and its slope no number.
        z = tf.where(near, gap, 0.0) / self.scale
        return tf.where(near, z, tf.where(finite, _FAR * tf.sign(gap), endless))


def _cdf(z):
    """Φ(z), which may be zero far out: there p ln p is, too."""
    return tf.math.erfc(-z / math.sqrt(2.0)) / 2


def _log_cdf(z):
    """ln Φ(z), whose value and slope are exact however far out z lies."""
    lower, upper = tf.minimum(z, 0.0), tf.maximum(z, 0.0)
    root = math.sqrt(2.0)
    tail = tf.math.log(tfp.math.erfcx(-lower / root) / 2) - lower**2 / 2
    return tf.where(z < 0, tail, tf.math.log1p(-tf.math.erfc(upper / root) / 2))
