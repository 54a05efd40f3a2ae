"""Tests the gradients of logged decisions by enumeration of all logs, in float64.

Three contexts and three actions make 27 logs with one decision for each context.
"""

import keras
import numpy as np
import pytest
import sampling_models as models
import sweeps
from proofs import documented
from proofs import settings_of

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce import testing

RNG = np.random.default_rng(0)
CONTEXTS = RNG.normal(size=(3, 2))
REWARDS = RNG.normal(1.0, 1.0, size=(3, 3))
PROPENSITIES = RNG.dirichlet([3, 3, 3], size=3)


def reward_model():
    inputs = keras.Input((2,), dtype=models.DTYPE)
    return keras.Model(inputs, models.dense(3)(inputs))


def check(tolerance=1e-12, propensities=PROPENSITIES, **options):
    model = tfr.ScoreFunction(models.policy(heads.Categorical(3)), loss="mse")
    report = testing.check_logged_gradient(
        model, CONTEXTS, REWARDS, propensities, tolerance=tolerance, **options
    )
    assert report.batches == 27 and np.abs(report.exact).max() > 0.05
    return report


@pytest.mark.parametrize("top_k", sweeps.some([None, 1, 2, 4], always=[None, 2]))
def test_expected_gradient_of_ips_is_the_gradient_of_the_value(top_k):
    """With `top_k`, of the value of a set of K samples whose best action counts."""
    check(estimator="ips", top_k=top_k)


def test_expected_gradient_of_doubly_robust_is_exact_for_wrong_predictions():
    check(estimator="dr", reward_model=reward_model())


class Truth(keras.Model):
    """Predicts the rewards exactly."""

    def call(self, contexts, training=False):
        return keras.ops.convert_to_tensor(REWARDS)


@pytest.mark.parametrize("top_k", [None, 3])
def test_doubly_robust_gradient_is_exact_for_clipped_weights_and_right_predictions(top_k):
    """The other half of double robustness: the weights are wrong, the rewards right."""
    check(estimator="dr", clip=0.5, reward_model=Truth(), top_k=top_k)


def test_doubly_robust_gradient_of_a_set_is_exact_for_wrong_predictions():
    check(estimator="dr", reward_model=reward_model(), top_k=2)


@pytest.mark.parametrize("options, bias, cosine", documented("Logged decisions, exactly"))
def test_bias_of_biased_options_is_that_of_the_document(options, bias, cosine):
    report = check(tolerance=None, **settings_of(options))
    assert f"{report.relative_error:.3f}" == bias
    assert f"{report.cosine:.4f}" == cosine


def test_check_fails_for_a_biased_estimate():
    with pytest.raises(AssertionError, match="is not the gradient of the value"):
        check(clip=0.9)
