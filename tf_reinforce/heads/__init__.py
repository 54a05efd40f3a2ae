"""Heads, which turn the outputs of a policy into a distribution over actions."""

from typing import Any

import gymnasium as gym
import keras

from tf_reinforce.data import spaces
from tf_reinforce.data.seeding import NoiseSpec
from tf_reinforce.heads.autoregressive import Autoregressive
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
from tf_reinforce.heads.pointer import Pointer
from tf_reinforce.heads.tanh import TanhGaussian

__all__ = [
    "Autoregressive",
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
    "Pointer",
    "Support",
    "TanhGaussian",
    "for_space",
]

__dir__ = __all__.copy  # what tab completion shows


def for_space(space: gym.Space, **kwargs: Any) -> Head:
    """Returns the default head for an action space.

    - `Discrete`: `Categorical`, with the space's `start`.
    - `MultiDiscrete`: `MultiCategorical`, with the space's `start`.
    - `MultiBinary`: `Bernoulli`.
    - `Box`: `Gaussian`; actions are clipped to the bounds, and rounded for integers.
    - `Tuple` and `Dict`: `Composite` of the parts' default heads.

    Args:
        space: One of these, nested to any depth.
        **kwargs: Keyword arguments of every Keras layer, for example `dtype`.

    Raises:
        ValueError: If no head supports the space, or a lower bound is not below its upper
            bound.

    Example:

    >>> for_space(gym.spaces.Discrete(4))
    Categorical(size=4, start=0)
    """
    spaces.check_action_space(space)
    nest = spaces.to_nest(space)
    if isinstance(nest, (tuple, dict)):
        parts = keras.tree.map_structure(lambda part: for_space(part, **kwargs), nest)
        return Composite(parts, **kwargs)
    defaults: dict[type, Any] = {
        gym.spaces.Discrete: Categorical,
        gym.spaces.MultiDiscrete: MultiCategorical,
        gym.spaces.MultiBinary: Bernoulli,
        gym.spaces.Box: Gaussian,
    }
    head_class = next(head for kind, head in defaults.items() if isinstance(space, kind))
    return head_class.from_space(space, **kwargs)
