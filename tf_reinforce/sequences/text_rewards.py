"""Reward functions of completions, and checks of what they return."""

import asyncio
import contextlib
import functools
import inspect
import itertools
import reprlib
import threading
from collections.abc import Sequence

import numpy as np

from tf_reinforce.sampling import reward_functions
from tf_reinforce.support import validation


class TextRewards:
    """The weighted sum of the rewards from one or more functions.

    They have the signature that TRL uses: `function(prompts, completions, completion_ids,
    **columns)` returns a list of R floats, one for each completion. Arguments are lists
    of R entries, passed by name, and only those that the function names, or all if it has
    `**kwargs`. Coroutines (`async def`) run side by side.

    Args:
        functions: A reward function, or a sequence of reward functions.
        weights: Sequence of floats, one weight for each function, or `None` for ones.
    """

    def __init__(self, functions, weights=None):
        listed = list(functions) if isinstance(functions, Sequence) else [functions]
        if not listed or not all(map(callable, listed)):
            raise TypeError(
                "`rewards` must be a function of completions, or a list of such "
                f"functions. Received: rewards={functions!r}"
            )
        self.functions = listed
        weights = [1.0] * len(listed) if weights is None else weights
        self.weights = validation.finite_numbers("reward_weights", weights)
        if len(self.weights) != len(listed):
            raise ValueError(
                f"`reward_weights` must be {len(listed)} numbers, one for each reward "
                f"function. Received: reward_weights={weights!r}"
            )
        self.names = _unique(map(reward_functions.name_of, listed))

    def __call__(self, columns):
        """Returns the weighted sums of rewards `[R]`, and the rewards by function.

        Args:
            columns: Dict of lists of R entries, among them `prompts`, `completions` and
                `completion_ids`.

        Returns:
            `[R]` float64 array, and a dict from each function's name to its rewards,
            `[R]` float64.

        Raises:
            ValueError, TypeError: If a function returns something else than one finite
                number for each completion.
        """
        results = call_all(self.functions, columns)
        rewards = {
            name: _validated(name, result, columns["prompts"])
            for name, result in zip(self.names, results, strict=True)
        }
        terms = zip(self.weights, rewards.values(), strict=True)
        return sum(weight * values for weight, values in terms), rewards


def call_all(functions, columns):
    """Calls functions with columns as arguments by name; returns their results.

    Coroutines run side by side.

    Args:
        functions: List of functions.
        columns: Dict of lists.
    """
    results = []
    try:
        for function in functions:
            arguments = _arguments(function, columns)
            with _naming(function):
                results.append(function(**arguments))
    except BaseException:
        for result in filter(inspect.iscoroutine, results):
            result.close()
        raise
    waiting = [i for i, x in enumerate(results) if inspect.isawaitable(x)]
    if waiting:
        gathered = _gather([(functions[i], results[i]) for i in waiting])
        for i, result in zip(waiting, _run(gathered), strict=True):
            results[i] = result
    return results


async def _gather(pairs):
    """Returns the results of functions' awaitables, which run side by side."""

    async def wait(function, awaitable):
        with _naming(function):
            return await awaitable

    tasks = [asyncio.ensure_future(wait(*pair)) for pair in pairs]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


def _run(coroutine):
    """Returns the result of a coroutine; cancels it if the waiting is interrupted."""
    future = asyncio.run_coroutine_threadsafe(coroutine, _event_loop())
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


@functools.cache
def _event_loop():
    """Returns the event loop of all reward functions, which runs in its own thread.

    Semaphores and connections belong to one event loop, and a notebook already runs
    another in the main thread.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop


@contextlib.contextmanager
def _naming(function):
    """Adds a reward function's name to exceptions raised in the `with` block."""
    try:
        yield
    except Exception as error:
        name = reward_functions.name_of(function)
        error.add_note(f"The function {name!r} has raised this error.")
        raise


def _arguments(function, columns):
    """Returns copies of the columns that a function has as arguments."""
    expect_arguments(function, columns)
    parameters = inspect.signature(function).parameters.values()
    if not any(x.kind is inspect.Parameter.VAR_KEYWORD for x in parameters):
        columns = {x.name: columns[x.name] for x in parameters if x.name in columns}
    return {name: _copied(values) for name, values in columns.items()}


def _copied(values):
    """Returns a column whose lists a function may change."""
    return [list(x) if isinstance(x, list) else x for x in values]


def expect_arguments(function, columns):
    """Raises `TypeError` if a function has arguments that are no columns."""
    variable = inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL
    missing = [
        x.name
        for x in inspect.signature(function).parameters.values()
        if x.default is x.empty and x.name not in columns and x.kind not in variable
    ]
    if missing:
        raise TypeError(
            f"The function {reward_functions.name_of(function)!r} has arguments that are "
            f"no columns of the prompts: {missing}. Expected: some of {sorted(columns)}"
        )


def _validated(name, result, prompts):
    """Returns the rewards of a function as a float64 array `[R]`."""
    expected = (
        f"The reward function {name!r} must return one finite number for each of the "
        f"{len(prompts)} completions"
    )
    if np.shape(result) != (len(prompts),):
        raise ValueError(f"{expected}. Received: {reprlib.repr(result)}")
    rewards = np.array([_number(entry) for entry in result], "float64")
    if not np.isfinite(rewards).all():
        row = int(np.argmin(np.isfinite(rewards)))
        raise ValueError(
            f"{expected}. Received: {result[row]!r} for completion {row} (from 0), "
            f"whose prompt is {prompts[row]!r}"
        )
    return rewards


def _number(entry):
    try:
        return np.nan if isinstance(entry, (str, bytes)) else float(entry)
    except (TypeError, ValueError):
        return np.nan


def _unique(names):
    """Numbers repeated names: `right`, `right_1`."""
    unique = []
    for name in names:
        numbered = (f"{name}_{number}" for number in itertools.count(1))
        candidates = itertools.chain([name], numbered)
        unique.append(next(x for x in candidates if x not in unique))
    return unique
