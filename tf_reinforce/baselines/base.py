"""The interface of a baseline, the batch that it learns from, and averages of returns."""

import abc
import functools
from typing import Any, NamedTuple

import keras
import tensorflow as tf

from tf_reinforce.support import compilation
from tf_reinforce.support import validation


class BaselineBatch(NamedTuple):
    """The `N` steps of a batch, without padding, that a baseline learns from."""

    observations: Any  # [N, …] or a structure of [N, …], as the policy receives them
    returns: tf.Tensor  # [N] float, the returns to go, also with `returns="whole"`
    time_steps: tf.Tensor  # [N] int32, the time step in the episode, from 0
    episodes: tf.Tensor  # scalar, the number of episodes
    permutation: Any = None  # [N] int32, a permutation of the N steps, for minibatches
    values: Any = None  # [N] float, the values of an update that a baseline estimated
    is_padding: Any = None  # [N] bool, or `None` if no step is padding
    jit_compile: bool = False  # whether XLA compiles the gradient steps of the baseline
    # With a value model that reads earlier steps, `observations` holds `[N, 2]` indices
    # of steps instead, and this function calls the model at such steps.
    call_model: Any = None

    def minibatch(self, indices: tf.Tensor) -> "BaselineBatch":
        """Returns the batch of the n steps at `[n]` indices.

        It has n / N times the `episodes`, so that a sum over steps divided by `episodes`
        keeps its size.
        """
        is_padding, share = compilation.share_of_steps(self, indices)
        episodes = tf.cast(self.episodes, share.dtype) * share
        return self._gather(indices, episodes, is_padding)

    def padded(self, rows: tf.Tensor) -> "BaselineBatch":
        """Returns a batch of R rows for XLA, see `compilation.padded_rows`.

        Rows beyond the N steps repeat the first step and are marked as padding.

        Args:
            rows: Scalar int R, above N.
        """
        numbers = tf.range(rows)
        is_padding = numbers >= tf.size(self.returns)
        indices = tf.where(is_padding, 0, numbers)
        return self._gather(indices, self.episodes, is_padding)

    def _gather(self, indices: Any, episodes: Any, is_padding: Any) -> "BaselineBatch":
        """Returns the steps at `[n]` indices, as a batch of so many `episodes`."""
        gather = functools.partial(tf.gather, indices=indices)
        observations = keras.tree.map_structure(gather, self.observations)
        steps = observations, gather(self.returns), gather(self.time_steps), episodes
        return BaselineBatch(*steps, is_padding=is_padding, call_model=self.call_model)


class Baseline(compilation.FixedArguments, keras.layers.Layer, abc.ABC):
    """An estimate of the return that does not depend on the action.

    A subclass implements `estimate`. If the baseline has weights, it creates them in
    `build` with `add_weight`, and if it has a loss, `gradients` returns the gradients of
    this loss. The agent calls `apply_gradients` at the end of each update, unless a value
    of the update is NaN or infinite.

    TensorFlow traces these methods, so they must change nothing but the baseline's
    weights. The file `examples/your_own_parts.py` contains an example, and
    `tfr.testing.check_gradient` tells you whether your own baseline biases the gradient.

    Attributes:
        is_value_function: Bool, whether it predicts the value of an observation. Only
            then can it bootstrap truncated episodes and allow `gae_lambda` below 1. It
            then needs `model`, `loss_weight` and `values`, like `Value`.
        reset_group_size: Int, how many consecutive episodes the agent starts with the
            same reset seed.
        minibatch_size: Int, the steps of a minibatch, or `None` if the baseline does not
            learn from minibatches. With an int, `BaselineBatch.permutation` is a random
            permutation of the steps, in which those of an episode stay together for a
            value model that reads whole episodes.
    """

    # Not that of `FixedArguments`: Keras' own finds the arguments of a user's baseline.
    get_config = keras.layers.Layer.get_config
    is_value_function = False
    reset_group_size = 1
    minibatch_size: int | None = None

    @property
    def shares_policy(self) -> bool:
        """Returns whether the policy model also returns the baseline's values."""
        return self.is_value_function and self.model is None

    @abc.abstractmethod
    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        """Returns the values that are subtracted from the returns.

        Args:
            returns: `[T, B]` float, the returns at `T` steps of `B` episodes, zero in the
                padding.
            valid: `[T, B]` bool, False in the padding after an episode's last step.
            values: `[T, B]` float, the values of the observations; all zero without a
                value baseline.

        Returns:
            `[T, B]` float in the number type of `returns`. A zero leaves a return
            unchanged.
        """

    def gradients(self, baseline_batch: BaselineBatch) -> Any:
        """Returns the baseline's loss and gradients, by default NaN and `[]`.

        Args:
            baseline_batch: `BaselineBatch` to learn from.

        Returns:
            Scalar loss, and a list of gradients for `apply_gradients`; it is empty if
            that method computes its own.
        """
        return tf.constant(float("nan"), baseline_batch.returns.dtype), []

    def apply_gradients(
        self, gradients: list[tf.Tensor], baseline_batch: BaselineBatch
    ) -> None:
        """Updates the baseline after an update of the policy.

        Args:
            gradients: List of finite gradients from `gradients(baseline_batch)`. For
                further steps, the baseline computes gradients itself, and skips those
                that are not finite. If a weight is not finite in the end, the agent
                restores all weights and raises an error.
            baseline_batch: `BaselineBatch` to learn from.
        """


