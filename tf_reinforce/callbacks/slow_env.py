"""Logs once that the environment takes most of the time of a training."""

import logging
import os
import time
from typing import Any

import gymnasium as gym

from tf_reinforce.callbacks import episodes as episode_callbacks
from tf_reinforce.settings import config

log = logging.getLogger("tf_reinforce")

SHARE = 0.8  # of the time of the updates, above which the environment is slow
MIN_SECONDS = 5.0  # of updates that are measured before the line is logged


def num_cores() -> int:
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def has_idle_workers(env: Any, workers: int) -> bool:
    """Returns whether `fit` could run an environment in more processes on this machine.

    Args:
        env: The argument `env` of `fit`.
        workers: Int, the argument `workers` of `fit`.

    Example:

    >>> has_idle_workers("CartPole-v1", workers=10**6)
    False
    """
    is_env = isinstance(env, (gym.Env, gym.vector.VectorEnv))
    is_id = isinstance(env, (str, gym.envs.registration.EnvSpec))
    if isinstance(workers, config.RayWorkers):
        return False
    return workers < num_cores() and not is_env and (is_id or callable(env))


class SlowEnvLine(episode_callbacks.EpisodeCallback):
    """Logs one line if environments take more than 80 % of the time of the updates.

    The first update is not measured, because TensorFlow functions are compiled then. The
    line is logged after at least five seconds of updates, and only once.

    Args:
        workers: Int, the argument `workers` of `fit`.
    """

    def __init__(self, workers: int) -> None:
        super().__init__()
        self.workers = workers

    def get_state(self) -> dict:
        """Returns nothing, because the times belong to one process."""
        return {}

    def set_state(self, state: Any) -> None:
        """Restores nothing."""

    def on_train_begin(self, logs: Any = None) -> None:
        self._is_first, self._is_logged = True, False
        self._stepping = self._total = 0.0

    def on_episodes_collected(self, episodes: Any, logs: Any = None) -> None:
        self._stepping += logs["stepping_seconds"]
        self._total += logs["stepping_seconds"] + logs["acting_seconds"]
        self._update_start = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._total += time.perf_counter() - self._update_start
        if self._is_first:
            self._is_first, self._stepping, self._total = False, 0.0, 0.0
        is_slow = self._stepping > SHARE * self._total
        if is_slow and self._total >= MIN_SECONDS and not self._is_logged:
            self._is_logged = True
            log.warning(
                "The environment takes %.0f %% of the time, and %d of %d cores collect "
                "episodes: pass workers=%d, see `tf-reinforce check-env`.",
                100 * self._stepping / self._total,
                self.workers,
                num_cores(),
                num_cores(),
            )
