"""What is subtracted from returns: usually less variance.

The expectation stays the same when a baseline looks at nothing that its own episode does
from that step on. A part says
with `estimate` what to subtract; one with weights of its own says with `gradients`
and `learn` how it gets better.
"""

import abc

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import arguments, losses


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
    """

    values_states = False

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

    def gradients(self, observations, targets, episodes):
        """The baseline's own loss and gradients; NaN and none where it has no weights.

        Args:
            observations: `[N, …]`, of the valid steps, as the policy sees them.
            targets: `[N]` float, the returns to go, also under `returns="whole"`.
            episodes: Scalar, the number of episodes.

        Returns:
            Scalar loss, and a list of gradients for `learn`.
        """
        return tf.constant(float("nan"), targets.dtype), []

    def learn(self, gradients, observations, targets, episodes):
        """Takes one step along the gradients, once they are known to be finite.

        Args:
            gradients: List of `gradients`; the others are what it was given. Who wants
                to take further steps asks `gradients` again, and takes none that is
                not finite.
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

    Example:

    >>> returns = tf.constant([[1.0, 3.0, 5.0]])
    >>> valid = tf.constant([[True, True, True]])
    >>> LeaveOneOut().estimate(returns, valid, tf.zeros_like(returns)).numpy().tolist()
    [[4.0, 3.0, 2.0]]

    Reference:
        Kool, van Hoof & Welling (2019), Buy 4 REINFORCE samples, get a baseline for
        free! https://openreview.net/forum?id=r1lgTGL5DE
    """

    def estimate(self, returns, valid, values):
        running = tf.cast(valid, returns.dtype)
        others = tf.reduce_sum(running, axis=1, keepdims=True) - 1.0
        sums = tf.reduce_sum(returns, axis=1, keepdims=True) - returns
        return tf.where(valid, tf.math.divide_no_nan(sums, others), 0.0)


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
        optimizer: Keras optimizer of the model. Defaults to `Adam()`.
        epochs: Int, gradient steps of the model per update, each from the whole batch
            and towards the same targets. `Pendulum-v1` needs several.
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
        scale=1.0,
        loss_weight=0.5,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.epochs = arguments.positive_int("epochs", epochs)
        least, most = np.finfo("float32").tiny, np.finfo("float32").max
        self.scale = arguments.within("scale", scale, float(least), float(most))
        if model is not None:
            arguments.instance("model", model, keras.Model)
        if model is None and (optimizer is not None or epochs > 1 or scale != 1):
            raise ValueError(
                "A `Value` baseline that shares the policy's trunk is trained by the "
                "agent's optimizer, in one step with the policy, as the policy puts it "
                f"out. Received: model=None, optimizer={optimizer!r}, epochs={epochs}, "
                f"scale={scale}"
            )
        if not 0 <= loss_weight < float("inf"):
            raise ValueError(
                "`loss_weight` must be finite and not negative. "
                f"Received: loss_weight={loss_weight}"
            )
        self.model = model
        self.optimizer = keras.optimizers.get(optimizer or "adam") if model else None
        self.loss_weight = loss_weight

    def build(self, observations_shape):
        if self.model is None:
            return
        if not self.model.built:
            self.model.build(observations_shape)
        self.optimizer.build(self.model.trainable_variables)

    def values(self, observations):
        """`[N]` float, the values of `[N, …]` observations. Gradients flow."""
        values = self.model(observations, training=False)
        if values.shape.rank != 2 or values.shape[-1] != 1:
            raise ValueError(
                "The model of a `Value` baseline must put out one number per "
                f"observation, shape (batch, 1). Received: shape {values.shape}. "
                "End it with keras.layers.Dense(1)."
            )
        return self.scale * values[:, 0]

    def estimate(self, returns, valid, values):
        return tf.where(valid, values, 0.0)

    def gradients(self, observations, targets, episodes):
        if self.model is None:
            return super().gradients(observations, targets, episodes)
        with tf.GradientTape() as tape:
            loss = losses.value(self.values(observations), targets, episodes)
            penalties = [tf.cast(x, loss.dtype) for x in self.model.losses]
            total = tf.add_n([loss / self.scale**2, *penalties])
        return loss, losses.gradients(tape, total, self.model.trainable_variables)

    def learn(self, gradients, observations, targets, episodes):
        if not gradients:
            return
        self._step(gradients)

        def again(epoch):
            _, further = self.gradients(observations, targets, episodes)
            finite = [tf.reduce_all(tf.math.is_finite(gradient)) for gradient in further]
            tf.cond(tf.reduce_all(finite), lambda: self._step(further), lambda: 0)
            return [epoch + 1]

        if self.epochs > 1:
            tf.while_loop(lambda epoch: epoch < self.epochs, again, [1])

    def _step(self, gradients):
        self.optimizer.apply(gradients, self.model.trainable_variables)
        return 0

    def get_config(self):
        return {
            **super().get_config(),
            "model": keras.saving.serialize_keras_object(self.model),
            "optimizer": keras.saving.serialize_keras_object(self.optimizer),
            "epochs": self.epochs,
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
        identifier: `"leave_one_out"`, `"mean"`, a `Baseline`, or `None` for nothing.

    Raises:
        ValueError: when it is none of these.

    Example:

    >>> type(get("mean")).__name__
    'Mean'
    """
    if isinstance(identifier, Baseline):
        return identifier
    named = {"leave_one_out": LeaveOneOut, "mean": Mean, None: Nothing}
    if not isinstance(identifier, str | None) or identifier not in named:
        raise ValueError(
            "`baseline` must be 'leave_one_out', 'mean', None or an object from "
            f"tfr.baselines, for example Value(model). Received: baseline={identifier!r}"
        )
    return named[identifier]()
