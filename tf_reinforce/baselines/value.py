"""A baseline that is a Keras model of the observation."""

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import optimizers
from tf_reinforce import validation
from tf_reinforce.baselines import base
from tf_reinforce.data import minibatches
from tf_reinforce.functional import losses


@keras.saving.register_keras_serializable("tf_reinforce")
class Value(base.Baseline):
    """A learned value of the observation.

        b(s) = v(s),    trained towards the returns after the update that used it

    A baseline with a model of its own has an optimizer of its own. Without a model, the
    policy returns a dict with `"outputs"` and `"values"`. Its layers are then shared, and
    the agent's optimizer minimizes the sum of both losses.

    Args:
        model: Keras model from observations `[N, …]` to values `[N, 1]`, or `None` for
            the `"values"` of the policy. The model sees one observation at a time, also
            beside a recurrent policy. For a recurrent value, use a recurrent policy that
            returns `"values"`.
        optimizer: Keras optimizer of the model, other than a `LossScaleOptimizer`.
            Defaults to `Adam()`.
        passes: Int, the number of passes over each batch, towards the same targets.
            `Pendulum-v1` needs several.
        minibatch_size: Int, about how many steps make a gradient step, drawn anew for
            each update; `None` takes all.
        scale: Float above zero, the size of a typical return. The value is `scale` times
            the output of the model, and the loss is divided by `scale`². A new network
            returns numbers of about 1, which are far from returns in the hundreds.
        loss_weight: Float, the weight of the value loss if the layers are shared.

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
        passes=1,
        minibatch_size=None,
        scale=1.0,
        loss_weight=0.5,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.passes = validation.positive_int("passes", passes)
        self.minibatch_size = validation.positive_int_or_none(
            "minibatch_size", minibatch_size
        )
        least, most = np.finfo("float32").tiny, np.finfo("float32").max
        self.scale = validation.within("scale", scale, float(least), float(most))
        if model is not None:
            validation.instance("model", model, keras.Model)
        own = optimizer, minibatch_size, passes, scale
        if model is None and own != (None, None, 1, 1):
            raise ValueError(
                "A `Value` baseline that shares the policy's trunk is trained by the "
                "agent's optimizer, in one step with the policy, as the policy puts it "
                f"out. Received: model=None, optimizer={optimizer!r}, passes={passes}, "
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

    def gradients(self, baseline_batch):
        if self.model is None:
            return super().gradients(baseline_batch)
        with tf.GradientTape() as tape:
            values = self.values(baseline_batch.observations)
            loss = losses.value(values, baseline_batch.targets, baseline_batch.episodes)
            penalties = [tf.cast(x, loss.dtype) for x in self.model.losses]
            total = tf.add_n([loss / self.scale**2, *penalties])
        return loss, losses.gradients(tape, total, self.model.trainable_variables)

    def apply_gradients(self, gradients, baseline_batch):
        if not gradients:
            return
        if self.minibatch_size is None:
            self._step(gradients)
            minibatches.repeat(self.passes - 1, lambda _: self._step_from(baseline_batch))
            return
        parts = minibatches.Minibatches.of(baseline_batch.order, self.minibatch_size)
        minibatches.repeat(
            self.passes * parts.count,
            lambda number: self._step_from(
                baseline_batch.part(parts.at(number % parts.count))
            ),
        )

    def _step_from(self, baseline_batch):
        """A step along gradients of its own, if they are finite."""
        _, gradients = self.gradients(baseline_batch)
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
            "passes": self.passes,
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


def _expect_no_loss_scale(optimizer):
    """An optimizer that expects a scaled loss divides the gradients of any other."""
    scales = isinstance(optimizer, keras.optimizers.LossScaleOptimizer)
    if scales or getattr(optimizer, "loss_scale_factor", None) is not None:
        raise ValueError(
            "The loss of a `Value` baseline is not scaled, and this optimizer would "
            "divide its gradients. Expected: an optimizer without `loss_scale_factor`, "
            f"and no LossScaleOptimizer around it. Received: optimizer={optimizer!r}"
        )
