"""Runs the command `info`, which describes a run or an agent file."""

import json

from tf_reinforce.cli import agent_files


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce info`."""
    command = subparsers.add_parser(
        "info",
        help="describe a run: settings, progress, evaluation, versions and files",
        description="Prints what the files of a run directory or an agent file contain: "
        "environment, settings, progress, evaluation, parts of the agent, versions and "
        "files. The command imports no TensorFlow.",
    )
    command.set_defaults(command=run)
    command.add_argument("run", metavar="RUN", help="run directory or agent file")
    command.add_argument("--json", action="store_true", help="print JSON")
    agent_files.add_load_limits(command)


def run(options):
    """Runs `tf-reinforce info` and returns the exit code."""
    from tf_reinforce.experiments import run_info

    facts = run_info.read(options.run, agent_files.load_limits(options))
    print(json.dumps(facts, indent=2) if options.json else run_info.table(facts))
    return 0
