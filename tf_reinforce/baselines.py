"""What is subtracted from returns: usually less variance.

The expectation stays the same when a baseline looks at nothing that its own episode does
from that step on. A part says
with `estimate` what to subtract; one with weights of its own says with `gradients`
and `learn` how it gets better.
"""

import abc
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import arguments, losses, minibatches, optimizers


class Lesson(NamedTuple):
    """What one update teaches a baseline, from its `N` valid steps."""

    observations: Any  # [N, …], or a structure of them, as the policy sees them
    targets: tf.Tensor  # [N] float, the returns to go, also under `returns="whole"`
    times: tf.Tensor  # [N] int32, steps since the episode began
    episodes: tf.Tensor  # scalar, how many episodes
    order: Any = None  # [N] int32, the steps at random, for a baseline with minibatches

    def part(self, indices):
        """What the steps at `[n]` indices teach. Their sum counts N / n times."""
        share = tf.size(indices) / tf.size(self.targets)

        def gather(array):
            return tf.gather(array, indices)

        return Lesson(
            keras.tree.map_structure(gather, self.observations),
            gather(self.targets),
            gather(self.times),
            tf.cast(self.episodes, share.dtype) * share,
        )


class Baseline(keras.layers.Layer, abc.ABC):
    """An estimate of the return that is made without looking at the action.

    One of your own states `estimate`, and keeps what it learns in weights (`add_weight`,
    in `build`): `gradients` says how they should move and `learn` moves them, once the
    whole update is known to be finite. All methods are traced; nothing else may change.
    `examples/your_own_parts.py` has one, and `tfr.testing.check_gradient` tries it.

    Attributes:
        values_states: True when the baseline is a value of the observation. Only such
            a one can stand in for what follows a cut, or for `gae_lambda` below 1; it
            then also has `model`, `values` and `loss_weight`, as `Value` does.
        siblings: Int. With more than 1, the agent starts so many episodes in a row
            from the same seed of the environment.
        minibatch_size: Int, where its lessons need an `order`, or `None`.
    """

    values_states = False
    siblings = 1
    minibatch_size: int | None = None

    def __setattr__(self, name, value):
        arguments.expect_changeable(self, name, value)
        super().__setattr__(name, value)

    @property
    def shares_policy(self):
        """Whether the policy puts out the values too, and one loss trains both."""
        return self.values_states and self.model is None

    @abc.abstractmethod
    def estimate(self, returns, valid, values):
        """What to subtract from each return.

        Args:
            returns: `[T, B]` float, zero in the padding.
            valid: `[T, B]` bool, the steps that happened.
            values: `[T, B]` float, values of the observations; zeros without a
                value baseline.

        Returns:
            `[T, B]` float in the type of `returns`. Zero: subtract nothing.
        """

    def gradients(self, lesson):
        """The baseline's own loss and gradients; NaN and none where it has no weights.

        Args:
            lesson: `Lesson`.

        Returns:
            Scalar loss, and a list of gradients for `learn`.
        """
        return tf.constant(float("nan"), lesson.targets.dtype), []

    def learn(self, gradients, lesson):
        """Takes one step along the gradients, once they are known to be finite.

        Args:
            gradients: List, of `gradients(lesson)`. Who wants to take further steps
                asks for others, and takes none that is not finite.
            lesson: `Lesson`.
        """


@keras.saving.register_keras_serializable("tf_reinforce")
class Nothing(Baseline):
    """No baseline: subtracts zero. Unbiased, and usually the noisiest choice."""

    def estimate(self, returns, valid, values):
        return tf.zeros_like(returns)


