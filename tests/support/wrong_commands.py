"""Commands with one wrong argument, and a check of the answers they get.

Neither this module nor the commands import TensorFlow. `python wrong_commands.py N`
prints the answers to every N-th command as JSON.
"""

import contextlib
import io
import json
import multiprocessing
import os
import pathlib
import sys
import tempfile
import time
from typing import NamedTuple

import gymnasium  # noqa: F401  # is imported before the forks

from tf_reinforce import cli
from tf_reinforce.cli import options as cli_options
from tf_reinforce.settings import config
from tf_reinforce.settings import schema

TRAIN, CARTPOLE = ("train",), ("train", "CartPole-v1")
ONCE = (*CARTPOLE, "--epochs", "1")
EVALUATE = ("evaluate", "run")
HUGE = "1000000000000"
# Flags, and texts of another check.
TEXTS = "jit_compile", "action_mask", "info_keys"


class Command(NamedTuple):
    """A command with one wrong argument."""

    arguments: tuple[str, ...]
    name: str  # the error names this argument, option or setting
    shown: str  # the error shows this part of the wrong value
    file: tuple[str, str] = ("own.toml", "")  # path and text of a file

    def __str__(self):
        return " ".join((*self.arguments, repr(self.file[1]) if self.file[1] else ""))


def fits(hint, text):
    """Returns whether an option with this hint accepts the text."""
    try:
        schema.read("", hint, text)
    except ValueError:
        return False
    return True


def options(start, flag, *values, name=None):
    """Yields a command for each wrong value of an option; a value may be a tuple."""
    for value in values:
        parts = value if isinstance(value, tuple) else (value,)
        yield Command((*start, flag, *parts), name or flag, parts[-1])


def train_commands():
    for name, (table, key) in cli_options.SETTINGS.items():
        hint = config.TABLES[table][key]
        wrong = [x for x in ("-1", "0", "1.5", "nan", "x", "") if not fits(hint, x)]
        for value in wrong if hint is not bool and name not in TEXTS else ():
            flag, start = cli_options.flag(name), CARTPOLE
            yield Command((*start, flag, value), flag, value)
    yield from options(ONCE, "--seed", "9223372036854775808", name="seed")
    yield from options(ONCE, "--seeds", "0", "1.5", "two", name="seeds")
    sizes = "0", "-1", HUGE, ("64", "0"), ("100000", "100000")
    yield from options(ONCE, "--hidden", *sizes, name="hidden")
    yield from options(("train", "Pendulum-v1"), "--head", "Categorical", name="head")
    yield from options(ONCE, "--set", "gama=0.9", "gamma", "agent.steps=3")
    yield Command((*ONCE, "--set", "gamma=2"), "gamma", "2")
    yield Command((*ONCE, "--set", "gamma.first=2"), "gamma", "first")
    yield from options(ONCE, "--engine", "fast")
    yield from options(ONCE, "--preset", "NoSuch", name="preset")
    yield from options(ONCE, "--preset", "none.toml", name="file")
    yield Command((*CARTPOLE, "--preset", "Pendulum-v1"), "preset", "CartPole-v1")
    yield Command((*CARTPOLE, "--preset", "mine.txt"), "preset", "mine.txt")
    yield from options(ONCE, "--run-dir", "full", "mine.txt", name="folder")
    for env in ("NoSuch-v0", "CartPole-v99", "NoSuch", ":", "@"):
        shown = env.split(":")[0].split("-v")[0] or env
        yield Command(("train", env), "env", shown)
    yield Command(("train", "no_module:Env-v0"), "module", "no_module")
    yield Command((*CARTPOLE, "--no-such", "1"), "--no-such", "--no-such")
    yield Command((*ONCE, "--steps", "1"), "steps", "1")
    both = "--episodes-per-epoch", "2", "--steps-per-epoch", "3"
    yield Command((*ONCE, *both), "steps_per_epoch", "3")
    yield from _engine_commands()


def _engine_commands():
    lake = "train", "FrozenLake8x8-v1", "--epochs", "1"
    compiled = "--engine", "compiled"
    yield Command((*lake, *compiled), "engine", "FrozenLake8x8-v1")
    yield Command((*ONCE, *compiled, "--steps-per-epoch", "9"), "engine", "9")
    yield Command((*ONCE, *compiled, "--workers", "2"), "workers", "2")
    drop = "--on-bad-env", "drop_episode"
    yield Command((*ONCE, *compiled, *drop), "engine", "drop_episode")
    yield Command((*lake, "--seeds", "2", *compiled), "engine", "FrozenLake8x8-v1")
    yield Command((*ONCE, "--seeds", "2", "--jobs", "0"), "jobs", "0")
    yield Command((*ONCE, "--jobs", "2"), "--jobs", "--seeds")
    yield Command((*ONCE, "--num-cpus-per-worker", "0"), "--num-cpus", "--ray")
    yield Command((*ONCE, "--ray", "auto"), "--ray", "--workers")
    yield Command((*ONCE, "--tensorboard", "all"), "--tensorboard", "all")


