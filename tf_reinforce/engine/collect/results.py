"""Stores the steps of a collection and its episodes as arrays, and defines its errors."""

import dataclasses
import itertools
import math
import mmap
import operator
from typing import NamedTuple

import numpy as np

from tf_reinforce.data import acting_specs

BLOCK_ROWS = 256  # rows of each block of a `StepBuffer`

# The causes of policy outputs that are not finite for finite observations and weights.
OUTPUTS_REMEDY = (
    "Exclude actions with `action_mask`, not with logits of -inf. If the policy "
    "overflows, use a smaller learning rate, `global_clipnorm` or "
    "normalize_observations=True."
)


class EnvironmentFault(RuntimeError):
    """The error for an environment that raised an exception or returned an invalid value.

    The message names the environment, the episode and the step, if they are known. The
    cause is the exception of the environment, or, for a worker process, a `RuntimeError`
    with its traceback. The agent does not learn from a batch in which a fault occurred.
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


def zeros(shape, dtype):
    """Returns an array of zeros whose memory the system gets back when it is deleted.

    The memory of `np.zeros` can stay in the process, between arrays that are still used.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, mmap.mmap(-1, max(size, 1)))


class StepBuffer:
    """Stores the steps of all environments in blocks of time-major arrays.

    A buffer grows by a further block, so that no step is ever copied to make room, and
    its memory is freed block by block, see `episode_arrays`.

    Args:
        size: Int, the number of environments.
        observation_specs: List of `ArraySpec`, one for each array of an observation.
            If actions can be illegal, the last spec describes the action masks.
        action_specs: List of `ArraySpec`, one for each array of a raw action, that
            is, of an action as sampled, before its conversion for the environment.

    Attributes:
        blocks: List of lists of arrays `[256, size, …]`: the observations, with any
            action masks last, then the raw actions, then the rewards, in float64.
            Row i is row i % 256 of block i // 256. A block that was freed is empty.
        num_observations: Int, how many arrays of a block are observations.
    """

    def __init__(self, size, observation_specs, action_specs):
        rewards = acting_specs.ArraySpec((), "float64")
        self._size, self._specs = size, [*observation_specs, *action_specs, rewards]
        self.num_observations = len(observation_specs)
        self.blocks, self._rows = [], iter(())

    def next_row(self):
        """Returns views of the next row, at first of row 0, as a tuple of arrays."""
        views = next(self._rows, None)
        if views is None:
            shape = BLOCK_ROWS, self._size
            arrays = [zeros((*shape, *x.shape), x.dtype) for x in self._specs]
            self.blocks.append(arrays)
            self._rows = zip(*arrays, strict=True)
            views = next(self._rows)
        return views

    def observations(self, start, stop, env_index):
        """Returns copies of the observations of one environment in a range of rows."""
        places = [divmod(row, BLOCK_ROWS) for row in range(start, stop)]
        return [
            np.stack([self.blocks[block][i][row, env_index] for block, row in places])
            for i in range(self.num_observations)
        ]


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
        episode: `host_loop.EpisodeInProgress` that the observations belong to.
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
            "the failed batch."
        )


def episode_arrays(episodes, buffer, first_index, needed_row):
    """Moves episodes from a step buffer into arrays with one episode per column.

    Each block of the buffer is freed as soon as it has been copied, so that long episodes
    are not in memory twice.

    Args:
        episodes: List of finished `host_loop.EpisodeInProgress`.
        buffer: `StepBuffer`.
        first_index: Int, the attribute of `batched_envs.BatchedEnvs`.
        needed_row: Int. The blocks that end before this row of the buffer are freed.

    Returns:
        `EpisodeArrays`, with the episodes in the order of the list `episodes`.

    Raises:
        EnvironmentFault: If an observation or a reward is not finite.
    """
    lengths = np.array([episode.length for episode in episodes], "int32")
    rows, count = lengths.max(initial=0), len(episodes)
    num_observations = buffer.num_observations
    copies = [
        zeros((rows + (i < num_observations), count, *array.shape[2:]), array.dtype)
        for i, array in enumerate(buffer.blocks[-1])
    ]
    _move_steps(episodes, buffer, copies, needed_row)
    for b, episode in enumerate(episodes):
        for copy, last in zip(copies, episode.last_observation):
            copy[episode.length, b] = last
            check_observations(copy[: episode.length + 1, b], episode, first_index)
        _check_finite("reward", copies[-1][: episode.length, b], episode, first_index)
    return EpisodeArrays(
        np.array([episode.number for episode in episodes], "int64"),
        lengths,
        np.array([episode.end.terminated for episode in episodes], bool),
        np.array([_success_or_nan(x.end.success) for x in episodes], "float64"),
        copies[:num_observations],
        copies[num_observations:],
    )


def _move_steps(episodes, buffer, copies, needed_row):
    size = BLOCK_ROWS
    ends = [episode.start_row + episode.length for episode in episodes]
    blocks = sorted(
        (number, b)
        for b, episode in enumerate(episodes)
        for number in range(episode.start_row // size, -(-ends[b] // size))
    )
    for number, pairs in itertools.groupby(blocks, operator.itemgetter(0)):
        first_row = number * size
        for _, b in pairs:
            start, first = episodes[b].start_row, max(episodes[b].start_row, first_row)
            last = min(ends[b], first_row + size)
            steps = slice(first - first_row, last - first_row), episodes[b].env_index
            place = slice(first - start, last - start), b
            for copy, array in zip(copies, buffer.blocks[number]):
                copy[place] = array[steps]
        if first_row + size <= needed_row:
            buffer.blocks[number].clear()
    for block in buffer.blocks[: needed_row // size]:
        block.clear()  # of episodes that were dropped


def _success_or_nan(success):
    return math.nan if success is None else float(success)
