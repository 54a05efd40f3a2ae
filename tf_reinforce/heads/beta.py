"""`Beta`, for bounded real actions."""

from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.data import seeding
from tf_reinforce.functional import eligibility
from tf_reinforce.heads import base
from tf_reinforce.heads import box

_MIN_EXCESS, _MAX_EXCESS = 1e-6, 1e6  # bounds of α - 1 and β - 1
_PROPOSALS = 31  # proposals of the rejection sampler per number


@keras.saving.register_keras_serializable("tf_reinforce")
class Beta(box.BoxHead):
    """A vector of `A` reals inside finite bounds; the policy returns `2 A` numbers.

        y ~ Beta(α, β),    α = 1 + softplus(z),    a = low + (high - low) y

    The policy returns `A` outputs z for α, followed by `A` outputs for β, and the formula
    for β is the same as that for α. Because α and β are above one, the density has a
    single peak away from the bounds. Outputs far below zero give a nearly uniform action.

    The raw action is y, and `log_prob` is the log-density of y. Samples that would be
    rounded to exactly 0 or 1 are replaced by the nearest number inside the interval.

    Args:
        size: Positive int, `A`.
        low: Finite number, or `A` numbers, the lower bounds of the action.
        high: Finite number, or `A` numbers, the upper bounds.
        shape, integer: As for `Gaussian`.

    Example:

    >>> head = Beta(1, 0.0, 10.0)
    >>> raw = head.mode(tf.constant([[3.0, 3.0]]))
    >>> raw.numpy().tolist(), head.to_environment(raw).numpy().tolist()
    ([[0.5]], [[5.0]])

    Reference:
        Chou, Maturana & Scherer (2017), Improving stochastic policy gradients in
        continuous control with deep reinforcement learning using the Beta distribution.
    """

    family = "beta"
    needs_finite_bounds = True
    support = base.Support(0.0, 1.0, atoms=False)

    @property
    def outputs_size(self) -> int:  # type: ignore[override]
        return 2 * self.size

    @property
    def noise(self) -> seeding.NoiseSpec:  # type: ignore[override]
        return seeding.NoiseSpec("uniform", (self.size, _PROPOSALS, 2))

    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        alpha, beta = self.parameters(outputs).values()
        return tfp.distributions.Independent(_Float64Beta(alpha, beta), 1)

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        inputs = [*self._excess(outputs), actions]
        a, b, y = (tf.cast(x, tf.float64) for x in inputs)
        slopes = tf.concat(eligibility.beta(1.0 + a, 1.0 + b, y), axis=-1)
        unclipped = outputs < _MAX_EXCESS - _MIN_EXCESS
        softplus_slope = tf.where(unclipped, tf.sigmoid(outputs), 0.0)
        return tf.cast(slopes, outputs.dtype) * softplus_slope

    def sample(self, outputs: tf.Tensor, noise: Any) -> Any:
        return sample_beta(*self._excess(outputs), noise)

    def mode(self, outputs: tf.Tensor) -> Any:
        a, b = self._excess(outputs)
        return base.clip_to_open(a / (a + b))

    def parameters(self, outputs: tf.Tensor) -> dict[str, Any]:
        a, b = self._excess(outputs)
        return {"concentration1": 1.0 + a, "concentration0": 1.0 + b}

    def relative_scale(self, outputs: tf.Tensor) -> tf.Tensor:
        alpha, beta = self.parameters(outputs).values()
        total = alpha + beta
        return 2.0 * tf.sqrt(alpha * beta / (total + 1.0)) / total

    def to_environment(self, actions: Any) -> Any:
        return super().to_environment(self.rescale(actions, 1.0 - actions))

    def is_valid(self, actions: Any) -> Any:
        return (actions > 0) & (actions < 1)

    def _excess(self, outputs: tf.Tensor) -> tuple[Any, Any]:
        """Returns α - 1 and β - 1 for each number of the action."""
        # LiteRT computes softplus as ln(1 + eˣ), which is infinite for x ≥ 89.
        softplus = tf.nn.softplus(tf.minimum(outputs, 40.0)) + tf.nn.relu(outputs - 40.0)
        excess = tf.minimum(softplus + _MIN_EXCESS, _MAX_EXCESS)
        return excess[..., : self.size], excess[..., self.size :]


