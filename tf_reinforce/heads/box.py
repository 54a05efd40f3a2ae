"""Bounds, shapes and rounding, which all heads for a `Box` share."""

import math

import gymnasium as gym
import numpy as np
import tensorflow as tf

from tf_reinforce import validation
from tf_reinforce.heads import base


class Box(base.Head):
    """A vector of `A` numbers that the environment receives inside its bounds.

    Args:
        size: Positive int, `A`.
        low: Number or `A` numbers, the least action the environment takes.
        high: Number or `A` numbers, the greatest.
        shape: Shape of the environment's action. Defaults to `(size,)`.
        whole: Bool. True for an environment that takes whole numbers: it receives the
            nearest one inside the bounds.

    Raises:
        ValueError: when bounds, shape and size do not fit.
    """

    action_dtype = None

    def __init__(self, size, low, high, *, shape=None, whole=False, **kwargs):
        super().__init__(**kwargs)
        self.size = validation.positive_int("size", size)
        self.shape = [self.size] if shape is None else list(shape)
        self.whole = bool(whole)
        if math.prod(self.shape) != self.size:
            raise ValueError(
                f"An action of shape {tuple(self.shape)} does not hold {self.size} "
                f"numbers. Received: size={size}, shape={shape}"
            )
        self.low = self._per_number("low", low, math.ceil if whole else float)
        self.high = self._per_number("high", high, math.floor if whole else float)
        with np.errstate(invalid="ignore"):  # NaN is not below anything
            ordered = np.all(_exact(self.low) < _exact(self.high))
        if not ordered:
            raise ValueError(
                f"`low` must be below `high`. Received: low={low}, high={high}"
            )
        self.action_shape = (self.size,)

    def _per_number(self, name, values, convert=float):
        """One number or a list of `A`, in numbers of Python: they hold any bound."""
        given = np.asarray(values)
        if given.shape not in ((), (self.size,)):
            raise ValueError(
                f"`{name}` must be one number or {self.size} numbers. "
                f"Received: {name}={given.tolist()}"
            )
        plain = [convert(x) if _finite(x) else float(x) for x in given.ravel().tolist()]
        return plain if given.ndim else plain[0]

    def bounds(self, like):
        """`low` and `high` in the type of a tensor, rounded inwards.

        No wider type then finds an action outside.
        """
        low, high = _round(self.low, like, 1), _round(self.high, like, -1)
        return base.constant(low, like), base.constant(high, like)

    def inside(self, actions):
        """`[..., A]` numbers, clipped to the bounds."""
        low, high = self.bounds(actions)
        return tf.minimum(tf.maximum(actions, low), high)

    def between(self, shares, others):
        """`[..., A]` shares of the way from `low` to `high`, and one minus them.

        Where whole numbers are sent, each has a unit to itself, the ends as well.
        """
        low, high = self.bounds(shares)
        if self.whole:
            low, high = low - 0.5, high + 0.5
        return others * low + shares * high  # `high - low` might overflow

    def to_environment(self, actions):
        inside = self.inside(tf.round(actions) if self.whole else actions)
        return tf.reshape(inside, [-1, *self.shape])

    def at_bounds(self, actions):
        if self.whole:  # an end is a number as any other
            return super().at_bounds(actions)
        sent = tf.reshape(self.to_environment(actions), [-1, self.size])
        low, high = self.bounds(sent)
        near = 1e-3 * (high / 2 - low / 2)  # infinite, and nothing near, without bounds
        near = tf.where(near < sent.dtype.max, 2 * near, 0.0)
        return (sent <= low + near) | (sent >= high - near)

    def matches_space(self, space):
        same = isinstance(space, gym.spaces.Box) and space.shape == tuple(self.shape)
        if not same or (space.dtype.kind != "f" and not self.whole):
            return False
        low, high = (_exact(np.ravel(bound)) for bound in (space.low, space.high))
        inside = (_exact(self.low) >= low) & (_exact(self.high) <= high)
        return bool(np.all(inside))

    def require_finite(self):
        """Refuses bounds that are not all finite.

        Raises:
            ValueError: with the heads that need none.
        """
        numbers = [*_exact(self.low).ravel(), *_exact(self.high).ravel()]
        if not all(map(_finite, numbers)):
            raise ValueError(
                f"{type(self).__name__} needs finite bounds: it spreads its actions "
                f"between them. Received: low={self.low}, high={self.high}. Take "
                "ClippedGaussian or Gaussian, which work with any bounds."
            )

    def get_config(self):
        return {
            **super().get_config(),
            "size": self.size,
            "low": self.low,
            "high": self.high,
            "shape": self.shape,
            "whole": self.whole,
        }

    def __repr__(self):
        whole = ", whole=True" if self.whole else ""
        name = type(self).__name__
        return f"{name}({self.size}, low={self.low}, high={self.high}{whole})"


def _finite(value):
    return isinstance(value, int) or math.isfinite(value)


def _exact(values):
    """An array of Python's numbers, which compare whole ones with floats exactly."""
    return np.asarray(np.asarray(values).tolist(), object)


def _round(bound, like, direction):
    """A bound in the type of a tensor, never outside the bound itself."""
    exact = _exact(bound)
    with np.errstate(over="ignore"):  # beyond the type's range: infinite, then inwards
        rounded = exact.astype("float64").astype(like.dtype.as_numpy_dtype)
    compare = np.less if direction > 0 else np.greater
    outside = compare(_exact(rounded.astype("float64")), exact).astype(bool)
    inward = np.nextafter(rounded, np.asarray(direction * np.inf, rounded.dtype))
    return np.where(outside, inward, rounded)
