"""Stores the steps, the noise and the recurrent states of a collection in arrays.

Row i of a buffer contains step i of the collection, with one column per environment.
"""

import numpy as np

_NOISE_ROWS = 128  # rows of noise that are drawn at once


_INITIAL_ROWS = 256  # rows of a new `StepBuffer`; a full buffer doubles


class StepBuffer:
    """Stores the steps of all environments in time-major arrays, which can grow.

    Args:
        size: Int, the number of environments.
        observation_specs: List of `ArraySpec`, one for each array of an observation.
            If actions can be illegal, the last spec describes the action masks.
        action_specs: List of `ArraySpec`, one for each array of a raw action, that
            is, of an action as sampled, before its conversion for the environment.

    Attributes:
        length: Int, the number of steps that the arrays can hold.
        observations: List of arrays `[length + 1, size, …]`, with any action masks last.
        actions: List of arrays `[length, size, …]`, the raw actions.
        rewards: `[length, size]` float64 array.
    """

    def __init__(self, size, observation_specs, action_specs):
        self.length = _INITIAL_ROWS
        self.observations = _zeros((_INITIAL_ROWS + 1, size), observation_specs)
        self.actions = _zeros((_INITIAL_ROWS, size), action_specs)
        self.rewards = np.zeros((_INITIAL_ROWS, size))

    def grow(self):
        """Replaces the arrays by larger arrays, for twice as many steps."""
        self.observations = [_extended(x, len(x) - 1) for x in self.observations]
        self.actions = [_extended(x, self.length) for x in self.actions]
        self.rewards = _extended(self.rewards, self.length)
        self.length *= 2

    def observation_row(self, row):
        """Returns a list with a view of one row of each array of `observations`."""
        return [array[row] for array in self.observations]


def _zeros(leading_shape, specs):
    return [np.zeros((*leading_shape, *x.shape), x.dtype) for x in specs]


def _extended(array, count):
    return np.concatenate([array, np.zeros((count, *array.shape[1:]), array.dtype)])


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
