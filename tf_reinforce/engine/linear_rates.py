"""Learning rates that change linearly, until a training of an agent ends."""

import math
import operator
from typing import NamedTuple

import keras
import tensorflow as tf

from tf_reinforce.support import validation

OPTIMIZERS = ("optimizer", "baseline.optimizer")


class LinearRates(NamedTuple):
    """Learning rates of the next updates of a training.

    Attributes:
        schedules: Tuple of `(optimizer, first, last)`: the attribute path of an optimizer
            of the agent, for example `"baseline.optimizer"`, and its first and its last
            learning rate.
        end: Int, the number of updates or of environment steps of the agent at which the
            learning rates reach `last`.
        by_steps: Bool, whether `end` is a number of environment steps.
    """

    schedules: tuple = ()
    end: int = 1
    by_steps: bool = False

    @classmethod
    def of(cls, agent, epochs, epoch=0, end_env_steps=None):
        """Returns the rates of an agent that is trained to the end of a `fit`.

        Args:
            agent: `Reinforce`.
            epochs, epoch: Ints, the numbers of the last epoch and of that which begins,
                unless `end_env_steps` is given.
            end_env_steps: Int, the environment steps of the agent at which training ends.
        """
        if not agent._learning_rates:
            return cls()
        by_steps = end_env_steps is not None
        # A callback may restore an earlier state of the agent, and change its counters.
        end = end_env_steps if by_steps else agent.updates + epochs - epoch
        return cls(tuple(map(tuple, agent._learning_rates)), end, by_steps)

    def set(self, agent):
        """Sets the learning rates of the next update."""
        if not self.schedules:
            return
        share = min((agent.env_steps if self.by_steps else agent.updates) / self.end, 1.0)
        for path, first, last in self.schedules:
            optimizer = operator.attrgetter(path)(agent)
            value = first + (last - first) * share
            variable = optimizer.learning_rate
            if isinstance(variable, keras.Variable):
                # An assignment through Keras takes three times as long.
                variable.value.assign(value, read_value=False)
            else:
                optimizer.learning_rate = value  # raises an error for a schedule

    def set_in_graph(self, agent, progress, end):
        """Sets the learning rates in a graph, to the same bits as `set`.

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


def check_schedules(schedules, baseline):
    """Returns the learning rates from the config of an agent, or raises `ValueError`.

    Args:
        schedules: Value of `learning_rates` in the config.
        baseline: `Baseline` of the agent.
    """
    known = OPTIMIZERS if hasattr(baseline, "optimizer") else OPTIMIZERS[:1]
    is_valid = isinstance(schedules, list) and len(schedules) <= len(known)
    if not is_valid or not all(
        isinstance(x, list) and len(x) == 3 and x[0] in known for x in schedules
    ):
        raise ValueError(
            "`learning_rates` must be a list of [optimizer, first, last], with the "
            f"optimizers {known}. Received: {repr(schedules)[:100]}"
        )
    for path, *rates in schedules:
        for rate in rates:
            validation.within(f"learning_rates of {path}", rate, 0, math.inf)
    return schedules
