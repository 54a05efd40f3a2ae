"""What a collection returns, and the errors that it raises."""

import math
from typing import NamedTuple

import keras
import numpy as np

from tf_reinforce.data import episodes as records


class EnvironmentFault(RuntimeError):
    """An environment raised, or answered with something that is no answer.

    The message names the environment, the episode, the step and what was wrong; the
    original exception, if there was one, is the cause. Nothing was learned from the
    episode.
    """


class OutputsNotFinite(FloatingPointError):
    """The outputs of the policy are not finite, although its observations are.

    Attributes:
        inputs: List of arrays `[N, …]`, what the acting program received.
    """

    def __init__(self, message, inputs):
        super().__init__(message)
        self.inputs = inputs


class CollectedEpisodes(NamedTuple):
    """What a collection brings home."""

    episodes: records.Episodes
    success: np.ndarray  # [B] float: 1, 0, or NaN where the environment does not say
    seconds: dict[str, float]  # `"stepping"` environments; `"acting"`: all the rest


class EpisodeArrays(NamedTuple):
    """Whole episodes as flat lists of arrays: what one process hands to another."""

    numbers: np.ndarray  # [B] int, in the order of their start
    lengths: np.ndarray  # [B] int
    terminated: np.ndarray  # [B] bool
    success: np.ndarray  # [B] float
    observations: list  # [T + 1, B, …] each; a mask, where there is one, comes last
    others: list  # [T, B, …] each: the parts of the actions, and the rewards


def _check_observations(values, run):
    """Row 0 came with the reset, row t + 1 with the answer to action t."""
    _check_finite("first observation", values[:1], run)
    _check_finite("observation", values[1:], run)


def _check_finite(name, values, run):
    """Refuses numbers that are none; row t came with the answer to action t."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        step = int(np.argwhere(~np.isfinite(values))[0][0])
        raise EnvironmentFault(
            f"Environment {run.slot}, episode {run.number}, step {step}: the {name} is "
            f"not finite: {values[step]}. Nothing was learned from this batch. Repair "
            "the environment."
        )


def episode_arrays(runs, tape):
    """The runs as `EpisodeArrays`, in the order of their start."""
    lengths = np.array([run.length for run in runs], "int32")
    rows, count = lengths.max(initial=0), len(runs)

    def columns(array, rows):
        return np.zeros((rows, count, *array.shape[2:]), array.dtype)

    observations = [columns(array, rows + 1) for array in tape.observations]
    others = [*tape.actions, tape.rewards]
    columns_of_others = [columns(array, rows) for array in others]
    for b, run in enumerate(runs):
        here = (slice(run.begin, run.begin + run.length), run.slot)
        for to, array, last in zip(observations, tape.observations, run.last):
            to[: run.length, b] = array[here]
            to[run.length, b] = last
        for to, array in zip(columns_of_others, others):
            to[: run.length, b] = array[here]
        for array in observations:
            _check_observations(array[: run.length + 1, b], run)
        _check_finite("reward", columns_of_others[-1][: run.length, b], run)
    return EpisodeArrays(
        np.array([run.number for run in runs], "int64"),
        lengths,
        np.array([run.ending.terminated for run in runs], bool),
        np.array([_known_success(run.ending.success) for run in runs], "float64"),
        observations,
        columns_of_others,
    )


def _known_success(success):
    return math.nan if success is None else float(success)


def to_episodes(columns, decision):
    """`EpisodeArrays` as `Episodes`, nested as the spaces of a `actor.ActorPolicy`."""
    observations, masks = columns.observations, None
    if decision.mask_source:
        *observations, masks = observations
    *actions, rewards = columns.others
    return records.Episodes(
        keras.tree.pack_sequence_as(decision.observation_spec, observations),
        keras.tree.pack_sequence_as(decision.action_spec, actions),
        rewards,
        columns.lengths,
        columns.terminated,
        None if masks is None else masks[:-1],
    )
