"""Selects actions with a LiteRT model, without importing TensorFlow or Keras."""

from typing import NamedTuple

import numpy as np
from ai_edge_litert import interpreter as litert

from tf_reinforce.support import startup


class Argument(NamedTuple):
    """An argument of a LiteRT model: its name and the shape of one row."""

    name: str
    shape: tuple
    # The numbers of two weights. Their sum is subtracted in float64, which LiteRT does
    # not support, before the argument is rounded to float32.
    center: tuple = ()


class Layout(NamedTuple):
    """The order of arguments and results of a function that selects actions."""

    arguments: list  # `Argument`s: observations, action mask, states and noise
    names: list  # of the results: "raw_action", "finite", "outputs", "action", "state"
    env_actions: list  # indices of the actions for the environment among the results

    def indices(self, name):
        """Returns the indices of the results called `name`."""
        return [i for i, other in enumerate(self.names) if other == name]


def make_runner(model, layout, count):
    """Returns a runner for batches of `count` rows.

    The results for a row must not depend on the other rows, nor on how many there are. In
    LiteRT itself they would, because the order in which a matrix product or a convolution
    adds up its terms depends on the batch size. A single row therefore runs as two rows,
    and images run one by one.

    Args:
        model: Bytes, the LiteRT model.
        layout: `Layout` of its arguments and results.
        count: Int, the rows of a batch.

    Returns:
        A function with four results, see `acting_program.ActingProgram.for_batch`, and a
        method `set_weights`.
    """
    inputs = [x for x in layout.arguments if not x.name.startswith("noise")]
    has_images = any(len(argument.shape) > 1 for argument in inputs)
    size = 1 if has_images else max(count, 2)
    runner = LiteRTRunner(model, layout, size)
    return runner if size == count else _ChunkedRunner(runner, size, count)


class LiteRTRunner:
    """Runs a LiteRT model on batches of fixed size.

    Args:
        model: Bytes, the LiteRT model.
        layout: `Layout` of its arguments and results.
        count: Int, the rows of a batch.
    """

    def __init__(self, model, layout, count):
        self._interpreter = litert.Interpreter(model_content=model, num_threads=1)
        details = self._interpreter.get_input_details()
        tensor_indices = {d["name"]: d["index"] for d in details}
        # The converter removes unused inputs, for example a mask that the head ignores.
        self._inputs = [
            (position, tensor_indices[argument.name])
            for position, argument in enumerate(layout.arguments)
            if argument.name in tensor_indices
        ]
        for position, index in self._inputs:
            shape = (count, *layout.arguments[position].shape)
            self._interpreter.resize_tensor_input(index, shape)
        with startup.without_messages():
            self._interpreter.allocate_tensors()
        self._results = [d["index"] for d in self._interpreter.get_output_details()]
        self._centers = []  # from `set_weights`
        self._centered = [
            (i, x.center) for i, x in enumerate(layout.arguments) if x.center
        ]
        self._raw_actions, (self._finite,), self._states = (
            [self._results[i] for i in layout.indices(name)]
            for name in ("raw_action", "finite", "state")
        )
        self._env_actions = [self._results[i] for i in layout.env_actions]
        self._env_actions_differ = self._env_actions != self._raw_actions
        # A call takes microseconds, so attribute lookups would matter.
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
        """Returns a call's inputs as the model receives them."""
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

    def results(self, inputs):
        """Returns all results for a batch, in the order of `Layout.names`."""
        self(inputs)
        return [self._interpreter.get_tensor(index) for index in self._results]


class _ChunkedRunner:
    """Runs a LiteRT model on `count` rows, in chunks of `size` rows.

    If `count` is less than `size`, rows are repeated, and the results of the repeated
    rows are dropped.

    Args:
        runner: `LiteRTRunner` for `size` rows.
        size: Int, the rows of a chunk, either a divisor of `count` or above `count`.
        count: Int, the rows of a batch.
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
            raw_rows, states = self._first_rows(raw_actions), self._first_rows(states)
            is_raw = env_actions is raw_actions
            env_rows = raw_rows if is_raw else self._first_rows(env_actions)
            return raw_rows, env_rows, states, finite
        *lists, finite = zip(*chunks, strict=True)
        lists = [[np.concatenate(x) for x in zip(*parts)] for parts in lists]
        return *lists, all(finite)

    def _first_rows(self, arrays):
        return [array[: self._count] for array in arrays]
