"""Reads, checks and writes the settings of a run, its `config.json`."""

import contextlib
import json
import pathlib
import shlex
from typing import Annotated, Literal

from tf_reinforce.settings import config as options
from tf_reinforce.settings import schema
from tf_reinforce.settings import toml_files
from tf_reinforce.support import files
from tf_reinforce.support import version

FILE_NAME, EVALUATION = "config.json", "evaluation.json"
# The entries that name functions of the user, and the options that set them.
OWN_CODE = {"make_agent": "--agent", "make_callbacks": "--callbacks"}
FILES = FILE_NAME, "versions.json", "command.txt"
_MAX_BYTES = 2**20
MAX_UPDATES = 300  # without a budget
MAX_SEEDS = 1024  # each has an environment of its own


def _next_seeds(name, seeds):
    """Returns consecutive seeds, or raises `ValueError`."""
    count = len(seeds) if isinstance(seeds, list) else 0
    first = schema.check(name, schema.Seed, seeds[0] if count else None)
    if seeds != list(range(first, first + count)) or count > MAX_SEEDS:
        text = f"a list of at most {MAX_SEEDS} whole numbers, one after the other"
        raise schema.wrong(name, text, seeds)
    return seeds


def _texts(name, value):
    """Returns a list of texts, or raises `ValueError`."""
    if not isinstance(value, list) or not all(isinstance(x, str) for x in value):
        raise schema.wrong(name, "a list of texts", value)
    return value


_HINTS = {
    "env": str,
    "trainer": str,
    "engine": Literal["host", "compiled"],
    "seed": schema.Seed,
    "seeds": Annotated[list, _next_seeds],
    "target_return": schema.Finite | None,
    "preset": str | None,
    "model": str,
    "only_in_script": Annotated[list, _texts],
    **dict.fromkeys(OWN_CODE, str),
    version.CONFIG_KEY: str,
    version.FORMAT_KEY: int,
    **dict.fromkeys(("env_kwargs", *options.TABLES), dict),
}
# The entries that commands use before `read_training` has checked all of them.
_CHECKED = "env", "trainer", "target_return", "preset", "model", "only_in_script"
# Arguments of `fit` that do not change a training's result.
MAY_DIFFER = ("num_envs", "workers", "step_timeout")


def find(run, name="agent.keras"):
    """Returns the path of a file in a run directory, or `run` itself if it is no folder.

    Raises:
        FileNotFoundError: If it does not exist.
    """
    run = pathlib.Path(run)
    path = run / name if run.is_dir() else run
    weights = path.with_suffix(".weights.h5")
    if not path.exists() and weights.exists():
        raise FileNotFoundError(
            f"Keras could not save the model of {run}. Only its program can use it, with "
            f'agent.load_weights("{weights}").'
        )
    if not path.exists():
        raise FileNotFoundError(
            f"There is no file or folder {path}. Expected: an agent file, or a folder of "
            "`tf-reinforce train ENV --run-dir DIR`"
        )
    return path


def write_json(path, content):
    """Writes a JSON file atomically."""
    with files.atomic_write(path) as temporary:
        pathlib.Path(temporary).write_text(json.dumps(content, indent=2) + "\n")


def write(directory, content, command=None, versions=None):
    """Writes `config.json` if it changes, and the others of `FILES` if they are missing.

    A run can be resumed as soon as `config.json` exists, so this file is written first.
    It does not name workers on a cluster, because a file from a stranger must not choose
    a server to connect to.

    Args:
        directory: Path of the run directory.
        content: Dict, the content of `config.json` without the package version.
        command: String, the command that starts the training, or `None`.
        versions: Dict, the content of `versions.json`, or `None` for that of now.
    """
    fit = content.get("fit", {}).items()
    fit = {name: x for name, x in fit if not isinstance(x, options.RayWorkers)}
    config_path, versions_path, command_path = (pathlib.Path(directory, x) for x in FILES)
    stored = read(directory)
    content = {**content, "fit": fit}
    if {key: x for key, x in stored.items() if key not in version.stamp()} != content:
        write_json(config_path, {**content, **version.stamp()})
    if not versions_path.exists():
        write_json(versions_path, versions or version.installed())
    if command is not None and not command_path.exists():
        with files.atomic_write(command_path) as temporary:
            # Arguments of a command may be bytes that are not text.
            text = f"{command}\n".encode(errors="surrogateescape")
            pathlib.Path(temporary).write_bytes(text)


