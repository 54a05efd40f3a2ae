"""Defines played episodes as arrays, and the errors that a collection raises."""

import dataclasses
import math
from typing import NamedTuple

import numpy as np

# The causes of policy outputs that are not finite for finite observations and weights.
OUTPUTS_REMEDY = (
    "If the model sets logits to -inf to exclude actions, let it return finite logits, "
    "and pass `action_mask` to the agent. Otherwise the policy overflows: train with a "
    "smaller learning rate, `global_clipnorm` or normalize_observations=True."
)


class EnvironmentFault(RuntimeError):
    """The error for an environment that raised an exception or returned an invalid value.

    The message of an `EnvironmentFault` states the fault and, if they are known, the
    environment, the episode and the step. If the environment raised an exception, the
    exception is the cause of the `EnvironmentFault`. For an exception in a worker
    process, the cause is a `RuntimeError` with the traceback of the exception. The agent
    does not learn from a batch in which a fault occurred.
    """


class OutputsNotFinite(FloatingPointError):
    """The error for policy outputs that are not finite, although observations are finite.

    Attributes:
        inputs: List of arrays `[N, …]`, the observations, action masks, recurrent states
            and noise for N environments, from which the outputs were computed.
    """

    def __init__(self, message, inputs):
        super().__init__(message)
        self.inputs = inputs


@dataclasses.dataclass
class Faults:
    """The faults of environments for which episodes were dropped."""

    dropped_episodes: int = 0
    env_restarts: int = 0
    worker_restarts: int = 0  # worker processes that were replaced
    first: str | None = None  # the first fault, with environment, episode and step

    def add(self, other):
        """Adds the faults of other episodes."""
        self.dropped_episodes += other.dropped_episodes
        self.env_restarts += other.env_restarts
        self.worker_restarts += other.worker_restarts
        self.first = self.first or other.first

    def metrics(self, keys):
        """Returns a dict of floats, the counts with the names `keys`."""
        return {key: float(getattr(self, key)) for key in keys}


class EpisodeArrays(NamedTuple):
    """`B` whole episodes as lists of arrays, which workers can send to their pool."""

    numbers: np.ndarray  # [B] int, the numbers of the episodes in starting order
    lengths: np.ndarray  # [B] int, the numbers of steps
    terminated: np.ndarray  # [B] bool, False for truncated episodes
    success: np.ndarray  # [B] float: 1 or 0, or NaN if success is not reported
    observations: list  # [T + 1, B, …] observations, with any action masks last
    others: list  # [T, B, …] arrays of actions, then rewards


def check_observations(values, episode, first_index):
    """Raises `EnvironmentFault` if an observation of an episode is not finite.

    Args:
        values: `[n + 1, …]` array, the observations of n steps of the episode. Row 0 is
            the observation of the reset, and row i + 1 is the observation after step i.
        episode: `scheduler.EpisodeInProgress` that the observations belong to.
        first_index: Int, the attribute of `batched_envs.BatchedEnvs`.
    """
    _check_finite("first observation", values[:1], episode, first_index)
    _check_finite("observation", values[1:], episode, first_index)


def _check_finite(name, values, episode, first_index):
    """Raises `EnvironmentFault` if a value is not finite; row i of `values` is step i."""
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        step = int(np.argwhere(~np.isfinite(values))[0][0])
        env_index = first_index + episode.env_index
        raise EnvironmentFault(
            f"Environment {env_index}, episode {episode.number}, step {step}: "
            f"the {name} is not finite: {values[step]}. The agent did not learn from "
            "the failed batch. Correct the environment."
        )


def episode_arrays(episodes, buffer, first_index):
    """Copies episodes from a step buffer into arrays with one episode per column.

    Args:
        episodes: List of finished `scheduler.EpisodeInProgress`.
        buffer: `buffers.StepBuffer`.
        first_index: Int, the attribute of `batched_envs.BatchedEnvs`.

    Returns:
        `EpisodeArrays`, with the episodes in the order of the list `episodes`.

    Raises:
        EnvironmentFault: If an observation or a reward is not finite.
    """
    lengths = np.array([episode.length for episode in episodes], "int32")
    rows, count = lengths.max(initial=0), len(episodes)

    def zeros(array, rows):
        return np.zeros((rows, count, *array.shape[2:]), array.dtype)

    observations = [zeros(array, rows + 1) for array in buffer.observations]
    source = [*buffer.actions, buffer.rewards]
    others = [zeros(array, rows) for array in source]
    for b, episode in enumerate(episodes):
        start, length = episode.start_row, episode.length
        steps = (slice(start, start + length), episode.env_index)
        parts = zip(observations, buffer.observations, episode.last_observation)
        for copy, array, last in parts:
            copy[:length, b] = array[steps]
            copy[length, b] = last
        for copy, array in zip(others, source):
            copy[:length, b] = array[steps]
        for copy in observations:
            check_observations(copy[: length + 1, b], episode, first_index)
        _check_finite("reward", others[-1][:length, b], episode, first_index)
    return EpisodeArrays(
        np.array([episode.number for episode in episodes], "int64"),
        lengths,
        np.array([episode.end.terminated for episode in episodes], bool),
        np.array([_success_or_nan(x.end.success) for x in episodes], "float64"),
        observations,
        others,
    )


def _success_or_nan(success):
    return math.nan if success is None else float(success)
