"""Finds the agent file of a run, and checks it within limits."""

import os

from tf_reinforce.cli import argument_types


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


def agent_file(run, limits):
    """Returns the path of the agent file of a run; raises an error if it is damaged."""
    from tf_reinforce.experiments import run_config
    from tf_reinforce.loading import archive

    path = run_config.agent_file(run)
    expect_path(path)
    with archive.name_file(path):
        archive.read(os.fspath(path), limits)
    return path


def expect_env(run, env, command):
    """Raises `ValueError` if `env` is `None`, as it is for a run whose id is not safe.

    Args:
        run: Path of the run directory or of the agent file.
        env: Environment id, or `None`.
        command: Name of the command.
    """
    if env is None:
        raise ValueError(
            f"{run} contains no environment id, or an id of the form `module:Id`. For "
            f"safety, `{command}` imports no module that a run directory names. Give "
            "--env."
        )


def expect_path(path):
    """Raises `FileNotFoundError` if there is no file or folder `path`."""
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no file {path}.")
