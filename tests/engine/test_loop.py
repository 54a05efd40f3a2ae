"""Tests that linear learning rates follow their definition, and are set as by Keras."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce.engine import loop


def rates_of(optimizer, first, last, end):
    """Returns rates for a number of environment steps, and the agent of the optimizer."""
    agent = types.SimpleNamespace(part=types.SimpleNamespace(optimizer=optimizer))
    agent._learning_rates = [("part.optimizer", first, last)]
    return loop.LinearRates.of(agent, None, 0, end), agent


@pytest.mark.parametrize("end", [100, 700, 10**9 + 7])
def test_rates_of_a_budget_of_steps_have_the_same_bits_in_a_program(end):
    rates, agent = rates_of(keras.optimizers.SGD(1.0), 0.3, 0.001, end)
    assert rates[1:] == (end, True)
    steps = np.random.default_rng(0).integers(end + 2, size=50).tolist()
    for agent.env_steps in (0, end, *steps):
        rates.set(agent)
        rate = float(agent.part.optimizer.learning_rate)
        share = min(agent.env_steps / end, 1)
        assert rate == pytest.approx(0.3 - 0.299 * share, rel=1e-6)
        counts = (tf.constant(count, tf.int64) for count in (agent.env_steps, end))
        rates.set_in_graph(agent, *counts)
        assert float(agent.part.optimizer.learning_rate) == rate


def test_rates_of_a_budget_of_updates_count_the_updates_of_callbacks():
    """The callback makes the update 1. The rates still reach the last rate at the end."""
    env = tfr.envs.Bandit([0.0, 1.0])
    rates = {"first": 0.1, "last": 0.0}
    agent = tfr.Reinforce.for_env(env, hidden=(), learning_rate=rates)
    episodes = agent.collect(env, 2)
    update = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: epoch == 0 and agent.update(episodes)
    )
    options = dict(epochs=6, episodes_per_epoch=2, callbacks=[update], verbose=0)
    history = agent.fit(env, **options).history
    updates = np.array([0, 2, 3, 4, 5, 6])
    ends = np.array([6, 7, 7, 7, 7, 7])
    np.testing.assert_allclose(history["learning_rate"], 0.1 * (1 - updates / ends))


@pytest.mark.parametrize("scaled", [False, True])
def test_learning_rate_has_the_bits_that_keras_sets(scaled):
    optimizer = inner = keras.optimizers.Adam(0.5)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(inner)
    for value in (0.1, 1 / 3, 1e-8, 0.0):
        rates, agent = rates_of(optimizer, value, value, 1)
        agent.env_steps = 0
        rates.set(agent)
        assert float(inner.learning_rate) == np.float32(value)


def test_learning_rate_of_a_keras_schedule_is_not_settable():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    rates, agent = rates_of(keras.optimizers.Adam(schedule), 0.1, 0.2, 1)
    agent.env_steps = 0
    with pytest.raises(TypeError, match="not settable"):
        rates.set(agent)
