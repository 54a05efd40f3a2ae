"""Parses a command, runs it, and turns errors into messages and exit codes."""

import argparse
import contextlib
import logging
import os
import re
import shlex
import sys
import warnings
from typing import Literal

from tf_reinforce.cli import commands
from tf_reinforce.cli import options as cli_options
from tf_reinforce.cli import train
from tf_reinforce.cli import tune
from tf_reinforce.support import locks
from tf_reinforce.support import validation
from tf_reinforce.support import version


class Parser(argparse.ArgumentParser):
    """Reports an error in one line."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, allow_abbrev=False, **kwargs)
        # argparse takes `-1e3` for an option in Python 3.11 to 3.13.
        self._negative_number_matcher = re.compile(r"-\.?\d[\d._]*(e[+-]?\d+)?$", re.I)

    def parse_known_args(self, args=None, namespace=None):
        """Parses arguments; unlike in argparse, a command names its unknown ones."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message):
        """Prints an error message, and exits with code 2."""
        text = validation.printable(message).rstrip(".")
        self.exit(2, f"{self.prog}: error: {text}. Help: {self.prog} -h\n")


def make_parser():
    """Builds the parser of `tf-reinforce` and its commands."""
    parser = Parser(
        prog="tf-reinforce", description="REINFORCE for people who think in Keras."
    )
    parser.add_argument("--version", action="version", version=version.VERSION)
    subparsers = parser.add_subparsers(required=True, metavar="COMMAND")
    for run in (
        train.train,
        tune.tune,
        commands.evaluate,
        commands.record,
        commands.export,
        commands.plot,
        commands.compare,
        commands.info,
        commands.check_env,
        commands.explain,
        commands.presets,
        completion,
    ):
        cli_options.add_command(subparsers, run)
    return parser


def completion(shell: Literal["bash", "zsh", "tcsh"]):
    """Print a script that completes commands and options in a shell.

    For bash, put this line into ~/.bashrc: eval "$(tf-reinforce completion bash)"

    Args:
        shell: The shell.
    """
    import shtab

    print(shtab.complete(make_parser(), shell))
    return 0


def main(arguments=None):
    """Runs one command of `tf-reinforce` and returns its exit code.

    Args:
        arguments: List of strings, the command and its options; by default those of the
            process.

    Returns:
        The exit code is 0 after success, and 2 for an invalid argument or file. It is 1
        if the environment failed, another learner process was lost, a number was not
        finite, or `--require-target` was missed. After Ctrl-C it is 130, and after
        SIGTERM it is 143.
    """
    with contextlib.suppress(AttributeError):  # standard output may be any object
        # It may not have every character, and may be a file that somebody watches.
        sys.stdout.reconfigure(errors="replace", line_buffering=True)
    arguments = sys.argv[1:] if arguments is None else arguments
    options = make_parser().parse_args(arguments)
    options.command_line = shlex.join(["tf-reinforce", *arguments])
    try:
        with _plain_messages(), locks.kept():
            code = options.command(options)
        sys.stdout.flush()
        return code
    except KeyboardInterrupt:
        print("tf-reinforce: interrupted", file=sys.stderr)
        return train.INTERRUPTED
    except BrokenPipeError:  # the reader of the output has ended, for example `head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        print(_message(error), file=sys.stderr)
        return code


def _message(text):
    """Returns a line for standard error; its text may come from an untrusted file."""
    return f"tf-reinforce: {validation.printable(str(text))}"


class _StandardError(logging.StreamHandler):
    """Writes to the current `sys.stderr`, which a progress display replaces."""

    stream = property(lambda self: sys.stderr, lambda self, value: None)

    def format(self, record):
        return _message(super().format(record))


@contextlib.contextmanager
def _plain_messages():
    """Prints each warning once, and the package's log, without places in files."""
    log, handler = logging.getLogger("tf_reinforce"), _StandardError()
    previous = warnings.formatwarning, log.propagate
    # Python forgets which warnings it has shown when a library changes the filters.
    shown = set()

    def format_warning(text, *_, **__):
        line = "" if str(text) in shown else f"{_message(f'warning: {text}')}\n"
        shown.add(str(text))
        return line

    warnings.formatwarning, log.propagate = format_warning, False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        warnings.formatwarning, log.propagate = previous


def _exit_code(error):
    """Returns the exit code for an error, or `None` for a bug of the package."""
    # Modules that are not imported have raised no error. An import would take seconds.
    names = {x.__name__ for x in type(error).__mro__}
    if names & {"FloatingPointError", "EnvironmentFault", "LearnerLost"}:
        return 1
    is_invalid = isinstance(error, (ValueError, OSError, ImportError))
    return 2 if is_invalid or type(error).__module__ == "gymnasium.error" else None
