"""Makes batches of environments, in the current process or in a worker process."""

import logging
import sys
from typing import Any

import gymnasium as gym
from gymnasium.envs import registration

from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.engine.collect import env_arguments

log = logging.getLogger("tf_reinforce")

# The warnings of MuJoCo that this process, or the process that started it, has logged.
_logged: set[str] = set()


def log_mujoco_once(maker: Any) -> None:
    """Makes MuJoCo log each warning once, before a maker of environments is called.

    The C library prints a warning for each environment, into a live display.

    Args:
        maker: The entry point of an environment: a string, or a callable.
    """
    if isinstance(maker, str):
        registration.load_env_creator(maker)  # may import MuJoCo
    mujoco = sys.modules.get("mujoco")
    if mujoco is not None and mujoco.get_mju_user_warning() is None:
        mujoco.set_mju_user_warning(_log_once)


def _log_once(text):
    if text not in _logged:
        _logged.add(text)
        log.warning("MuJoCo: %s", text)


class EnvFactory:
    """Makes environments from an `EnvSpec`, or from a callable and its arguments.

    Args:
        env: `EnvSpec`, or a callable that returns an environment.
        kwargs: Dict of keyword arguments for the callable; empty for an `EnvSpec`.
        max_episode_steps: Int or `None`, an argument of `batched_envs.SyncEnvs`.
        faults: Dict with the options `on_bad_env` and `on_env_error`.
    """

    def __init__(self, env, kwargs, max_episode_steps, faults):
        self.env = env
        self.kwargs = kwargs
        self.max_episode_steps = max_episode_steps
        self.faults = faults
        self.logged = _logged  # a worker process receives a copy

    def make(self):
        """Returns one environment."""
        _logged.update(self.logged)
        is_spec = isinstance(self.env, gym.envs.registration.EnvSpec)
        log_mujoco_once(self.env.entry_point if is_spec else self.env)
        if is_spec:
            return gym.make(self.env)
        with env_arguments.explain_errors(self.env, self.kwargs):
            return self.env(**self.kwargs)

    def make_batch(self, count):
        """Returns `batched_envs.SyncEnvs` of `count` environments."""
        return self.batch_from([], count)

    def batch_from(self, envs, count):
        """Returns `SyncEnvs` of the given environments and of new ones, `count` in all.

        If an environment cannot be made, `batch_from` closes all environments.
        """
        try:
            while len(envs) < count:
                envs.append(check_env(self.make()))
            options = {"owned": True, "make": self.make, **self.faults}
            return batched_envs.SyncEnvs(envs, self.max_episode_steps, **options)
        except BaseException:
            for env in envs:
                env.close()
            raise


def check_env(env):
    """Returns an environment, or raises `TypeError` if it is not a `gymnasium.Env`."""
    if not isinstance(env, gym.Env):
        raise TypeError(
            "The callable must return a gymnasium.Env. Received: "
            f"{env!r}. Wrap an old Gym environment with shimmy."
        )
    return env
