"""Makes command-line options from signatures, docstrings and settings."""

import argparse
import contextlib
import dataclasses
import inspect
import json
import typing
from typing import Annotated, Literal

from tf_reinforce.settings import config
from tf_reinforce.settings import schema
from tf_reinforce.settings import toml_files

# The options that set settings of a training: the table and the name of each setting.
SETTINGS = {
    **{name: ("agent", name) for name in config.TABLES["agent"]},
    **{name: ("fit", name) for name in config.TABLES["fit"]},
    "target_return": ("evaluation", "target"),
    "eval_every": ("evaluation", "every"),
    "eval_episodes": ("evaluation", "episodes"),
    "grace": ("checkpoint", "grace_seconds"),
    **{name: ("callbacks", name) for name in config.TABLES["callbacks"]},
}
# Options that may be used without a value: the value that they then have.
OWN_PRESET = ""
_CONSTANTS = {
    "preset": OWN_PRESET,
    "export": "",
    "tensorboard": "scalars",
    "video": 100,
}
_HELP = {
    "run": "run directory or agent file",
    "runs": "run directory, or a folder with a run directory for each seed",
    "env": "environment id (that of the run)",
    "env_arg": "argument of the environment's constructor; the option may be repeated",
    "max_episode_steps": "time limit (that of the run)",
    "episodes": "number of episodes",
    "seed": "selects the episodes; equal seeds give equal episodes",
    "workers": "processes that play the episodes",
    "max_bytes": "largest size of the agent file, because a stranger's file could fill "
    "the memory",
    "stochastic": "sample actions instead of taking the most likely one",
    "json": "print JSON",
}


def flag(name):
    """Returns the option for an attribute name, for example `"--num-envs"`."""
    return f"--{name.replace('_', '-')}"


def add_command(commands, run, options=None):
    """Adds a command, and returns its parser.

    Args:
        commands: The subparsers of argparse.
        run: Function that returns the exit code. Its name is the command, its docstring
            the help, its positional arguments those of the command, its keyword-only
            arguments the options.
        options: Class whose fields are the arguments instead; `run` then receives the
            parsed options.
    """
    text = inspect.cleandoc(run.__doc__).partition("\n\nArgs:")[0]
    names = dict(help=text.split("\n")[0].rstrip("."), description=text)
    command = commands.add_parser(run.__name__.replace("_", "-"), **names)
    declared = options or run
    texts, hints = schema.help_texts(declared), schema.hints(declared)
    parameters = inspect.signature(declared).parameters
    for name, parameter in parameters.items():
        hint, parts = hints[name], typing.get_args(hints[name])
        if len(parts) == 2 and parts[1] is type(None):
            hint = parts[0]  # `str` for `str | None`
        is_required = parameter.default is parameter.empty
        form = {} if is_required else {"nargs": "?"}
        if parameter.kind is parameter.KEYWORD_ONLY:
            form = {"dest": name, "required": is_required}
        default = None if is_required else parameter.default
        _add(command, name, hint, texts.get(name) or _HELP[name], default, form)

    def call(options):
        return run(**{name: getattr(options, name) for name in parameters})

    command.set_defaults(command=run if options else call)
    return command


def _add(parser, name, hint, text, default, form):
    """Adds an option, or an argument without dashes, whose values fit a type hint.

    Args:
        parser: Parser of a command.
        name: Attribute name of the value.
        hint: Type hint of the value.
        text: String, the help without the default.
        default: The value when the option is not passed.
        form: Dict of further arguments of argparse's `add_argument`. An option has
            `dest`.
    """
    text = with_default(text, default).replace("%", "%%")
    form = {**_form(name, hint, default), **form, "help": text}
    default = [] if default == () else default
    parser.add_argument(flag(name) if "dest" in form else name, default=default, **form)


def with_default(text, default):
    """Appends an option's default to its help text, unless this contains one."""
    if default in (None, False, ()) or "(" in text:
        return text
    shown = " ".join(map(str, default)) if isinstance(default, tuple) else default
    return f"{text} ({shown})"


