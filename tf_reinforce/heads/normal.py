"""Mean, scale and noise, which all Gaussian heads share."""

import math

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.heads import base
from tf_reinforce.heads import box

_WIDEST = math.log(100.0)


class GaussianHead(box.Box):
    """A Box head that draws x = μ(s) + σ ε with normal ε.

    The policy puts out `[..., A]` means. One log σ per number is learned and the same
    for every s; or, with `state_dependent_scale`, the policy puts out `[..., 2 A]`: the
    means, then as many z, and nothing else is learned:

        log σ = log σ₀ + L tanh(z / L),    L = ln 100

    Outputs of zero give σ₀, and a small z is a change of log σ as it stands. No output,
    however large, takes σ further than to a hundredth or the hundredfold of σ₀.

    Args:
        size, low, high, shape, whole: See `Box`.
        initial_scale: Positive float or `A` of them, σ₀, in the units of x.
        state_dependent_scale: Bool.
    """

    def __init__(
        self,
        size,
        low,
        high,
        *,
        initial_scale=1.0,
        state_dependent_scale=False,
        **kwargs,
    ):
        super().__init__(size, low, high, **kwargs)
        self.initial_scale = self._per_number("initial_scale", initial_scale)
        if not np.all(np.isfinite(initial_scale)) or np.min(initial_scale) <= 0:
            raise ValueError(
                "`initial_scale` is a standard deviation and must be positive. "
                f"Received: initial_scale={initial_scale}"
            )
        self.state_dependent_scale = bool(state_dependent_scale)
        self.outputs_size = self.size * (2 if state_dependent_scale else 1)
        self.noise = seeding.NoiseSpec("normal", (self.size,))

    def build(self, outputs_shape):
        if self.state_dependent_scale:
            return
        self.log_scale = self.add_weight(
            name="log_scale",
            shape=(self.size,),
            initializer=lambda shape, dtype: tf.cast(
                tf.broadcast_to(np.log(self.initial_scale), shape), dtype
            ),
        )

    def relative_scale(self, outputs):
        widths = np.subtract(self.high, self.low, dtype="float64")
        _, scales = self.output_scaling()
        units = np.where(
            widths < spaces.UNBOUNDED_WIDTH, scales[: self.size], self.initial_scale
        )
        return self.parameters(outputs)["scale"] / base.constant(units, outputs)

    def output_scaling(self):
        """The middle of the bounds and half their width; 0 and 1 where there are none."""
        offsets, scales = super().output_scaling()
        middle, scales[: self.size] = spaces.middle_and_half(self.low, self.high)
        offsets[: self.size] = np.clip(middle, self.low, self.high)
        return offsets, scales

    def sample(self, outputs, noise):
        return self._mean(outputs) + self._scale(outputs) * noise

    def mode(self, outputs):
        return tf.identity(self._mean(outputs))

    def parameters(self, outputs):
        mean = self._mean(outputs)
        scale = self._scale(outputs) * tf.ones_like(mean)
        return {"mean": tf.identity(mean), "scale": scale}

    def to_outputs(self, outputs, slopes):
        """What a change of each output does, from `eligibility.GaussianEligibility`."""
        if not self.state_dependent_scale:
            return slopes.mean
        bent = tf.tanh(outputs[..., self.size :] / _WIDEST)
        return tf.concat([slopes.mean, slopes.log_std * (1.0 - bent**2)], axis=-1)

    def _mean(self, outputs):
        return outputs[..., : self.size] if self.state_dependent_scale else outputs

    def _scale(self, outputs):
        if not self.state_dependent_scale:
            return tf.exp(tf.cast(self.log_scale, outputs.dtype))
        bent = tf.tanh(outputs[..., self.size :] / _WIDEST)
        return base.constant(self.initial_scale, outputs) * tf.exp(_WIDEST * bent)

    def get_config(self):
        return {
            **super().get_config(),
            "initial_scale": self.initial_scale,
            "state_dependent_scale": self.state_dependent_scale,
        }


class TransformedNormal(tfp.distributions.Distribution):
    """A number made from a normal one with location and scale, of any shape.

    A subclass gives `_log_prob` and `_entropy`.
    """

    def __init__(self, loc, scale, **parameters):
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
    def _parameter_properties(cls, dtype, num_classes=None):
        return {name: tfp.util.ParameterProperties() for name in ("loc", "scale")}

    def _event_shape(self):
        return tf.TensorShape([])
