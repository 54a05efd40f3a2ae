"""Tests presets: files that are read, checked, and overridden by options."""

import contextlib
import csv
import inspect
import io
import json

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import toys

import tf_reinforce as tfr
from tf_reinforce import agent as agents
from tf_reinforce import cli
from tf_reinforce import heads
from tf_reinforce import presets
from tf_reinforce.cli import entry
from tf_reinforce.cli import plans
from tf_reinforce.settings import config
from tf_reinforce.settings import toml_files

SMALL = """
env = "CartPole-v1"
{top}
[agent]
hidden = [8]
gamma = 0.5
learning_rate = {{first = 0.01, last = 0.002}}
baseline = {{kind = "value", hidden = [4], learning_rate = {{first = 0.1, last = 0.0}}}}
{agent}
[fit]
steps = 400
steps_per_epoch = 50
{fit}
[evaluation]
episodes = 7
{evaluation}
"""


def write_preset(folder, **more):
    """Writes a small preset with additional lines in its tables; returns its path."""
    path = folder / "small.toml"
    lines = {"top": "", "agent": "", "fit": "", "evaluation": "", **more}
    path.write_text(SMALL.format(**lines))
    return path


def make_agent(env, settings):
    """Returns the agent that the settings describe."""
    options = {**settings["agent"], "env_kwargs": settings["env_kwargs"]}
    return agents.Reinforce.for_env(env, **options)


