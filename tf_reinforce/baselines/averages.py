"""Baselines that are averages of returns."""

import keras
import tensorflow as tf

from tf_reinforce import validation
from tf_reinforce.baselines import base


@keras.saving.register_keras_serializable("tf_reinforce")
class LeaveOneOut(base.Baseline):
    """The mean return of the *other* episodes still running at the same step.

        bᵢₜ = Σ_{j≠i} Gⱼₜ / (nₜ - 1),    nₜ episodes running at t;  0 where nₜ = 1

    It never sees the episode it is subtracted from, so it changes the variance and
    not the expectation, for any number of episodes fixed beforehand.

    With `group_size=K` the other episodes are those of the same group. The agent starts
    the K episodes of a group with the same reset seed, and so from the same
    observation. Differences between initial observations then add no variance. The
    randomness of the environment is common to a group as well. The estimate stays
    unbiased: given that randomness, the actions of the episodes are independent.

    Args:
        group_size: Int, K, at least 2; `None` makes all episodes one group. Columns 0 to
            K - 1 of a record are the first group, the next K columns the second.

    Example:

    >>> returns = tf.constant([[1.0, 3.0, 5.0]])
    >>> valid = tf.constant([[True, True, True]])
    >>> LeaveOneOut().estimate(returns, valid, tf.zeros_like(returns)).numpy().tolist()
    [[4.0, 3.0, 2.0]]
    >>> returns = tf.constant([[1.0, 3.0, 5.0, 6.0]])
    >>> LeaveOneOut(group_size=2).estimate(returns, returns > 0, returns).numpy().tolist()
    [[3.0, 1.0, 6.0, 5.0]]

    Reference:
        Kool, van Hoof & Welling (2019), Buy 4 REINFORCE samples, get a baseline for
        free! https://openreview.net/forum?id=r1lgTGL5DE
    """

    def __init__(self, group_size=None, **kwargs):
        super().__init__(**kwargs)
        given = group_size is not None
        if given and validation.positive_int("group_size", group_size) < 2:
            raise ValueError(
                "`group_size` must be at least 2: a group of one episode has no others. "
                f"Received: group_size={group_size}"
            )
        self.group_size = group_size
        self.reset_group_size = group_size or 1

    def estimate(self, returns, valid, values):
        rows, count = tf.unstack(tf.shape(returns))
        size = self.group_size or count
        tf.debugging.assert_equal(
            count % size, 0, f"The episodes must stand in groups of {self.group_size}"
        )
        grouped = tf.reshape(returns, [rows, -1, size])
        running = tf.reshape(tf.cast(valid, returns.dtype), [rows, -1, size])
        others = tf.reduce_sum(running, axis=2, keepdims=True) - 1.0
        sums = tf.reduce_sum(grouped, axis=2, keepdims=True) - grouped
        means = tf.reshape(tf.math.divide_no_nan(sums, others), [rows, count])
        return tf.where(valid, means, 0.0)

    def get_config(self):
        return {**super().get_config(), "group_size": self.group_size}


@keras.saving.register_keras_serializable("tf_reinforce")
class Mean(base.Baseline):
    """The mean return over all steps of the batch, which is biased.

        b = Σₜᵢ Gₜᵢ / N

    The mean contains the return it is subtracted from. With one-step episodes this
    shrinks the gradient by exactly (B - 1) / B.

    Example:

    >>> returns = tf.constant([[1.0, 3.0, 5.0]])
    >>> valid = tf.constant([[True, True, True]])
    >>> Mean().estimate(returns, valid, tf.zeros_like(returns)).numpy().tolist()
    [[3.0, 3.0, 3.0]]
    """

    def estimate(self, returns, valid, values):
        steps = tf.reduce_sum(tf.cast(valid, returns.dtype))
        return tf.where(valid, tf.reduce_sum(returns) / steps, 0.0)


