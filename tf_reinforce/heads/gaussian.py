"""Defines the head `Gaussian`, for real actions with a Gaussian distribution."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.functional import eligibility
from tf_reinforce.heads import normal


@keras.saving.register_keras_serializable("tf_reinforce")
class Gaussian(normal.GaussianHead):
    """A vector of `A` reals, from `A` policy outputs (the means).

        a = μ(s) + σ ε,    ε ~ N(0, 1),    log σ is learned and does not depend on s

    The raw action of `Gaussian` is the unclipped sample, and `log_prob` is the
    log-density of the unclipped sample. Only the environment receives the clipped action.
    The density of the unclipped distribution at a clipped action would bias the gradient.
    In the head `ClippedGaussian`, raw action and `log_prob` belong to the clipped sample.

    Args:
        size: Positive int, `A`, the length of the action vector.
        low: Number, or `A` numbers, the lower bounds of the environment's action.
        high: Number, or `A` numbers, the upper bounds of the environment's action.
        shape: Shape of the environment's action. `shape` defaults to `(size,)`.
        integer: Bool, whether the environment takes integers. With `integer=True`, the
            environment receives the nearest integer inside the bounds.
        initial_scale: Positive float, or `A` positive floats, the standard deviation σ
            before training, in the units of the action.
        state_dependent_scale: Bool, whether σ depends on the observation. With
            `state_dependent_scale=True`, the policy returns `[..., 2 A]` numbers, the
            means and then numbers that change σ by at most a factor of 100. The class
            `normal.GaussianHead` states the formula of σ.

    Example:

    >>> head = Gaussian(1, low=-2.0, high=2.0)
    >>> head.build((None, 1))
    >>> raw = head.sample(keras.ops.array([[1.5]]), noise=keras.ops.array([[3.0]]))
    >>> raw.numpy().tolist(), head.to_environment(raw).numpy().tolist()
    ([[4.5]], [[2.0]])

    Reference:
        Williams (1992), section 6. doi:10.1007/BF00992696
    """

    def __init__(
        self,
        size: int,
        *,
        low: float | Sequence[float] = -math.inf,
        high: float | Sequence[float] = math.inf,
        **kwargs: Any,
    ) -> None:
        super().__init__(size, low, high, **kwargs)

    def distribution(self, outputs: tf.Tensor) -> tfp.distributions.Distribution:
        parameters = self.parameters(outputs)
        return tfp.distributions.MultivariateNormalDiag(
            loc=parameters["mean"], scale_diag=parameters["scale"]
        )

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        mean, scale = self.parameters(outputs).values()
        return self.chain_rule(outputs, eligibility.gaussian(mean, scale, actions))
