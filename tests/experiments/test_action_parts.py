"""Tests the description of action distributions against samples and definitions."""

import numpy as np
import pytest
import tensorflow as tf
import toy_heads

import tf_reinforce as tfr
from tf_reinforce.data import tensor_noise
from tf_reinforce.experiments import action_parts

REAL = {
    "Gaussian": tfr.heads.Gaussian(
        2, low=[-1.0, -5.0], high=[1.0, 5.0], initial_scale=0.5
    ),
    "ClippedGaussian": tfr.heads.ClippedGaussian(1, -0.3, 0.5, initial_scale=0.7),
    "TanhGaussian": tfr.heads.TanhGaussian(1, 0.0, 10.0, initial_scale=0.7),
    "Beta": tfr.heads.Beta(2, [0.0, -4.0], [1.0, 4.0]),
    "integer": tfr.heads.Gaussian(1, low=0, high=9, integer=True, initial_scale=2.0),
}


def outputs_of(head, rows=3):
    if not head.built:
        head.build((None, head.outputs_size))
    return tf.random.stateless_normal([rows, head.outputs_size], [1, 2])


@pytest.mark.parametrize("name", REAL)
def test_mean_and_deviation_equal_those_of_many_samples(name):
    """The tolerance of the mean is six standard errors."""
    head, count = REAL[name], 10_000
    outputs = outputs_of(head)
    parts = action_parts.describe(head, outputs)
    shape = [count, len(outputs), *head.noise.shape]
    noise = tensor_noise.stateless_noise(3, head.noise.kind, shape, outputs.dtype)
    raw = head.sample(tf.tile(outputs[None], [count, 1, 1]), noise)
    flat = tf.reshape(raw, [-1, head.size])
    samples = np.reshape(head.to_environment(flat), [count, len(outputs), head.size])
    for index, part in enumerate(parts):
        mean, deviation = samples[..., index].mean(0), samples[..., index].std(0)
        np.testing.assert_allclose(part.mean, mean, atol=0.06 * deviation.max(), rtol=0)
        np.testing.assert_allclose(part.deviation, deviation, rtol=0.06)
        assert part.name == (f"action {index}" if head.size > 1 else "action")


def test_taken_numbers_are_in_the_units_of_the_environment():
    head = REAL["Beta"]
    [_, second] = action_parts.describe(
        head, outputs_of(head, 1), tf.constant([[0, 0.75]])
    )
    np.testing.assert_allclose(second.taken, [2.0])
    head = REAL["Gaussian"]
    [first, _] = action_parts.describe(head, outputs_of(head, 1), tf.constant([[7.0, 1]]))
    np.testing.assert_allclose(first.taken, [1.0])


def test_probabilities_are_those_of_the_distribution():
    """Each part is compared with probabilities of the TFP distribution of the head."""
    categorical = tfr.heads.Categorical(3, start=5)
    outputs = outputs_of(categorical)
    [part] = action_parts.describe(categorical, outputs)
    assert part.values == ["5", "6", "7"]
    for value in range(3):
        expected = categorical.distribution(outputs).prob([value] * 3)
        np.testing.assert_allclose(part.probs[:, value], expected, rtol=1e-5)

    multi = tfr.heads.MultiCategorical([2, 3], start=[0, 4])
    outputs = outputs_of(multi)
    actions = np.array([[1, 2]] * 3)
    first, second = action_parts.describe(multi, outputs)
    assert second.values == ["4", "5", "6"]
    expected = multi.distribution(outputs).prob(actions)
    np.testing.assert_allclose(
        first.probs[:, 1] * second.probs[:, 2], expected, rtol=1e-5
    )

    flags = tfr.heads.Bernoulli(2)
    outputs = outputs_of(flags)
    first, second = action_parts.describe(flags, outputs)
    expected = flags.distribution(outputs).prob([[1, 0]] * 3)
    np.testing.assert_allclose(
        first.probs[:, 1] * second.probs[:, 0], expected, rtol=1e-5
    )

    budget = tfr.heads.Multinomial(3, trials=1)
    outputs = outputs_of(budget)
    [part] = action_parts.describe(budget, outputs)
    expected = budget.distribution(outputs).prob([[0, 1, 0]] * 3)
    np.testing.assert_allclose(part.probs[:, 1], expected, rtol=1e-5)


def test_composite_has_the_parts_of_its_heads_by_name():
    head = tfr.heads.Composite({"gear": tfr.heads.Categorical(3), "arm": REAL["Beta"]})
    outputs = outputs_of(head)
    actions = {"gear": np.array([0, 1, 2]), "arm": tf.fill([3, 2], 0.5)}
    parts = action_parts.describe(head, outputs, actions)
    assert [part.name for part in parts] == ["arm 0", "arm 1", "gear"]
    alone = action_parts.describe(REAL["Beta"], outputs[:, :4])
    np.testing.assert_allclose(parts[1].mean, alone[1].mean)
    assert parts[1].taken.tolist() == [0.0] * 3


def test_masked_values_have_the_probability_zero():
    head = tfr.heads.Categorical(3)
    outputs = head.mask_outputs(outputs_of(head), tf.constant([[1, 0, 1]] * 3, tf.int8))
    [part] = action_parts.describe(head, outputs)
    assert (part.probs[:, 1] == 0).all()
    np.testing.assert_allclose(part.probs.sum(1), 1, rtol=1e-6)


def test_custom_heads_are_described_by_their_distribution_or_by_samples():
    """A subclass of `Categorical` may have another distribution than its parameters."""
    tempered = toy_heads.built(toy_heads.Tempered(3))
    tempered.set_weights([np.full_like(x, 3.0) for x in tempered.get_weights()])
    outputs = outputs_of(tempered)
    [part] = action_parts.describe(tempered, outputs)
    expected = tempered.distribution(outputs).prob([1] * 3)
    np.testing.assert_allclose(part.probs[:, 1], expected, rtol=1e-5)
    wrong = np.asarray(tempered.parameters(outputs)["probs"])
    assert abs(part.probs - wrong).max() > 0.05

    switches = toy_heads.Switches(2)
    outputs = outputs_of(switches)
    parts = action_parts.describe(switches, outputs, np.array([[1, 0]] * 3))
    tolerance = 6 * 0.5 / 16  # six standard errors of a mean of 256 flags
    for index, part in enumerate(parts):
        expected = tf.sigmoid(outputs)[:, index]
        np.testing.assert_allclose(part.mean, expected, atol=tolerance)
        assert part.taken.tolist() == [1 - index] * 3
