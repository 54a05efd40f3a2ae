"""Real actions with a Gaussian distribution, squashed between bounds by tanh."""

import math

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.functional import eligibility
from tf_reinforce.heads import normal

_STEP = 0.25
_NORMAL = np.arange(-9.0, 9.0 + _STEP, _STEP)
_LOGISTIC = np.arange(-20.0, 20.0 + _STEP, _STEP)


@keras.saving.register_keras_serializable("tf_reinforce")
class TanhGaussian(normal.GaussianHead):
    """A vector of `A` reals inside finite bounds; the policy puts out `[..., A]` means.

        x = μ(s) + σ ε,    y = tanh x,    a = low + (high - low) (1 + y) / 2
        ln π(y|s) = ln N(x; μ, σ²) - ln(1 - y²)

    The raw action is x, so that nothing is ever unsquashed: near a bound y has no
    digits left to say which x it was. `log_prob` takes x and gives the density of y,
    whatever the bounds are; that of a is less by Σ ln((high - low) / 2). Both terms are
    exact at any x, by ln(1 - tanh² x) = 2 (ln 2 - x - softplus(-2 x)).

    The entropy is that of y as well. It has no closed form; a fixed sum gives it to
    1e-13 in float64 for every μ and σ, with gradients.

    `mode` is the most likely x, the mean. Squashed it is the median of the action; the
    density of y may be highest at a bound, where no policy should be sent.

    Args:
        size: Positive int, `A`.
        low: Number or `A` numbers, finite.
        high: Number or `A` numbers, finite.
        initial_scale: Positive float or `A` of them, σ of x before training. The middle
            half of the range is where |x| is below 0.55.
        shape, whole, state_dependent_scale: As of `Gaussian`.

    Example:

    >>> head = TanhGaussian(1, -2.0, 2.0)
    >>> head.build((None, 1))
    >>> raw = head.sample(tf.constant([[1.5]]), noise=tf.constant([[48.5]]))
    >>> raw.numpy().tolist(), head.to_environment(raw).numpy().tolist()
    ([[50.0]], [[2.0]])
    """

    def __init__(self, size, low, high, **kwargs):
        super().__init__(size, low, high, **kwargs)
        self.require_finite()

    def output_scaling(self):
        return super(
            normal.GaussianHead, self
        ).output_scaling()  # x is in no units of the environment

    def distribution(self, outputs):
        mean, scale = self.parameters(outputs).values()
        return tfp.distributions.Independent(_Squashed(mean, scale), 1)

    def density_variable(self, actions):
        return tf.tanh(actions)

    def eligibility(self, outputs, actions):
        mean, scale = self.parameters(outputs).values()
        return self.to_outputs(outputs, eligibility.gaussian(mean, scale, actions))

    def to_environment(self, actions):
        shares = tf.sigmoid(2.0 * actions), tf.sigmoid(-2.0 * actions)
        return super().to_environment(self.between(*shares))


class _Squashed(normal.TransformedNormal):
    """The tanh of a normal number, named by that number."""

    def _log_prob(self, x):
        z = (x - self.loc) / self.scale
        density = -(z**2) / 2 - tf.math.log(self.scale) - math.log(math.tau) / 2
        return density + 2.0 * _log_cosh(x)

    def _entropy(self):
        normal_entropy = tf.math.log(self.scale) + math.log(math.tau * math.e) / 2
        return normal_entropy - 2.0 * self._expected_log_cosh()

    def _expected_log_cosh(self):
        """E[ln cosh x], by the trapezoid rule along whatever is narrower.

        Either along ε; or, since ln cosh x = E|x + t| - ln 2 for a logistic t with a
        density of sech²(t) / 2, along t, with the mean of a folded normal number.
        """
        weights = _STEP * np.exp(-(_NORMAL**2) / 2) / math.sqrt(math.tau)
        scale = tf.minimum(self.scale, 1.0)[..., None]
        values = _log_cosh(self.loc[..., None] + scale * _NORMAL)
        narrow = tf.reduce_sum(values * weights, axis=-1)
        weights = _STEP / np.cosh(_LOGISTIC) ** 2 / 2
        scale = tf.maximum(self.scale, 1.0)[..., None]
        mean = self.loc[..., None] + _LOGISTIC
        z = mean / scale / math.sqrt(2.0)
        folded = mean * tf.math.erf(z) + scale * tf.exp(-(z**2)) * math.sqrt(2 / math.pi)
        wide = tf.reduce_sum(folded * weights, axis=-1) - math.log(2.0)
        return tf.where(self.scale < 1.0, narrow, wide)


def _log_cosh(x):
    """-ln(1 - tanh² x) / 2, where tanh x has long been rounded to one."""
    return x + tf.nn.softplus(-2.0 * x) - math.log(2.0)
