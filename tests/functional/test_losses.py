"""Tests the losses and their gradients, as functions and under Keras' `compile` and
`fit`.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce import heads
from tf_reinforce.functional import losses

RATE = 0.1


def numbers(seed=0, count=12):
    rng = np.random.default_rng(seed)
    return rng.normal(size=count), rng.normal(size=count)


def test_policy_gradient_loss_is_sum_over_steps_divided_by_episodes():
    log_probs, advantages = numbers()
    truth = 0.0
    for log_prob, advantage in zip(log_probs, advantages, strict=True):
        truth -= log_prob * advantage / 5
    loss = losses.policy_gradient(tf.constant(log_probs), advantages, 5)
    np.testing.assert_allclose(loss, truth, rtol=1e-14)


def test_policy_gradient_loss_has_no_gradient_for_advantages():
    log_probs, advantages = (tf.Variable(x) for x in numbers())
    with tf.GradientTape() as tape:
        loss = losses.policy_gradient(log_probs, advantages, 5)
    by_log_probs, by_advantages = tape.gradient(loss, [log_probs, advantages])
    np.testing.assert_allclose(by_log_probs, -advantages / 5, rtol=1e-15)
    assert by_advantages is None


def test_gradient_of_an_embedding_is_a_dense_array():
    """TensorFlow returns IndexedSlices. Rows and weights that are not used have zeros."""
    layer = keras.layers.Embedding(3, 2)
    layer.build()
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(layer(tf.constant([1, 1])))
    variables = [*layer.trainable_variables, keras.Variable([1.0])]
    gradient, unused = losses.gradients(tape, loss, variables)
    np.testing.assert_array_equal(np.asarray(gradient), [[0, 0], [2, 2], [0, 0]])
    np.testing.assert_array_equal(unused, [0.0])


def test_value_loss_is_half_the_squared_error_per_episode():
    values, returns = (tf.Variable(x) for x in numbers())
    with tf.GradientTape() as tape:
        loss = losses.value(values, returns, 4)
    errors = values.numpy() - returns.numpy()
    np.testing.assert_allclose(loss, sum(e * e / 2 for e in errors) / 4, rtol=1e-14)
    by_values, by_returns = tape.gradient(loss, [values, returns])
    np.testing.assert_allclose(by_values, errors / 4, rtol=1e-15)
    assert by_returns is None


def test_entropy_loss_is_negative_sum_divided_by_episodes():
    entropies = tf.Variable(numbers()[0])
    with tf.GradientTape() as tape:
        loss = losses.entropy(entropies, 4)
    np.testing.assert_allclose(loss, -sum(entropies.numpy()) / 4, rtol=1e-14)
    np.testing.assert_array_equal(tape.gradient(loss, entropies), np.full(12, -0.25))


@pytest.mark.parametrize("shape", [(1,), (12, 1), (1, 12), ()])
@pytest.mark.parametrize("loss", [losses.policy_gradient, losses.value])
def test_losses_raise_for_shapes_that_would_broadcast(loss, shape):
    for pair in [((12,), shape), (shape, (12,))]:
        with pytest.raises(ValueError, match="rank|shape|dimension"):
            loss(*(tf.ones(x) for x in pair), 2.0)


# The Keras loss: one step of SGD on one batch, compared with NumPy


def batch(seed=0, count=6, inputs=3, actions=2):
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(count, inputs)).astype("float32")
    actions_taken = rng.integers(actions, size=count)
    advantages = rng.normal(size=count).astype("float32")
    return x, actions_taken, advantages


def linear(outputs=2):
    layer = keras.layers.Dense(outputs, use_bias=False)
    return keras.Sequential([keras.Input((3,)), layer])


def fit_step(loss, x, y, weights=None, **engine):
    """Returns the kernel of a linear policy, and its change by one step of `fit`."""
    model = linear()
    before = model.get_weights()[0].astype("float64")
    model.compile(keras.optimizers.SGD(RATE), loss=loss, **engine)
    model.fit(x, y, sample_weight=weights, batch_size=len(x), epochs=1, verbose=0)
    return before, model.get_weights()[0] - before


def softmax_step(kernel, x, actions, advantages, divisor):
    """Returns RATE / divisor Σₙ Aₙ xₙ (one-hot(aₙ) - π(·|sₙ)), computed in a loop."""
    step = np.zeros_like(kernel)
    for row, action, advantage in zip(x, actions, advantages, strict=True):
        odds = np.exp(row @ kernel)
        step += advantage * np.outer(row, np.eye(2)[action] - odds / odds.sum())
    return RATE * step / divisor


ENGINES = pytest.mark.parametrize(
    "engine",
    [dict(run_eagerly=True), dict(jit_compile=False), dict(jit_compile=True)],
    ids=["eager", "graph", "xla"],
)


@ENGINES
@pytest.mark.parametrize("head", [None, heads.Categorical(2)], ids=["logits", "head"])
def test_keras_fit_makes_the_policy_gradient_step(head, engine):
    x, actions, advantages = batch()
    kernel, step = fit_step(losses.Reinforce(head), x, actions, advantages, **engine)
    truth = softmax_step(kernel, x, actions, advantages, len(x))
    np.testing.assert_allclose(step, truth, rtol=0, atol=2e-7)
    assert np.abs(truth).max() > 0.01


def test_labels_multiplied_by_returns_give_another_gradient():
    """The docstring of the loss warns of this pitfall: the loss is equal, but not the
    gradient.
    """
    x, actions, advantages = batch()
    labels = np.eye(2, dtype="float32")[actions] * advantages[:, None]
    pitfall = keras.losses.CategoricalCrossentropy(from_logits=True)
    kernel, step = fit_step(pitfall, x, labels, jit_compile=False)
    truth = softmax_step(kernel, x, actions, advantages, len(x))
    cosine = np.sum(step * truth) / np.linalg.norm(step) / np.linalg.norm(truth)
    assert cosine < 0.95
    logits = tf.constant(x @ kernel.astype("float32"))
    actual = losses.Reinforce()(actions, logits, sample_weight=advantages)
    np.testing.assert_allclose(pitfall(labels, logits), actual, rtol=1e-5)


@ENGINES
def test_keras_fit_makes_the_policy_gradient_step_of_a_gaussian(engine):
    """∂ log π / ∂μ = (a - μ) / σ²."""
    x, _, advantages = batch()
    actions = np.random.default_rng(1).normal(size=(6, 2)).astype("float32")
    head = heads.Gaussian(2, initial_scale=[0.5, 2.0])
    kernel, step = fit_step(losses.Reinforce(head), x, actions, advantages, **engine)
    truth = np.zeros_like(kernel)
    for row, action, advantage in zip(x, actions, advantages, strict=True):
        score = (action - row @ kernel) / np.array([0.25, 4.0])
        truth += RATE * advantage * np.outer(row, score) / 6
    np.testing.assert_allclose(step, truth, rtol=0, atol=2e-7)


HEADS = {
    "logits": (None, 2),
    "categorical": (heads.Categorical(2), 2),
    "gaussian": (heads.Gaussian(2), 2),
    "square": (heads.Gaussian(4), 4),
    "counts": (heads.Multinomial(4, trials=2), 4),
}
SHAPES = {
    "logits": [(4, 1), (4, 2), (1, 4)],
    "categorical": [(4, 1), (1,), (1, 4)],
    "gaussian": [(4, 1), (4, 2, 1)],
    "square": [(4,), (1, 4), (4, 1)],
    "counts": [(4,), (1, 4), (4, 1)],
}


@pytest.mark.parametrize(
    "name, shape", [(name, shape) for name in HEADS for shape in SHAPES[name]]
)
def test_reinforce_loss_raises_for_actions_that_would_broadcast(name, shape):
    """Actions of shape [N] and means of shape [N, 1] would silently broadcast to [N,
    N].
    """
    head, size = HEADS[name]
    with pytest.raises(ValueError, match="Actions"):
        losses.Reinforce(head)(tf.zeros(shape), tf.zeros([4, size]))


@pytest.mark.parametrize("traced", [False, True])
@pytest.mark.parametrize("name", ["logits", "categorical"])
def test_reinforce_loss_raises_for_fractional_actions(name, traced):
    """A cast to an integer would train another action."""
    loss = losses.Reinforce(HEADS[name][0])
    compute = tf.function(loss) if traced else loss
    with pytest.raises(tf.errors.InvalidArgumentError, match="must be whole numbers"):
        compute(tf.constant([0.0, 0.5]), tf.zeros([2, 2]))


def test_reinforce_loss_raises_for_composite_head():
    """Keras passes one array of actions to a loss."""
    head = heads.Composite({"a": heads.Categorical(2), "b": heads.Gaussian(1)})
    with pytest.raises(ValueError, match="one array.*tfr.Rein.*Received: head=Composite"):
        losses.Reinforce(head)


@pytest.mark.parametrize(
    "head", [None, heads.Gaussian(2, low=-1.0, initial_scale=[0.5, 2.0])]
)
def test_reinforce_loss_is_restored_from_its_config(head):
    loss = losses.Reinforce(head, reduction="sum", name="mine")
    config = keras.saving.serialize_keras_object(loss)
    restored = keras.saving.deserialize_keras_object(config)
    assert type(restored) is losses.Reinforce
    assert (restored.name, restored.reduction) == ("mine", "sum")
    actions = tf.constant([[0.5, 1.0]]) if head else tf.constant([1])
    outputs = tf.constant([[0.2, -0.3]])
    assert float(loss(actions, outputs)) == float(restored(actions, outputs))


def test_reinforce_loss_raises_for_outputs_of_wrong_width():
    """With three outputs for one action, each output would contribute to the loss."""
    loss = losses.Reinforce(heads.ClippedGaussian(1, -1.0, 1.0))
    with pytest.raises(ValueError, match=r"needs 1 model outputs .* of shape \(4, 3\)"):
        loss(tf.zeros((4, 1)), tf.zeros((4, 3)))
