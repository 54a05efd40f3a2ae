"""Runs the command `export`, which writes the policy of a run."""

from tf_reinforce import files
from tf_reinforce import startup
from tf_reinforce.cli import agent_files


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce export`."""
    command = subparsers.add_parser("export", help="write a SavedModel of the policy")
    command.set_defaults(command=run)
    command.add_argument("run", metavar="RUN", help="run directory or agent file")
    command.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    agent_files.add_load_limits(command)


def run(options):
    """Runs `tf-reinforce export` and returns the exit code."""
    files.expect_replaceable_folder(options.out)
    limits = agent_files.load_limits(options)
    path = agent_files.agent_file(options.run, limits)
    startup.import_tensorflow()
    from tf_reinforce.loading import keras_file

    keras_file.load(path, limits=limits).export(options.out)
    print(f"exported to {options.out}: act, sample, distribution, log_prob")
    return 0
