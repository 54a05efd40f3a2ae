"""Writes settings as the text of a preset file."""

import json
import math
import pathlib
import re

from tf_reinforce import files
from tf_reinforce.presets import toml_files

_TEXTS = "env", "result"  # the keys of a preset that are no tables
_BARE_KEY = re.compile(r"[A-Za-z0-9_-]+")


def write(path, settings, comments=()):
    """Writes a preset file atomically.

    Args:
        path: Path of the file, which ends in `.toml`.
        settings: Dict as `toml_files.read` returns it. Environment arguments that no file
            may contain, and settings that are `None`, are left out.
        comments: Strings, the comment lines at the start of the file.

    Raises:
        TypeError: If TOML has no value for a setting.
    """
    content = text(settings, comments)
    with files.atomic_write(path) as temporary:
        pathlib.Path(temporary).write_text(content, encoding="utf-8")


def text(settings, comments=()):
    """Returns the text of a preset file; see `write`.

    Example:

    >>> print(text({"env": "CartPole-v1", "agent": {"hidden": [64], "gamma": 0.99}}))
    env = "CartPole-v1"
    <BLANKLINE>
    [agent]
    hidden = [64]
    gamma = 0.99
    <BLANKLINE>
    """
    lines = [f"# {line}" for line in comments]
    lines += [f"{key} = {_value(settings[key])}" for key in _TEXTS if settings.get(key)]
    env_kwargs = settings.get("env_kwargs", {})
    safe = {name: x for name, x in env_kwargs.items() if toml_files.is_safe(x)}
    tables = {name: settings.get(name, {}) for name in toml_files.TABLE_KEYS}
    for name, table in {"env_kwargs": safe, **tables}.items():
        pairs = _pairs(table)
        lines += ["", f"[{name}]", *pairs] if pairs else []
    return "\n".join(lines) + "\n"


def _pairs(table):
    pairs = table.items()
    return [f"{_key(key)} = {_value(x)}" for key, x in pairs if x is not None]


def _key(key):
    return key if _BARE_KEY.fullmatch(key) else _string(key)


def _value(value):
    """Returns the TOML text of a string, a bool, a finite number, a list or a dict."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        return _string(value)
    if isinstance(value, (int, float)) and math.isfinite(value):
        return repr(value)
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_value, value))}]"
    if isinstance(value, dict):
        return f"{{{', '.join(_pairs(value))}}}"
    raise TypeError(
        "A setting of a preset must be a text, a bool, a finite number, a list or a "
        f"table. Received: {value!r}"
    )


def _string(value):
    # JSON and TOML escape the same characters, except that TOML also escapes DEL.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
