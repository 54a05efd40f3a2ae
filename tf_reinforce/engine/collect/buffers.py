"""Stores the steps, the noise and the recurrent states of a collection in arrays.

Row i of a buffer contains step i of the collection, with one column per environment.
"""

import math
import mmap

import numpy as np

from tf_reinforce.data import acting_specs

_NOISE_ROWS = 128  # rows of noise that are drawn at once
BLOCK_ROWS = 256  # rows of each block of a `StepBuffer`


def zeros(shape, dtype):
    """Returns an array of zeros whose memory the system gets back when it is deleted.

    The memory of `np.zeros` can stay in the process, between arrays that are still used.
    """
    size = math.prod(shape) * np.dtype(dtype).itemsize
    return np.ndarray(shape, dtype, mmap.mmap(-1, max(size, 1)))


class StepBuffer:
    """Stores the steps of all environments in blocks of time-major arrays.

    A buffer grows by a further block, so that no step is ever copied to make room, and
    its memory is freed block by block, see `results.episode_arrays`.

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


class NoiseBuffer:
    """Draws the noise for sampling actions, from the random generators of each episode.

    Args:
        size: Int, the number of environments.
        noise_specs: List of `seeding.NoiseSpec`, one for each part of an action.
        dtype: Float type of the noise.
    """

    def __init__(self, size, noise_specs, dtype):
        self._kinds = [spec.kind for spec in noise_specs]
        self._blocks = [
            np.full((_NOISE_ROWS, size, *spec.shape), 0.5, dtype) for spec in noise_specs
        ]

    def start_episode(self, episode, row):
        """Draws the noise of a new episode, for the remaining rows of the buffer.

        If the buffer holds no noise for step `row` yet, `start_episode` draws nothing:
        the method `row` then draws noise for all running episodes.
        """
        if row % _NOISE_ROWS:
            self._draw(episode, row % _NOISE_ROWS)

    def row(self, row, active):
        """Returns the noise of one step in all environments, one array per action part.

        Args:
            row: Int, the number of the step. Successive calls must pass 0, 1, 2, …
            active: Dict from environment indices to running episodes.
        """
        if row % _NOISE_ROWS == 0:
            for episode in active.values():
                self._draw(episode, 0)
            self._rows = zip(*self._blocks, strict=True)
        return next(self._rows, ())

    def _draw(self, episode, first):
        for kind, block, generator in zip(self._kinds, self._blocks, episode.generators):
            noise = block[first:, episode.env_index]
            if kind == "uniform":
                noise[:] = generator.random(noise.shape, noise.dtype)
            else:
                noise[:] = generator.standard_normal(noise.shape, noise.dtype)


class RecurrentStates:
    """Stores the recurrent states of a policy in all environments.

    Args:
        initial: List of arrays with one row for each environment, the recurrent states
            before the first observation of an episode.
    """

    def __init__(self, initial):
        self._initial = initial
        self.arrays = [state.copy() for state in self._initial]

    def reset(self, env_index):
        """Sets the recurrent states of one environment to the initial states."""
        for array, initial in zip(self.arrays, self._initial):
            array[env_index] = initial[env_index]
