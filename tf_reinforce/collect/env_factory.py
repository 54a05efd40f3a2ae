"""Makes batches of environments, in the current process or in a worker process."""

import gymnasium as gym

from tf_reinforce import env_arguments
from tf_reinforce.collect import batched_envs


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

    def make(self):
        """Returns one environment."""
        if isinstance(self.env, gym.envs.registration.EnvSpec):
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
