"""Changes learning rates during training."""

import math
import operator

import keras

from tf_reinforce import validation

OPTIMIZERS = ("optimizer", "baseline.optimizer")


class LinearLearningRate(keras.callbacks.Callback):
    """Changes learning rates linearly, from the first to the last update of an agent.

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

    def on_epoch_begin(self, epoch, logs=None):
        end = self.params.get("end_env_steps")
        progress = self.model.env_steps if end else self.model.updates
        # The end is computed here, because a callback that restores a training sets the
        # first epoch only after training has begun.
        end = end or progress + self.epochs - epoch
        share = min(progress / end, 1.0)
        for path, first, last in self.schedules:
            optimizer = operator.attrgetter(path)(self.model)
            _set_learning_rate(optimizer, first + (last - first) * share)


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
