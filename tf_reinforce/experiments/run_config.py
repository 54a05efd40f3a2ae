"""Reads and writes the file `config.json` of a run directory."""

import difflib
import json
import math
import numbers
import pathlib
import shlex

from tf_reinforce.settings import agent_settings
from tf_reinforce.settings import config as options
from tf_reinforce.settings import toml_files
from tf_reinforce.support import files
from tf_reinforce.support import validation
from tf_reinforce.support import version

FILE_NAME = "config.json"
_MAX_BYTES = 2**20
_MAX_NAMED = 8  # runs that a message names
_TABLES = ("env_kwargs", "agent", "fit", "evaluation", "checkpoint", "callbacks")
_KEYS = {"env", "engine", "seed", "seeds", "target_return", "preset", *_TABLES}
_KEYS |= {version.CONFIG_KEY}
CHECKPOINT_KEYS = ("every_seconds", "every_updates", "grace_seconds")
# The settings of the callbacks of a run, and the valid values of each.
TENSORBOARD = ("scalars", "histograms")
_CALLBACKS = {
    "diagnose": lambda name, value: validation.boolean(name, value),
    "tensorboard": lambda name, value: validation.one_of(name, value, TENSORBOARD),
    "video": lambda name, value: validation.positive_int(name, value),
}
# Each seed has an environment of its own.
MAX_SEEDS = toml_files.FIT_LIMITS["num_envs"]
# The arguments of `fit` that do not change the result of a training.
MAY_DIFFER = ("num_envs", "workers", "step_timeout")


def agent_file(run):
    """Returns the path `run/agent.keras` if `run` is a folder, else the path `run`."""
    path = pathlib.Path(run)
    return path / "agent.keras" if path.is_dir() else path


def expect_path(path):
    """Raises `FileNotFoundError` if there is no file or folder `path`.

    The message names a similar path, if there is one.
    """
    path = pathlib.Path(path)
    if not path.exists():
        parent = path.parent
        names = [entry.name for entry in parent.iterdir()] if parent.is_dir() else []
        similar = difflib.get_close_matches(path.name, names, 1)
        hint = f" Did you mean {parent / similar[0]}?" if similar else ""
        raise FileNotFoundError(f"There is no file or folder {path}.{hint}")


def expect_file(folder, name):
    """Raises `FileNotFoundError` if a folder contains no file of a run directory.

    The message names the run directories in the folder, if there are some.
    """
    folder = pathlib.Path(folder)
    if (folder / name).exists():
        return
    runs = sorted(str(found.parent) for found in folder.glob(f"*/{name}"))
    if runs:
        more = ", …" if len(runs) > _MAX_NAMED else ""
        raise FileNotFoundError(
            f"{folder} is no run directory. Expected: one of the run directories in it, "
            f"{', '.join(runs[:_MAX_NAMED])}{more}"
        )
    raise FileNotFoundError(
        f"{folder} contains no {name}. Expected: an agent file, or a run directory, "
        "which `tf-reinforce train ENV --run-dir DIR` writes."
    )


def write_json(path, content):
    """Writes a JSON file atomically."""
    with files.atomic_write(path) as temporary:
        pathlib.Path(temporary).write_text(json.dumps(content, indent=2) + "\n")


def write(directory, content):
    """Writes `config.json` of a run, with the version of the package."""
    content = {**content, version.CONFIG_KEY: version.VERSION}
    write_json(pathlib.Path(directory) / FILE_NAME, content)


def read(directory):
    """Returns the content of `config.json` of a run, or an empty dict without the file.

    The file may come from an untrusted source: the function checks the type of every
    table.

    Raises:
        ValueError: If the file is not a JSON object, or a table has the wrong type.
    """
    path = pathlib.Path(directory) / FILE_NAME
    content = read_json(path)
    for name in _TABLES:
        if not isinstance(content.get(name, {}), dict):
            raise ValueError(
                f"`{name}` in {path} must be a JSON object. Received: {content[name]!r}"
            )
    return content


def read_json(path):
    """Returns the JSON object in a file of at most 1 MiB, or `{}` without the file."""
    if not path.exists():
        return {}
    files.expect_regular_file(path, _MAX_BYTES)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON file: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(
            f"{path} must contain a JSON object. Received: {type(content).__name__}"
        )
    return content