def _form(name, hint, default):
    """Returns arguments of argparse's `add_argument` for a type hint."""
    parts = typing.get_args(hint)
    if hint is bool and default is False:
        return dict(action="store_true")
    if hint is bool or True in parts:
        return dict(action=argparse.BooleanOptionalAction)
    form = {}
    if name in _CONSTANTS:
        form = dict(nargs="?", const=_CONSTANTS[name])
    if typing.get_origin(hint) is typing.Literal:
        return dict(choices=parts, **form)
    if typing.get_origin(hint) is list:
        return dict(nargs="+", type=parts[0])
    if parts and parts[0] in (tuple, dict):  # read by a function of our own
        return dict(
            type=reader(parts[1]),
            metavar="NAME=VALUE" if name in ("env_arg", "set") else name.upper(),
            action="store" if parts[0] is dict else "append",
        )
    if hint is config.Sizes:
        form, hint = dict(nargs="*"), schema.Count
    kind = next((kind for kind, _ in schema.numbers(hint)), str)
    letter = {int: "N", float: "X", str: name.upper()}[kind]
    return dict(type=reader(schema.read, name, hint), metavar=letter, **form)


def reader(function, *arguments):
    """Returns a function from an option's text to `function(*arguments, text)`."""

    def read(text):
        try:
            return function(*arguments, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def add_settings(parser, names, **helps):
    """Adds the options of some of `SETTINGS`; `helps` replace texts of the schema."""
    texts = {table: schema.help_texts(cls) for table, cls in config.CLASSES.items()}
    for name in names:
        table, key = SETTINGS[name]
        default = getattr(config.CLASSES[table], key, None)
        text = with_default(helps.get(name) or texts[table][key], default)
        _add(parser, name, config.TABLES[table][key], text, None, {"dest": name})


def explicit_settings(options):
    """Returns the settings that the user passed, as `{table: {key: value}}`."""
    tables = {table: {} for table in config.TABLES}
    for name, (table, key) in SETTINGS.items():
        if (value := getattr(options, name, None)) is not None:
            tables[table][key] = value
    if (ray := _ray_workers(options, tables["fit"].get("workers"))) is not None:
        tables["fit"]["workers"] = ray
    if (limit := tables["fit"].get("max_episode_steps")) is not None:
        tables["evaluation"]["max_episode_steps"] = limit
    if (every := getattr(options, "checkpoint_every", None)) is not None:
        tables["checkpoint"] |= {"every_seconds": 60.0, "every_updates": None, **every}
    return tables


def _ray_workers(options, count):
    """Returns the `RayWorkers` for `--ray`, or `None` without it."""
    address, cores = (getattr(options, x, None) for x in ("ray", "num_cpus_per_worker"))
    if address is None and cores is None:
        return None
    if address is None or count is None:
        raise ValueError(
            "`--ray`, the address of a Ray cluster, needs `--workers`, the number of "
            "workers on it, and `--num-cpus-per-worker` needs `--ray`. Received: "
            f"--ray {address} --workers {count} --num-cpus-per-worker {cores}"
        )
    more = {} if cores is None else {"num_cpus_per_worker": cores}
    return config.RayWorkers(count, address, **more)


def _interval(text):
    """Returns `{"every_updates": 10}` for "10", `{"every_seconds": 30.0}` for "30s"."""
    name = "every_seconds" if text.endswith("s") else "every_updates"
    hint = schema.NonNegative if text.endswith("s") else schema.Count
    with contextlib.suppress(ValueError):
        return {name: schema.read(name, hint, text.removesuffix("s"))}
    raise ValueError(
        "must be a number of updates, for example 10, or of seconds, for example 60s. "
        f"Received: {text!r}"
    )


def _env_argument(text):
    """Splits an environment argument NAME=VALUE.

    VALUE is read as JSON if possible, for example a number or `true`, else as text.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(
            f"must have the form NAME=VALUE, for example gravity=9.8. Received: {text!r}"
        )
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(value)
    return name, value


Interval = Annotated[dict, _interval]
EnvArguments = Annotated[tuple, _env_argument]
Overrides = Annotated[tuple, toml_files.parse_setting]


@dataclasses.dataclass
class TaskOptions:
    """The options of `train` and `tune` that determine a training.

    Attributes:
        env: Environment id, also module:Id-v0.
        preset: A preset of docs/presets.md, or FILE.toml (without NAME: that of ENV).
        set: Any setting of docs/options.md, for example --set gae_lambda=0.95 or --set
            baseline.passes=4; the option may be repeated.
        engine: compiled: all episodes in one XLA program, if TensorFlow has an equal
            environment; host: Gymnasium's environment; auto: compiled if the registered
            environment equals the one in TensorFlow and an update has a number of
            episodes.
        seed: Number for all random draws (0).
    """

    env: str | None = None
    _: dataclasses.KW_ONLY
    preset: str | None = None
    env_arg: EnvArguments = ()
    set: Overrides = ()
    engine: Literal["auto", "host", "compiled"] = "auto"
    seed: schema.Seed | None = None
