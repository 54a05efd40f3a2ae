"""Evaluates an agent during training and keeps the best one."""

import math

import keras

from tf_reinforce.data import seeding


class EvaluationCallback(keras.callbacks.Callback):
    """Evaluates now and then, keeps the best agent, and stops at a target.

    An evaluation is due after every so many updates and, where one could stop the
    training, whenever the episodes of the update reach the target. It adds
    `val_episode_return` to the logs, NaN where none was due; its episodes are fresh
    ones each time.

    Args:
        env: Whatever `evaluate` takes.
        options: Dict of keywords for `evaluate`.
        seed: Int, the master seed.
        path: Path of the file for the best agent.
        every: Int, updates from one evaluation to the next.
        target: Float that stops the training when an evaluation reaches it, or `None`.
    """

    def __init__(self, env, options, seed, path, *, every, target):
        super().__init__()
        self.env = env
        self.options = options
        self.seed = seed
        self.path = path
        self.every = every
        self.target = target
        self.best = -math.inf
        self.judged = None  # the update that was evaluated last
        self.evaluations = 0

    def on_epoch_end(self, epoch, logs=None):
        logs["val_episode_return"] = math.nan
        reached = self.target is not None and logs["episode_return"] >= self.target
        if reached or (epoch + 1) % self.every == 0:
            self.judge(logs)

    def judge(self, logs):
        """Evaluates the agent as it is, and saves it if it is the best so far."""
        self.judged = self.model.updates
        rng = seeding.generator(self.seed, "validation/environment", self.judged)
        figures = self.model.evaluate(self.env, seed=rng.integers(2**31), **self.options)
        value = logs["val_episode_return"] = figures["episode_return"]
        self.evaluations += 1
        if value > self.best:
            self.best = value
            self.model.save(self.path)
        if self.target is not None and value >= self.target:
            self.model.stop_training = True
