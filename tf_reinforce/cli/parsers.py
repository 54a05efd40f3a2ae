"""Makes the parser of the command line, with a parser for each command."""

import argparse

from tf_reinforce import version
from tf_reinforce.cli import bench_env
from tf_reinforce.cli import check_env
from tf_reinforce.cli import compare
from tf_reinforce.cli import completion
from tf_reinforce.cli import evaluate
from tf_reinforce.cli import explain
from tf_reinforce.cli import export
from tf_reinforce.cli import info
from tf_reinforce.cli import list_presets
from tf_reinforce.cli import plot
from tf_reinforce.cli import record
from tf_reinforce.cli import replay
from tf_reinforce.cli import train
from tf_reinforce.cli import tune

# The modules of the commands, in the order of `tf-reinforce --help`.
COMMANDS = (
    train,
    evaluate,
    record,
    export,
    plot,
    compare,
    tune,
    check_env,
    bench_env,
    replay,
    explain,
    list_presets,
    info,
)


def make_parser():
    """Returns the parser of `tf-reinforce`, with a parser for each command."""
    parser = argparse.ArgumentParser(
        prog="tf-reinforce", description="REINFORCE for people who think in Keras."
    )
    parser.add_argument("--version", action="version", version=version.VERSION)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    completion.add_parser(subparsers, parser)
    return parser
