"""Overrides single settings of a training by name, for example `agent.gamma=0.9`."""

import contextlib
import copy
import json
import tomllib

from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings
from tf_reinforce.settings import toml_files
from tf_reinforce.support import validation


def parse(text):
    """Returns the path and the value of an override `NAME=VALUE`.

    NAME is the name of a setting, with or without its table, and may continue with keys
    of an inline table. VALUE has the form of JSON or TOML; any other value is text.

    Args:
        text: String, for example `"gamma=0.9"` or `"agent.baseline.passes=4"`.

    Returns:
        Tuple of strings, from the table to the innermost key, and the value.

    Raises:
        ValueError: If the text has another form, no table has the setting, or several
            tables have it.

    Example:

    >>> parse("gamma=0.9"), parse("baseline.passes=4")
    ((('agent', 'gamma'), 0.9), (('agent', 'baseline', 'passes'), 4))
    >>> parse("learning_rate={first = 0.01, last = 0}")[1]
    {'first': 0.01, 'last': 0}
    """
    name, equals, value = text.partition("=")
    keys = tuple(name.strip().split("."))
    if not equals or not all(keys):
        raise ValueError(
            "A setting must have the form NAME=VALUE, for example gamma=0.9. Received: "
            f"{text!r}"
        )
    return _with_table(keys, text), _value(value.strip())


def _with_table(keys, text):
    """Returns the path of the setting of an override, which starts with its table."""
    tables = [table for table, names in toml_files.TABLE_KEYS.items() if keys[0] in names]
    if keys[0] in toml_files.TABLE_KEYS and len(keys) > 1:
        name = f"The table [{keys[0]}] of {text}"
        toml_files.expect_keys(name, {keys[1]: None}, toml_files.TABLE_KEYS[keys[0]])
        return keys
    if len(tables) > 1:
        names = " or ".join(f"{table}.{keys[0]}" for table in tables)
        raise ValueError(
            f"Several tables have the setting {keys[0]!r}. Expected: {names}. Received: "
            f"{text}"
        )
    if not tables:
        names = sorted({name for x in toml_files.TABLE_KEYS.values() for name in x})
        raise ValueError(
            f"There is no setting {keys[0]!r}.{validation.similar(keys[0], names)} "
            f"Expected one of: {', '.join(names)}. Received: {text}"
        )
    return tables[0], *keys


def _value(text):
    with contextlib.suppress(ValueError, RecursionError):
        return json.loads(text)
    with contextlib.suppress(ValueError, RecursionError):
        return tomllib.loads(f"value = {text}")["value"]
    return text


def apply(settings, path, value):
    """Returns the settings of a training with one setting replaced.

    In the table `fit`, a setting replaces its alternative: `steps` replaces `epochs`, and
    `steps_per_epoch` replaces `episodes_per_epoch`. The other settings do not change.

    Args:
        settings: Dict of the tables `agent`, `fit` and `evaluation`.
        path: Tuple of strings, the result of `parse`.
        value: The new value. `None` means that the setting is not set.

    Raises:
        ValueError: If the path continues into a setting that is no table.

    Example:

    >>> settings = {"agent": {}, "fit": {"epochs": 5}, "evaluation": {}}
    >>> apply(settings, ("fit", "steps"), 100)["fit"]
    {'steps': 100}
    """
    settings = copy.deepcopy(settings)
    table, *keys, last = path
    node = settings[table]
    for key in keys:
        if isinstance(name := node.get(key), str) and (key == "head" or name == "value"):
            node[key] = default_settings.table(name)
        if not isinstance(node.get(key), dict):
            raise ValueError(
                f"The setting {key!r} must be a table with settings of its own, for "
                f'example {{kind = "value"}}. Received: {key}={node.get(key)!r}, and '
                f"{'.'.join(path)}={value!r}"
            )
        node = node[key]
    if table == "fit":
        others = {name: x for name, x in node.items() if name != last}
        settings[table] = config.merge_options(others, {last: value})
    else:
        node[last] = value
    return settings
