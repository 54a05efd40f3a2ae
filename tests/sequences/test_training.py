"""Tests the order of prompts, the means of logs, and the calls of reward functions."""

import asyncio
import inspect
import itertools
import math
import threading

import pytest
import tensorflow as tf

from tf_reinforce.engine import recorder
from tf_reinforce.sequences import prompts
from tf_reinforce.sequences import text_rewards
from tf_reinforce.sequences import training

NUMBERS = [f"{n}" for n in range(10)]


def orders(first, epochs, **options):
    """Returns the prompts of each epoch, in their order."""
    table = prompts.read(NUMBERS)
    batches = training.Batches(table, 4, **options)
    numbers = zip(range(epochs), batches.of_epochs(first))
    return [[x for batch in epoch for x in batch["prompts"]] for _, epoch in numbers]


def test_order_is_a_function_of_seed_and_epoch():
    first, second = orders(0, 2, seed=1)
    assert sorted(first) == sorted(second) == NUMBERS
    assert first != second
    assert orders(1, 1, seed=1) == [second]
    assert orders(0, 1, seed=2) != [first]


def test_order_without_seed_is_that_of_the_prompts():
    assert orders(0, 2) == [NUMBERS, NUMBERS]


def test_epochs_of_some_steps_continue_each_other():
    """Two batches of four and one of two are a pass; an epoch has two batches."""
    whole = [x for epoch in orders(0, 3, seed=1) for x in epoch]
    parts = orders(0, 4, seed=1, steps_per_epoch=2)
    assert [x for epoch in parts for x in epoch] == whole[: sum(map(len, parts))]
    assert orders(2, 2, seed=1, steps_per_epoch=2) == parts[2:]


def test_dataset_continues_behind_the_batches_of_earlier_epochs():
    data = tf.data.Dataset.from_tensor_slices(NUMBERS).batch(4)
    batches = training.Batches(data, 4, steps_per_epoch=2)
    epoch = next(batches.of_epochs(1))
    assert [x for batch in epoch for x in batch["prompts"]] == [*"89", *"0123"]
    assert batches.count == 2 and training.Batches(data, 4).count == 3


@pytest.mark.parametrize("steps_per_epoch", [None, 2])
@pytest.mark.parametrize("source", ["table", "dataset"])
def test_continued_training_reads_what_an_uninterrupted_one_reads(
    source, steps_per_epoch
):
    """From each step of each epoch on; each pass has another order."""

    def read(epoch, step):
        if source == "table":
            data = prompts.read(NUMBERS)
        else:
            data = tf.data.Dataset.from_tensor_slices(NUMBERS)
            data = data.shuffle(10, seed=1).batch(4)
        batches = training.Batches(data, 4, seed=1, steps_per_epoch=steps_per_epoch)
        left = batches.after(0, recorder.Progress(epoch, step=step))
        return [
            (number, at, list(batch["prompts"]))
            for number, steps in itertools.islice(left, 3 - epoch)
            for at, batch in steps
        ]

    whole = read(0, 0)
    assert len({tuple(x[2]) for x in whole}) == len(whole)
    for epoch, step, _ in whole:
        assert read(epoch, step) == [x for x in whole if x[:2] >= (epoch, step)]


def test_values_that_are_not_finite_do_not_count_in_means():
    """The gradient norm of a step that overflows is not finite, but its reward is."""
    means = training.Means()
    means.add({"reward": 1.0, "gradient_norm": math.nan}, 3)
    means.add({"reward": 5.0, "gradient_norm": 2.0}, 1)
    assert means.logs() == {"reward": 2.0, "gradient_norm": 2.0}


def test_metrics_of_completions_are_those_of_the_groups_of_prompts():
    """The three completions of the first of two prompts have equal rewards."""
    ids = [[1], [1, 2], [3], [4], [5], [6, 7, 8]]
    columns = {"completion_ids": ids, "truncated": [True, False, False] * 2}
    metrics = {"reward": 1.5, "completion_length": 1.5, "truncated": 1 / 3}
    rewards = [1.0, 1.0, 1.0, 1.0, 2.0, 3.0]
    assert training.text_metrics(columns, rewards, None) == metrics
    metrics["equal_reward_groups"] = 0.5
    assert training.text_metrics(columns, rewards, 3) == metrics


def test_repeated_names_of_functions_differ():
    names = text_rewards.TextRewards([named("a"), named("a"), named("a_1")]).names
    assert names == ["a", "a_1", "a_1_1"]


def named(name):
    def function(completions):
        return [0.0] * len(completions)

    function.__name__ = name
    return function


def test_error_of_one_function_ends_the_coroutines_of_others():
    started = []

    async def waits(completions):
        return completions

    def first(completions):
        started.append(waits(completions))
        return started[0]

    with pytest.raises(KeyError):
        text_rewards.call_all(["a", "b"], [first, raises], {"completions": ["x"]})
    assert inspect.getcoroutinestate(started[0]) == inspect.CORO_CLOSED


def raises(completions):
    raise KeyError("no answer")


def test_error_of_one_coroutine_cancels_the_others():
    cancelled = threading.Event()

    async def waits(completions):
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    async def fails(completions):
        raise KeyError("no answer")

    with pytest.raises(KeyError):
        text_rewards.call_all(["a", "b"], [waits, fails], {"completions": ["x"]})
    assert cancelled.wait(60)
