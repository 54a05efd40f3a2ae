"""Makes one update from completions, and restores all weights if it fails."""

import contextlib

import keras
import tensorflow as tf

from tf_reinforce.data import minibatches
from tf_reinforce.functional import losses
from tf_reinforce.sequences.estimator import METRICS

FINISHED, NOT_FINITE, OTHER_DISTRIBUTION = 0, 1, 2  # the status of an update

# The largest accepted mean difference between the log-probabilities of tokens when they
# were sampled and when they are scored, in nats. Half precision rounds coarsely.
_MAX_DIFFERENCE, _MAX_HALF_DIFFERENCE = 0.01, 0.3


class SequenceUpdate:
    """Makes one update with the gradients of a `SequenceEstimator`.

    All gradient steps of an update use the same rewards and advantages. If a gradient or
    a weight is not finite, or if the tokens were not sampled from the distribution that
    is scored, the status is not `FINISHED`, and the weights are invalid.

    Args:
        estimator: `SequenceEstimator`.
        optimizer: Keras optimizer, built on the weights of the estimator.
        updates: Int64 variable, the number of updates so far.
    """

    def __init__(self, estimator, optimizer, updates):
        self.estimator = estimator
        self.optimizer = optimizer
        self.updates = updates
        self.options = estimator.options
        is_half = "16" in estimator.policy.causal_lm.compute_dtype
        self._max_difference = _MAX_HALF_DIFFERENCE if is_half else _MAX_DIFFERENCE
        # An optimizer with loss scaling itself skips a step that overflows.
        self._skips_overflow = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)

    @property
    def variables(self):
        """Returns all variables that an update changes."""
        return [*self.estimator.variables, *self.optimizer.variables, self.updates]

    @contextlib.contextmanager
    def restored_on_error(self):
        """Restores all variables if the `with` block raises an error."""
        before = [tf.identity(variable.value) for variable in self.variables]
        try:
            yield
        except BaseException:
            for variable, value in zip(self.variables, before, strict=True):
                variable.assign(value)
            raise

    def __call__(self, completions, rewards, permutations):
        """Makes one update.

        Args:
            completions: `Completions` of R rows.
            rewards: `[R]` float.
            permutations: `[passes, R]` int32, random permutations of the rows. Without
                minibatches and passes, they are not used.

        Returns:
            `[1 + len(METRICS)]` float64: the status, and the values of `METRICS`.
        """
        batch = self.estimator.batch(completions, rewards)
        if self.options.has_minibatches:
            status, metrics = self._minibatch_steps(batch, permutations)
        else:
            status, metrics = self._step(batch, FINISHED, uses_ratios=False)
        floats = [v.value for v in self.variables if "float" in v.dtype]
        status = tf.where(_all_finite(floats), status, tf.maximum(status, NOT_FINITE))
        self.updates.assign_add(1)
        metrics = [*metrics, tf.reduce_mean(batch.kl)]
        return tf.stack([tf.cast(x, tf.float64) for x in (status, *metrics)])

    def _step(self, batch, status, uses_ratios, checks_distribution=True):
        """Makes a gradient step if all values are valid.

        Args:
            batch: `SequenceBatch`, the rows of the gradient step.
            status: Scalar int, the status of the update before the step. If an earlier
                step was not `FINISHED`, this step changes nothing.
            uses_ratios: As in `policy_gradients` of the estimator.
            checks_distribution: Bool, whether the model is still the one that has
                sampled the completions.

        Returns:
            The status, and the list of the first four of `METRICS`.
        """
        gradients, metrics = self.estimator.summed_gradients(
            batch, uses_ratios, self.optimizer.scale_loss
        )
        norm = losses.global_norm(gradients)
        scale = self.optimizer.scale_loss(tf.ones([], norm.dtype))
        metrics["gradient_norm"] = norm / scale
        numbers = [metrics["loss"], *([] if self._skips_overflow else gradients)]
        is_other = checks_distribution & (
            metrics["log_prob_difference"] > self._max_difference
        )
        new = tf.where(_all_finite(numbers), FINISHED, NOT_FINITE)
        new = tf.where(is_other, OTHER_DISTRIBUTION, new)
        status = tf.where(tf.equal(status, FINISHED), new, status)
        variables = self.estimator.variables

        def apply():
            self.optimizer.apply(gradients, variables)
            return 0

        tf.cond(status == FINISHED, apply, lambda: 0)
        return status, [metrics[name] for name in METRICS[:4]]

    def _minibatch_steps(self, batch, permutations):
        """Makes a gradient step from each minibatch of each pass."""
        size = self.options.minibatch_size
        count = minibatches.Minibatches.split(permutations[0], size).count

        def step(index, status, sums, first):
            permutation = permutations[index // count]
            steps = tf.size(permutation, tf.int64)
            parts = minibatches.Minibatches(permutation, count, steps)
            rows = parts.minibatch(index % count)
            status, metrics = self._step(batch.rows(rows), status, True, index == 0)
            sums = [x + y for x, y in zip(sums, metrics, strict=True)]
            first = [tf.where(index == 0, y, x) for x, y in zip(first, metrics)]
            return index + 1, status, sums, first

        steps = count * self.options.passes
        zeros = [tf.zeros([], self.estimator.policy.dtype)] * 3
        zeros.append(losses.global_norm(zeros[:1]))
        start = tf.constant(0, tf.int64), tf.constant(FINISHED), zeros, zeros
        _, status, sums, first = tf.while_loop(lambda i, *_: i < steps, step, start)
        means = [x / tf.cast(steps, x.dtype) for x in sums]
        # Entropy and difference describe the policy that has sampled the completions.
        return status, [means[0], first[1], first[2], means[3]]


def raise_if_refused(status, metrics):
    """Raises an error if an update was not made.

    Args:
        status: Number, the status of the update.
        metrics: Dict of floats, the metrics of the update.
    """
    if status == NOT_FINITE:
        raise FloatingPointError(
            "All losses, gradients and weights of an update must be finite. Received: "
            f"metrics {metrics}. The update changed no weight."
        )
    if status == OTHER_DISTRIBUTION:
        raise ValueError(
            "The completions must follow the distribution that is scored, "
            "softmax(logits / temperature). Received: log-probabilities that differ by "
            f"{metrics['log_prob_difference']:.3g} nats per token between sampling and "
            "scoring, because `generate_step` changes logits or the rows were sampled "
            "with other weights. The update changed no weight."
        )


def _all_finite(tensors):
    return tf.reduce_all([tf.reduce_all(tf.math.is_finite(x)) for x in tensors])
