"""Tests the layer `Sample`: distribution, mode, masks, seeds, files and refusals."""

import keras
import numpy as np
import parts
import pytest
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.sampling import sample as samples


def sampling_model(head, **kwargs):
    inputs = keras.Input((4,))
    outputs = keras.layers.Dense(head.outputs_size)(inputs)
    return keras.Model(inputs, tfr.layers.Sample(head, **kwargs)(outputs))


def batch(count, seed=0):
    return np.random.default_rng(seed).normal(size=(count, 4)).astype("float32")


@pytest.mark.parametrize("name", parts.HEADS)
def test_samples_have_the_log_probs_of_the_head_and_modes_are_its_own(name):
    head = parts.HEADS[name].make()
    model = sampling_model(head, seed=0)
    outputs = model.layers[1](batch(5))
    with samples.recording() as recorder:
        drawn = model(batch(5), training=True)
    (record,) = recorder.samples
    expected = head.distribution(outputs).log_prob(record.actions)
    np.testing.assert_allclose(recorder.sums()[0], expected, rtol=1e-6)
    raw = record.actions, head.mode(outputs)
    for found, actions in zip((drawn, model(batch(5))), raw, strict=True):
        equal = np.testing.assert_array_equal
        keras.tree.map_structure(equal, found, head.to_environment(actions))


def test_two_calls_and_two_rows_draw_different_samples():
    layer = tfr.layers.Sample(heads.Gaussian(1), seed=0)
    first, second = (layer(tf.zeros([3, 1]), training=True).numpy() for _ in range(2))
    assert len({*first.ravel(), *second.ravel()}) == 6


def test_equal_seeds_draw_equal_samples_eagerly_compiled_and_under_xla():
    def draw(**options):
        layer = tfr.layers.Sample(heads.Categorical(5), seed=7)
        layer.build((None, 5))
        call = tf.function(lambda x: layer(x, training=True), **options)
        return [call(tf.zeros([6, 5])).numpy().tolist() for _ in range(2)]

    layer = tfr.layers.Sample(heads.Categorical(5), seed=7)
    eager = [layer(tf.zeros([6, 5]), training=True).numpy().tolist() for _ in range(2)]
    assert draw() == draw(jit_compile=True) == eager


def test_no_gradient_flows_through_a_sample():
    layer = tfr.layers.Sample(heads.Gaussian(2), seed=0)
    outputs = tf.ones([3, 2])
    with tf.GradientTape() as tape:
        tape.watch(outputs)
        drawn = layer(outputs, training=True)
    assert tape.gradient(drawn, outputs) is None


def test_loaded_layer_continues_the_random_numbers(tmp_path):
    """Keras itself does not save the state of a `SeedGenerator`."""
    model = sampling_model(heads.Categorical(6), seed=1)
    model(batch(9), training=True)
    model.save(tmp_path / "model.keras")
    loaded = keras.saving.load_model(tmp_path / "model.keras")
    for _ in range(2):
        drawn = [m(batch(9), training=True).numpy().tolist() for m in (model, loaded)]
        assert drawn[0] == drawn[1]


def test_illegal_actions_are_never_sampled():
    layer = tfr.layers.Sample(heads.Categorical(4), seed=0)
    legal = np.array([[1, 0, 1, 0], [0, 1, 0, 0]], "int8")
    outputs = tf.zeros([2, 500, 4])
    legal_rows = tf.repeat(legal[:, None], 500, axis=1)
    with samples.recording() as recorder:
        drawn = layer(outputs, action_mask=legal_rows, training=True).numpy()
    modes = layer(outputs, action_mask=legal_rows).numpy()
    for values in (drawn, modes):
        assert set(values[0]) <= {0, 2} and set(values[1]) == {1}
    np.testing.assert_allclose(
        recorder.sums()[0], [500 * np.log(0.5), 0.0], rtol=1e-5, atol=1e-6
    )


def test_layers_with_equal_seeds_draw_independent_samples_in_one_model():
    """In the training step of `ScoreFunction`, and in any other call of the model."""

    def both(outputs):
        layers = (tfr.layers.Sample(heads.Categorical(9), seed=3) for _ in range(2))
        return [layer(outputs, training=True) for layer in layers]

    inputs = keras.Input((9,))
    model = keras.Model(inputs, both(inputs))
    outputs = tf.zeros([40, 9])
    calls = [model, tf.function(model)]
    drawn = [call(outputs, training=True) for call in calls]
    with samples.recording():
        drawn.append(both(outputs))
    for first, second in drawn:
        assert np.mean(first == second) < 0.4  # 1 / 9 plus six standard errors
    # Two layers that are called alone, each with its seed.
    first, second = both(outputs)
    np.testing.assert_array_equal(first, second)


def test_modes_are_not_recorded_as_samples():
    layer = tfr.layers.Sample(heads.Categorical(3))
    with samples.recording() as recorder:
        layer(tf.zeros([2, 3]), training=False)
    assert recorder.samples == []


def test_wrong_number_of_replayed_actions_is_refused():
    layer = tfr.layers.Sample(heads.Categorical(3))
    for calls, entries in ((2, 1), (1, 2)):
        with samples.recording([tf.constant([2], tf.int64)] * entries) as recorder:
            for _ in range(calls):
                layer(tf.zeros([1, 3]), training=True)
        with pytest.raises(ValueError, match=f"Received: {entries} entries"):
            recorder.sums()


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: tfr.layers.Sample("categorical"), "`head` must be a tf_reinforce.Head"),
        (lambda: tfr.layers.Sample(heads.Categorical(2), seed=0.5), "whole number"),
        (
            lambda: tfr.layers.Sample(heads.Categorical(2))(tf.zeros([1, 3])),
            r"needs inputs of shape.*Received: shape \(1, 3\)",
        ),
    ],
)
def test_invalid_arguments_are_refused(make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()
