"""Makes command-line options from signatures, dataclasses, docstrings and settings."""

import argparse
import contextlib
import dataclasses
import inspect
import json
import typing
from typing import Annotated, Any, ClassVar, Literal

from tf_reinforce import saving
from tf_reinforce.settings import config
from tf_reinforce.settings import schema
from tf_reinforce.settings import toml_files
from tf_reinforce.settings.schema import Count
from tf_reinforce.settings.schema import Seed

# The options that set settings of a training: the table and the name of each setting.
SETTINGS = {
    **{name: ("agent", name) for name in config.TABLES["agent"]},
    **{name: ("fit", name) for name in config.TABLES["fit"]},
    "target_return": ("evaluation", "target"),
    "eval_every": ("evaluation", "every"),
    "eval_episodes": ("evaluation", "episodes"),
    "grace": ("checkpoint", "grace_seconds"),
    **{name: ("callbacks", name) for name in ("diagnose", "tensorboard")},
}
# Options that may be used without a value: the value that they then have.
_CONSTANTS = {"preset": "", "tensorboard": "scalars"}


def flag(name):
    """Returns the option for an attribute name, for example `"--num-envs"`."""
    return f"--{name.replace('_', '-')}"


def add_command(commands, run):
    """Adds a command.

    Args:
        commands: The subparsers of argparse.
        run: Function that returns the exit code. Its name is the command, its docstring
            the help, its positional arguments those of the command, its keyword-only
            arguments the options. If it has one argument `options` instead, the fields of
            this one's class, and the settings in its attribute `settings`, are the
            arguments.
    """
    text = inspect.cleandoc(run.__doc__).partition("\n\nArgs:")[0]
    names = dict(help=text.split("\n")[0].rstrip("."), description=text)
    command = commands.add_parser(run.__name__.replace("_", "-"), **names)
    cls = schema.hints(run).get("options")
    texts = schema.help_texts(PlayOptions) | schema.help_texts(cls or run)
    hints, parameters = schema.hints(cls or run), inspect.signature(cls or run).parameters
    for name, parameter in parameters.items():
        is_required = parameter.default is parameter.empty
        form = {} if is_required else {"nargs": "?"}
        if parameter.kind is parameter.KEYWORD_ONLY:
            form = {"dest": name, "required": is_required}
        form["default"] = None if is_required else parameter.default
        _add(command, name, hints[name], texts[name], form["default"], form)
    texts = {table: schema.help_texts(x) for table, x in config.CLASSES.items()}
    for name in getattr(cls, "settings", ()):
        table, key = SETTINGS[name]
        shown = getattr(config.CLASSES[table], key, None)
        hint, form = config.TABLES[table][key], {"dest": name}
        _add(command, name, hint, texts[table][key], shown, form)

    def call(options):
        return run(**{name: getattr(options, name) for name in parameters})

    command.set_defaults(command=run if cls else call)


def _add(parser, name, hint, text, shown, form):
    """Adds an option, or an argument without dashes, whose values fit a type hint.

    Args:
        parser: Parser of a command.
        name: Attribute name of the value.
        hint: Type hint of the value.
        text: String, the help without the default.
        shown: The default in the help.
        form: Dict of further arguments of argparse's `add_argument`. An option has
            `dest`.
    """
    if shown not in (None, False, ()) and "(" not in text:
        shown = " ".join(map(str, shown)) if isinstance(shown, tuple) else shown
        text = f"{text} ({shown})"
    if form.get("default") == ():
        form["default"] = []
    form = {**_form(name, hint), **form, "help": text.replace("%", "%%")}
    parser.add_argument(flag(name) if "dest" in form else name, **form)
    if name == "preset":
        parser.add_argument("--no-preset", dest=name, action="store_const", const=False)


def _form(name, hint):
    """Returns arguments of argparse's `add_argument` for a type hint."""
    parts = typing.get_args(hint)
    if len(parts) == 2 and parts[1] is type(None):
        hint, parts = parts[0], typing.get_args(parts[0])  # `str` for `str | None`
    if hint is bool or True in parts:
        return dict(action=argparse.BooleanOptionalAction)
    form: dict[str, Any] = {}
    if name in _CONSTANTS:
        form = dict(nargs="?", const=_CONSTANTS[name])
    if typing.get_origin(hint) is typing.Literal:
        return dict(choices=parts, **form)
    if typing.get_origin(hint) is list:
        return dict(nargs="+", type=parts[0])
    if parts and parts[0] in (tuple, dict):  # read by a function of our own
        return dict(
            type=reader(parts[1]),
            metavar="NAME=VALUE" if name.endswith(("_arg", "set")) else name.upper(),
            action="store" if parts[0] is dict else "append",
        )
    if hint is config.InfoKeys:
        return dict(nargs="+", metavar="KEY")
    if hint is config.Sizes:
        form, hint = dict(nargs="*"), Count
    kind = next(iter(schema.kinds(hint)), str)
    letter = {int: "N", float: "X", str: name.upper()}[kind]
    return dict(type=reader(schema.read, name, hint), metavar=letter, **form)


