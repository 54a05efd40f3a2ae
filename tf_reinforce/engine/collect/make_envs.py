"""Makes batched environments, a worker pool or tensor environments from `env`."""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym
import keras

from tf_reinforce import envs
from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.engine.collect import batched_tensor_env
from tf_reinforce.engine.collect import env_arguments
from tf_reinforce.engine.collect import env_factory
from tf_reinforce.engine.collect import environments
from tf_reinforce.engine.collect import in_process
from tf_reinforce.engine.collect import local_worker
from tf_reinforce.engine.collect import ray_launcher
from tf_reinforce.engine.collect import vector_envs
from tf_reinforce.engine.collect import worker_pool
from tf_reinforce.settings import config
from tf_reinforce.support import validation


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

    Environments that the user made are not closed.

    Args:
        env: An environment id (also `module:Id-v0`), an `EnvSpec`, a callable that makes
            an environment, a `gymnasium.Env` (a batch of one), a `VectorEnv`, a
            `TensorEnv`, or the result of another `open_envs`, which is yielded unchanged.
        num_envs: Positive int, the number of environments to make from an id, an
            `EnvSpec` or a callable. Each worker has at least one environment.
        workers: Positive int, the number of processes on this machine that run the
            environments, or `tfr.collect.RayWorkers` for the machines of a Ray cluster.
            With `workers=1`, the environments run in the current process.
        env_kwargs: Dict of keyword arguments for the constructor of the environment.
        max_episode_steps: Positive int, the time limit of an episode in steps.
            `max_episode_steps` defaults to the limit that the environment states, else
            10,000 for Gymnasium environments. The result of another `open_envs` keeps its
            time limit.
        on_bad_env: `"raise"`, or `"drop_episode"` to replace an episode in which the
            environment returned an invalid value by another episode.
        on_env_error: `"raise"`, or `"restart"` to make an environment again that raised
            an exception, and to replace its episode by another episode. With
            `"restart"`, a worker process that dies is replaced, and its episodes are
            played again.
        step_timeout: Positive number of seconds, the longest time for one reset or step
            in a worker process. A worker that takes longer is ended. In the current
            process, there is no limit.

    Yields:
        A `batched_tensor_env.BatchedTensorEnv` for a `TensorEnv`, a
        `worker_pool.WorkerPool` for several workers, else an
        `in_process.InProcessEnvironments`.

    Raises:
        TypeError: If the type of `env` is not supported.
        ValueError: If a space is not supported, a number is invalid, or an argument does
            not apply to the type of `env`.
    """
    validation.positive_int("num_envs", num_envs)
    workers = config.check_option("fit", "workers", workers)
    is_pool = workers != 1
    validation.positive_int_or_none("max_episode_steps", max_episode_steps)
    config.check_option("fit", "step_timeout", step_timeout)
    faults = {"on_bad_env": on_bad_env, "on_env_error": on_env_error}
    for name, value in faults.items():
        config.check_option("fit", name, value)
    env_arguments.check(env_kwargs)
    is_open = isinstance(env, environments.Environments)
    is_env = isinstance(env, (gym.Env, gym.vector.VectorEnv, envs.TensorEnv))
    for name, is_set in (("env_kwargs", env_kwargs), ("workers", is_pool)):
        if (is_open or is_env) and is_set:
            raise ValueError(
                f"`{name}` requires an environment id, an EnvSpec or a callable, from "
                f"which several environments can be made. Received: env={env!r}, "
                f"env_kwargs={env_kwargs}, workers={workers}"
            )
    if is_open:
        _expect_no_fault_options(env, faults, ("on_bad_env", "on_env_error"))
        yield env
        return
    shares = num_envs, workers, step_timeout
    opened = _open(env, shares, env_kwargs, max_episode_steps, faults)
    try:
        yield opened
    finally:
        opened.close()


def _expect_no_fault_options(env: Any, faults: Any, names: Any) -> None:
    """Raises `ValueError` if an option is set that the environment does not support."""
    for name in names:
        if faults[name] != "raise":
            raise ValueError(
                f"`{name}={faults[name]!r}` requires plain environments: an environment "
                "id, an EnvSpec or a callable, which can also make an environment again; "
                'or, for `on_bad_env="drop_episode"`, a gymnasium.Env. Received: '
                f'{type(env).__name__}. Use `{name}="raise"`.'
            )


def _open(
    env: Any, shares: Any, env_kwargs: Any, max_episode_steps: Any, faults: Any
) -> Any:
    num_envs, workers, timeout = shares
    if isinstance(env, (envs.TensorEnv, gym.vector.VectorEnv)):
        _expect_no_fault_options(env, faults, faults)
    if isinstance(env, envs.TensorEnv):
        return batched_tensor_env.BatchedTensorEnv(env, max_episode_steps)
    if isinstance(env, gym.vector.VectorEnv):
        batch = vector_envs.VectorEnvAdapter(env, max_episode_steps)
        return in_process.InProcessEnvironments(batch)
    if isinstance(env, gym.Env):
        _expect_no_fault_options(env, faults, ["on_env_error"])
        batch = batched_envs.SyncEnvs([env], max_episode_steps, owned=False, **faults)
        return in_process.InProcessEnvironments(batch)
    factory = _env_factory(env, env_kwargs or {}, max_episode_steps, faults)
    first = factory.make()
    if isinstance(first, envs.TensorEnv):
        return _open_tensor_env(first, workers, factory)
    env_factory.check_env(first)
    if workers == 1:
        for model in keras.tree.flatten(getattr(factory.env, "kwargs", {})):
            if isinstance(model, keras.Model):  # `gym.make` copies the arguments
                in_process.warn_of_copy(model)
        batch = factory.batch_from([first], num_envs)
        return in_process.InProcessEnvironments(batch)
    closed = factory.batch_from([first], 1)
    closed.close_all()
    sizes = _shares(num_envs, config.number_of_workers(workers))
    return worker_pool.WorkerPool(closed, factory, sizes, _launcher(workers, timeout))


def _launcher(workers: Any, timeout: float) -> Any:
    if isinstance(workers, config.RayWorkers):
        return ray_launcher.RayLauncher(workers, timeout)
    return local_worker.LocalLauncher(timeout)


def _open_tensor_env(env: Any, workers: Any, factory: Any) -> Any:
    _expect_no_fault_options(env, factory.faults, factory.faults)
    if workers != 1:
        raise ValueError(
            "`workers` requires a Gymnasium environment, because a tensor environment "
            f"runs all episodes in one program. Received: workers={workers}. Leave "
            "`workers` out."
        )
    return batched_tensor_env.BatchedTensorEnv(env, factory.max_episode_steps)


def _shares(num_envs: int, workers: int) -> list[int]:
    """Returns the number of environments of each worker, at least one."""
    return [max(1, (num_envs + worker) // workers) for worker in range(workers)]


def _env_factory(env: Any, kwargs: Any, max_episode_steps: Any, faults: Any) -> Any:
    """Returns the `EnvFactory` of an environment id, an `EnvSpec` or a callable."""
    if isinstance(env, (str, gym.envs.registration.EnvSpec)):
        with env_arguments.explain_errors_of_make(env, kwargs):
            env, max_episode_steps = _spec_without_checkers(
                env, max_episode_steps=max_episode_steps, **kwargs
            )
        kwargs = {}
    elif not callable(env):
        raise TypeError(
            "`env` must be an environment id, an EnvSpec, a callable that makes an "
            "environment, a gymnasium.Env, a gymnasium.vector.VectorEnv or a "
            "tfr.envs.TensorEnv. "
            f"Received: env={env!r} of type {type(env).__name__}"
        )
    return env_factory.EnvFactory(env, kwargs, max_episode_steps, faults)


def _spec_without_checkers(env: Any, **kwargs: Any) -> Any:
    """Returns an `EnvSpec` without Gymnasium's checks, and the time limit of episodes.

    The spec omits the wrappers `PassiveEnvChecker`, `OrderEnforcing` and `TimeLimit`,
    because each wrapper costs a Python call per step. The collector itself checks every
    value, begins each episode with a reset, and applies the time limit. An environment
    that is registered with other wrappers keeps these wrappers and its `TimeLimit`. The
    wrappers that its entry point applies are not listed in the spec. Gymnasium would
    refuse a listed one that has a new object among its arguments in each environment, for
    example a lambda.
    """
    known = gym.registry.get(env.rpartition(":")[2]) if isinstance(env, str) else env
    env_factory.log_mujoco_once(getattr(known, "entry_point", None))
    first = gym.make(env, disable_env_checker=True, **kwargs)
    spec: Any = copy.deepcopy(first.spec)  # `gym.make` sets the spec
    first.close()
    registered = gym.spec(spec.id) if isinstance(env, str) else env
    spec.additional_wrappers = registered.additional_wrappers
    max_episode_steps = spec.max_episode_steps
    spec.order_enforce, spec.disable_env_checker = False, True
    if not spec.additional_wrappers:
        spec.max_episode_steps = None
    return spec, max_episode_steps
