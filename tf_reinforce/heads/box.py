"""Bounds, shapes and rounding, which all heads for a `Box` share."""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tf_reinforce.heads import base
from tf_reinforce.support import validation


class BoxHead(base.Head):
    """A head for actions of `A` numbers with bounds in the environment.

    Args:
        size: Positive int, `A`.
        low: Number, or `A` numbers, the lower bounds of the environment's action.
        high: Number, or `A` numbers, the upper bounds.
        shape: Shape of the environment's action, by default `(size,)`.
        integer: Bool, whether the environment takes integers; it then receives the
            nearest integer inside the bounds.

    Attributes:
        setting_names: The arguments that a preset may contain.
        needs_finite_bounds: Bool, whether the head maps an interval to the bounds.
    """

    action_dtype = None
    argument_names: tuple[str, ...] = ("size", "low", "high", "shape", "integer")
    setting_names: tuple[str, ...] = ()
    needs_finite_bounds = False

    def __init__(
        self,
        size: int,
        low: float | Sequence[float],
        high: float | Sequence[float],
        *,
        shape: Sequence[int] | None = None,
        integer: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.size = validation.size("size", size)
        self.shape = base.env_shape(shape, self.size)
        self.integer = validation.boolean("integer", integer)
        self.low = self._python_numbers("low", low, math.ceil if integer else float)
        self.high = self._python_numbers("high", high, math.floor if integer else float)
        with np.errstate(invalid="ignore"):  # comparisons with NaN are False
            is_below = np.all(_exact(self.low) < _exact(self.high))
        if not is_below:
            raise ValueError(
                "`low` must be below `high` in every entry of the bounds. Received: "
                f"low={low}, high={high}. Remove dimensions with equal bounds from an "
                "action space with gymnasium.wrappers.TransformAction."
            )
        numbers = [*_exact(self.low).ravel(), *_exact(self.high).ravel()]
        if self.needs_finite_bounds and not all(map(_is_finite, numbers)):
            raise ValueError(
                f"{type(self).__name__} needs finite bounds. Received: low={self.low}, "
                f"high={self.high}. For infinite bounds, use ClippedGaussian or Gaussian."
            )
        self.action_shape = (self.size,)

    @classmethod
    def from_space(cls, space: Any, **options: Any) -> Any:
        """Returns a head with the bounds, shape and type of a `Box`.

        Args:
            space: `gymnasium.spaces.Box`.
            **options: Other arguments of the head.
        """
        # Python numbers represent the bounds of every number type exactly.
        low, high = (np.ravel(x).tolist() for x in (space.low, space.high))
        bounds = base.one_if_equal(low), base.one_if_equal(high)
        arguments = dict(zip(("low", "high"), bounds, strict=True), shape=space.shape)
        return cls(len(low), **arguments, integer=space.dtype.kind != "f", **options)

    def _python_numbers(self, name: str, values: Any, convert: Any = float) -> Any:
        """Returns a bound as one Python number or a list of `size`.

        Python numbers represent the bounds of every number type exactly.
        """
        array = base.one_or_each(name, values, self.size)
        numbers = array.ravel().tolist()
        converted = [convert(x) if _is_finite(x) else float(x) for x in numbers]
        return converted if array.ndim else converted[0]

    def bounds(self, like: Any) -> Any:
        """Returns `low` and `high` in a tensor's number type, both rounded inwards."""
        low, high = _round(self.low, like, 1), _round(self.high, like, -1)
        return base.constant(low, like), base.constant(high, like)

    def clip(self, actions: Any) -> Any:
        """Clips actions `[..., size]` to the environment's bounds."""
        low, high = self.bounds(actions)
        return tf.minimum(tf.maximum(actions, low), high)

    def rescale(self, fractions: Any, complements: Any) -> Any:
        """Maps numbers in [0, 1] to the interval from `low` to `high`.

        For integers, the interval is wider by 0.5 at both ends, so each of them is the
        middle of an interval of width 1.

        Args:
            fractions: `[..., A]` float in [0, 1].
            complements: `[..., A]` float, one minus `fractions`.

        Returns:
            `[..., A]` float between the bounds.
        """
        low, high = self.bounds(fractions)
        if self.integer:
            low, high = low - 0.5, high + 0.5
        return complements * low + fractions * high  # `high - low` may overflow

    def to_environment(self, actions: Any) -> Any:
        clipped = self.clip(tf.round(actions) if self.integer else actions)
        return tf.reshape(clipped, [-1, *self.shape])

    def at_bounds(self, actions: Any) -> tf.Tensor:
        if self.integer:  # integer bounds are values like any other
            return super().at_bounds(actions)
        env_actions = tf.reshape(self.to_environment(actions), [-1, self.size])
        low, high = self.bounds(env_actions)
        # Without bounds, the tolerance would be infinite, and is therefore set to zero.
        tolerance = 1e-3 * (high / 2 - low / 2)
        tolerance = tf.where(tolerance < env_actions.dtype.max, 2 * tolerance, 0.0)
        return (env_actions <= low + tolerance) | (env_actions >= high - tolerance)

    def matches_space(self, space: Any) -> bool:
        is_box = isinstance(space, gym.spaces.Box) and space.shape == self.shape
        if not is_box or (space.dtype.kind != "f" and not self.integer):
            return False
        low, high = (_exact(np.ravel(bound)) for bound in (space.low, space.high))
        return bool(np.all((_exact(self.low) >= low) & (_exact(self.high) <= high)))


def _is_finite(value: Any) -> Any:
    return isinstance(value, int) or math.isfinite(value)


def _exact(values: Any) -> Any:
    """Returns an array of Python numbers, for exact comparisons.

    Python compares integers with floats exactly; NumPy would round the integers first.
    """
    return np.asarray(np.asarray(values).tolist(), object)


def _round(bound: Any, like: Any, direction: Any) -> Any:
    """Returns a bound in the number type of a tensor, rounded inwards.

    The `direction` is 1 for a lower and -1 for an upper bound.
    """
    exact = _exact(bound)
    # A bound beyond the range of the number type becomes infinite, and is then moved
    # inwards.
    with np.errstate(over="ignore"):
        rounded = exact.astype("float64").astype(like.dtype.as_numpy_dtype)
    compare = np.less if direction > 0 else np.greater
    outside = compare(_exact(rounded.astype("float64")), exact).astype(bool)
    inward = np.nextafter(rounded, np.asarray(direction * np.inf, rounded.dtype))
    return np.where(outside, inward, rounded)