def sample_beta(a: Any, b: Any, noise: Any) -> Any:
    """Samples from Beta(α, β) by rejection from a logistic distribution of the log-odds.

    A uniform number u gives the proposal V = λ ln(u / (1 - u)), and the proposed sample y
    has the log-odds ln(y / (1 - y)) = V + ln(α / β). A second uniform number w decides
    whether the proposal is accepted, which is the case if

        (α + β) [ln(p e^V + 1 - p) - p V] ≤ -ln(4 u (1 - u) w),    p = α / (α + β),
        λ² = (α + β - 2) / (2 α β - α - β).

    In Cheng's algorithm, α is the smaller parameter. If β is smaller, the two parameters
    are exchanged, and the sample is 1 - y.

    Each proposal is rejected with a probability of at most 1 - e / 4. `Beta` draws 31
    proposals, so the probability that all of them are rejected is below 5e-16. If this
    happens, the first proposal is returned.

    Args:
        a: `[...]` float above zero, α - 1.
        b: `[...]` float above zero, β - 1.
        noise: `[..., K, 2]` float, uniform on [0, 1), two for each of K proposals.

    Returns:
        `[...]` float inside (0, 1).

    Reference:
        Cheng (1978), Generating Beta variates with nonintegral shape parameters,
        algorithm BB. doi:10.1145/359460.359482
    """
    a, b = a[..., None], b[..., None]
    # A random number of zero represents all numbers below the smallest positive number
    # that the generator draws. A float64 number below one may round to one in float32.
    limits = np.finfo(noise.dtype.as_numpy_dtype)
    noise = tf.clip_by_value(noise, limits.eps / 4, 1.0 - limits.epsneg)
    u, w = noise[..., 0], noise[..., 1]
    excess, concentration = a + b, 2.0 + a + b
    p = (1.0 + tf.minimum(a, b)) / concentration
    q = (1.0 + tf.maximum(a, b)) / concentration  # q = 1 - p without cancellation
    scale = tf.sqrt(excess / (excess + 2.0 * a * b))
    log_u, log_1_minus_u = tf.math.log(u), tf.math.log(1.0 - u)
    log_odds = scale * (log_u - log_1_minus_u)
    cost = concentration * (_log1p(p * _expm1(log_odds)) - p * log_odds)
    accepted = cost <= -(log_u + log_1_minus_u + tf.math.log(4.0 * w))
    first = tf.argmax(tf.cast(accepted, tf.int32), axis=-1)
    one_hot = tf.one_hot(first, noise.shape[-2], dtype=noise.dtype)
    weight = p * tf.exp(log_odds)
    y = tf.where(a <= b, weight, q) / (weight + q)
    # At 0 and 1, the log-density is -∞.
    return base.clip_to_open(tf.reduce_sum(one_hot * y, axis=-1))


def _log1p(x: Any) -> Any:
    """Returns an accurate ln(1 + x) (Kahan), with operations that LiteRT supports."""
    rounded = 1.0 + x
    is_one = rounded == 1.0
    exact = tf.math.log(rounded) * x / tf.where(is_one, tf.ones_like(x), rounded - 1.0)
    return tf.where(is_one, x, exact)


def _expm1(x: Any) -> Any:
    """Returns an accurate e^x - 1 (Kahan), with operations that LiteRT supports."""
    rounded = tf.exp(x)
    is_one = rounded == 1.0
    exact = (rounded - 1.0) * x / tf.where(is_one, tf.ones_like(x), tf.math.log(rounded))
    return tf.where(is_one, x, exact)


class _Float64Beta(tfp.distributions.Beta):
    """TFP's Beta distribution, computed in float64 even for float32 parameters.

    For large α and β, log-probability and entropy are small differences of large terms.
    """

    def _float64(self) -> Any:
        parameters = self.concentration1, self.concentration0
        return tfp.distributions.Beta(*(tf.cast(x, tf.float64) for x in parameters))

    def _log_prob(self, y: Any) -> Any:
        return tf.cast(self._float64().log_prob(tf.cast(y, tf.float64)), self.dtype)

    def _entropy(self) -> Any:
        return tf.cast(self._float64().entropy(), self.dtype)