@keras.saving.register_keras_serializable("tf_reinforce")
class Zero(Baseline):
    """No baseline: unbiased, but the gradient has a large variance."""

    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        return tf.zeros_like(returns)


@keras.saving.register_keras_serializable("tf_reinforce")
class LeaveOneOut(Baseline):
    """At each step, the mean return of the batch's *other* episodes at that step.

        bᵢₜ = Σ_{j≠i} Gⱼₜ / (nₜ - 1),    nₜ episodes active at t;  0 if nₜ = 1

    The baseline of an episode does not depend on that episode, so subtracting it leaves
    the expected gradient unchanged. This requires that the number of episodes is fixed in
    advance.

    With `group_size=K`, the mean is taken within groups of K episodes. The agent starts
    the episodes of a group with the same reset seed, so they begin with the same
    observation, and the environment draws the same random numbers in each. The gradient
    stays unbiased, because given these numbers, the actions of different episodes are
    independent.

    Args:
        group_size: Int of at least 2, or `None` for one group of all episodes. Each K
            consecutive columns of the returns are a group.

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

    argument_names = ("group_size",)
    get_config = compilation.FixedArguments.get_config

    def __init__(self, group_size: int | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if group_size is not None:
            validation.whole_number("group_size", group_size, 2)
        self.group_size = group_size
        self.reset_group_size = group_size or 1

    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        steps, episodes = tf.unstack(tf.shape(returns))
        size = self.group_size or episodes
        tf.debugging.assert_equal(
            episodes % size,
            0,
            "The number of episodes must be a multiple of the `group_size` "
            f"{self.group_size} of the baseline",
        )
        grouped = tf.reshape(returns, [steps, -1, size])
        active = tf.reshape(tf.cast(valid, returns.dtype), [steps, -1, size])
        others = tf.reduce_sum(active, axis=2, keepdims=True) - 1.0
        sums = tf.reduce_sum(grouped, axis=2, keepdims=True) - grouped
        means = tf.reshape(tf.math.divide_no_nan(sums, others), [steps, episodes])
        return tf.where(valid, means, 0.0)


@keras.saving.register_keras_serializable("tf_reinforce")
class Mean(Baseline):
    """The mean return over all steps of the batch, which biases the gradient.

        b = Σₜᵢ Gₜᵢ / N,    N steps in all episodes of the batch

    The gradient is biased because the mean includes the return that it is subtracted
    from. For example, with B episodes of one step, the expected gradient is multiplied by
    (B - 1) / B.

    Example:

    >>> returns = tf.constant([[1.0, 3.0, 5.0]])
    >>> valid = tf.constant([[True, True, True]])
    >>> Mean().estimate(returns, valid, tf.zeros_like(returns)).numpy().tolist()
    [[3.0, 3.0, 3.0]]
    """

    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        steps = tf.reduce_sum(tf.cast(valid, returns.dtype))
        return tf.where(valid, tf.reduce_sum(returns) / steps, 0.0)


@keras.saving.register_keras_serializable("tf_reinforce")
class MovingAverage(Baseline):
    """The mean return of earlier batches, weighted less the older they are.

        b = Σᵢ dᵏ⁻ⁱ mᵢ / Σᵢ dᵏ⁻ⁱ,    mᵢ the mean return of a step in batch i = 1 … k

    Only earlier batches count, so the expected gradient stays the same. Before the first
    update, the average is zero.

    Args:
        decay: Float in [0, 1], the factor d by which each update multiplies the weights
            of earlier batches. With 0, only the last batch counts; with 1, all count
            equally.

    Example:

    >>> baseline = MovingAverage(decay=0.5)
    >>> baseline.build((None, 4))
    >>> for returns in ([1.0, 3.0], [5.0]):
    ...     returns, time_steps = tf.constant(returns), tf.range(len(returns))
    ...     batch = BaselineBatch(None, returns, time_steps, episodes=1)
    ...     baseline.apply_gradients([], batch)
    >>> ones = tf.ones([1, 1])
    >>> estimate = baseline.estimate(ones, ones > 0, ones)
    >>> estimate.numpy().tolist()  # (2 / 2 + 5) / (1 / 2 + 1)
    [[4.0]]
    """

    argument_names: tuple[str, ...] = ("decay",)
    get_config = compilation.FixedArguments.get_config

    def __init__(self, decay: float = 0.9, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.decay = validation.within("decay", decay, 0, 1)

    def build(self, observations_shape: Any) -> None:
        self._build_averages(())

    def _build_averages(self, shape: Any) -> None:
        # The averages are float64, the type of the returns, for every type of the policy.
        options = dict(shape=shape, dtype="float64", trainable=False, autocast=False)
        self.sums = self.add_weight(name="sums", initializer="zeros", **options)
        self.shares = self.add_weight(name="shares", initializer="zeros", **options)

    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        average = tf.math.divide_no_nan(self.sums.value, self.shares.value)
        return tf.where(valid, tf.cast(average, returns.dtype), 0.0)

    def apply_gradients(
        self, gradients: list[tf.Tensor], baseline_batch: BaselineBatch
    ) -> None:
        self._add_means(tf.reduce_mean(baseline_batch.returns), 1.0)

    def _add_means(self, means: tf.Tensor, weights: tf.Tensor) -> None:
        """Adds a batch's mean returns to all averages whose weight is not zero."""
        means, weights = (tf.cast(x, self.sums.dtype) for x in (means, weights))
        decay = tf.where(weights > 0, tf.constant(self.decay, weights.dtype), 1.0)
        self.sums.assign(decay * self.sums + means)
        self.shares.assign(decay * self.shares + weights)


