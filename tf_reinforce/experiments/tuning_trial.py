"""The trainings of one trial of a search, and the value computed from them."""

import contextlib
import dataclasses
import functools
import json
import math
import time
import warnings
from typing import Any

import keras
import numpy as np
import optuna
import tensorflow as tf

from tf_reinforce import envs
from tf_reinforce.data import seeding
from tf_reinforce.engine import agent_state
from tf_reinforce.engine.collect import host_loop
from tf_reinforce.experiments import runs
from tf_reinforce.experiments import search_space
from tf_reinforce.support import optimizers
from tf_reinforce.support import own_code

# Reports of a training's value, at equal distances within the budget.
NUM_REPORTS = 50
# Settings that are in `config.json` only if they are given.
OPTIONAL = "make_agent", "suggest"
_CONFIRMATION_SEED = 2**31  # above the seeds of all trials, and a seed of NumPy and Keras
# Errors that fail a trial but not the search. `ValueError` is raised by invalid
# combinations of settings.
FAILURES = (
    FloatingPointError,
    host_loop.EnvironmentFault,
    ValueError,
    MemoryError,
    tf.errors.OpError,
)


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """All settings of a search, as stored in its `config.json`.

    Attributes:
        env: String, the environment id.
        settings: Dict of the settings of a training, as for `runs.train`. `fit` contains
            `steps`, the budget of each training.
        ranges: Dict, the table `ranges` of a preset.
        engine: `"host"`, or `"compiled"` to train on the environment's twin.
        objective: What makes the value of a training. `"steps"`: the environment steps
            until an evaluation reaches `target`. `"return"`: the mean return of the
            evaluation when the budget is used up. A log key: its mean over the last tenth
            of the updates.
        minimize: Bool, whether smaller values are better.
        target: Float, the target return for `"steps"`, or `None`.
        seed: Int, from which all random numbers of the search are derived.
        seeds: Int, the number of trainings per trial.
        confirm: Int, the number of further trainings for each of the best trials.
        prune: Bool, whether trials end early if they are worse than the median.
        make_agent: String `MODULE:FUNCTION`, the function of the user that makes the
            agents, or `None`. `settings["agent"]` contains its keyword arguments.
        suggest: String `MODULE:FUNCTION`, the function of the user from a trial of Optuna
            to keyword arguments of `make_agent`, or `None`.
    """

    env: str
    settings: dict[str, Any]
    ranges: dict[str, Any]
    engine: str
    objective: str
    minimize: bool
    target: float | None
    seed: int = 0
    seeds: int = 3
    confirm: int = 7
    prune: bool = True
    make_agent: str | None = None
    suggest: str | None = None

    @property
    def budget(self):
        """Returns the environment steps of a training."""
        return self.settings["fit"]["steps"]

    @property
    def needs_evaluation(self):
        """Returns whether the value requires evaluations of the agent."""
        return self.objective in ("steps", "return")

    @functools.cached_property
    def space(self):
        """Returns the tuple of `search_space.Range`s."""
        return search_space.parse(self.ranges, self.make_agent is not None)

    def content(self):
        """Returns all fields as a dict, exactly as `json` reads them back.

        Earlier versions had a second sampler, whose searches cannot be continued.
        """
        fields = {**dataclasses.asdict(self), "sampler": "tpe"}
        given = {x: y for x, y in fields.items() if x not in OPTIONAL or y is not None}
        return json.loads(json.dumps(given))

    def start_trials(self):
        """Returns the parameters of the first trials; the very first changes nothing.

        An argument that the user does not give has the default of the user's function.
        """
        settings, own = self.settings, self.make_agent
        if own is not None:
            arguments = own_code.defaults("--agent", own) | settings["agent"]
            settings = {**settings, "agent": arguments}
        if self.suggest is None:
            return search_space.start_trials(self.space, settings)
        function = own_code.load("--space", self.suggest)
        trial = optuna.trial.FixedTrial(arguments)
        ends = Exception, SystemExit
        with warnings.catch_warnings(), contextlib.suppress(*ends):
            warnings.simplefilter("error")  # of a default outside of its range
            if function(trial).items() <= arguments.items():
                return [trial.params]
        return []

    def draw(self, trial):
        """Returns the settings of a training with the parameters of a trial."""
        values = {x.path: x.suggest(trial) for x in self.space}
        if self.suggest is not None:
            arguments = own_code.call("--space", self.suggest, trial)
            expected = f"a dict of keyword arguments of {self.make_agent}"
            runs.expect_returned(self.suggest, arguments, dict, expected)
            values |= {("agent", name): x for name, x in arguments.items()}
        return search_space.substitute(self.settings, values)

    def trial_seeds(self, index):
        """Returns the seeds of a trial's trainings; no other trial has them."""
        first = self.seed + index * self.seeds
        return range(first, first + self.seeds)

    def missed(self, best_return):
        """Returns the value for `"steps"` if no evaluation has reached the target.

        The value grows with the distance between the best mean return and the target,
        from one budget up to two. Trainings that miss the target can therefore be
        compared with each other and with those that reach it.
        """
        distance = max(0.0, self.target - best_return) / max(1.0, abs(self.target))
        share = 1.0 if math.isinf(distance) else distance / (1.0 + distance)
        return self.budget * (1.0 + share)


