"""Tests that a refused update is saved, repeated with the same error, and explained."""

import json
import pathlib

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import tensorflow_probability as tfp
from definitions import OBSERVED
from definitions import same_bits
from update_agents import A
from update_agents import dense
from update_agents import made
from update_agents import numbers
from update_agents import record

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import cli
from tf_reinforce import envs
from tf_reinforce import heads
from tf_reinforce import version
from tf_reinforce.experiments import replay
from tf_reinforce.training import learner
from tf_reinforce.training import refused_update


@keras.saving.register_keras_serializable("tests")
class NaNFrom(keras.optimizers.schedules.LearningRateSchedule):
    """A rate of 0.01, and NaN from the step `first` on."""

    def __init__(self, first):
        self.first = first

    def __call__(self, step):
        return tf.where(tf.cast(step, tf.int64) < self.first, 0.01, np.nan)

    def get_config(self):
        return {"first": self.first}


@keras.saving.register_keras_serializable("tests")
class LogHead(heads.Categorical):
    """Takes the logarithm of the first output, which may be negative."""

    def distribution(self, outputs):
        logits = tf.concat([tf.math.log(outputs[..., :1]), outputs[..., 1:]], axis=-1)
        return tfp.distributions.Categorical(logits=logits)


@keras.saving.register_keras_serializable("tests")
class Root(keras.layers.Layer):
    """Returns the square root of the first output, which may be zero."""

    def call(self, x):
        return tf.concat([tf.sqrt(x[..., :1]), x[..., 1:]], axis=-1)


@keras.saving.register_keras_serializable("tests")
class Square(keras.layers.Layer):
    def call(self, x):
        return x * x


def value_agent(scale):
    """Returns an agent whose value model returns numbers of the size `scale`."""
    model = dense(1, "float32")
    model.set_weights([w * np.float32(scale) for w in model.get_weights()])
    return made(dtype="float32", baseline=baselines.Value(model), gae_lambda=0.9)


def policy_agent(layer, scale=1.0):
    """Returns an agent whose policy ends with a layer after outputs of size `scale`."""
    policy = keras.Sequential([*dense(A).layers, layer(dtype="float64")])
    policy.build((None, OBSERVED))
    policy.set_weights([w * scale for w in policy.get_weights()])
    return made(policy=policy)


def head_agent():
    policy = dense(A)
    policy.set_weights([w * [-1e-9, 1, 1] for w in policy.get_weights()])
    agent = tfr.Reinforce(policy, LogHead(A, dtype="float64"))
    agent.compile(keras.optimizers.SGD(0.1))
    agent.build((None, OBSERVED))
    return agent


def late_agent(first):
    """Returns an agent whose learning rate is NaN from its gradient step `first` on."""
    optimizer = keras.optimizers.SGD(NaNFrom(first))
    return made("gaussian", "float32", optimizer, minibatch_size=7, passes=2)


def reward(value):
    def change(episodes):
        rewards = episodes.rewards.copy()
        rewards[1, 2] = value
        return episodes._replace(rewards=rewards)

    return change


def observation(value):
    def change(episodes):
        observations = episodes.observations.copy()
        observations[1, 2, 0] = value
        return episodes._replace(observations=observations)

    return change


def large_returns(episodes):
    """Returns episodes whose rewards overflow when they are added."""
    return episodes._replace(rewards=np.full_like(episodes.rewards, 1e308))


def large_error(episodes):
    """Returns episodes with a large value error of a large observation."""
    return reward(1e38)(observation(1e2)(episodes))


HALF, FLOAT32 = observation(0.5), ("softmax", "float32")
PLACE = "episode 2, step 1"
# The agent, the type of its record, the change of the record, and the place of the cause.
CASES = {
    "observation": (made, (), observation(np.nan), PLACE),
    "reward": (made, (), reward(np.inf), PLACE),
    "return": (lambda: made(gamma=1), (), large_returns, "episode 0, step 0"),
    "advantage": (lambda: made(dtype="float32"), FLOAT32, reward(1e39), "episode 2, st"),
    "value": (lambda: value_agent(1e37), FLOAT32, observation(1e3), PLACE),
    "outputs": (lambda: policy_agent(Square, 1e100), (), observation(1e60), PLACE),
    "log-probability": (head_agent, (), HALF, "episode "),
    "entropy_coef": (lambda: made(entropy_coef=NaNFrom(0)), (), HALF, "nan"),
    "gradient of the baseline": (lambda: value_agent(1.0), FLOAT32, large_error, "dense"),
    "gradient": (lambda: policy_agent(Root, 0.0), (), HALF, "dense"),
    "later gradient step": (lambda: late_agent(2), ("gaussian", "float32"), HALF, "seq"),
    "weight": (lambda: late_agent(5), ("gaussian", "float32"), HALF, "sequential"),
    "running statistics": (lambda: made(scale_rewards=True), (), reward(1e200), ""),
}
QUICK = ["return"]


