"""Overrides single settings of a training by name, for example `agent.gamma=0.9`."""

import copy

from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings
from tf_reinforce.settings import schema
from tf_reinforce.settings import toml_files


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
    if keys[0] not in toml_files.TABLE_KEYS or len(keys) == 1:
        keys = (_table(keys[0], text), *keys)
    names = toml_files.TABLE_KEYS[keys[0]]
    schema.expect_keys(f"The table [{keys[0]}] of {text}", {keys[1]: None}, names)
    return keys, schema.value(value.strip())


def _table(name, text):
    """Returns the only table that has a setting."""
    tables = [table for table, names in toml_files.TABLE_KEYS.items() if name in names]
    if len(tables) == 1:
        return tables[0]
    if tables:
        names = " or ".join(f"{table}.{name}" for table in tables)
        raise ValueError(f"Several tables have it. Expected: {names}. Received: {text}")
    names = {name for keys in toml_files.TABLE_KEYS.values() for name in keys}
    schema.expect_keys(f"--set {text}", {name: None}, names)


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

    >>> settings = {"agent": {"baseline": "value"}, "fit": {"epochs": 5}}
    >>> apply(settings, ("fit", "steps"), 100)["fit"]
    {'steps': 100}
    >>> apply(settings, ("agent", "baseline", "passes"), 4)["agent"]["baseline"]
    {'kind': 'value', 'learning_rate': 0.001, 'passes': 4, 'minibatch_size': 64}
    """
    settings = copy.deepcopy(settings)
    table, *keys, last = path
    node = settings[table]
    for key in keys:
        name = node.get(key)
        if name == "value":
            node[key] = dict(default_settings.VALUE)
        elif key == "head" and isinstance(name, str):
            node[key] = {"kind": name}
        if not isinstance(node.get(key), dict):
            raise ValueError(
                f"`{key}` must be a table of settings, because `{'.'.join(path)}` is one "
                f"of them. Received: {key}={node.get(key)!r}"
            )
        node = node[key]
    if table == "fit":
        others = {name: x for name, x in node.items() if name != last}
        settings[table] = config.merge_options(others, {last: value})
    else:
        node[last] = value
    return settings
