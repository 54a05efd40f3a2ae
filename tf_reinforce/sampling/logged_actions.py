"""Training and evaluation of a sampling model on another policy's decisions."""

import dataclasses
import functools
import math
import statistics
from typing import Annotated, Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import heads
from tf_reinforce.functional import losses
from tf_reinforce.functional import off_policy
from tf_reinforce.functional import shapes
from tf_reinforce.sampling import sample
from tf_reinforce.settings import schema
from tf_reinforce.support import validation

_NUMBER = tf.TensorSpec([], tf.float64)
Estimators: Any = Literal["ips", "snips", "dr"]


@dataclasses.dataclass(frozen=True)
class LoggedOptions:
    """How a policy's value is estimated from logged decisions."""

    estimator: Estimators
    clip: Annotated[float, schema.Range(float(np.finfo("float32").tiny), 1e30)] | None
    top_k: schema.Count | None  # the size of the set of actions of the top-K correction
    reward_model: keras.Model | None  # of the rewards of all actions, for "dr"

    def __post_init__(self):
        schema.check_fields(self)
        if (self.estimator == "dr") != (self.reward_model is not None):
            raise ValueError(
                '`reward_model` belongs to estimator="dr". Received: '
                f"estimator={self.estimator!r}, reward_model={self.reward_model!r}"
            )


class LoggedBatch(NamedTuple):
    """`N` logged decisions."""

    contexts: Any  # [N, …] inputs of the model, or nested arrays
    actions: Any  # [N, …] raw actions of the head
    rewards: Any  # [N] float
    propensities: Any  # [N] float, probabilities or densities of the logging policy


def validated(model, options, contexts, actions, rewards, propensities):
    """Returns a `LoggedBatch` of arrays, or raises an error if a decision is invalid.

    Args:
        model: Keras model with one `Sample` layer.
        options: `LoggedOptions`.
        contexts, actions, rewards, propensities: As in `LoggedBatch`.
    """
    head = sample_layer(model).head
    lists_actions = options.estimator == "dr" or options.top_k not in (None, 1)
    if lists_actions and not isinstance(head, heads.Categorical):
        raise ValueError(
            '`estimator="dr"` and `top_k` require the head `Categorical`, whose actions '
            f"can be listed. Received: {head!r}"
        )
    spec, column = head.action_spec("float32"), functools.partial(_column, "actions")
    actions = keras.tree.map_structure_up_to(spec, column, actions, spec)
    contexts = keras.tree.map_structure(_context, contexts)
    rewards = _column("rewards", rewards)
    propensities = _column("propensities", propensities)
    batch = LoggedBatch(contexts, actions, rewards, propensities)
    sizes = {tuple(x.shape[:1]) for x in keras.tree.flatten(batch)}
    if len(sizes) > 1 or not len(rewards):
        raise ValueError(
            "Contexts, actions, rewards and propensities must be arrays with one row for "
            f"each decision. Received: {sorted(sizes)} rows"
        )
    for x, valid in zip(*map(keras.tree.flatten, (actions, head.is_valid(actions)))):
        _expect_none("actions", x, ~valid, f"raw actions of {head!r}")
    invalid = ~(propensities > 0)
    if all(x.dtype.is_integer for x in keras.tree.flatten(spec)):  # no densities
        invalid |= propensities > 1
    _expect_none("propensities", propensities, invalid, "above 0 and at most 1")
    _expect_none("rewards", rewards, ~np.isfinite(rewards), "finite")
    return batch


def _context(x):
    return tf.convert_to_tensor(x if tf.is_tensor(x) else shapes.unmasked("contexts", x))


def _column(name, values, spec=_NUMBER):
    """Returns a column of a log as an array of numbers `[N, …]`, of shape and type."""
    values, shape = shapes.unmasked(name, values), tuple(spec.shape)
    kinds = "biu" if spec.dtype.is_integer else "biuf"
    if not values.ndim or values.shape[1:] != shape or values.dtype.kind not in kinds:
        raise ValueError(
            f"`{name}` must be an array of shape {('N', *shape)} of numbers, integers if "
            f"discrete. Received: shape {values.shape} and type {values.dtype}. "
            "Convert whole numbers with actions.astype(int), and names with "
            "np.unique(names, return_inverse=True)."
        )
    return values.astype(spec.dtype.name)


def _expect_none(name, values, invalid, requirement):
    if invalid.any():
        index = int(np.argwhere(invalid)[0][0])
        raise ValueError(
            f"`{name}` must be {requirement}. Received: {values[index]} in row {index}, "
            "counted from 0"
        )


def sample_layer(model):
    """Returns the only `Sample` layer of a model, or raises an error."""
    found = sample.sample_layers(model)
    if len(found) != 1:
        raise ValueError(
            "Logged decisions require a model with one `Sample` layer. Received: "
            f"{model.name!r} with {len(found)} Sample layers"
        )
    return found[0]


class Scores(NamedTuple):
    """What a policy and a reward model compute for `N` logged decisions."""

    log_probs: tf.Tensor  # [N] float, of the logged actions under the policy
    entropies: tf.Tensor  # [N] float, in nats
    # Predicted rewards, zero without a reward model:
    predicted: tf.Tensor  # [N] float, of the logged actions
    by_policy: tf.Tensor  # [N] float, of the policy
    by_set: tf.Tensor  # [N] float, Σₐ α(a|x) q(x, a) for the top-K correction


