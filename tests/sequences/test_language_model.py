"""Tests how random numbers select tokens."""

import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.sequences import language_model

KEY = seeding.rollout_keys(0, "training", 0)[2]


def test_each_token_is_selected_by_an_interval_as_long_as_its_probability():
    """Uniform numbers on a grid, so that the shares are exact up to the grid."""
    probs = np.array([0.125, 0.0, 0.5, 0.375, 0.0])
    uniform = np.arange(800) / 800
    rows = tf.constant(np.tile(probs, [800, 1]))
    tokens = language_model.inverse_cdf(rows, tf.constant(uniform)).numpy()
    np.testing.assert_array_equal(np.bincount(tokens, minlength=5) / 800, probs)
    assert (np.diff(tokens) >= 0).all()


def test_tokens_of_probability_zero_are_never_selected():
    """Also for the smallest and the largest number, and a sum that rounds above one."""
    probs = np.array([[0.0, 0.1, 0.7, 0.2, 0.0], [0.0, 1 / 3, 2 / 3 + 3e-16, 0.0, 0.0]])
    largest = 1 - 2.0**-53
    for uniform, expected in [(0.0, [1, 1]), (largest, [3, 2])]:
        tokens = language_model.inverse_cdf(
            tf.constant(probs), tf.constant([uniform, uniform], tf.float64)
        )
        assert tokens.numpy().tolist() == expected


def test_tokens_of_rows_and_indices_are_independent():
    """The counts of 9 pairs have a standard error of 28 for 9,000 rows."""
    rows = 9000
    outputs = tf.zeros([rows, 3])
    first, second = (
        language_model.sample_tokens(outputs, KEY, index).numpy() for index in (4, 5)
    )
    assert np.abs(np.bincount(3 * first + second, minlength=9) - 1000).max() < 6 * 30
    neighbors = 3 * first[:-1] + first[1:]
    assert np.abs(np.bincount(neighbors, minlength=9) - 1000).max() < 6 * 30
