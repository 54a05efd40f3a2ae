"""Reads and writes preset files."""

import logging
import math
import pathlib
import tomllib
from typing import Any

import tomli_w

from tf_reinforce.settings import config
from tf_reinforce.support import files
from tf_reinforce.support import validation
from tf_reinforce.support import version

_MAX_BYTES = 2**20  # of a preset file
FOLDER = pathlib.Path(__file__).parent / "presets"


# The tables `agent` and `fit` may contain the arguments of `Reinforce.for_env` and
# `Reinforce`, and of `fit`.
TABLE_KEYS = {
    "agent": {"head", *config.FOR_ENV_DEFAULTS, *config.AGENT_OPTIONS},
    "fit": {*config.FIT_OPTIONS},
    "evaluation": {"episodes", "every", "deterministic", "target", "max_episode_steps"},
}


# The largest values of the arguments of `fit` that a preset, an agent file or the file
# `config.json` of a run directory may contain.
FIT_LIMITS = {
    "epochs": 10**7,
    "steps": 10**12,
    "episodes_per_epoch": 10**6,
    "steps_per_epoch": 10**9,
    "num_envs": 1024,
    "workers": 64,
    "max_episode_steps": 10**9,
}


# `SAFE_TYPES` are the types of environment arguments that a preset file may contain.
# Strings are not allowed, because the file may come from an untrusted source and a string
# could be the path of any file.
SAFE_TYPES = (bool, int, float)


# `experiments.search_space` checks `ranges`, the ranges for `tf-reinforce tune`.
EMPTY_PRESET: dict = {
    "env_kwargs": {},
    "result": "",
    "ranges": {},
    **dict.fromkeys(TABLE_KEYS, {}),
}
PRESET_KEYS = {"env", *EMPTY_PRESET}


def names() -> list[str]:
    """Returns the sorted names of all presets."""
    return sorted(path.stem for path in FOLDER.glob("*.toml"))


def names_for(env: str) -> list[str]:
    """Returns the names of all presets for an environment id.

    If a preset has the name of the environment, the name of this preset comes first. The
    module of an id `module:Id-v0` does not belong to the name of the environment.

    Example:

    >>> names_for("FrozenLake-v1"), names_for("Corridor-v0")
    (['FrozenLake-v1', 'FrozenLake-v1-dry'], [])
    """
    own = own_name(env)
    return [name for name in names() if f"{name}-".startswith(f"{own}-")]


def own_name(env: str) -> str:
    """Returns the name of the preset that has the name of an environment id.

    Example:

    >>> own_name("tf_reinforce.atari:SmallPong-v0")
    'SmallPong-v0'
    """
    return env.rpartition(":")[2]


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
        Dict with the keys `env` (string), `result` (string, the return that a training
        with the preset has reached, or an empty string), and `env_kwargs`, `agent`,
        `fit`, `evaluation` and `ranges` (dicts).

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
                f"There is no preset {name!r}.{validation.similar(name, names())} "
                "Expected: a name that `tfr.presets.names()` or the command "
                "`tf-reinforce presets` lists, or the path of your own preset file, "
                "ending in .toml."
            )
        path = FOLDER / f"{name}.toml"
    settings = read_toml(path, "preset")
    expect_keys(f"The preset {name}", settings, PRESET_KEYS)
    validation.instance(f"result of the preset {name}", settings.get("result", ""), str)
    env_kwargs = settings.get("env_kwargs", {})
    expect_keys(f"`env_kwargs` of the preset {name}", env_kwargs, env_kwargs)
    if path.parent != FOLDER:
        check_env_kwargs(f"The preset {name}", env_kwargs)
    for table, keys in TABLE_KEYS.items():
        expect_keys(f"[{table}] of the preset {name}", settings.get(table, {}), keys)
    ranges = settings.get("ranges", {})
    expect_keys(f"[ranges] of the preset {name}", ranges, ("agent", "fit"))
    for option, value in settings.get("fit", {}).items():
        _check_fit_option(f"[fit] of the preset {name}", option, value)
    if not isinstance(settings.get("env"), str):
        raise ValueError(
            f'The preset {name} must name its environment: env = "CartPole-v1". '
            f"Received: env={settings.get('env')!r}"
        )
    validate_evaluation(settings.get("evaluation", {}))
    return {**EMPTY_PRESET, **settings}


