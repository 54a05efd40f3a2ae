"""Tests that linear learning rates follow their definition, and are set as by Keras."""

import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce.engine import linear_rates


def agent_with(optimizer):
    part = types.SimpleNamespace(optimizer=optimizer)
    return types.SimpleNamespace(part=part, updates=0, env_steps=0)


def set_rate(optimizer, value):
    schedules = [("part.optimizer", value, 2 * value)]
    linear_rates.LinearRates(agent_with(optimizer), schedules, 10).set(0)


def test_rates_of_a_budget_of_steps_follow_the_steps():
    agent = agent_with(keras.optimizers.SGD(1.0))
    rates = linear_rates.LinearRates(agent, [("part.optimizer", 0.5, 0.1)], None)
    for agent.env_steps, expected in ((0, 0.5), (30, 0.38), (100, 0.1), (130, 0.1)):
        in_program = rates.set(0, end_env_steps=100)
        rate = np.array(agent.part.optimizer.learning_rate)
        np.testing.assert_allclose(rate, expected, rtol=1e-6)
        assert in_program == ((("part.optimizer", 0.5, 0.1),), 100, True)


@pytest.mark.parametrize("end", [700, 10**9 + 7])
def test_rates_in_a_program_have_the_bits_of_single_updates(end):
    agent = agent_with(keras.optimizers.SGD(1.0))
    rates = linear_rates.LinearRates(agent, [("part.optimizer", 0.3, 0.001)], None)
    for progress in np.random.default_rng(0).integers(end + 2, size=100).tolist():
        agent.env_steps = progress
        program = rates.set(0, end_env_steps=end)
        expected = float(agent.part.optimizer.learning_rate)
        counts = (tf.constant(count, tf.int64) for count in (progress, program.end))
        program.set_in_graph(agent, *counts)
        assert float(agent.part.optimizer.learning_rate) == expected, progress


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


@pytest.mark.parametrize("value", [0.1, 1 / 3, 1e-8, 0.0])
@pytest.mark.parametrize("scaled", [False, True])
def test_learning_rate_has_the_bits_that_keras_sets(value, scaled):
    optimizers = []
    for _ in range(2):
        optimizer = keras.optimizers.Adam(0.5)
        if scaled:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        optimizers.append(optimizer)
    optimizers[0].learning_rate = value
    set_rate(optimizers[1], value)
    expected, rate = (np.array(optimizer.learning_rate) for optimizer in optimizers)
    assert rate == expected == np.float32(value) and rate.dtype == expected.dtype
    if scaled:
        assert float(optimizers[1].inner_optimizer.learning_rate) == np.float32(value)


def test_learning_rate_of_a_keras_schedule_is_not_settable():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    with pytest.raises(TypeError, match="not settable"):
        set_rate(keras.optimizers.Adam(schedule), 0.1)
