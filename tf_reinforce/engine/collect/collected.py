"""Defines the result of a collection."""

from typing import Any, NamedTuple

import keras
import numpy as np

from tf_reinforce.data import episodes as records
from tf_reinforce.engine.collect import results


class CollectedEpisodes(NamedTuple):
    """The episodes of a collection, the success of each episode, and the elapsed time."""

    episodes: records.Episodes
    success: np.ndarray  # [B] float: 1 or 0, or NaN if success is not reported
    seconds: dict[str, float]  # "stepping": in environments; "acting": the rest
    rollout_result: Any = None  # tensors of the same episodes, from a `Rollout`
    faults: results.Faults = results.Faults()  # of episodes that were dropped


def to_episodes(arrays, actor):
    """Returns `EpisodeArrays` as `Episodes`, nested like the environment's spaces.

    Args:
        arrays: `EpisodeArrays` to convert.
        actor: `actor.ActorPolicy` that collected the episodes.
    """
    observations, masks = arrays.observations, None
    if actor.mask_source:
        *observations, masks = observations
    *actions, rewards = arrays.others
    return records.Episodes(
        keras.tree.pack_sequence_as(actor.observation_spec, observations),
        keras.tree.pack_sequence_as(actor.action_spec, actions),
        rewards,
        arrays.lengths,
        arrays.terminated,
        None if masks is None else masks[:-1],
    )
