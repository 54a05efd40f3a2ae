"""Tests that linear learning rates follow their definition, and are set as by Keras."""

import types

import keras
import numpy as np
import pytest

import tf_reinforce as tfr
from tf_reinforce.engine import trainer


def set_rates(optimizer, first, last, end, steps=0):
    """Sets the rate of an optimizer after some environment steps of `end`."""
    agent = types.SimpleNamespace(optimizer=optimizer)
    agent.counters = keras.Variable([0, 0, steps], dtype="int64")
    agent._learning_rates = [("optimizer", first, last)]
    trainer.Trainer.set_rates(types.SimpleNamespace(agent=agent), end, True)


@pytest.mark.parametrize("end", [100, 10**9 + 7, 2**40])
@pytest.mark.parametrize("scaled", [False, True])
def test_rates_of_a_budget_of_steps_have_the_bits_of_the_definition(end, scaled):
    optimizer = inner = keras.optimizers.Adam(0.5)
    if scaled:
        optimizer = keras.optimizers.LossScaleOptimizer(inner)
    steps = np.random.default_rng(0).integers(end + 2, size=20).tolist()
    for number in (0, end, *steps):
        set_rates(optimizer, 0.3, 0.001, end, number)
        rate = 0.3 + (0.001 - 0.3) * min(number / end, 1)
        assert float(inner.learning_rate) == np.float32(rate)


@pytest.mark.slow
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


def test_learning_rate_of_a_keras_schedule_is_not_settable():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 10, 0.9)
    with pytest.raises(TypeError, match="not settable"):
        set_rates(keras.optimizers.Adam(schedule), 0.1, 0.2, 1)