def train_preset(folder, *options, **more):
    """Trains the small preset; returns its config and the rows of its log."""
    run = folder / "run"
    command = ["train", "CartPole-v1", "--preset", str(write_preset(folder, **more))]
    options = ["--engine", "host", *options]  # compiles nothing
    assert cli.main([*command, "--run-dir", str(run), *options]) == 0
    with open(run / "log.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    return json.loads((run / "config.json").read_text()), rows


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """Trains the small preset; returns its folder, config, log, and the printed text."""
    folder = tmp_path_factory.mktemp("plain")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        config, rows = train_preset(folder)
    return folder, config, rows, printed.getvalue()


OFTEN = ["CartPole-v1", "FrozenLake-v1-dry"]


@pytest.mark.parametrize("name", sweeps.some(presets.names(), always=OFTEN))
def test_every_preset_agent_makes_an_update(name):
    settings = presets.read(name)
    assert name.startswith(toml_files.own_name(settings["env"]))
    agent = make_agent(settings["env"], settings)
    budget = {"steps", "epochs", "episodes_per_epoch", "steps_per_epoch"}
    fit = {key: x for key, x in settings["fit"].items() if key not in budget}
    fit |= dict(epochs=1, episodes_per_epoch=2, verbose=0)
    agent.fit(settings["env"], env_kwargs=settings["env_kwargs"], **fit)
    assert agent.updates == 1


def keywords(function):
    return set(inspect.signature(function).parameters) - {"self", "kwargs", "env", "seed"}


def test_preset_tables_accept_the_keywords_of_the_library():
    making = keywords(agents.Reinforce.for_env) | keywords(agents.Reinforce.__init__)
    making |= {"steps_per_execution", "jit_compile"}  # arguments of `compile`
    making |= {"memory"}  # of the default policy
    others = {"policy", "name", "preset", "env_kwargs"}
    assert config.TABLES["agent"].keys() == making - others
    fitting = {x for x in keywords(agents.Reinforce.fit) if "validation" not in x}
    less = {"callbacks", "verbose", "initial_epoch", "env_kwargs", "resume"}
    less |= {"reset_options", "env_attrs"}  # may be functions of the update
    assert config.TABLES["fit"].keys() == fitting - less


@pytest.mark.slow
def test_preset_in_python_trains_as_the_command_does(plain):
    """Budget, batches, learning rates and losses are equal.

    Keyword arguments override the preset.
    """
    folder, _, rows, _ = plain
    agent = agents.Reinforce.for_env("CartPole-v1", preset=str(folder / "small.toml"))
    history = agent.fit("CartPole-v1", verbose=0).history
    for name in ("env_steps", "episode_return", "learning_rate", "loss"):
        assert history[name] == pytest.approx([float(row[name]) for row in rows])
    preset = str(folder / "small.toml")
    other = agents.Reinforce.for_env("CartPole-v1", [5], preset=preset, gamma=0.25)
    assert (other.gamma, other.policy.weights[0].shape) == (0.25, (4, 5))
    history = other.fit("CartPole-v1", epochs=1, episodes_per_epoch=2, verbose=0).history
    assert history["episodes"] == [2.0]


def test_preset_env_kwargs_apply_to_all_episodes_also_after_loading(tmp_path):
    """Without slipping, a state and an action determine the next state."""
    agent = agents.Reinforce.for_env("FrozenLake-v1", preset="FrozenLake-v1-dry")
    agent.save(tmp_path / "agent.keras")
    for learner in (agent, tfr.load(tmp_path / "agent.keras")):
        assert learner._fit_defaults["env_kwargs"] == {"is_slippery": False}
        played, after = learner.collect("FrozenLake-v1", 16), {}
        for e, length in enumerate(played.lengths):
            for t in range(length):
                state, new = played.observations[t : t + 2, e]
                assert after.setdefault((state, played.actions[t, e]), new) == new


def test_learning_rate_is_linear_in_the_steps_and_the_summary_is_one_line(plain):
    """An update has the rate of the steps that were taken before it."""
    folder, config, rows, printed = plain
    assert config["fit"]["steps"] == 400
    taken = [0, *(float(row["env_steps"]) for row in rows)]
    assert taken[-2] < 400 <= taken[-1]
    expected = [0.01 + (0.002 - 0.01) * before / 400 for before in taken[:-1]]
    rates = [float(row["learning_rate"]) for row in rows]
    assert rates == pytest.approx(expected, rel=1e-6)
    figures = json.loads((folder / "run" / "evaluation.json").read_text())
    assert [line for line in printed.splitlines() if "mean return" in line] == [
        f"CartPole-v1: mean return {figures['episode_return']:.4g} ± "
        f"{figures['episode_return_std']:.4g} over 7 new episodes, target 475 missed"
    ]


def test_command_line_options_override_the_preset(tmp_path):
    words = "--gamma 0.9 --episodes-per-epoch 3 --epochs 1 --learning-rate 0.5"
    words += f" --baseline mean --max-episode-steps 5 --preset {write_preset(tmp_path)}"
    options = entry.make_parser().parse_args(["train", "CartPole-v1", *words.split()])
    found = plans.make(options).settings
    explicit = {"gamma": 0.9, "learning_rate": 0.5, "baseline": "mean"}
    assert found["agent"] == {**plans.DEFAULTS, "hidden": [8], **explicit}
    fit = {"num_envs": 8, "episodes_per_epoch": 3, "epochs": 1, "max_episode_steps": 5}
    assert found["fit"] == fit
    assert found["evaluation"] == {"episodes": 7, "max_episode_steps": 5}


def test_step_limit_in_fit_applies_to_the_training_only(tmp_path, capsys):
    """The table [evaluation] has its own limit, and its target is the printed target."""
    limits = {"fit": "max_episode_steps = 6"}
    limits["evaluation"] = "max_episode_steps = 9\ntarget = 2\nevery = 3"
    _, rows = train_preset(tmp_path, "--baseline", "mean", **limits)
    assert {float(row["episode_length"]) for row in rows} == {6.0}
    due = [not np.isnan(float(row["val_episode_return"])) for row in rows]
    assert due == [update % 3 == 0 for update in range(1, len(rows) + 1)]
    figures = json.loads((tmp_path / "run" / "evaluation.json").read_text())
    assert 6 < figures["episode_length"] <= 9
    assert ", target 2 reached\n" in capsys.readouterr().out


LINE = {"first": 1.0, "last": 0.0}


def test_linear_learning_rate_continues_over_calls_of_fit():
    agent = tfr.Reinforce.for_env(toys.Bandit, hidden=(), learning_rate=LINE)
    options, rates = dict(epochs=2, episodes_per_epoch=2, verbose=0), []
    for _ in range(2):
        rates += agent.fit(toys.Bandit, **options).history["learning_rate"]
    assert rates == [1.0, 0.5, 0.5, 0.25]  # 0 and 1 of 2 updates, 2 and 3 of 4


def test_learning_rate_scheduler_callback_overrides_the_linear_rate():
    agent = tfr.Reinforce.for_env(toys.Bandit, hidden=(), learning_rate=LINE)
    mine = keras.callbacks.LearningRateScheduler(lambda epoch: 0.125)
    options = dict(epochs=3, episodes_per_epoch=2, callbacks=[mine], verbose=0)
    rates = agent.fit(toys.Bandit, **options).history["learning_rate"]
    assert rates == [0.125] * 3


def test_preset_env_kwargs_do_not_apply_to_validation_env_objects():
    """The keywords of a preset apply only to environments that are made from an id."""
    agent = tfr.Reinforce.for_env("FrozenLake-v1", hidden=(), preset="FrozenLake-v1-dry")
    way = {0: 1, 4: 1, 8: 2, 9: 1, 13: 2, 14: 2}  # the path to the goal without slipping
    kernel = np.zeros((16, 4))
    for cell, action in way.items():
        kernel[cell, action] = 50.0
    agent.policy.set_weights([kernel, np.zeros(4)])
    agent.compile(keras.optimizers.SGD(0.0))
    dry = gym.make("FrozenLake-v1", is_slippery=False)
    options = dict(epochs=1, episodes_per_epoch=2, validation_episodes=20, verbose=0)
    for env, validation_env in ((dry, "FrozenLake-v1"), ("FrozenLake-v1", dry)):
        history = agent.fit(env, validation_env=validation_env, **options).history
        assert history["val_episode_return"] == [1.0]


@pytest.mark.parametrize(
    "text, words",
    [
        ("", r"must contain `env`"),
        ("env = 3", "`env` must be text. Received: env=3"),
        ("env =", "not valid TOML"),
        ("a = " + "[" * 10**4, "not valid TOML"),
        ("a = 1 #" + "x" * 2**20, "at most 1048576 bytes"),
        ("{env}agent = 3", "`agent` must be a table"),
        ("{env}gamma = 1", "invalid key 'gamma'"),
        ("{env}[agent]\ngama = 1", r"\[agent\].*'gama'. Did you mean 'gamma'"),
        ("{env}[agent]\ngae_lambda = 0.5", "`gae_lambda` below 1 needs a value"),
        ("{env}[fit]\ncallbacks = []", r"\[fit\].*'callbacks'"),
        ("{env}[fit]\nworkers = 257", r"`workers` must be .* in .1, 256"),
        ("{env}[evaluation]\ngoal = 1", r"\[evaluation\].*'goal'.*target"),
        ('{env}[env_kwargs]\nxml_file = "evil.xml"', "argument xml_file='evil.xml'"),
        ("{env}[env_kwargs]\na = [1]", "environment argument a="),
        ("{env}[env_kwargs]\na = nan", "environment argument a=nan"),
    ],
)
def test_preset_file_that_is_wrong_or_harmful_is_refused(text, words, tmp_path):
    """A string in `env_kwargs` could be any path, and the file could be from a stranger.

    An editor may mark the text as UTF-8 with a byte order mark.
    """
    path = tmp_path / "own.toml"
    path.write_text(text.replace("{env}", 'env = "CartPole-v1"\n'))
    with pytest.raises(ValueError, match=words):
        presets.read(str(path))
    path.write_text('\ufeffenv = "CartPole-v1"\n[env_kwargs]\na = 1\n[fit]\nworkers = 64')
    assert presets.read(str(path))["env_kwargs"] == {"a": 1}


@pytest.mark.parametrize(
    "env", ["CartPole-v1", "a_module:CartPole-v1", "CartPole", gym.spec("CartPole-v1")]
)
def test_for_env_refuses_a_preset_of_another_environment(env):
    """A preset fits every environment without an id."""
    for same in (env, toys.Bandit, tfr.envs.CartPole()):
        assert toml_files.read_for_env("CartPole-v1", same)["env"] == "CartPole-v1"
    with pytest.raises(
        ValueError, match="Expected: Pendulum-v1. Received: env='.*CartPo"
    ):
        tfr.Reinforce.for_env(env, preset="Pendulum-v1")


@pytest.mark.parametrize("kind", config.BOX_HEADS)
def test_head_by_name_gets_its_keywords_and_the_bounds_of_the_environment(kind):
    more = {} if kind == "Beta" else {"initial_scale": 0.25}
    head = {"kind": kind, **more}
    made = tfr.Reinforce.for_env("MountainCarContinuous-v0", head=head).head
    assert type(made) is getattr(heads, kind)
    assert (made.size, made.low, made.high) == (1, -1.0, 1.0)
    assert {name: getattr(made, name) for name in more} == more
    wrong = {"kind": kind, "initial_scale" if kind == "Beta" else "size": 1}
    with pytest.raises(ValueError, match="invalid key '(initial_scale|size)'"):
        tfr.Reinforce.for_env("MountainCarContinuous-v0", head=wrong)


@pytest.mark.parametrize("name", presets.names())
def test_every_preset_is_equal_after_writing_and_reading(name, tmp_path):
    settings, path = toml_files.read(name), tmp_path / "copy.toml"
    toml_files.write(path, settings, "a comment")
    assert path.read_text().startswith("# a comment\n")
    assert toml_files.read(path) == settings


def test_settings_that_no_file_may_contain_are_left_out(tmp_path):
    """A value that TOML does not have is refused, and no file is written."""
    path = tmp_path / "own.toml"
    settings = {"env": "Own-v0", "env_kwargs": {"file": "/etc/passwd", "size": 3}}
    with pytest.raises(TypeError, match="not TOML serializable"):
        toml_files.write(path, {**settings, "agent": {"gamma": object()}}, "")
    assert not path.exists()
    agent = {"head": None, "gamma": 0.5, "baseline": {"kind": "value", "passes": None}}
    toml_files.write(path, {**settings, "agent": agent}, "a comment")
    content = toml_files.read(path)
    assert content["env_kwargs"] == {"size": 3}
    assert content["agent"] == {"gamma": 0.5, "baseline": {"kind": "value"}}
    saved = {"steps": 9, "workers": 2, "env_kwargs": {"map": "x", "n": 1}, "more": 2}
    assert toml_files.safe_defaults(saved) == {"steps": 9, "env_kwargs": {"n": 1}}
