"""Changes learning rates during training."""

import operator

import keras


class LinearLearningRate(keras.callbacks.Callback):
    """Changes learning rates linearly, from the first to the last update of an agent.

    Args:
        schedules: List of `(optimizer, first, last)`: the attribute path of an optimizer
            of the agent, for example `"baseline.optimizer"`, and two floats, its first
            and its last learning rate.
        steps: Int, the number of environment steps at which the learning rates are
            `last`, or `None`.
        epochs: Int, the number of the last epoch. If `steps` is `None`, the learning
            rates would reach `last` after the last epoch.
    """

    def __init__(self, schedules, steps, epochs):
        super().__init__()
        self.schedules = schedules
        self.steps = steps
        self.epochs = epochs

    def on_epoch_begin(self, epoch, logs=None):
        progress = self.model.env_steps if self.steps else self.model.updates
        # The end is computed here, because a callback that restores a training sets the
        # first epoch only after training has begun.
        end = self.steps or progress + self.epochs - epoch
        share = min(progress / end, 1.0)
        for path, first, last in self.schedules:
            optimizer = operator.attrgetter(path)(self.model)
            _set_learning_rate(optimizer, first + (last - first) * share)


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
