"""Defines bounds, shapes and rounding, which all heads for a `Box` share."""

import math
from collections.abc import Sequence
from typing import Any

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tf_reinforce.heads import base
from tf_reinforce.support import validation


class BoxHead(base.Head):
    """A head for actions of `A` numbers, which have bounds in the environment.

    Args:
        size: Positive int, `A`, the length of the action vector.
        low: Number, or `A` numbers, the lower bounds of the environment's action.
        high: Number, or `A` numbers, the upper bounds of the environment's action.
        shape: Shape of the environment's action. `shape` defaults to `(size,)`.
        integer: Bool, whether the environment takes integers. With `integer=True`, the
            environment receives the nearest integer inside the bounds.

    Attributes:
        space_arguments: The names of the arguments that `Reinforce.for_env` takes from
            the action space if `head` is the name of a head class.
        setting_names: The names of the arguments of the head that a preset may contain.

    Raises:
        ValueError: If bounds, shape and size do not fit together.
    """

    action_dtype = None
    space_arguments: tuple[str, ...] = ("size", "low", "high", "shape", "integer")
    setting_names: tuple[str, ...] = ()

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
        self.shape = [self.size]
        if shape is not None:
            self.shape = validation.positive_ints("shape", shape)
        self.integer = validation.boolean("integer", integer)
        if math.prod(self.shape) != self.size:
            raise ValueError(
                f"An action of shape {tuple(self.shape)} does not hold {self.size} "
                f"numbers. Received: size={size}, shape={shape}"
            )
        self.low = self._python_numbers("low", low, math.ceil if integer else float)
        self.high = self._python_numbers("high", high, math.floor if integer else float)
        with np.errstate(invalid="ignore"):  # comparisons with NaN are False
            is_below = np.all(_exact(self.low) < _exact(self.high))
        if not is_below:
            raise ValueError(
                "`low` must be below `high` in every entry of the bounds. Received: "
                f"low={low}, high={high}"
            )
        self.action_shape = (self.size,)

    def _python_numbers(self, name: str, values: Any, convert: Any = float) -> Any:
        """Returns a bound as one Python number or as a list of `size` Python numbers.

        Python numbers represent the bounds of every number type exactly.
        """
        array = np.asarray(values)
        is_real = array.dtype.kind in "fiu"
        if not is_real or array.shape not in ((), (self.size,)):
            raise ValueError(
                f"`{name}` must be one number or {self.size} numbers. "
                f"Received: {name}={array.tolist()!r}"
            )
        numbers = array.ravel().tolist()
        converted = [convert(x) if _is_finite(x) else float(x) for x in numbers]
        return converted if array.ndim else converted[0]

    def bounds(self, like: Any) -> Any:
        """Returns `low` and `high` in the number type of a tensor, rounded inwards.

        The lower bound is rounded up and the upper bound is rounded down, so that both
        rounded bounds lie inside the exact bounds.
        """
        low, high = _round(self.low, like, 1), _round(self.high, like, -1)
        return base.constant(low, like), base.constant(high, like)

    def clip(self, actions: Any) -> Any:
        """Clips actions `[..., size]` to the bounds of the environment's action."""
        low, high = self.bounds(actions)
        return tf.minimum(tf.maximum(actions, low), high)

    def rescale(self, fractions: Any, complements: Any) -> Any:
        """Maps numbers in [0, 1] to the interval from `low` to `high`.

        For an integer action, the interval is wider by 0.5 at both ends, so that each
        integer from `low` to `high` is the middle of an interval of width 1.

        Args:
            fractions: `[..., A]` float in [0, 1].
            complements: `[..., A]` float, one minus `fractions`.

        Returns:
            `[..., A]` float, numbers between the bounds.
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
        is_box = isinstance(space, gym.spaces.Box) and space.shape == tuple(self.shape)
        if not is_box or (space.dtype.kind != "f" and not self.integer):
            return False
        low, high = (_exact(np.ravel(bound)) for bound in (space.low, space.high))
        inside = (_exact(self.low) >= low) & (_exact(self.high) <= high)
        return bool(np.all(inside))

    def require_finite(self) -> None:
        """Raises `ValueError` unless all bounds of the head are finite."""
        numbers = [*_exact(self.low).ravel(), *_exact(self.high).ravel()]
        if not all(map(_is_finite, numbers)):
            raise ValueError(
                f"{type(self).__name__} needs finite bounds, because the head maps a "
                f"bounded interval to the bounds. Received: low={self.low}, "
                f"high={self.high}. For infinite bounds, use the heads ClippedGaussian "
                "or Gaussian."
            )

    def get_config(self) -> dict[str, Any]:
        return {
            **super().get_config(),
            "size": self.size,
            "low": self.low,
            "high": self.high,
            "shape": self.shape,
            "integer": self.integer,
        }

    def __repr__(self) -> str:
        integer = ", integer=True" if self.integer else ""
        name = type(self).__name__
        return f"{name}({self.size}, low={self.low}, high={self.high}{integer})"


def _is_finite(value: Any) -> Any:
    return isinstance(value, int) or math.isfinite(value)


def _exact(values: Any) -> Any:
    """Returns an array of Python numbers, for exact comparisons.

    Python compares integers with floats exactly. NumPy would round integers to floats
    before comparing them with floats.
    """
    return np.asarray(np.asarray(values).tolist(), object)


def _round(bound: Any, like: Any, direction: Any) -> Any:
    """Returns a bound in the number type of a tensor, rounded inwards.

    Args:
        bound: Number, or list of numbers.
        like: Tensor whose number type the bound gets.
        direction: 1 for a lower bound, -1 for an upper bound.

    Returns:
        NumPy array of the rounded bound.
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
