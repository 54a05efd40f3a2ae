"""Makes the parser of the command line, with a parser for each command."""

import argparse
import difflib
import re

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
from tf_reinforce.cli import train
from tf_reinforce.cli import tune
from tf_reinforce.support import version

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
    explain,
    list_presets,
    info,
)


class Parser(argparse.ArgumentParser):
    """Prints an error in one line, with the most similar option or command."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, allow_abbrev=False, **kwargs)

    def parse_known_args(self, args=None, namespace=None):
        """Parses arguments; unlike in argparse, a command names its unknown ones."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message):
        """Prints an error message, and ends the process with the exit code 2."""
        choices = [choice for action in self._actions for choice in action.choices or ()]
        known = [*self._option_string_actions, *map(str, choices)]
        received = re.search(r"(?:arguments: |invalid choice: ')([\w-]+)", message)
        similar = (
            difflib.get_close_matches(received[1], known, 1, 0.7) if received else []
        )
        hint = f"Did you mean {similar[0]}?" if similar else f"Help: {self.prog} --help"
        action = self._option_string_actions.get(similar[0]) if similar else None
        if action is not None and action.help == argparse.SUPPRESS:  # rejected as well
            hint = f"Use {action.const}."
        self.exit(2, f"{self.prog}: error: {message.rstrip('.')}. {hint}\n")


def make_parser():
    """Returns the parser of `tf-reinforce`, with a parser for each command."""
    parser = Parser(
        prog="tf-reinforce", description="REINFORCE for people who think in Keras."
    )
    parser.add_argument("--version", action="version", version=version.VERSION)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for command in COMMANDS:
        command.add_parser(subparsers)
    completion.add_parser(subparsers, parser)
    return parser
