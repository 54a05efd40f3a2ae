"""Trains with the settings of one trial of a search, and computes its value."""

import dataclasses
import math
import time
from typing import Any

import keras
import numpy as np
import optuna
import tensorflow as tf

from tf_reinforce import agent as agents
from tf_reinforce import envs
from tf_reinforce.callbacks import evaluation
from tf_reinforce.engine import agent_state
from tf_reinforce.engine.collect import results
from tf_reinforce.experiments import runs
from tf_reinforce.experiments import search_space

# A training reports its value after each of so many equal parts of its budget.
NUM_REPORTS = 50
_CONFIRMATION_SEED = 2**40  # larger than the seeds of all trials
# A trial with one of these errors counts as failed, and the search continues. Some
# combinations of settings are invalid, and raise `ValueError`.
FAILURES = (
    FloatingPointError,
    results.EnvironmentFault,
    ValueError,
    MemoryError,
    tf.errors.OpError,
)


@dataclasses.dataclass(frozen=True)
class Objective:
    """What a search optimizes.

    Attributes:
        key: `"steps"` for the environment steps until an evaluation reaches `target`,
            `"return"` for the mean return of the evaluation at the end of the budget, or
            a log key, whose mean over the last tenth of the updates counts.
        minimize: Bool, whether smaller values are better.
        target: Float, the target return for `"steps"`, or `None`.
        budget: Int, the environment steps of a training.
    """

    key: str
    minimize: bool
    target: float | None
    budget: int

    @property
    def needs_evaluation(self):
        """Returns whether the agent must be evaluated to compute the value."""
        return self.key in ("steps", "return")

    def missed(self, best_return):
        """Returns the value for `"steps"` if no evaluation has reached the target.

        The value is between one and two budgets, and increases with the distance from the
        best mean return to the target, so that all values can be compared.

        Example:

        >>> objective = Objective("steps", True, target=475.0, budget=1000)
        >>> objective.missed(475.0), objective.missed(0.0)
        (1000.0, 1500.0)
        """
        distance = max(0.0, self.target - best_return) / max(1.0, abs(self.target))
        share = 1.0 if math.isinf(distance) else distance / (1.0 + distance)
        return self.budget * (1.0 + share)


# The numbers among the results of a training, in the dict for the storage.
NUMBERS = "seed", "env_steps", "value", "reached", "seconds"


class UnknownLogKey(ValueError):
    """The error that the log key of an objective does not exist."""