def refused(agent, episodes, tmp_path):
    """Returns the error of an update that is refused, after it was saved."""
    with pytest.raises(learner.UpdateNotFinite) as caught:
        agent.update(episodes)
    message = str(caught.value)
    header = {"versions": version.installed()}
    refused_update.write(tmp_path, agent, caught.value, header)
    assert str(caught.value).startswith(message)
    return caught.value


@pytest.mark.parametrize("cause", sweeps.some(CASES, QUICK))
def test_refused_update_is_repeated_with_the_same_error_and_its_cause(cause, tmp_path):
    make, kind, change, where = CASES[cause]
    agent, episodes = make(), change(record(*kind))
    before = agent.get_weights()
    error = refused(agent, episodes, tmp_path)
    folder = tmp_path / "refused_update_0"
    assert f"is saved in {folder}" in str(error)
    assert str(error).endswith(f"tf-reinforce replay {folder}")
    result = tfr.replay(folder)
    assert result.error == result.original_error
    assert str(error).startswith(result.error + " The update is saved")
    assert result.cause == cause
    assert where in result.where
    assert f"First number that is not finite: {cause}" in str(result)
    assert replay.CAUSES[cause] in str(result)
    loaded = tfr.load(folder / "agent.keras")
    same_bits(before, loaded.get_weights())
    same_bits(numbers(agent.optimizer.variables), numbers(loaded.optimizer.variables))


@pytest.mark.slow
def test_replay_contains_the_numbers_of_the_gradient_steps(tmp_path):
    """The learning rate is NaN in the third of six gradient steps."""
    refused(late_agent(2), record("gaussian", "float32"), tmp_path)
    result = tfr.replay(tmp_path / "refused_update_0")
    assert len(result.gradient_steps) == 4
    assert [step.variable == "" for step in result.gradient_steps] == [True] * 3 + [False]
    assert result.gradient_steps[0].largest_ratio == 1.0
    assert 1.0 < result.gradient_steps[1].largest_ratio < 2.0
    assert result.rates["learning_rate"] == np.float32(0.01)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    path = tmp_path_factory.mktemp("saved")
    refused(made(minibatch_size=7), reward(np.inf)(record()), path)
    return path / "refused_update_0"


def test_text_shows_the_steps_around_the_first_invalid_step(saved):
    text = str(tfr.replay(saved))
    ranges = dict(line.split(maxsplit=1) for line in text.splitlines() if "steps" in line)
    assert ranges["reward"].endswith("1 of 20 steps")
    assert ranges["outputs"].endswith("0 of 20 steps")
    table = text.split("Episode 2, steps around step 1:\n")[1].splitlines()
    assert table[0].split()[:3] == ["step", "observation", "reward"]
    assert [line.split()[0] for line in table[1:]] == ["0", "1", "2", "3"]
    assert [line.split()[2] == "inf" for line in table[1:]] == [False, True, False, False]


def test_limits_of_agent_files_are_options_of_replay(saved, capsys):
    size = (saved / "agent.keras").stat().st_size
    with pytest.raises(ValueError, match=f"--max-bytes {size}"):
        tfr.replay(saved, limits=tfr.LoadLimits(max_bytes=size - 1))
    assert cli.main(["replay", str(saved), "--max-bytes", str(size - 1)]) == 2
    assert f"--max-bytes {size}" in capsys.readouterr().err
    assert cli.main(["replay", str(saved), "--max-layers", "1"]) == 2
    assert "--max-layers N" in capsys.readouterr().err


class Overflow(gym.RewardWrapper):
    def reward(self, reward):
        return 1e308


class OverflowBandit(envs.Bandit):
    """A bandit with rewards beyond float32."""

    def reward(self, state, action, next_state):
        return tf.cast(super().reward(state, action, next_state), tf.float64) * 1e300


class Notified(tfr.callbacks.EpisodeCallback):
    def on_episodes_collected(self, episodes, logs):
        """Makes `fit` return episodes before each update."""


def cartpole():
    return Overflow(gym.make("CartPole-v1"))


def bandit():
    return OverflowBandit([1.0, 2.0, 3.0])


