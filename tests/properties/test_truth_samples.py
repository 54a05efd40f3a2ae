"""Tests the gradient of `ScoreFunction` by enumeration of all samples, in float64."""

import keras
import numpy as np
import parts
import pytest
import sampling_models as models
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce import testing

GRAPHS = {
    "chain": (models.chain, (2,)),
    "latent_bits": (models.latent_bits, (2,)),
    "sequence": (models.sequence, (3, 2)),
    "loop": (models.Loop, (2,)),
    "recurrent": (models.recurrent, (3, 2)),
}
BASELINES = {
    "leave_one_out": lambda: "leave_one_out",
    "leave_one_out_of_batch": baselines.LeaveOneOut,
    "none": lambda: None,
    "moving_average": lambda: average(),
    "value": lambda: keras.Sequential([keras.Input((2,)), models.dense(1)]),
}


def average():
    """A moving average that is not zero."""
    baseline = baselines.MovingAverage()
    baseline.build(None)
    baseline.sums.assign(3.0)
    baseline.shares.assign(2.0)
    return baseline


@tf.function(autograph=False)
def reward(inputs, samples):
    """A reward that depends on the input and on all numbers of the sample."""
    numbers = [tf.reshape(tf.cast(x, "float64"), [len_of(x), -1]) for x in flat(samples)]
    numbers = tf.concat(numbers, axis=-1)
    powers = 0.7 ** tf.range(numbers.shape[-1], dtype=tf.float64)
    return tf.reduce_sum(tf.sin(numbers + 1.0) * powers, axis=-1) * tf.cast(
        3.0 + flat(inputs)[0][:, 0], "float64"
    )


def flat(structure):
    return keras.tree.flatten(structure)


def len_of(array):
    return tf.shape(array)[0]


def check(model, inputs, targets=None, tolerance=1e-12, **options):
    score_function = tfr.ScoreFunction(model, **options)
    score_function.build((None, *np.shape(flat(inputs)[0])[1:]))
    report = testing.check_score_function(
        score_function, inputs, targets, tolerance=tolerance
    )
    assert np.abs(report.exact).max() > 1e-3
    return report


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("samples", [1, 2])
def test_expected_gradient_of_a_loss_is_the_gradient_of_the_expected_loss(name, samples):
    """Losses depend on samples and on weights after the samples."""
    make, shape = GRAPHS[name]
    targets = np.array([[0.7]])
    check(make(), models.examples(1, *shape), targets, loss="mse", samples=samples)


@pytest.mark.parametrize("baseline", BASELINES)
@pytest.mark.parametrize("examples, samples", [(1, 3), (2, 2), (3, 1)])
def test_every_baseline_leaves_the_expected_gradient_unchanged(
    baseline, examples, samples
):
    check(
        models.policy(heads.Categorical(3)),
        models.examples(examples, 2),
        reward=reward,
        samples=samples,
        baseline=BASELINES[baseline](),
    )


@pytest.mark.parametrize(
    "head",
    [parts.HEADS[name].make() for name in parts.INTEGER_HEADS],
    ids=lambda head: type(head).__name__,
)
def test_expected_gradient_of_a_reward_is_exact_for_every_discrete_head(head):
    check(models.policy(head), models.examples(1, 2), reward=reward, samples=2)


def test_padding_does_not_change_the_expected_gradient():
    words = np.array([[1, 2, 0]])

    @tf.function(autograph=False)
    def reward_of_words(inputs, samples):
        counted = tf.where(inputs > 0, samples * tf.cast(inputs, "int64"), 0)
        return tf.cast(tf.reduce_sum(counted, axis=1), tf.float64) ** 2

    check(models.padded(), words, reward=reward_of_words, samples=2)


def test_illegal_choices_do_not_change_the_expected_gradient():
    inputs = [models.examples(1, 2), np.array([[1, 0, 1]], "int8")]
    report = check(models.masked(), inputs, reward=reward, samples=2)
    assert report.batches == 2**2


def test_sample_weights_and_regularizers_belong_to_the_expected_loss():
    model = models.chain()
    model.layers[1].kernel_regularizer = keras.regularizers.L2(0.1)
    score_function = tfr.ScoreFunction(model, loss="mse", samples=2)
    score_function.build((None, 2))
    report = testing.check_score_function(
        score_function, models.examples(1, 2), np.ones([1, 1]), np.array([0.3])
    )
    assert report.error < 1e-12


def test_entropy_coef_adds_the_gradient_of_the_mean_entropy():
    inputs, coefficient = models.examples(2, 2), 0.3
    model = models.policy(heads.Categorical(3))
    replayed = [np.array([0, 2, 1, 1])]
    gradients = [
        tfr.ScoreFunction(model, reward=reward, samples=2, entropy_coef=coef)
        .gradients(tf.constant(inputs), replayed=replayed)
        .gradients
        for coef in (0.0, coefficient)
    ]
    with tf.GradientTape() as tape:
        logits = model.layers[1](inputs)
        probs = tf.nn.softmax(logits)
        entropy = -tf.reduce_mean(tf.reduce_sum(probs * tf.math.log(probs), axis=1))
    expected = tape.gradient(entropy, model.trainable_variables)
    for without, with_bonus, bonus in zip(*gradients, expected, strict=True):
        # The gradients are those of a loss, which the optimizer descends.
        np.testing.assert_allclose(
            without - with_bonus, coefficient * bonus, rtol=1e-10, atol=1e-14
        )


def test_check_fails_if_the_baseline_contains_the_own_sample():
    class Half(baselines.Baseline):
        def estimate(self, returns, valid, values):
            return returns / 2

    with pytest.raises(AssertionError, match="is not the gradient of the expected loss"):
        check(
            models.policy(heads.Categorical(3)),
            models.examples(1, 2),
            reward=reward,
            baseline=Half(),
            samples=1,
        )
