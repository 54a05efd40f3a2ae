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


def test_shortest_makespan_is_that_of_the_best_order(tasks):
    """Jackson's rule, by enumeration of all orders of the operations of four jobs."""
    env, seeds = tasks.Jobs(4, 4), range(10)
    orders = np.array(sorted(set(itertools.permutations([0, 0, 1, 1, 2, 2, 3, 3]))))
    noise = np.random.default_rng(0).random((len(seeds), *env.initial_noise.shape))
    noise = np.repeat(noise, len(orders), axis=0)
    state = env.initial(tf.constant(noise, tf.float32))
    actions, total = np.tile(orders, (len(seeds), 1)), 0.0
    for row in actions.T:
        assert env.action_mask(state).numpy()[np.arange(len(row)), row].all()
        rows = env.observation(state).numpy()
        before, state = state, env.transition(state, tf.constant(row), None)
        rewards = env.reward(before, row, state).numpy()
        total = total + rewards
        np.testing.assert_array_equal(rows.any(axis=2), env.action_mask(before))
    assert env.terminal(state).numpy().all()
    best = total.reshape(len(seeds), -1).max(axis=1)
    np.testing.assert_allclose(best, -1.0, rtol=1e-5)


def test_operations_wait_for_their_job_and_their_machine(tasks):
    """Two jobs of 1 + 2 and 3 + 1; the second one begins on the other machine."""
    env = tasks.Jobs(2, 2)
    durations = np.zeros((1, tasks.MAX_JOBS, 2), "float32")
    durations[0, :2] = [1, 2], [3, 1]
    machine = tf.constant([[0, 1, *[0] * (tasks.MAX_JOBS - 2)]])
    state = env.initial(tf.zeros((1, *env.initial_noise.shape)))
    state |= {"durations": tf.constant(durations), "machine": machine}
    state["shortest"] = tasks.shortest_makespan(state["durations"], machine)
    # Machine 1 works from 0 to 3 and from 3 to 5, and machine 0 from 0 to 1 and 3 to 4.
    assert state["shortest"].numpy() == 5.0
    expected = [[1, 2, 0, 0], [3, 1, 1, 0]], [[2, 0, 1, 1], [3, 1, 1, 0]]
    expected = *expected, [[2, 0, 1, 2], [1, 0, 0, 2]], [[0] * 4, [1, 0, 0, 2]]
    for job, rows in zip([0, 1, 0, 1], expected):
        np.testing.assert_array_equal(env.observation(state)[0, :2], rows)
        state = env.transition(state, tf.constant([job]), None)
    np.testing.assert_array_equal(state["machine_free"], [[4, 5]])


@pytest.mark.slow
def test_pointer_learns_from_few_jobs_and_schedules_twelve(tasks):
    agent = tasks.make_jobs_agent()
    agent.fit(tasks.Jobs(3, 5), epochs=30, episodes_per_epoch=64, verbose=0)
    many = tasks.Jobs(12, 12)
    assert tasks.gap(agent, many, episodes=200) < 0.1 * tasks.random_gap(many, 200)
