"""Tests the order of prompts, the means of logs, and the calls of reward functions."""

import asyncio
import itertools
import math
import threading

import pytest
import tensorflow as tf

from tf_reinforce.sequences import text_rewards
from tf_reinforce.sequences import training

NUMBERS = [f"{n}" for n in range(10)]


def orders(first, epochs, steps=None, source=None, **options):
    """Returns the prompts of each epoch, in their order, as Keras' loop reads them."""
    options |= {"first_epoch": lambda: first}
    batches = training.Batches(source or NUMBERS, 4, steps, **options)
    iterator, result = iter(batches.dataset), []
    for _ in range(epochs):
        read = batches.dataset if steps is None else itertools.islice(iterator, steps)
        columns = [batches.columns(x)["prompts"] for x in read]
        result.append([x for batch in columns for x in batch])
    return result


def test_order_is_a_function_of_seed_and_epoch():
    first, second = orders(0, 2, seed=1)
    assert sorted(first) == sorted(second) == NUMBERS
    assert first != second
    assert orders(1, 1, seed=2) != [second] != orders(0, 1, seed=1)
    assert orders(0, 2) == [NUMBERS, NUMBERS]


@pytest.mark.parametrize("source", ["table", "dataset"])
def test_epochs_of_some_steps_continue_each_other(source):
    """Two batches of four and one of two are a pass; an epoch has two batches."""
    data = tf.data.Dataset.from_tensor_slices(NUMBERS).shuffle(10, seed=1).batch(4)
    options = {"seed": 1} if source == "table" else {"source": data}
    parts = orders(0, 4, steps=2, **options)
    together = [x for epoch in parts for x in epoch]
    assert sorted(together[:10]) == sorted(together[10:20]) == NUMBERS
    assert together[:10] != together[10:20]
    if source == "table":
        assert together[:20] == [x for epoch in orders(0, 2, seed=1) for x in epoch]
        assert orders(2, 2, steps=2, seed=1) == parts[2:]


def test_values_that_are_not_finite_do_not_count_in_means():
    """The gradient norm of a step that overflows is not finite, but its reward is."""
    logs = {"0": dict(reward=1.0, norm=math.nan), "3": dict(reward=5.0, norm=2.0)}
    batches = training.Batches(NUMBERS[:4], 3, None)  # of three prompts and of one
    means = training.Means(batches, lambda columns: logs[columns["prompts"][0]])
    iterator = iter(batches.dataset)
    means(iterator), means(iterator)
    assert means.logs() == {"reward": 2.0, "norm": 2.0}


def test_repeated_names_of_functions_differ():
    assert text_rewards.TextRewards([len, len, abs]).names == ["len", "len_1", "abs"]


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
        text_rewards.call_all([waits, fails], {"completions": ["x"]})
    assert cancelled.wait(60)
