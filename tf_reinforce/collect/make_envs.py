"""Makes batched environments, a worker pool or tensor environments from `env`."""

import contextlib
import copy

import gymnasium as gym

from tf_reinforce import envs
from tf_reinforce import validation
from tf_reinforce.collect import batched_envs
from tf_reinforce.collect import tensor_envs
from tf_reinforce.collect import vector_envs
from tf_reinforce.collect import worker_pool


@contextlib.contextmanager
def open_envs(env, num_envs, *, workers=1, env_kwargs=None, max_episode_steps=None):
    """The environments meant by `env`, closed again if they were made here.

    Args:
        env: Environment id (also `module:Id-v0`), `EnvSpec`, callable that makes an
            environment, `gymnasium.Env` (runs alone), `VectorEnv` or open `BatchedEnvs`
            (both as they are), or `TensorEnv`.
        num_envs: Positive int, how many to make of an id, spec or callable.
        workers: Positive int, how many processes to make them in; 1 is this one.
        env_kwargs: Dict of keywords for the environment's constructor.
        max_episode_steps: Positive int, a time limit. Defaults to the one that the
            environment states, else 10,000. open environments keeps its own.

    Yields:
        A `batched_envs.BatchedEnvs`; with several workers a `worker_pool.WorkerPool`;
        for a `TensorEnv` a `tensor_envs.TensorEnvs`.

    Raises:
        TypeError: when `env` is none of these.
        ValueError: when spaces or counts are not acceptable.
    """
    validation.positive_int("num_envs", num_envs)
    validation.positive_int("workers", workers)
    open_ = isinstance(
        env, (batched_envs.BatchedEnvs, worker_pool.WorkerPool, tensor_envs.TensorEnvs)
    )
    made = open_ or isinstance(env, (gym.Env, gym.vector.VectorEnv, envs.TensorEnv))
    for name, given in (("env_kwargs", env_kwargs), ("workers", workers > 1)):
        if made and given:
            raise ValueError(
                f"`{name}` are for environments that are still to be made. Received: "
                f"env={env!r}, env_kwargs={env_kwargs}, workers={workers}"
            )
    if open_:
        yield env
        return
    opened = _open(env, num_envs, workers, env_kwargs, max_episode_steps)
    try:
        yield opened
    finally:
        opened.close()


def _open(env, num_envs, workers, env_kwargs, limit):
    if isinstance(env, envs.TensorEnv):
        return tensor_envs.TensorEnvs(env, limit)
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
    if isinstance(first, tensor_envs.TensorEnvs):
        raise ValueError(
            "`workers` are for Gymnasium's environments: a tensor environment plays all "
            "episodes in one program. Leave `workers` out."
        )
    sizes = [(num_envs + place) // workers for place in range(workers)]
    return worker_pool.WorkerPool(
        first, lambda count: _make_batch(make, count, limit), sizes
    )


def _env_factory(env, kwargs, limit):
    """A function that makes an environment, and the time limit of its episodes."""
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


def _make_batch(make, count, limit):
    """Makes `count` environments; returns `SyncEnvs`, or `TensorEnvs` of tensor ones."""
    made = []
    try:
        for _ in range(count):
            made.append(make())
            if isinstance(made[-1], envs.TensorEnv):
                return tensor_envs.TensorEnvs(made.pop(), limit)
            if not isinstance(made[-1], gym.Env):
                raise TypeError(
                    "The callable must return a gymnasium.Env. Received: "
                    f"{made.pop()!r}. An old Gym environment needs shimmy."
                )
        return batched_envs.SyncEnvs(made, limit, owned=True)
    except BaseException:
        for environment in made:
            environment.close()
        raise


def _spec_without_checkers(env, **kwargs):
    """The spec of an environment without Gymnasium's own guards, and its time limit.

    The checker looks at the first step only; here every answer is checked, nothing is
    stepped before its reset, and the collector holds the time limit. Each wrapper
    costs a Python call per step. Registered wrappers stay, and the limit with them.
    """
    made = gym.make(env, disable_env_checker=True, **kwargs)
    spec = copy.deepcopy(made.spec)
    made.close()
    limit = spec.max_episode_steps
    spec.order_enforce, spec.disable_env_checker = False, True
    if not spec.additional_wrappers:
        spec.max_episode_steps = None
    return spec, limit