def other_commands():
    yield Command((), "COMMAND", "required")
    yield Command(("fly",), "COMMAND", "fly")
    yield Command(TRAIN, "environment id", "--resume")
    yield Command((*CARTPOLE, "more"), "more", "more")
    yield Command(("evaluate",), "RUN", "required")
    yield Command(("evaluate", "missing"), "missing", "missing")
    check = "check-env", "CartPole-v1"
    for start, names in (
        (EVALUATE, ("episodes", "num-envs", "workers", "max-episode-steps", "max-bytes")),
        (check, ("episodes", "max-episode-steps")),
        (("export", "run", "--out", "new"), ("max-bytes",)),
        (("tune", "CartPole-v1"), ("trials", "jobs", "trainings", "steps")),
    ):
        for name in names:
            yield from options(start, f"--{name}", "0", "1.5", "two")
    for start in ONCE, EVALUATE, check:
        yield from options(start, "--seed", "-1", "1.5", "zero", name="seed")
        yield from options(start, "--env-arg", "3", "gravity", "=3")
    yield Command((*EVALUATE, "--env", "NoSuch-v0"), "env", "NoSuch")
    yield Command((*EVALUATE, "--env", "CartPole-v99"), "env", "v99")
    yield Command((*EVALUATE, "--env", "no_module:Env-v0"), "module", "no_module")
    yield Command((*EVALUATE, "--no-such"), "--no-such", "--no-such")
    yield Command(("evaluate", "full"), "agent.keras", "full")
    yield Command(("evaluate", "mine.txt"), "mine.txt", "mine.txt")
    yield Command(check[:1], "ENV", "required")
    yield Command(("check-env", "NoSuch-v0"), "env", "NoSuch")
    yield Command(("check-env", "no_module:Env-v0"), "module", "no_module")
    yield Command((*ONCE, "--env-arg", "no_such=1"), "env_kwargs", "no_such")
    yield Command(("export",), "RUN", "required")
    yield Command(("export", "run"), "--out", "required")
    yield Command(("export", "missing", "--out", "new"), "missing", "missing")
    new = ("export", "run", "--out", "new")
    yield from options(new, "--format", "keras", "", name="choice")
    yield Command((*new, "--env", "CartPole-v1"), "--env", "--check")
    yield from options(("export", "run"), "--out", "full", "mine.txt", name="folder")
    yield Command(("export", "full", "--out", "new"), "agent.keras", "full")
    yield Command(("export", "mine.txt", "--out", "new"), "mine.txt", "mine.txt")
    yield from _explain_commands()
    yield from _tune_commands()


def _tune_commands():
    tune = "tune", "CartPole-v1"
    yield Command(tune[:1], "environment id", "CartPole-v1")
    yield Command(("tune", "NoSuch-v0"), "env", "NoSuch")
    yield Command((*tune, "--epochs", "3"), "--epochs", "3")
    yield from options(tune, "--run-dir", "full", "mine.txt", name="folder")
    yield from options(tune, "--confirm", "-1", name="confirm")
    yield from options(tune, "--gamma", "2", "nan", name="gamma")
    yield Command((*tune, "--preset", "Pendulum-v1"), "preset", "Pendulum-v1")
    epochs = 'env = "CartPole-v1"\n[fit]\nepochs = 3'
    yield Command((*tune, "--preset", "own.toml"), "--steps", "3", ("own.toml", epochs))
    for name, shown, text in (
        ("agent.gama", "gama", "gama = {low = 0.1, high = 1}"),
        ("agent.gamma", "1.5", "gamma = {low = 0.1, high = 1.5}"),
        ("agent.gamma", "0.9", "gamma = {low = 0.9, high = 0.9}"),
        ("agent.hidden", "[[8]]", "hidden = {choices = [[8]]}"),
        ("agent.gamma", "0.5", "gamma = 0.5"),
    ):
        file = "own.toml", f'env = "CartPole-v1"\n[ranges.agent]\n{text}'
        yield Command((*tune, "--preset", "own.toml"), name, shown, file)


