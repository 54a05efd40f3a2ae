"""Heads, which turn the outputs of a policy into a distribution over actions."""

import math

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


def for_space(space, **kwargs):
    """The head that speaks the language of an action space.

    Args:
        space: `Discrete`, `MultiDiscrete`, `MultiBinary`, `Box` of a float or integer
            type, or `Tuple` and `Dict` of these, nested to any depth.
        **kwargs: Keywords of every Keras layer, for example `dtype`.

    Returns:
        `Categorical` for `Discrete` and `MultiCategorical` for `MultiDiscrete`, offset
        by their start; `Bernoulli` for `MultiBinary`; `Gaussian` for `Box`, clipped to
        its bounds and rounded for an integer type, with a first deviation of half their
        half-width where both are finite and less than 1e7 apart, and 1 elsewhere, at
        least 1/2 for an integer type, so that it leaves its number; for `Tuple` and
        `Dict` the `Composite` of the heads of their parts.

    Raises:
        ValueError: for any other space, and for bounds that leave no room.

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


def _gaussian(space, **kwargs):
    """The head of a `Box`, in numbers of Python: they hold the bounds of every type."""
    low, high = (np.ravel(x).tolist() for x in (space.low, space.high))
    widths = [last - first for first, last in zip(low, high, strict=True)]
    if not all(width > 0 for width in widths):
        raise ValueError(
            f"The action space {space!r} leaves no room between its bounds. Remove "
            "the fixed dimensions with gymnasium.wrappers.TransformAction."
        )
    whole = space.dtype.kind != "f"
    least = 0.5 if whole else 0.0
    scales = [
        max(width / 4, least) if width < spaces.UNBOUNDED_WIDTH else 1.0
        for width in widths
    ]
    return Gaussian(
        len(low),
        low=_scalar(low),
        high=_scalar(high),
        shape=space.shape,
        whole=whole,
        initial_scale=_scalar(scales),
        **kwargs,
    )


def _scalar(values):
    """One number where all are the same, else the list as it is."""
    return values[0] if all(value == values[0] for value in values) else values