MINIBATCHES = dict(minibatch_size=3, passes=2)
# The environment, the options of the agent, and the callbacks.
ENGINES = {
    "host": (cartpole, MINIBATCHES, []),
    "compiled": (bandit, {}, []),
    "compiled, notified": (bandit, MINIBATCHES, [Notified()]),
    "minibatches": (bandit, MINIBATCHES, []),
    "microbatches": (bandit, {}, []),
}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.slow
def test_fit_with_resume_saves_a_refused_update(engine, tmp_path, monkeypatch):
    make, options, callbacks = ENGINES[engine]
    microbatch = 4 if engine == "microbatches" else None
    if microbatch is not None:
        monkeypatch.setattr(learner, "_MICROBATCH", microbatch)
    agent = tfr.Reinforce.for_env(make(), hidden=(3,), baseline=None, **options)
    before = agent.get_weights()
    with pytest.raises(FloatingPointError, match="tf-reinforce replay") as caught:
        agent.fit(
            make(), epochs=2, episodes_per_epoch=8, seed=3, resume=tmp_path,
            callbacks=callbacks, verbose=0,
        )  # fmt: skip
    same_bits(before, agent.get_weights())
    folder = tmp_path / "refused_update_0"
    assert {x.name for x in folder.iterdir()} == {
        "agent.keras", "arrays.bin", "manifest.json"
    }  # fmt: skip
    manifest = json.loads((folder / "manifest.json").read_text())
    assert manifest["settings"]["seed"] == 3 and manifest["update"] == 0
    assert manifest["state"]["microbatch_size"] == microbatch
    result = tfr.replay(folder)
    assert result.error == result.original_error == manifest["error"]
    assert str(caught.value).startswith(result.error)
    assert cli.main(["replay", str(folder)]) == 1


@pytest.mark.slow
def test_replay_of_an_update_that_is_now_finite_says_so(tmp_path, capsys, monkeypatch):
    agent = made(entropy_coef=NaNFrom(0))
    refused(agent, record(), tmp_path)
    monkeypatch.setattr(NaNFrom, "__call__", lambda self, step: tf.constant(0.01))
    monkeypatch.setattr(version, "installed", lambda: {"tensorflow": "9.9"})
    assert cli.main(["replay", str(tmp_path / "refused_update_0")]) == 0
    text = capsys.readouterr().out
    assert text.startswith("The repeated update is finite.")
    assert "Another version of tensorflow: 9.9 instead of 2." in text


def test_unsaved_update_is_still_reported(tmp_path):
    """An agent that cannot be saved must not hide the error of the update."""

    class Unsaved(keras.layers.Layer):
        def get_config(self):
            raise NotImplementedError("no config")

        def call(self, x):
            return x * x

    agent = policy_agent(Unsaved, 1e100)
    error = refused(agent, observation(1e60)(record()), tmp_path)
    assert str(error).startswith("Update 0 would not be finite")
    assert f"could not be saved in {tmp_path / 'refused_update_0'}: " in str(error)
    assert str(error).endswith("no config")
    assert list(tmp_path.iterdir()) == []


def change_manifest(change):
    def damage(folder):
        manifest = json.loads((folder / "manifest.json").read_text())
        change(manifest)
        manifest.pop("manifest_sha256")
        manifest["manifest_sha256"] = learner_digest(manifest)
        (folder / "manifest.json").write_text(json.dumps(manifest) + "\n")

    return damage


def learner_digest(manifest):
    return tfr.Checkpoints.__init__.__globals__["_digest"](manifest)


def flip(name):
    def damage(folder):
        content = bytearray((folder / name).read_bytes())
        content[len(content) // 2] ^= 1
        (folder / name).write_bytes(bytes(content))

    return damage


DAMAGES = {
    "agent": (flip("agent.keras"), r"agent.keras is damaged: its SHA-256"),
    "arrays": (flip("arrays.bin"), r"arrays.bin is damaged: its SHA-256"),
    "no agent": (lambda x: (x / "agent.keras").unlink(), "There is no file"),
    "permutation": (
        change_manifest(lambda x: x["state"].update(permutations=[[0, 0]])),
        "contains no refused update of the agent.*permutations",
    ),
    "episodes": (
        change_manifest(lambda x: x["state"].pop("episodes")),
        "contains no refused update of the agent: KeyError",
    ),
    "versions": (change_manifest(lambda x: x.pop("versions")), "KeyError.'versions'"),
}


@pytest.mark.parametrize("name", DAMAGES)
def test_damaged_refused_update_raises(name, saved, tmp_path, capsys):
    folder = tmp_path / "copy"
    folder.mkdir()
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    damage, message = DAMAGES[name]
    damage(folder)
    with pytest.raises((OSError, ValueError), match=message):
        tfr.replay(folder)
    assert cli.main(["replay", str(folder)]) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_folder_without_a_refused_update_names_those_inside(saved):
    with pytest.raises(ValueError, match="which contains refused_update_0"):
        tfr.replay(saved.parent)
    with pytest.raises(ValueError, match="which contains no refused update"):
        tfr.replay(pathlib.Path("docs"))
    assert cli.main(["replay", "missing"]) == 2
