"""Tests `heads.Multinomial` against enumeration, and in environments that take counts."""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce import heads

K, N = 3, 4
LOGITS = np.array([[0.3, -1.2, 2.0], [0.0, 0.0, 0.0], [5.0, -5.0, 1.0], [80.0, 0.0, 0.0]])
COUNTS = np.array([n for n in itertools.product(range(N + 1), repeat=K) if sum(n) == N])


def head():
    return heads.Multinomial(K, trials=N)


def probabilities(logits):
    """Returns the probability of each row of `COUNTS`, by the definition."""
    p = np.exp(logits - logits.max())
    p /= p.sum()
    ways = [math.factorial(N) / math.prod(map(math.factorial, n)) for n in COUNTS]
    return np.array([w * np.prod(p**n) for w, n in zip(ways, COUNTS, strict=True)])


@pytest.mark.parametrize("row", range(len(LOGITS)))
def test_multinomial_probabilities_entropy_and_mode_equal_enumeration(row):
    truth = probabilities(LOGITS[row])
    outputs = tf.constant(np.repeat(LOGITS[row : row + 1], len(COUNTS), 0))
    actions = head().distribution(outputs)
    probs = tf.exp(actions.log_prob(COUNTS)).numpy()
    np.testing.assert_allclose(probs, truth, rtol=1e-11)
    assert probs.sum() == pytest.approx(1, abs=1e-12)
    entropy = -sum(p * math.log(p) for p in truth if p > 0)
    np.testing.assert_allclose(actions.entropy(), entropy, rtol=1e-9, atol=1e-12)
    mode = head().mode(outputs[:1]).numpy()[0]
    assert truth[(mode == COUNTS).all(1)][0] == pytest.approx(truth.max(), rel=1e-12)


def test_multinomial_entropy_gradient_equals_enumeration():
    x = tf.constant(LOGITS[:1])
    with tf.GradientTape() as tape:
        tape.watch(x)
        entropy = tf.reduce_sum(head().distribution(x).entropy())
    with tf.GradientTape() as definition:
        definition.watch(x)
        rows = tf.repeat(x, len(COUNTS), axis=0)
        log_probs = head().distribution(rows).log_prob(COUNTS)
        truth = -tf.reduce_sum(tf.exp(log_probs) * log_probs)
    np.testing.assert_allclose(
        tape.gradient(entropy, x), definition.gradient(truth, x), rtol=1e-12, atol=1e-12
    )


SURE = [[0.0, 20.0, 0.0], [0.0, 1e4, -1e4], [-200.0, 0.0, 0.0], [2e7, 2e7 - 2, 0.0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("trials", [1, 5, 200])
def test_multinomial_entropy_and_gradient_are_finite_for_extreme_logits(trials, dtype):
    """A naive derivative is NaN where a probability rounds to one."""
    many = heads.Multinomial(3, trials)
    x = tf.constant([*SURE, *LOGITS], dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        entropy = many.distribution(x).entropy()
    gradients = tape.gradient(entropy, x)
    assert np.isfinite(entropy).all() and np.isfinite(gradients).all()
    x = tf.cast(x, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        truth = many.distribution(x).entropy()
    np.testing.assert_allclose(entropy, truth, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradients, tape.gradient(truth, x), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("counts", [[1, 1, 1], [5, -1, 0], [4, 1, 0]])
def test_log_probability_is_minus_infinity_for_invalid_counts(counts):
    log_prob = head().distribution(tf.zeros([1, 3])).log_prob(tf.constant([counts]))
    assert log_prob.numpy().tolist() == [-math.inf]


def test_multinomial_sample_frequencies_equal_probabilities():
    rng, count = np.random.default_rng(0), 20_000
    noise = tf.constant(rng.random((count, N, K)))
    samples = head().sample(tf.constant(np.repeat(LOGITS[:1], count, 0)), noise).numpy()
    assert samples.dtype == "int64" and (samples.sum(1) == N).all()
    for counts, p in zip(COUNTS, probabilities(LOGITS[0]), strict=True):
        share = (samples == counts).all(1).mean()
        assert abs(share - p) <= 6 * math.sqrt(p * (1 - p) / count)


def test_gradient_of_log_probability_is_zero_for_negative_counts():
    """The sum of the counts is correct, but one count is negative."""
    logits = tf.constant([[0.5, -0.5]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        score = heads.Multinomial(2, trials=3).distribution(logits).log_prob([[4, -1]])
    assert score.numpy().tolist() == [-np.inf]
    assert tape.gradient(score, logits).numpy().tolist() == [[0.0, 0.0]]
