"""Finds the environments and agents that a command names."""

import importlib
import importlib.util
import os
import sys

from tf_reinforce import saving
from tf_reinforce.experiments import run_config
from tf_reinforce.experiments import seed_processes
from tf_reinforce.support import startup


def find_env(env):
    """Imports an environment's module, and returns the id of the environment.

    In `module:Id`, the module may be a file in the current folder.

    Raises:
        ValueError: If there is no such module, or no such id.
    """
    module, _, name = env.rpartition(":")
    if module:
        folder = os.getcwd()
        if folder not in sys.path and "" not in sys.path:
            sys.path.append(folder)  # a console script, unlike `python -m`, omits it
        if importlib.util.find_spec(module.partition(".")[0]) is None:
            raise ValueError(
                f"There is no module {module!r} in the current folder, {folder}, or "
                "among the installed packages."
            )
        startup.import_tensorflow()  # the module may import it
        importlib.import_module(module)
    import gymnasium

    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise ValueError(
            f"{error} Expected: an environment id with its version, or MODULE:ID if a "
            f"module registers it. Received: {env}"
        ) from error
    return env


def action_space(env, env_kwargs):
    """Makes an environment once to read its action space.

    Raises:
        ValueError: If the constructor does not accept the arguments.
    """
    import gymnasium

    from tf_reinforce.engine.collect import batched_envs

    with batched_envs.explain_errors(env, env_kwargs):
        # As for training, the time limit is no argument of the environment.
        made = gymnasium.make(
            env, max_episode_steps=None, disable_env_checker=True, **env_kwargs
        )
    made.close()
    return made.action_space


def load(run, max_bytes):
    """Loads the agent of a run, which may come from a stranger."""
    path = _agent_file(run, max_bytes)
    startup.import_tensorflow()
    return saving.load(path, max_bytes=max_bytes)


def load_with_env(run, options, max_bytes):
    """Loads the agent of a run, and finds the environment in which it plays.

    Modules that a file of the run names are not imported.

    Args:
        run: Path of the run directory or agent file.
        options: Options of the command, with `env`, `env_arg` and `max_episode_steps`.
        max_bytes: Int, the largest size of the agent file.

    Returns:
        The `Reinforce`, the environment id, and a dict of the arguments `env_kwargs` and
        `max_episode_steps` of `Reinforce.evaluate`.

    Raises:
        ValueError: If neither the user nor the run names an environment that may be used.
    """
    env = options.env and find_env(options.env)
    _agent_file(run, max_bytes)
    in_file, env_options = run_config.read_env(run, dict(options.env_arg))
    if env is None and in_file is None:
        named = str(run_config.read(run).get("env", "ENV"))[:100]
        raise ValueError(
            f"{run} contains no environment id that needs no module. Name the "
            f"environment, and its module only if you trust it: --env {named}"
        )
    if options.max_episode_steps is not None:
        env_options["max_episode_steps"] = options.max_episode_steps
    return load(run, max_bytes), env or find_env(in_file), env_options


def _agent_file(run, max_bytes):
    """Returns the path of a run's agent file; raises an error if it is damaged."""
    if seeds := list(seed_processes.folders(run).values()):
        raise ValueError(
            f"{run} contains a run directory for each of {len(seeds)} seeds. Expected: "
            f"one of them, for example {seeds[0]}"
        )
    path = run_config.find(run)
    saving.read(os.fspath(path), max_bytes)
    return path
