"""Tests the example `different_completions.py` by enumeration of all completions."""

import itertools

import keras
import numpy as np
import pytest
import scipy.stats
import tensorflow as tf
import toys

TOKENS, LENGTH = 3, 2
REWARDS = np.random.default_rng(1).normal(size=TOKENS**LENGTH)


@pytest.fixture(scope="module")
def world():
    """The example, a float64 model, all completions of a prompt, and probabilities."""
    example = toys.example("different_completions")
    example.VOCABULARY = TOKENS
    keras.utils.set_random_seed(0)
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    model = example.make_model(4)
    keras.config.set_dtype_policy(policy)
    for variable in model.trainable_variables:  # far from uniform
        variable.assign(3.0 * variable)
    texts = [[0, 1, *x] for x in itertools.product(range(TOKENS), repeat=LENGTH)]
    texts = np.array(texts, "int32")
    log_probs = example.log_probs_of(model, texts[None], LENGTH)
    return example, model, texts, np.exp(log_probs[0])


def gradient(model, function):
    with tf.GradientTape() as tape:
        result = function()
    each = tape.gradient(result, model.trainable_variables)
    each = [tf.convert_to_tensor(x) for x in each]
    return np.concatenate([np.ravel(x) for x in each])


def moments(world, k, independent):
    """Returns mean and variance of the gradient of one prompt, over all draws."""
    example, model, texts, p = world
    total = square = 0.0
    surrogate = example.independent_surrogate if independent else example.surrogate
    draws = itertools.product if independent else itertools.permutations
    kwargs = {"repeat": k} if independent else {"r": k}
    for draw in draws(range(len(p)), **kwargs):
        probability, left = 1.0, 1.0
        for i in draw:
            probability *= p[i] / left
            left -= 0.0 if independent else p[i]
        index = list(draw)

        def estimate(index=index):
            log_probs = example.log_probs_of(model, texts[None, index], LENGTH)
            return surrogate(log_probs, tf.constant(REWARDS[None, index]))

        found = gradient(model, estimate)
        total, square = total + probability * found, square + probability * found**2
    return total, np.sum(square - total**2)


@pytest.mark.parametrize("k", [2, pytest.param(3, marks=pytest.mark.slow)])
def test_expected_gradient_is_exact_and_varies_less_than_of_independent_draws(world, k):
    example, model, texts, _ = world
    exact = gradient(
        model,
        lambda: tf.reduce_sum(
            REWARDS * tf.exp(example.log_probs_of(model, texts[None], LENGTH))
        ),
    )
    mean, variance = moments(world, k, independent=False)
    np.testing.assert_allclose(mean, exact, atol=1e-12)
    mean, other = moments(world, k, independent=True)
    np.testing.assert_allclose(mean, exact, atol=1e-12)
    assert variance < other


def test_beam_search_draws_without_replacement(world):
    """The frequency of each pair, in its order, is that of draws one after the other."""
    example, model, _, p = world
    prompts, count = np.tile([[0, 1]], (20_000, 1)).astype("int32"), len(p)
    rng = np.random.default_rng(0)
    found = example.beam_search(model, prompts, 2, LENGTH, lambda s: uniform(rng, s))
    numbers = found[..., 2].numpy() * TOKENS + found[..., 3].numpy()
    pairs = np.bincount(numbers[:, 0] * count + numbers[:, 1], minlength=count**2)
    expected = len(prompts) * np.outer(p / (1 - p), p)
    assert not pairs.reshape(count, count).diagonal().any()
    is_other = ~np.eye(count, dtype=bool)
    observed, expected = pairs.reshape(count, count)[is_other], expected[is_other]
    assert expected.min() > 5
    assert scipy.stats.chisquare(observed, expected).pvalue > 1e-3
    few = example.beam_search(model, prompts[:1], 50, LENGTH, lambda s: uniform(rng, s))
    assert few.shape[1] == count  # all of them


def uniform(rng, shape):
    shape = [20_000 if x is None else x for x in shape]
    return tf.constant(rng.random(shape))


@pytest.mark.slow
def test_example_learns():
    example = toys.example("different_completions")
    assert example.train(0, updates=300)[-1] > 0.5
