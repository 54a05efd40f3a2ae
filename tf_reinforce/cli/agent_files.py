"""Finds environments and agents of the ids and the runs that a command names."""

import contextlib
import importlib
import importlib.util
import os
import re
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
    renders: bool = True


def any_task():
    """Returns a `Task` for an environment that cannot be made yet."""
    import gymnasium

    return Task(gymnasium.spaces.Discrete(2), 1000, None)


def find_env(env):
    """Imports the module of an environment id, and returns the id with a version.

    If the id has the form `module:Id`, the module may be a file in the current folder.

    Raises:
        ValueError: If the module does not exist, or an Atari environment is used without
            the package ale-py.
        gymnasium.error.Error: If no environment with this id is registered.
    """
    module, colon, name = env.rpartition(":")
    if module:
        _import_module(module)
    import gymnasium
    from gymnasium.envs import registration

    if name.startswith("ALE/"):
        with contextlib.suppress(ImportError):
            importlib.import_module("ale_py")  # registers the environments
    namespace, base, number = registration.parse_env_id(name)
    if name not in gymnasium.registry and number is None:
        number = registration.find_highest_version(namespace, base)
        if number is not None:
            latest = registration.get_env_id(namespace, base, number)
            # Gymnasium would warn once for each environment that is made.
            print(
                f"tf-reinforce: {name} means {latest}, its latest version",
                file=sys.stderr,
            )
            name = latest
    try:
        return module + colon + gymnasium.spec(name).id
    except gymnasium.error.NameNotFound as error:
        hint = f"If a module registers the environment, name the module: MODULE:{name}"
        if module:
            hint = f"The module {module} registers no environment {name}."
        raise gymnasium.error.NameNotFound(f"{error} {hint}") from error
    except gymnasium.error.NamespaceNotFound as error:
        hint = 'Atari environments require ale-py: pip install "tf-reinforce[atari]".'
        raise ValueError(f"{error} {hint if namespace == 'ALE' else ''}") from error


def resolve_env(env):
    """Returns an environment id with a version, without importing a module.

    The module of an id `module:Id` is not imported, because the module may import
    TensorFlow. The function returns such an id unchanged if the module exists.
    """
    module = env.rpartition(":")[0]
    if not module:
        return find_env(env)
    _add_current_folder()
    package = module.partition(".")[0]
    if not package or importlib.util.find_spec(package) is None:
        raise _missing_module(package, module)
    return env


def make_task(env, env_kwargs):
    """Makes an environment once, and returns its `Task`.

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
    renders = "rgb_array" in made.metadata.get("render_modes", ["rgb_array"])
    spec = made.spec
    limits = spec.max_episode_steps, spec.reward_threshold
    return Task(made.action_space, *limits, renders)


def _import_module(module):
    _add_current_folder()
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, and imports a missing module
        raise _missing_module(error.name, module) from error


def _add_current_folder():
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # a console script, unlike `python -m`, omits the folder


def _missing_module(name, module):
    return ValueError(
        f"There is no module {name!r}. Expected: {name}.py in the current folder, "
        f"{os.getcwd()}, or an installed package. Received: {module}"
    )


def load(run, max_bytes):
    """Returns the agent of a run, which may come from an untrusted source."""
    path = _agent_file(run, max_bytes)
    startup.import_tensorflow()
    return saving.load(path, max_bytes=max_bytes)


def load_with_env(run, max_bytes, env, env_arg, max_episode_steps):
    """Returns the agent of a run, and the environment in which it plays.

    No module that a file of the run names is imported.

    Args:
        run: Path of the run directory or of the agent file.
        max_bytes: Int, the largest size of the agent file.
        env, env_arg, max_episode_steps: Options of the command.

    Returns:
        The `Reinforce`, the environment id, and a dict of the arguments `env_kwargs` and
        `max_episode_steps` of `Reinforce.evaluate`.

    Raises:
        ValueError: If the run contains no environment id that may be used, and the user
            has passed none.
    """
    env = env and resolve_env(env)
    _agent_file(run, max_bytes)
    in_file, env_options = run_config.read_env(run, dict(env_arg))
    env = env or in_file
    if env is None:
        raise ValueError(_missing_env(run))
    if max_episode_steps is not None:
        env_options["max_episode_steps"] = max_episode_steps
    return load(run, max_bytes), find_env(env), env_options


def _missing_env(run):
    env = run_config.read(run).get("env")
    if not isinstance(env, str) or not re.fullmatch(r"[\w.]+:[\w./-]+", env):
        return f"{run} contains no environment id. Add the option --env ENV."
    return (
        f"The environment of {run} is {env}. For safety, no command imports a module "
        f"that only a file of the run names. If you trust it, add: --env {env}"
    )


def _agent_file(run, max_bytes):
    """Returns the path of the agent file of a run; raises an error if it is damaged."""
    from tf_reinforce.experiments import seed_processes

    if seeds := list(seed_processes.folders(run).values()):
        raise ValueError(
            f"{run} contains a run directory for each of {len(seeds)} seeds. Expected: "
            f"one of them, for example {seeds[0]}"
        )
    path = run_config.find(run)
    saving.read(os.fspath(path), max_bytes)
    return path
