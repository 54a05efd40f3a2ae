"""Converts the texts of arguments to numbers, names and values."""

import argparse
import contextlib
import json
import math

from tf_reinforce.settings import overrides
from tf_reinforce.support import validation


def count(text):
    """Returns the int in the text of an option, for example 100000 or 1e5."""
    try:
        return int(text)
    except ValueError:
        with contextlib.suppress(ValueError):
            if (number := float(text)).is_integer():
                return int(number)
    raise argparse.ArgumentTypeError(
        "must be a whole number, for example 100000 or 1e5, or several with spaces "
        f"between them, for example 64 64. Received: {text!r}"
        if "," in text
        else f"must be a whole number, for example 100000 or 1e5. Received: {text!r}"
    )


def interval(text):
    """Returns `("every_updates", 10)` for "10", and `("every_seconds", 30.0)` for "30s".

    The value is the argument of `Checkpoints` that the option `--checkpoint-every` sets.
    """
    with contextlib.suppress(ValueError):
        if text.endswith("s"):
            return "every_seconds", validation.within("", float(text[:-1]), 0, math.inf)
        return "every_updates", validation.positive_int("", int(text))
    raise argparse.ArgumentTypeError(
        "must be a number of updates, for example 10, or of seconds, for example 60s. "
        f"Received: {text!r}"
    )


def env_argument(text):
    """Returns the name and the value of an environment argument, NAME=VALUE.

    A value in JSON format, for example a number or `true`, is converted, and any other
    value is text.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(
            f"must have the form NAME=VALUE, for example gravity=9.8. Received: {text!r}"
        )
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(value)
    return name, value


def setting(text):
    """Returns the path and the value of a setting, NAME=VALUE."""
    try:
        return overrides.parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None