def read_toml(path, kind):
    """Returns the content of a TOML file of settings as a dict.

    Args:
        path: Path of the file.
        kind: String that names the kind of the file in errors, for example `"preset"`.

    Raises:
        ValueError: If the file is not valid TOML, or has more than 1 MiB.
        FileNotFoundError: If the file does not exist.
    """
    path = pathlib.Path(path)
    name = path.stem if path.parent == FOLDER else path
    if not path.exists():
        raise FileNotFoundError(f"There is no {kind} {name}. Check the path.")
    files.expect_regular_file(path)
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(
            f"The {kind} {name} has more than {_MAX_BYTES:,} bytes. Expected: a TOML "
            "file of settings."
        )
    try:
        return tomllib.loads(path.read_text(encoding="utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"The {kind} {name} is not valid TOML: {error}") from error


def write(path, settings, comment):
    """Writes a preset file atomically.

    Args:
        path: Path of the file, which ends in `.toml`.
        settings: Dict as `read` returns it. Environment arguments that no file may
            contain, and settings that are `None`, are left out.
        comment: String, the first line of the file.
    """
    env_kwargs = settings.get("env_kwargs", {})
    safe = {name: x for name, x in env_kwargs.items() if is_safe(x)}
    content = _without_none({**settings, "env_kwargs": safe})
    with files.atomic_write(path) as temporary:
        text = f"# {comment}\n{tomli_w.dumps(content)}"
        pathlib.Path(temporary).write_text(text, encoding="utf-8")


def _without_none(settings):
    if not isinstance(settings, dict):
        return settings
    return {key: _without_none(x) for key, x in settings.items() if x is not None}


def read_for_env(name: str | None, env: Any) -> dict[str, Any]:
    """Returns the settings of a preset for an environment; no settings for `None`.

    Raises:
        ValueError: If the preset is invalid, or is for another environment.
    """
    if name is None:
        log_preset(env)
        return EMPTY_PRESET
    preset = read(name)
    expect_same_env(preset, env)
    return preset


def expect_same_env(preset: dict[str, Any], env: Any) -> None:
    """Raises `ValueError` if a preset is for another environment than `env`.

    An environment without a Gymnasium id, for example a callable, is not compared.
    """
    spec = getattr(env, "spec", env)
    name = env if isinstance(env, str) else getattr(spec, "id", None)
    if not isinstance(name, str):
        return
    name, expected = own_name(name), own_name(preset["env"])
    if name not in (expected, expected.rpartition("-v")[0]):
        raise ValueError(
            f"The preset is for another environment. Expected: {preset['env']}. "
            f"Received: env={name!r}. To use the settings of the preset, copy the preset "
            "to a file of your own with another `env`, or pass the settings as arguments."
        )


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
                f"{', '.join(sorted(keys)) or '(no keys)'}, in tf_reinforce "
                f"{version.VERSION}."
            )


def safe_defaults(defaults):
    """Returns the defaults of `fit` that an agent file contains.

    An agent file contains `env_kwargs` that are bools, ints or finite floats. An agent
    file does not contain `workers`, because the number of processes depends on the
    machine.
    """
    names = FIT_LIMITS.keys() - {"workers"}
    fit = {name: x for name, x in defaults.items() if name in names}
    env_kwargs = defaults.get("env_kwargs") or {}
    safe = {name: x for name, x in env_kwargs.items() if is_safe(x)}
    return {**fit, "env_kwargs": safe}


def check_defaults(defaults):
    """Returns the defaults of `fit` from an agent file, or raises `ValueError`.

    Args:
        defaults: Dict as `safe_defaults` returns it.
    """
    if not isinstance(defaults, dict) or "env_kwargs" not in defaults:
        raise ValueError(
            "`fit_defaults` of an agent file must be a dict with `env_kwargs`. Received: "
            f"{repr(defaults)[:100]}"
        )
    for name, value in defaults.items():
        if name == "env_kwargs":
            check_env_kwargs("`fit_defaults` of an agent file", value)
        elif name == "workers":
            raise ValueError(
                "`fit_defaults` of an agent file must not contain `workers`, because the "
                "number of processes depends on the machine. Pass `workers` to `fit`. "
                f"Received: workers={repr(value)[:100]}"
            )
        elif name not in FIT_LIMITS:
            raise ValueError(
                "`fit_defaults` of an agent file contains the invalid key "
                f"{name[:100]!r}. Expected one of: {', '.join(FIT_LIMITS)}, env_kwargs."
            )
        else:
            _check_fit_option("`fit_defaults` of an agent file", name, value)
    return defaults


def _check_fit_option(source, name, value, remedy="Pass a larger value to `fit`."):
    if name == "step_timeout":
        return config.check_step_timeout(value)
    if validation.positive_int(name, value) > FIT_LIMITS[name]:
        raise ValueError(
            f"{source} may contain a `{name}` of at most {FIT_LIMITS[name]:,}. Received: "
            f"{name}={repr(value)[:100]}. {remedy}"
        )


def merge_fit_options(source, in_file, explicit):
    """Returns the arguments of `fit` in a file, replaced by those of the user.

    Args:
        source: Start of the error message, which names the file.
        in_file: Dict from the file.
        explicit: Dict of the arguments that the user has passed.

    Raises:
        ValueError: If another argument in the file exceeds its limit in `FIT_LIMITS`.

    Example:

    >>> merge_fit_options("A file", {"epochs": 5, "workers": 100}, {"workers": 100})
    {'epochs': 5, 'workers': 100}
    """
    for name in FIT_LIMITS.keys() - explicit.keys():
        value = in_file.get(name)
        if value is not None:
            option = f"--{name.replace('_', '-')} {repr(value)[:100]}"
            remedy = f"To start the training with this value, pass the option {option}."
            _check_fit_option(source, name, value, remedy)
    return {**in_file, **explicit}


def merge_env_kwargs(source, in_file, explicit):
    """Returns environment arguments of a file, replaced by those of the user.

    Args:
        source: Start of the error message, which names the file.
        in_file: Dict from the file.
        explicit: Dict of the arguments that the user has passed, or `None`.

    Raises:
        ValueError: If another argument in the file is neither a number nor a bool.
    """
    explicit = explicit or {}
    others = {name: value for name, value in in_file.items() if name not in explicit}
    check_env_kwargs(source, others)
    return {**others, **explicit}


def check_env_kwargs(source, env_kwargs):
    """Raises `ValueError` unless environment arguments are finite numbers and booleans.

    Args:
        source: Start of the error message, which names the file.
        env_kwargs: Dict from a file.
    """
    if not isinstance(env_kwargs, dict):
        raise ValueError(
            f"{source} must contain the environment arguments `env_kwargs` as a dict. "
            f"Received: env_kwargs={repr(env_kwargs)[:100]}"
        )
    for name, value in env_kwargs.items():
        if not is_safe(value):
            raise ValueError(
                f"{source} contains the environment argument {name[:100]}="
                f"{repr(value)[:100]}. A file may only contain finite numbers and "
                "booleans as environment arguments. Pass other arguments yourself: "
                "`env_kwargs={…}` in Python, or `--env-arg NAME=VALUE`."
            )


def is_safe(value):
    """Returns whether a file may contain a value as an environment argument."""
    return isinstance(value, SAFE_TYPES) and -math.inf < value < math.inf
