"""Changes learning rates during training."""

import math
import operator
from typing import NamedTuple

import keras
import tensorflow as tf

from tf_reinforce import validation

OPTIMIZERS = ("optimizer", "baseline.optimizer")


class LinearLearningRate(keras.callbacks.Callback):
    """Changes learning rates linearly, from the first to the last update of an agent.

    The callback sets the learning rates before each update. If one TensorFlow program
    makes several updates, the program sets the learning rates of all updates after its
    first, with the result of the method `in_program`.

    Args:
        schedules: List of `(optimizer, first, last)`: the attribute path of an optimizer
            of the agent, for example `"baseline.optimizer"`, and two floats, its first
            and its last learning rate.
        epochs: Int, the number of the last epoch, after which the learning rates would
            reach `last`. In a training of a number of environment steps, the learning
            rates reach `last` at the last step (`end_env_steps` of the parameters).
    """

    def __init__(self, schedules, epochs):
        super().__init__()
        self.schedules = schedules
        self.epochs = epochs
        self._offset = None  # the number of updates before the epoch 0

    def on_epoch_begin(self, epoch, logs=None):
        updates = self.model.updates
        if self._offset is None:
            # The offset is computed here, because a callback that restores a training
            # sets the first epoch only after training has begun.
            self._offset = updates - epoch
        elif self._offset + epoch < updates:
            return  # a program has already made the update of this epoch
        rates = self.in_program()
        progress = self.model.env_steps if rates.by_steps else updates
        share = min(progress / rates.end, 1.0)
        for path, first, last in self.schedules:
            optimizer = operator.attrgetter(path)(self.model)
            _set_learning_rate(optimizer, first + (last - first) * share)

    def in_program(self):
        """Returns the `ProgramRates` of this training, once its first epoch has begun."""
        schedules = tuple(map(tuple, self.schedules))
        if not schedules:
            return NO_RATES
        steps = self.params.get("end_env_steps")
        return ProgramRates(schedules, steps or self._offset + self.epochs, bool(steps))


class ProgramRates(NamedTuple):
    """Linear learning rates for a TensorFlow program that makes several updates.

    Attributes:
        schedules: Tuple of `(optimizer, first, last)`, as in `LinearLearningRate`.
        end: Int, the number of updates or of environment steps of the agent at which the
            learning rates reach `last`.
        by_steps: Bool, whether `end` is a number of environment steps.
    """

    schedules: tuple
    end: int
    by_steps: bool


NO_RATES = ProgramRates((), 1, False)


def check_schedules(schedules, baseline):
    """Returns the learning rates from the config of an agent, or raises `ValueError`.

    Args:
        schedules: Value of `learning_rates` in the config.
        baseline: `Baseline` of the agent.
    """
    is_list = isinstance(schedules, list) and len(schedules) <= len(OPTIMIZERS)
    if not is_list or not all(isinstance(x, list) and len(x) == 3 for x in schedules):
        raise ValueError(
            "`learning_rates` of an agent must be a list of at most two lists "
            f"[optimizer, first, last]. Received: {repr(schedules)[:100]}"
        )
    for path, *rates in schedules:
        known = OPTIMIZERS if hasattr(baseline, "optimizer") else OPTIMIZERS[:1]
        if path not in known:
            raise ValueError(
                "`learning_rates` of an agent names the optimizer "
                f"{repr(path)[:100]}. Expected one of: {', '.join(known)}."
            )
        for rate in rates:
            validation.within(f"learning_rates of {path}", rate, 0, math.inf)
    return schedules


def set_in_graph(schedules, agent, progress, end):
    """Sets learning rates in a graph, to the same bits as `LinearLearningRate`.

    Args:
        schedules: Attribute of `ProgramRates`.
        agent: Object with the attributes that the schedules name.
        progress, end: Scalar int64 tensors, the number of updates or of environment steps
            of the agent, and the number at which the learning rates reach `last`.
    """
    share = tf.minimum(tf.cast(progress, tf.float64) / tf.cast(end, tf.float64), 1.0)
    for path, first, last in schedules:
        variable = operator.attrgetter(path)(agent).learning_rate
        value = first + tf.constant(last - first, tf.float64) * share
        variable.value.assign(tf.cast(value, variable.dtype))


def _set_learning_rate(optimizer, value):
    """Sets `optimizer.learning_rate` to a float.

    The function assigns the TensorFlow variable of the learning rate directly, because an
    assignment through Keras takes three times as long. The function also accepts a
    `LossScaleOptimizer`, whose property `learning_rate` returns the variable of the inner
    optimizer.
    """
    variable = optimizer.learning_rate
    if isinstance(variable, keras.Variable):
        variable.value.assign(value, read_value=False)
    else:
        optimizer.learning_rate = value  # raises an error for a schedule, as in Keras
