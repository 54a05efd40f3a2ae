"""Tests `--agent`, `--callbacks` and `--space`, which name functions of the user."""

import json
import pathlib
import re
import shlex
import sys

import gymnasium as gym
import keras
import pytest

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce.engine import agent_state
from tf_reinforce.experiments import runs
from tf_reinforce.experiments import seed_processes
from tf_reinforce.settings import run_config
from tf_reinforce.support import own_code
from tf_reinforce.support import startup

MODULE = """
import pathlib
import keras
import tf_reinforce as tfr

@keras.saving.register_keras_serializable("own_module")
class Twice(keras.layers.Layer):
    def call(self, inputs):
        return 2 * inputs

def make_agent(env, seed, units=3, kind="tanh"):
    keras.utils.set_random_seed(seed)
    layers = [keras.Input(env.observation_space.shape), keras.layers.Dense(units, kind)]
    layers += [Twice(), keras.layers.Dense(int(env.action_space.n))]
    agent = tfr.Reinforce(keras.Sequential(layers), gamma=0.9)
    agent.compile(keras.optimizers.Adam(0.05))
    return agent

class Note(keras.callbacks.Callback):
    def __init__(self, folder):
        super().__init__()
        self.path = folder / "note.txt"
    def on_train_begin(self, logs=None):
        self.path.write_text(f"{self.model.policy.name}")

def make_callbacks(folder):
    return Note(folder)

def suggest(trial):
    return {"units": trial.suggest_int("units", 2, 4)}

def suggest_list(trial):
    return [trial.suggest_int("units", 2, 4)]

def number(env, seed):
    return 3

def numbers():
    return [3]

def fails(env, seed):
    if env is None:
        raise KeyError("no such key")
    fails(None, seed)

def for_others(env, seed):
    return tfr.Reinforce.for_env("Pendulum-v1")

def ends(env, seed):
    raise SystemExit(7)

def of_one_argument(env):
    return 3

def named(env, seed, name, option):
    return name + option

def with_patience(patience=5, *folders):
    assert (patience, folders) == (5, ())
    return Note(pathlib.Path())

def of_three_inputs(env, seed):
    policy = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    agent = tfr.Reinforce(policy)
    agent.compile("sgd")
    return agent
"""
OWN = "own_module:make_agent"
LINE = MODULE.partition("raise KeyError")[0].count("\n") + 1
SHORT = ["--episodes-per-epoch", "2", "--max-episode-steps", "9", "--eval-episodes", "2"]
TRAIN = ["train", "CartPole-v1", *SHORT, "--num-envs", "2", "--agent"]


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The current folder, with a module."""
    (tmp_path / "own_module.py").write_text(MODULE)
    (tmp_path / "broken.py").write_text("import keras\n\nx = undefined\n")
    (tmp_path / "ending.py").write_text("raise SystemExit(0)\n")
    (tmp_path / "json.py").write_text("def make_agent(env, seed): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in ("own_module", "broken", "ending"):
        sys.modules.pop(name, None)


def train(*words):
    return cli.main([*TRAIN, *words])


def test_training_of_an_own_agent_equals_that_of_a_program_and_is_resumed(folder, capsys):
    options = [OWN, "--callbacks", "own_module:make_callbacks"]
    words = ["--agent-arg", "units=5", "--agent-arg", "kind=relu", "--epochs", "3"]
    assert train(*options, *words, "--seed", "4", "--run-dir", "run") == 0
    import own_module

    env = gym.make("CartPole-v1")
    agent = own_module.make_agent(env, 4, units=5, kind="relu")
    fit = dict(epochs=3, episodes_per_epoch=2, max_episode_steps=9, seed=4, verbose=0)
    agent.fit("CartPole-v1", **fit)
    last = tfr.load("run/last.keras")
    for one, other in zip(*map(agent_state.variables, (agent, last)), strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()
    assert (folder / "run" / "note.txt").read_text() == last.policy.name
    config = json.loads((folder / "run" / "config.json").read_text())
    assert config["agent"] == {"units": 5, "kind": "relu"}
    assert config["only_in_script"] == [] and config["engine"] == "host"
    capsys.readouterr()
    resume = ["train", "--resume", "run"]
    for given, message in (
        ([], "trained with --agent own_module:make_agent. For safety"),
        (["--agent", "own_module:number"], "Received: --agent own_module:number"),
        (options[:0] + ["--agent", options[0]], "trained with --callbacks own_module:"),
        (["--agent", *options], "contains the agent argument kind='relu'"),
    ):
        assert cli.main([*resume, *given]) == 2
        assert message in capsys.readouterr().err
    words = run_config.resume_words("run", {**config, "fit": {}})
    assert words == [*resume, "--agent", *options, "--agent-arg", "kind=relu"]
    assert cli.main(words) == 0
    assert "finished after update 3 of 3" in capsys.readouterr().out
    del keras.saving.get_custom_objects()["own_module>Twice"]
    del sys.modules["own_module"]
    assert cli.main(["evaluate", "run", "--episodes", "2"]) == 2
    assert "or `--agent MODULE:FUNCTION`" in capsys.readouterr().err
    agent = ["--agent", OWN]
    assert cli.main(["evaluate", "run", "--episodes", "2", *agent]) == 0


@pytest.mark.parametrize(
    "name, message, is_quick",
    [
        ("no_module:make_agent", "There is no module 'no_module' in the current", True),
        ("own_module", "`--agent` must be MODULE:FUNCTION, for example", True),
        (
            "own_module:make_agnt",
            "own_module.py). Did you mean 'make_agent'? Received: own_module:make_agnt",
            0,
        ),
        ("own_module:tfr", "own_module.py). Received: own_module:tfr", 0),
        ("own_module.py:make_agent", "and no file: write own_module:make_agent.", True),
        ("./a/b.py:f", "and no file: write a.b:f. Received: ./a/b.py:f", True),
        ("json:make_agent", f"no function of the module json ({json.__file__})", 0),
        ("own_module:ends", "ends fails: SystemExit: 7 (", 0),
        ("own_module:of_one_argument", "argument but 2 were given\n", 0),
        ("ending:make_agent", "The module ending fails: SystemExit: 0 (", 0),
        ("own_module:number", "must return a tf_reinforce.Reinforce. Received: 3", 0),
        ("own_module:fails", f"own_module.py, line {LINE})", 0),
        ("broken:make_agent", "The module broken fails: NameError: name 'undefined'", 0),
        ("own_module:for_others", "The agent was made for another observation space", 0),
        ("own_module:of_three_inputs", "does not take the observations of this env", 0),
    ],
)
def test_function_that_makes_no_agent_is_one_line(
    name, message, is_quick, folder, capsys, monkeypatch
):
    """The first two need no TensorFlow, whose import takes seconds."""
    if is_quick:
        monkeypatch.setattr(startup, "import_tensorflow", None)
    assert train(name, "--epochs", "1", "--run-dir", "run") == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
    assert not (folder / "run").exists()
    if "fails: " in message:  # in a line of the user
        place = rf" \({folder}/(own_module|broken|ending)\.py, line \d+\)"
        assert re.search(place, error)


def test_arguments_of_functions_may_have_any_name(folder):
    """The run directory goes only to an argument without a default."""
    name, kwargs = "own_module:named", {"name": "a", "option": "b"}
    assert own_code.call("--agent", name, None, 0, **kwargs) == "ab"
    for name in ("own_module:make_callbacks", "own_module:with_patience"):
        (note,) = runs.make_callbacks(name, folder / "run")
        assert note.path.parent == (folder / "run" if "make" in name else pathlib.Path())


def test_options_without_an_effect_are_refused(capsys):
    for words, message in (
        ([OWN, "--gamma", "0.5"], "gamma would have no effect"),
        ([OWN, "--set", "passes=2"], "passes would have no effect"),
        (
            [OWN, "--callbacks", "own_module:numbers"],
            "Keras callbacks",
        ),
        ([OWN, "--callbacks", "builtins:dict"], "`--callbacks` must name a function"),
        ([OWN, "--callbacks", "own_module:x"], "names no function"),
    ):
        assert train(*words, "--epochs", "1") == 2
        assert message in capsys.readouterr().err
    words = ["train", "CartPole-v1", "--agent-arg", "units=3"]
    assert cli.main(words) == 2
    assert "`--agent-arg` has no effect without --agent" in capsys.readouterr().err
    words = ["tune", "CartPole-v1", "--space", "own_module:suggest"]
    assert cli.main(words) == 2
    assert "`--space` has no effect without --agent" in capsys.readouterr().err
    words = ["tune", "CartPole-v1", "--agent", OWN]
    assert cli.main(words) == 2
    assert "[ranges.agent]" in capsys.readouterr().err
    assert cli.main(["presets", "--python"]) == 2


def test_command_that_continues_a_run_names_the_functions(folder, monkeypatch, capsys):
    """Those of one run, of many seeds, and of the process of each seed."""

    def interrupted(self, *_, resume, **options):
        (resume.path / "checkpoints").mkdir()
        raise KeyboardInterrupt

    started = []
    note = lambda commands, *_: started.append(commands) or 130  # noqa: E731
    monkeypatch.setattr(tfr.Reinforce, "fit", interrupted)
    monkeypatch.setattr(seed_processes, "run", note)
    own = ["--agent", OWN, "--callbacks", "own_module:make_callbacks"]
    own += ["--agent-arg", "kind=relu"]
    new = ["train", "CartPole-v1", "--epochs", "1", *own, "--run-dir"]
    for words, name in (
        ([*new, "run"], "run"),
        ([*new, "many", "--seeds", "2"], "many"),
        (["train", "--resume", "many", *own], "many"),
    ):
        assert cli.main(words) == 130
        command = f"to continue: tf-reinforce train --resume {name} {' '.join(own)}\n"
        assert command in capsys.readouterr().out
    assert len(started) == 2
    for words in started:
        resume = ["train", "--resume"]
        assert words == {n: [*resume, f"many/seed_{n}", *own] for n in range(2)}


PRESET = """
[fit]
episodes_per_epoch = 2
max_episode_steps = 5
steps = 60
[ranges.agent]
units = {low = 2, high = 8}
"""


@pytest.mark.parametrize("space", ["own_module:suggest", None])
def test_arguments_of_an_own_agent_are_tuned_and_used(space, folder, capsys):
    (folder / "mine.toml").write_text(PRESET)
    words = ["tune", "CartPole-v1", "--agent", OWN]
    words += [
        *("--trials", "1" if space else "2", "--trainings", "1"),
        *("--confirm", "0" if space else "1", "--run-dir", "s"),
    ]
    words += ["--objective", "return", "--eval-episodes", "2"]
    if space is None:
        words += ["--preset", "mine.toml"]
    else:
        words += ["--space", space, "--steps", "60", "--agent-arg", "units=2", *SHORT[:4]]
    assert cli.main(words) == 0
    printed = capsys.readouterr().out
    first = 3 if space is None else 2  # the default, or what is given
    assert re.search(rf"^trial 0: return .*units {first}\b", printed, re.M)
    best = tfr.presets.read("s/best.toml", own_agent=True)
    assert best["agent"].keys() == {"units"} and 2 <= best["agent"]["units"] <= 8
    command = printed.splitlines()[-1].removeprefix("to use them: tf-reinforce ")
    assert cli.main([*shlex.split(command), "--run-dir", "run"]) == 0
    policy = tfr.load("run/last.keras").policy
    assert policy.layers[0].units == best["agent"]["units"]


def test_space_that_returns_no_dict_is_named(capsys):
    words = ["tune", "CartPole-v1", "--agent", OWN, "--space", "own_module:suggest_list"]
    assert cli.main([*words, "--trials", "1", "--run-dir", "s"]) == 1
    text = "failed: ValueError: own_module:suggest_list must return a dict of keyword"
    assert text in capsys.readouterr().out


def test_printed_preset_makes_the_agent_of_the_preset(folder, capsys):
    assert cli.main(["presets", "CartPole-v1", "--python"]) == 0
    text = capsys.readouterr().out
    (folder / "own_module.py").write_text(text)
    words = ["CartPole-v1", "--preset", "--epochs", "1", "--engine", "host", *SHORT]
    runs = {"a": [], "b": ["--agent", OWN]}
    for name, more in runs.items():
        assert cli.main(["train", *words, "--run-dir", name, *more]) == 0
    agents = [tfr.load(f"{name}/last.keras") for name in runs]
    for one, other in zip(*map(agent_state.variables, agents), strict=True):
        assert one.numpy().tobytes() == other.numpy().tobytes()
    assert all(f"{name}={value!r}" in text for name, value in PRESET_VALUES.items())


PRESET_VALUES = {"gamma": tfr.presets.read("CartPole-v1")["agent"]["gamma"]}
