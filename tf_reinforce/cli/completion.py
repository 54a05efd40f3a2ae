"""Runs the command `completion`, which prints a completion script for a shell."""

import functools

SHELLS = ("bash", "zsh", "tcsh")


def add_parser(subparsers, parser):
    """Adds the parser of `tf-reinforce completion`, which describes `parser`."""
    command = subparsers.add_parser(
        "completion",
        help="print a script that completes commands and options in a shell",
        description="Prints a script for a shell. For bash: "
        'eval "$(tf-reinforce completion bash)" in ~/.bashrc.',
    )
    command.set_defaults(command=functools.partial(run, parser))
    command.add_argument("shell", choices=SHELLS)


def run(parser, options):
    """Runs `tf-reinforce completion` and returns the exit code."""
    import shtab

    print(shtab.complete(parser, options.shell))
    return 0
