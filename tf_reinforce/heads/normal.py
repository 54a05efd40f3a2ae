"""Defines mean, scale and noise, which all Gaussian heads share."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.heads import base
from tf_reinforce.heads import box
from tf_reinforce.support import validation

_MAX_LOG_RATIO = math.log(100.0)  # L, the largest |log σ - log σ₀|


class GaussianHead(box.BoxHead):
    """A head for a `Box` that samples x = μ(s) + σ ε with normal noise ε.

    For an observation s, the policy returns the mean μ(s) of each of the `A` numbers of
    the action. Each number of the action has one log σ, a weight of the head that does
    not depend on the observation s. With `state_dependent_scale=True`, the policy returns
    `[..., 2 A]` numbers, the `A` means and then `A` numbers z, which determine σ. A head
    with `state_dependent_scale=True` has no weights, and computes σ by

        log σ = log σ₀ + L tanh(z / L),    L = ln 100

    The argument `initial_scale` is σ₀, the standard deviation for z = 0. A policy output
    z near zero multiplies σ₀ by about e^z. For every policy output z, the standard
    deviation σ lies between σ₀ / 100 and 100 σ₀.

    Args:
        size, low, high, shape, integer: The same arguments as those of `BoxHead`.
        initial_scale: Positive float, or `A` positive floats, the standard deviation σ₀
            before training, in the units of x.
        state_dependent_scale: Bool, whether the policy also returns the numbers z, which
            determine σ for each observation.
    """

    # The initial scale is in the units of the action, as the bounds are.
    space_arguments: tuple[str, ...] = (*box.BoxHead.space_arguments, "initial_scale")
    setting_names = ("initial_scale", "state_dependent_scale")

    def __init__(
        self,
        size: int,
        low: float | Sequence[float],
        high: float | Sequence[float],
        *,
        initial_scale: float | Sequence[float] = 1.0,
        state_dependent_scale: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(size, low, high, **kwargs)
        self.initial_scale = self._python_numbers("initial_scale", initial_scale)
        if not np.all(np.isfinite(initial_scale)) or np.min(initial_scale) <= 0:
            raise ValueError(
                "`initial_scale` is a standard deviation and must be positive. "
                f"Received: initial_scale={initial_scale}"
            )
        self.state_dependent_scale = validation.boolean(
            "state_dependent_scale", state_dependent_scale
        )
        self.outputs_size = self.size * (2 if state_dependent_scale else 1)
        self.noise = seeding.NoiseSpec("normal", (self.size,))

    def build(self, outputs_shape: Any) -> None:
        if self.state_dependent_scale:
            return
        self.log_scale = self.add_weight(
            name="log_scale",
            shape=(self.size,),
            initializer=lambda shape, dtype: tf.cast(
                tf.broadcast_to(np.log(self.initial_scale), shape), dtype
            ),
        )

    def relative_scale(self, outputs: tf.Tensor) -> tf.Tensor:
        widths = np.subtract(self.high, self.low, dtype="float64")
        _, scales = self.output_scaling()
        units = np.where(
            widths < spaces.UNBOUNDED_WIDTH, scales[: self.size], self.initial_scale
        )
        return self.parameters(outputs)["scale"] / base.constant(units, outputs)

    def output_scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns offsets and scales that map the interval [-1, 1] to the bounds.

        The offset is the middle of the bounds, and the scale is half their distance. If a
        bound is infinite, or the bounds are 1e7 or more apart, the scale is 1, and the
        offset is the number between the bounds that is nearest to zero.
        """
        offsets, scales = super().output_scaling()
        middle, scales[: self.size] = spaces.middle_and_half(self.low, self.high)
        offsets[: self.size] = np.clip(middle, self.low, self.high)
        return offsets, scales

    def sample(self, outputs: tf.Tensor, noise: Any) -> Any:
        return self._mean(outputs) + self._scale(outputs) * noise

    def mode(self, outputs: tf.Tensor) -> Any:
        return tf.identity(self._mean(outputs))

    def parameters(self, outputs: tf.Tensor) -> dict[str, Any]:
        mean = self._mean(outputs)
        scale = self._scale(outputs) * tf.ones_like(mean)
        return {"mean": tf.identity(mean), "scale": scale}

    def chain_rule(self, outputs: Any, slopes: Any) -> Any:
        """Converts eligibilities of mean and log σ to those of the policy outputs.

        Args:
            outputs: `[..., P]` float tensor, the policy outputs.
            slopes: `eligibility.GaussianEligibility`, the derivatives of ln π with
                respect to mean and log σ, `[..., A]` each.

        Returns:
            `[..., P]` float, the derivatives of ln π with respect to the policy outputs.
        """
        if not self.state_dependent_scale:
            return slopes.mean
        tanh = tf.tanh(outputs[..., self.size :] / _MAX_LOG_RATIO)
        return tf.concat([slopes.mean, slopes.log_std * (1.0 - tanh**2)], axis=-1)

    def _mean(self, outputs: Any) -> Any:
        return outputs[..., : self.size] if self.state_dependent_scale else outputs

    def _scale(self, outputs: Any) -> Any:
        if not self.state_dependent_scale:
            return tf.exp(tf.cast(self.log_scale, outputs.dtype))
        tanh = tf.tanh(outputs[..., self.size :] / _MAX_LOG_RATIO)
        return base.constant(self.initial_scale, outputs) * tf.exp(_MAX_LOG_RATIO * tanh)

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "initial_scale": self.initial_scale,
            "state_dependent_scale": self.state_dependent_scale,
        }


class TransformedNormal(tfp.distributions.Distribution):
    """The distribution of a function of a normal random number, for any batch shape.

    A subclass of `TransformedNormal` implements `_log_prob` and `_entropy`.
    """

    def __init__(self, loc: tf.Tensor, scale: tf.Tensor, **parameters: Any) -> None:
        self.loc = loc
        self.scale = scale
        super().__init__(
            dtype=loc.dtype,
            reparameterization_type=tfp.distributions.NOT_REPARAMETERIZED,
            validate_args=False,
            allow_nan_stats=True,
            parameters={"loc": loc, "scale": scale, **parameters},
        )

    @classmethod
    def _parameter_properties(cls, dtype: Any, num_classes: Any = None) -> Any:
        return {name: tfp.util.ParameterProperties() for name in ("loc", "scale")}

    def _event_shape(self) -> Any:
        return tf.TensorShape([])