@keras.saving.register_keras_serializable("tf_reinforce")
class LeaveOneOut(Baseline):
    """The mean return of the *other* episodes still running at the same step.

        bᵢₜ = Σ_{j≠i} Gⱼₜ / (nₜ - 1),    nₜ episodes running at t;  0 where nₜ = 1

    It never sees the episode it is subtracted from, so it changes the variance and
    not the expectation, for any number of episodes fixed beforehand.

    In groups the others are the siblings that began with the same seed of the
    environment, and so with the same observation: what differs between beginnings no
    longer is noise. The environment's own chance is then common too, which takes
    nothing away: given it, the actions of one episode still say nothing of another's.

    Args:
        groups: Int, the size K of a group, at least 2; or `None` for all episodes. The
            columns of a record stand in groups, K by K.

    Example:

    >>> returns = tf.constant([[1.0, 3.0, 5.0]])
    >>> valid = tf.constant([[True, True, True]])
    >>> LeaveOneOut().estimate(returns, valid, tf.zeros_like(returns)).numpy().tolist()
    [[4.0, 3.0, 2.0]]
    >>> returns = tf.constant([[1.0, 3.0, 5.0, 6.0]])
    >>> LeaveOneOut(groups=2).estimate(returns, returns > 0, returns).numpy().tolist()
    [[3.0, 1.0, 6.0, 5.0]]

    Reference:
        Kool, van Hoof & Welling (2019), Buy 4 REINFORCE samples, get a baseline for
        free! https://openreview.net/forum?id=r1lgTGL5DE
    """

    def __init__(self, groups=None, **kwargs):
        super().__init__(**kwargs)
        if groups is not None and arguments.positive_int("groups", groups) < 2:
            raise ValueError(
                "`groups` must be at least 2: alone, an episode has no others. "
                f"Received: groups={groups}"
            )
        self.groups = groups
        self.siblings = groups or 1

    def estimate(self, returns, valid, values):
        rows, count = tf.unstack(tf.shape(returns))
        size = self.groups or count
        tf.debugging.assert_equal(
            count % size, 0, f"The episodes must stand in groups of {self.groups}"
        )
        grouped = tf.reshape(returns, [rows, -1, size])
        running = tf.reshape(tf.cast(valid, returns.dtype), [rows, -1, size])
        others = tf.reduce_sum(running, axis=2, keepdims=True) - 1.0
        sums = tf.reduce_sum(grouped, axis=2, keepdims=True) - grouped
        means = tf.reshape(tf.math.divide_no_nan(sums, others), [rows, count])
        return tf.where(valid, means, 0.0)

    def get_config(self):
        return {**super().get_config(), "groups": self.groups}


@keras.saving.register_keras_serializable("tf_reinforce")
class Mean(Baseline):
    """The mean return over all steps of the batch: simple, and biased.

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
class MovingAverage(Baseline):
    """The mean return over all steps of earlier batches, the last ones counting most.

        b = Σᵢ dᵏ⁻ⁱ mᵢ / Σᵢ dᵏ⁻ⁱ,    mᵢ the mean return of a step in batch i = 1 … k

    It knows nothing of the batch it is subtracted from, so it changes the variance and
    not the expectation. Zero before the first update.

    Args:
        decay: Float in [0, 1], d. Zero: only the last batch counts; one: all alike.

    Example:

    >>> baseline = MovingAverage(decay=0.5)
    >>> baseline.build((None, 4))
    >>> for returns in ([1.0, 3.0], [5.0]):
    ...     times = tf.range(len(returns))
    ...     baseline.learn([], Lesson(None, tf.constant(returns), times, episodes=1))
    >>> one = tf.ones([1, 1])
    >>> baseline.estimate(one, one > 0, one).numpy().tolist()  # (2 / 2 + 5) / (1 / 2 + 1)
    [[4.0]]
    """

    def __init__(self, decay=0.9, **kwargs):
        super().__init__(**kwargs)
        self.decay = arguments.within("decay", decay, 0, 1)

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

    def learn(self, gradients, lesson):
        self._average(tf.reduce_mean(lesson.targets), 1.0)

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

    A batch without a step t says nothing about it. Zero at steps that were never
    reached; unbiased as `MovingAverage`.

    Args:
        horizon: Int, the number of steps told apart. All later ones share the last.
        decay: Float in [0, 1], d. Zero: only the last batch counts; one: all alike.

    Example:

    >>> baseline = TimeStep(horizon=2)
    >>> baseline.build((None, 4))
    >>> baseline.learn([], Lesson(None, tf.constant([7.0, 3.0]), [0, 1], episodes=1))
    >>> one = tf.ones([3, 1])
    >>> baseline.estimate(one, one > 0, one).numpy().tolist()
    [[7.0], [3.0], [3.0]]
    """

    def __init__(self, horizon=1000, decay=0.9, **kwargs):
        super().__init__(decay, **kwargs)
        self.horizon = arguments.positive_int("horizon", horizon)

    def build(self, observations_shape):
        self._build_averages((self.horizon,))

    def estimate(self, returns, valid, values):
        averages = tf.math.divide_no_nan(self.sums.value, self.shares.value)
        times = tf.minimum(tf.range(tf.shape(returns)[0]), self.horizon - 1)
        column = tf.cast(tf.gather(averages, times), returns.dtype)[:, None]
        return tf.where(valid, column, 0.0)

    def learn(self, gradients, lesson):
        times = tf.minimum(lesson.times, self.horizon - 1)
        counts = tf.math.bincount(times, minlength=self.horizon, dtype=tf.float64)
        sums = tf.math.unsorted_segment_sum(lesson.targets, times, self.horizon)
        means = tf.math.divide_no_nan(tf.cast(sums, tf.float64), counts)
        self._average(means, tf.cast(counts > 0, tf.float64))

    def get_config(self):
        return {**super().get_config(), "horizon": self.horizon}


