"""Growing arrays for the steps, the noise and the recurrent states of a collection."""

import numpy as np

_NOISE_ROWS = 128  # rows of noise drawn at once


_FIRST_ROWS = 256  # rows of the first buffer; it doubles


class StepBuffer:
    """Time-major arrays of what happens in all slots; they grow by doubling.

    `observations` are the arrays that `BatchedEnvs` writes; masks, if any, come last.
    """

    def __init__(self, size, observed, raw):
        self.length = _FIRST_ROWS
        self.observations = _arrays((_FIRST_ROWS + 1, size), observed)
        self.actions = _arrays((_FIRST_ROWS, size), raw)
        self.rewards = np.zeros((_FIRST_ROWS, size))

    def grow(self):
        self.observations = [_doubled(x, len(x) - 1) for x in self.observations]
        self.actions = [_doubled(x, self.length) for x in self.actions]
        self.rewards = _doubled(self.rewards, self.length)
        self.length *= 2

    def rows(self, row):
        return [array[row] for array in self.observations]


def _arrays(leading, specs):
    return [np.zeros((*leading, *x.shape), x.dtype.as_numpy_dtype) for x in specs]


def _doubled(array, more):
    return np.concatenate([array, np.zeros((more, *array.shape[1:]), array.dtype)])


class NoiseBuffer:
    """Rows of noise in which each episode reads its own streams, step by step."""

    def __init__(self, size, parts, dtype):
        self._kinds = [part.kind for part in parts]
        self._blocks = [
            np.full((_NOISE_ROWS, size, *part.shape), 0.5, dtype) for part in parts
        ]

    def begin(self, run, row):
        if row % _NOISE_ROWS:
            self._draw(run, row % _NOISE_ROWS)

    def row(self, row, live):
        """The next row of each part; rows are asked for in their order."""
        if row % _NOISE_ROWS == 0:
            for run in live.values():
                self._draw(run, 0)
            self._rows = zip(*self._blocks, strict=True)
        return next(self._rows, ())

    def _draw(self, run, first):
        for kind, block, bits in zip(self._kinds, self._blocks, run.generators):
            part = block[first:, run.slot]
            if kind == "uniform":
                part[:] = bits.random(part.shape, part.dtype)
            else:
                part[:] = bits.standard_normal(part.shape, part.dtype)


class RecurrentStates:
    """The states of a policy that remembers, `[size, …]` each."""

    def __init__(self, initial):
        self._initial = initial
        self.arrays = [state.copy() for state in self._initial]

    def begin(self, slot):
        for array, initial in zip(self.arrays, self._initial):
            array[slot] = initial[slot]
