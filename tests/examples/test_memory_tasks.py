"""Tests the example `memory.py`: its environments, and that attention solves them."""

import itertools

import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys

from tf_reinforce import envs


@pytest.fixture(scope="module")
def example():
    return toys.example("memory")


def play(env, noise, actions):
    """Returns the observations and rewards of a batch of episodes."""
    state = env.initial(noise)
    observations, rewards = [env.observation(state)], []
    for row in actions:
        action = tf.constant(row)
        before, state = state, env.transition(state, action, None)
        rewards.append(env.reward(before, action, state))
        observations.append(env.observation(state))
    assert env.terminal(state).numpy().all()
    return np.stack(observations, axis=1), np.stack(rewards, axis=1)


RIGHT, UP, LEFT, DOWN = range(4)


def test_tmaze_rewards_the_turn_that_the_first_signal_shows(example):
    env = example.TMaze(3)
    columns = [3 * [RIGHT] + [UP], 3 * [RIGHT] + [DOWN], [UP, *2 * [RIGHT], UP]]
    columns += [[RIGHT, LEFT, RIGHT, UP]]
    noise = tf.constant([0.9, 0.9, 0.9, 0.1])
    signals, rewards = play(env, noise, np.transpose(columns))
    assert signals[:, 0].tolist() == 3 * [[1, 0, 0, 0]] + [[0, 1, 0, 0]]
    assert signals[0, 1:4].argmax(axis=-1).tolist() == [2, 2, 3]
    assert signals[3, 1:4].argmax(axis=-1).tolist() == [2, 2, 2]
    late = np.float32(-1 / 3)
    expected = [[0, 0, 0, 1], [0, 0, 0, 0], [late, late, late, 0], [0, late, late, 0]]
    np.testing.assert_array_equal(rewards, np.array(expected, np.float32))


def test_tasks_hide_the_velocities(example):
    state = tf.constant([[0.1, 0.2, 0.3, 0.4]])
    np.testing.assert_array_equal(
        example.CartPole().observation(state), state.numpy()[:, ::2]
    )
    shown = example.Pendulum().observation(state[:, :2])
    np.testing.assert_array_equal(shown, envs.Pendulum().observation(state[:, :2])[:, :2])


def test_repeat_previous_asks_for_an_earlier_card(example):
    env = example.RepeatPrevious(delay=4)
    noise = tf.random.stateless_uniform([3, 52], [0, 1])
    suits = tf.argsort(noise).numpy() % 4
    assert np.bincount(suits[0]).tolist() == [13, 13, 13, 13]
    answers = np.concatenate([np.zeros([3, 4], int), suits[:, :-4]], axis=1)
    answers[1] = (answers[1] + 1) % 4
    signals, rewards = play(env, noise, answers.T)
    np.testing.assert_array_equal(signals[:, :52].argmax(axis=-1), suits)
    np.testing.assert_array_equal(rewards[:, :4], np.zeros([3, 4]))
    np.testing.assert_allclose(rewards.sum(axis=1), [1, -1, 1], rtol=1e-5)


@pytest.mark.slow
def test_attention_solves_a_short_tmaze(example):
    agent, env, _ = example.train("tmaze", "attention", seed=0, length=8)
    returns = agent.evaluate(env, 200, per_episode=True)["episode_return"]
    assert np.mean(returns == 1.0) >= 0.95


@pytest.mark.parametrize(
    "task, memory",
    sweeps.some(
        itertools.product(["cartpole", "pendulum", "repeat"], ["attention", "gru"]),
        always=[("cartpole", "attention"), ("pendulum", "gru"), ("repeat", "attention")],
    ),
)
def test_all_tasks_and_memories_run(example, task, memory):
    agent, _, history = example.train(task, memory, seed=0, updates=2)
    assert agent.updates == 2
    assert np.isfinite(history.history["episode_return"]).all()
