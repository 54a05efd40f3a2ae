"""Heads: from the outputs of a policy to a distribution over actions, and back."""

import gymnasium as gym
import numpy as np

from tf_reinforce.heads.base import Head, Noise
from tf_reinforce.heads.categorical import Categorical
from tf_reinforce.heads.gaussian import Gaussian
from tf_reinforce.heads.multinomial import Multinomial

__all__ = ["Categorical", "Gaussian", "Head", "Multinomial", "Noise", "for_space"]


def for_space(space, **kwargs):
    """The head that speaks the language of an action space.

    Args:
        space: `Discrete`, or `Box` of a float type.
        **kwargs: Keywords of every Keras layer, for example `dtype`.

    Returns:
        `Categorical` for `Discrete`, offset by its start; `Gaussian` for `Box`,
        clipped to its bounds, with a first deviation of half their half-width where
        both are finite and less than 1e7 apart, and 1 elsewhere.

    Raises:
        ValueError: for any other space, and for bounds that leave no room.

    Example:

    >>> for_space(gym.spaces.Discrete(4))
    Categorical(4, start=0)
    """
    if isinstance(space, gym.spaces.Discrete):
        return Categorical(int(space.n), start=int(space.start), **kwargs)
    if isinstance(space, gym.spaces.Box) and np.issubdtype(space.dtype, np.floating):
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
    raise ValueError(
        f"No head for the action space {space!r}. Supported: Discrete, and Box of a "
        "float type. Give the agent a head: `head=tfr.heads.Multinomial(categories, "
        "trials)` for counts, or one of your own."
    )


def _scalar(values):
    return values[0].item() if np.all(values == values[0]) else values.tolist()