@keras.saving.register_keras_serializable("tf_reinforce")
class TimeStep(MovingAverage):
    """The mean return of earlier batches, computed separately for each time step.

        bₜ = Σᵢ dᵏ⁻ⁱ mᵢₜ / Σᵢ dᵏ⁻ⁱ,    mᵢₜ the mean return at step t in batch i = 1 … k

    The averages do not depend on the batch from whose returns they are subtracted, so
    `TimeStep` does not bias the policy gradient. The average of a step is zero until an
    episode has reached the step. A batch in which no episode reaches a step does not
    change the average of that step.

    Args:
        horizon: Int, the number of averages, one average per time step. Step
            `horizon - 1` and all later steps have one common average.
        decay: Float in [0, 1], the factor d by which each update multiplies the weights
            of earlier batches. With `decay=0`, only the last batch that reached a step
            counts for that step. With `decay=1`, all earlier batches have equal weight.

    Example:

    >>> baseline = TimeStep(horizon=2)
    >>> baseline.build((None, 4))
    >>> returns = tf.constant([7.0, 3.0])
    >>> batch = BaselineBatch(None, returns, [0, 1], episodes=1)
    >>> baseline.apply_gradients([], batch)
    >>> ones = tf.ones([3, 1])
    >>> baseline.estimate(ones, ones > 0, ones).numpy().tolist()
    [[7.0], [3.0], [3.0]]
    """

    argument_names = ("horizon", "decay")

    def __init__(self, horizon: int = 1000, decay: float = 0.9, **kwargs: Any) -> None:
        super().__init__(decay, **kwargs)
        self.horizon = validation.size("horizon", horizon)

    def build(self, observations_shape: Any) -> None:
        self._build_averages((self.horizon,))

    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        averages = tf.math.divide_no_nan(self.sums.value, self.shares.value)
        indices = tf.minimum(tf.range(tf.shape(returns)[0]), self.horizon - 1)
        column = tf.cast(tf.gather(averages, indices), returns.dtype)[:, None]
        return tf.where(valid, column, 0.0)

    def apply_gradients(
        self, gradients: list[tf.Tensor], baseline_batch: BaselineBatch
    ) -> None:
        returns = baseline_batch.returns
        indices = tf.minimum(baseline_batch.time_steps, self.horizon - 1)
        counts = tf.math.bincount(indices, minlength=self.horizon, dtype=tf.float64)
        sums = tf.math.unsorted_segment_sum(returns, indices, self.horizon)
        means = tf.math.divide_no_nan(tf.cast(sums, tf.float64), counts)
        self._add_means(means, tf.cast(counts > 0, tf.float64))
