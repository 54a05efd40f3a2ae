"""Tests that a linear learning rate is set like `optimizer.learning_rate = …`."""

import types

import keras
import numpy as np
import pytest

from tf_reinforce.callbacks import learning_rate


def set_rate(optimizer, value):
    model = types.SimpleNamespace(part=types.SimpleNamespace(optimizer=optimizer))
    model.updates, model.env_steps = 0, 0
    schedules = [("part.optimizer", value, 2 * value)]
    callback = learning_rate.LinearLearningRate(schedules, 10)
    callback.set_model(model)
    callback.set_params({})
    callback.on_epoch_begin(0)


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
