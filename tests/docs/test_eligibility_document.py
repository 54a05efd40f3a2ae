"""Tests the statements of docs/eligibility.md that its own code does not show."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tensorflow_probability as tfp

tfd = tfp.distributions
PROBS = np.array([0.69, 0.1, 0.2, 0.01])


def test_unnormalized_probs_give_a_wrong_entropy():
    ordinary, inflated = (tfd.Categorical(probs=PROBS * scale) for scale in (1, 100))
    assert f"{ordinary.entropy():.4f}" == "0.8542"
    assert f"{inflated.entropy():.4f}" == "-375.0938"


def test_probability_zero_has_nan_gradient_and_a_low_logit_has_not():
    def gradient(parameter, at):
        at = tf.constant(at, tf.float64)
        with tf.GradientTape() as tape:
            tape.watch(at)
            log_prob = tfd.Categorical(**{parameter: at}).log_prob(0)
        return tape.gradient(log_prob, at).numpy()

    found = gradient("probs", [0.5, 0.5, 0.0])
    assert np.isnan(found).tolist() == [False, False, True]
    found = gradient("logits", [0.0, 0.0, -1000.0])
    np.testing.assert_allclose(found, [0.5, -0.5, 0.0], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "make",
    [
        lambda p, **options: tfd.Categorical(probs=p, **options),
        lambda p, **options: tfd.OneHotCategorical(probs=p, **options),
        lambda p, **options: tfd.Multinomial(tf.ones([], p.dtype), probs=p, **options),
        lambda p, **options: tfd.Bernoulli(probs=p[0], **options),
    ],
    ids=["categorical", "one_hot", "multinomial", "bernoulli"],
)
def test_only_validate_args_raises_if_probs_are_not_normalized(make):
    make(tf.constant(100 * PROBS))
    with pytest.raises(tf.errors.InvalidArgumentError, match="sum to 1|did not hold"):
        make(tf.constant(100 * PROBS), validate_args=True)


@pytest.mark.parametrize("end", ["logits", "softmax", "weights"])
def test_returns_as_labels_give_a_wrong_gradient_and_sample_weights_do_not(end):
    """Keras subtracts p - G·one-hot from the biases, or G (p - one-hot); G is 2."""
    activation = "softmax" if end == "softmax" else None
    layer = keras.layers.Dense(2, activation, kernel_initializer="zeros")
    model = keras.Sequential([keras.Input((1,)), layer])
    layer.bias.assign(np.log([0.6, 0.4]))
    losses = keras.losses
    if end == "weights":
        loss = losses.SparseCategoricalCrossentropy(from_logits=True)
        labels, weights, right = np.array([0]), np.array([2.0]), [0.8, -0.8]
    else:
        loss = losses.CategoricalCrossentropy(from_logits=end == "logits")
        labels, weights, right = np.array([[2.0, 0.0]], "float32"), None, [1.4, -0.4]
    model.compile(optimizer=keras.optimizers.SGD(1.0), loss=loss)
    model.train_on_batch(np.ones((1, 1), "float32"), labels, sample_weight=weights)
    np.testing.assert_allclose(layer.bias - np.log([0.6, 0.4]), right, atol=1e-6)
