"""Reads preset files."""

import logging
import math
import pathlib
import tomllib
from typing import Any

from tf_reinforce import config
from tf_reinforce import validation

FOLDER = pathlib.Path(__file__).parent


# The tables `agent` and `fit` may contain the arguments of `Reinforce.for_env` and
# `Reinforce`, and of `fit`.
TABLE_KEYS = {
    "agent": {"hidden", "head", "baseline", "learning_rate", *config.AGENT_OPTIONS},
    "fit": {*config.FIT_OPTIONS},
    "evaluation": {"episodes", "every", "deterministic", "target", "max_episode_steps"},
}


# `SAFE_TYPES` are the types of environment arguments that a preset file may contain.
# Strings are not allowed, because the file may come from an untrusted source and a string
# could be the path of any file.
SAFE_TYPES = (bool, int, float)


EMPTY_PRESET: dict = {"env_kwargs": {}, **dict.fromkeys(TABLE_KEYS, {})}


def names() -> list[str]:
    """Returns the sorted names of all presets."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def names_for(env: str) -> list[str]:
    """Returns the names of all presets for an environment id.

    If a preset has the name of the environment, the name of this preset comes first.

    Example:

    >>> names_for("FrozenLake-v1"), names_for("Corridor-v0")
    (['FrozenLake-v1', 'FrozenLake-v1-dry'], [])
    """
    return [name for name in names() if f"{name}-".startswith(f"{env}-")]


def log_preset(env: Any) -> None:
    """Logs how to use the preset for an environment id, if the package has a preset."""
    for name in names_for(env)[:1] if isinstance(env, str) else ():
        logging.getLogger("tf_reinforce").info(
            "There is a preset for %s, which is not used. To use the preset, call "
            "`Reinforce.for_env(%r, preset=%r)`.",
            env,
            env,
            name,
        )


def read(name: str) -> dict[str, Any]:
    """Returns the settings of a preset.

    Args:
        name: One of `names()`, or the path of a preset file that ends in `.toml`.

    Returns:
        Dict with the keys `env`, `env_kwargs`, `agent`, `fit` and `evaluation`. All
        values except `env` are dicts.

    Raises:
        ValueError: If no preset has the name, or the file is not valid TOML or contains
            an invalid key or value.
        FileNotFoundError: If `name` is a path that ends in `.toml`, and the file does not
            exist.

    Example:

    >>> read("CartPole-v1")["env"]
    'CartPole-v1'
    """
    path = pathlib.Path(validation.path("preset", name))
    if path.suffix != ".toml":
        if name not in names():
            raise ValueError(
                f"There is no preset {name!r}. Expected one of: {', '.join(names())}; "
                "or the path of your own preset file, ending in .toml."
            )
        path = FOLDER / f"{name}.toml"
    if not path.exists():
        raise FileNotFoundError(f"There is no preset file {name}. Check `preset`.")
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"The preset {name} is not valid TOML: {error}") from error
    expect_keys(f"The preset {name}", settings, {"env", "env_kwargs", *TABLE_KEYS})
    env_kwargs = settings.get("env_kwargs", {})
    expect_keys(f"`env_kwargs` of the preset {name}", env_kwargs, env_kwargs)
    for table, keys in TABLE_KEYS.items():
        expect_keys(f"[{table}] of the preset {name}", settings.get(table, {}), keys)
    if not isinstance(settings.get("env"), str):
        raise ValueError(
            f'The preset {name} must name its environment: env = "CartPole-v1". '
            f"Received: env={settings.get('env')!r}"
        )
    validate_evaluation(settings.get("evaluation", {}))
    return {**EMPTY_PRESET, **settings}


def validate_evaluation(settings):
    """Raises `ValueError` if a setting of the evaluation is invalid."""
    for key in settings.keys() & {"episodes", "every", "max_episode_steps"}:
        validation.positive_int(key, settings[key])
    if "target" in settings:
        validation.within("target", settings["target"], -math.inf, math.inf)
    if "deterministic" in settings:
        validation.one_of("deterministic", settings["deterministic"], (True, False))


def expect_keys(name, table, keys):
    """Raises `ValueError` if a table is not a dict, or has a key that is not in `keys`.

    Args:
        name: Start of the error message, for example `"The head Beta"`.
        table: Dict from TOML, the table to check.
        keys: Strings, the valid keys.
    """
    if not isinstance(table, dict):
        raise ValueError(f"{name} must be a TOML table of settings. Received: {table!r}")
    for key in table:
        if key not in keys:
            raise ValueError(
                f"{name} has the invalid key {key!r}. Expected one of: "
                f"{', '.join(sorted(keys)) or '(no keys)'}."
            )


def safe_defaults(defaults):
    """Returns the defaults of `fit`, and `env_kwargs` that are bools, ints or floats."""
    fit = {name: x for name, x in defaults.items() if name in TABLE_KEYS["fit"]}
    env_kwargs = defaults.get("env_kwargs") or {}
    safe = {name: x for name, x in env_kwargs.items() if isinstance(x, SAFE_TYPES)}
    return {**fit, "env_kwargs": safe}
