"""The arrays that an agent reads and returns when it acts, without TensorFlow."""

import dataclasses
from typing import NamedTuple

from tf_reinforce.data import action_masks


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Shape and number type of an array, without batch axis."""

    shape: tuple
    dtype: str


class ActingSpecs(NamedTuple):
    """What an agent reads and returns when it acts."""

    float_dtype: str  # the type of float observations and of the noise
    observations: list[ArraySpec]  # the arrays of an observation, without action masks
    actions: list[ArraySpec]  # the arrays of a raw action, as the head samples it
    noise: list  # `seeding.NoiseSpec` of the noise for each part of an action
    mask_reader: action_masks.MaskReader | None  # `None` if all actions are legal
