"""Real numbers around a mean."""

import math

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce import arguments, eligibility
from tf_reinforce.heads import base


@keras.saving.register_keras_serializable("tf_reinforce")
class Gaussian(base.Head):
    """A vector of `A` reals; the policy puts out `[..., A]` means.

        a = μ(s) + σ ε,    ε ~ N(0, 1),    log σ learned, the same for every s

    The unclipped sample is stored and scored; only the environment sees it clipped.
    Scoring the clipped action instead would bias the gradient.

    Args:
        size: Positive int, `A`.
        low: Float or `A` floats, the least action the environment takes.
        high: Float or `A` floats, the greatest.
        shape: Shape of the environment's action. Defaults to `(size,)`.
        initial_scale: Positive float or `A` of them, σ before training, in the units
            of the action.

    Example:

    >>> head = Gaussian(1, low=-2.0, high=2.0)
    >>> head.build((None, 1))
    >>> raw = head.sample(tf.constant([[1.5]]), noise=tf.constant([[3.0]]))
    >>> raw.numpy().tolist(), head.to_environment(raw).numpy().tolist()
    ([[4.5]], [[2.0]])

    Reference:
        Williams (1992), section 6. doi:10.1007/BF00992696
    """

    action_dtype = None

    def __init__(
        self,
        size,
        *,
        low=-math.inf,
        high=math.inf,
        shape=None,
        initial_scale=1.0,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.size = arguments.positive_int("size", size)
        self.low = np.asarray(low, "float64").tolist()
        self.high = np.asarray(high, "float64").tolist()
        self.shape = [self.size] if shape is None else list(shape)
        self.initial_scale = np.asarray(initial_scale, "float64").tolist()
        if math.prod(self.shape) != self.size:
            raise ValueError(
                f"An action of shape {tuple(self.shape)} does not hold {self.size} "
                f"numbers. Received: size={size}, shape={shape}"
            )
        for name in ("low", "high", "initial_scale"):
            if np.shape(getattr(self, name)) not in ((), (self.size,)):
                raise ValueError(
                    f"`{name}` must be one number or {self.size} numbers. "
                    f"Received: {name}={getattr(self, name)}"
                )
        if not np.all(np.isfinite(initial_scale)) or np.min(initial_scale) <= 0:
            raise ValueError(
                "`initial_scale` is a standard deviation and must be positive. "
                f"Received: initial_scale={initial_scale}"
            )
        if not np.all(np.asarray(low) < np.asarray(high)):
            raise ValueError(
                f"`low` must be below `high`. Received: low={low}, high={high}"
            )
        self.outputs_size = self.size
        self.action_shape = (self.size,)
        self.noise = base.Noise("normal", (self.size,))

    def build(self, outputs_shape):
        self.log_scale = self.add_weight(
            name="log_scale",
            shape=(self.size,),
            initializer=lambda shape, dtype: tf.cast(
                tf.broadcast_to(np.log(self.initial_scale), shape), dtype
            ),
        )

    def distribution(self, outputs):
        parameters = self.parameters(outputs)
        return tfp.distributions.MultivariateNormalDiag(
            loc=parameters["mean"], scale_diag=parameters["scale"]
        )

    def eligibility(self, outputs, actions):
        scale = self._scale(outputs) * tf.ones_like(outputs)
        return eligibility.gaussian(outputs, scale, actions).mean

    def sample(self, outputs, noise):
        return outputs + self._scale(outputs) * noise

    def mode(self, outputs):
        return tf.identity(outputs)

    def parameters(self, outputs):
        scale = self._scale(outputs) * tf.ones_like(outputs)
        return {"mean": tf.identity(outputs), "scale": scale}

    def to_environment(self, actions):
        # Bounds are rounded inwards, so that no wider type finds an action outside.
        inside = tf.minimum(
            tf.maximum(actions, base.constant(_round(self.low, actions, 1), actions)),
            base.constant(_round(self.high, actions, -1), actions),
        )
        return tf.reshape(inside, [-1, *self.shape])

    def _scale(self, outputs):
        return tf.exp(tf.cast(self.log_scale, outputs.dtype))

    def fits(self, space):
        same = isinstance(space, gym.spaces.Box) and space.shape == tuple(self.shape)
        if not same:
            return False
        low, high = (np.ravel(bound) for bound in (space.low, space.high))
        return bool(np.all(self.low >= low) and np.all(self.high <= high))

    def get_config(self):
        return {
            **super().get_config(),
            "size": self.size,
            "low": self.low,
            "high": self.high,
            "shape": self.shape,
            "initial_scale": self.initial_scale,
        }

    def __repr__(self):
        return f"Gaussian({self.size}, low={self.low}, high={self.high})"


def _round(bound, like, direction):
    """A float64 bound in the type of a tensor, never outside the bound itself."""
    exact = np.asarray(bound, "float64")
    with np.errstate(over="ignore"):  # beyond the type's range: infinite, then inwards
        rounded = exact.astype(like.dtype.as_numpy_dtype)
    compare = np.less if direction > 0 else np.greater
    outside = compare(rounded.astype("float64"), exact)
    inward = np.nextafter(rounded, np.asarray(direction * np.inf, rounded.dtype))
    return np.where(outside, inward, rounded)
