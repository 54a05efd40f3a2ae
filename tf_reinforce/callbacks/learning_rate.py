"""Changes learning rates during training."""

import operator

import keras


class LinearLearningRate(keras.callbacks.Callback):
    """Learning rates that change linearly over an agent's life.

    Args:
        goals: List of `(optimizer, first, last)`: where the agent has it, and two floats.
        steps: Int, the environment steps at its end, or `None`.
        epochs: Int instead, the number of the last epoch.
    """

    def __init__(self, goals, steps, epochs):
        super().__init__()
        self.goals = goals
        self.steps = steps
        self.epochs = epochs

    def on_epoch_begin(self, epoch, logs=None):
        taken = self.model.env_steps if self.steps else self.model.updates
        # A callback that restores a training says late which epoch is the first.
        end = self.steps or taken + self.epochs - epoch
        share = min(taken / end, 1.0)
        for optimizer, first, last in self.goals:
            found = operator.attrgetter(optimizer)(self.model)
            found.learning_rate = first + (last - first) * share
