"""Opens the environments that `fit`'s argument `env` names."""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym

from tf_reinforce import envs
from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.engine.collect import environments
from tf_reinforce.engine.collect import local_worker
from tf_reinforce.engine.collect import vector_envs
from tf_reinforce.engine.collect import worker_pool
from tf_reinforce.engine.collect import xla_rollout
from tf_reinforce.settings import config
from tf_reinforce.support import validation

_OBJECTS = environments.Environments, gym.Env, gym.vector.VectorEnv, envs.TensorEnv


@contextlib.contextmanager
def open_envs(
    env: Any,
    num_envs: int,
    *,
    workers: int | config.RayWorkers = 1,
    env_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
    on_bad_env: str = "raise",
    on_env_error: str = "raise",
    step_timeout: float = config.FitOptions.step_timeout,
) -> Iterator[Any]:
    """Yields environments made from `env`, and closes them after the `with` block.

    Environments that you have made yourself stay open.

    Args:
        env: An environment id (also `module:Id-v0`), an `EnvSpec`, a callable that makes
            an environment, a `gymnasium.Env` (a batch of one), a `VectorEnv`, a
            `TensorEnv`, or the result of another `open_envs`, which is yielded unchanged.
        num_envs: Positive int, how many environments to make from an id, an `EnvSpec` or
            a callable. Each worker has at least one.
        workers: Positive int, the number of processes on this machine that run the
            environments, or `tfr.collect.RayWorkers` for a Ray cluster. With 1, they run
            in the current process.
        env_kwargs: Dict of keyword arguments for the environment's constructor.
        max_episode_steps: Positive int, the time limit of an episode in steps, by default
            the environment's own, else 10,000 for Gymnasium environments. The result of
            another `open_envs` keeps its limit.
        on_bad_env: `"raise"`, or `"drop_episode"` to play another episode in place of one
            in which the environment returned an invalid value.
        on_env_error: `"raise"`, or `"restart"` to make an environment again after an
            exception and play another episode. A worker process that dies is then
            replaced too, and its episodes are played again.
        step_timeout: Positive number of seconds after which a worker process that has not
            finished a reset or step is ended. In the current process there is no limit.

    Yields:
        `environments.Environments`: an `xla_rollout.BatchedTensorEnv` for a `TensorEnv`,
        a `worker_pool.WorkerPool` for several workers, else `HostEnvironments`.

    Raises:
        TypeError: If the type of `env` is not supported.
        ValueError: If a space is not supported, a number is invalid, or an argument does
            not apply to this type of `env`.
    """
    validation.positive_int("num_envs", num_envs)
    workers = config.check_option("fit", "workers", workers)
    validation.positive_int_or_none("max_episode_steps", max_episode_steps)
    config.check_option("fit", "step_timeout", step_timeout)
    faults = {"on_bad_env": on_bad_env, "on_env_error": on_env_error}
    for name, value in faults.items():
        config.check_option("fit", name, value)
    if isinstance(env, _OBJECTS):
        given = {"env_kwargs": env_kwargs, "workers": workers != 1, **faults}
        opened = _of_object(env, max_episode_steps, given)
    else:
        factory = _factory(env, env_kwargs or {}, max_episode_steps, faults)
        opened = _of_factory(factory, num_envs, workers, step_timeout)
    try:
        yield opened
    finally:
        if opened is not env:
            opened.close()


def _of_object(env: Any, max_episode_steps: Any, given: dict[str, Any]) -> Any:
    """Returns the `Environments` of an object that exists only once."""
    can_drop = isinstance(env, gym.Env)
    for name, value in given.items():
        if value and value != "raise" and not (can_drop and name == "on_bad_env"):
            raise ValueError(
                f"`{name}` requires an environment id, an EnvSpec or a callable, from "
                f"which environments can be made. Received: env={env!r}, {name}={value!r}"
            )
    match env:
        case environments.Environments():
            return env
        case envs.TensorEnv():
            return xla_rollout.BatchedTensorEnv(env, max_episode_steps)
        case gym.vector.VectorEnv():
            batch = vector_envs.VectorEnvAdapter(env, max_episode_steps)
        case _:
            on_bad_env = given["on_bad_env"]
            batch = batched_envs.SyncEnvs([env], max_episode_steps, on_bad_env=on_bad_env)
    return environments.HostEnvironments(batch)


def _of_factory(factory: Any, num_envs: int, workers: Any, step_timeout: float) -> Any:
    """Returns a factory's `Environments`, in this process or in workers."""
    first = factory.make()
    if isinstance(first, envs.TensorEnv):
        given = {"workers": workers != 1, **factory.faults}
        return _of_object(first, factory.max_episode_steps, given)
    if workers == 1:
        return environments.HostEnvironments(factory.make_batch(num_envs, [first]))
    closed = factory.make_batch(1, [first])
    closed.close_all()
    count, launcher = workers, local_worker.LocalLauncher(step_timeout)
    if isinstance(workers, config.RayWorkers):
        count, launcher = workers.num_workers, workers.launcher(step_timeout)
    sizes = [max(1, (num_envs + worker) // count) for worker in range(count)]
    return worker_pool.WorkerPool(closed, factory, sizes, launcher)


def _factory(env: Any, kwargs: Any, max_episode_steps: Any, faults: Any) -> Any:
    """Returns the `EnvFactory` of an environment id, an `EnvSpec` or a callable."""
    if isinstance(env, (str, gym.envs.registration.EnvSpec)):
        with batched_envs.explain_errors(env, kwargs):
            env, limit = _spec_without_checkers(env, max_episode_steps, kwargs)
        return batched_envs.EnvFactory(env, {}, limit, faults)
    if not callable(env):
        raise TypeError(
            "`env` must be an environment id, an EnvSpec, a callable that makes an "
            "environment, a gymnasium.Env, a gymnasium.vector.VectorEnv or a "
            f"tfr.envs.TensorEnv. Received: env={env!r} of type {type(env).__name__}"
        )
    return batched_envs.EnvFactory(env, kwargs, max_episode_steps, faults)


def _spec_without_checkers(env: Any, max_episode_steps: Any, kwargs: Any) -> Any:
    """Returns an `EnvSpec` without Gymnasium's checks, and the time limit of episodes.

    Each of the wrappers `PassiveEnvChecker`, `OrderEnforcing` and `TimeLimit` costs a
    Python call per step, and the collector does their work itself. An environment that is
    registered with other wrappers keeps these and its `TimeLimit`.

    The spec does not list wrappers that the entry point applies. Gymnasium would refuse
    such a wrapper if one of its arguments contains a new object in each environment, for
    example a lambda.
    """
    options = {"disable_env_checker": True, "max_episode_steps": max_episode_steps}
    first = gym.make(env, **options, **kwargs)
    spec: Any = copy.deepcopy(first.spec)  # `gym.make` sets the spec
    first.close()
    registered = gym.spec(spec.id) if isinstance(env, str) else env
    spec.additional_wrappers = registered.additional_wrappers
    limit = spec.max_episode_steps
    spec.order_enforce, spec.disable_env_checker = False, True
    if not spec.additional_wrappers:
        spec.max_episode_steps = None
    return spec, limit
