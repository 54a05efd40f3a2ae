"""Reward functions of completions, and checks of what they return."""

import asyncio
import functools
import inspect
import threading
from collections.abc import Sequence

import numpy as np

from tf_reinforce.sampling import reward_functions
from tf_reinforce.support import validation


class TextRewards:
    """The weighted sum of the rewards from one or more functions.

    Reward functions have the signature that TRL uses. `function(prompts, completions,
    completion_ids, **columns)` returns a list of R floats, one for each completion. The
    arguments are lists of R entries and are passed by name.

    A function receives only the arguments that it names, or all of them if it has
    `**kwargs`. Functions that are coroutines (`async def`) run side by side.

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
        names = [reward_functions.name_of(function) for function in listed]
        before = [names[:place].count(name) for place, name in enumerate(names)]
        self.names = [f"{x}_{n}" if n else x for x, n in zip(names, before, strict=True)]

    def __call__(self, columns):
        """Returns the weighted sums of rewards `[R]`, and the rewards by function.

        Args:
            columns: Dict of lists of R entries, among them `prompts`, `completions` and
                `completion_ids`.

        Returns:
            `[R]` float64 array, and a dict from each function's name to its rewards,
            `[R]` float64.

        Raises:
            ValueError: If a function returns something else than one finite number for
                each completion.
        """
        results = zip(self.functions, call_all(self.functions, columns), strict=True)
        rewards = [_validated(*result, columns["prompts"]) for result in results]
        terms = zip(self.weights, rewards, strict=True)
        total = sum(weight * values for weight, values in terms)
        return total, dict(zip(self.names, rewards, strict=True))


def call_all(functions, columns):
    """Calls functions with columns as arguments by name; returns their results.

    Coroutines run side by side.

    Args:
        functions: List of functions.
        columns: Dict of lists.
    """
    results = [function(**_arguments(function, columns)) for function in functions]
    if not any(map(inspect.isawaitable, results)):
        return results
    future = asyncio.run_coroutine_threadsafe(_gathered(results), _event_loop())
    try:
        return future.result()
    finally:
        future.cancel()  # after an interruption


async def _gathered(results):
    """Returns results, with those of awaitables, which run side by side."""

    async def wait(result):
        return await result if inspect.isawaitable(result) else result

    tasks = [asyncio.ensure_future(wait(result)) for result in results]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


@functools.cache
def _event_loop():
    """Returns the event loop of all reward functions, which runs in its own thread.

    Semaphores and connections belong to one event loop, and a notebook already runs
    another in the main thread.
    """
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="rewards", daemon=True).start()
    return loop


def _arguments(function, columns):
    """Returns copies of the columns that a function has as arguments."""
    parameters = inspect.signature(function).parameters.values()
    if not any(x.kind is inspect.Parameter.VAR_KEYWORD for x in parameters):
        columns = {x.name: columns[x.name] for x in parameters if x.name in columns}
    return {
        name: [list(x) if isinstance(x, list) else x for x in values]
        for name, values in columns.items()
    }


def _validated(function, result, prompts):
    """Returns the rewards of a function as a float64 array `[R]`."""
    rewards = reward_functions.checked(function, result, len(prompts))
    if not np.isfinite(rewards).all():
        row = int(np.argmin(np.isfinite(rewards)))
        raise ValueError(
            f"The rewards of {reward_functions.name_of(function)!r} must be finite. "
            f"Received: {rewards[row]} for completion {row} (from 0), whose prompt is "
            f"{prompts[row]!r}"
        )
    return rewards
