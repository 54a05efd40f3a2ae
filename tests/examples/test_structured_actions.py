"""Tests the example `structured_actions.py`: its bounds, and that the heads learn."""

import itertools

import numpy as np
import pytest
import tensorflow as tf
import toys

GRID = 8  # the best p of independent parts is 5/8


@pytest.fixture(scope="module")
def tasks():
    return toys.example("structured_actions")


@pytest.fixture(scope="module")
def rewards(tasks):
    """The environment's rewards, `[last, unit, target]`; in the last row, none acted."""
    n = tasks.UNITS
    last, unit, target = np.indices((n + 1, n, n)).reshape(3, -1)
    order = tf.tile(tf.range(n)[::-1][None], (len(last), 1))
    state = {"targets": order, "last": tf.constant(np.where(last < n, last, -1))}
    action = {"unit": tf.constant(unit), "target": tf.constant(target)}
    return tasks.Units().reward(state, action, state).numpy().reshape(n + 1, n, n)


def simplex(n):
    """Returns all distributions over `n` choices in steps of 1 / GRID."""
    counts = itertools.product(range(GRID + 1), repeat=n)
    return np.array([row for row in counts if sum(row) == GRID]) / GRID


def returns_of(pairs, rewards, steps):
    """The returns of N memoryless policies, `[N, unit, target]` probabilities."""
    first = np.einsum("nuv,uv->n", pairs, rewards[-1])
    later = np.einsum("nw,nuv,wuv->n", pairs.sum(axis=2), pairs, rewards[:-1])
    return first + (steps - 1) * later


def test_no_independent_parts_pass_the_bound(tasks, rewards):
    """All products of two distributions on a grid that contains the best ones."""
    grid = simplex(tasks.UNITS)
    p, q = np.repeat(grid, len(grid), axis=0), np.tile(grid, (len(grid), 1))
    best = returns_of(p[:, :, None] * q[:, None], rewards, tasks.STEPS).max()
    assert best == pytest.approx(tasks.BOUND) == 25 / 16


def test_best_dependent_parts_are_uniform_over_the_matching(tasks, rewards):
    grid, n = simplex(tasks.UNITS), tasks.UNITS
    pairs = grid[:, :, None] * np.eye(n)[::-1]
    returns = returns_of(pairs, rewards, tasks.STEPS)
    assert returns.max() == pytest.approx(tasks.OPTIMUM) == 4.0
    np.testing.assert_array_equal(grid[returns.argmax()], np.full(n, 1 / n))


def test_expected_return_of_the_uniform_policy_is_exact(tasks):
    """One in four pairs hits, and three in four units did not act before."""
    agent = tasks.make_units_agent()
    agent.policy.layers[-1].kernel.assign(0 * agent.policy.layers[-1].kernel)
    assert tasks.expected_return(agent) == pytest.approx(1 / 4 * (1 + 4 * 3 / 4))


@pytest.mark.parametrize("head", ["autoregressive", "composite"])
def test_only_dependent_parts_pass_the_bound(head, tasks):
    agent = tasks.make_units_agent(head)
    options = dict(epochs=200, episodes_per_epoch=128, verbose=0)
    returns = agent.fit(tasks.Units(), **options).history["episode_return"]
    expected = tasks.expected_return(agent)
    assert 0.9 * tasks.BOUND < expected < tasks.OPTIMUM
    assert (expected > 1.1 * tasks.BOUND) == (head == "autoregressive")
    assert (expected <= tasks.BOUND) == (head == "composite")
    assert np.mean(returns[-5:]) == pytest.approx(expected, abs=0.25)  # of 640 episodes


def test_lowest_cost_is_that_of_the_best_permutation(tasks):
    """Smith's rule, by enumeration of all orders of five jobs."""
    env = tasks.Jobs(5, 5)
    noise = np.random.default_rng(0).random((20, *env.initial_noise.shape))
    state = env.initial(tf.constant(noise, tf.float32))
    jobs = state["jobs"].numpy()[:, :5]
    orders = np.array(list(itertools.permutations(range(5))))
    durations, weights = np.moveaxis(jobs[:, orders], -1, 0)
    costs = (durations.cumsum(axis=-1) * weights).sum(axis=-1)
    np.testing.assert_allclose(state["lowest"], costs.min(axis=1), rtol=1e-5)
    gaps = costs.mean(axis=1) / costs.min(axis=1) - 1
    random_gap = tasks.random_gap(env, episodes=20)
    assert random_gap == pytest.approx(gaps.mean(), rel=1e-4)


def test_pointer_learns_from_few_jobs_and_schedules_twelve(tasks):
    agent = tasks.make_jobs_agent()
    agent.fit(tasks.Jobs(3, 5), epochs=60, episodes_per_epoch=64, verbose=0)
    many = tasks.Jobs(12, 12)
    assert tasks.gap(agent, many, episodes=200) < 0.1 * tasks.random_gap(many)
