"""Tests that the loss of an example is Keras' loss of the example alone."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.sampling import example_losses

RNG = np.random.default_rng(0)


def losses_of(loss, *arrays):
    losses = keras.tree.map_structure(keras.losses.get, loss)
    return example_losses.example_losses(losses, *arrays)


def classes(*shape):
    return RNG.integers(0, 3, shape), tf.constant(RNG.normal(size=(*shape, 3)))


def numbers(*shape):
    return RNG.normal(size=shape), tf.constant(RNG.normal(size=shape))


CROSS_ENTROPY = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
CASES = {
    "mse": ("mse", numbers(4, 2)),
    "mse of images": (keras.losses.MeanSquaredError(), numbers(4, 3, 2, 2)),
    "huber": (keras.losses.Huber(delta=0.3), numbers(4, 2)),
    "classes": (CROSS_ENTROPY, classes(4)),
    "classes of sequences": (CROSS_ENTROPY, classes(4, 5)),
    "function": (keras.losses.mean_absolute_error, numbers(4, 5, 2)),
}


@pytest.mark.parametrize("name", CASES)
def test_loss_of_an_example_equals_the_loss_of_a_batch_of_one(name):
    loss, (targets, outputs) = CASES[name]
    loss = keras.tree.map_structure(keras.losses.get, loss)
    found = losses_of(loss, targets, outputs)
    assert found.shape == (4,)
    for index in range(4):
        rows = slice(index, index + 1)
        expected = keras.ops.mean(loss(targets[rows], outputs[rows]))
        np.testing.assert_allclose(found[index], expected, rtol=1e-6)


def test_nested_losses_are_added():
    first, second = numbers(4, 2), classes(4)
    parts = [
        losses_of(loss, *arrays)
        for loss, arrays in (("mse", first), (CROSS_ENTROPY, second))
    ]
    expected = parts[0] + tf.cast(parts[1], parts[0].dtype)
    for names in (dict(a=0, b=1), [0, 1]):
        nested = (
            keras.tree.map_structure(lambda n, pair=pair: pair[n], names)
            for pair in (("mse", CROSS_ENTROPY), *zip(first, second))
        )
        np.testing.assert_allclose(losses_of(*nested), expected)


@pytest.mark.parametrize("shape", [(4,), (4, 1), (4, 5)])
def test_sample_weights_multiply_the_elements_before_the_mean(shape):
    targets, outputs = classes(4, 5)
    weights = RNG.uniform(size=shape)
    loss = CROSS_ENTROPY
    found = losses_of(loss, targets, outputs, weights)
    elements = CROSS_ENTROPY.call(
        tf.cast(targets, "float32"), tf.cast(outputs, "float32")
    )
    broadcast = weights if shape == (4, 5) else np.reshape(weights, (4, 1))
    np.testing.assert_allclose(found, np.mean(elements * broadcast, axis=1), rtol=1e-6)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("loss", ["mse", keras.losses.MeanSquaredError()])
def test_half_precision_outputs_are_compared_in_float32(loss, dtype):
    targets = tf.constant([300.0])
    found = losses_of(loss, targets, tf.zeros([1, 1], dtype))
    assert found.dtype == tf.float32 and float(found[0]) == 90_000


@pytest.mark.parametrize("shapes", [((4,), (4, 1)), ((4, 1), (4,))])
def test_arrays_that_differ_by_an_axis_of_one_are_not_broadcast(shapes):
    targets, outputs = RNG.normal(size=(2, 4))
    arrays = np.reshape(targets, shapes[0]), np.reshape(outputs, shapes[1])
    found = losses_of(lambda y, z: (y - z) ** 2, *arrays)
    np.testing.assert_allclose(found, (targets - outputs) ** 2)


ARRAY = np.ones([4, 2])


@pytest.mark.parametrize(
    "loss, targets, outputs, message",
    [
        ("mse", None, ARRAY, "no targets"),
        (["mse"], [ARRAY, ARRAY], [ARRAY, ARRAY], "nested like outputs"),
        (["mse", "mse"], ARRAY, [ARRAY, ARRAY], "nested like outputs"),
        ({"a": "mse"}, {"a": ARRAY}, {"a": ARRAY, "b": ARRAY}, "nested like outputs"),
        ({"a": "mse"}, {"b": ARRAY}, {"a": ARRAY}, "nested like outputs"),
        ("mse", ARRAY, {"a": ARRAY}, "nested like outputs"),
        (lambda y, z: np.mean(y - z), ARRAY, ARRAY, "one number for each example"),
    ],
)
def test_losses_that_do_not_fit_are_refused(loss, targets, outputs, message):
    with pytest.raises(ValueError, match=message):
        losses_of(loss, targets, outputs)


def test_an_output_may_have_no_loss():
    losses = {"a": "mse", "b": None}
    found = losses_of(losses, {"a": ARRAY}, {"a": 3 * ARRAY, "b": ARRAY})
    np.testing.assert_allclose(found, 4.0)


def square(targets, outputs):
    return (targets - outputs) ** 2


def whole(targets, outputs):
    return tf.reduce_mean(square(targets, outputs), axis=[1, 2])


@pytest.mark.parametrize("loss", ["mse", square, whole])
def test_padding_does_not_count_in_the_mean(loss):
    """A loss has an element for each word or each output, or is a mean of its own.

    The targets of padding may be NaN, unless the loss adds them itself.
    """
    words = keras.Input((3,), dtype="int32")
    hidden = keras.layers.Embedding(5, 2, mask_zero=True)(words)
    model = keras.Model(words, keras.layers.Dense(2)(hidden))
    array, targets = np.array([[1, 2, 0], [3, 0, 0]]), np.ones([2, 3, 2], "float32")
    if loss is not whole:
        targets[array == 0] = np.nan
    with tf.GradientTape() as tape:
        found = losses_of(loss, targets, model(array))
    gradients = tape.gradient(found, model.trainable_variables)
    assert all(np.isfinite(tf.convert_to_tensor(x)).all() for x in gradients)
    squares = (model(array).numpy() - 1) ** 2
    expected = [squares[0, :2].mean(), squares[1, 0].mean()]
    if loss is whole:
        expected = squares.mean(axis=(1, 2))
    np.testing.assert_allclose(found, expected, rtol=1e-6)
