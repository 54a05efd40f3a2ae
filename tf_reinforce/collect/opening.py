"""What a user means by `env`, opened: a fleet, a crew or a world."""

import contextlib
import copy

import gymnasium as gym

from tf_reinforce import arguments, envs
from tf_reinforce.collect import crews, fleets, worlds


@contextlib.contextmanager
def open_fleet(env, num_envs, *, workers=1, env_kwargs=None, max_episode_steps=None):
    """The environments meant by `env`, closed again if they were made here.

    Args:
        env: Environment id (also `module:Id-v0`), `EnvSpec`, callable that makes an
            environment, `gymnasium.Env` (runs alone), `VectorEnv` or open `Fleet`
            (both as they are), or `TensorEnv`.
        num_envs: Positive int, how many to make of an id, spec or callable.
        workers: Positive int, how many processes to make them in; 1 is this one.
        env_kwargs: Dict of keywords for the environment's constructor.
        max_episode_steps: Positive int, a time limit. Defaults to the one that the
            environment states, else 10,000. An open fleet keeps its own.

    Yields:
        A `fleets.Fleet`; with several workers a `crews.Crew`; for a `TensorEnv` a
        `worlds.World`.

    Raises:
        TypeError: when `env` is none of these.
        ValueError: when spaces or counts are not acceptable.
    """
    arguments.positive_int("num_envs", num_envs)
    arguments.positive_int("workers", workers)
    open_ = isinstance(env, (fleets.Fleet, crews.Crew, worlds.World))
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
    fleet = _opened(env, num_envs, workers, env_kwargs, max_episode_steps)
    try:
        yield fleet
    finally:
        fleet.close()


def _opened(env, num_envs, workers, env_kwargs, limit):
    if isinstance(env, envs.TensorEnv):
        return worlds.World(env, limit)
    if isinstance(env, gym.vector.VectorEnv):
        return fleets.Vector(env, limit)
    if isinstance(env, gym.Env):
        return fleets.Plain([env], limit, owned=False)
    make, limit = _maker(env, env_kwargs or {}, limit)
    workers = min(workers, num_envs)
    if workers == 1:
        return _side_by_side(make, num_envs, limit)
    first = _side_by_side(make, 1, limit)
    first.close()
    if isinstance(first, worlds.World):
        raise ValueError(
            "`workers` are for Gymnasium's environments: a tensor environment plays all "
            "episodes in one program. Leave `workers` out."
        )
    sizes = [(num_envs + place) // workers for place in range(workers)]
    return crews.Crew(first, lambda count: _side_by_side(make, count, limit), sizes)


def _maker(env, kwargs, limit):
    """A function that makes an environment, and the time limit of its episodes."""
    if isinstance(env, (str, gym.envs.registration.EnvSpec)):
        spec, limit = _unguarded(env, max_episode_steps=limit, **kwargs)
        return lambda: gym.make(spec), limit
    if callable(env):
        return lambda: env(**kwargs), limit
    raise TypeError(
        "`env` must be an environment id, an EnvSpec, a callable that makes an "
        "environment, a gymnasium.Env, a gymnasium.vector.VectorEnv or a "
        "tfr.envs.TensorEnv. "
        f"Received: env={env!r} of type {type(env).__name__}"
    )


def _side_by_side(make, count, limit):
    """A fleet of so many environments; a `World` where tensor environments are made."""
    made = []
    try:
        for _ in range(count):
            made.append(make())
            if isinstance(made[-1], envs.TensorEnv):
                return worlds.World(made.pop(), limit)
            if not isinstance(made[-1], gym.Env):
                raise TypeError(
                    "The callable must return a gymnasium.Env. Received: "
                    f"{made.pop()!r}. An old Gym environment needs shimmy."
                )
        return fleets.Plain(made, limit, owned=True)
    except BaseException:
        for environment in made:
            environment.close()
        raise


def _unguarded(env, **kwargs):
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
