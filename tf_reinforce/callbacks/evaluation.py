"""Evaluation during training, which keeps the best agent."""

import math

import keras

from tf_reinforce.data import seeding
from tf_reinforce.support import validation

_STATE = ("best_return", "evaluated_update", "evaluations")


class EvaluationCallback(keras.callbacks.Callback):
    """Evaluates an agent regularly, saves the best one, and stops at a target return.

    With `every=10`, for example, the agent is evaluated after every tenth update. If
    there is a `target`, the agent is also evaluated when the mean return of the training
    episodes reaches the target. Each evaluation uses new episodes.

    The result is logged as `val_episode_return`. After an update without an evaluation,
    the logged value is NaN.

    Args:
        env: Environment in any form that `Reinforce.evaluate` accepts.
        options: Dict of keyword arguments for `Reinforce.evaluate`.
        seed: Int, the master seed of the evaluations.
        path: Path of the file for the best agent, or `None` to save none. Of several
            learner processes, all evaluate, and only the chief saves.
        every: Int, the number of updates between two evaluations.
        target: Float, the mean return of an evaluation at which training stops, or
            `None`.
        announce: Function that is called before each evaluation during training.
    """

    def __init__(self, env, options, seed, path, *, every, target, announce=lambda: None):
        super().__init__()
        self.env = env
        self.options = options
        self.seed = seed
        self.path = path
        self.every = every
        self.target = target
        self.announce = announce
        self.best_return = -math.inf
        self.evaluated_update = None  # number of the last evaluated update
        self.evaluations = 0

    def get_state(self):
        """Returns the state for a checkpoint."""
        return {name: getattr(self, name) for name in _STATE}

    def set_state(self, state):
        """Restores the result of `get_state`, which may come from an untrusted file."""
        validation.instance("best_return", state["best_return"], float)
        validation.whole_number("evaluations", state["evaluations"], low=0)
        if state["evaluated_update"] is not None:
            validation.whole_number("evaluated_update", state["evaluated_update"], low=0)
        for name in _STATE:
            setattr(self, name, state[name])

    def updates_until_due(self, epoch):
        """Returns the number of updates until the next possible evaluation."""
        return self.every - epoch % self.every if self.target is None else 1

    def on_epoch_end(self, epoch, logs=None):
        logs["val_episode_return"] = math.nan
        reached = self.target is not None and logs["episode_return"] >= self.target
        if reached or (epoch + 1) % self.every == 0:
            self.announce()
            self.evaluate(logs)

    def evaluate(self, logs):
        """Evaluates the agent, and saves it if it has the best return so far."""
        self.evaluated_update = self.model.updates
        stream = "validation/environment"
        rng = seeding.generator(self.seed, stream, self.evaluated_update)
        metrics = self.model.evaluate(self.env, seed=rng.integers(2**31), **self.options)
        mean_return = logs["val_episode_return"] = metrics["episode_return"]
        self.evaluations += 1
        if mean_return > self.best_return:
            self.best_return = mean_return
            if self.path is not None:
                self.model.save(self.path)
        if self.target is not None and mean_return >= self.target:
            self.model.stop_training = True
