"""Defines arguments that several commands share."""

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
