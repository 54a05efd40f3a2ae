"""Checks arguments of public functions, and warns at the line that called them."""

import difflib
import itertools
import math
import numbers
import os
import pathlib
import re
import site
import sys
import sysconfig
import warnings

MAX_SIZE = 2**24  # of one axis, for example the number of actions
MAX_LAYERS, MAX_WEIGHTS = 256, 2**26  # of a default network: 256 MiB in float32
MAX_REPEATS = 10**4  # in files, of the passes, and of the updates in one call

# Folders of the package, of installed packages and of Python's own modules.
LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in {
        str(pathlib.Path(__file__).parents[1]),
        *site.getsitepackages(),
        site.getusersitepackages(),
        *(sysconfig.get_path(name) for name in ("purelib", "platlib", "stdlib")),
    }
)


def warn(text, category=UserWarning):
    """Warns at the innermost line outside of libraries.

    A line of Keras or of this package would tell the user nothing.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and frame.f_code.co_filename.startswith(LIBRARIES):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, category, stacklevel=level)


def _error(name, expected, value, kind=ValueError):
    """Returns the error for an argument that is not as expected."""
    text = f"`{name}` must be {expected}. Received: {name}={value!r}"
    return kind(f"{text} of type {type(value).__name__}" if kind is TypeError else text)


def number(name, value, kind, low=-math.inf, high=math.inf):
    """Returns `value` as a `kind`, or raises `ValueError` unless it is in [low, high].

    Args:
        name: String, the name of the argument in messages.
        value: Python or NumPy number; never a bool.
        kind: `int`, or `float` for finite numbers.
        low, high: Numbers.

    Example:

    >>> number("gamma", 1, float, 0, 1)
    1.0
    """
    is_number = isinstance(value, numbers.Integral if kind is int else numbers.Real)
    is_number = is_number and not _is_boolean(value)
    value = value.item() if is_number and hasattr(value, "item") else value  # of NumPy
    # `math.isfinite` fails for the int 10**400.
    limit = math.inf if kind is int else sys.float_info.max
    if not is_number or not max(low, -limit) <= value <= min(high, limit):
        raise _error(name, number_text(kind, low, high), value)
    return kind(value)


def number_text(kind, low, high):
    """Describes the numbers that `number` accepts."""
    text = "a whole number" if kind is int else "a finite number"
    if high < math.inf:
        return f"{text} in [{low}, {high}]"
    return f"{text} of at least {low}" if low > -math.inf else text


def whole_number(name, value, low=-math.inf, high=math.inf):
    """Returns `value` as an int, or raises `ValueError` unless it is in [low, high]."""
    return number(name, value, int, low, high)


def within(name, value, low, high):
    """Returns `value` as a float, or raises `ValueError` unless it is in [low, high]."""
    return number(name, value, float, low, high)


def positive_int(name, value):
    """Returns `value` as an int, or raises `ValueError` unless it is a positive int."""
    return whole_number(name, value, 1)


def positive_int_or_none(name, value):
    """Like `positive_int`, but also accepts `None`."""
    return None if value is None else positive_int(name, value)


def size(name, value):
    """Returns `value` as an int, or raises `ValueError` unless it is in [1, `MAX_SIZE`].

    The limit catches typing errors that would use up all memory.
    """
    return whole_number(name, value, 1, MAX_SIZE)


def boolean(name, value):
    """Returns `value` as a bool, or raises `ValueError` unless it is True or False.

    Python's `bool("false")` is True; here the string is an error.
    """
    if not _is_boolean(value):
        raise _error(name, "True or False", value)
    return bool(value)


def _is_boolean(value):
    return type(value).__name__ == "bool"  # also that of NumPy, without its import


def check_seed(seed):
    """Returns a seed as a Python int, or raises an error if it is invalid.

    Args:
        seed: Python or NumPy integer, zero or larger. Although `bool` is a subclass of
            `int`, a bool is refused.

    Raises:
        TypeError: If it is not an integer.
        ValueError: If it is negative or needs more than 63 bits.

    Example:

    >>> import numpy as np
    >>> check_seed(np.int32(7))
    7
    """
    if _is_boolean(seed) or not isinstance(seed, numbers.Integral):
        raise _error("seed", "a whole number", seed, TypeError)
    if not 0 <= seed < 2**63:
        raise _error("seed", "in [0, 2**63)", seed)
    return int(seed)


def positive_ints(name, values):
    """Returns a list or tuple of positive ints as a list, or raises `ValueError`."""
    if not isinstance(values, (list, tuple)):
        raise _error(name, "a list of whole numbers", values)
    return [positive_int(name, value) for value in values]


def layer_sizes(name, values, inputs=1, outputs=1):
    """Returns the sizes of hidden layers as a list of ints.

    Raises:
        ValueError: If a size is no positive int, or there are more than `MAX_LAYERS`
            layers, or more than `MAX_WEIGHTS` weights with this many `inputs` and
            `outputs`.
    """
    sizes = positive_ints(name, values)
    pairs = itertools.pairwise((inputs, *sizes, outputs))
    weights = sum((before + 1) * after for before, after in pairs)
    if weights > MAX_WEIGHTS or len(sizes) > MAX_LAYERS:
        raise ValueError(
            f"`{name}` may describe {MAX_LAYERS} layers and {MAX_WEIGHTS:,} weights. "
            f"Received: {name}={repr(values)[:100]}, which needs {weights:,}. For larger "
            "policies, pass a Keras model to tfr.Reinforce."
        )
    return sizes


def finite_numbers(name, values):
    """Returns a list or tuple of one or more finite numbers, or raises `ValueError`."""
    if not isinstance(values, (list, tuple)) or not values:
        raise _error(name, "a list of one or more numbers", values)
    return [within(name, value, -math.inf, math.inf) for value in values]


def one_of(name, value, allowed):
    """Returns `value`, or raises `ValueError` if it is not allowed."""
    if value not in allowed:
        raise _error(name, f"one of {allowed}", value)
    return value


def instance(name, value, kind):
    """Returns `value`, or raises `TypeError` unless it is an instance of `kind`."""
    if not isinstance(value, kind):
        expected = f"a {kind.__module__.split('.')[0]}.{kind.__name__}"
        raise _error(name, expected, value, TypeError)
    return value


def path(name, value):
    """Returns a path as a string, or raises `TypeError`."""
    if not isinstance(value, (str, os.PathLike)):
        raise _error(name, "a path: a string or a pathlib.Path", value, TypeError)
    return os.fspath(value)


def stream(name, value):
    """Returns `value`, or raises `TypeError` unless it is a text stream or `None`."""
    if value is not None and not hasattr(value, "write"):
        raise _error(name, "a text stream or None", value, TypeError)
    return value


def similar(name, names):
    """Returns " Did you mean 'x'?" for the most similar name, or `""` if none is similar.

    Example:

    >>> similar("gae_lamda", ["gamma", "gae_lambda"]), similar("x", ["gamma"])
    (" Did you mean 'gae_lambda'?", '')
    """
    found = difflib.get_close_matches(name, names, 1)
    return f" Did you mean {found[0]!r}?" if found else ""


def printable(text):
    """Replaces control characters, which could change what a terminal shows."""
    return "".join(x if x.isprintable() or x == "\n" else "?" for x in text)


def one_line(error):
    """Returns the text of an error without colors, line breaks and Keras' arguments."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error)).partition("Arguments received by")[0]
    return " ".join(text.split())
