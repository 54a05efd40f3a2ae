"""Makes batched environments, a worker pool or tensor environments from `env`."""

import contextlib
import copy
from collections.abc import Iterator, Mapping
from typing import Any

import gymnasium as gym

from tf_reinforce import envs
from tf_reinforce import validation
from tf_reinforce.collect import batched_envs
from tf_reinforce.collect import batched_tensor_env
from tf_reinforce.collect import environments
from tf_reinforce.collect import vector_envs
from tf_reinforce.collect import worker_pool


@contextlib.contextmanager
def open_envs(
    env: Any,
    num_envs: int,
    *,
    workers: int = 1,
    env_kwargs: Mapping[str, Any] | None = None,
    max_episode_steps: int | None = None,
) -> Iterator[Any]:
    """Opens the environments that `env` describes, and closes new environments later.

    Args:
        env: An environment id (also `module:Id-v0`), an `EnvSpec`, a callable that makes
            an environment, a `gymnasium.Env` (a batch of one), a `VectorEnv`, a
            `TensorEnv`, or open environments (which are yielded unchanged).
        num_envs: Positive int, the number of environments to make from an id, an
            `EnvSpec` or a callable.
        workers: Positive int, the number of processes that run the environments. With
            `workers=1`, the environments run in the current process.
        env_kwargs: Dict of keyword arguments for the constructor of the environment.
        max_episode_steps: Positive int, the time limit of an episode in steps.
            `max_episode_steps` defaults to the limit that the environment states, else
            10,000. Environments that are already open keep their time limit.

    Yields:
        A `batched_envs.BatchedEnvs`, with several workers a `worker_pool.WorkerPool`, or
        for a `TensorEnv` a `batched_tensor_env.BatchedTensorEnv`.

    Raises:
        TypeError: If the type of `env` is not supported.
        ValueError: If a space or a count is not supported.
    """
    validation.positive_int("num_envs", num_envs)
    validation.positive_int("workers", workers)
    is_open = isinstance(env, environments.Environments)
    is_env = isinstance(env, (gym.Env, gym.vector.VectorEnv, envs.TensorEnv))
    for name, is_set in (("env_kwargs", env_kwargs), ("workers", workers > 1)):
        if (is_open or is_env) and is_set:
            raise ValueError(
                f"`{name}` requires an environment id, an EnvSpec or a callable, from "
                f"which several environments can be made. Received: env={env!r}, "
                f"env_kwargs={env_kwargs}, workers={workers}"
            )
    if is_open:
        yield env
        return
    opened = _open(env, num_envs, workers, env_kwargs, max_episode_steps)
    try:
        yield opened
    finally:
        opened.close()


def _open(env: Any, num_envs: Any, workers: Any, env_kwargs: Any, limit: Any) -> Any:
    if isinstance(env, envs.TensorEnv):
        return batched_tensor_env.BatchedTensorEnv(env, limit)
    if isinstance(env, gym.vector.VectorEnv):
        return vector_envs.VectorEnvAdapter(env, limit)
    if isinstance(env, gym.Env):
        return batched_envs.SyncEnvs([env], limit, owned=False)
    make, limit = _env_factory(env, env_kwargs or {}, limit)
    workers = min(workers, num_envs)
    if workers == 1:
        return _make_batch(make, num_envs, limit)
    first = _make_batch(make, 1, limit)
    first.close()
    if isinstance(first, batched_tensor_env.BatchedTensorEnv):
        raise ValueError(
            "`workers` requires a Gymnasium environment, because a tensor environment "
            f"runs all episodes in one program. Received: workers={workers}. Leave "
            "`workers` out."
        )
    sizes = [(num_envs + worker) // workers for worker in range(workers)]
    return worker_pool.WorkerPool(
        first, lambda count: _make_batch(make, count, limit), sizes
    )


def _env_factory(env: Any, kwargs: Any, limit: Any) -> Any:
    """Returns a function that makes an environment, and the time limit of episodes."""
    if isinstance(env, (str, gym.envs.registration.EnvSpec)):
        spec, limit = _spec_without_checkers(env, max_episode_steps=limit, **kwargs)
        return lambda: gym.make(spec), limit
    if callable(env):
        return lambda: env(**kwargs), limit
    raise TypeError(
        "`env` must be an environment id, an EnvSpec, a callable that makes an "
        "environment, a gymnasium.Env, a gymnasium.vector.VectorEnv or a "
        "tfr.envs.TensorEnv. "
        f"Received: env={env!r} of type {type(env).__name__}"
    )


def _make_batch(make: Any, count: Any, limit: Any) -> Any:
    """Makes `count` environments, and returns `SyncEnvs` or a `BatchedTensorEnv`."""
    batch = []
    try:
        for _ in range(count):
            batch.append(make())
            if isinstance(batch[-1], envs.TensorEnv):
                return batched_tensor_env.BatchedTensorEnv(batch.pop(), limit)
            if not isinstance(batch[-1], gym.Env):
                raise TypeError(
                    "The callable must return a gymnasium.Env. Received: "
                    f"{batch.pop()!r}. Wrap an old Gym environment with shimmy."
                )
        return batched_envs.SyncEnvs(batch, limit, owned=True)
    except BaseException:
        for env in batch:
            env.close()
        raise


def _spec_without_checkers(env: Any, **kwargs: Any) -> Any:
    """Returns the spec of an environment without Gymnasium's checks, and its time limit.

    The spec omits the wrappers `PassiveEnvChecker`, `OrderEnforcing` and `TimeLimit`,
    because each wrapper costs a Python call per step. The collector itself checks every
    value, begins each episode with a reset, and applies the time limit. An environment
    with other registered wrappers keeps these wrappers and its `TimeLimit`.
    """
    first = gym.make(env, disable_env_checker=True, **kwargs)
    spec: Any = copy.deepcopy(first.spec)  # `gym.make` sets the spec
    first.close()
    limit = spec.max_episode_steps
    spec.order_enforce, spec.disable_env_checker = False, True
    if not spec.additional_wrappers:
        spec.max_episode_steps = None
    return spec, limit
