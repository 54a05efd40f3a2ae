"""Runs the command `replay`, which repeats a refused update."""

from tf_reinforce import startup
from tf_reinforce.cli import agent_files


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce replay`."""
    command = subparsers.add_parser(
        "replay",
        help="repeat and explain an update that was refused as not finite",
        description="Repeats an update that was refused because a number was not "
        "finite, and explains the cause. The exit code is 1 if the update is refused "
        "again, and 0 if it is finite.",
    )
    command.set_defaults(command=run)
    command.add_argument(
        "update", metavar="DIR", help="folder refused_update_N of a run directory"
    )
    agent_files.add_load_limits(command)


def run(options):
    """Runs `tf-reinforce replay` and returns the exit code."""
    from tf_reinforce.experiments import run_config

    run_config.expect_path(options.update)
    limits = agent_files.load_limits(options)
    startup.import_tensorflow()
    from tf_reinforce.experiments import replay as replays

    result = replays.replay(options.update, limits=limits)
    print(result)
    return 0 if result.error is None else 1
