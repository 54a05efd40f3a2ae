"""Heads: from the outputs of a policy to a distribution over actions, and back."""

import math

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce import spaces
from tf_reinforce.heads.base import Head, Noise
from tf_reinforce.heads.bernoulli import Bernoulli
from tf_reinforce.heads.categorical import Categorical
from tf_reinforce.heads.composite import Composite
from tf_reinforce.heads.gaussian import Gaussian
from tf_reinforce.heads.multi_categorical import MultiCategorical
from tf_reinforce.heads.multinomial import Multinomial

__all__ = [
    "Bernoulli",
    "Categorical",
    "Composite",
    "Gaussian",
    "Head",
    "MultiCategorical",
    "Multinomial",
    "Noise",
    "for_space",
]


def for_space(space, **kwargs):
    """The head that speaks the language of an action space.

    Args:
        space: `Discrete`, `MultiDiscrete`, `MultiBinary`, `Box` of a float type, or
            `Tuple` and `Dict` of these, nested to any depth.
        **kwargs: Keywords of every Keras layer, for example `dtype`.

    Returns:
        `Categorical` for `Discrete` and `MultiCategorical` for `MultiDiscrete`, offset
        by their start; `Bernoulli` for `MultiBinary`; `Gaussian` for `Box`, clipped to
        its bounds, with a first deviation of half their half-width where both are
        finite and less than 1e7 apart, and 1 elsewhere; for `Tuple` and `Dict` the
        `Composite` of the heads of their parts.

    Raises:
        ValueError: for any other space, and for bounds that leave no room.

    Example:

    >>> for_space(gym.spaces.Discrete(4))
    Categorical(4, start=0)
    """
    spaces.check_action_space(space)
    if isinstance(space, (gym.spaces.Tuple, gym.spaces.Dict)):
        parts = keras.tree.map_structure(
            lambda part: for_space(part, **kwargs), spaces.nest(space)
        )
        return Composite(parts, **kwargs)
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(int(space.n), start=int(space.start), **kwargs)
    if isinstance(space, gym.spaces.MultiDiscrete):
        sizes, start = np.ravel(space.nvec).tolist(), _scalar(np.ravel(space.start))
        return MultiCategorical(sizes, start=start, shape=space.shape, **kwargs)
    if isinstance(space, gym.spaces.MultiBinary):
        return Bernoulli(math.prod(space.shape), shape=space.shape, **kwargs)
    if isinstance(space, gym.spaces.Box):
        low, high = (np.asarray(x, "float64").ravel() for x in (space.low, space.high))
        if not np.all(low < high):
            raise ValueError(
                f"The action space {space!r} leaves no room between its bounds. Remove "
                "the fixed dimensions with gymnasium.wrappers.TransformAction."
            )
        # Bounds as wide as the type are how many environments say "none".
        with np.errstate(over="ignore"):
            bounded = high - low < 1e7
        quarter = np.subtract(high, low, where=bounded, out=np.full_like(low, 4.0)) / 4
        return Gaussian(
            low.size,
            low=_scalar(low),
            high=_scalar(high),
            shape=space.shape,
            initial_scale=_scalar(quarter),
            **kwargs,
        )


def _scalar(values):
    return values[0].item() if np.all(values == values[0]) else values.tolist()