def _scores(model, batch, options, training):
    """Returns the `Scores` of a batch of decisions, with gradients for the policy.

    Those of a set, Σₐ α(a|x) q(x, a), have the probability α that K samples contain an
    action.
    """
    with sample.recording([batch.actions]) as recorder:
        model(batch.contexts, training=training)
    sums = recorder.sums()
    if options.estimator != "dr":
        return Scores(*sums, *[tf.zeros_like(sums[0])] * 3)
    log_probs = tf.math.log_softmax(recorder.samples[0].outputs)
    rewards = tf.stop_gradient(
        tf.cast(options.reward_model(batch.contexts, training=False), log_probs.dtype)
    )
    if rewards.shape[-1] != log_probs.shape[-1] or rewards.shape.rank != 2:
        raise ValueError(
            "`reward_model` must return the rewards of all actions, shape (batch, "
            f"{log_probs.shape[-1]}). Received: shape {rewards.shape}"
        )
    logged = tf.gather(rewards, batch.actions, axis=1, batch_dims=1)
    probs, k = tf.exp(log_probs), options.top_k or 1
    in_set = probs if k == 1 else 1.0 - (1.0 - probs) ** k
    means = (tf.reduce_sum(x * rewards, axis=1) for x in (probs, in_set))
    return Scores(*sums, logged, *means)


def _terms(scored, batch, options):
    """Returns values, importance weights and advantages, `[N]` each.

    The mean of the values is an estimate V of the policy's value. The gradient of V is
    that of REINFORCE with importance weights w:

        ∇V = 1/N Σₙ wₙ Aₙ ∇ log π(aₙ|xₙ)

    The advantage A depends on the estimator. With `"snips"`, it is the reward minus V,
    divided by the mean weight. With the other estimators, it is the reward minus its
    prediction, and `"ips"` is the same as `"dr"` with predictions of zero.
    """
    log_probs = scored.log_probs
    rewards, propensities = (
        tf.cast(x, log_probs.dtype) for x in (batch.rewards, batch.propensities)
    )
    weights = off_policy.importance_weights(log_probs, propensities, options.clip)
    if options.estimator == "snips":
        values = off_policy.snips(weights, rewards)
        advantages = (rewards - tf.reduce_mean(values)) / tf.reduce_mean(weights)
        return values, weights, advantages
    predictions = scored.predicted, scored.by_policy
    values = off_policy.doubly_robust(weights, rewards, *predictions)
    return values, weights, rewards - scored.predicted


def estimate(model, batch, options, scale_loss=tf.identity):
    """Returns the gradients of minus the estimated value, and what they were made from.

    Args:
        model: Keras model with one `Sample` layer.
        batch: `LoggedBatch`, validated.
        options: `LoggedOptions`.
        scale_loss: Function of the loss, whose result is differentiated.

    Returns:
        List of gradients, and the values, importance weights and entropies, `[N]` each.
    """
    with tf.GradientTape() as tape:
        scored = _scores(model, batch, options, True)
        values, weights, advantages = _terms(scored, batch, options)
        log_probs, factors = scored.log_probs, weights
        if options.top_k is not None:
            factors *= off_policy.top_k_multipliers(log_probs, options.top_k)
        factors *= advantages
        loss = losses.policy_gradient(log_probs, factors, tf.size(log_probs))
        loss -= tf.reduce_mean(scored.by_set)  # the gradient of the predicted value
        loss = scale_loss(loss)
    gradients = losses.gradients(tape, loss, model.trainable_variables)
    return gradients, values, weights, scored.entropies


def evaluate(model, batch, options, confidence, batch_size=1024):
    """Returns a policy's estimated value, with a confidence interval, as a dict.

    Args:
        model: Keras model with one `Sample` layer.
        batch: `LoggedBatch`, validated.
        options: `LoggedOptions`, validated.
        confidence: Float in (0, 1).
        batch_size: Int, the number of decisions per call of the model.
    """
    validation.within("confidence", confidence, 1e-6, 1 - 1e-12)
    count = len(batch.rewards)
    if count < 2:
        raise ValueError("An interval needs at least two logged decisions")
    parts = [
        _scores(model, _rows(batch, begin, begin + batch_size), options, training=False)
        for begin in range(0, count, batch_size)
    ]
    columns = (tf.concat(column, axis=0) for column in zip(*parts))
    scored = Scores(*(tf.cast(column, tf.float64) for column in columns))
    values, weights, _ = map(np.asarray, _terms(scored, batch, options))
    if not np.isfinite(values).all():
        row = int(np.argmin(np.isfinite(values)))
        raise FloatingPointError(
            "The estimate of each decision must be finite. Received: "
            f"{values[row]} in row {row}, with the importance weight {weights[row]}"
        )
    mean, error = values.mean(), values.std(ddof=1) / math.sqrt(count)
    radius = statistics.NormalDist().inv_cdf((1 + confidence) / 2) * error
    squares = count * (weights**2).sum()
    return {
        "policy_value": float(mean),
        "policy_value_lower": float(mean - radius),
        "policy_value_upper": float(mean + radius),
        "effective_sample_size": float(weights.sum() ** 2 / squares) if squares else 0.0,
    }


def _rows(batch, begin, end):
    return keras.tree.map_structure(lambda x: x[begin:end], batch)
