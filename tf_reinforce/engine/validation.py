"""Validation of an agent during its training, and evaluation after it."""

import math

import numpy as np

from tf_reinforce.data import seeding
from tf_reinforce.settings import config

# Validations that are compared with the training episodes; at the end, fewer suffice.
_COMPARED, _FEWEST = 10, 3
# A difference must exceed both, in standard errors and as a share of the returns.
_CLEARLY, _RELEVANT = 3.0, 0.05


def requested(agent, given, options, table):
    """Returns the `Validation` of a call of `fit`, or `None` if it has none.

    Raises `ValueError` if it has options of a validation nevertheless.

    Args:
        agent, given, options, table: As in `Validation`.
    """
    if given["resume"] is not None or given["validation_env"] is not None:
        return Validation(agent, given, options, table)
    names = "validation_freq", "validation_episodes", "validation_deterministic"
    unused = [f"{x}={given[x]!r}" for x in names if given[x] is not None]
    if unused:
        raise ValueError(
            "Without `validation_env` or `resume`, `fit` does not validate. Pass one of "
            f"them, or omit the options of validations. Received: {', '.join(unused)}"
        )
    return None


class Validation:
    """When and how `fit` validates the agent.

    The first time that, over ten validations, greedy actions return clearly less than the
    sampled actions of the training episodes, a hint is printed. At the end of a run,
    three validations suffice.

    Args:
        agent: `Reinforce`.
        given: Dict of the arguments of `fit`.
        options: `config.FitOptions`.
        table: Result of `config.validation_table`.
    """

    def __init__(self, agent, given, options, table):
        self.agent = agent
        self.table = table
        self.seed = given["seed"]
        self.settings = options.env_settings.constant
        self.env, workers = given["validation_env"], 1
        if self.env is None:
            self.env, workers = given["env"], config.idle_workers(options.workers)
        size = min(options.num_envs, table["episodes"])
        self._arguments = {"num_envs": size, "workers": workers}
        self._arguments |= {"env_kwargs": given["env_kwargs"], **options.limits}
        self._arguments["max_episode_steps"] = table["max_episode_steps"]
        prints = table["deterministic"] and given["verbose"]
        self._pairs = [] if prints else None

    def check(self):
        """Raises the errors of the environment before training begins."""
        arguments = {**self._arguments, "num_envs": 1, "workers": 1}
        with self.agent._open(self.env, **arguments) as envs:
            envs.check_settings(self.settings)

    def is_due(self, epoch):
        """Returns whether to validate after an epoch, counted from 1."""
        every = self.table["every"]
        return epoch in every if isinstance(every, list) else epoch % every == 0

    def play(self, stream, number):
        """Plays the episodes of a random stream, and returns their metrics."""
        key = seeding.StreamKey(self.seed, stream, number)
        episodes, deterministic = self.table["episodes"], self.table["deterministic"]
        with self.agent._open(self.env, **self._arguments) as envs:
            arguments = envs, key, episodes, self.settings, deterministic
            return self.agent.trainer.evaluate(*arguments)

    def collect(self):
        """Returns the episodes of the agent's next update."""
        with self.agent._open(self.env, **self._arguments) as envs:
            counts = config.EPISODES_PER_EPOCH, None, self.settings
            return self.agent.trainer.collect(envs, self.seed, *counts).episodes

    def metrics(self, training=None):
        """Validates the agent, and returns the metrics.

        Args:
            training: Dict, the logs of an update's training episodes, or `None`.
        """
        metrics = self.play("validation", self.agent.updates)
        if self._pairs is not None and training is not None:
            pair = training["episode_return"], metrics["episode_return"]
            self._pairs = [*self._pairs, pair][-_COMPARED:]
            if len(self._pairs) == _COMPARED:
                self.compare()
        return metrics

    def compare(self):
        """Prints a hint if greedy actions return clearly less than sampled ones."""
        if self._pairs is None or (count := len(self._pairs)) < _FEWEST:
            return
        sampled, greedy = np.transpose(self._pairs)
        error = np.std(sampled - greedy, ddof=1) / math.sqrt(count)
        size = np.mean(np.abs([sampled, greedy]))
        if np.mean(sampled - greedy) > max(_CLEARLY * error, _RELEVANT * size):
            print(
                f"In the last {count} validations, greedy actions returned "
                f"{np.mean(greedy):.4g}, and sampled ones {np.mean(sampled):.4g}. To "
                "judge the policy by samples, pass `validation_deterministic=False`, or "
                "`--set evaluation.deterministic=false` on the command line.",
                flush=True,
            )
            self._pairs = None
