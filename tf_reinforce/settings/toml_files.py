"""Preset files in TOML, and overrides of single settings by name."""

import copy
import logging
import math
import numbers
import pathlib
import tomllib
from typing import Any

import tomli_w

from tf_reinforce.settings import config
from tf_reinforce.settings import schema
from tf_reinforce.support import files
from tf_reinforce.support import validation
from tf_reinforce.support import version

_MAX_BYTES = 2**20  # of a preset file
FOLDER = pathlib.Path(__file__).parent / "presets"
TABLE_KEYS = {name: config.TABLES[name].keys() for name in config.PRESET_TABLES}
# `experiments.search_space` checks `ranges`, the ranges for `tf-reinforce tune`.
PRESET_HINTS = {
    "env": str,
    "result": str,
    **dict.fromkeys(("env_kwargs", "ranges", *TABLE_KEYS), dict),
}
EMPTY_PRESET: dict = {
    name: hint() for name, hint in PRESET_HINTS.items() if name != "env"
}


def names() -> list[str]:
    """Returns the sorted names of all presets."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def names_for(env: str) -> list[str]:
    """Returns the names of all presets for an environment id.

    The one that has the environment's own name, if any, comes first. In `module:Id-v0`,
    only `Id-v0` counts.

    Example:

    >>> names_for("FrozenLake-v1"), names_for("Corridor-v0")
    (['FrozenLake-v1', 'FrozenLake-v1-dry'], [])
    """
    own = own_name(env)
    return [name for name in names() if f"{name}-".startswith(f"{own}-")]


def own_name(env: str) -> str:
    """Returns an environment id without its module, the name of its own preset.

    Example:

    >>> own_name("tf_reinforce.atari:SmallPong-v0")
    'SmallPong-v0'
    """
    return env.rpartition(":")[2]


def read(name: str) -> dict[str, Any]:
    """Returns the settings of a preset.

    Args:
        name: One of `names()`, or the path of a `.toml` file.

    Returns:
        Dict with the keys `env` (string), `result` (string, the return that the preset
        has reached, or empty), and `env_kwargs`, `agent`, `fit`, `evaluation` and
        `ranges` (dicts).

    Raises:
        ValueError: If the preset does not exist, is not valid TOML, or has an invalid key
            or value.
        FileNotFoundError: If the `.toml` file does not exist.

    Example:

    >>> read("CartPole-v1")["env"]
    'CartPole-v1'
    """
    path = pathlib.Path(validation.path("preset", name))
    if path.suffix != ".toml":
        if name not in names():
            raise ValueError(
                f"There is no preset {name!r}.{validation.similar(name, names())} "
                "Expected: a name that `tf-reinforce presets` lists, or the path of a "
                "preset file, ending in .toml."
            )
        path = FOLDER / f"{name}.toml"
    source = f"The preset {name}"
    settings = version.unstamped("preset", source, read_toml(path, "preset"))
    settings = schema.check_table(source, PRESET_HINTS, settings, required=("env",))
    settings = {**EMPTY_PRESET, **settings}
    if path.parent != FOLDER:
        check_env_kwargs(source, settings["env_kwargs"])
    config.check_agent(settings["agent"], f"[agent] of the preset {name}")
    for table in ("fit", "evaluation"):
        where = f"[{table}] of the preset {name}"
        schema.check_table(where, config.TABLES[table], settings[table])
    schema.expect_keys(f"[ranges] of {name}", settings["ranges"], ("agent", "fit"))
    check_limits(f"[fit] of the preset {name}", settings["fit"])
    return settings


def read_toml(path, kind):
    """Reads a TOML file of at most 1 MiB.

    Args:
        path: Path of the file.
        kind: String for errors, for example `"preset"`.

    Raises:
        ValueError: If the file is too large, or not valid TOML.
        FileNotFoundError: If it does not exist.
    """
    path = pathlib.Path(path)
    if not path.exists():
        raise FileNotFoundError(f"There is no {kind} {path}. Check the path.")
    files.expect_regular_file(path, _MAX_BYTES)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The {kind} {path} is not valid TOML: {error}") from error


def write(path, settings, comment):
    """Writes a preset file atomically.

    Args:
        path: Path that ends in `.toml`.
        settings: Dict as `read` returns it. `None`, and environment arguments that no
            file may contain, are left out.
        comment: String, the first line of the file.
    """
    env_kwargs = settings.get("env_kwargs", {})
    content = {**version.stamp(), **settings, "env_kwargs": safe(env_kwargs)}
    with files.atomic_write(path) as temporary:
        text = f"# {comment}\n{tomli_w.dumps(_without_none(content))}"
        pathlib.Path(temporary).write_text(text, encoding="utf-8")


def _without_none(settings):
    if not isinstance(settings, dict):
        return settings
    return {key: _without_none(x) for key, x in settings.items() if x is not None}


def read_for_env(name: str | None, env: Any) -> dict[str, Any]:
    """Returns a preset's settings for an environment; without a preset, no settings.

    In that case, a log message tells how to use the environment's own preset, if it has
    one.

    Raises:
        ValueError: If the preset is invalid, or is for another environment.
    """
    if name is not None:
        preset = read(name)
        expect_same_env(preset, env)
        return preset
    for name in names_for(env)[:1] if isinstance(env, str) else ():
        logging.getLogger("tf_reinforce").info(
            "There is a preset for %s, which is not used. To use the preset, call "
            "`Reinforce.for_env(%r, preset=%r)`.",
            env,
            env,
            name,
        )
    return EMPTY_PRESET


def expect_same_env(preset: dict[str, Any], env: Any) -> None:
    """Raises `ValueError` if a preset is for another environment than `env`.

    A callable or any other environment without a Gymnasium id passes.
    """
    spec = getattr(env, "spec", env)
    name = env if isinstance(env, str) else getattr(spec, "id", None)
    if not isinstance(name, str):
        return
    name, expected = own_name(name), own_name(preset["env"])
    if name not in (expected, expected.rpartition("-v")[0]):
        raise ValueError(
            f"The preset is for another environment. Expected: {preset['env']}. "
            f"Received: env={name!r}. To use its settings, copy it to a file of your own "
            "with another `env`."
        )


def safe_defaults(defaults):
    """Returns the defaults of `fit` to store in an agent file.

    These are the numbers, and the `env_kwargs` that a file may contain. `workers` is left
    out because it depends on the machine.
    """
    limited = config.FIT_LIMITS.keys() - {"workers"}
    fit = {name: x for name, x in defaults.items() if name in limited}
    return {**fit, "env_kwargs": safe(defaults.get("env_kwargs") or {})}


def check_defaults(defaults):
    """Checks the defaults of `fit` in an agent file, and returns them.

    Args:
        defaults: Dict as `safe_defaults` returns it.

    Raises:
        ValueError: If one is invalid.
    """
    source = "`fit_defaults` of an agent file"
    names = config.FIT_LIMITS.keys() - {"workers"}
    hints = {name: config.TABLES["fit"][name] for name in names} | {"env_kwargs": dict}
    schema.check_table(source, hints, defaults, required=("env_kwargs",))
    check_env_kwargs(source, defaults["env_kwargs"])
    check_limits(source, defaults)
    return defaults


def check_limits(source, in_file, remedy="Pass a larger value to `fit`."):
    """Raises `ValueError` if a file's number is too large to use without asking the user.

    Args:
        source: Start of the error message, which names the file.
        in_file: Dict of arguments of `fit`.
        remedy: String, the end of the message. `{}` in it becomes the command-line
            option.
    """
    for name, limit in config.FIT_LIMITS.items():
        value = in_file.get(name)
        if isinstance(value, numbers.Real) and value > limit:
            shown = repr(value)[:100]
            remedy = remedy.format(f"--{name.replace('_', '-')} {shown}")
            raise ValueError(
                f"{source} may contain a `{name}` of at most {limit:,}. Received: "
                f"{name}={shown}. {remedy}"
            )


def merge_env_kwargs(source, in_file, explicit):
    """Merges a file's environment arguments with those of the user, which win.

    Args:
        source: Start of the error message, which names the file.
        in_file: Dict from the file.
        explicit: Dict from the user, or `None`.

    Raises:
        ValueError: If an argument that only the file has is neither a finite number nor a
            bool.
    """
    explicit = explicit or {}
    others = {name: value for name, value in in_file.items() if name not in explicit}
    check_env_kwargs(source, others)
    return {**others, **explicit}


def check_env_kwargs(source, env_kwargs):
    """Raises `ValueError` unless all environment arguments are finite numbers or bools.

    In a stranger's file, text could be the path of any file.
    """
    for name, value in env_kwargs.items():
        if not is_safe(value):
            raise ValueError(
                f"{source} contains the environment argument {name[:100]}="
                f"{repr(value)[:100]}. A file may only contain finite numbers and "
                "booleans as environment arguments. Pass other arguments yourself: "
                "`env_kwargs={…}` in Python, or `--env-arg NAME=VALUE`."
            )


def safe(env_kwargs):
    """Returns the environment arguments that a file may contain."""
    return {name: x for name, x in env_kwargs.items() if is_safe(x)}


def is_safe(value):
    """Returns whether a file may contain this value as an environment argument."""
    return isinstance(value, (bool, int, float)) and -math.inf < value < math.inf


def parse_setting(text):
    """Parses an override `NAME=VALUE`.

    NAME is a setting, with or without its table, and may continue with keys of an inline
    table. VALUE is read as JSON or TOML if possible, else as text.

    Args:
        text: String, for example `"gamma=0.9"` or `"agent.baseline.passes=4"`.

    Returns:
        The path, a tuple of strings from the table to the innermost key, and the value.

    Raises:
        ValueError: If the text has another form, or the name is unknown or ambiguous.

    Example:

    >>> parse_setting("gamma=0.9"), parse_setting("baseline.passes=4")
    ((('agent', 'gamma'), 0.9), (('agent', 'baseline', 'passes'), 4))
    >>> parse_setting("learning_rate={first = 0.01, last = 0}")[1]
    {'first': 0.01, 'last': 0}
    """
    name, equals, value = text.partition("=")
    keys = tuple(name.strip().split("."))
    if not equals or not all(keys):
        raise ValueError(
            "A setting must have the form NAME=VALUE, for example gamma=0.9. Received: "
            f"{text!r}"
        )
    if keys[0] not in TABLE_KEYS or len(keys) == 1:
        tables = [table for table, names in TABLE_KEYS.items() if keys[0] in names]
        if len(tables) > 1:
            expected = " or ".join(f"{table}.{name}" for table in tables)
            raise ValueError(f"Several tables have `{name}`. Expected: {expected}.")
        every = set().union(*TABLE_KEYS.values())
        schema.expect_keys(f"--set {text}", {keys[0]: None}, every)
        keys = (*tables, *keys)
    valid = TABLE_KEYS[keys[0]]
    schema.expect_keys(f"The table [{keys[0]}] of {text}", {keys[1]: None}, valid)
    return keys, schema.value(value.strip())


def override(settings, path, value):
    """Returns a copy of a training's settings with one of them replaced.

    In `fit`, `steps` also replaces `epochs`, and `steps_per_epoch` replaces
    `episodes_per_epoch`, and vice versa.

    Args:
        settings: Dict of the tables `agent`, `fit` and `evaluation`.
        path: Tuple of strings from `parse_setting`.
        value: The new value; `None` unsets it.

    Raises:
        ValueError: If the path continues into a setting that is no table.

    Example:

    >>> settings = {"agent": {"baseline": "value"}, "fit": {"epochs": 5}}
    >>> override(settings, ("fit", "steps"), 100)["fit"]
    {'steps': 100}
    >>> override(settings, ("agent", "baseline", "passes"), 4)["agent"]["baseline"]
    {'kind': 'value', 'learning_rate': 0.001, 'passes': 4, 'minibatch_size': 64}
    """
    settings = copy.deepcopy(settings)
    table, *keys, last = path
    node = settings[table]
    for key in keys:
        name = node.get(key)
        if name == "value":
            node[key] = dict(config.VALUE_NETWORK)
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
