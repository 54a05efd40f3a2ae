"""Makes one update; no weight changes unless every value is finite."""

import keras
import tensorflow as tf

from tf_reinforce.algorithm import estimator
from tf_reinforce.data import minibatches
from tf_reinforce.functional import losses

# What an update says of itself.
METRICS = (*estimator.METRICS, "learning_rate", "env_steps")

# Of several gradient steps their mean is said; the entropy is that of the policy that
# acted, once, as without them.
_MEAN_METRICS = [name for name in estimator.METRICS if name != "entropy"]

# What an update from nothing says; everything else is zero then.
_EMPTY_METRICS = dict.fromkeys(("entropy", "effective_sample_size"), float("nan"))


class TrainStep:
    """Moves weights along the gradients of an `PolicyGradientEstimator`.

    Every step of one update sees the returns, the baseline and the normalizer as they
    acted; these learn last.

    Args:
        rule: `estimator.PolicyGradientEstimator`.
        optimizer: Keras optimizer, built on the weights of the estimator.
        counters: Int64 weight `[3]`: updates, episodes and environment steps so far.
        passes: Int, how often the batch is gone through.
        minibatch_size: Int, about how many steps make a gradient step; `None`: all.
        block: Int, of about how many steps at a time the gradient of a whole batch is
            summed up; `None`: of all at once. What all layers put out for a million
            steps need not be kept at a time.
    """

    def __init__(
        self, rule, optimizer, counters, *, passes, minibatch_size=None, block=None
    ):
        self.estimator = rule
        self.optimizer = optimizer
        self.counters = counters
        self.passes = passes
        self.minibatch_size = minibatch_size
        self.block = block
        # Keras' own loss scaling meets an overflow by skipping the step itself.
        self._skips = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)

    @property
    def permutations(self):
        """How many random orders of the steps an update takes."""
        if self.passes > 1 or self.minibatch_size is not None:
            return self.passes
        return 0 if self.estimator.baseline.minibatch_size is None else 1

    def __call__(self, episodes, permutations):
        """Makes one update.

        Args:
            episodes: `Episodes`, checked.
            permutations: `[passes, N]` int32, random permutations of the steps.

        Returns:
            `[1 + len(FIGURES)]` float64: whether it was finite, and `FIGURES`. As one
            tensor: fetching each would take as long as a small update.
        """
        rate = tf.identity(self.optimizer.learning_rate)
        batch = self.estimator.batch(episodes)
        baseline_batch = self.estimator.baseline_batch(
            batch, permutations[0] if self.permutations else None
        )
        value_loss, baseline_gradients = self.estimator.baseline_gradients(baseline_batch)
        some = tf.size(batch.targets) > 0  # an update from nothing moves nothing
        fit = _finite(baseline_gradients) | ~some
        fit &= _finite(self.estimator.statistics_squares(episodes, batch))
        before = [tf.identity(variable) for variable in self._variables]
        if self.minibatch_size is None and self.passes == 1:
            gradients, logs = self._whole(batch)
            finite = fit & (self._sound(logs["loss"], gradients) | ~some)
            _when(finite & some, lambda: self._descend(gradients))
        else:
            finite, logs = self._pass(batch, permutations, fit, some)
        _when(
            finite & some,
            lambda: self.estimator.learn(baseline_gradients, baseline_batch, batch),
        )
        finite &= _finite([v for v in self._variables if "float" in v.dtype])
        _when(~finite, lambda: self._restore(before))

        def look():
            self.estimator.update_normalizer(episodes)
            lengths = tf.cast(episodes.lengths, tf.int64)
            more = [1, tf.size(lengths, tf.int64), tf.reduce_sum(lengths)]
            return self.counters.assign_add(tf.stack(more))

        for name, figure in logs.items():
            logs[name] = tf.where(some, figure, _EMPTY_METRICS.get(name, 0.0))
        if not self.estimator.baseline.shares_policy:
            logs["value_loss"] = value_loss
        logs["learning_rate"] = rate
        logs["env_steps"] = tf.cond(finite, look, self.counters.value.read_value)[2]
        figures = [finite, *(logs[name] for name in METRICS)]
        return tf.stack([tf.cast(figure, tf.float64) for figure in figures])

    def _whole(self, batch):
        """The gradient from a batch: the mean of those from its blocks, by their size."""
        if self.block is None:
            return self._gradients(batch)
        steps = tf.range(tf.size(batch.targets))
        blocks = minibatches.Minibatches.of(steps, self.block)

        def add(number, sums):
            part = blocks.at(number)
            share = tf.size(part) / tf.size(steps)
            gradients, logs = self._gradients(batch, part)
            more = [*gradients, *(logs[name] for name in estimator.METRICS)]
            more = [tf.cast(y, x.dtype) for x, y in zip(sums, more, strict=True)]
            more = [x + tf.cast(share, x.dtype) * y for x, y in zip(sums, more)]
            return number + 1, more

        zeros = [tf.zeros(v.shape, v.dtype) for v in self.estimator.variables]
        zeros += [tf.zeros([], tf.float64) for _ in estimator.METRICS]
        _, sums = tf.while_loop(
            lambda number, sums: number < blocks.count,
            add,
            (tf.zeros([], tf.int64), zeros),
            parallel_iterations=1,
        )
        count = len(self.estimator.variables)
        logs = dict(zip(estimator.METRICS, sums[count:], strict=True))
        logs["gradient_norm"] = losses.global_norm(sums[:count])
        return sums[:count], logs

    def _pass(self, batch, permutations, fit, some):
        """Gradient steps from the parts of a batch: whether all were finite; the logs."""
        policy = self.estimator.distribution(batch)
        acted, entropy = policy.log_prob(batch.actions), policy.entropy()
        count = minibatches.Minibatches.of(permutations[0], self.minibatch_size).count
        steps = tf.where(some, self.passes * count, 0)

        def step(number, finite, sums):
            order = minibatches.Minibatches(permutations[number // count], count)
            gradients, logs = self._gradients(batch, order.at(number % count), acted)
            finite = self._sound(logs["loss"], gradients)
            _when(finite, lambda: self._descend(gradients))
            figures = [tf.cast(logs[name], tf.float64) for name in _MEAN_METRICS]
            return number + 1, finite, sums + tf.stack(figures)

        _, finite, sums = tf.while_loop(
            lambda number, finite, sums: finite & (number < steps),
            step,
            (tf.zeros([], tf.int64), fit, tf.zeros([len(_MEAN_METRICS)], tf.float64)),
        )
        means = tf.unstack(sums / tf.cast(steps, tf.float64))
        logs = dict(zip(_MEAN_METRICS, means, strict=True))
        return finite, {**logs, "entropy": tf.reduce_mean(entropy)}

    def _gradients(self, *chosen):
        return self.estimator.policy_gradients(
            *chosen, scale_loss=self.optimizer.scale_loss
        )

    def _sound(self, loss, gradients):
        return _finite([loss] if self._skips else [loss, *gradients])

    @property
    def _variables(self):
        """All that gradient steps and what learns after them change."""
        parts = [self.optimizer, self.estimator.baseline, *self.estimator.scales.values()]
        parts.append(getattr(self.estimator.baseline, "optimizer", None))
        more = [v for part in parts if part is not None for v in part.variables]
        return [*self.estimator.variables, *more]

    def _descend(self, gradients):
        scaled = [self.optimizer.scale_loss(gradient) for gradient in gradients]
        self.optimizer.apply(scaled, self.estimator.variables)

    def _restore(self, before):
        for variable, value in zip(self._variables, before, strict=True):
            variable.assign(value)


def _finite(tensors):
    finite = [tf.reduce_all(tf.math.is_finite(tensor)) for tensor in tensors]
    return tf.reduce_all(finite) if finite else tf.constant(True)


def _when(condition, act):
    """Calls `act` for what it changes."""

    def acts():
        act()
        return 0

    tf.cond(condition, acts, lambda: 0)
