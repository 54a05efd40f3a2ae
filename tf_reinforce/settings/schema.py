"""Checks settings by their type hints, and reads them from text.

A class of settings declares its fields with type hints, defaults and docstrings. Most
hints are basic types or a combination of them, such as `int | None`, a tuple, a
`Literal` or a `TypedDict`. For further restrictions, use `Annotated` with a `Range` or
with a function that checks a name and a value.
"""

import contextlib
import dataclasses
import functools
import inspect
import json
import math
import re
import tomllib
import types
import typing
from collections.abc import Callable

from tf_reinforce.support import validation
from tf_reinforce.support import version

_UNIONS = types.UnionType, typing.Union
_TEXTS: dict[typing.Any, str] = {bool: "True or False", str: "text", type(None): "None"}
_TEXTS |= {dict: "a table", list: "a list of whole numbers", Callable: "a function"}
_TEXTS |= {tuple[str, ...]: "a list of texts"}


@dataclasses.dataclass(frozen=True)
class Range:
    """The numbers that a setting may have."""

    low: float = -math.inf
    high: float = math.inf


Count = typing.Annotated[int, Range(1)]
Fraction = typing.Annotated[float, Range(0, 1)]
NonNegative = typing.Annotated[float, Range(0)]
Finite = typing.Annotated[float, Range()]
Seed = typing.Annotated[int, Range(0, 2**63 - 1)]


class _Misfit(Exception):
    """Raised when a value does not fit a hint."""


@functools.cache
def hints(cls):
    """Maps the settings of a class to their type hints."""
    found = typing.get_type_hints(cls, include_extras=True)
    optional = typing.NotRequired
    return {
        name: typing.get_args(hint)[0] if typing.get_origin(hint) is optional else hint
        for name, hint in found.items()
    }


def help_texts(owner):
    """Reads help texts by name from the docstring of a class or function.

    The texts are read from the sections `Args` and `Attributes`, also from those of base
    classes.
    """
    texts = {}
    for part in reversed(getattr(owner, "__mro__", [owner])):
        text = inspect.cleandoc(part.__doc__ or "")
        sections = re.findall(r"(?ms)^(?:Args|Attributes):\n(.*?)(?=^\S|\Z)", text)
        entry = r"(?ms)^    (\w+): (.*?)(?=^    \w|\Z)"
        for name, words in re.findall(entry, "".join(sections)):
            texts[name] = " ".join(words.split()).rstrip(".")
    return texts


def expected(hint):
    """Describes the values that fit a hint, for messages.

    Example:

    >>> expected(Fraction | None)
    'a finite number in [0, 1] or None'
    """
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        return " or ".join(map(expected, parts))
    if origin is typing.Literal:
        return f"one of {parts}" if len(parts) > 1 else repr(parts[0])
    if origin is tuple:
        return f"a pair ({', '.join(map(expected, parts))})"
    if typing.is_typeddict(hint):
        return f"a table {{{', '.join(hints(hint))}}}"
    if origin is not typing.Annotated or not isinstance(parts[1], Range):
        kind = hint if origin is None else parts[0]
        return _TEXTS.get(kind, getattr(kind, "__name__", str(kind)))
    return validation.number_text(parts[0], parts[1].low, parts[1].high)


def check(name, hint, value):
    """Checks a value by a hint, and converts it.

    Raises:
        ValueError: If it does not fit.

    Example:

    >>> check("gamma", Fraction, 1)
    1.0
    """
    with contextlib.suppress(_Misfit):  # the error below has no other as its context
        return _fit(name, hint, value)
    raise wrong(name, expected(hint), value)


def wrong(name, expected, value):
    """Returns the `ValueError` for a value, of which the message shows the beginning."""
    text = f"`{name}` must be {expected}. Received: {name}={repr(value)[:200]}"
    return ValueError(text)


def _fit(name, hint, value):
    """Converts a value to a hint's type, or raises `_Misfit` (a table: its own error)."""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in _UNIONS:
        for part in parts:
            with contextlib.suppress(_Misfit):
                if is_table(part) == isinstance(value, dict):
                    return _fit(name, part, value)
        raise _Misfit
    if origin is typing.Annotated and not isinstance(parts[1], Range):
        return parts[1](name, value)
    if typing.is_typeddict(hint):
        required = sorted(hint.__required_keys__)
        return check_table(f"`{name}`", hints(hint), value, f"{name}.", required)
    if origin is tuple:
        if not isinstance(value, (list, tuple)) or len(value) != len(parts):
            raise _Misfit
        return tuple(_fit(name, *pair) for pair in zip(parts, value, strict=True))
    try:
        if hint is bool:
            return validation.boolean("", value)
        if origin is typing.Annotated:
            kind, limits = parts
            return validation.number("", value, kind, limits.low, limits.high)
    except ValueError:
        raise _Misfit from None
    if origin is typing.Literal:
        fits = any(isinstance(value, type(x)) and value == x for x in parts)
    else:
        fits = isinstance(value, hint)
    if not fits:
        raise _Misfit
    return value


def is_table(hint):
    """Returns whether a hint's values are dicts."""
    return typing.is_typeddict(hint) or dict in (hint, *typing.get_args(hint)[:1])


def check_fields(options):
    """Checks and converts all fields of a frozen dataclass in place."""
    for name, hint in hints(type(options)).items():
        object.__setattr__(options, name, check(name, hint, getattr(options, name)))


def check_table(source, hints, table, prefix="", required=()):
    """Checks a dict of settings by their hints, and returns it converted.

    Args:
        source: Start of error messages about keys, for example `"The preset Taxi-v4"`.
        hints: Dict from setting names to hints.
        table: Dict, for example from a file.
        prefix: String before the setting names in messages.
        required: Keys that must exist.

    Raises:
        ValueError: If a key is unknown or missing, or a value does not fit.
    """
    expect_keys(source, table, hints)
    for key in required:
        if key not in table:
            raise ValueError(
                f"{source} must contain `{key}`. Received: {repr(table)[:200]}"
            )
    return {key: check(prefix + key, hints[key], x) for key, x in table.items()}


def expect_keys(name, table, keys):
    """Raises `ValueError` if a table is no dict or has an unknown key.

    Args:
        name: Start of the error message, for example `"The head Beta"`.
        table: Dict from TOML or JSON.
        keys: Strings, the valid keys.
    """
    if not isinstance(table, dict):
        raise ValueError(f"{name} must be a table of settings. Received: {table!r}")
    for key in table:
        if key not in keys:
            raise ValueError(
                f"{name} has the invalid key {key!r}.{validation.similar(key, keys)} "
                f"Expected one of: {', '.join(sorted(keys)) or '(no keys)'}, in "
                f"tf_reinforce {version.VERSION}."
            )


def kinds(hint):
    """Returns the types of the numbers that a hint allows, `int` or `float`."""
    parts = typing.get_args(hint)
    if parts[1:] and isinstance(parts[1], Range):
        return [parts[0]]
    return [kind for part in parts for kind in kinds(part)]


def value(text):
    """Reads text as JSON or TOML if possible, else returns it unchanged."""
    for read in (json.loads, lambda text: tomllib.loads(f"value = {text}")["value"]):
        with contextlib.suppress(ValueError, RecursionError):
            return read(text)
    return text


def read(name, hint, text):
    """Reads a command-line value, for example 1e5 for a count."""
    result = text if hint is str else value(text)
    if kinds(hint) == [int] and isinstance(result, float) and result.is_integer():
        result = int(result)
    return check(name, hint, result)
