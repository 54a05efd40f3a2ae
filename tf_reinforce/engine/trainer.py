"""Collects episodes and makes updates from them, one epoch after the other."""

import time
from typing import NamedTuple

from tf_reinforce.data import episode_statistics
from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import acting_program
from tf_reinforce.engine.collect import environments
from tf_reinforce.settings import config
from tf_reinforce.support import validation


class _UpdateResults(NamedTuple):
    """The results of the updates of one call of `collect_and_update`."""

    results: list  # `learner.UpdateResult`s
    others: dict  # `success` if success is reported, and the counts of faults
    seconds: float  # the time of the updates without callbacks


class Trainer:
    """Collects episodes and makes updates with the collector and learner of an agent.

    Args:
        collector: `collector.Collector`.
        learner: `learner.Learner`.
        check_episodes: Function that checks a record of type `Episodes`, and returns the
            record with NumPy arrays.

    Attributes:
        estimator: `estimator.PolicyGradientEstimator`.
        group_size: Int, the number of consecutive episodes with the same reset seed.
    """

    def __init__(self, collector, learner, check_episodes):
        self.collector = collector
        self.learner = learner
        self.check_episodes = check_episodes
        self.estimator = learner.estimator
        self.group_size = self.estimator.baseline.reset_group_size

    @property
    def totals(self):
        """Returns the updates, episodes and environment steps so far, as three ints."""
        return self.learner.counters.numpy().tolist()

    def collect(self, envs, seed, *counts):
        """Collects the episodes of the next update.

        Args:
            envs: `environments.Environments`.
            seed: Int, the master seed of all random numbers of training.
            *counts: The further arguments of `training_request`.

        Returns:
            `environments.CollectedEpisodes`.
        """
        with self.collector.actor.lock:  # the request contains the number of the update
            program, request = self.collector.prepare(
                envs, self.training_request(envs, seed, *counts)
            )
        return envs.collect(self.collector.actor, program, request)

    def evaluate(self, envs, key, episodes, settings, deterministic=True):
        """Collects episodes, and returns their `episode_statistics.batch_metrics`.

        Args:
            envs: `environments.Environments`.
            key: `seeding.StreamKey`, which determines all random numbers.
            episodes: Int, the number of episodes.
            settings: `config.EnvSettings`.
            deterministic: Bool, whether to take the most likely actions instead of random
                actions.
        """
        request = environments.CollectionRequest(
            key,
            episodes,
            deterministic=validation.boolean("deterministic", deterministic),
            settings=settings.at(self.totals[0]),
        )
        return self.collector.evaluate(envs, request)

    def update(self, optimizer, episodes, seed, permutations=None):
        """Makes one update from a record of episodes; returns `learner.UpdateResult`.

        Args:
            optimizer: Keras optimizer, built on the weights of policy and head.
            episodes: `Episodes`.
            seed: Int, the master seed of all random numbers of training.
            permutations: `[num_permutations, N]` int32, random orders of the N steps to
                train on, by default from `learner.permutations`.
        """
        episodes = self.check_episodes(episodes)
        if permutations is None:
            permutations = self.learner.permutations(episodes, seed)
        return self.learner.update(optimizer, episodes, permutations)

    def collect_and_update(
        self,
        optimizer,
        envs,
        seed,
        counts,
        limits,
        notify,
        rates,
    ):
        """Collects episodes and makes one update, or several in one TensorFlow program.

        Args:
            optimizer, seed: As in the method `update`.
            envs: `environments.Environments`.
            counts: The further arguments of `training_request`, equal for all updates.
            limits: Pair `(max_updates, max_env_steps)`: the largest number of updates in
                one program, and `None` or the number of environment steps after which no
                update starts.
            notify: `None`, or function that is called with the `Episodes` and logs before
                an update is made.
            rates: `linear_rates.ProgramRates` for a program of several updates.

        Returns:
            Iterator with one pair for each update: the logs of the update, and an
            iterator of `(episode, logs)` from `episode_statistics.episode_logs`.
        """
        update, first_episode, _ = self.totals
        request = self._request(envs, seed, update, *counts)
        if envs.in_graph and notify is None:
            updates = self._update_in_program(optimizer, envs, request, limits, rates)
        else:
            updates = self._collect_then_update(optimizer, envs, request, notify)
        return self._logs(updates, update, first_episode)

    def _collect_then_update(self, optimizer, envs, request, notify):
        """Collects the episodes of one update, calls `notify`, and makes the update."""
        began = time.perf_counter()
        collected = self.collector.collect(envs, request)
        seconds = time.perf_counter() - began
        if notify is not None:
            notify(collected.episodes, _collection_logs(envs, request, collected))
        began = time.perf_counter()
        seed = request.key.seed
        if envs.in_graph:
            rollout = self.collector.program(envs, request)
            result = self.learner.update_from_rollout(
                optimizer, rollout, collected.rollout_result, seed
            )
        else:
            result = self.update(optimizer, collected.episodes, seed)
        seconds += time.perf_counter() - began
        others = {
            **episode_statistics.success_metrics(collected.success),
            **collected.faults.metrics(envs.fault_keys),
        }
        return _UpdateResults([result], others, seconds)

    def _update_in_program(self, optimizer, envs, request, limits, rates):
        """Collects episodes and makes updates up to the `limits` in one program."""
        began = time.perf_counter()
        acting_program.finite_weights(self.collector.actor.variables)
        results = self.learner.update_in_program(
            optimizer,
            self.collector.program(envs, request),
            request.key.seed,
            max_updates=limits[0],
            max_env_steps=limits[1],
            rates=rates,
        )
        return _UpdateResults(results, {}, time.perf_counter() - began)

    def _logs(self, updates, update, first_episode):
        """Yields the logs of each update, and the logs of the episodes of the update."""
        num_steps = sum(int(result.lengths.sum()) for result in updates.results)
        steps_per_second = num_steps / updates.seconds
        for metrics, episode_returns, lengths, terminated in updates.results:
            # `env_steps` of the update counts the steps of all updates so far. It
            # replaces `env_steps` of the episodes.
            logs = {
                **episode_statistics.metrics(episode_returns, lengths),
                **metrics,
                **updates.others,
                "steps_per_second": steps_per_second,
            }
            columns = episode_returns, lengths, terminated
            yield (
                logs,
                episode_statistics.episode_logs(*columns, first_episode, update),
            )
            first_episode, update = first_episode + len(episode_returns), update + 1

    def training_request(self, envs, seed, *counts):
        """Returns the `CollectionRequest` for the next update.

        The method raises an error if the baseline needs groups of episodes with equal
        reset seeds, and the request would not collect complete groups.

        Args:
            envs: `environments.Environments`.
            seed: Int, the master seed of all random numbers of training.
            *counts: Int or `None`, the number of episodes. Int or `None`, the number of
                environment steps: the fewest episodes with as many steps are collected.
                Optionally `config.EnvSettings`.
        """
        return self._request(envs, seed, self.totals[0], *counts)

    def _request(self, envs, seed, update, episodes, steps, settings=None):
        size = self.group_size
        if size > 1 and "dropped_episodes" in envs.fault_keys:
            raise ValueError(
                f"The baseline needs groups of {size} episodes with the same reset seed, "
                "and the replacement of a dropped episode has another. Expected: "
                'on_bad_env="raise" and on_env_error="raise", or another baseline. '
                f"Received: {type(self.estimator.baseline).__name__} with group_size="
                f"{size}"
            )
        unsupported = steps or (episodes or 0) % size or envs.is_vector_env
        if size > 1 and unsupported:
            raise ValueError(
                f"The baseline needs groups of {size} episodes with the same reset "
                f"seed. Expected: `episodes_per_epoch` as a multiple of {size}, and "
                "plain environments, because a VectorEnv chooses its own reset seeds. "
                f"Received: episodes={episodes}, steps={steps}, {type(envs).__name__} "
                "environments"
            )
        key = seeding.StreamKey(seed, "training", update)
        settings = (settings or config.EnvSettings()).at(update)
        return environments.CollectionRequest(
            key, episodes, steps, group_size=size, settings=settings
        )


def _collection_logs(envs, request, collected):
    """Returns the logs that the method `on_episodes_collected` of callbacks receives."""
    seconds = {f"{name}_seconds": x for name, x in collected.seconds.items()}
    return {
        "update": request.key.update,
        **seconds,
        "vector_env": envs.is_vector_env,
    }