class TrialCallback(keras.callbacks.Callback):
    """Reports the value of a training at fixed environment steps, and can end it early.

    The training ends when `report` returns True. With the objective `"steps"`, it also
    ends when an evaluation reaches the target.

    Args:
        config: `SearchConfig`.
        report: Function of a count, which starts at 1, and of the value that the training
            would have if it ended now. Returns whether to end it.
        env: Environment in any form that `Reinforce.evaluate` accepts.
        options: Dict of keyword arguments for `Reinforce.evaluate`.
        seed: Int, the master seed of the evaluations.

    Attributes:
        value: Float, the value of the training so far.
        is_pruned: Bool, whether `report` has ended the training.
        reached: Bool, whether an evaluation has reached the target.
    """

    def __init__(self, config, report, env, options, seed):
        super().__init__()
        self.config = config
        self.env, self.options, self.seed = env, options, seed
        self.best_return = -math.inf
        self.report = report
        self.value = math.nan
        self.is_pruned = self.reached = False
        self.num_reports = 0
        self._history = []

    def updates_until_due(self, epoch):
        """Returns 1, because the agent of each update may be evaluated."""
        return 1

    def on_epoch_end(self, epoch, logs=None):
        key, budget = self.config.objective, self.config.budget
        if not self.config.needs_evaluation:
            if key not in logs:
                raise ValueError(
                    "The objective must be `steps`, `return` or a log key. Expected one "
                    f"of: {', '.join(sorted(logs))}. Received: {key}"
                )
            self._history.append(float(logs[key]))
        due = min(NUM_REPORTS, int(logs["env_steps"] * NUM_REPORTS // budget))
        if due <= self.num_reports:
            return
        self.value = self._value(logs)
        # The pruner also compares later trials at the steps after the target.
        last = NUM_REPORTS if self.reached else due
        while self.num_reports < last and not self.is_pruned:
            self.num_reports += 1
            self.is_pruned = self.report(self.num_reports, self.value)
        if self.reached or self.is_pruned:
            self.model.stop_training = True

    def _value(self, logs):
        """Returns the value of the training if it ended after this update."""
        if not self.config.needs_evaluation:
            return float(np.mean(self._history[-math.ceil(len(self._history) / 10) :]))
        number = self.model.updates
        generator = seeding.generator(self.seed, "validation/environment", number)
        seed = generator.integers(2**31)
        metrics = self.model.evaluate(self.env, seed=seed, **self.options)
        mean_return = metrics["episode_return"]
        self.best_return = max(self.best_return, mean_return)
        if self.config.objective == "return":
            return mean_return
        self.reached = mean_return >= self.config.target
        if self.reached:
            return float(min(logs["env_steps"], self.config.budget))
        return self.config.missed(self.best_return)


def run(config, trial, index):
    """Trains once for each seed of a trial, and returns the mean of the values.

    During each training, Optuna receives the mean of its current value and the values of
    the earlier trainings. Optuna's pruner may then end the trial.

    Args:
        config: `SearchConfig`.
        trial: `optuna.Trial`.
        index: Int, the trial's number, which determines its seeds.

    Raises:
        optuna.TrialPruned: If the pruner ends the trial.
        FloatingPointError, EnvironmentFault, ValueError: If a training fails.
    """
    settings = config.draw(trial)
    values, trainings, agent = [], [], None
    for seed in config.trial_seeds(index):

        def report(number, value):
            step = len(values) * config.budget + number * config.budget // NUM_REPORTS
            trial.report(float(np.mean([*values, value])), step)
            return trial.should_prune()

        agent, callback, training = _train(config, settings, seed, agent, report)
        trainings.append(training)
        trial.set_user_attr("trainings", trainings)
        if callback.is_pruned:
            raise optuna.TrialPruned
        values.append(callback.value)
    return float(np.mean(values))


def confirm(config, settings):
    """Trains with `config.confirm` further seeds, and returns the list of values.

    The further seeds are the same for all settings, and no trial uses them.

    Raises:
        FloatingPointError, EnvironmentFault, ValueError: If a training fails.
    """
    agent, values, first = None, [], _CONFIRMATION_SEED + config.seed
    for seed in range(first, first + config.confirm):
        agent, callback, _ = _train(config, settings, seed, agent)
        values.append(callback.value)
    return values


def _make_agent(config, settings, seed, trained=None):
    """Returns an agent in the initial state of a seed.

    If there is one `trained` with another seed and the same settings, it is reset and
    used again, because its programs are compiled. An agent of the user may have states
    outside of its variables, and is not used again.
    """
    agent = runs.make_agent(config.env, settings, seed, config.make_agent)
    if trained is None or config.make_agent is not None:
        return agent
    agent.build_for_env(agent)  # creates the optimizers' state; the agent has both spaces
    optimizers.assign(*map(agent_state.variables, (trained, agent)))
    return trained


def _train(config, settings, seed, trained=None, report=lambda number, value: False):
    """Trains once.

    Returns:
        The agent, the `TrialCallback`, and a dict of results for the storage.
    """
    agent, env = _make_agent(config, settings, seed, trained), config.env
    options = runs.evaluation_options(settings)
    if config.engine == "compiled":
        env = envs.make(env)
        names = "episodes", "deterministic", "max_episode_steps"  # all of a twin
        options = {name: options[name] for name in names}
    callback = TrialCallback(config, report, env, options, seed)
    start = time.perf_counter()
    fit = {"env_kwargs": settings["env_kwargs"], **settings["fit"]}
    agent.fit(env, callbacks=[callback], verbose=0, seed=seed, **fit)
    if not (callback.is_pruned or math.isfinite(callback.value)):
        raise FloatingPointError(f"the value of a training is {callback.value}")
    training = {
        "seed": seed,
        "env_steps": agent.env_steps,
        "updates": agent.updates,
        "value": callback.value,
        "best_return": callback.best_return if config.needs_evaluation else None,
        "reached": callback.reached,
        "seconds": round(time.perf_counter() - start, 2),
    }
    return agent, callback, training