@keras.saving.register_keras_serializable("tf_reinforce")
class MovingAverage(base.Baseline):
    """The mean return over all steps of earlier batches, the last ones counting most.

        b = Σᵢ dᵏ⁻ⁱ mᵢ / Σᵢ dᵏ⁻ⁱ,    mᵢ the mean return of a step in batch i = 1 … k

    It does not depend on the batch from which it is subtracted, so it changes the
    variance and not the expectation. It is zero before the first update.

    Args:
        decay: Float in [0, 1], d. With zero only the last batch counts; with one all
            batches count equally.

    Example:

    >>> baseline = MovingAverage(decay=0.5)
    >>> baseline.build((None, 4))
    >>> for returns in ([1.0, 3.0], [5.0]):
    ...     returns, times = tf.constant(returns), tf.range(len(returns))
    ...     batch = base.BaselineBatch(None, returns, times, episodes=1)
    ...     baseline.apply_gradients([], batch)
    >>> one = tf.ones([1, 1])
    >>> baseline.estimate(one, one > 0, one).numpy().tolist()  # (2 / 2 + 5) / (1 / 2 + 1)
    [[4.0]]
    """

    def __init__(self, decay=0.9, **kwargs):
        super().__init__(**kwargs)
        self.decay = validation.within("decay", decay, 0, 1)

    def build(self, observations_shape):
        self._build_averages(())

    def _build_averages(self, shape):
        # In the type of the returns, whatever that of the policy is.
        kept = dict(shape=shape, dtype="float64", trainable=False, autocast=False)
        self.sums = self.add_weight(name="sums", initializer="zeros", **kept)
        self.shares = self.add_weight(name="shares", initializer="zeros", **kept)

    def estimate(self, returns, valid, values):
        average = tf.math.divide_no_nan(self.sums.value, self.shares.value)
        return tf.where(valid, tf.cast(average, returns.dtype), 0.0)

    def apply_gradients(self, gradients, baseline_batch):
        self._average(tf.reduce_mean(baseline_batch.targets), 1.0)

    def _average(self, means, seen):
        """Takes in new means; where nothing was `seen`, all stays as it was."""
        means, seen = (tf.cast(x, self.sums.dtype) for x in (means, seen))
        kept = tf.where(seen > 0, tf.constant(self.decay, seen.dtype), 1.0)
        self.sums.assign(kept * self.sums + means)
        self.shares.assign(kept * self.shares + seen)

    def get_config(self):
        return {**super().get_config(), "decay": self.decay}


@keras.saving.register_keras_serializable("tf_reinforce")
class TimeStep(MovingAverage):
    """The mean return at the same step of earlier episodes.

        bₜ = Σᵢ dᵏ⁻ⁱ mᵢₜ / Σᵢ dᵏ⁻ⁱ,    mᵢₜ the mean return at step t in batch i = 1 … k

    A batch without a step t leaves the average of step t unchanged. The average of a
    step that was never reached is zero. Like `MovingAverage`, it is unbiased.

    Args:
        horizon: Int, the number of steps with an average of their own. All later steps
            share the last one.
        decay: Float in [0, 1], d. With zero only the last batch counts; with one all
            batches count equally.

    Example:

    >>> baseline = TimeStep(horizon=2)
    >>> baseline.build((None, 4))
    >>> returns = tf.constant([7.0, 3.0])
    >>> batch = base.BaselineBatch(None, returns, [0, 1], episodes=1)
    >>> baseline.apply_gradients([], batch)
    >>> one = tf.ones([3, 1])
    >>> baseline.estimate(one, one > 0, one).numpy().tolist()
    [[7.0], [3.0], [3.0]]
    """

    def __init__(self, horizon=1000, decay=0.9, **kwargs):
        super().__init__(decay, **kwargs)
        self.horizon = validation.positive_int("horizon", horizon)

    def build(self, observations_shape):
        self._build_averages((self.horizon,))

    def estimate(self, returns, valid, values):
        averages = tf.math.divide_no_nan(self.sums.value, self.shares.value)
        times = tf.minimum(tf.range(tf.shape(returns)[0]), self.horizon - 1)
        column = tf.cast(tf.gather(averages, times), returns.dtype)[:, None]
        return tf.where(valid, column, 0.0)

    def apply_gradients(self, gradients, baseline_batch):
        times = tf.minimum(baseline_batch.times, self.horizon - 1)
        counts = tf.math.bincount(times, minlength=self.horizon, dtype=tf.float64)
        sums = tf.math.unsorted_segment_sum(baseline_batch.targets, times, self.horizon)
        means = tf.math.divide_no_nan(tf.cast(sums, tf.float64), counts)
        self._average(means, tf.cast(counts > 0, tf.float64))

    def get_config(self):
        return {**super().get_config(), "horizon": self.horizon}
