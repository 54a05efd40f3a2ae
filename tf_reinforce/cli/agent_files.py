"""Finds the environments and agents that a command names."""

import importlib
import importlib.util
import os
import sys
from typing import Any, NamedTuple

from tf_reinforce import saving
from tf_reinforce.experiments import run_config
from tf_reinforce.support import startup


class Task(NamedTuple):
    """What Gymnasium states about an environment."""

    action_space: Any  # `gymnasium.Space`
    max_episode_steps: int | None
    reward_threshold: float | None


def find_env(env):
    """Imports an environment's module, and returns its id with a version.

    In `module:Id`, the module may be a file in the current folder.

    Raises:
        ValueError: If the module does not exist.
        gymnasium.error.Error: If the id is not registered.
    """
    module, colon, name = env.rpartition(":")
    if module:
        expect_module(module)
        importlib.import_module(module)
    import gymnasium
    from gymnasium.envs import registration

    namespace, base, number = registration.parse_env_id(name)
    if name not in gymnasium.registry and number is None:
        number = registration.find_highest_version(namespace, base)
        if number is not None:
            latest = registration.get_env_id(namespace, base, number)
            # Gymnasium would warn once for each environment that is made.
            text = f"tf-reinforce: {name} means {latest}, its latest version"
            print(text, file=sys.stderr)
            name = latest
    try:
        return module + colon + gymnasium.spec(name).id
    except gymnasium.error.NameNotFound as error:
        hint = f"The id of an environment that a module registers is MODULE:{name}."
        raise gymnasium.error.NameNotFound(f"{error} {hint}") from error


def resolve_env(env):
    """Returns an environment id with a version, without importing a module.

    The module in `module:Id` may import TensorFlow. If it exists but is not imported yet,
    the id is returned unchanged.
    """
    module = env.rpartition(":")[0]
    if not module or module in sys.modules:
        return find_env(env)
    expect_module(module)
    return env


def expect_module(module):
    """Raises `ValueError` if a module does not exist."""
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # a console script, unlike `python -m`, omits the folder
    package = module.partition(".")[0]
    if not package or importlib.util.find_spec(package) is None:
        raise ValueError(
            f"There is no module {package!r}. Expected: {package}.py in the current "
            f"folder, {folder}, or an installed package. Received: {module}"
        )


def make_task(env, env_kwargs):
    """Makes an environment once to read its `Task`; `None` before its module is imported.

    Raises:
        ValueError: If the constructor does not accept the arguments.
    """
    import gymnasium

    from tf_reinforce.engine.collect import batched_envs

    module = env.rpartition(":")[0]
    if module and module not in sys.modules:
        return None
    with batched_envs.explain_errors(env, env_kwargs):
        # As for training, the time limit is no argument of the environment.
        made = gymnasium.make(
            env, max_episode_steps=None, disable_env_checker=True, **env_kwargs
        )
    made.close()
    return Task(
        made.action_space, made.spec.max_episode_steps, made.spec.reward_threshold
    )


def load(run, max_bytes):
    """Loads the agent of a run, which may come from a stranger."""
    path = _agent_file(run, max_bytes)
    startup.import_tensorflow()
    return saving.load(path, max_bytes=max_bytes)


def load_with_env(run, max_bytes, env, env_arg, max_episode_steps):
    """Loads the agent of a run, and finds the environment in which it plays.

    Modules that a file of the run names are not imported.

    Args:
        run: Path of the run directory or agent file.
        max_bytes: Int, the largest size of the agent file.
        env, env_arg, max_episode_steps: Options of the command.

    Returns:
        The `Reinforce`, the environment id, and a dict of the arguments `env_kwargs` and
        `max_episode_steps` of `Reinforce.evaluate`.

    Raises:
        ValueError: If neither the user nor the run names an environment that may be used.
    """
    env = env and resolve_env(env)
    _agent_file(run, max_bytes)
    in_file, env_options = run_config.read_env(run, dict(env_arg))
    env = env or in_file
    if env is None:
        named = str(run_config.read(run).get("env", "ENV"))[:100]
        raise ValueError(
            f"{run} contains no environment id that needs no module. Name the "
            f"environment, and its module only if you trust it: --env {named}"
        )
    if max_episode_steps is not None:
        env_options["max_episode_steps"] = max_episode_steps
    return load(run, max_bytes), find_env(env), env_options


def _agent_file(run, max_bytes):
    """Returns the path of a run's agent file; raises an error if it is damaged."""
    from tf_reinforce.experiments import seed_processes

    if seeds := list(seed_processes.folders(run).values()):
        raise ValueError(
            f"{run} contains a run directory for each of {len(seeds)} seeds. Expected: "
            f"one of them, for example {seeds[0]}"
        )
    path = run_config.find(run)
    saving.read(os.fspath(path), max_bytes)
    return path
