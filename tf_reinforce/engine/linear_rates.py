"""Changes learning rates linearly during training."""

import math
import operator
from typing import NamedTuple

import keras
import tensorflow as tf

from tf_reinforce.support import validation

OPTIMIZERS = ("optimizer", "baseline.optimizer")


class ProgramRates(NamedTuple):
    """Linear learning rates for a TensorFlow program that makes several updates.

    Attributes:
        schedules: Tuple of `(optimizer, first, last)`, as in `LinearRates`.
        end: Int, the number of updates or of environment steps of the agent at which the
            learning rates reach `last`.
        by_steps: Bool, whether `end` is a number of environment steps.
    """

    schedules: tuple = ()
    end: int = 1
    by_steps: bool = False

    def set_in_graph(self, agent, progress, end):
        """Sets the learning rates in a graph, to the same bits as `LinearRates.set`.

        Args:
            agent: Object with the attributes that the schedules name.
            progress, end: Scalar int64 tensors, the number of updates or of environment
                steps of the agent, and the attribute `end`.
        """
        share = tf.minimum(tf.cast(progress, tf.float64) / tf.cast(end, tf.float64), 1.0)
        for path, first, last in self.schedules:
            variable = operator.attrgetter(path)(agent).learning_rate
            value = first + tf.constant(last - first, tf.float64) * share
            variable.value.assign(tf.cast(value, variable.dtype))


class LinearRates:
    """Learning rates that change linearly, until a training of an agent ends.

    The method `set` sets the learning rates before an update. If one TensorFlow program
    makes several updates, the program sets the learning rates of all updates after its
    first, with the result of `set`.

    Args:
        agent: `Reinforce`.
        schedules: List of `(optimizer, first, last)`: the attribute path of an optimizer
            of the agent, for example `"baseline.optimizer"`, and two floats, its first
            and its last learning rate.
        epochs: Int, the number of the last epoch, after which the learning rates would
            reach `last`. A training of a number of environment steps needs no `epochs`.
    """

    def __init__(self, agent, schedules, epochs):
        self.agent = agent
        self.schedules = tuple(map(tuple, schedules))
        self.epochs = epochs

    def set(self, epoch, end_env_steps=None):
        """Sets the learning rates of the next update.

        Args:
            epoch: Int, the number of the epoch that begins.
            end_env_steps: Int, the number of environment steps of the agent at which the
                training ends, or `None` if the training ends after `epochs`.

        Returns:
            `ProgramRates`.
        """
        if not self.schedules:
            return ProgramRates()
        by_steps = end_env_steps is not None
        progress = self.agent.env_steps if by_steps else self.agent.updates
        # A callback may restore an earlier state of the agent, and change its counters.
        end = end_env_steps if by_steps else progress + self.epochs - epoch
        share = min(progress / end, 1.0)
        for path, first, last in self.schedules:
            optimizer = operator.attrgetter(path)(self.agent)
            _set_learning_rate(optimizer, first + (last - first) * share)
        return ProgramRates(self.schedules, end, by_steps)


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
