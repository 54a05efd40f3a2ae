"""Heads, which turn the outputs of a policy into a distribution over actions."""

import math
from typing import Any

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce.data import spaces
from tf_reinforce.data.seeding import NoiseSpec
from tf_reinforce.heads.base import Head
from tf_reinforce.heads.base import Support
from tf_reinforce.heads.bernoulli import Bernoulli
from tf_reinforce.heads.beta import Beta
from tf_reinforce.heads.categorical import Categorical
from tf_reinforce.heads.clipped import ClippedGaussian
from tf_reinforce.heads.composite import Composite
from tf_reinforce.heads.gaussian import Gaussian
from tf_reinforce.heads.multi_categorical import MultiCategorical
from tf_reinforce.heads.multinomial import Multinomial
from tf_reinforce.heads.tanh import TanhGaussian

__all__ = [
    "Bernoulli",
    "Beta",
    "Categorical",
    "ClippedGaussian",
    "Composite",
    "Gaussian",
    "Head",
    "MultiCategorical",
    "Multinomial",
    "NoiseSpec",
    "Support",
    "TanhGaussian",
    "for_space",
]


def __dir__() -> list[str]:
    return __all__


def for_space(space: gym.Space, **kwargs: Any) -> Head:
    """Returns the default head for an action space.

    Args:
        space: `Discrete`, `MultiDiscrete`, `MultiBinary`, `Box` of a float or integer
            type, or `Tuple` and `Dict` of these, nested to any depth.
        **kwargs: Keyword arguments that every Keras layer accepts, for example `dtype`.

    Returns:
        The head for the type of the space.

        - `Discrete`: `Categorical` with the `start` of the space.
        - `MultiDiscrete`: `MultiCategorical` with the `start` of the space.
        - `MultiBinary`: `Bernoulli`.
        - `Box`: `Gaussian`, whose actions are clipped to the bounds of the space, and
          rounded if the type of the space is an integer type. The initial standard
          deviation of `Gaussian` is a quarter of the width between the bounds, or 1 if
          the width is 1e7 or more. For a `Box` of integers, the initial standard
          deviation is at least 1/2, so that samples are rounded to more than one integer.
        - `Tuple` and `Dict`: `Composite` of the default heads of the parts.

    Raises:
        ValueError: If no head supports the space, or a lower bound of the space is not
            below its upper bound.

    Example:

    >>> for_space(gym.spaces.Discrete(4))
    Categorical(4, start=0)
    """
    spaces.check_action_space(space)
    if isinstance(space, (gym.spaces.Tuple, gym.spaces.Dict)):
        parts = keras.tree.map_structure(
            lambda part: for_space(part, **kwargs), spaces.to_nest(space)
        )
        return Composite(parts, **kwargs)
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(int(space.n), start=int(space.start), **kwargs)
    if isinstance(space, gym.spaces.MultiDiscrete):
        sizes = np.ravel(space.nvec).tolist()
        start = _scalar(np.ravel(space.start).tolist())
        return MultiCategorical(sizes, start=start, shape=space.shape, **kwargs)
    if isinstance(space, gym.spaces.MultiBinary):
        return Bernoulli(math.prod(space.shape), shape=space.shape, **kwargs)
    return _gaussian(space, **kwargs)


def _gaussian(space: Any, **kwargs: Any) -> Any:
    """Returns the default head of a `Box`, which is a `Gaussian`.

    The bounds of the head are Python numbers, because Python numbers represent the bounds
    of every number type exactly.
    """
    low, high = (np.ravel(x).tolist() for x in (space.low, space.high))
    widths = [upper - lower for lower, upper in zip(low, high, strict=True)]
    if not all(width > 0 for width in widths):
        raise ValueError(
            "Each lower bound of an action space must be below its upper bound. "
            f"Received: {space!r}, which leaves no room between its bounds. Remove "
            "dimensions with equal bounds from the action space with "
            "gymnasium.wrappers.TransformAction."
        )
    integer = space.dtype.kind != "f"
    min_scale = 0.5 if integer else 0.0
    scales = [
        max(width / 4, min_scale) if width < spaces.UNBOUNDED_WIDTH else 1.0
        for width in widths
    ]
    return Gaussian(
        len(low),
        low=_scalar(low),
        high=_scalar(high),
        shape=space.shape,
        integer=integer,
        initial_scale=_scalar(scales),
        **kwargs,
    )


def _scalar(values: Any) -> Any:
    """Returns one number if all numbers of a list are equal, else the list."""
    return values[0] if all(value == values[0] for value in values) else values
