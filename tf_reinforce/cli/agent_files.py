"""Loads the agent of a run and finds the environment of the run."""

import os
import re

from tf_reinforce import saving
from tf_reinforce.cli import argument_types
from tf_reinforce.cli import env_ids
from tf_reinforce.support import startup


def add_max_bytes(command):
    """Adds the option of a command that loads an agent."""
    command.add_argument(
        "--max-bytes",
        type=argument_types.count,
        metavar="N",
        help="largest size of the agent file, because a stranger's file could fill the "
        f"memory (default: {saving.MAX_BYTES})",
    )


def load(options, run):
    """Returns the agent of a run, which may come from an untrusted source."""
    return _load(options, _agent_file(options, run))


def _load(options, path):
    startup.import_tensorflow()
    return saving.load(path, max_bytes=options.max_bytes or saving.MAX_BYTES)


def load_with_env(options, run):
    """Returns the agent of a run, and the environment in which it plays.

    No module that a file of the run names is imported.

    Args:
        options: The parsed options of a command, with `env`, `env_arg`,
            `max_episode_steps` and `max_bytes`.
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
    path = _agent_file(options, run)
    env, env_options = run_config.read_env(run, dict(options.env_arg or ()))
    env = options.env or env
    if env is None:
        raise ValueError(_missing_env(options, run))
    if options.max_episode_steps is not None:
        env_options["max_episode_steps"] = options.max_episode_steps
    agent = _load(options, path)
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


def _agent_file(options, run):
    """Returns the path of the agent file of a run; raises an error if it is damaged."""
    from tf_reinforce.experiments import run_config
    from tf_reinforce.experiments import seed_processes

    path = run_config.agent_file(run)
    if seeds := list(seed_processes.folders(run).values()):
        raise ValueError(
            f"{run} contains a run directory for each of {len(seeds)} seeds. Expected: "
            f"one of them, for example {seeds[0]}"
        )
    run_config.expect_path(run)
    if os.path.isdir(run):
        run_config.expect_file(run, path.name)
    saving.read(os.fspath(path), options.max_bytes or saving.MAX_BYTES)
    return path
