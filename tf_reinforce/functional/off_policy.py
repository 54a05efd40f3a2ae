"""Estimates a policy's value from decisions that another policy has made.

A log records decisions of a logging policy μ. Each decision has a context xₙ, an action
aₙ, a reward rₙ and a propensity pₙ = μ(aₙ|xₙ), which is the probability with which μ
chose the action. The functions in this module estimate the value of another policy π from
such a log, that is, its expected reward V = E[Σₐ π(a|x) r(x, a)].
"""

import tensorflow as tf

from tf_reinforce.functional import shapes


def importance_weights(log_probs, propensities, clip=None):
    """Returns the importance weights of logged actions.

        wₙ = min(π(aₙ|xₙ) / pₙ, c)

    Args:
        log_probs: `[N]` float, log π(aₙ|xₙ).
        propensities: `[N]` float above 0, the probabilities pₙ of the logging policy.
        clip: Float c above 0, the largest weight, or `None` for no limit. Clipping biases
            the estimates towards smaller rewards.

    Returns:
        `[N]` float, through which no gradient flows.
    """
    shapes.expect([(log_probs, "N"), (propensities, "N")])
    weights = tf.exp(log_probs) / tf.cast(propensities, log_probs.dtype)
    if clip is not None:
        weights = tf.minimum(weights, tf.constant(clip, weights.dtype))
    return tf.stop_gradient(weights)


def top_k_multipliers(log_probs, k):
    """Returns the gradient's factors for a policy that chooses K actions at once.

        λ(a) = d α(a) / d π(a) = K (1 - π(a|x))ᴷ⁻¹,    α(a) = 1 - (1 - π(a|x))ᴷ

    With these factors, the policy learns to choose a set of K actions, of which the best
    counts. For this purpose, π(a) is replaced by α(a), which is the probability that K
    independent samples contain the action a.

    Args:
        log_probs: `[N]` float, log π(aₙ|xₙ), of a discrete distribution.
        k: Int of at least 1. For K = 1, the factors are one.

    Returns:
        `[N]` float, through which no gradient flows.

    Reference:
        Chen et al. (2019), Top-K off-policy correction for a REINFORCE recommender
        system, eq. 8. arXiv:1812.02353
    """
    others = tf.maximum(1.0 - tf.exp(log_probs), 0.0)
    return tf.stop_gradient(k * others ** (k - 1))


def snips(weights, rewards):
    """Returns the linear terms of self-normalized inverse propensity scoring.

        V = Σₙ wₙ rₙ / Σₙ wₙ

    Dividing by the sum of the weights causes a bias of order 1/N, but the variance is
    usually smaller than that of inverse propensity scoring. If a constant is added to all
    rewards, the estimate grows by this constant.

    Args:
        weights: `[N]` float, the importance weights, not all zero.
        rewards: `[N]` float.

    Returns:
        `[N]` float, V + wₙ (rₙ - V) / w̄ with the mean weight w̄. Their mean is V, and
        their variance over N estimates V's variance (delta method).

    Reference:
        Swaminathan & Joachims (2015), The self-normalized estimator for counterfactual
        learning.
    """
    shapes.expect([(weights, "N"), (rewards, "N")])
    value = tf.reduce_sum(weights * rewards) / tf.reduce_sum(weights)
    return value + weights * (rewards - value) / tf.reduce_mean(weights)


def doubly_robust(weights, rewards, predictions, expected_predictions):
    """Returns the terms of the doubly robust estimator; their mean estimates the value.

        V = 1/N Σₙ [Σₐ π(a|xₙ) q(xₙ, a) + wₙ (rₙ - q(xₙ, aₙ))]

    With predictions of zero, this is inverse propensity scoring (Horvitz & Thompson,
    1952), V = 1/N Σₙ wₙ rₙ, which needs a logging policy that can choose whatever the
    policy can.

    The estimate is unbiased if the propensities are right and the weights are not
    clipped. It is also unbiased if the predictions q are the expected rewards.

    Args:
        weights: `[N]` float, the importance weights.
        rewards: `[N]` float.
        predictions: `[N]` float, the predicted rewards q(xₙ, aₙ) of the logged actions.
        expected_predictions: `[N]` float, the policy's predicted rewards
            Σₐ π(a|xₙ) q(xₙ, a).

    Returns:
        `[N]` float.

    Reference:
        Dudík, Langford & Li (2011), Doubly robust policy evaluation and learning.
        arXiv:1103.4601
    """
    arrays = weights, rewards, predictions, expected_predictions
    shapes.expect([(array, "N") for array in arrays])
    return expected_predictions + weights * (rewards - predictions)
