"""`Gaussian`, and what all Gaussian heads share: mean, scale and noise."""

import math
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.functional import eligibility
from tf_reinforce.heads import base
from tf_reinforce.heads import box
from tf_reinforce.support import validation

_MAX_LOG_RATIO = math.log(100.0)  # L, the largest |log σ - log σ₀|


class GaussianHead(box.BoxHead):
    """A head for a `Box` that samples x = μ(s) + σ ε with normal noise ε.

    The policy returns the mean μ(s) of each of the `A` numbers, and a weight of the head
    holds log σ for each of them. With `state_dependent_scale=True`, the policy determines
    σ as well, so the head has no weights. The policy then returns `2 A` numbers, which
    are the means followed by a number z for each σ:

        log σ = log σ₀ + L tanh(z / L),    L = ln 100

    A z near zero multiplies the initial standard deviation σ₀ by about e^z. Whatever the
    policy returns, σ stays within a factor of 100 of σ₀.

    Args:
        size, low, high, shape, integer: As for `BoxHead`.
        initial_scale: Positive float, or `A` of them, the standard deviation σ₀ before
            training, in units of x.
        state_dependent_scale: Bool, whether σ depends on the observation.

    Attributes:
        in_action_units: Bool, whether x has the units of the environment's action. The
            bounds then determine `initial_scale` in `from_space`, and offsets and scales
            of a default policy.
    """

    family = "normal"
    in_action_units = True
    setting_names = ("initial_scale", "state_dependent_scale")
    argument_names = (*box.BoxHead.argument_names, *setting_names)

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

    @classmethod
    def from_space(cls, space: Any, **options: Any) -> Any:
        """Returns a head with the bounds, shape and type of a `Box`.

        The initial standard deviation is a quarter of the distance between the bounds. If
        this distance is 1e7 or more, the initial standard deviation is 1. For integers,
        it is at least 1/2, so that samples are rounded to more than one integer.
        """
        if cls.in_action_units and "initial_scale" not in options:
            low, high = (np.ravel(x).tolist() for x in (space.low, space.high))
            least = 0.0 if space.dtype.kind == "f" else 0.5
            scales = [
                max((b - a) / 4, least) if b - a < spaces.UNBOUNDED_WIDTH else 1.0
                for a, b in zip(low, high, strict=True)
            ]
            options["initial_scale"] = base.one_if_equal(scales)
        return super().from_space(space, **options)

    def build(self, outputs_shape: Any) -> None:
        if self.state_dependent_scale:
            return

        def initial(shape: Any, dtype: Any) -> tf.Tensor:
            return tf.cast(tf.broadcast_to(np.log(self.initial_scale), shape), dtype)

        self.log_scale = self.add_weight((self.size,), initial, name="log_scale")

    def relative_scale(self, outputs: tf.Tensor) -> tf.Tensor:
        widths = np.subtract(self.high, self.low, dtype="float64")
        _, scales = self.output_scaling()
        is_bounded = widths < spaces.UNBOUNDED_WIDTH
        units = np.where(is_bounded, scales[: self.size], self.initial_scale)
        return self.parameters(outputs)["scale"] / base.constant(units, outputs)

    def output_scaling(self) -> tuple[np.ndarray, np.ndarray]:
        """Returns offsets and scales that map [-1, 1] to the bounds.

        If a bound is infinite, or the bounds are 1e7 or more apart, the scale is 1. The
        offset is then the number between the bounds that is nearest to zero.
        """
        offsets, scales = super().output_scaling()
        if not self.in_action_units:
            return offsets, scales
        middle, scales[: self.size] = spaces.middle_and_half(self.low, self.high)
        offsets[: self.size] = np.clip(middle, self.low, self.high)
        return offsets, scales

    def sample(self, outputs: tf.Tensor, noise: Any) -> Any:
        return self._mean(outputs) + self._scale(outputs) * noise

    def mode(self, outputs: tf.Tensor) -> Any:
        return tf.identity(self._mean(outputs))

    def action_features(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        # The bounds become -1 and 1.
        parts = (x[: self.size] for x in self.output_scaling())
        offsets, scales = (base.constant(x, outputs) for x in parts)
        return (actions - offsets) / scales

    def parameters(self, outputs: tf.Tensor) -> dict[str, Any]:
        mean = self._mean(outputs)
        scale = self._scale(outputs) * tf.ones_like(mean)
        return {"mean": tf.identity(mean), "scale": scale}

    def eligibility(self, outputs: tf.Tensor, actions: Any) -> tf.Tensor:
        mean, scale = self.parameters(outputs).values()
        return self.chain_rule(outputs, eligibility.gaussian(mean, scale, actions))

    def chain_rule(self, outputs: Any, slopes: Any) -> Any:
        """Converts eligibilities of mean and log σ to those of the policy outputs.

        Args:
            outputs: `[..., P]` float tensor.
            slopes: `eligibility.GaussianEligibility`, `[..., A]` each.

        Returns:
            `[..., P]` float.
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


@keras.saving.register_keras_serializable("tf_reinforce")
class Gaussian(GaussianHead):
    """A vector of `A` reals, from `A` policy outputs (the means).

        a = μ(s) + σ ε,    ε ~ N(0, 1),    log σ is learned and does not depend on s

    The raw action is the sample before clipping, and `log_prob` is its log-density. Only
    the environment receives the clipped action. Taking the density at the clipped action
    instead would bias the gradient, so use `ClippedGaussian` if you need a distribution
    of the clipped action.

    Args:
        size: Positive int, `A`.
        low: Number, or `A` numbers, the lower bounds of the environment's action.
        high: Number, or `A` numbers, the upper bounds.
        shape: Shape of the environment's action, by default `(size,)`.
        integer: Bool, whether the environment takes integers; it then receives the
            nearest integer inside the bounds.
        initial_scale: Positive float, or `A` of them, the standard deviation σ before
            training, in units of the action.
        state_dependent_scale: Bool, whether σ depends on the observation. The policy then
            returns `2 A` numbers: the means, then numbers that change σ by at most a
            factor of 100 (formula: `GaussianHead`).

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
        mean, scale = self.parameters(outputs).values()
        return tfp.distributions.MultivariateNormalDiag(mean, scale)


class TransformedNormal(tfp.distributions.Distribution):
    """The distribution of a function of a normal number, for any batch shape.

    Subclasses implement `_log_prob` and `_entropy`.
    """

    parameter_names: tuple[str, ...] = ("loc", "scale")

    def __init__(self, **parameters: tf.Tensor) -> None:
        for name, value in parameters.items():
            setattr(self, name, value)
        kind = tfp.distributions.NOT_REPARAMETERIZED
        options = dict(validate_args=False, allow_nan_stats=True, parameters=parameters)
        super().__init__(self.loc.dtype, kind, **options)

    @classmethod
    def _parameter_properties(cls, dtype: Any, num_classes: Any = None) -> Any:
        return {name: tfp.util.ParameterProperties() for name in cls.parameter_names}

    def _event_shape(self) -> Any:
        return tf.TensorShape([])
