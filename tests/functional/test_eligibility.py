"""Tests closed forms of eligibilities against automatic differentiation and
enumeration.
"""

import itertools
import math

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.functional import eligibility

tfd = tfp.distributions
P = np.array([0.69, 0.1, 0.2, 0.01])
Z = np.array([0.3, -1.2, 2.0, 0.1])
COUNTS = [n for n in itertools.product(range(4), repeat=3) if sum(n) == 3]


def multinomial_log_prob(log_p, counts):
    """Returns ln of the multinomial probability, by the definition."""
    factorials = tf.math.lgamma(tf.cast(counts, "float64") + 1.0)
    total = tf.reduce_sum(tf.cast(counts, "float64"))
    each = tf.math.multiply_no_nan(log_p, tf.cast(counts, "float64"))
    return tf.math.lgamma(total + 1.0) + tf.reduce_sum(each - factorials)


def normal(mean, std, y):
    return -(((y - mean) / std) ** 2) / 2 - tf.math.log(std) - np.log(2 * np.pi) / 2


def squashed(mean, std, a):
    return normal(mean, std, tf.atanh(a)) - tf.math.log1p(-(a**2))


def clipped(mean, std, low, high, y):
    law = tfd.Normal(mean, std)
    ends = tf.where(y <= low, law.log_cdf(low), law.log_survival_function(high))
    return tf.where((y > low) & (y < high), normal(mean, std, y), ends)


def beta_density(a, b, y):
    norm = tf.math.lgamma(a + b) - tf.math.lgamma(a) - tf.math.lgamma(b)
    return norm + (a - 1) * tf.math.log(y) + (b - 1) * tf.math.log1p(-y)


def coin(p, y):
    return tf.math.log(p if y else 1 - p)


# Closed form, its name, ln π from the definition, parameters, actions.
DISCRETE = {
    "bernoulli_probs": (eligibility.bernoulli_probs, coin, 0.3, [0, 1]),
    "bernoulli_logits": (
        eligibility.bernoulli_logits,
        lambda z, y: coin(tf.sigmoid(z), y),
        -0.8,
        [0, 1],
    ),
    "categorical_logits": (
        eligibility.categorical_logits,
        lambda z, a: z[a] - tf.reduce_logsumexp(z),
        Z,
        range(4),
    ),
    "categorical_probs": (
        eligibility.categorical_probs,
        lambda p, a: tf.math.log(p[a] / tf.reduce_sum(p)),
        3 * P,
        range(4),
    ),
    "categorical_simplex": (
        eligibility.categorical_simplex,
        lambda p, a: tf.math.log(p[a]),
        P,
        range(4),
    ),
    "multinomial_logits": (
        lambda z, n: eligibility.multinomial_logits(z, n, 3),
        lambda z, n: multinomial_log_prob(tf.nn.log_softmax(z), n),
        Z[:3],
        COUNTS,
    ),
    "multinomial_probs": (
        lambda p, n: eligibility.multinomial_probs(p, n, 3),
        lambda p, n: multinomial_log_prob(tf.math.log(p / tf.reduce_sum(p)), n),
        100 * P[:3],
        COUNTS,
    ),
    "multinomial_simplex": (
        lambda p, n: eligibility.multinomial_simplex(p, n, 3),
        lambda p, n: multinomial_log_prob(tf.math.log(p), n),
        np.array([0.5, 0.3, 0.2]),
        COUNTS,
    ),
}
MEAN, STD = np.array([0.4, -1.0]), np.array([0.7, 2.5])
ENDS = np.array([-0.5, 1.5])
CONTINUOUS = {
    "gaussian": (eligibility.gaussian, normal, (MEAN, STD), np.array([1.3, -4.0])),
    "tanh_gaussian": (
        eligibility.tanh_gaussian,
        squashed,
        (MEAN, STD),
        np.array([-0.6, 0.99]),
    ),
    "clipped_gaussian": (
        lambda m, s, y: eligibility.clipped_gaussian(m, s, *(ENDS + 0 * y[:, None]).T, y),
        lambda m, s, y: clipped(m, s, *ENDS, y),
        (np.array([0.4, -1.0, 0.1]), np.array([0.7, 2.5, 1.0])),
        np.array([-0.5, 0.3, 1.5]),
    ),
    "beta": (
        eligibility.beta,
        beta_density,
        (np.array([2.5, 0.7]), np.array([1.7, 4.0])),
        np.array([0.2, 0.9]),
    ),
}


