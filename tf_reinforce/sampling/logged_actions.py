"""Training and evaluation of a sampling model on another policy's decisions."""

import dataclasses
import math
import statistics
from typing import Annotated, Any, Literal, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import heads
from tf_reinforce.data import spaces
from tf_reinforce.functional import losses
from tf_reinforce.functional import off_policy
from tf_reinforce.functional import shapes
from tf_reinforce.sampling import checked_steps
from tf_reinforce.sampling import recording
from tf_reinforce.sampling import sample
from tf_reinforce.settings import schema
from tf_reinforce.support import validation

Estimators: Any = Literal["ips", "snips", "dr"]
EXAMPLE = "the estimate of row {} (from 0) of the log"


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
                "`reward_model`, a Keras model of the rewards of all actions, belongs to "
                f'estimator="dr". Received: estimator={self.estimator!r}, '
                f"reward_model={self.reward_model!r}"
            )


class LoggedBatch(NamedTuple):
    """`N` logged decisions."""

    contexts: Any  # [N, …] inputs of the model, or nested arrays
    actions: Any  # [N, …] raw actions of the head
    rewards: Any  # [N] float
    propensities: Any  # [N] float, probabilities or densities of the logging policy

    def validated(self, model, options):
        """Returns the decisions as arrays, or raises an error if one is invalid.

        Args:
            model: Keras model with one `Sample` layer.
            options: `LoggedOptions`.
        """
        head = sample_layer(model).head
        lists_actions = options.estimator == "dr" or options.top_k not in (None, 1)
        if lists_actions and not isinstance(head, heads.Categorical):
            raise ValueError(
                '`estimator="dr"` and `top_k` require the head `Categorical`, whose '
                f"actions can be listed. Received: {head!r}"
            )
        rewards = _column("rewards", self.rewards, ()).astype("float64")
        propensities = _column("propensities", self.propensities, ()).astype("float64")
        spec = head.action_spec("float32")
        names = spaces.names(spec, ("actions",))
        actions = keras.tree.map_structure_up_to(
            spec, _actions, spec, names, self.actions
        )
        contexts = keras.tree.map_structure(_contexts, self.contexts)
        flat = keras.tree.flatten((contexts, actions, rewards, propensities))
        sizes = {len(x) for x in flat}
        if len(sizes) > 1 or not len(rewards):
            raise ValueError(
                "Contexts, actions, rewards and propensities must have one row for each "
                f"decision. Received: {sorted(sizes)} rows"
            )
        keras.tree.map_structure(
            lambda *leaf: _expect_none(*leaf[:2], ~leaf[2], f"raw actions of {head!r}"),
            *(names, actions, head.is_valid(actions)),
        )
        invalid = ~(propensities > 0)
        if all(x.dtype.is_integer for x in keras.tree.flatten(spec)):  # no densities
            invalid |= propensities > 1
        _expect_none("propensities", propensities, invalid, "above 0 and at most 1")
        _expect_none("rewards", rewards, ~np.isfinite(rewards), "finite")
        return LoggedBatch(contexts, actions, rewards, propensities)


def _actions(spec, name, values):
    """Returns a column of actions, `[N, …]`, in the head's type."""
    values = _column(name, values, tuple(spec.shape))
    with np.errstate(invalid="ignore"):  # compared below
        actions = values.astype(spec.dtype.name)
    if spec.dtype.is_integer:
        _expect_none(name, values, actions != values, "whole numbers")
    return actions


def _contexts(values):
    is_text = isinstance(values, np.ndarray) and isinstance(next(values.flat, 0), str)
    if tf.is_tensor(values) or is_text:
        return tf.convert_to_tensor(values)
    return _column("contexts", values)


def _column(name, values, shape=None):
    """Returns a column of a log as an array of numbers `[N, *shape]`."""
    values = shapes.unmasked(name, values)
    if values.dtype == object:  # a column of a table
        values = np.array(values.tolist())
    is_array = values.ndim and shape in (None, values.shape[1:])
    if not is_array or values.dtype.kind not in "biuf":
        row = {None: "one row", (): "one number"}.get(shape, f"shape {shape}")
        raise ValueError(
            f"`{name}` must be an array of numbers, with {row} for each decision. "
            f"Received: shape {values.shape} and type {values.dtype}. Convert names with "
            "np.unique(names, return_inverse=True)."
        )
    return values


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
    predicted: Any = None  # [N] float, predicted rewards of the logged actions
    by_policy: Any = None  # [N] float, predicted rewards of the policy
    by_set: Any = None  # [N] float, Σₐ α(a|x) q(x, a) for the top-K correction


