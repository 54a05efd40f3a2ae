"""Checks `env_kwargs`, the arguments for the constructor of an environment."""

import contextlib
import inspect
import re
from collections.abc import Mapping

import gymnasium
from gymnasium.envs import registration

_ARGUMENTS_OF_MAKE = ("id", "max_episode_steps", "disable_env_checker")


def check(env_kwargs):
    """Raises `TypeError` unless `env_kwargs` is `None` or a dict with string keys."""
    is_dict = isinstance(env_kwargs, Mapping)
    has_names = is_dict and all(isinstance(name, str) for name in env_kwargs)
    if env_kwargs is not None and not has_names:
        raise TypeError(
            "`env_kwargs` must be a dict of keyword arguments for the constructor of the "
            f"environment. Received: env_kwargs={env_kwargs!r}"
        )


@contextlib.contextmanager
def explain_errors(env, env_kwargs):
    """Raises `ValueError` if the constructor in a `with` block needs other arguments."""
    try:
        yield
    except TypeError as error:
        if env_kwargs and "unexpected keyword argument" in str(error):
            expected, remedy = "", _accepted(env)
        elif re.search(r"missing \d+ required ", str(error)):
            expected = ", with all required arguments"
            remedy = (
                ". Pass the arguments as `env_kwargs={…}` in Python, or as `--env-arg "
                "NAME=VALUE` on the command line"
            )
        else:
            raise
        raise ValueError(
            "`env_kwargs` must be keyword arguments for the constructor of the "
            f"environment{expected}. Received: env_kwargs={env_kwargs!r} for {env!r}. "
            f"The constructor raised: {error}{remedy}"
        ) from error


def _accepted(env):
    """Returns the names of the arguments that a constructor accepts, as text."""
    maker = env
    with contextlib.suppress(gymnasium.error.Error, ImportError, ValueError, TypeError):
        if isinstance(env, str):
            maker = gymnasium.spec(env).entry_point
        if isinstance(maker, str):
            maker = registration.load_env_creator(maker)
        parameters = inspect.signature(maker).parameters.values()
        names = [x.name for x in parameters if "VAR" not in x.kind.name]
        return f". The constructor accepts: {', '.join(names) or 'no arguments'}"
    return ""


@contextlib.contextmanager
def explain_errors_of_make(env, env_kwargs):
    """Calls `explain_errors`, and rejects arguments of `gymnasium.make`."""
    for name in _ARGUMENTS_OF_MAKE:
        if name in env_kwargs:
            raise ValueError(
                "`env_kwargs` must be keyword arguments for the constructor of the "
                f"environment. Received: {name}={env_kwargs[name]!r}, an argument of "
                "`gymnasium.make`. Set the time limit with the argument "
                "`max_episode_steps` of `fit`, `evaluate` and `collect`."
            )
    with explain_errors(env, env_kwargs):
        yield
