"""Tests the steps of minibatches, of compiled updates and for models of episodes."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.data import minibatches


@pytest.mark.parametrize("steps, size", [(20, 6), (7, 2), (3, 9), (130, 65), (259, 64)])
def test_compiled_minibatches_are_the_others_with_padding(steps, size):
    """Together they are the permutation; N stands for padding."""
    permutation = np.random.default_rng(steps).permutation(steps).astype("int32")
    parts = minibatches.Minibatches.split(tf.constant(permutation), size)
    offsets = parts.offsets()
    plain = [parts.minibatch(i).numpy() for i in range(int(parts.count))]
    np.testing.assert_array_equal(np.concatenate(plain), permutation)
    for i, rows in enumerate(plain):
        padded = parts.minibatch(i, offsets).numpy()
        padding = np.full(len(offsets) - len(rows), steps)
        np.testing.assert_array_equal(padded, np.concatenate([rows, padding]))


@pytest.mark.parametrize("lengths", [[2, 3], [1, 3, 0, 1], [4], [1, 1, 1, 1]])
def test_order_in_episodes_keeps_them_together_and_every_step_equally_likely(lengths):
    """All permutations, so the count of each step in each place is exact."""
    steps = records.valid_steps(lengths, max(lengths))
    rows, columns = steps.indices.numpy().T
    counts, cycles = np.zeros([len(rows), len(rows)], int), set()
    for permutation in itertools.permutations(range(len(rows))):
        order = minibatches.in_episodes(tf.constant(permutation), steps).numpy()
        counts[order, range(len(rows))] += 1
        begin = min(np.flatnonzero(rows[order] == 0))
        whole = np.roll(order, -begin)  # from the first beginning of an episode on
        starts = np.flatnonzero(rows[whole] == 0)
        episodes = np.split(whole, starts[1:])
        for episode in episodes:
            assert list(rows[episode]) == list(range(lengths[columns[episode[0]]]))
            assert len(set(columns[episode])) == 1
        circle = [columns[x[0]] for x in episodes]
        cycles.add(tuple(np.roll(circle, -np.argmin(circle))))
    assert len(set(counts.flat)) == 1
    present = np.count_nonzero(lengths)
    assert len(cycles) == np.prod(range(1, present))  # every order around the circle


def test_order_in_episodes_of_no_steps_is_empty():
    steps = records.valid_steps([0, 0], 0)
    assert minibatches.in_episodes(tf.zeros([0], tf.int32), steps).shape == (0,)
