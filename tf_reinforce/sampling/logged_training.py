"""Runs Keras' `fit` on logged decisions, for a model that `ScoreFunction` trains."""

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.callbacks import lists
from tf_reinforce.functional import losses
from tf_reinforce.sampling import checked_steps
from tf_reinforce.sampling import logged_actions
from tf_reinforce.sampling import resumed_fit
from tf_reinforce.support import optimizers

_FIT_ARGUMENTS = {"batch_size", "initial_epoch", "shuffle", "steps_per_epoch"}


class LoggedTraining(keras.Model):
    """Trains the model of a `ScoreFunction` on logged decisions, with its optimizer.

    Callbacks receive the `ScoreFunction`, and can stop the training.

    Args:
        owner: `ScoreFunction`, compiled.
        options: `LoggedOptions`.
    """

    def __init__(self, owner, options):
        # An attribute of a plain object prevents that Keras tracks the owner, which would
        # contain itself. Keras' constructor already sets `_initial_epoch`.
        object.__setattr__(self, "_owner", owner)
        super().__init__()
        self.model = owner.model
        self.options = options
        example = "the estimate of row {} (from 0) of the log"
        self._checks = checked_steps.CheckedSteps(None, example)
        self._value_tracker = keras.metrics.Mean(name="policy_value")
        self._sizes_tracker = keras.metrics.Mean(name="effective_sample_size")
        self._entropy_tracker = keras.metrics.Mean(name="entropy")

    @property
    def owner(self):
        """Returns the `ScoreFunction` whose model is trained."""
        return self._owner

    @property
    def trainable_variables(self):
        return self.model.trainable_variables

    @property
    def stop_training(self):
        """Returns whether a callback has stopped the training of the owner."""
        return self.owner.stop_training

    @stop_training.setter
    def stop_training(self, value):
        self.owner.stop_training = value

    @property
    def _initial_epoch(self):
        """Returns the epoch at which Keras' `BackupAndRestore` continues the owner."""
        return self.owner._initial_epoch

    @_initial_epoch.setter
    def _initial_epoch(self, value):
        self.owner._initial_epoch = value

    @property
    def history(self):
        """Returns Keras' `History`, which the callback sets on the owner."""
        return self.owner.history

    def call(self, inputs, training=False):
        return self.model(inputs, training=training)

    def train_step(self, data):
        contexts, (*logged, numbers), _ = keras.utils.unpack_x_y_sample_weight(data)
        batch = logged_actions.LoggedBatch(contexts, *logged)
        states = checked_steps.states(self.model)
        with tf.GradientTape() as tape:
            scored = logged_actions.scores(self.model, batch, self.options, training=True)
            terms = logged_actions.terms(scored, batch, self.options)
            loss = logged_actions.surrogate(scored, terms, self.options)
            loss += self.owner.estimator.penalties(loss.dtype)
            loss = self.optimizer.scale_loss(loss)
        variables = self.model.trainable_variables
        gradients = losses.gradients(tape, loss, variables)
        with tf.init_scope():
            optimizers.build(self.optimizer, variables)
        self._checks.run_if_finite(
            lambda: self.optimizer.apply(gradients, variables),
            states,
            terms.values,
            [] if self.scales_loss else gradients,
            numbers,
            contexts,
        )
        self._value_tracker.update_state(terms.values)
        self._entropy_tracker.update_state(scored.entropies)
        weights = tf.cast(terms.weights, tf.float64)  # float32 has no larger squares
        share = tf.math.divide_no_nan(
            tf.reduce_mean(weights) ** 2, tf.reduce_mean(weights**2)
        )
        self._sizes_tracker.update_state(share, tf.size(weights))
        return self.get_metrics_result()

    @property
    def metrics(self):
        """Returns the metrics without the loss, whose value has no meaning."""
        return [self._value_tracker, self._sizes_tracker, self._entropy_tracker]

    @property
    def scales_loss(self):
        """Returns whether the optimizer skips steps whose gradients overflow."""
        return isinstance(self.optimizer, keras.optimizers.LossScaleOptimizer)

    def make_train_function(self, force=False):
        super().make_train_function(force)
        self.train_function = self._checks.checked(self.train_function)
        return self.train_function


def fit(
    owner,
    batch,
    options,
    *,
    callbacks=None,
    verbose="auto",
    epochs=1,
    resume=None,
    **kwargs,
):
    """Trains the model of a `ScoreFunction` on logged decisions; returns `History`.

    Args:
        owner: `ScoreFunction`, compiled.
        batch: `LoggedBatch`, validated.
        options: `LoggedOptions`, validated.
        callbacks, verbose, epochs, **kwargs: As in `keras.Model.fit`.
        resume: As in `ScoreFunction.fit`.
    """
    if getattr(owner, "optimizer", None) is None:
        raise ValueError(
            "The `ScoreFunction` must be compiled before training. Received: no "
            "optimizer. Call `model.compile(optimizer)`."
        )
    unknown = sorted(kwargs.keys() - _FIT_ARGUMENTS)
    if unknown:
        raise TypeError(
            f"`fit_logged` accepts these arguments of Keras: {sorted(_FIT_ARGUMENTS)}. "
            f"Received: {', '.join(f'{name}={kwargs[name]!r}' for name in unknown)}. Use "
            "`evaluate_logged` for a validation log."
        )
    training = LoggedTraining(owner, options)
    training.compile(
        owner.optimizer,
        auto_scale_loss=False,
        jit_compile=owner.jit_compile,
        run_eagerly=owner.run_eagerly,
        steps_per_execution=owner.steps_per_execution,
    )
    rows = np.arange(len(batch.rewards))
    logged = batch.actions, batch.rewards, batch.propensities, rows
    kwargs |= dict(verbose=verbose, epochs=epochs)
    if resume is not None:
        described = {**owner.description, **options._asdict()}
        data = batch.contexts, logged
        return resumed_fit.fit(
            owner, training, resume, described, *data, callbacks=callbacks, **kwargs
        )
    callbacks = lists.callback_list(
        callbacks,
        owner,
        verbose=verbose,
        add_progbar=verbose != 0,
        epochs=epochs,
        steps=None,
        history=True,
    )
    return training.fit(batch.contexts, logged, callbacks=callbacks, **kwargs)