def read(directory):
    """Returns the content of `config.json`, or an empty dict without the file.

    The file may come from an untrusted source. Of its tables, the only check is that they
    are dicts.

    Raises:
        ValueError: If the file is not a JSON object, a table is not a dict, or another
            entry is invalid.
    """
    path = pathlib.Path(directory) / FILE_NAME
    content = read_json(path)
    content = content and version.current("run", path, content)
    for name in ("env_kwargs", *options.TABLES):
        table = content.get(name, {})
        schema.expect_keys(f"`{name}` in {path}", table, table)
    with _named(path):
        for name in (*_CHECKED, *OWN_CODE):
            if name in content:
                schema.check(name, _HINTS[name], content[name])
    return content


@contextlib.contextmanager
def _named(path):
    """Adds a file's path to a `ValueError` from the `with` block."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"{path} is damaged: {error}") from None


def read_evaluation(directory, keys=("episode_return",)):
    """Returns the metrics in a run's `evaluation.json`, `{}` if it lacks a number.

    Args:
        directory: Path of the run directory.
        keys: Strings, the keys of the numbers.
    """
    metrics = read_json(pathlib.Path(directory) / EVALUATION)
    return metrics if all(isinstance(metrics.get(key), float) for key in keys) else {}


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
        raise ValueError(f"{path} must contain a JSON object, and is a {type(content)}.")
    return content


def read_env(run, env_kwargs):
    """Returns the environment id and the evaluation options of a run.

    The file may come from an untrusted source, so some of its content is not used. An id
    in the form `module:Id` is not returned, because making such an environment would
    import the module. Environment arguments must be numbers or booleans, unless the user
    passes the same arguments.

    Args:
        run: Path of the run directory.
        env_kwargs: Dict of the environment arguments that the user passed. They replace
            those in the file.

    Returns:
        The id, or `None` if there is none that may be returned (also if it is that of an
        environment that only the program of the run can make), and a dict of keyword
        arguments for `Reinforce.evaluate`.

    Raises:
        ValueError: If an environment argument in the file is not allowed.
    """
    path, config = pathlib.Path(run) / FILE_NAME, read(run)
    env, in_file = config.get("env"), config.get("env_kwargs", {})
    env_kwargs = toml_files.merge_env_kwargs(path, in_file, env_kwargs)
    evaluation, fit = config.get("evaluation", {}), config.get("fit", {})
    with _named(path):
        limit = evaluation.get("max_episode_steps")
        limit = options.check_option("evaluation", "max_episode_steps", limit)
        keys = options.check_option("fit", "info_keys", fit.get("info_keys", ()))
        deterministic = evaluation.get("deterministic", True)
        deterministic = options.check_option("evaluation", "deterministic", deterministic)
    is_plain = isinstance(env, str) and ":" not in env
    env = env if is_plain and "env" not in config.get("only_in_script", []) else None
    return env, {
        "env_kwargs": env_kwargs,
        "max_episode_steps": limit,
        "info_keys": keys,
        "deterministic": deterministic,
    }


def read_training(directory, env_kwargs, fit, agent_kwargs=None, own=None):
    """Returns all settings of a training in `config.json`, checked.

    The file may come from an untrusted source. Environment arguments must therefore be
    numbers or booleans, unless the user passes the same arguments.

    Args:
        directory: Path of the run directory.
        env_kwargs: Dict of the environment arguments that the user passed. They must
            equal those in the file.
        fit: Dict of the arguments of `fit` that the user passed. They must equal those in
            the file, except for `MAY_DIFFER`.
        agent_kwargs: Dict of the arguments of the user's function that makes the agent.
        own: Dict of the names of functions that the user passed. They must equal those in
            the file, which names code that no command runs by itself.

    Returns:
        Dict with the keys `env`, `engine`, `seed` or `seeds`, `target_return`, `preset`,
        `env_kwargs`, `agent`, `fit`, `evaluation`, `checkpoint` and `callbacks`.

    Raises:
        FileNotFoundError: If the folder contains no `config.json`.
        ValueError: If a setting is missing or invalid.
    """
    path = pathlib.Path(directory) / FILE_NAME
    content = read(directory)
    if not content:
        raise FileNotFoundError(
            f"{directory} contains no training to continue: there is no file {path}. "
            "Start a training with `tf-reinforce train ENV --run-dir DIR`."
        )
    if names := content.pop("only_in_script", []):
        raise ValueError(
            f"Only the program that began the training in {directory} can continue it, "
            f"because its {', '.join(map(str, names))[:200]} can be in no file. Start it "
            "again."
        )
    content.setdefault("callbacks", {}).pop("video", None)  # of an earlier version
    _check_own_code(directory, content, own or {})
    seed_key = "seeds" if "seeds" in content else "seed"
    if "trainer" in content:
        raise ValueError(
            f"{directory} is a run of {str(content['trainer'])[:100]}. Only the program "
            "that began it can continue it: start it again."
        )
    required = "env", "engine", seed_key, "env_kwargs", *options.TABLES
    content = schema.check_table(str(path), _HINTS, content, required=required)
    own_agent = "make_agent" in content or not content["agent"]
    content["agent"] = _agent_table(path, content["agent"], agent_kwargs, own_agent)
    merged = toml_files.merge_env_kwargs(path, content["env_kwargs"], env_kwargs)
    passed = {name: x for name, x in fit.items() if name not in MAY_DIFFER}
    passed["env_kwargs"] = merged
    expected = {**content["fit"], "env_kwargs": content["env_kwargs"]}
    for name, value in passed.items():
        if value not in (None, expected.get(name)):
            raise ValueError(
                f"The training has another `{name}`. Expected: that of {path}, "
                f"{expected.get(name)}. Received: {name}={value}. A training continues "
                "with its own settings: omit the option. To train its last agent for "
                "longer, use Python: tfr.load(…).fit(…)."
            )
    content["fit"] |= fit
    check_settings(content, f" in {path}", own_agent)
    return content


def _agent_table(path, table, agent_kwargs, own_agent):
    """Returns the checked table `agent` of a training."""
    if own_agent:
        arguments = table, agent_kwargs or {}, "agent", "agent"
        return toml_files.merge_env_kwargs(path, *arguments)
    required, hints = ("hidden", "learning_rate", "baseline"), options.TABLES["agent"]
    schema.check_table(f"`agent` in {path}", hints, table, required=required)
    if table["baseline"] == "value":
        # `Reinforce.for_env` would choose other settings than those in the file.
        table["baseline"] = {"kind": "value"}
    return table


def _check_own_code(directory, content, own):
    """Raises `ValueError` unless the user names the functions that a run uses."""
    for entry, option in OWN_CODE.items():
        stored, given = content.get(entry), own.get(entry)
        if stored != given:
            reason = "For safety, a file alone imports nothing: repeat the option. "
            raise ValueError(
                f"The run in {directory} was trained with {option} {str(stored)[:100]}. "
                f"{reason if given is None else ''}Received: {option} {given}"
            )


def check_settings(settings, place="", own_agent=False):
    """Raises `ValueError` if a table of settings contains an invalid value.

    Args:
        settings: Dict of tables, at least `agent` and `fit`.
        place: String that follows the name of a table in messages.
        own_agent: As in `options.check_tables`.
    """
    options.check_tables(settings, place, own_agent)
    fit = settings["fit"]
    has_budget = fit.keys() & {"epochs", "steps"}
    options.FitOptions(**({} if has_budget else {"epochs": 1}), **fit)


def resume_command(directory, config):
    """Returns the command that continues a run, quoted for a shell.

    For safety, `read_training` accepts some settings only from the user, so the command
    must contain them. These are an id in the form `module:Id`, environment arguments that
    are neither finite numbers nor booleans, and the address of a Ray cluster.

    Args:
        directory: Path of the run directory.
        config: Dict with `env`, `env_kwargs` and `fit`.

    Example:

    >>> config = {"env": "my_env:Grid-v0", "env_kwargs": {"map": "a b"}, "fit": {}}
    >>> resume_command("runs/1", config)
    "tf-reinforce train my_env:Grid-v0 --resume runs/1 --env-arg 'map=a b'"
    """
    return shlex.join(["tf-reinforce", *resume_words(directory, config)])


def resume_words(directory, config):
    """Returns the arguments of `resume_command`, a list of strings."""
    env = [config["env"]] if ":" in config["env"] else []
    words = ["train", *env, "--resume", str(directory)]
    for entry, option in OWN_CODE.items():
        words += [option, config[entry]] if entry in config else []
    kwargs = {"--env-arg": config["env_kwargs"]}
    if "make_agent" in config:
        kwargs["--agent-arg"] = config["agent"]
    for option, table in kwargs.items():
        for name, value in table.items():
            if not toml_files.is_safe(value):
                is_plain = isinstance(value, str) and schema.value(value) == value
                words += [option, f"{name}={value if is_plain else json.dumps(value)}"]
    workers = config["fit"].get("workers")
    if isinstance(workers, options.RayWorkers):
        words += ["--ray", workers.address, "--workers", str(workers.num_workers)]
        words += ["--num-cpus-per-worker", f"{workers.num_cpus_per_worker:g}"]
    return words
