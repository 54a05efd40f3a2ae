"""The score-function gradient of a model that draws samples."""

from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_reinforce import baselines
from tf_reinforce.functional import losses
from tf_reinforce.sampling import recording
from tf_reinforce.sampling import sample


class Rows(NamedTuple):
    """N examples, each repeated K times: R = N·K rows."""

    inputs: Any  # [R, …] or nested arrays
    targets: Any  # [R, …], nested arrays, or `None`
    sample_weight: Any  # [R] or [R, …], nested arrays, or `None`


class Estimate(NamedTuple):
    """The gradient of the expected loss from one batch, and what it was made from."""

    gradients: list  # one for each of the model's trainable variables
    loss: tf.Tensor  # scalar, the mean loss of the rows plus the model's own losses
    rows: Rows
    outputs: Any  # [R, …] outputs of the model, or nested arrays
    costs: tf.Tensor  # [R] float, the loss of each row, or minus its reward
    rewards: Any  # [R] float, the rewards without sample weights, or `None`
    log_probs: tf.Tensor  # [R] float, of all samples of a row
    entropies: tf.Tensor  # [R] float, in nats, of all samples of a row

    def baseline_batch(self):
        """Returns the `BaselineBatch` from which the baseline learns."""
        time_steps = tf.zeros_like(self.costs, tf.int32)
        returns = tf.stop_gradient(-self.costs)
        # `fit` has shuffled the examples, so that their order is a random permutation.
        permutation = tf.range(tf.size(returns))
        return baselines.BaselineBatch(
            self.rows.inputs, returns, time_steps, tf.size(returns), permutation
        )


class ScoreFunctionEstimator:
    """Estimates the gradient of a model's expected loss from the samples that it draws.

        ∇E[L] = E[ ∇L + (L - b) ∇ log p(z) ]

    L is an example's loss, z are all samples drawn for it, and b is the baseline. ∇L is
    the gradient for given samples; it is zero if L is minus a reward.

    Args:
        model: Keras model that calls `Sample` layers.
        costs: Function of `Rows` and outputs that returns the loss of each row, `[R]`,
            and the rewards `[R]` or `None`.
        baseline: `Baseline` of minus the loss.
        samples: Int K, how often the model draws samples for each example.
        entropy_coef: Float, the weight of the samples' entropy. Earlier samples on which
            it depends are constants.

    Reference:
        Schulman, Heess, Weber & Abbeel (2015), Gradient estimation using stochastic
        computation graphs, theorem 1. arXiv:1506.05254
    """

    def __init__(self, model, costs, baseline, samples, entropy_coef):
        self.model = model
        self.costs = costs
        self.baseline = baseline
        self.samples = samples
        self.entropy_coef = entropy_coef

    def gradients(self, rows, replayed=None, scale_loss=tf.identity):
        """Returns the `Estimate` of a batch.

        Args:
            rows: `Rows`.
            replayed: As in `recording.SampleRecorder`.
            scale_loss: Function that multiplies the loss by the optimizer's loss scale,
                which the gradients then contain.
        """
        with tf.GradientTape() as tape, tf.GradientTape(persistent=True) as probe:
            with recording.recording(replayed, probe=probe) as recorder:
                outputs = self.model(rows.inputs, training=True)
            log_probs, entropies = recorder.log_probs, recorder.entropies
            recorder.expect_all_called(sample.sample_layers(self.model))
            costs, rewards = self.costs(rows, outputs)
            # In float64, returns that are equal have advantages of exactly zero.
            returns = -tf.cast(costs, tf.float64)
            values = tf.zeros_like(returns)
            if self.baseline.is_value_function:
                values = tf.cast(self.baseline.values(rows.inputs), returns.dtype)
            # A row is an episode of one step.
            one_step = returns[None], tf.ones_like(returns, tf.bool)[None], values[None]
            advantages = returns - self.baseline.estimate(*one_step)[0]
            costs = tf.cast(costs, log_probs.dtype)
            count = tf.size(costs)
            loss = tf.reduce_mean(costs) + self.penalties(costs.dtype)
            surrogate = loss + losses.policy_gradient(log_probs, advantages, count)
            if self.entropy_coef:
                surrogate += self.entropy_coef * losses.entropy(entropies, count)
            scaled = scale_loss(surrogate)
        if not tf.executing_eagerly():  # costs nothing while a graph is traced
            recorder.expect_differentiable()
        gradients = losses.gradients(tape, scaled, self.model.trainable_variables)
        return Estimate(
            gradients, loss, rows, outputs, costs, rewards, log_probs, entropies
        )

    def repeat(self, *structures):
        """Repeats each of N examples K times, one after another, and returns the `Rows`.

        Args:
            *structures: Inputs, targets and sample weights, each `[N, …]`, nested or
                `None`.
        """

        def repeat(array):
            is_single = array is None or self.samples == 1
            return array if is_single else tf.repeat(array, self.samples, axis=0)

        return Rows(*keras.tree.map_structure(repeat, structures))

    def penalties(self, dtype):
        """Returns the sum of the model's own losses (regularizers, `add_loss`)."""
        penalties = [tf.cast(tf.reduce_sum(x), dtype) for x in self.model.losses]
        return tf.add_n(penalties) if penalties else tf.zeros([], dtype)