def read_env(run, env_kwargs=None):
    """Returns the environment id of a run directory, and its evaluation options.

    The config file of a run may come from an untrusted source. An id of the form
    `module:Id` is not returned, because making the environment would import the module.
    Keyword arguments of the environment's constructor may only be numbers and booleans
    (`toml_files.SAFE_TYPES`), unless the user has passed the same argument.

    Args:
        run: Path of the run directory.
        env_kwargs: Dict of the environment arguments that the user has passed. They
            replace those in the file.

    Returns:
        The environment id, or `None` if no id may be returned; and a dict of keyword
        arguments for `Reinforce.evaluate`.

    Raises:
        ValueError: If a keyword argument in the config file is neither a number nor a
            bool.
    """
    path, config = pathlib.Path(run) / FILE_NAME, read(run)
    env, in_file = config.get("env"), config.get("env_kwargs", {})
    env_kwargs = toml_files.merge_env_kwargs(path, in_file, env_kwargs)
    options = {
        "env_kwargs": env_kwargs,
        "max_episode_steps": config.get("evaluation", {}).get("max_episode_steps"),
    }
    return env if isinstance(env, str) and ":" not in env else None, options


def _check_agent(path, agent):
    """Checks the table `agent`, and writes the settings of a named value baseline."""
    for name in ("hidden", "learning_rate", "baseline"):
        if name not in agent:
            raise ValueError(f"`agent` in {path} must contain `{name}`.")
    if agent["baseline"] == "value":
        # `Reinforce.for_env` would choose other settings than those in the file.
        agent["baseline"] = {"kind": "value"}


def read_training(directory, env_kwargs=None, fit=None, num_seeds=None):
    """Returns the content of `config.json` with all settings of a training, checked.

    The file may come from an untrusted source. It must not start more processes,
    environments, episodes or seeds than `toml_files.FIT_LIMITS` allows, unless the user
    has passed the number.

    Args:
        directory: Path of the run directory.
        env_kwargs: Dict of the environment arguments that the user has passed. They must
            be equal to those in the file. In the file, all other environment arguments
            must be numbers or booleans.
        fit: Dict of the arguments of `fit` that the user has passed. They must be equal
            to those in the file, except the arguments in `MAY_DIFFER`.
        num_seeds: Int, the number of seeds that the user has passed, or `None`.

    Returns:
        Dict with the keys `env`, `engine`, `seed` or `seeds`, `target_return`, `preset`,
        `env_kwargs`, `agent`, `fit`, `evaluation`, `checkpoint` and `callbacks`.

    Raises:
        FileNotFoundError: If the folder contains no `config.json`.
        ValueError, TypeError: If a setting is missing or invalid.
    """
    path = pathlib.Path(directory) / FILE_NAME
    content = read(directory)
    if not content:
        raise FileNotFoundError(
            f"{directory} contains no training to continue: there is no file {path}. "
            "Start a training with `tf-reinforce train ENV --run-dir DIR`."
        )
    version.expect_not_newer(path, content.get(version.CONFIG_KEY))
    toml_files.expect_keys(str(path), content, _KEYS)
    content.setdefault("callbacks", {})
    seed_key = "seeds" if "seeds" in content else "seed"
    for name in ("env", "engine", seed_key, *_TABLES):
        if name not in content:
            raise ValueError(f"{path} must contain `{name}`, and does not contain it.")
    env = content["env"]
    if not isinstance(env, str):
        raise ValueError(f"`env` in {path} must be a string. Received: {env!r}")
    validation.one_of(f"engine in {path}", content["engine"], ("host", "compiled"))
    _check_seeds(path, seed_key, content[seed_key], num_seeds)
    for table, keys in toml_files.TABLE_KEYS.items():
        toml_files.expect_keys(f"`{table}` in {path}", content[table], keys)
    toml_files.validate_evaluation(content["evaluation"])
    toml_files.expect_keys(
        f"`checkpoint` in {path}", content["checkpoint"], CHECKPOINT_KEYS
    )
    for name, value in content["checkpoint"].items():
        if value is not None:
            validation.within(name, value, 0, math.inf)
    check_callbacks(f"`callbacks` in {path}", content["callbacks"])
    preset = content.get("preset")
    if not isinstance(preset, (str, type(None))):
        raise ValueError(f"`preset` in {path} must be a string. Received: {preset!r}")
    if content.get("target_return") is not None:
        validation.within("target_return", content["target_return"], -math.inf, math.inf)
    _check_agent(path, content["agent"])
    content["fit"] = _merge_fit(path, content["fit"], fit or {})
    check_settings(content)
    merged = toml_files.merge_env_kwargs(path, content["env_kwargs"], env_kwargs)
    if merged != content["env_kwargs"]:
        raise ValueError(
            f"The training has other environment arguments. Expected: those in {path}, "
            f"{content['env_kwargs']}. Received: {env_kwargs}"
        )
    return content


