"""Defines arguments that several commands share."""

import os
import sys

from tf_reinforce.cli import argument_types

# The argument RUN of the commands that read several runs.
RUNS = dict(
    nargs="+",
    metavar="RUN",
    help="run directory, or a folder with a run directory for each seed",
)

# The option `--env-arg` of the commands that make an environment.
ENV_ARG = dict(
    action="append",
    type=argument_types.env_argument,
    metavar="NAME=VALUE",
    help="argument of the environment's constructor; the option may be repeated",
)

# The option `--seed` of the commands that play episodes with a trained agent.
EPISODES_SEED = dict(
    type=argument_types.count,
    default=0,
    help="selects the episodes; equal seeds give equal episodes (0)",
)


def read_runs(folders):
    """Returns the `curves.Run`s of folders, and reports each folder without a log."""
    from tf_reinforce.experiments import curves

    runs, skipped = curves.read_all(folders)
    for folder in skipped:
        print(
            f"tf-reinforce: skipped {folder}, which contains no {curves.LOG}",
            file=sys.stderr,
        )
    return runs


def output_path(out, runs, name):
    """Returns the path of the file that a command writes.

    Args:
        out: The value of `--out FILE`, or `None`.
        runs: List of the paths of the runs that the command reads.
        name: Name of the file without `--out`. The file is written to the folder of a
            single run, and to the current folder if there are several runs or if the run
            is an agent file.
    """
    if out is not None:
        return out
    is_folder = len(runs) == 1 and os.path.isdir(runs[0])
    return os.path.join(runs[0], name) if is_folder else name
