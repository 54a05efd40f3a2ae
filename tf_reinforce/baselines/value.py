"""A baseline that is a Keras model of the observation."""

import copy
import functools
import math
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.baselines import base
from tf_reinforce.data import minibatches
from tf_reinforce.functional import losses
from tf_reinforce.functional import shapes
from tf_reinforce.support import compilation
from tf_reinforce.support import optimizers
from tf_reinforce.support import validation


@keras.saving.register_keras_serializable("tf_reinforce")
class Value(base.Baseline):
    """Predicts the return from the observation with a Keras model.

        b(s) = v(s),    trained to predict the returns of a batch after its update

    Pass a `model` to train a separate value network with an optimizer of its own. If no
    model is given, the values come from the policy network, which must then return a dict
    with `"outputs"` and `"values"`. In this case, the agent's optimizer minimizes the
    policy loss plus `loss_weight` times the value loss.

    Args:
        model: Keras model from `N` observations `[N, …]` to values `[N, 1]`, or `None` to
            use the policy's `"values"`. A model with recurrent layers maps sequences
            `[B, T, …]` to `[B, T, 1]`. If the agent has a `context`, the model takes the
            same windows as the policy.
        optimizer: Keras optimizer of the model, by default `Adam()`. A
            `LossScaleOptimizer` is refused.
        passes: Int, the number of passes over the batch in each update, all with the same
            returns. Some tasks, such as `Pendulum-v1`, need several passes.
        minibatch_size: Int, the approximate number of time steps per gradient step, which
            are chosen as those of `Reinforce`, anew in each update. With `None`, each
            gradient step uses the whole batch.
        scale: Float above zero, the size of a typical return. The value is `scale` times
            the model's output, and the value loss is divided by `scale`². Because a new
            network returns small numbers, returns in the hundreds need a `scale` of about
            100.
        loss_weight: Float, the weight of the value loss if the policy returns the values.

    Example:

    >>> value_model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    >>> Value(value_model).values(tf.zeros([3, 4])).numpy().tolist()
    [0.0, 0.0, 0.0]
    """

    is_value_function = True
    argument_names = ("passes", "minibatch_size", "scale", "loss_weight")

    def __init__(
        self,
        model: Any = None,
        optimizer: Any = None,
        *,
        passes: int = 1,
        minibatch_size: int | None = None,
        scale: float = 1.0,
        loss_weight: float = 0.5,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.passes = validation.positive_int("passes", passes)
        self.minibatch_size = validation.positive_int_or_none(
            "minibatch_size", minibatch_size
        )
        limits = np.finfo("float32")
        self.scale = validation.within(
            "scale", scale, float(limits.tiny), float(limits.max)
        )
        if model is not None:
            validation.instance("model", model, keras.Model)
        elif (optimizer, minibatch_size, passes, scale) != (None, None, 1, 1):
            raise ValueError(
                "A `Value` baseline without a model takes neither `optimizer` nor "
                "`passes`, `minibatch_size` or `scale`, because the agent's optimizer "
                f"trains it. Received: model=None, optimizer={optimizer!r}, "
                f"passes={passes}, minibatch_size={minibatch_size}, scale={scale}"
            )
        self.model = model
        if model is not None:
            optimizer = keras.optimizers.get("adam" if optimizer is None else optimizer)
        self.optimizer: Any = optimizer
        if getattr(self.optimizer, "loss_scale_factor", None) is not None or isinstance(
            self.optimizer, keras.optimizers.LossScaleOptimizer
        ):
            raise ValueError(
                "The `optimizer` of a `Value` baseline must have no loss scale, because "
                f"the value loss is not scaled. Received: optimizer={optimizer!r}"
            )
        self.loss_weight = validation.within("loss_weight", loss_weight, 0, math.inf)

    def build(self, observations_shape: Any) -> None:
        if self.model is None:
            return
        if not self.model.built:
            self.model.build(observations_shape)
        optimizers.build(self.optimizer, self.model.trainable_variables)

    def values(self, observations: Any, call_model: Any = None) -> tf.Tensor:
        """Returns the values `[N]` of `N` observations; gradients flow to the model.

        Args:
            observations: `[N, …]`, or a structure of arrays.
            call_model: Function that calls the model, see `BaselineBatch`.
        """
        if call_model is None:
            call_model = functools.partial(self.model, training=False)
        values = minibatches.call_on_rows(call_model, observations)
        if values.shape.rank != 2 or values.shape[-1] != 1:
            raise ValueError(
                "The model of a `Value` baseline must return one number per observation. "
                f"Received: shape {values.shape}. End the model with "
                "keras.layers.Dense(1), and for a policy of windows, `context=K`, begin "
                "it with keras.Input((K, …)) like the policy."
            )
        if values.dtype in (tf.float16, tf.bfloat16):
            values = tf.cast(values, tf.float32)
        return self.scale * values[:, 0]

    def estimate(
        self, returns: tf.Tensor, valid: tf.Tensor, values: tf.Tensor | None
    ) -> tf.Tensor:
        return tf.where(valid, values, 0.0)

    def gradients(self, baseline_batch: base.BaselineBatch) -> Any:
        if self.model is None:
            return super().gradients(baseline_batch)
        if self._gradients_follow(baseline_batch):
            values = baseline_batch.values
            returns = tf.cast(baseline_batch.returns, values.dtype)
            return losses.value(values, returns, baseline_batch.episodes), []
        strategy = optimizers.strategy_of(self.model.trainable_variables)
        if strategy is None:
            return self._gradients(baseline_batch)

        def gradients_of_share(replica: tf.Tensor, num_replicas: int) -> Any:
            steps = tf.range(tf.size(baseline_batch.returns))
            shares = minibatches.Minibatches(
                steps, tf.constant(num_replicas, tf.int64), tf.size(steps, tf.int64)
            )
            own = shares.minibatch(replica)
            loss, gradients = self._gradients(baseline_batch.minibatch(own))
            fraction = tf.math.divide_no_nan(
                *(tf.cast(tf.size(x), tf.float64) for x in (own, steps))
            )
            return fraction, [loss, *gradients]

        loss, *gradients = optimizers.sum_over_replicas(strategy, gradients_of_share)
        return loss, gradients

    def _gradients_follow(self, baseline_batch: base.BaselineBatch) -> bool:
        """Returns whether only `apply_gradients` computes gradients, from minibatches.

        The gradient of the whole batch would take as long as a pass.
        """
        parts = self.minibatch_size, baseline_batch.permutation, baseline_batch.values
        return all(part is not None for part in parts)

    def _gradients(self, baseline_batch: base.BaselineBatch) -> Any:
        """Returns the model's loss on a batch, and its gradients."""
        with tf.GradientTape() as tape:
            values = self.values(baseline_batch.observations, baseline_batch.call_model)
            returns = tf.cast(baseline_batch.returns, values.dtype)
            if baseline_batch.is_padding is not None:
                returns = tf.where(baseline_batch.is_padding, values, returns)
            loss = losses.value(values, returns, baseline_batch.episodes)
            penalties = [tf.cast(x, loss.dtype) for x in self.model.losses]
            total = tf.add_n([loss / self.scale**2, *penalties])
        return loss, losses.gradients(tape, total, self.model.trainable_variables)

    def apply_gradients(
        self, gradients: list[tf.Tensor], baseline_batch: base.BaselineBatch
    ) -> None:
        if self.model is None:
            return
        if self.minibatch_size is None:
            self._step(gradients)
            minibatches.call_repeatedly(
                self.passes - 1, lambda _: self._step_from(baseline_batch)
            )
            return
        batches = minibatches.Minibatches.split(
            baseline_batch.permutation, self.minibatch_size
        )
        is_checked = not self._gradients_follow(baseline_batch)
        steps = functools.partial(self._minibatch_steps, is_checked)
        if baseline_batch.jit_compile:
            rows = compilation.padded_rows(tf.size(baseline_batch.returns))
            program = compilation.compiled(steps)
            program(baseline_batch.padded(rows), batches.padded(rows), batches.offsets())
        else:
            steps(baseline_batch, batches)

    def _minibatch_steps(
        self, is_checked: bool, baseline_batch: Any, batches: Any, offsets: Any = None
    ) -> None:
        """Makes a gradient step from each minibatch of each pass.

        With `offsets`, the minibatches are padded as described in
        `Minibatches.minibatch`. Unless the batch's gradient `is_checked`, a gradient of
        the first pass that is not finite turns the weights into NaN, so that the agent
        refuses the update.
        """
        unchecked = 0 if is_checked else batches.count

        def step(number: tf.Tensor) -> None:
            indices = batches.minibatch(number % batches.count, offsets)
            self._step_from(baseline_batch.minibatch(indices), number < unchecked)

        minibatches.call_repeatedly(self.passes * batches.count, step)

    def _step_from(self, baseline_batch: base.BaselineBatch, refuses: Any = False) -> Any:
        """Makes a gradient step from a batch if all gradients are finite.

        If not, `refuses=True` makes the weights NaN; otherwise nothing happens.
        """
        _, gradients = self.gradients(baseline_batch)
        finite = shapes.all_finite(gradients)
        compilation.run_if(finite, lambda: self._step(gradients))
        compilation.run_if(~finite & refuses, self._refuse)

    def _step(self, gradients: list[tf.Tensor]) -> None:
        self.optimizer.apply(gradients, self.model.trainable_variables)

    def _refuse(self) -> None:
        for variable in self.model.trainable_variables:
            variable.assign(variable * math.nan)

    def get_config(self) -> dict[str, Any]:
        serialize = keras.saving.serialize_keras_object
        parts = {name: serialize(getattr(self, name)) for name in ("model", "optimizer")}
        return {**compilation.FixedArguments.get_config(self), **parts}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Value":
        config = copy.deepcopy(config)  # Keras removes entries of the model's config
        for name in ("model", "optimizer"):
            config[name] = keras.saving.deserialize_keras_object(config[name])
        return cls(**config)