class Terms(NamedTuple):
    """The parts of an estimate from `N` logged decisions."""

    values: tf.Tensor  # [N] float, whose mean estimates the value of the policy
    weights: tf.Tensor  # [N] float, the importance weights
    advantages: tf.Tensor  # [N] float, which weight the log-probabilities


def scores(model, batch, options, training):
    """Returns the `Scores` of a batch of decisions, with gradients for the policy."""
    with recording.recording([batch.actions]) as recorder:
        model(batch.contexts, training=training)
    log_probs, entropies = recorder.log_probs, recorder.entropies
    if options.estimator != "dr":
        return Scores(log_probs, entropies)
    return Scores(log_probs, entropies, *_predictions(batch, recorder, options))


def _predictions(batch, recorder, options):
    """Returns rewards predicted for the logged actions, for the policy and for K samples.

    The last is Σₐ α(a|x) q(x, a), with the probability α that K samples contain an
    action.
    """
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
    return logged, *(tf.reduce_sum(x * rewards, axis=1) for x in (probs, in_set))


def terms(scored, batch, options):
    """Returns the `Terms` of an estimate.

    The gradient of an estimate V is that of REINFORCE with importance weights w:

        ∇V = 1/N Σₙ wₙ Aₙ ∇ log π(aₙ|xₙ)

    The advantage A depends on the estimator: with `"ips"` it is the reward, with
    `"snips"` the reward minus V, divided by the mean weight, and with `"dr"` the reward
    minus its prediction.
    """
    log_probs = scored.log_probs
    rewards, propensities = (
        tf.cast(x, log_probs.dtype) for x in (batch.rewards, batch.propensities)
    )
    weights = off_policy.importance_weights(log_probs, propensities, options.clip)
    if options.estimator == "ips":
        return Terms(off_policy.ips(weights, rewards), weights, rewards)
    if options.estimator == "snips":
        values = off_policy.snips(weights, rewards)
        advantages = (rewards - tf.reduce_mean(values)) / tf.reduce_mean(weights)
        return Terms(values, weights, advantages)
    predictions = scored.predicted, scored.by_policy
    values = off_policy.doubly_robust(weights, rewards, *predictions)
    return Terms(values, weights, rewards - scored.predicted)


def surrogate(scored, estimate, options):
    """Returns the scalar loss whose gradient is minus that of the estimated value."""
    log_probs, factors = scored.log_probs, estimate.weights
    if options.top_k is not None:
        factors *= off_policy.top_k_multipliers(log_probs, options.top_k)
    advantages = factors * estimate.advantages
    loss = losses.policy_gradient(log_probs, advantages, tf.size(log_probs))
    if options.estimator == "dr":
        loss -= tf.reduce_mean(scored.by_set)  # the gradient of the predicted value
    return loss


class LoggedSteps:
    """Trains the model of a `ScoreFunction` on logged decisions, with its optimizer.

    Args:
        owner: `ScoreFunction`, compiled.
        options: `LoggedOptions`.
    """

    def __init__(self, owner, options):
        self.owner = owner
        self.options = options
        # The loss has no tracker, because its value has no meaning.
        names = "policy_value", "effective_sample_size", "entropy"
        self.metrics = [keras.metrics.Mean(name=name) for name in names]

    def train_step(self, data):
        """Makes a step as `keras.Model.train_step` does; returns the logs."""
        owner = self.owner
        contexts, (*logged, numbers), _ = keras.utils.unpack_x_y_sample_weight(data)
        batch = LoggedBatch(contexts, *logged)
        states = checked_steps.states(owner.model)
        with tf.GradientTape() as tape:
            scored = scores(owner.model, batch, self.options, True)
            estimate = terms(scored, batch, self.options)
            loss = surrogate(scored, estimate, self.options)
            loss += owner.estimator.penalties(loss.dtype)
            loss = owner.optimizer.scale_loss(loss)
        gradients = losses.gradients(tape, loss, owner.model.trainable_variables)
        step = states, estimate.values, numbers, contexts
        owner.apply_if_finite(gradients, step)
        value, sizes, entropy = self.metrics
        value.update_state(estimate.values)
        entropy.update_state(scored.entropies)
        weights = tf.cast(estimate.weights, tf.float64)  # float32 has no larger squares
        share = tf.math.divide_no_nan(
            tf.reduce_mean(weights) ** 2, tf.reduce_mean(weights**2)
        )
        sizes.update_state(share, tf.size(weights))
        return owner.get_metrics_result()


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
        scores(model, _rows(batch, begin, begin + batch_size), options, training=False)
        for begin in range(0, count, batch_size)
    ]
    columns = (None if x[0] is None else tf.concat(x, axis=0) for x in zip(*parts))
    scored = Scores(*(None if x is None else tf.cast(x, tf.float64) for x in columns))
    values, weights, _ = map(np.asarray, terms(scored, batch, options))
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
