"""The scan is the recursion: by loop, by reduction, by finite differences."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.functional import returns

NAMES = ("rewards", "discounts", "next_values", "lambdas")


def loop(rewards, discounts, next_values, lambdas):
    """Gₜ = rₜ + γₜ [(1 - λₜ) vₜ₊₁ + λₜ Gₜ₊₁] from the end, in float64."""
    results, later = np.zeros_like(rewards), next_values[-1]
    for t in reversed(range(len(rewards))):
        mixed = (1 - lambdas[t]) * next_values[t] + lambdas[t] * later
        later = results[t] = rewards[t] + discounts[t] * mixed
    return results


def problem(rows, count, seed=0):
    """Random numbers with terminated (γ = 0) and cut (λ = 0) steps among them."""
    rng = np.random.default_rng(seed)
    rewards, next_values = rng.normal(size=(2, rows, count))
    discounts, lambdas = rng.uniform(size=(2, rows, count))
    discounts[rng.uniform(size=(rows, count)) < 0.1] = 0.0
    lambdas[rng.uniform(size=(rows, count)) < 0.1] = 0.0
    return rewards, discounts, next_values, lambdas


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 8, 9, 31, 64, 65, 200])
def test_the_scan_is_the_recursion(rows):
    """Every length around a power of two, where a doubling scan may lose a row."""
    for seed in range(5):
        numbers = problem(rows, 3, seed)
        found = returns.lambda_returns(*numbers)
        np.testing.assert_allclose(found, loop(*numbers), rtol=1e-12, atol=1e-12)


def test_lambda_one_is_monte_carlo_with_the_last_value_behind_it():
    rewards, discounts, values, _ = problem(6, 2)
    truth = [
        sum(np.prod(discounts[t:k], axis=0) * rewards[k] for k in range(t, 6))
        + np.prod(discounts[t:], axis=0) * values[-1]
        for t in range(6)
    ]
    found = returns.lambda_returns(rewards, discounts, values, np.ones((6, 2)))
    np.testing.assert_allclose(found, truth, rtol=1e-12, atol=1e-12)


def test_lambda_zero_is_the_one_step_target():
    rewards, discounts, values, _ = problem(6, 2)
    found = returns.lambda_returns(rewards, discounts, values, np.zeros((6, 2)))
    np.testing.assert_allclose(
        found, rewards + discounts * values, rtol=1e-13, atol=1e-15
    )


def test_lambda_is_generalized_advantage_estimation():
    """Gₜ - v(sₜ) = Σₖ (γλ)ᵏ δₜ₊ₖ (Schulman et al. 2016, eq. 16)."""
    gamma, lam, rng = 0.97, 0.9, np.random.default_rng(0)
    rewards, values = rng.normal(size=(8, 1)), rng.normal(size=(9, 1))
    deltas = rewards + gamma * values[1:] - values[:-1]
    truth = [
        sum((gamma * lam) ** (k - t) * deltas[k] for k in range(t, 8)) for t in range(8)
    ]
    ones = np.ones((8, 1))
    found = returns.lambda_returns(rewards, gamma * ones, values[1:], lam * ones)
    np.testing.assert_allclose(found - values[:-1], truth, rtol=1e-12, atol=1e-12)


def test_a_million_steps_lose_no_digit():
    rewards = np.random.default_rng(0).uniform(size=(1_000_000, 1))
    found = returns.discounted_returns(rewards, np.full_like(rewards, 0.9999))
    backward = itertools.accumulate(
        rewards[::-1, 0].tolist(), lambda later, reward: reward + 0.9999 * later
    )
    truth = np.array(list(backward))[::-1]
    assert np.max(np.abs(found[:, 0] - truth) / truth) <= 1e-12


def test_powers_of_the_discount_may_underflow_and_returns_do_not():
    """γ²⁰⁰⁰ is zero in float64; 1 + γ + γ² + … is 2 - γⁿ⁻¹, by n rewards, for γ = 1/2."""
    rewards = np.ones((2000, 1))
    found = returns.discounted_returns(rewards, rewards / 2)[:, 0]
    assert 0.5**2000 == 0.0
    np.testing.assert_array_equal(found[::-1], 2.0 - 0.5 ** np.arange(2000.0))


@pytest.mark.parametrize("ending", ["terminated", "cut"])
def test_nothing_leaks_from_one_episode_into_the_one_before(ending):
    first, second = problem(5, 2, seed=1), problem(7, 2, seed=2)
    (first[1] if ending == "terminated" else first[3])[-1] = 0.0
    joined = [np.concatenate(pair) for pair in zip(first, second, strict=True)]
    apart = [returns.lambda_returns(*numbers).numpy() for numbers in (first, second)]
    found = returns.lambda_returns(*joined)
    np.testing.assert_allclose(found, np.concatenate(apart), rtol=0, atol=1e-14)


def test_columns_do_not_know_each_other():
    numbers = problem(9, 4)
    whole = returns.lambda_returns(*numbers).numpy()
    for b in range(4):
        alone = returns.lambda_returns(*(x[:, b : b + 1] for x in numbers))
        np.testing.assert_array_equal(alone[:, 0], whole[:, b])


def test_golden_returns():
    """1 + 0.99 (1 + 0.99 · 1) = 2.9701, by hand."""
    rewards = tf.ones([3, 1], tf.float64)
    found = returns.discounted_returns(rewards, 0.99 * rewards)
    np.testing.assert_allclose(found[:, 0], [2.9701, 1.99, 1.0], rtol=0, atol=1e-15)


def test_discount_zero_leaves_the_reward_alone():
    rewards = problem(6, 3)[0]
    found = returns.discounted_returns(rewards, np.zeros_like(rewards))
    np.testing.assert_array_equal(found, rewards)


@pytest.mark.parametrize("jit", [False, True])
def test_a_traced_function_returns_the_same(jit):
    numbers = [tf.constant(x) for x in problem(37, 3)]
    eager = returns.lambda_returns(*numbers)
    traced = tf.function(returns.lambda_returns, jit_compile=jit)(*numbers)
    np.testing.assert_allclose(traced, eager, rtol=0, atol=1e-14)


def test_one_trace_serves_any_number_of_steps_and_episodes():
    spec = tf.TensorSpec((None, None), tf.float64)
    traced = tf.function(returns.lambda_returns, input_signature=[spec] * 4)
    for rows, count in [(1, 1), (5, 2), (33, 3)]:
        numbers = problem(rows, count)
        np.testing.assert_allclose(
            traced(*numbers), loop(*numbers), rtol=1e-12, atol=1e-12
        )
    assert traced.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("index", range(4), ids=NAMES)
def test_gradients_flow_to_every_argument(index):
    numbers = list(problem(6, 2))

    def function(x):
        return returns.lambda_returns(*numbers[:index], x, *numbers[index + 1 :])

    theory, numeric = tf.test.compute_gradient(function, [numbers[index]])
    np.testing.assert_allclose(theory[0], numeric[0], rtol=1e-8, atol=1e-8)
    assert np.abs(theory[0]).max() > 0.1


@pytest.mark.parametrize("index", range(4), ids=NAMES)
@pytest.mark.parametrize("shape", [(4, 1), (1, 3), (3,), (4, 3, 1), ()])
def test_shapes_that_would_broadcast_are_refused(index, shape):
    numbers = [np.ones((4, 3)) for _ in NAMES]
    numbers[index] = np.ones(shape)
    with pytest.raises(ValueError, match="rank|shape|dimension"):
        returns.lambda_returns(*numbers)


@pytest.mark.parametrize("terminated", [True, False])
@pytest.mark.parametrize("gae_lambda", [1.0, 0.5])
def test_coefficients_tell_an_ending_from_a_cut(terminated, gae_lambda):
    """
    t            0    1    2    3
    valid        x    x    x    .
    γ, ended     γ    γ    0    0
    γ, cut       γ    γ    γ    0
    λ, ended     λ    λ    λ    0
    λ, cut       λ    λ    0    0
    """
    valid = [[True], [True], [True], [False]]
    discounts, lambdas = returns.coefficients(
        tf.constant(valid), [3], [terminated], 0.9, gae_lambda, "float64"
    )
    at_the_end = (0.0, gae_lambda) if terminated else (0.9, 0.0)
    assert discounts.numpy()[:, 0].tolist() == [0.9, 0.9, at_the_end[0], 0.0]
    assert lambdas.numpy()[:, 0].tolist() == [gae_lambda] * 2 + [at_the_end[1], 0.0]


def test_coefficients_of_many_episodes_are_those_of_each():
    pairs = list(itertools.product([1, 2, 5], [True, False]))
    lengths, terminated = (np.array(x) for x in zip(*pairs, strict=True))
    rows = tf.range(5)[:, None]

    def make(lengths, terminated):
        return returns.coefficients(
            rows < lengths, lengths, terminated, 0.99, 0.95, "float32"
        )

    whole = make(lengths, terminated)
    for b in range(len(pairs)):
        alone = make(lengths[b : b + 1], terminated[b : b + 1])
        for together, single in zip(whole, alone, strict=True):
            assert together.dtype == "float32"
            np.testing.assert_array_equal(together[:, b], single[:, 0])


@pytest.mark.parametrize("terminated", [True, False])
def test_only_a_cut_episode_bootstraps_from_what_followed(terminated):
    """G₂ = r₂ + γ v₃ at a cut, r₂ at an ending; three steps, by hand."""
    gamma, value = 0.5, 8.0
    discounts, lambdas = returns.coefficients(
        tf.ones([3, 1], bool), [3], [terminated], gamma, 1.0, "float64"
    )
    rewards, values = tf.ones([3, 1], tf.float64), tf.fill([3, 1], np.float64(value))
    found = returns.lambda_returns(rewards, discounts, values, lambdas)[:, 0]
    truth = [1.75, 1.5, 1.0] if terminated else [2.75, 3.5, 5.0]
    np.testing.assert_array_equal(found, truth)


def test_gamma_zero_counts_the_next_reward_only():
    discounts, lambdas = returns.coefficients(
        tf.ones([3, 2], bool), [3, 3], [True, False], 0, 1, "float64"
    )
    rewards, _, values, _ = problem(3, 2)
    found = returns.lambda_returns(rewards, discounts, values, lambdas)
    np.testing.assert_array_equal(found, rewards)


def test_episode_returns_are_plain_sums_that_ignore_padding():
    rewards = np.array([[1.0, 2.0, 3.0], [4.0, 5.0, np.nan], [6.0, np.inf, np.nan]])
    valid = [[True, True, True], [True, True, False], [True, False, False]]
    np.testing.assert_array_equal(returns.episode_returns(rewards, valid), [11, 7, 3])


def test_episode_returns_refuse_shapes_that_would_broadcast():
    with pytest.raises(ValueError, match="dimension|shape"):
        returns.episode_returns(np.ones((4, 3)), np.ones((4, 1), bool))