def _explain_commands():
    """Yields those that the parser refuses; the others need TensorFlow."""
    for text, name, shown in (
        ("--probs x --action 0", "--probs", "x"),
        ("--probs --action 0", "--probs", "expected"),
        ("--logits 0 0 --action nan", "action", "nan"),
        ("--logits 0 0 --action a", "--action", "a"),
    ):
        yield Command(("explain", *text.split()), name, shown)


def resume_commands():
    yield from options(ONCE, "--checkpoint-every", "0", "often", "nan", "")
    yield from options(ONCE, "--grace", "-1", "nan", name="grace")
    yield from options(ONCE, "--grace", "long")
    yield from options(TRAIN, "--resume", "missing", "full", "mine.txt", name="training")
    yield Command(("train", "--resume", "run", "--gamma", "0.5"), "--resume", "--gamma")
    yield Command(("train", "--resume", "run", "--seeds", "2"), "--resume", "--seeds")
    yield Command(("train", "--resume", "run", "--engine", "host"), "--resume", "engine")


def config_commands():
    """Yields commands that continue a training with one wrong entry in config.json."""
    agent = {"hidden": [8], "learning_rate": 0.01, "baseline": "mean"}
    tables = {"agent": agent, "fit": {"epochs": 1}, "evaluation": {}, "checkpoint": {}}
    config = {"env": "CartPole-v1", "engine": "host", "seed": 0, "env_kwargs": {}}
    config |= tables
    changed = {"env": "NoSuch", "engine": "fast", "seed": -1, "agent": [3]}
    for key, value in changed.items():
        missing = {name: config[name] for name in config if name != key}
        wrong = {**config, key: value}
        for shown, content in ("contain", missing), (str(value), wrong):
            file = FILE, json.dumps(content)
            yield Command((*TRAIN, "--resume", "run"), key, shown, file)
    for option, value in (("--workers", "0"), ("--epochs", "7")):
        arguments = (*TRAIN, "--resume", "run", option, value)
        yield Command(arguments, option.strip("-"), value, (FILE, json.dumps(config)))


def all_commands():
    """Returns all commands with a wrong argument."""
    groups = (
        train_commands(),
        other_commands(),
        resume_commands(),
        config_commands(),
    )
    return [command for group in groups for command in group]


def answer(command):
    """Runs a command in a new folder; returns its error, its seconds and its faults."""
    os.environ["COLUMNS"] = "500"  # argparse breaks no line
    errors = io.StringIO()
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        for name in FILES:
            path = pathlib.Path(name)
            path.parent.mkdir(exist_ok=True)
            path.write_text("text of the user")
        path, text = command.file
        pathlib.Path(path).write_text(text)
        start = time.perf_counter()
        with contextlib.redirect_stderr(errors), contextlib.redirect_stdout(None):
            try:
                code = cli.main(list(command.arguments))
            except SystemExit as error:
                code = error.code
            except BaseException as error:
                code = repr(error)
        seconds = time.perf_counter() - start
        files = [str(path) for path in pathlib.Path().rglob("*") if path.is_file()]
    text = errors.getvalue()
    found = faults(command, code, text)
    if sorted(files) != sorted({*FILES, command.file[0]}):
        found.append("files changed")
    return {"error": text[-900:], "seconds": seconds, "faults": found}


FILES = ("full/mine.txt", "mine.txt", "own.toml", "run/agent.keras")
FILE = "run/config.json"


def faults(command, code, text):
    """Returns what is unclear about the answer to a command, a list of strings."""
    lines = [line for line in text.splitlines() if line.startswith("tf-reinforce")]
    error = text[text.find(lines[-1]) :].strip() if lines else ""
    checks = {
        f"exit code {code}": code == 2,
        "TensorFlow was imported": "tensorflow" not in sys.modules,
        f"does not name {command.name}": command.name.lower() in error.lower(),
        f"does not show {command.shown}": command.shown in error,
        "is long": 0 < len(error.splitlines()) <= 4 and len(error) <= 900,
        "a traceback": "Traceback" not in text,
    }
    return [fault for fault, passed in checks.items() if not passed]


def check_all(commands):
    """Runs each command in a fork of this process; returns a dict of the answers."""
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        answers = pool.map(answer, commands, chunksize=1)
    return dict(zip(map(str, commands), answers, strict=True))


if __name__ == "__main__":
    step = int(sys.argv[1]) if len(sys.argv) > 1 else 1
    json.dump(check_all(all_commands()[::step]), sys.stdout)
