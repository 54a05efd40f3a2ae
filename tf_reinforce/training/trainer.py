"""Collects episodes and makes updates from them, one epoch after the other."""

import time
from typing import NamedTuple

from tf_reinforce.collect import acting_program
from tf_reinforce.collect import compiled_rollout
from tf_reinforce.collect import environments
from tf_reinforce.data import episode_statistics
from tf_reinforce.data import seeding


class _Updates(NamedTuple):
    """The updates of one call."""

    results: list  # `learner.UpdateResult`s
    success: dict  # `{"success": share}`, or empty if the environment does not report it
    seconds: float  # without the callbacks


class Trainer:
    """Owns the collector and the learner of an agent.

    Args:
        collector: `collector.Collector`.
        learner: `learner.Learner`.
        validate: Function from `Episodes` to validated `Episodes`.

    Attributes:
        estimator: `estimator.PolicyGradientEstimator`.
        group_size: Int, the number of consecutive episodes with the same reset seed.
    """

    def __init__(self, collector, learner, validate):
        self.collector = collector
        self.learner = learner
        self.validate = validate
        self.estimator = learner.estimator
        self.group_size = self.estimator.baseline.reset_group_size

    @property
    def counts(self):
        """Ints: updates, episodes and environment steps so far."""
        return self.learner.counters.numpy().tolist()

    def collect(self, envs, seed, episodes, steps):
        """Collects the episodes of the next update.

        Args:
            envs: `environments.Environments`.
            seed: Int, the master seed.
            episodes: Int, the number of episodes, or `None`.
            steps: Int, instead of `episodes`: collects the fewest episodes that have this
                many steps.

        Returns:
            `results.CollectedEpisodes`.
        """
        return self.collector.collect(
            envs, self.training_request(envs, seed, episodes, steps)
        )

    def evaluate(self, envs, key, episodes, deterministic=True):
        """Returns the metrics of some episodes; see `episode_statistics.batch_metrics`.

        Args:
            envs: `environments.Environments`.
            key: `seeding.StreamKey`.
            episodes: Int.
            deterministic: Bool. True takes the most likely actions.
        """
        request = environments.CollectionRequest(
            key, episodes, deterministic=deterministic
        )
        return self.collector.evaluate(envs, request)

    def update(self, optimizer, episodes, seed, permutations=None):
        """Makes one update from episodes; returns `learner.UpdateResult`.

        Args:
            optimizer: Keras optimizer, built on the weights of policy and head.
            episodes: `Episodes`.
            seed: Int, the master seed.
            permutations: `[num_permutations, N]` int32, orders of the valid steps.
                Defaults to `learner.permutations`.
        """
        episodes = self.validate(episodes)
        if permutations is None:
            permutations = self.learner.permutations(episodes, seed)
        return self.learner.update(optimizer, episodes, permutations)

    def updates(
        self, optimizer, envs, seed, episodes, steps, notify, max_updates, max_steps
    ):
        """Collects episodes and makes one update, or several in one program.

        Args:
            optimizer, seed: As for `update`.
            envs, episodes, steps: As for `collect`.
            notify: Function that is called with the `Episodes` and logs before an update
                is made, or `None`.
            max_updates: Int, the largest number of updates in one program.
            max_steps: Int; no update starts after this many environment steps, or
                `None`.

        Yields:
            For each update its logs, and an iterator of `(episode, logs)`; see
            `episode_statistics.episode_logs`.
        """
        update, first_episode, _ = self.counts
        request = self.training_request(envs, seed, episodes, steps)
        if not envs.in_graph:
            updates = self._host_update(optimizer, envs, request, notify)
        elif notify is not None:
            updates = self._compiled_update(optimizer, envs, request, notify)
        else:
            limits = dict(max_updates=max_updates, max_steps=max_steps)
            updates = self._compiled_updates(optimizer, envs, request, limits)
        num_steps = sum(int(result.lengths.sum()) for result in updates.results)
        for logs, *columns in updates.results:
            logs = {
                **episode_statistics.metrics(*columns[:2]),
                **logs,
                **updates.success,
                "steps_per_second": num_steps / updates.seconds,
            }
            yield (
                logs,
                episode_statistics.episode_logs(*columns, first_episode, update),
            )
            first_episode, update = first_episode + len(columns[0]), update + 1

    def _host_update(self, optimizer, envs, request, notify):
        began = time.perf_counter()
        collected = self.collector.collect(envs, request)
        seconds = time.perf_counter() - began
        if notify is not None:
            notify(collected.episodes, _collection_logs(envs, request, collected))
        began = time.perf_counter()
        result = self.update(optimizer, collected.episodes, request.key.seed)
        seconds += time.perf_counter() - began
        success = episode_statistics.success_metrics(collected.success)
        return _Updates([result], success, seconds)

    def _compiled_update(self, optimizer, envs, request, notify):
        began = time.perf_counter()
        rollout = self._rollout(envs, request)
        rollout_result, collected = compiled_rollout.collect(rollout, request.key)
        seconds = time.perf_counter() - began
        notify(collected.episodes, _collection_logs(envs, request, collected))
        began = time.perf_counter()
        result = self.learner.update_from_rollout(
            optimizer, rollout, rollout_result, request.key.seed
        )
        seconds += time.perf_counter() - began
        return _Updates([result], {}, seconds)

    def _compiled_updates(self, optimizer, envs, request, limits):
        began = time.perf_counter()
        rollout = self._rollout(envs, request)
        results = self.learner.train(optimizer, rollout, request.key.seed, **limits)
        return _Updates(results, {}, time.perf_counter() - began)

    def _rollout(self, envs, request):
        acting_program.finite_weights(self.collector.actor.variables)
        return self.collector.program(envs, request)

    def training_request(self, envs, seed, episodes, steps):
        """Returns the request for the next update; raises if groups cannot be formed."""
        size = self.group_size
        unsupported = steps or (episodes or 0) % size or not envs.supports_episode_seeds
        if size > 1 and unsupported:
            raise ValueError(
                f"The baseline needs groups of {size} episodes with the same reset "
                f"seed. Expected: `episodes_per_epoch` as a multiple of {size}, and "
                "plain environments, because a VectorEnv chooses its own reset seeds. "
                f"Received: episodes={episodes}, steps={steps}, {type(envs).__name__} "
                "environments"
            )
        key = seeding.StreamKey(seed, "training", self.counts[0])
        return environments.CollectionRequest(key, episodes, steps, group_size=size)


def _collection_logs(envs, request, collected):
    """Returns the logs of a collection, which callbacks receive with the episodes."""
    seconds = {f"{name}_seconds": x for name, x in collected.seconds.items()}
    return {
        "update": request.key.update,
        **seconds,
        "vector_env": envs.is_vector_env,
    }
