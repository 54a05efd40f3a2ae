"""Tests that a running scale is the size of all samples so far."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.policies import normalization


def updated_scale(data, chunk, centered=False):
    layer = normalization.RunningScale(centered=centered)
    layer.build(())
    for start in range(0, len(data), chunk):
        layer.update(tf.constant(data[start : start + chunk]))
    return layer


def size(data, centered):
    """Returns the scale by its definition, of numbers near one that cannot overflow."""
    unit = np.abs(data).max()
    center = np.mean(data / unit) if centered else 0.0
    return unit * np.sqrt(np.mean((data / unit - center) ** 2))


DATA = np.random.default_rng(0).normal(3.0, 2.0, size=60)


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-6)])
@pytest.mark.parametrize("unit", [1e-30, 1.0, 1e12])
@pytest.mark.parametrize("chunk", [1, 7])
@pytest.mark.parametrize("centered", [False, True])
def test_running_scale_equals_the_scale_of_all_samples(
    centered, chunk, unit, dtype, tolerance
):
    data = unit * DATA
    found = updated_scale(data.astype(dtype), chunk, centered)(tf.constant(data), None)
    np.testing.assert_allclose(found, data / size(data, centered), rtol=tolerance)


@pytest.mark.parametrize("centered", [False, True])
def test_running_scale_is_accurate_for_large_means(centered):
    """The expected value is computed near zero, because the subtraction is exact."""
    data = 2.0**26 + DATA
    layer = updated_scale(data, 7, centered)
    near = data - 2.0**26
    square = near.var() + (0 if centered else (near.mean() + 2.0**26) ** 2)
    found = layer(tf.constant(square**0.5), None)
    np.testing.assert_allclose(found, 1.0, rtol=1e-8)


@pytest.mark.parametrize("value", [0.0, 0.1, -1e12, 1e-30])
@pytest.mark.parametrize("chunk", [7, 60])
def test_centered_scale_of_equal_samples_divides_by_one(chunk, value):
    layer, values = (
        updated_scale(np.full(60, value), chunk, True),
        tf.constant([1.5, -3.0]),
    )
    np.testing.assert_array_equal(layer(values, None), values)


@pytest.mark.parametrize("centered", [False, True])
def test_current_samples_give_the_scale_before_the_first_update_only(centered):
    layer = normalization.RunningScale(centered=centered)
    layer.build(())
    values = tf.constant(DATA)
    own = layer(values, values)
    np.testing.assert_allclose(own, DATA / size(DATA, centered), rtol=1e-12)
    # The call does not change the weights.
    assert not any(weight.numpy() for weight in layer.weights)
    layer.update(values)
    again = layer(values, 50 * values)
    np.testing.assert_allclose(again, DATA / size(DATA, centered), rtol=1e-12)


def test_update_with_no_samples_changes_nothing():
    layer, none = updated_scale(DATA, 60), tf.zeros([0], tf.float64)
    before = layer.get_weights()
    layer.update(none)
    for old, new in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    fresh = normalization.RunningScale()
    fresh.build(())
    fresh.update(none)
    assert fresh(none, none).shape == (0,)
    assert float(fresh(tf.constant(2.0), none)) == 2.0


def test_running_scale_statistics_are_float64_and_not_trainable():
    keras.config.set_dtype_policy("mixed_float16")
    layer = updated_scale(DATA.astype("float32"), 60)
    assert {w.dtype for w in layer.weights} == {"float64"}
    assert not layer.trainable_variables
    assert layer(tf.constant([1.0], tf.float32), None).dtype == tf.float32
    assert layer(tf.constant([1.0], tf.float64), None).dtype == tf.float64