@pytest.mark.parametrize("name", DISCRETE)
def test_discrete_eligibility_equals_autodiff_and_finite_differences(name):
    closed, log_prob, parameters, actions = DISCRETE[name]
    for action in actions:
        actual = closed(parameters, action)
        x = tf.constant(parameters, tf.float64)
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = log_prob(x, action)
        np.testing.assert_allclose(actual, tape.gradient(y, x), rtol=1e-12, atol=1e-12)
        for k in np.ndindex(np.shape(parameters)):
            step = np.zeros(np.shape(parameters))
            step[k] = 1e-6 * max(1.0, np.abs(parameters).max())
            up, down = log_prob(x + step, action), log_prob(x - step, action)
            numeric = (up - down).numpy() / (2 * step[k])
            np.testing.assert_allclose(actual.numpy()[k], numeric, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("name", DISCRETE)
def test_expected_eligibility_is_zero_or_number_of_trials_on_the_simplex(name):
    """Without normalization inside the function, the expectation is N in every
    component.
    """
    closed, log_prob, parameters, actions = DISCRETE[name]
    x = tf.constant(parameters, tf.float64)
    probabilities = np.array([np.exp(log_prob(x, action)) for action in actions])
    assert probabilities.sum() == pytest.approx(1, abs=1e-14)
    expected = sum(p * closed(parameters, a) for p, a in zip(probabilities, actions))
    truth = {"categorical_simplex": 1.0, "multinomial_simplex": 3.0}.get(name, 0.0)
    np.testing.assert_allclose(expected, truth + 0 * expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", CONTINUOUS)
def test_continuous_eligibility_equals_automatic_differentiation(name):
    closed, log_prob, parameters, samples = CONTINUOUS[name]
    actual = closed(*parameters, samples)
    xs = [tf.constant(x) for x in parameters]
    with tf.GradientTape() as tape:
        tape.watch(xs)
        y = tf.reduce_sum(log_prob(*xs, tf.constant(samples)))
    for closed_form, automatic in zip(actual, tape.gradient(y, xs)):
        np.testing.assert_allclose(closed_form, automatic, rtol=1e-12, atol=1e-12)
    if name != "beta":
        np.testing.assert_allclose(actual.log_std, actual.std * parameters[1], rtol=1e-14)


def points_and_weights(log_prob, mean, std):
    """Returns Gauss-Legendre points between the bounds, the bounds, and all weights."""
    nodes, weights = np.polynomial.legendre.leggauss(60)
    half = (ENDS[1] - ENDS[0]) / 2
    y = np.append(ENDS.mean() + half * nodes, ENDS)
    weights = np.append(half * weights, [1.0, 1.0])
    return y, weights * np.exp(log_prob(mean, std, tf.constant(y)))


@pytest.mark.parametrize("name", CONTINUOUS)
def test_expected_eligibility_of_continuous_distributions_is_zero(name):
    """The quadrature is Gauss-Hermite for normals.

    For Beta, y = 1 / (1 + e⁻ˣ) is substituted.
    """
    closed, log_prob, parameters, _ = CONTINUOUS[name]
    first, second = (x[0] for x in parameters)
    if name == "beta":
        x = np.linspace(-60, 60, 60_001)
        y = 1 / (1 + np.exp(-x))
        inside = (y > 0) & (y < 1)
        x, y = x[inside], y[inside]
        weights = np.exp(log_prob(first, second, y)) * y * (1 - y) * (x[1] - x[0])
    else:
        nodes, weights = np.polynomial.hermite_e.hermegauss(60)
        y, weights = first + second * nodes, weights / np.sqrt(2 * np.pi)
        if name == "clipped_gaussian":
            y, weights = points_and_weights(log_prob, first, second)
        if name == "tanh_gaussian":
            keep = np.abs(np.tanh(y)) < 1  # beyond, a weight below 1e-20
            y, weights = np.tanh(y[keep]), weights[keep]
    assert weights.sum() == pytest.approx(1, abs=1e-9)
    full = np.ones_like(y)
    for part in closed(first * full, second * full, y):
        assert np.sum(weights * part) == pytest.approx(0, abs=1e-8)


@pytest.mark.parametrize("dtype, tolerance", [("float32", 3e-5), ("float64", 1e-13)])
@pytest.mark.parametrize("z", [-1e4, -300.0, -50.0, -12.0, -1.0, 0.0, 3.0, 9.0, 50.0])
def test_eligibility_of_action_at_a_bound_is_the_inverse_mills_ratio(z, dtype, tolerance):
    """h(z) = φ(z) / Φ(z), computed for negative z by the continued fraction -z + 1/(-z
    + 2/(…)).
    """
    inverse_mills_ratio = -z
    for k in range(2000, 0, -1):
        inverse_mills_ratio = -z + k / inverse_mills_ratio if z <= -1 else 0.0
    if z > -1:
        inverse_mills_ratio = (
            math.exp(-(z**2) / 2) / math.sqrt(math.pi / 2) / math.erfc(-z / 2**0.5)
        )
    mean, std, one = np.array([[0.0], [2.0], [1.0]], dtype)
    low_bound = eligibility.clipped_gaussian(
        mean, std, 2 * z * one, 1e9 * one, 2 * z * one
    )
    np.testing.assert_allclose(low_bound.mean, [-inverse_mills_ratio / 2], rtol=tolerance)
    np.testing.assert_allclose(
        low_bound.log_std, [-z * inverse_mills_ratio], rtol=tolerance
    )
    high_bound = eligibility.clipped_gaussian(
        mean, std, -1e9 * one, -2 * z * one, -2 * z * one
    )
    np.testing.assert_allclose(high_bound.mean, [inverse_mills_ratio / 2], rtol=tolerance)
    np.testing.assert_allclose(
        high_bound.log_std, [-z * inverse_mills_ratio], rtol=tolerance
    )


def test_eligibility_of_a_certain_outcome_is_finite():
    """The derivative of TensorFlow Probability is NaN at a probability of one."""
    assert eligibility.bernoulli_probs(1.0, 1).numpy() == 1.0
    np.testing.assert_array_equal(
        eligibility.categorical_probs([1.0, 0.0], 0), [0.0, -1.0]
    )
    np.testing.assert_array_equal(eligibility.categorical_simplex([1.0, 0], 0), [1, 0])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_eligibility_of_batches_has_parameter_dtype_and_equals_each_row(dtype):
    logits = np.random.default_rng(0).normal(size=(2, 5, 3)).astype(dtype)
    actions = np.arange(10).reshape(2, 5) % 3
    rows = eligibility.categorical_logits(logits, actions)
    assert rows.dtype == dtype and rows.shape == (2, 5, 3)
    traced = tf.function(eligibility.categorical_logits)
    np.testing.assert_array_equal(rows, traced(tf.constant(logits), actions))
    for i, j in np.ndindex(2, 5):
        one = eligibility.categorical_logits(logits[i, j], actions[i, j])
        np.testing.assert_allclose(one, rows[i, j], rtol=1e-6)


REFUSED = {
    "negative": (eligibility.categorical_probs, ([0.5, -0.1], 0), "not be negative"),
    "nan": (eligibility.categorical_probs, ([0.5, np.nan], 0), "`probs` must be finite"),
    "simplex": (eligibility.categorical_simplex, ([0.5, 0.4], 0), "sum to one"),
    "all_zero": (eligibility.multinomial_probs, ([0.0, 0.0], [0, 1], 1), "not all be"),
    "impossible": (eligibility.categorical_probs, ([1.0, 0.0], 1), "probability of zero"),
    "range": (eligibility.categorical_logits, (Z, 4), r"0 to K - 1. Received: \[?4"),
    "below": (eligibility.categorical_logits, (Z, -1), "0 to K - 1"),
    "fraction": (eligibility.categorical_logits, (Z, 0.9), "whole numbers"),
    "words": (eligibility.categorical_logits, (["a"], 0), "`logits` must be numbers"),
    "scalar": (eligibility.categorical_logits, (1.0, 0), "per category"),
    "rows": (eligibility.categorical_logits, (Z, [0, 1]), "must have the same shape"),
    "overflow": (eligibility.multinomial_probs, ([1e308] * 2, [1, 0], 1), "finite sum"),
    "trials": (eligibility.multinomial_logits, (Z[:2], [0, 0], 0), "positive int"),
    "sum": (eligibility.multinomial_logits, (Z[:2], [3, 1], 5), "sum to 5"),
    "counts": (eligibility.multinomial_logits, (Z[:2], [6, -1], 5), "negative"),
    "coin": (eligibility.bernoulli_probs, (1.2, 1), r"lie in \[0, 1\]"),
    "third_side": (eligibility.bernoulli_probs, (0.5, 2), "0 or 1"),
    "side": (eligibility.bernoulli_logits, (0.0, 2), "0 or 1"),
    "never": (eligibility.bernoulli_probs, (0.0, 1), "probability of zero"),
    "std": (eligibility.gaussian, (0.0, 0.0, 1.0), "`std` must be above zero"),
    "column": (eligibility.gaussian, (MEAN, STD, MEAN[:, None]), "have the same shape"),
    "outside": (eligibility.tanh_gaussian, (0.0, 1.0, 1.0), r"\(-1, 1\)"),
    "beyond": (eligibility.clipped_gaussian, (0.0, 1.0, -1.0, 1.0, 1.5), "between `low`"),
    "crossed": (eligibility.clipped_gaussian, (0.0, 1.0, 1.0, 1.0, 1.0), "`low` must be"),
    "border": (eligibility.beta, (2.0, 2.0, 0.0), r"\(0, 1\)"),
    "alpha": (eligibility.beta, (0.0, 2.0, 0.5), "`concentration1` must be above"),
    "beta": (eligibility.beta, (2.0, -1.0, 0.5), "`concentration0` must be above"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_invalid_parameters_or_actions_raise(case):
    function, arguments, message = REFUSED[case]
    with pytest.raises(ValueError, match=message):
        function(*arguments)


def test_simplex_probabilities_must_sum_to_one_within_dtype_rounding():
    rows = np.array([[0.5, 0.3, 0.2], [0.1, 0.1, 0.8]])
    np.testing.assert_allclose(
        eligibility.categorical_simplex(rows, [0, 2]), [[2, 0, 0], [0, 0, 1.25]]
    )
    near = np.array([0.5, 0.5 + 1e-6])
    assert eligibility.categorical_simplex(near.astype("float32"), 0)[1] == 0
    with pytest.raises(ValueError, match="sum to one"):
        eligibility.categorical_simplex(near, 0)
    with pytest.raises(ValueError, match="sum to one"):
        eligibility.categorical_simplex(np.float32([0.5, 0.5001]), 0)


def test_bernoulli_eligibility_of_very_likely_outcome_is_not_zero():
    actual = eligibility.bernoulli_logits(np.float32([20, -20]), [1, 0])
    np.testing.assert_allclose(actual, [2.0611537e-9, -2.0611537e-9], rtol=1e-6)
