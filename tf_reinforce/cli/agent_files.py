"""Loads the agent of a run within limits, and finds the environment of the run."""

import os
import re

from tf_reinforce import startup
from tf_reinforce.cli import argument_types
from tf_reinforce.cli import env_ids


def add_load_limits(command):
    """Adds the options of a command that loads an agent, one for each `LoadLimits`."""
    for name in ("bytes", "layers"):
        command.add_argument(
            f"--max-{name}",
            type=argument_types.count,
            metavar="N",
            help=f"largest number of {name} of the agent file; the limit refuses files "
            "that would fill the memory",
        )


def load_limits(options):
    """Returns the `LoadLimits` that `--max-bytes` and `--max-layers` set."""
    from tf_reinforce.loading import archive

    limits = {name: getattr(options, name) for name in ("max_bytes", "max_layers")}
    return archive.LoadLimits(**{k: x for k, x in limits.items() if x is not None})


def load(options, run):
    """Returns the agent of a run, which may come from an untrusted source."""
    limits = load_limits(options)
    return _load(agent_file(run, limits), limits)


def _load(path, limits):
    startup.import_tensorflow()
    from tf_reinforce.loading import keras_file

    return keras_file.load(path, limits=limits)


def load_with_env(options, run):
    """Returns the agent of a run, and the environment in which it plays.

    No module that a file of the run names is imported.

    Args:
        options: The parsed options of a command, with `env`, `env_arg`,
            `max_episode_steps` and those of `add_load_limits`.
        run: Path of the run directory or of the agent file.

    Returns:
        The `Reinforce`, the environment id, and a dict of the arguments `env_kwargs` and
        `max_episode_steps` of `Reinforce.evaluate`.

    Raises:
        ValueError: If the run contains no environment id that may be used, and the user
            has passed none.
    """
    from tf_reinforce.experiments import run_config

    if options.env is not None:
        options.env = env_ids.resolve_env(options.env)
    limits = load_limits(options)
    path = agent_file(run, limits)
    env, env_options = run_config.read_env(run, dict(options.env_arg or ()))
    env = options.env or env
    if env is None:
        raise ValueError(_missing_env(options, run))
    if options.max_episode_steps is not None:
        env_options["max_episode_steps"] = options.max_episode_steps
    agent = _load(path, limits)
    return agent, env_ids.find_env(env), env_options


def _missing_env(options, run):
    from tf_reinforce.experiments import run_config

    env = run_config.read(run).get("env")
    if not isinstance(env, str) or not re.fullmatch(r"[\w.]+:[\w./-]+", env):
        return f"{run} contains no environment id. Run: {options.command_line} --env ENV"
    return (
        f"The environment of {run} is {env}. For safety, no command imports a module "
        "that only a file of the run names. If you trust this module, run: "
        f"{options.command_line} --env {env}"
    )


def agent_file(run, limits):
    """Returns the path of the agent file of a run; raises an error if it is damaged."""
    from tf_reinforce.experiments import run_config
    from tf_reinforce.experiments import seed_processes
    from tf_reinforce.loading import archive

    path = run_config.agent_file(run)
    if seeds := list(seed_processes.folders(run).values()):
        raise ValueError(
            f"{run} contains a run directory for each of {len(seeds)} seeds. Expected: "
            f"one of them, for example {seeds[0]}"
        )
    run_config.expect_path(run)
    if os.path.isdir(run):
        run_config.expect_file(run, path.name)
    with archive.name_file(path):
        archive.read(os.fspath(path), limits)
    return path
