"""Reads preset files."""

import math
import pathlib
import tomllib

from tf_reinforce import config
from tf_reinforce import validation

FOLDER = pathlib.Path(__file__).parent


# The keywords of `Reinforce.for_env` and `Reinforce`, and of `fit`.
TABLES = {
    "agent": {"hidden", "head", "baseline", "learning_rate", *config.AGENT},
    "fit": {*config.FIT},
    "evaluation": {"episodes", "every", "deterministic", "target", "max_episode_steps"},
}


# What an environment's constructor may be given from a file, which could be a
# stranger's: a text may be the path of anything.
SAFE_TYPES = (bool, int, float)


EMPTY: dict = {"env_kwargs": {}, **dict.fromkeys(TABLES, {})}


def names():
    """The presets there are, sorted."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def read(name):
    """The settings in a preset.

    Args:
        name: One of `names()`, or the path of a file of your own, ending in `.toml`.

    Returns:
        Dict: `env`, `env_kwargs`, and the tables `agent`, `fit` and `evaluation`, each
        a dict.

    Raises:
        ValueError: when there is no such preset, or it is not well-formed, or it holds
            a key that means nothing; with the key and the ones known there.
        FileNotFoundError: when there is no such file.

    Example:

    >>> read("CartPole-v1")["env"]
    'CartPole-v1'
    """
    path = pathlib.Path(name)
    if path.suffix != ".toml":
        if name not in names():
            raise ValueError(
                f"There is no preset {name!r}. There are: {', '.join(names())}. A file "
                "of your own ends in .toml."
            )
        path = FOLDER / f"{name}.toml"
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ValueError(f"The preset {name} is no TOML: {error}") from error
    expect_keys(f"The preset {name}", found, {"env", "env_kwargs", *TABLES})
    env_kwargs = found.get("env_kwargs", {})
    expect_keys(f"`env_kwargs` of the preset {name}", env_kwargs, env_kwargs)
    for table, known in TABLES.items():
        expect_keys(f"[{table}] of the preset {name}", found.get(table, {}), known)
    if not isinstance(found.get("env"), str):
        raise ValueError(
            f'The preset {name} must name its environment: env = "CartPole-v1". '
            f"Received: env={found.get('env')!r}"
        )
    judging = found.get("evaluation", {})
    for key in judging.keys() & {"episodes", "every", "max_episode_steps"}:
        validation.positive_int(key, judging[key])
    if "target" in judging:
        validation.within("target", judging["target"], -math.inf, math.inf)
    if "deterministic" in judging:
        validation.one_of("deterministic", judging["deterministic"], (True, False))
    return {**EMPTY, **found}


def expect_keys(where, found, known):
    if not isinstance(found, dict):
        raise ValueError(f"{where} must be a table of settings. Received: {found!r}")
    for key in found:
        if key not in known:
            raise ValueError(
                f"{where} holds {key!r}, which means nothing there. "
                f"Known: {', '.join(sorted(known))}."
            )


def safe_defaults(defaults):
    """What of an agent's defaults may come from a file; see `SAFE_TYPES`."""
    kept = {name: x for name, x in defaults.items() if name in TABLES["fit"]}
    env_kwargs = defaults.get("env_kwargs") or {}
    plain = {name: x for name, x in env_kwargs.items() if isinstance(x, SAFE_TYPES)}
    return {**kept, "env_kwargs": plain}