class TrialCallback(keras.callbacks.Callback):
    """Reports the value of a training at fixed environment steps, and ends the training.

    Training ends early if an evaluation reaches the target of the objective `"steps"`, or
    if `report` returns True.

    Args:
        objective: `Objective`.
        evaluator: `EvaluationCallback` that evaluates the agent.
        report: Function of the number of a report, counted from 1, and the value that the
            training would have if it ended now. Returns whether to end the training.

    Attributes:
        value: Float, the value of the training so far.
        is_pruned: Bool, whether `report` has ended the training.
        reached: Bool, whether an evaluation has reached the target.
    """

    def __init__(self, objective, evaluator, report):
        super().__init__()
        self.objective = objective
        self.evaluator = evaluator
        self.report = report
        self.value = math.nan
        self.is_pruned = self.reached = False
        self.num_reports = 0
        self._history = []

    def set_model(self, model):
        super().set_model(model)
        self.evaluator.set_model(model)

    def updates_until_due(self, epoch):
        """Returns 1, because the agent may be evaluated after each update."""
        return 1

    def on_epoch_end(self, epoch, logs=None):
        steps, budget = logs["env_steps"], self.objective.budget
        due = min(NUM_REPORTS, int(steps * NUM_REPORTS // budget))
        if not self.objective.needs_evaluation:
            self._history.append(self._metric(logs))
        if due <= self.num_reports or self.is_pruned:
            return
        self.value = self._value(logs)
        if self.reached:
            due = NUM_REPORTS
            self.model.stop_training = True
        while self.num_reports < due and not self.is_pruned:
            self.num_reports += 1
            self.is_pruned = self.report(self.num_reports, self.value)
        if self.is_pruned:
            self.model.stop_training = True

    def _metric(self, logs):
        key = self.objective.key
        if key not in logs:
            raise UnknownLogKey(
                "The objective must be `steps`, `return` or a log key. Expected one of: "
                f"{', '.join(sorted(logs))}. Received: {key}"
            )
        return float(logs[key])

    def _value(self, logs):
        """Returns the value of the training if it ended after this update."""
        if not self.objective.needs_evaluation:
            recent = self._history[-math.ceil(len(self._history) / 10) :]
            return float(np.mean(recent))
        self.evaluator.evaluate(logs)
        if self.objective.key == "return":
            return logs["val_episode_return"]
        self.reached = logs["val_episode_return"] >= self.objective.target
        if self.reached:
            return float(min(logs["env_steps"], self.objective.budget))
        return self.objective.missed(self.evaluator.best_return)


@dataclasses.dataclass(frozen=True)
class TrialTask:
    """What each trial of a search trains.

    Attributes:
        env: String, the environment id.
        settings: Dict of the settings of a training, as for `runs.train`.
        ranges: Tuple of `search_space.Range`s.
        objective: `Objective`.
        is_compiled: Bool, whether trainings use the twin of the environment.
        seed: Int, the seed of the search.
        num_seeds: Int, the number of trainings of each trial.
    """

    env: str
    settings: dict[str, Any]
    ranges: tuple[search_space.Range, ...]
    objective: Objective
    is_compiled: bool
    seed: int
    num_seeds: int

    def seeds(self, index):
        """Returns the seeds of the trainings of a trial; no two trials share a seed."""
        first = self.seed + index * self.num_seeds
        return range(first, first + self.num_seeds)


def check_objective(task):
    """Trains one update if the objective of a search is a log key, to see the log keys.

    The log keys depend on head, baseline and environment.

    Args:
        task: `TrialTask`.

    Raises:
        UnknownLogKey: If the log key does not exist.
        FloatingPointError, EnvironmentFault, ValueError: If the training fails.
    """
    if task.objective.needs_evaluation:
        return
    settings = {**task.settings, "fit": {**task.settings["fit"], "steps": 1}}
    objective = dataclasses.replace(task.objective, budget=1)
    task = dataclasses.replace(task, settings=settings, objective=objective)
    agent = _make_agent(task, settings, task.seed, None)
    _train(task, settings, task.seed, agent, lambda *_: False)


def run(task, trial, index):
    """Trains with the settings of a trial, once for each of its seeds.

    The value of the trial is the mean of the values of its trainings. After each part of
    a training, the mean over the finished trainings and the current one is reported to
    Optuna, whose pruner may end the trial.

    Args:
        task: `TrialTask`.
        trial: `optuna.Trial`.
        index: Int, the number of the trial, which determines its seeds.

    Returns:
        The value as a float.

    Raises:
        optuna.TrialPruned: If the pruner ends the trial.
        UnknownLogKey: If the log key of the objective does not exist.
        FloatingPointError, EnvironmentFault, ValueError: If a training fails.
    """
    settings = search_space.suggest(task.ranges, task.settings, trial)
    values, trainings, budget = [], [], task.objective.budget
    agent = None
    for seed in task.seeds(index):

        def report(number, value):
            step = len(values) * budget + number * budget // NUM_REPORTS
            trial.report(float(np.mean([*values, value])), step)
            return trial.should_prune()

        agent = _make_agent(task, settings, seed, agent)
        callback, training = _train(task, settings, seed, agent, report)
        trainings.append(training)
        trial.set_user_attr("trainings", trainings)
        if callback.is_pruned:
            raise optuna.TrialPruned
        values.append(callback.value)
    return float(np.mean(values))


def confirm(task, settings, count):
    """Trains with further seeds, which no trial uses, and returns the values.

    All settings are confirmed with the same seeds.

    Args:
        task: `TrialTask`.
        settings: Dict of the settings of a trial.
        count: Int, the number of trainings.

    Returns:
        List of floats, the values of the trainings.

    Raises:
        FloatingPointError, EnvironmentFault, ValueError: If a training fails.
    """
    agent, values, first = None, [], _CONFIRMATION_SEED + task.seed
    for seed in range(first, first + count):
        agent = _make_agent(task, settings, seed, agent)
        callback, _ = _train(task, settings, seed, agent, lambda *_: False)
        values.append(callback.value)
    return values


def _make_agent(task, settings, seed, trained):
    """Returns an agent with the initial state of a seed.

    Args:
        task: `TrialTask`.
        settings: Dict of the settings of the trial.
        seed: Int, the seed of the training.
        trained: Agent of another seed with the same settings, or `None`. The function
            replaces its state and returns it, because its programs are compiled.
    """
    agent = agents.Reinforce.for_env(
        task.env, seed=seed, env_kwargs=settings["env_kwargs"], **settings["agent"]
    )
    if trained is None:
        return agent
    agent.build_for_env(agent)  # makes the state of the optimizers; has both spaces
    pairs = map(agent_state.variables, (trained, agent))
    for variable, initial in zip(*pairs, strict=True):
        variable.assign(initial)
    return trained


def _train(task, settings, seed, agent, report):
    """Trains once; returns the `TrialCallback`, and a dict of results for the storage."""
    env = envs.make(task.env) if task.is_compiled else task.env
    evaluator = evaluation.EvaluationCallback(
        env, _evaluation_options(task, settings), seed, None, every=1, target=None
    )
    callback, start = (
        TrialCallback(task.objective, evaluator, report),
        time.perf_counter(),
    )
    agent.fit(
        env,
        callbacks=[callback],
        verbose=0,
        seed=seed,
        env_kwargs=settings["env_kwargs"],
        **settings["fit"],
    )
    best_return = evaluator.best_return if task.objective.needs_evaluation else None
    return callback, {
        "seed": seed,
        "env_steps": agent.env_steps,
        "updates": agent.updates,
        "value": callback.value,
        "best_return": best_return,
        "reached": callback.reached,
        "seconds": round(time.perf_counter() - start, 2),
    }


def _evaluation_options(task, settings):
    """Returns the arguments of `Reinforce.evaluate`, which a twin supports if used."""
    options = runs.evaluation_options(settings)
    names = "episodes", "deterministic", "max_episode_steps"
    return {name: options[name] for name in names} if task.is_compiled else options
