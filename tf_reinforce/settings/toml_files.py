"""Preset files in TOML, and what a file may say about environments."""

import copy
import math
import pathlib
import tomllib
from collections.abc import Mapping
from typing import Any

import tomli_w

from tf_reinforce.settings import config
from tf_reinforce.settings import schema
from tf_reinforce.support import files
from tf_reinforce.support import validation
from tf_reinforce.support import version

_MAX_BYTES = 2**20  # of a preset file
FOLDER = pathlib.Path(__file__).parent / "presets"
# `experiments.search_space` checks `ranges`, the ranges for `tf-reinforce tune`.
PRESET_HINTS = {
    "env": str,
    "result": str,
    **dict.fromkeys(("env_kwargs", "ranges", *config.PRESET_TABLES), dict),
}
EMPTY_PRESET: dict = {x: hint() for x, hint in PRESET_HINTS.items() if x != "env"}
# The settings of `fit` in an agent file; `workers` depends on the machine.
_FIT_DEFAULTS = {
    name: hint
    for name, hint in config.TABLES["fit"].items()
    if schema.kinds(hint) == [int] and name != "workers"
}


def names() -> list[str]:
    """Returns the sorted names of all presets."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def own_name(env: str) -> str:
    """Returns an environment id without its module, the name of its own preset.

    Example:

    >>> own_name("tf_reinforce.atari:SmallPong-v0")
    'SmallPong-v0'
    """
    return env.rpartition(":")[2]


def path_of(name):
    """Returns the path of a preset file, given its path or a name of `names`."""
    path = pathlib.Path(validation.path("preset", name))
    if path.suffix == ".toml":
        return path
    if name not in names():
        raise ValueError(
            f"There is no preset {name!r}.{validation.similar(name, names())} Expected: "
            "a name that `tf-reinforce presets` lists, or the path of a .toml file."
        )
    return FOLDER / f"{name}.toml"


def read(name: str, own_agent: bool = False, env: str | None = None) -> dict[str, Any]:
    """Returns the settings of a preset.

    Args:
        name: One of `names()`, or the path of a `.toml` file.
        env: Environment id for a file that names none.
        own_agent: Bool, whether a function of the user makes the agent. A file's table
            `agent` then contains its keyword arguments, and a named preset has none.

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
    path, source = path_of(name), f"The preset {name}"
    settings = version.unstamped("preset", source, read_toml(path))
    settings = {**EMPTY_PRESET, **({} if env is None else {"env": env}), **settings}
    settings = schema.check_table(source, PRESET_HINTS, settings, required=("env",))
    if path.parent != FOLDER:
        check_env_kwargs(source, settings["env_kwargs"])
    elif own_agent:
        settings |= {"agent": {}, "ranges": {}}
    config.check_tables(settings, f" of the preset {name}", own_agent)
    schema.expect_keys(f"[ranges] of {name}", settings["ranges"], ("agent", "fit"))
    return settings


def read_toml(path):
    """Reads a preset file of at most 1 MiB.

    Args:
        path: `pathlib.Path` of the file.

    Raises:
        ValueError: If the file is too large, or not valid TOML.
        FileNotFoundError: If it does not exist.
    """
    files.expect_regular_file(path, _MAX_BYTES, "preset file")
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The preset {path} is not valid TOML: {error}") from error


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
    return {key: _without_none(x) for key, x in settings.items() if x not in (None, {})}


def suits(name: str, env_kwargs: Any) -> bool:
    """Returns whether a preset has all of these arguments of its environment."""
    own = read(name)["env_kwargs"]
    return all(x in own and own[x] == value for x, value in env_kwargs.items())


