"""Runs the command `info`, which prints what is known about a run."""

import json

from tf_reinforce import saving
from tf_reinforce.cli import agent_files


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce info`."""
    command = subparsers.add_parser(
        "info",
        help="print settings, last log row and evaluation of a run",
        description="Prints the settings of a run directory, the last number in each "
        "column of its log, and its evaluation, or the settings in an agent file. The "
        "command imports no TensorFlow.",
    )
    command.set_defaults(command=run)
    command.add_argument("run", metavar="RUN", help="run directory or agent file")
    command.add_argument("--json", action="store_true", help="print JSON")
    agent_files.add_max_bytes(command)


def run(options):
    """Runs `tf-reinforce info` and returns the exit code."""
    from tf_reinforce.experiments import run_info

    facts = run_info.read(options.run, options.max_bytes or saving.MAX_BYTES)
    print(json.dumps(facts, indent=2) if options.json else run_info.table(facts))
    return 0
