"""Selects actions with a LiteRT model.

Processes that play episodes select actions with `litert_runner`, and import neither
TensorFlow nor Keras.
"""

import contextlib
import itertools
from typing import NamedTuple

import numpy as np
from ai_edge_litert import interpreter as litert

from tf_reinforce.support import startup


class Argument(NamedTuple):
    """The name of an argument of a LiteRT model, and the shape of one row of it."""

    name: str
    shape: tuple
    # The numbers of two weights. Their sum is subtracted in float64, which LiteRT does
    # not support, before the argument is rounded to float32.
    center: tuple = ()


class Layout(NamedTuple):
    """The order of the arguments and results of a function that selects actions."""

    inputs: list  # `Argument`s: observations, action mask and states
    noise: list  # `Argument`s: the noise
    names: list  # str, the name of each result
    raw_actions: list  # indices of the raw actions among the results
    finite: int  # index of the bool result: all outputs are finite
    env_actions: list  # indices of the actions for the environment
    states: list  # indices of the next states


def make_runner(model, layout, count):
    """Returns a runner of a LiteRT model for batches of `count` rows.

    The results for a row do not depend on the other rows or on their number.

    A single row runs as two rows, because LiteRT sums a matrix product for one row in
    another order than for several rows. Images run one by one, because LiteRT's order
    of additions in a convolution depends on the size of the batch.

    Args:
        model: Bytes, the LiteRT model.
        layout: `Layout` of the arguments and results of the model.
        count: Int, the number of rows of a batch.

    Returns:
        A function with four results, and a method `set_weights`. See
        `acting_program.ActingProgram.for_batch`.
    """
    has_images = any(len(argument.shape) > 1 for argument in layout.inputs)
    size = 1 if has_images else max(count, 2)
    runner = LiteRTRunner(model, layout, size)
    return runner if size == count else _ChunkedRunner(runner, size, count)


_ALLOCATIONS = itertools.count()


def _allocate_tensors(interpreter):
    """Allocates the tensors of an interpreter, without LiteRT's start-up message."""
    is_first = next(_ALLOCATIONS) == 0
    with startup.without_messages() if is_first else contextlib.nullcontext():
        interpreter.allocate_tensors()


class LiteRTRunner:
    """Runs a LiteRT model on batches with a fixed number of rows.

    Args:
        model: Bytes, the LiteRT model.
        layout: `Layout` of the arguments and results of the model.
        count: Int, the number of rows of a batch.
    """

    def __init__(self, model, layout, count):
        self._interpreter = litert.Interpreter(model_content=model, num_threads=1)
        details = self._interpreter.get_input_details()
        tensor_indices = {d["name"]: d["index"] for d in details}
        # The converter removes inputs that no result depends on, for example the mask
        # if the head does not use it.
        arguments = [*layout.inputs, *layout.noise]
        self._inputs = [
            (position, tensor_indices[argument.name])
            for position, argument in enumerate(arguments)
            if argument.name in tensor_indices
        ]
        for position, index in self._inputs:
            shape = (count, *arguments[position].shape)
            self._interpreter.resize_tensor_input(index, shape)
        _allocate_tensors(self._interpreter)
        self._results = [d["index"] for d in self._interpreter.get_output_details()]
        self._centers = []  # from `set_weights`
        self._centered = [(i, x.center) for i, x in enumerate(arguments) if x.center]
        self._raw_actions = [self._results[i] for i in layout.raw_actions]
        self._env_actions = [self._results[i] for i in layout.env_actions]
        self._states = [self._results[i] for i in layout.states]
        self._finite = self._results[layout.finite]
        self._env_actions_differ = self._env_actions != self._raw_actions
        # A call takes microseconds, so that attribute lookups would matter.
        self._set, self._get = self._interpreter.set_tensor, self._interpreter.get_tensor
        self._invoke = self._interpreter.invoke
        self._weights = {
            int(name.removeprefix("weight_")): index
            for name, index in tensor_indices.items()
            if name.startswith("weight_")
        }

    def set_weights(self, weights):
        for number, index in self._weights.items():
            self._interpreter.set_tensor(index, weights[number])
        self._centers = [(i, weights[a] + weights[b]) for i, (a, b) in self._centered]

    def centered(self, inputs):
        """Returns the inputs of the model for the inputs of a call."""
        inputs = list(inputs)
        for position, center in self._centers:
            inputs[position] = np.subtract(inputs[position], center).astype("float32")
        return inputs

    def __call__(self, inputs):
        set_tensor, get = self._set, self._get
        if self._centered:
            inputs = self.centered(inputs)
        for position, index in self._inputs:
            set_tensor(index, inputs[position])
        self._invoke()
        raw_actions = list(map(get, self._raw_actions))
        env_actions = (
            list(map(get, self._env_actions)) if self._env_actions_differ else raw_actions
        )
        return raw_actions, env_actions, list(map(get, self._states)), get(self._finite)

    def results(self):
        """Returns all results of the last call, in the order of `Layout.names`."""
        return [self._interpreter.get_tensor(index) for index in self._results]


class _ChunkedRunner:
    """Runs a LiteRT model on `count` rows, in chunks of `size` rows.

    If `count` is less than `size`, rows are repeated, and the results of the repeated
    rows are dropped.

    Args:
        runner: `LiteRTRunner` for `size` rows.
        size: Int, the number of rows of a chunk: a divisor of `count`, or a number above
            `count`.
        count: Int, the number of rows of a batch.
    """

    def __init__(self, runner, size, count):
        self._runner = runner
        self._count = count
        self._chunks = [
            np.arange(first, first + size) % count for first in range(0, count, size)
        ]
        self.set_weights = runner.set_weights

    def __call__(self, inputs):
        chunks = [
            self._runner([array[chunk] for array in inputs]) for chunk in self._chunks
        ]
        if len(chunks) == 1:
            raw_actions, env_actions, states, finite = chunks[0]
            raw_rows = self._first_rows(raw_actions)
            env_rows = (
                raw_rows if env_actions is raw_actions else self._first_rows(env_actions)
            )
            return raw_rows, env_rows, self._first_rows(states), finite
        *lists, finite = zip(*chunks, strict=True)
        raw_actions, env_actions, states = (self._concatenate(parts) for parts in lists)
        return raw_actions, env_actions, states, all(finite)

    def _first_rows(self, arrays):
        return [array[: self._count] for array in arrays]

    def _concatenate(self, parts):
        return [np.concatenate(arrays) for arrays in zip(*parts, strict=True)]
