"""Tests that numbers of the last info of episodes are logged, and the others refused."""

import csv
import decimal
import fractions
import math
import re

import gymnasium as gym
import keras
import numpy as np
import pytest
import toys

import tf_reinforce as tfr
from tf_reinforce.settings import config

KEYS = ("cost", "late")


class Story(tfr.callbacks.EpisodeCallback):
    """The logs of all episodes."""

    def __init__(self):
        super().__init__()
        self.episodes = []

    def on_episode_end(self, episode, logs=None):
        self.episodes.append(logs)


def late(length):
    return float(length > 6) if length % 3 else math.nan


def mean(values):
    """Returns the mean of the numbers that are not NaN, added in their order."""
    numbers = [x for x in values if not math.isnan(x)]
    return float(np.mean(numbers)) if numbers else math.nan


def new_agent():
    return tfr.Reinforce.for_env(toys.Reporting, hidden=())


def train(folder=None, env=toys.Reporting, callbacks=(), **options):
    budget = dict(epochs=2, episodes_per_epoch=5, verbose=0, info_keys=KEYS)
    options = {**budget, **options}
    return new_agent().fit(env, callbacks=[*callbacks], **options).history


def without_speed(history):
    return {name: repr(x) for name, x in history.items() if name != "steps_per_second"}


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Returns the logs of a training, those of its episodes, and the file of these."""
    story, path = Story(), tmp_path_factory.mktemp("run") / "episodes.csv"
    callbacks = [story, tfr.callbacks.EpisodeLogger(path)]
    more = dict(validation_env=toys.Reporting, validation_episodes=3)
    return train(callbacks=callbacks, num_envs=2, **more), story.episodes, path


def test_logs_are_means_over_the_episodes_that_report_the_key(trained):
    history, episodes, _ = trained
    for update in range(2):
        rows = [row for row in episodes if row["update"] == update]
        lengths = [row["episode_length"] for row in rows]
        assert [row["cost"] for row in rows] == [n / 7 for n in lengths]
        assert repr([row["late"] for row in rows]) == repr([late(n) for n in lengths])
        assert history["cost"][update] == mean([n / 7 for n in lengths])
        assert history["late"][update] == mean([late(n) for n in lengths])
        # In validation, all episodes have a cost, so that it follows from the lengths.
        cost = history["val_episode_length"][update] / 7
        assert history["val_cost"][update] == pytest.approx(cost)
    assert "val_late" in history and any(math.isnan(x["late"]) for x in episodes)


def test_episodes_have_a_column_for_each_key(trained):
    _, episodes, path = trained
    with open(path, newline="") as file:
        rows = list(csv.DictReader(file))
    names = "episode_return", "episode_length", *KEYS
    found = [{name: float(row[name]) for name in names} for row in rows]
    expected = [{name: float(row[name]) for name in names} for row in episodes]
    assert repr(found) == repr(expected)
    appending = tfr.callbacks.EpisodeLogger(path, append=True)
    with pytest.raises(ValueError, match="`append` needs a file with the columns"):
        train(callbacks=[appending], info_keys=["cost"])


@pytest.mark.parametrize("options", [{"num_envs": 5}, {"num_envs": 1}, {"workers": 2}])
def test_logs_do_not_depend_on_environments_or_workers(options, trained):
    history, episodes, _ = trained
    story = Story()
    found = without_speed(train(callbacks=[story], **options))
    assert repr(story.episodes) == repr(episodes)
    assert found == {name: without_speed(history)[name] for name in found}


def test_resumed_training_has_the_same_logs_and_needs_the_same_keys(
    tmp_path, trained, capsys
):
    """The checkpoint of an earlier version contains no keys, and means none."""
    costs = f"cost {train(epochs=1, resume=tmp_path, verbose=1)['cost'][0]:.4g}"
    progress, result = re.findall(r".*cost .*", capsys.readouterr().out)
    assert costs in progress and "new episodes, cost " in result
    header = (tmp_path / "log.csv").read_text().splitlines()[0].split(",")
    assert {*header} >= {*KEYS, *(f"val_{key}" for key in KEYS)}
    with pytest.raises(ValueError, match="another value of settings, info_keys"):
        train(resume=tmp_path, info_keys=())
    found = without_speed(train(resume=tmp_path))
    assert found == {name: without_speed(trained[0])[name] for name in found}
    assert config.FitOptions(epochs=1).info_keys == ()


def test_keys_are_available_to_callbacks_of_keras():
    stop = keras.callbacks.EarlyStopping("cost", mode="max", min_delta=99, patience=1)
    assert len(train(callbacks=[stop], epochs=9)["cost"]) == 2


def test_key_that_no_episode_reports_is_an_error_before_the_first_update():
    agent = new_agent()
    before = [x.numpy() for x in agent.variables]
    text = r"no episode ended with info\['costs'\]\. The final info had: cost, late\."
    with pytest.raises(ValueError, match=text):
        agent.fit(toys.Reporting, epochs=1, info_keys=["cost", "costs"], verbose=0)
    for variable, value in zip(agent.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)
    with pytest.warns(UserWarning, match=text):  # an evaluation is not lost
        found = agent.evaluate(toys.Reporting, 9, info_keys=["cost", "costs"])
    assert math.isnan(found["costs"]) and found["cost"] > 0


def test_key_that_an_earlier_episode_reported_may_be_missing():
    infos = [{}, {"x": 0.5}]

    class Once(toys.Clock):
        def step(self, action):
            *answer, info = super().step(action)
            return *answer, infos.pop() if answer[2] else info

    agent = tfr.Reinforce.for_env(Once, hidden=())
    options = dict(epochs=2, episodes_per_epoch=1, num_envs=1, verbose=0)
    history = agent.fit(Once, info_keys=["x"], **options).history
    assert repr(history["x"]) == "[0.5, nan]"


class Ending(toys.Clock):
    """Ends after three steps with `value` in its info."""

    def __init__(self, value):
        super().__init__()
        self.value = value

    def step(self, action):
        *answer, _ = super().step(action)
        return *answer, {"x": self.value} if answer[2] else {"x": "early"}


@pytest.fixture(scope="module")
def agent():
    return tfr.Reinforce.for_env(toys.Clock, hidden=())


def test_numbers_of_every_type_are_accepted(agent):
    """`None` is no number, and is no missing key either."""
    numbers = [True, 3, 2.5, np.True_, np.int8(-3), np.uint64(2**63), np.float16(0.5)]
    numbers += [np.longdouble(0.1), np.array(2.0), np.array([[7]]), 10**300, None]
    numbers += [fractions.Fraction(1, 3)]
    for value in numbers:
        found = agent.evaluate(lambda: Ending(value), 1, info_keys=["x"])  # noqa: B023
        expected = math.nan if value is None else float(np.ravel(value)[0])
        assert repr(found["x"]) == repr(expected), value


@pytest.mark.parametrize("mode", [None, *gym.vector.AutoresetMode])
def test_values_that_are_no_finite_number_are_refused(agent, mode):
    values = ["1", b"1", 1j, np.ones(2), [], [1.0], math.nan, np.float32(np.inf)]
    values += [10**400, decimal.Decimal(1), np.datetime64("2026"), len, np.array([])]
    values += [np.ma.masked]
    for value in values if mode is None else values[:8]:
        env = make = lambda: Ending(value)  # noqa: B023
        if mode is not None:
            env = gym.vector.SyncVectorEnv([make] * 2, autoreset_mode=mode)
        text = r"episode 0, step 2: info\['x'\] at the end of an episode is a "
        with pytest.raises(tfr.collect.EnvironmentFault, match=text):
            agent.evaluate(env, 1, info_keys=["x"])


def test_invalid_number_at_the_time_limit_drops_the_episode(agent):
    """Of the replacements, too: all have it."""
    limit = dict(max_episode_steps=2, on_bad_env="drop_episode", info_keys=["x"])
    with (
        pytest.warns(UserWarning, match="another episode replaces it"),
        pytest.raises(tfr.collect.EnvironmentFault, match="its 50 replacements"),
    ):
        agent.evaluate(lambda: Ending(1.0), 1, **limit)


@pytest.mark.parametrize("keys, text", [
    ("cost", r"must be a list of printable texts. For one key, pass \['cost'\]"),
    (["cost", ""], "must be a list of printable texts"),
    (["cost\n"], "must be a list of printable texts"),
    (["\x1b[2J"], "must be a list of printable texts"),
    ({"cost"}, "must be a list of printable texts"),
    (["cost", "cost"], "must contain different keys"),
    (["cost", "loss"], "must contain .* the logs use: loss, .* Received: 'loss'"),
    (["val_cost"], "must contain .*, val_…. Received: 'val_cost'"),
])  # fmt: skip
def test_invalid_keys_are_refused(agent, keys, text):
    for method in (agent.fit, agent.evaluate):
        with pytest.raises(ValueError, match=f"`info_keys` {text}"):
            method(toys.Clock, info_keys=keys)


def test_tensor_environment_reports_no_info():
    env = tfr.envs.Bandit([0.0, 1.0])
    agent = tfr.Reinforce.for_env(env, hidden=())
    for call in (agent.evaluate, lambda *x, **y: agent.fit(*x, epochs=1, **y)):
        with pytest.raises(ValueError, match="`info_keys` need Gymnasium"):
            call(env, info_keys=["x"])


class Winning(toys.Reporting):
    """Reports success in episodes of odd length only."""

    def step(self, action):
        *answer, info = super().step(action)
        is_won = answer[2] and self.length % 2
        return *answer, {**info, "is_success": True} if is_won else info


def test_statistics_of_an_evaluation_are_those_of_its_episodes():
    """Rows are in the order of starting, and types are those of a table."""
    agent = new_agent()
    options = dict(episodes=9, info_keys=KEYS, deterministic=False)
    found = agent.evaluate(Winning, num_envs=4, per_episode=True, **options)
    types = {name: (x.shape, x.dtype.kind) for name, x in found.items()}
    assert types == {
        **dict.fromkeys(("episode_return", "success", *KEYS), ((9,), "f")),
        "episode_length": ((9,), "i"),
        "terminated": ((9,), "b"),
    }
    again = agent.evaluate(Winning, num_envs=1, per_episode=True, **options)
    lengths = found["episode_length"]
    expected = {
        "episode_return": lengths,  # a reward of 1 per step
        "terminated": np.ones(9),
        "success": lengths % 2,
        "cost": lengths / 7,
        "late": [late(n) for n in lengths],
    }
    for name, values in {**expected, "episode_length": lengths}.items():
        np.testing.assert_array_equal(found[name], values)
        np.testing.assert_array_equal(again[name], values)
    metrics = agent.evaluate(Winning, **options)
    for name in ("episode_return", "episode_length", "success", *KEYS):
        assert metrics[name] == mean(found[name]), name


def test_evaluation_in_a_tensor_environment_returns_episodes_too():
    env = tfr.envs.Bandit([0.0, 1.0])
    agent = tfr.Reinforce.for_env(env, hidden=())
    options = dict(episodes=8, deterministic=False)
    found = agent.evaluate(env, per_episode=True, **options)
    assert {*found} == {"episode_return", "episode_length", "terminated"}
    assert found["episode_length"].tolist() == [1] * 8
    mean_return = agent.evaluate(env, **options)["episode_return"]
    assert mean_return == found["episode_return"].mean() and 0 < mean_return < 1