@keras.saving.register_keras_serializable("tf_reinforce")
class Value(Baseline):
    """A learned value of the observation.

        b(s) = v(s),    trained towards the returns, after the update that used it

    With a model of its own it also owns an optimizer. Without one, the policy itself
    is a model with two named outputs, `"outputs"` and `"values"`: a shared trunk,
    trained by the agent's one optimizer on the sum of both losses.

    Args:
        model: Keras model from observations `[N, …]` to values `[N, 1]`, or `None`
            for the policy's own `"values"`. It sees one observation at a time, also
            beside a policy that remembers; a value that remembers shares the policy.
        optimizer: Keras optimizer of the model, other than a `LossScaleOptimizer`.
            Defaults to `Adam()`.
        epochs: Int, how often per update the model learns the batch, towards the same
            targets. `Pendulum-v1` needs several.
        minibatch_size: Int, from how many steps at a time, drawn anew for each update;
            `None`: from all of them at once.
        scale: Float above zero, the size of a usual return. The value is the model's
            output times this, and the loss is taken in this unit: what a network puts
            out at first is about 1, and returns in the hundreds are far from there.
        loss_weight: Float, the share of the value loss where the trunk is shared.

    Example:

    >>> critic = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> Value(critic).values(tf.zeros([3, 4])).numpy().tolist()
    [0.0, 0.0, 0.0]
    """

    values_states = True

    def __init__(
        self,
        model=None,
        optimizer=None,
        *,
        epochs=1,
        minibatch_size=None,
        scale=1.0,
        loss_weight=0.5,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.epochs = arguments.positive_int("epochs", epochs)
        self.minibatch_size = arguments.positive_int_or_none(
            "minibatch_size", minibatch_size
        )
        least, most = np.finfo("float32").tiny, np.finfo("float32").max
        self.scale = arguments.within("scale", scale, float(least), float(most))
        if model is not None:
            arguments.instance("model", model, keras.Model)
        own = optimizer, minibatch_size, epochs, scale
        if model is None and own != (None, None, 1, 1):
            raise ValueError(
                "A `Value` baseline that shares the policy's trunk is trained by the "
                "agent's optimizer, in one step with the policy, as the policy puts it "
                f"out. Received: model=None, optimizer={optimizer!r}, epochs={epochs}, "
                f"minibatch_size={minibatch_size}, scale={scale}"
            )
        if not 0 <= loss_weight < float("inf"):
            raise ValueError(
                "`loss_weight` must be finite and not negative. "
                f"Received: loss_weight={loss_weight}"
            )
        self.model = model
        self.optimizer = keras.optimizers.get(optimizer or "adam") if model else None
        _expect_no_loss_scale(self.optimizer)
        self.loss_weight = loss_weight

    def build(self, observations_shape):
        if self.model is None:
            return
        if not self.model.built:
            self.model.build(observations_shape)
        optimizers.build(self.optimizer, self.model.trainable_variables)

    def values(self, observations):
        """`[N]` float, the values of `[N, …]` observations. Gradients flow."""

        def called(observations):
            return self.model(observations, training=False)

        values = minibatches.on_rows(called, observations)
        if values.shape.rank != 2 or values.shape[-1] != 1:
            raise ValueError(
                "The model of a `Value` baseline must put out one number per "
                f"observation, shape (batch, 1). Received: shape {values.shape}. "
                "End it with keras.layers.Dense(1)."
            )
        if values.dtype in (tf.float16, tf.bfloat16):
            values = tf.cast(values, tf.float32)
        return self.scale * values[:, 0]

    def estimate(self, returns, valid, values):
        return tf.where(valid, values, 0.0)

    def gradients(self, lesson):
        if self.model is None:
            return super().gradients(lesson)
        with tf.GradientTape() as tape:
            values = self.values(lesson.observations)
            loss = losses.value(values, lesson.targets, lesson.episodes)
            penalties = [tf.cast(x, loss.dtype) for x in self.model.losses]
            total = tf.add_n([loss / self.scale**2, *penalties])
        return loss, losses.gradients(tape, total, self.model.trainable_variables)

    def learn(self, gradients, lesson):
        if not gradients:
            return
        if self.minibatch_size is None:
            self._step(gradients)
            minibatches.repeat(self.epochs - 1, lambda _: self._step_from(lesson))
            return
        parts = minibatches.Minibatches.of(lesson.order, self.minibatch_size)
        minibatches.repeat(
            self.epochs * parts.count,
            lambda number: self._step_from(lesson.part(parts.at(number % parts.count))),
        )

    def _step_from(self, lesson):
        """A step along gradients of its own, if they are finite."""
        _, gradients = self.gradients(lesson)
        finite = [tf.reduce_all(tf.math.is_finite(gradient)) for gradient in gradients]
        tf.cond(tf.reduce_all(finite), lambda: self._step(gradients), lambda: 0)

    def _step(self, gradients):
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return 0

    def get_config(self):
        return {
            **super().get_config(),
            "model": keras.saving.serialize_keras_object(self.model),
            "optimizer": keras.saving.serialize_keras_object(self.optimizer),
            "epochs": self.epochs,
            "minibatch_size": self.minibatch_size,
            "scale": self.scale,
            "loss_weight": self.loss_weight,
        }

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        for part in ("model", "optimizer"):
            config[part] = keras.saving.deserialize_keras_object(config[part])
        return cls(**config)


def get(identifier):
    """The baseline meant by a name, an object or `None`.

    Args:
        identifier: `"leave_one_out"`, `"mean"`, `"moving_average"`, `"time_step"`, a
            `Baseline`, or `None` for nothing.

    Raises:
        ValueError: when it is none of these.

    Example:

    >>> type(get("mean")).__name__
    'Mean'
    """
    if isinstance(identifier, Baseline):
        return identifier
    named = {
        "leave_one_out": LeaveOneOut,
        "mean": Mean,
        "moving_average": MovingAverage,
        "time_step": TimeStep,
        None: Nothing,
    }
    if not isinstance(identifier, str | None) or identifier not in named:
        raise ValueError(
            "`baseline` must be 'leave_one_out', 'mean', 'moving_average', 'time_step', "
            "None or an object from tfr.baselines, for example Value(model). "
            f"Received: baseline={identifier!r}"
        )
    return named[identifier]()


def _expect_no_loss_scale(optimizer):
    """An optimizer that expects a scaled loss divides the gradients of any other."""
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scales or getattr(optimizer, "loss_scale_factor", None) is not None:
        raise ValueError(
            "The loss of a `Value` baseline is not scaled, and this optimizer would "
            "divide its gradients. Expected: an optimizer without `loss_scale_factor`, "
            f"and no LossScaleOptimizer around it. Received: optimizer={optimizer!r}"
        )
