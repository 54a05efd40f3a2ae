"""Tests the estimators of logged decisions against their definitions, as loops."""

import math

import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.functional import off_policy

RNG = np.random.default_rng(0)
PROBS, PROPENSITIES = RNG.uniform(0.05, 1, 6), RNG.uniform(0.05, 1, 6)
REWARDS, PREDICTIONS, EXPECTED = RNG.normal(size=(3, 6))
LOG_PROBS = tf.constant(np.log(PROBS))
WEIGHTS = PROBS / PROPENSITIES


@pytest.mark.parametrize("clip", [None, 0.9])
def test_weights_are_ratios_of_probabilities_up_to_the_limit(clip):
    weights = off_policy.importance_weights(LOG_PROBS, PROPENSITIES, clip)
    expected = [min(p / q, clip or math.inf) for p, q in zip(PROBS, PROPENSITIES)]
    np.testing.assert_allclose(weights, expected, rtol=1e-12)


@pytest.mark.parametrize("k", [1, 2, 5])
def test_top_k_multipliers_are_derivatives_of_the_probability_of_the_set(k):
    probs = tf.constant(PROBS)
    with tf.GradientTape() as tape:
        tape.watch(probs)
        in_set = 1 - (1 - probs) ** k
    expected = tape.gradient(in_set, probs)
    found = off_policy.top_k_multipliers(LOG_PROBS, k)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_estimates_equal_loops_over_the_log():
    total = sum(w * r for w, r in zip(WEIGHTS, REWARDS))
    zeros = np.zeros(6)
    ips = off_policy.doubly_robust(WEIGHTS, REWARDS, zeros, zeros)
    np.testing.assert_allclose(np.mean(ips), total / 6, rtol=1e-12)
    snips = off_policy.snips(tf.constant(WEIGHTS), tf.constant(REWARDS))
    np.testing.assert_allclose(np.mean(snips), total / sum(WEIGHTS), rtol=1e-12)
    robust = off_policy.doubly_robust(WEIGHTS, REWARDS, PREDICTIONS, EXPECTED)
    expected = [
        e + w * (r - q) for w, r, q, e in zip(WEIGHTS, REWARDS, PREDICTIONS, EXPECTED)
    ]
    np.testing.assert_allclose(robust, expected, rtol=1e-12)


def test_snips_terms_have_the_variance_of_the_delta_method():
    """The estimate is linear in small changes of the weights around their mean."""
    value = np.sum(WEIGHTS * REWARDS) / np.sum(WEIGHTS)
    terms = off_policy.snips(tf.constant(WEIGHTS), tf.constant(REWARDS)).numpy()
    step = 1e-6
    for index in range(6):
        counts = np.ones(6)
        counts[index] += step  # how often the decision is in the log
        changed = np.sum(counts * WEIGHTS * REWARDS) / np.sum(counts * WEIGHTS)
        influence = (changed - value) / step * 6
        np.testing.assert_allclose(terms[index] - value, influence, rtol=1e-4)


def test_self_normalized_estimate_of_a_constant_reward_is_the_constant():
    terms = off_policy.snips(tf.constant(WEIGHTS), tf.constant(np.full(6, 3.0)))
    np.testing.assert_allclose(terms, 3.0, rtol=1e-12)


def test_no_gradient_flows_through_weights_and_multipliers():
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(LOG_PROBS)
        weights = off_policy.importance_weights(LOG_PROBS, PROPENSITIES)
        factors = off_policy.top_k_multipliers(LOG_PROBS, 3)
    assert tape.gradient(weights, LOG_PROBS) is None
    assert tape.gradient(factors, LOG_PROBS) is None


def test_arrays_of_different_shapes_are_refused():
    with pytest.raises(ValueError, match="same shape"):
        off_policy.snips(np.ones(3), np.ones([3, 1]))
    with pytest.raises(ValueError, match="same shape"):
        off_policy.importance_weights(LOG_PROBS, np.ones(5))