def read_for_env(
    name: str | None,
    env: Any,
    own_agent: bool = False,
    env_kwargs: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Returns a preset's settings for an environment; without a preset, no settings.

    A preset is meant for the environment that it names. An environment without a
    Gymnasium id, for example a callable, may be used with any preset. `"auto"` stands for
    the preset of the environment, if there is one for its arguments `env_kwargs`.

    Raises:
        ValueError: If the preset is invalid, or is for another environment.
    """
    id = env if isinstance(env, str) else getattr(getattr(env, "spec", env), "id", None)
    if name == "auto":
        name = own_name(id) if isinstance(id, str) and own_name(id) in names() else None
        name = name if name is None or suits(name, env_kwargs or {}) else None
    if name is None:
        return EMPTY_PRESET
    preset = read(name, own_agent, id if isinstance(id, str) else None)
    own = own_name(preset["env"])
    if isinstance(id, str) and own_name(id) not in (own, own.rpartition("-v")[0]):
        raise ValueError(
            f"The preset is for another environment. Expected: {preset['env']}. "
            f"Received: env={id!r}. To use its settings, copy it to a file of your own "
            "with another `env`."
        )
    return preset


def safe_defaults(defaults):
    """Returns the defaults of `fit` to store in an agent file.

    Only whole numbers are stored, and those `env_kwargs` that a file may contain.
    """
    fit = {name: x for name, x in defaults.items() if name in _FIT_DEFAULTS}
    return {**fit, "env_kwargs": safe(defaults.get("env_kwargs") or {})}


def check_defaults(defaults):
    """Checks the defaults of `fit` in an agent file, and returns them.

    Args:
        defaults: Dict as `safe_defaults` returns it.

    Raises:
        ValueError: If one is invalid.
    """
    source = "`fit_defaults` of an agent file"
    hints = {**_FIT_DEFAULTS, "env_kwargs": dict}
    schema.check_table(source, hints, defaults, required=("env_kwargs",))
    check_env_kwargs(source, defaults["env_kwargs"])
    return defaults


def merge_env_kwargs(source, in_file, explicit, kind="environment", option="env"):
    """Merges a file's arguments for a constructor with those of the user, which win.

    Args:
        source: Start of the error message, which names the file.
        in_file: Dict from the file.
        explicit: Dict from the user.

    Raises:
        ValueError: If an argument that only the file has is neither a finite number nor a
            bool.
    """
    others = {name: value for name, value in in_file.items() if name not in explicit}
    check_env_kwargs(source, others, kind, option)
    return {**others, **explicit}


def check_env_kwargs(source, env_kwargs, kind="environment", option="env"):
    """Raises `ValueError` unless all arguments are finite numbers or bools.

    In a stranger's file, text could be the path of any file. Lists of numbers are allowed
    for agents.
    """
    for name, value in env_kwargs.items():
        is_list = kind == "agent" and isinstance(value, list)
        if not all(map(is_safe, value if is_list else [value])):
            python = " `env_kwargs={…}` in Python, or" if option == "env" else ""
            raise ValueError(
                f"{source} contains the {kind} argument {name[:100]}="
                f"{repr(value)[:100]}. A file may only contain finite numbers and "
                f"booleans as {kind} arguments. Pass other arguments yourself:{python} "
                f"`--{option}-arg NAME=VALUE`."
            )


def safe(env_kwargs):
    """Returns the environment arguments that a file may contain."""
    return {name: x for name, x in env_kwargs.items() if is_safe(x)}


def is_safe(value):
    """Returns whether a file may contain this value as an argument of a constructor."""
    return isinstance(value, (bool, int, float)) and -math.inf < value < math.inf


def parse_setting(text):
    """Parses an override `NAME=VALUE`.

    NAME is the name of a setting, such as `gamma`, and may begin with its table, as in
    `agent.gamma`. If the setting is a table itself, NAME can continue with one of its
    keys, as in `baseline.passes`. VALUE may be written in JSON or TOML, and anything else
    is taken as text.

    Returns:
        The path, a tuple of strings from the table to the innermost key, and the value.

    Raises:
        ValueError: If the text has another form, or names no setting, or one of several
            tables.

    Example:

    >>> parse_setting("gamma=0.9"), parse_setting("agent.baseline.passes=4")
    ((('agent', 'gamma'), 0.9), (('agent', 'baseline', 'passes'), 4))
    """
    name, equals, value = text.partition("=")
    table, *keys = name.strip().split(".")
    if table not in config.PRESET_TABLES:
        tables = [x for x in config.PRESET_TABLES if table in config.TABLES[x]]
        table, keys = tables[0] if len(tables) == 1 else "", [table, *keys]
    if not equals or not keys or keys[0] not in config.TABLES.get(table, ()):
        raise ValueError(
            "A setting must have the form NAME=VALUE with a name of docs/options.md, for "
            "example gamma=0.9 or fit.max_episode_steps=100. Received: "
            f"{text!r}{validation.similar(name, config.TABLES['agent'])}"
        )
    return (table, *keys), schema.value(value)


def override(settings, path, value):
    """Returns a copy of a training's settings with one of them replaced.

    Some settings of `fit` exclude each other, so setting `steps` also removes `epochs`,
    and setting `steps_per_epoch` removes `episodes_per_epoch`. Each pair also works the
    other way round.

    Args:
        settings: Dict of the tables `agent`, `fit` and `evaluation`.
        path: Tuple of strings, from the table to the innermost key.
        value: The new value.

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
            text = f"`{key}` must be a table, because it has the key `{last}`."
            raise ValueError(f"{text} Received: {key}={node.get(key)!r}")
        node = node[key]
    if table == "fit":
        node.pop(last, None)
        settings[table] = config.merge_options(node, {last: value})
    else:
        node[last] = value
    return settings
