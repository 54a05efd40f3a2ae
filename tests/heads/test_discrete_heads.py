"""Tests `MultiCategorical` and `Bernoulli` against loops, enumeration and
environments.
"""

import itertools
import math

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce import heads

SIZES = (2, 4, 1, 3)
CHOICES = np.array(list(itertools.product(*map(range, SIZES))))
SWITCHES = np.array(list(itertools.product(range(2), repeat=3)))


def softmax(logits):
    odds = np.exp(logits - np.max(logits))
    return odds / odds.sum()


def split_by_choice(values):
    """Splits the last axis into one array for each choice."""
    return np.split(values, np.cumsum(SIZES)[:-1], axis=-1)


def logits_of(width, rows=4):
    return 2 * np.random.default_rng(0).normal(size=(rows, width))


# MultiCategorical


def test_multi_categorical_probability_is_product_over_choices():
    for row in logits_of(sum(SIZES)):
        shares = [softmax(part) for part in split_by_choice(row)]
        truth = [
            math.prod(share[a] for share, a in zip(shares, action, strict=True))
            for action in CHOICES
        ]
        outputs = tf.constant(np.tile(row, (len(CHOICES), 1)))
        actions = heads.MultiCategorical(SIZES).distribution(outputs)
        log_probs = actions.log_prob(CHOICES)
        np.testing.assert_allclose(log_probs, np.log(truth), rtol=1e-12)
        assert sum(truth) == pytest.approx(1.0, abs=1e-12)
        entropy = -sum(p * math.log(p) for p in truth)
        np.testing.assert_allclose(actions.entropy(), entropy, rtol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_multi_categorical_sample_is_argmax_of_logits_plus_gumbel_noise(dtype):
    rng = np.random.default_rng(0)
    logits, noise = rng.random((2, 50, sum(SIZES))).astype(dtype)
    perturbed = split_by_choice(logits - np.log(-np.log(noise)))
    expected = np.stack([part.argmax(axis=1) for part in perturbed], axis=1)
    head = heads.MultiCategorical(SIZES)
    actions = head.sample(tf.constant(logits), tf.constant(noise))
    assert actions.dtype == "int64"
    np.testing.assert_array_equal(actions, expected)
    expected = np.stack([part.argmax(axis=1) for part in split_by_choice(logits)], axis=1)
    np.testing.assert_array_equal(head.mode(tf.constant(logits)), expected)


def test_multi_categorical_choices_are_sampled_independently():
    """The tolerance is six standard errors.

    Shared noise would correlate the two choices.
    """
    count, rng = 20_000, np.random.default_rng(0)
    noise = tf.constant(rng.random((count, 6)))
    drawn = heads.MultiCategorical([3, 3]).sample(tf.zeros([count, 6], "float64"), noise)
    shares = np.bincount(drawn.numpy() @ [3, 1], minlength=9) / count
    assert np.abs(shares - 1 / 9).max() < 6 * math.sqrt(8 / 81 / count)


def test_large_offset_of_logits_does_not_change_multi_categorical_samples():
    """In float32, the noise is lost when it is added to 1e8.

    The offset is subtracted per choice.
    """
    head, noise = heads.MultiCategorical([2, 2]), np.random.default_rng(0)
    noise = noise.random((1000, 4), "float32")
    plain = head.sample(tf.zeros([1000, 4]), noise)
    offset = head.sample(tf.tile([[0.0, 0.0, 1e8, 1e8]], [1000, 1]), noise)
    np.testing.assert_array_equal(offset, plain)


@pytest.mark.parametrize("gap", [0.0, 30.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_multi_categorical_score_is_one_hot_minus_probabilities(gap, dtype):
    head = heads.MultiCategorical(SIZES)
    row = gap * np.cos(np.arange(sum(SIZES)))
    outputs = tf.constant(np.tile(row, (len(CHOICES), 1)), dtype)
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        log_probs = head.distribution(outputs).log_prob(CHOICES)
    assert log_probs.dtype == dtype and np.isfinite(log_probs).all()
    truth = [
        np.concatenate(
            [
                np.eye(size)[a] - softmax(part)
                for size, a, part in zip(SIZES, action, split_by_choice(row), strict=True)
            ]
        )
        for action in CHOICES
    ]
    tolerance = dict(rtol=0, atol=1e-5 if dtype == "float32" else 1e-14)
    np.testing.assert_allclose(tape.gradient(log_probs, outputs), truth, **tolerance)
    np.testing.assert_allclose(head.eligibility(outputs, CHOICES), truth, **tolerance)
    probs = np.exp(log_probs)[:, None]
    assert abs(np.sum(probs * truth, axis=0)).max() < 1e-5


# Bernoulli


def test_bernoulli_probability_is_product_over_switches():
    for row in logits_of(3):
        on = 1 / (1 + np.exp(-row))
        truth = np.prod(np.where(SWITCHES == 1, on, 1 - on), axis=1)
        outputs = tf.constant(np.tile(row, (len(SWITCHES), 1)))
        actions = heads.Bernoulli(3).distribution(outputs)
        np.testing.assert_allclose(actions.log_prob(SWITCHES), np.log(truth), rtol=1e-12)
        entropy = -np.sum(truth * np.log(truth))
        np.testing.assert_allclose(actions.entropy(), entropy, rtol=1e-12)


@pytest.mark.parametrize("gap", [0.0, 30.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bernoulli_log_probability_and_score_are_exact_for_large_logits(gap, dtype):
    """log σ(z) = -log(1 + e⁻ᶻ).

    Computed from probabilities, log σ(z) is -inf from z = -104 on.
    """
    head, row = heads.Bernoulli(3), np.array([gap, 0.0, -gap])
    outputs = tf.constant(np.tile(row, (len(SWITCHES), 1)), dtype)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(outputs)
        actions = head.distribution(outputs)
        log_probs, entropy = actions.log_prob(SWITCHES), actions.entropy()
    truth = -np.logaddexp(0, np.where(SWITCHES == 1, -row, row)).sum(axis=1)
    np.testing.assert_allclose(log_probs, truth, rtol=1e-6)
    on = np.exp(-np.logaddexp(0, -row))
    tolerance = dict(rtol=0, atol=1e-6)
    scores = tape.gradient(log_probs, outputs)
    np.testing.assert_allclose(scores, SWITCHES - on, **tolerance)
    np.testing.assert_allclose(
        head.eligibility(outputs, SWITCHES), SWITCHES - on, **tolerance
    )
    assert np.isfinite(entropy).all()
    assert np.isfinite(tape.gradient(entropy, outputs)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_bernoulli_sample_ignores_extreme_noise_for_large_logits(dtype):
    noise = tf.constant([[0.0, 0.0], [1 - 2**-24, 1 - 2**-24]], dtype)
    logits = tf.constant([[-1e4, 1e4]] * 2, dtype)
    drawn = heads.Bernoulli(2).sample(logits, noise)
    assert drawn.dtype == "int64" and drawn.numpy().tolist() == [[0, 1], [0, 1]]


@pytest.mark.parametrize("dtype, bits", [("float32", 24), ("float64", 53)])
def test_bernoulli_zero_noise_sets_only_switches_with_enough_probability(dtype, bits):
    """The noise is zero once in 2^bits draws.

    A switch with a smaller probability must stay off.
    """
    logits = tf.constant([[-80.0, -(bits + 2) * math.log(2), -bits * math.log(2)]], dtype)
    drawn = heads.Bernoulli(3).sample(logits, tf.zeros([1, 3], dtype))
    assert drawn.numpy().tolist() == [[0, 0, 1]]


# Both


TWO, THREE = gym.spaces.Discrete(2), gym.spaces.Discrete(3)
BITS, TREE = gym.spaces.MultiBinary(3), gym.spaces.Dict
MULTI, TUPLE = gym.spaces.MultiDiscrete, gym.spaces.Tuple


def box(low, high, dtype="float32"):
    return gym.spaces.Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


FITTING = {  # a head, its space, and spaces with one difference
    "categorical": (
        heads.Categorical(3, start=2),
        gym.spaces.Discrete(3, start=2),
        [gym.spaces.Discrete(3), gym.spaces.Discrete(2, start=2), BITS],
    ),
    "choices": (
        heads.MultiCategorical([2, 3]),
        MULTI([2, 3]),
        [
            MULTI([3, 2]),
            MULTI([2, 3], start=[0, 1]),
            MULTI([[2, 3]]),
            box([0, 0], [1, 1]),
        ],
    ),
    "switches": (
        heads.Bernoulli(3),
        BITS,
        [gym.spaces.MultiBinary(2), gym.spaces.MultiBinary([3, 1]), THREE],
    ),
    "counts": (
        heads.Multinomial(2, 5),
        box([0, 0], [5, 5], "int32"),
        [
            box([0] * 3, [5] * 3, "int32"),
            box([0, 0], [5, 4], "int32"),
            box([1, 0], [5, 5], "int32"),
            box([0, 0], [5, 5]),
            MULTI([6, 5]),
            THREE,
        ],
    ),
    "box": (
        heads.Gaussian(2, low=[0.0, -1.0], high=1.0),
        box([-1, -1], [1, 1]),
        [
            box([0, -0.5], [1, 1]),
            box([-1, -1], [1, 0.5]),
            box([[-1], [-1]], [[1], [1]]),
            box([-1, -1], [1, 1], "int32"),
        ],
    ),
    "pair": (
        heads.Composite((heads.Categorical(2), heads.Categorical(3))),
        TUPLE((TWO, THREE)),
        [
            TUPLE((TWO, TWO)),
            TUPLE((TWO,)),
            TUPLE((TWO, THREE, TWO)),
            MULTI([2, 3]),
            TREE({"a": TWO, "b": THREE}),
            TWO,
        ],
    ),
    "named": (
        heads.Composite({"a": heads.Categorical(2), "b": heads.Bernoulli(3)}),
        TREE({"a": TWO, "b": BITS}),
        [
            TREE({"a": TWO, "b": THREE}),
            TREE({"a": TWO}),
            TREE({"a": TWO, "b": BITS, "c": TWO}),
            TUPLE((TWO, BITS)),
        ],
    ),
}


@pytest.mark.parametrize("name", FITTING)
def test_matches_space_is_false_for_spaces_with_one_difference(name):
    head, space, others = FITTING[name]
    assert head.matches_space(space) and head.check_space(space) is None
    for other in others:
        assert not head.matches_space(other), other
        with pytest.raises(ValueError, match="does not sample actions of the space"):
            head.check_space(other)
