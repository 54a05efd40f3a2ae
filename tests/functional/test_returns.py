"""Tests λ-returns against the recursion, special cases and finite differences."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.functional import returns

NAMES = ("rewards", "discounts", "next_values", "lambdas")


def loop(rewards, discounts, next_values, lambdas):
    """Returns Gₜ = rₜ + γₜ [(1 - λₜ) vₜ₊₁ + λₜ Gₜ₊₁], computed backwards in float64."""
    results, next_return = np.zeros_like(rewards), next_values[-1]
    for t in reversed(range(len(rewards))):
        mixed = (1 - lambdas[t]) * next_values[t] + lambdas[t] * next_return
        next_return = results[t] = rewards[t] + discounts[t] * mixed
    return results


def problem(rows, count, seed=0):
    """Returns random numbers with terminated (γ = 0) and truncated (λ = 0) steps."""
    rng = np.random.default_rng(seed)
    rewards, next_values = rng.normal(size=(2, rows, count))
    discounts, lambdas = rng.uniform(size=(2, rows, count))
    discounts[rng.uniform(size=(rows, count)) < 0.1] = 0.0
    lambdas[rng.uniform(size=(rows, count)) < 0.1] = 0.0
    return rewards, discounts, next_values, lambdas


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 65, 200])
def test_lambda_returns_equal_the_recursion(rows):
    """The numbers of rows lie around powers of two, where a parallel scan may lose a
    row.
    """
    for seed in range(5):
        numbers = problem(rows, 3, seed)
        actual = returns.lambda_returns(*numbers)
        np.testing.assert_allclose(actual, loop(*numbers), rtol=1e-12, atol=1e-12)


def test_lambda_one_gives_monte_carlo_returns_plus_the_last_value():
    rewards, discounts, values, _ = problem(6, 2)
    truth = [
        sum(np.prod(discounts[t:k], axis=0) * rewards[k] for k in range(t, 6))
        + np.prod(discounts[t:], axis=0) * values[-1]
        for t in range(6)
    ]
    actual = returns.lambda_returns(rewards, discounts, values, np.ones((6, 2)))
    np.testing.assert_allclose(actual, truth, rtol=1e-12, atol=1e-12)


def test_lambda_returns_minus_values_equal_gae():
    """Gₜ - v(sₜ) = Σₖ (γλ)ᵏ δₜ₊ₖ (Schulman et al. 2016, eq. 16)."""
    gamma, lam, rng = 0.97, 0.9, np.random.default_rng(0)
    rewards, values = rng.normal(size=(8, 1)), rng.normal(size=(9, 1))
    deltas = rewards + gamma * values[1:] - values[:-1]
    truth = [
        sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, 8)) for t in range(8)
    ]
    ones = np.ones((8, 1))
    actual = returns.lambda_returns(rewards, gamma * ones, values[1:], lam * ones)
    np.testing.assert_allclose(actual - values[:-1], truth, rtol=1e-12, atol=1e-12)


def test_returns_of_a_million_steps_have_relative_error_below_1e_12():
    rewards = np.random.default_rng(0).uniform(size=(1_000_000, 1))
    actual = returns.discounted_returns(rewards, np.full_like(rewards, 0.9999))
    backward = itertools.accumulate(
        rewards[::-1, 0].tolist(),
        lambda next_return, reward: reward + 0.9999 * next_return,
    )
    truth = np.array(list(backward))[::-1]
    assert np.max(np.abs(actual[:, 0] - truth) / truth) <= 1e-12


def test_returns_are_exact_if_powers_of_the_discount_underflow():
    """γ²⁰⁰⁰ is zero in float64.

    For γ = 1/2, n rewards of one have the return 2 - γⁿ⁻¹.
    """
    rewards = np.ones((2000, 1))
    actual = returns.discounted_returns(rewards, rewards / 2)[:, 0]
    assert 0.5**2000 == 0.0
    np.testing.assert_array_equal(actual[::-1], 2.0 - 0.5 ** np.arange(2000.0))


@pytest.mark.parametrize("ending", ["terminated", "truncated"])
def test_returns_do_not_depend_on_the_next_episode_in_the_column(ending):
    first, second = problem(5, 2, seed=1), problem(7, 2, seed=2)
    (first[1] if ending == "terminated" else first[3])[-1] = 0.0
    joined = [np.concatenate(pair) for pair in zip(first, second, strict=True)]
    apart = [returns.lambda_returns(*numbers).numpy() for numbers in (first, second)]
    actual = returns.lambda_returns(*joined)
    np.testing.assert_allclose(actual, np.concatenate(apart), rtol=0, atol=1e-14)


def test_discounted_returns_of_three_steps_equal_hand_computed_numbers():
    """1 + 0.99 (1 + 0.99 · 1) = 2.9701."""
    rewards = tf.ones([3, 1], tf.float64)
    actual = returns.discounted_returns(rewards, 0.99 * rewards)
    np.testing.assert_allclose(actual[:, 0], [2.9701, 1.99, 1.0], rtol=0, atol=1e-15)


@pytest.mark.parametrize("jit", [False, True])
def test_traced_lambda_returns_equal_eager_lambda_returns(jit):
    numbers = [tf.constant(x) for x in problem(37, 3)]
    eager = returns.lambda_returns(*numbers)
    traced = tf.function(returns.lambda_returns, jit_compile=jit)(*numbers)
    np.testing.assert_allclose(traced, eager, rtol=0, atol=1e-14)


@pytest.mark.parametrize("index", range(4), ids=NAMES)
def test_gradient_by_every_argument_equals_finite_differences(index):
    numbers = list(problem(6, 2))

    def function(x):
        return returns.lambda_returns(*numbers[:index], x, *numbers[index + 1 :])

    theory, numeric = tf.test.compute_gradient(function, [numbers[index]])
    np.testing.assert_allclose(theory[0], numeric[0], rtol=1e-8, atol=1e-8)
    assert np.abs(theory[0]).max() > 0.1


@pytest.mark.parametrize("index", range(4), ids=NAMES)
@pytest.mark.parametrize("shape", [(4, 1), (1, 3), (3,), (4, 3, 1), ()])
def test_lambda_returns_raise_for_shapes_that_would_broadcast(index, shape):
    numbers = [np.ones((4, 3)) for _ in NAMES]
    numbers[index] = np.ones(shape)
    with pytest.raises(ValueError, match="rank|shape|dimension"):
        returns.lambda_returns(*numbers)


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("gae_lambda", [1.0, 0.5])
def test_coefficients_differ_between_termination_and_truncation(terminated, gae_lambda):
    """
    t                0    1    2    3
    valid            x    x    x    .
    γ, terminated    γ    γ    0    0
    γ, truncated     γ    γ    γ    0
    λ, terminated    λ    λ    λ    0
    λ, truncated     λ    λ    0    0
    """
    valid = [[True], [True], [True], [False]]
    discounts, lambdas = returns.coefficients(
        tf.constant(valid), [3], [terminated], 0.9, gae_lambda, "float64"
    )
    last_coefficients = (0.0, gae_lambda) if terminated else (0.9, 0.0)
    assert discounts.numpy()[:, 0].tolist() == [0.9, 0.9, last_coefficients[0], 0.0]
    assert lambdas.numpy()[:, 0].tolist() == [gae_lambda] * 2 + [
        last_coefficients[1],
        0.0,
    ]


@pytest.mark.parametrize("terminated", [True, False])
def test_only_truncated_episodes_bootstrap_from_the_last_value(terminated):
    """G₂ = r₂ + γ v₃ after truncation, and r₂ after termination.

    The three steps are computed by hand.
    """
    gamma, value = 0.5, 8.0
    discounts, lambdas = returns.coefficients(
        tf.ones([3, 1], bool), [3], [terminated], gamma, 1.0, "float64"
    )
    rewards, values = tf.ones([3, 1], tf.float64), tf.fill([3, 1], np.float64(value))
    actual = returns.lambda_returns(rewards, discounts, values, lambdas)[:, 0]
    truth = [1.75, 1.5, 1.0] if terminated else [2.75, 3.5, 5.0]
    np.testing.assert_array_equal(actual, truth)


def test_episode_returns_are_undiscounted_sums_without_padding():
    rewards = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, np.nan], [6.0, np.inf, np.nan]])
    valid = [[True, True, True], [True, True, False], [True, False, False]]
    np.testing.assert_array_equal(returns.episode_returns(rewards, valid), [11, 7, 3])