def resume_command(directory, config):
    """Returns the command that continues a run, quoted for a shell.

    The command contains the settings that `read_training` takes from the user only: an
    id `module:Id`, environment arguments that are neither finite numbers nor booleans,
    the address of a Ray cluster, and numbers above their limits.

    Args:
        directory: Path of the run directory.
        config: Dict with `env`, `env_kwargs` and `fit`, and optionally `seeds`.

    Example:

    >>> config = {"env": "my_env:Grid-v0", "env_kwargs": {"map": "a b"}, "fit": {}}
    >>> resume_command("runs/1", config)
    "tf-reinforce train my_env:Grid-v0 --resume runs/1 --env-arg 'map=a b'"
    """
    return shlex.join(["tf-reinforce", *resume_words(directory, config)])


def resume_words(directory, config):
    """Returns the arguments of the command `resume_command`, a list of strings."""
    env = [config["env"]] if ":" in config["env"] else []
    words = ["train", *env, "--resume", str(directory)]
    words += env_arg_options(config["env_kwargs"])
    workers = config["fit"].get("workers")
    if isinstance(workers, options.RayWorkers):
        words += ["--ray", workers.address, "--workers", str(workers.num_workers)]
        if (
            cores := workers.num_cpus_per_worker
        ) != options.RayWorkers.num_cpus_per_worker:
            words += ["--num-cpus-per-worker", f"{cores:g}"]
    for name, limit in toml_files.FIT_LIMITS.items():
        value = config["fit"].get(name)
        if isinstance(value, numbers.Real) and value > limit:
            words += [f"--{name.replace('_', '-')}", str(value)]
    if len(config.get("seeds", ())) > MAX_SEEDS:
        words += ["--seeds", str(len(config["seeds"]))]
    return words


def env_arg_options(env_kwargs):
    """Returns the options `--env-arg` for the arguments that no file may contain."""
    words = []
    for name, value in env_kwargs.items():
        if not toml_files.is_safe(value):
            words += ["--env-arg", f"{name}={_option_text(value)}"]
    return words


def _option_text(value):
    """Returns a text that `--env-arg` reads as a value."""
    if isinstance(value, str):
        try:
            json.loads(value)
        except (ValueError, RecursionError):
            return value
    return json.dumps(value)


def _merge_fit(path, in_file, explicit):
    """Returns the arguments of `fit`, of which those of the user must fit the file."""
    for name, value in explicit.items():
        if name not in MAY_DIFFER and in_file.get(name) != value:
            text = (
                f"The training has another `{name}`. Expected: the value in {path}, "
                f"{in_file.get(name)}. Received: {name}={value}. A training continues "
                "with its own settings: omit the option."
            )
            if (last := path.parent / "last.keras").exists():
                text += " To train its last agent for longer, use Python: "
                text += f"tfr.load({str(last)!r}).fit(…)."
            raise ValueError(text)
    return toml_files.merge_fit_options(f"`fit` in {path}", in_file, explicit)


def _check_seeds(path, name, value, num_seeds):
    """Raises an error unless `seed` is a seed, or `seeds` is a list of next seeds."""
    values = value if name == "seeds" and isinstance(value, list) else [value]
    seeds = [validation.check_seed(validation.whole_number(name, x)) for x in values]
    expected = list(range(seeds[0], seeds[0] + len(seeds))) if seeds else None
    if name == "seeds" and value != expected:
        raise ValueError(
            f"`seeds` in {path} must be a list of whole numbers, one after the other. "
            f"Received: seeds={repr(value)[:100]}"
        )
    count = len(value) if name == "seeds" else None
    if num_seeds not in (None, count):
        raise ValueError(
            f"The training has another number of seeds. Expected: that of {path}, "
            f"{count or 'one seed without --seeds'}. Received: --seeds {num_seeds}"
        )
    if num_seeds is None and count is not None and count > MAX_SEEDS:
        raise ValueError(
            f"`seeds` in {path} may contain at most {MAX_SEEDS:,} seeds. Received: "
            f"{count} seeds. To train all of them, pass the option --seeds {count}."
        )


def check_callbacks(source, settings):
    """Raises an error if a setting of the callbacks of a run is invalid.

    Args:
        source: Start of the error message.
        settings: Dict of `diagnose` (bool, whether to print advice), `tensorboard` (one
            of `TENSORBOARD`) and `video` (number of updates between two videos).
    """
    toml_files.expect_keys(source, settings, _CALLBACKS)
    for name, value in settings.items():
        _CALLBACKS[name](name, value)


def check_settings(settings):
    """Raises an error if the tables `agent` or `fit` contain an invalid value."""
    agent_settings.check(settings["agent"])
    fit = settings["fit"]
    has_budget = fit.keys() & {"epochs", "steps"}
    options.FitOptions(**({} if has_budget else {"epochs": 1}), **fit)