def expect_none(reason, **options):
    """Raises `ValueError` for options that have no effect, if the user passed one.

    Args:
        reason: String for the message, for example `"without --check"`.
        **options: The values of the options.
    """
    for name, value in options.items():
        if value not in (None, []) and (name, value) != ("engine", "auto"):
            raise ValueError(f"`{flag(name)}` has no effect {reason}. Omit it.")


def reader(function, *arguments):
    """Returns a function from an option's text to `function(*arguments, text)`."""

    def read(text):
        try:
            return function(*arguments, text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return read


def explicit_settings(options):
    """Returns the settings that the user passed, as `{table: {key: value}}`."""
    tables = {table: {} for table in config.TABLES}
    for name, (table, key) in SETTINGS.items():
        if (value := getattr(options, name, None)) is not None:
            tables[table][key] = value
    fit = tables["fit"]
    if (address := getattr(options, "ray", None)) is not None and "workers" in fit:
        cores = options.num_cpus_per_worker
        more = {} if cores is None else {"num_cpus_per_worker": cores}
        fit["workers"] = config.RayWorkers(fit["workers"], address, **more)
    if (limit := fit.get("max_episode_steps")) is not None:
        tables["evaluation"]["max_episode_steps"] = limit
    if (every := getattr(options, "checkpoint_every", None)) is not None:
        tables["checkpoint"] |= {"every_seconds": 60.0, "every_updates": None, **every}
    return tables


def _interval(text):
    """Returns `{"every_updates": 10}` for "10", `{"every_seconds": 30.0}` for "30s"."""
    name = "every_seconds" if text.endswith("s") else "every_updates"
    hint = schema.NonNegative if name == "every_seconds" else Count
    return {name: schema.read(name, hint, text.removesuffix("s"))}


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
        preset: A preset of docs/presets.md, or FILE.toml (without NAME: that of ENV,
            which `train` also uses without this option); --no-preset: the default
            settings.
        set: Override a setting, for example --set baseline.passes=4 or --set
            max_kl=null. It wins over the preset and other options, and may be repeated.
        agent: MODULE:FUNCTION of your own, called with an environment and a seed, which
            returns the agent to train. It replaces the settings of agents.
        agent_arg: Keyword argument NAME=VALUE of this function; the option may be
            repeated.
        engine: compiled: all episodes in one XLA program, if TensorFlow has an equal
            environment; host: Gymnasium's environment; auto: compiled if the registered
            environment equals the one in TensorFlow, an update has a number of episodes,
            and there is no --agent.
        seed: Number for all random draws (0).
    """

    settings: ClassVar = tuple(SETTINGS)

    env: str | None = None
    _: dataclasses.KW_ONLY
    preset: str | None = None
    set: Overrides = ()
    env_arg: EnvArguments = ()
    agent: str | None = None
    agent_arg: EnvArguments = ()
    engine: Literal["auto", "host", "compiled"] = "auto"
    seed: Seed | None = None


@dataclasses.dataclass
class PlayOptions:
    """The options of commands that play with a trained agent.

    Attributes:
        run: run directory or agent file
        episodes: number of episodes
        env: environment id (that of the run)
        env_arg: argument of the environment's constructor; the option may be repeated
        agent: MODULE:FUNCTION that made the agent, if it has classes of your own
        seed: selects the episodes; equal seeds give equal episodes
        workers: processes that play the episodes
        max_episode_steps: time limit (that of the run)
        stochastic: sample actions instead of taking the most likely one (as the run does)
        max_bytes: largest size of the agent file, because a stranger's file could fill
            the memory
    """

    run: str
    _: dataclasses.KW_ONLY
    episodes: Count = 1
    env: str | None = None
    env_arg: EnvArguments = ()
    agent: str | None = None
    seed: Seed = 0
    workers: Count = 1
    max_episode_steps: Count | None = None
    stochastic: bool | None = None
    max_bytes: Count = saving.MAX_BYTES
