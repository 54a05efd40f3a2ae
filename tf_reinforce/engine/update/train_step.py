"""One update, which is undone if a value is not finite."""

import functools

import keras
import tensorflow as tf

from tf_reinforce.data import minibatches
from tf_reinforce.engine.update import estimator
from tf_reinforce.functional import losses
from tf_reinforce.functional import shapes
from tf_reinforce.support import compilation
from tf_reinforce.support import optimizers

# The scalars that describe an update.
METRICS = (*estimator.METRICS, "gradient_steps", "learning_rate", "env_steps")

# Averaged over the gradient steps of an update, unlike `entropy`, which is that of the
# policy that collected the episodes.
_MEAN_METRICS = [name for name in estimator.METRICS if name != "entropy"]

# The metrics of an update from no steps; all others are zero.
_EMPTY_METRICS = dict.fromkeys(("entropy", "effective_sample_size"), float("nan"))


class TrainStep:
    """Makes updates with the gradients of a `PolicyGradientEstimator`.

    All gradient steps of an update use the same returns, baseline and observation
    normalizer. The baseline and the normalizer are updated after the last gradient step.

    Args:
        gradient_estimator: `estimator.PolicyGradientEstimator`, whose options contain
            `passes` and `minibatch_size`.
        optimizer: Keras optimizer, built on the estimator's weights.
        counters: Int64 weight `[3]`, the updates, episodes and environment steps so far.
        strategy: `tf.distribute.Strategy` with several replicas, or `None`.

    Attributes:
        microbatch_size: Int, the approximate number of steps whose gradients are computed
            at a time, to save memory, or `None` for the whole batch.
        jit_compile: Bool, whether XLA compiles the gradient steps from minibatches.
        jit_compile_baseline: Bool, the same for the gradient steps of the baseline.
    """

    microbatch_size = None
    jit_compile = jit_compile_baseline = False

    def __init__(self, gradient_estimator, optimizer, counters, strategy=None):
        self.estimator = gradient_estimator
        self.optimizer = optimizer
        self.counters = counters
        self.strategy = strategy
        self.passes = gradient_estimator.options.passes
        self.minibatch_size = gradient_estimator.options.minibatch_size
        self._has_many_steps = self.passes > 1 or self.minibatch_size is not None
        # An optimizer with loss scaling itself skips a step that overflows.
        self._skips_overflow = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)

    @property
    def num_permutations(self):
        """Returns how many random orders of the steps one update needs."""
        if self._has_many_steps:
            return self.passes
        return 0 if self.estimator.baseline.minibatch_size is None else 1

    def __call__(self, episodes, permutations):
        """Makes one update from a batch of whole episodes.

        Args:
            episodes: `Episodes`, validated.
            permutations: `[num_permutations, N]` int32, random orders of the N valid
                steps.

        Returns:
            `[1 + len(METRICS)]` float64: 1 if the update was finite, else 0, and then the
            `METRICS`. They are one tensor, because fetching a scalar takes as long as a
            small update.
        """
        learning_rate = tf.identity(self.optimizer.learning_rate)
        before = [tf.identity(variable) for variable in self.variables]
        make_steps = self._many_steps if self._has_many_steps else self._one_step
        finite, metrics, batch, baseline_step = make_steps(episodes, permutations)
        not_empty = tf.size(batch.returns) > 0
        finite &= shapes.all_finite(baseline_step.gradients) | ~not_empty
        finite &= shapes.all_finite(self.estimator.sums_of_squares(episodes, batch))

        def update_statistics():
            compiled = self.jit_compile_baseline
            self.estimator.update_statistics(batch, baseline_step, compiled)
            self.estimator.update_layers()

        compilation.run_if(finite & not_empty, update_statistics)
        finite &= shapes.all_finite([v for v in self.variables if "float" in v.dtype])
        compilation.run_if(~finite, lambda: self.restore(before))
        compilation.run_if(finite, lambda: self.estimator.update_normalizer(episodes))
        metrics = self._metrics_or_empty(metrics, not_empty)
        metrics["learning_rate"] = learning_rate
        metrics["env_steps"] = tf.cond(
            finite, lambda: self._count(episodes), self.counters.value.read_value
        )[2]
        scalars = [finite, *(metrics[name] for name in METRICS)]
        return tf.stack([tf.cast(scalar, tf.float64) for scalar in scalars])

    def _one_step(self, episodes, permutations):
        """Makes one gradient step from all steps, unless a value is not finite.

        Returns:
            Scalar bool, whether all values were finite, the metrics, the `Batch` and its
            `BaselineStep`.
        """
        permutation = permutations[0] if self.num_permutations else None
        gradients, metrics, batch, baseline_step = self.estimator.gradients(
            episodes, permutation, self.gradients_by_replicas
        )
        empty = tf.equal(tf.size(batch.returns), 0)
        finite = self._step_finite(metrics["loss"], gradients) | empty
        compilation.run_if(finite & ~empty, lambda: self._apply(gradients))
        metrics["gradient_steps"] = tf.ones([], tf.float64)
        return finite, metrics, batch, baseline_step

    def gradients_by_replicas(self, batch, indices=None, behavior_log_probs=None):
        """Returns policy gradients and metrics, summed over the replicas of a strategy.

        Each replica computes the gradient of its share of the episodes.

        Args:
            batch: `estimator.Batch`.
            indices, behavior_log_probs: As in the estimator's `policy_gradients`, both or
                neither.
        """
        if self.strategy is None:
            return self.gradients_by_microbatches(batch, indices, behavior_log_probs)
        if indices is not None:
            batch = batch.minibatch(indices)
            behavior_log_probs = tf.gather(behavior_log_probs, indices)

        def gradients_of_share(share, own):
            log_probs = None if indices is None else tf.gather(behavior_log_probs, own)
            return _terms(*self.gradients_by_microbatches(share, None, log_probs))

        means = _mean_over_shares(self.strategy, batch, gradients_of_share)
        return self._split_sums(means)

    def _split_sums(self, sums):
        """Splits sums of gradients and metrics, and adds the gradients' norm."""
        count = len(self.estimator.variables)
        metrics = dict(zip(estimator.METRICS, sums[count:], strict=True))
        metrics["gradient_norm"] = losses.global_norm(sums[:count])
        return sums[:count], metrics

    def gradients_by_microbatches(self, batch, indices=None, behavior_log_probs=None):
        """Returns policy gradients and metrics, if need be summed over microbatches.

        The arguments are those of `gradients_by_replicas`. Only the gradients of a whole
        batch are computed in microbatches.
        """
        rule, scale_loss = self.estimator, self.optimizer.scale_loss
        compute = functools.partial(rule.policy_gradients, batch, scale_loss=scale_loss)
        if self.microbatch_size is None or behavior_log_probs is not None:
            return compute(indices, behavior_log_probs)
        steps = tf.range(tf.size(batch.returns))
        microbatches = minibatches.Minibatches.split(steps, self.microbatch_size)

        def add(number, sums):
            microbatch = microbatches.minibatch(number)
            share = tf.size(microbatch) / tf.size(steps)
            pairs = zip(sums, _terms(*compute(microbatch)), strict=True)
            return number + 1, [x + tf.cast(share, x.dtype) * y for x, y in pairs]

        zeros = [tf.zeros(v.shape, v.dtype) for v in self.estimator.variables]
        zeros += [tf.zeros([], tf.float64) for _ in estimator.METRICS]
        start = tf.zeros([], tf.int64), zeros
        _, sums = tf.while_loop(
            lambda number, _: number < microbatches.count, add, start, None, 1
        )
        return self._split_sums(sums)

    def _many_steps(self, episodes, permutations):
        """Makes a gradient step from each minibatch of each pass over the batch.

        The update ends early at a value that is not finite, or after a pass that has
        changed the policy by more than `max_kl`.

        Args:
            episodes: `Episodes`.
            permutations: `[passes, N]` int32, a random order of the N steps for each
                pass.

        Returns:
            As `_one_step`, with metrics averaged over the gradient steps.
        """
        batch = self.estimator.batch(episodes)
        baseline_step = self.estimator.baseline_step(batch, permutations[0])
        outputs, _ = self.estimator.outputs(batch, False)
        scores = self.estimator.head.log_prob_and_entropy(outputs, batch.actions)
        behavior_log_probs, entropy = scores[0], tf.reduce_mean(scores[1])
        memory = self.estimator.memory
        permutations = self.estimator.minibatch_orders(permutations, batch, memory)
        parts = minibatches.Minibatches.split(permutations[0], self.minibatch_size)
        sums = tf.zeros([len(_MEAN_METRICS)], tf.float64)
        run = self._compiled_steps if self.jit_compile else self._gradient_steps
        finite, sums, steps = tf.cond(
            tf.size(batch.returns) > 0,
            lambda: run(batch, behavior_log_probs, permutations, parts, sums),
            lambda: (tf.constant(True), sums, tf.zeros([], tf.int64)),
        )
        steps = tf.cast(steps, tf.float64)
        metrics = dict(zip(_MEAN_METRICS, tf.unstack(sums / steps), strict=True))
        metrics |= {"gradient_steps": steps, "entropy": entropy, **baseline_step.metrics}
        return finite, metrics, batch, baseline_step

    def _gradient_steps(
        self, batch, behavior_log_probs, permutations, parts, sums, offsets=None
    ):
        """Runs the loop of `_many_steps` over minibatches.

        Args:
            batch: `estimator.Batch` of at least one step.
            behavior_log_probs: `[N]` float, as in `gradients_by_replicas`.
            permutations: `[passes, N]` int32.
            parts: `minibatches.Minibatches` of the first pass.
            sums: Float64 zeros, one for each of `_MEAN_METRICS`.
            offsets: As in `Minibatches.minibatch`.

        Returns:
            Scalar bool, whether all values were finite, the metrics summed over the
            gradient steps, and the number of these, a scalar int64.
        """
        last = self.passes * parts.count

        def step(number, _, finite, sums):
            # With a slice instead of `gather`, XLA compiles a program for each count.
            permutation = tf.gather(permutations, number // parts.count)
            own = parts._replace(permutation=permutation)
            indices = own.minibatch(number % parts.count, offsets)
            gradients, metrics = self.gradients_by_replicas(
                batch, indices, behavior_log_probs
            )
            finite = self._step_finite(metrics["loss"], gradients)
            compilation.run_if(finite, lambda: self._apply(gradients))
            scalars = [tf.cast(metrics[name], tf.float64) for name in _MEAN_METRICS]
            number += 1
            may_end = tf.equal(number % parts.count, 0) & (number < last)
            goes_on = ~self._exceeds_max_kl(may_end, batch, behavior_log_probs)
            return number, goes_on, finite, sums + tf.stack(scalars)

        number, _, finite, sums = tf.while_loop(
            lambda number, goes_on, finite, sums: goes_on & finite & (number < last),
            step,
            (tf.zeros([], tf.int64), tf.constant(True), tf.constant(True), sums),
        )
        return finite, sums, number

    def _exceeds_max_kl(self, condition, batch, behavior_log_probs):
        """Returns whether a condition holds and the policy has moved beyond `max_kl`."""
        max_kl = self.estimator.options.max_kl
        if max_kl is None:
            return tf.constant(False)
        return tf.cond(
            condition,
            lambda: self._kl_divergence(batch, behavior_log_probs) > max_kl,
            lambda: tf.constant(False),
        )

    def _kl_divergence(self, batch, behavior_log_probs):
        """Returns the estimator's `kl_divergence`, with the same bits in all processes.

        If the processes disagreed about the end of an update, they would wait for each
        other forever.
        """
        if self.strategy is None:
            return self.estimator.kl_divergence(batch, behavior_log_probs)

        def kl_of_share(share, own):
            log_probs = tf.gather(behavior_log_probs, own)
            return [self.estimator.kl_divergence(share, log_probs)]

        return _mean_over_shares(self.strategy, batch, kl_of_share)[0]

    def _compiled_steps(self, batch, behavior_log_probs, permutations, parts, sums):
        """Runs `_gradient_steps` in one XLA program.

        XLA compiles a program for each combination of shapes, so batch and minibatches
        are padded.
        """
        rows = compilation.padded_rows(tf.size(batch.returns))
        padding = rows - tf.size(batch.returns)
        first = tf.repeat(behavior_log_probs[:1], padding)
        behavior_log_probs = tf.concat([behavior_log_probs, first], axis=0)
        permutations = tf.pad(permutations, [[0, 0], [0, padding]])
        program = compilation.compiled(self._gradient_steps)
        parts = parts._replace(permutation=permutations[0])
        batch = batch.padded(rows)
        return program(
            batch, behavior_log_probs, permutations, parts, sums, parts.offsets()
        )

    def _step_finite(self, loss, gradients):
        return shapes.all_finite([loss] if self._skips_overflow else [loss, *gradients])

    def _apply(self, gradients):
        """Makes one gradient step with the optimizer.

        The gradients are multiplied by its loss scale first, because it divides by it.
        """
        scaled = [self.optimizer.scale_loss(gradient) for gradient in gradients]
        self.optimizer.apply(scaled, self.estimator.variables)

    @property
    def variables(self):
        """Returns all variables that gradient steps and statistics updates change."""
        parts = [self.optimizer, self.estimator.baseline, *self.estimator.scales.values()]
        parts.append(getattr(self.estimator.baseline, "optimizer", None))
        others = [v for part in parts if part is not None for v in part.variables]
        layers = self.estimator.updating_layers
        others += [v for layer in layers for v in layer.non_trainable_variables]
        return [*self.estimator.variables, *others]

    def restore(self, before):
        """Assigns earlier values to `variables`."""
        optimizers.assign(self.variables, before)

    def _metrics_or_empty(self, metrics, not_empty):
        """Returns the metrics, or fixed values if the batch contains no steps."""
        own_loss = not self.estimator.baseline.shares_policy
        return {
            name: metric
            if name == "value_loss" and own_loss
            else tf.where(not_empty, metric, _EMPTY_METRICS.get(name, 0.0))
            for name, metric in metrics.items()
        }

    def _count(self, episodes):
        """Adds an update, its episodes and its steps to `counters`, and returns them."""
        lengths = tf.cast(episodes.lengths, tf.int64)
        counts = [1, tf.size(lengths, tf.int64), tf.reduce_sum(lengths)]
        return self.counters.assign_add(tf.stack(counts))


def _mean_over_shares(strategy, batch, function):
    """Averages quantities over the steps of a batch that replicas share.

    Args:
        strategy: `tf.distribute.Strategy` with several replicas.
        batch: `estimator.Batch`.
        function: Function of the two results of `Batch.share` that returns a list of
            means over the steps of the share.
    """

    def means_of_share(replica, num_replicas):
        share, own = batch.share(replica, num_replicas)
        sizes = (tf.cast(tf.size(x), tf.float64) for x in (own, batch.returns))
        return tf.math.divide_no_nan(*sizes), function(share, own)

    return optimizers.sum_over_replicas(strategy, means_of_share)


def _terms(gradients, metrics):
    """Returns gradients and metrics as one list of tensors, to be summed."""
    return [*gradients, *(tf.cast(metrics[x], tf.float64) for x in estimator.METRICS)]
