"""Runs one command, and turns its errors into messages and exit codes."""

import contextlib
import logging
import os
import shlex
import sys
import warnings

from tf_reinforce.cli import parsers
from tf_reinforce.cli import train
from tf_reinforce.support import interrupts


def main(arguments=None):
    """Runs one command of `tf-reinforce` and returns the exit code.

    Args:
        arguments: List of strings, the command and its options. `arguments` defaults to
            the command-line arguments of the process.

    Returns:
        Exit code: 0 if the command succeeded; 1 if the environment failed, another
        learner process was lost, a number was not finite, or `--require-target` was
        missed; 2 if an argument or a file
        was invalid; 130 after Ctrl-C; 143 after SIGTERM.
    """
    with contextlib.suppress(AttributeError):  # standard output may be any object
        sys.stdout.reconfigure(errors="replace")  # it may not have every character
    arguments = sys.argv[1:] if arguments is None else arguments
    options = parsers.make_parser().parse_args(list(map(_escape_negative, arguments)))
    options.command_line = shlex.join(["tf-reinforce", *arguments])
    try:
        with _plain_messages(), interrupts.kept():
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
        print(f"tf-reinforce: {error}", file=sys.stderr)
        return code


@contextlib.contextmanager
def _plain_messages():
    """Prints warnings, each text once, and the package's log, without places in files."""
    log, handler = logging.getLogger("tf_reinforce"), logging.StreamHandler()
    handler.setFormatter(logging.Formatter("tf-reinforce: %(message)s"))
    previous = warnings.formatwarning, log.propagate
    # Python forgets which warnings it has shown when a library changes the filters.
    shown = set()

    def format_warning(text, *_, **__):
        line = "" if str(text) in shown else f"tf-reinforce: warning: {text}\n"
        shown.add(str(text))
        return line

    warnings.formatwarning = format_warning
    log.propagate = False
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        warnings.formatwarning, log.propagate = previous


def _escape_negative(argument):
    """Returns an argument, with a leading space if the argument is a negative number.

    Without the leading space, argparse would read -1e-3 as an option.
    """
    try:
        float(argument)
    except ValueError:
        return argument
    return f" {argument}" if argument.startswith("-") else argument


def _exit_code(error):
    """Returns the exit code for an error, or `None` for a bug of the package."""
    # Modules that are not imported have raised no error. An import would take seconds.
    results = sys.modules.get("tf_reinforce.engine.collect.results")
    processes = sys.modules.get("tf_reinforce.engine.learner_processes")
    gymnasium = sys.modules.get("gymnasium")
    failed = (FloatingPointError, *([results.EnvironmentFault] if results else ()))
    failed = (*failed, *([processes.LearnerLost] if processes else ()))
    invalid = ValueError, OSError, ImportError
    invalid = (*invalid, *([gymnasium.error.Error] if gymnasium else ()))
    return 1 if isinstance(error, failed) else 2 if isinstance(error, invalid) else None
