"""Tests that a saved agent continues with the same bits after loading."""

import errno
import os
import subprocess
import sys

import full_disk
import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce.baselines import Value


class Aim(gym.Env):
    """One step, with a larger reward for actions near a point; float64 bounds."""

    observation_space = gym.spaces.Box(0.0, 1.0, (2,), np.float32)
    action_space = gym.spaces.Box(-1.0, np.array([1.0, 0.5]), (2,), np.float64)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.seen = self.np_random.random(2, np.float32)
        return self.seen, {}

    def step(self, action):
        assert self.action_space.contains(action)
        return self.seen, -float(((action - 0.3) ** 2).sum()), True, False, {}


def dense(outputs):
    layers = keras.layers.Dense(5, "tanh"), keras.layers.Dense(outputs)
    return keras.Sequential([keras.Input((2,)), *layers])


def trunk(outputs):
    x = keras.Input((2,))
    y = keras.layers.Dense(5, "tanh")(x)
    ends = {"outputs": keras.layers.Dense(outputs)(y), "values": keras.layers.Dense(1)(y)}
    return keras.Model(x, ends)


def adam():
    return keras.optimizers.Adam(0.05)


def sgd_with_schedule():
    schedule = keras.optimizers.schedules.ExponentialDecay(0.1, 1, 0.5)
    return keras.optimizers.SGD(schedule, momentum=0.9)


def agent_with_critic(**kwargs):
    return lambda: tfr.Reinforce(dense(3), baseline=Value(dense(1), adam()), **kwargs)


# Environment, agent and optimizer, by the feature that is tested.
AGENTS = {
    "without baseline weights": (toys.Lengths, lambda: tfr.Reinforce(dense(3)), adam),
    "with a critic": (toys.Lengths, agent_with_critic(gae_lambda=0.9), adam),
    "with a shared trunk": (
        toys.Lengths,
        lambda: tfr.Reinforce(trunk(3), baseline=Value(loss_weight=0.3)),
        adam,
    ),
    "with a normalizer": (
        toys.Lengths,
        agent_with_critic(normalize_observations=True),
        adam,
    ),
    "with a Gaussian head": (Aim, lambda: tfr.Reinforce(dense(2)), adam),
    "with a schedule": (toys.Lengths, lambda: tfr.Reinforce(dense(3)), sgd_with_schedule),
}


def fit(agent, env, epochs=1):
    return agent.fit(env, epochs=epochs, episodes_per_epoch=4, seed=5, verbose=0)


def record(agent):
    """Returns three episodes of at most four steps, with actions that fit the head."""
    rng = np.random.default_rng(0)
    shape = (4, 3, *agent.head.action_shape)
    whole = agent.head.action_dtype == "int64"
    actions = rng.integers(3, size=shape) if whole else rng.normal(size=shape)
    return tfr.Episodes(
        rng.random((5, 3, 2), np.float32),
        actions.astype("int32" if whole else "float32"),
        rng.normal(size=(4, 3)),
        np.array([4, 1, 3]),
        np.array([True, False, True]),
    )


def everything(agent):
    owners = [agent, agent.optimizer, getattr(agent.baseline, "optimizer", None)]
    return [np.array(v) for owner in owners if owner for v in owner.variables]


def same_bits(first, second):
    assert len(first) == len(second)
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.fixture(scope="module")
def agent():
    """Returns an agent after one update; the tests must not change it."""
    agent = tfr.Reinforce.for_env(toys.Lengths, hidden=(3,))
    fit(agent, toys.Lengths)
    return agent


@pytest.fixture
def path(agent, tmp_path):
    agent.save(tmp_path / "agent.keras")
    return str(tmp_path / "agent.keras")


@pytest.mark.slow
@pytest.mark.parametrize("name", AGENTS)
def test_loaded_agent_continues_training_with_the_same_bits(name, tmp_path):
    """A warning of Keras about skipped optimizer state would be an error."""
    env, make, optimizer = AGENTS[name]
    live = make()
    live.compile(optimizer=optimizer())
    fit(live, env, epochs=2)
    saved = everything(live)
    live.save(tmp_path / "agent.keras")
    assert same_bits(everything(live), saved)  # saving changes no variable
    loaded = tfr.load(tmp_path / "agent.keras")
    assert same_bits(everything(loaded), saved)
    weights = live.policy.get_weights()
    for agent in (live, loaded):
        agent.update(record(agent))
        fit(agent, env)
    assert same_bits(everything(loaded), everything(live))
    assert not same_bits(weights, live.policy.get_weights())


def test_save_keeps_spaces_counters_and_options(tmp_path):
    settings = dict(
        gamma=0.5,
        returns="whole",
        discount_states=True,
        scale_advantages="batch",
        entropy_coef=0.25,
        normalize_observations=True,
    )
    rate = {"first": 0.1, "last": 0.0}
    options = dict(hidden=(), baseline="mean", learning_rate=rate, **settings)
    agent = tfr.Reinforce.for_env(Aim, **options)
    fit(agent, Aim, epochs=3)
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    first, second = agent.get_config(), loaded.get_config()
    differences = {name for name in first | second if first[name] != second[name]}
    assert differences <= {"policy", "head", "baseline"}
    assert {name: getattr(loaded, name) for name in settings} == settings
    assert type(loaded.baseline) is type(agent.baseline)
    assert loaded.head.get_config() == agent.head.get_config()
    assert loaded.observation_space == Aim.observation_space
    assert loaded.action_space == Aim.action_space
    assert (loaded.updates, loaded.episodes_seen, loaded.env_steps) == (3, 12, 12)
    with pytest.raises(ValueError, match="another observation space"):
        loaded.fit("CartPole-v1", epochs=1)


class Doubled(keras.layers.Layer):
    """A custom layer, which Keras cannot find by name."""

    def call(self, x):
        return 2 * x


def test_load_accepts_custom_objects_for_custom_layers(tmp_path):
    policy = keras.Sequential([keras.Input((2,)), Doubled(), keras.layers.Dense(3)])
    own = tfr.Reinforce(policy, tfr.heads.Categorical(3))
    own.build((None, 2))
    own.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras", custom_objects={"Doubled": Doubled})
    observations = np.ones([3, 2], "float32")
    np.testing.assert_array_equal(loaded(observations), own(observations))


# Errors


@pytest.mark.parametrize("name", ["agent", "agent.h5", "agent.keras.zip"])
def test_save_raises_if_the_path_does_not_end_in_keras(agent, tmp_path, name):
    with pytest.raises(ValueError, match="ends in .keras. Received"):
        agent.save(tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_save_raises_if_the_agent_is_not_built(tmp_path):
    with pytest.raises(ValueError, match="not built"):
        tfr.Reinforce(dense(2), tfr.heads.Categorical(2)).save(tmp_path / "a.keras")
    assert os.listdir(tmp_path) == []


def test_save_without_overwrite_raises_if_the_file_exists(agent, path):
    before = open_bytes(path)
    with pytest.raises(FileExistsError, match="overwrite=True"):
        agent.save(path, overwrite=False)
    assert open_bytes(path) == before
    agent.save(path)
    agent.save(path.replace("agent", "other"), overwrite=False)


def open_bytes(path):
    with open(path, "rb") as file:
        return file.read()


# Failed saves


def trains_with(callback):
    def write(agent, path):
        other = tfr.Reinforce.for_env(toys.Lengths, hidden=(3,))
        options = dict(epochs=1, episodes_per_epoch=1, verbose=0)
        other.fit(toys.Lengths, callbacks=[callback(path)], **options)

    return write


def writes_checkpoint(agent, path):
    tfr.Checkpoints(path).write(1, {}, {"a": np.zeros(999)})


# Each writes a file or a folder, and how many bytes of a file the disk still takes.
WRITERS = {
    "agent.keras": (lambda agent, path: agent.save(path), 4096),
    "a.weights.h5": (lambda agent, path: agent.save_weights(path), 4096),
    "saved_model": (lambda agent, path: agent.export(path), 4096),
    "onnx": (lambda agent, path: agent.export(path, format="onnx"), 256),
    "checkpoints": (writes_checkpoint, 256),
    "events": (trains_with(tfr.callbacks.TensorBoardLogger), 8),
    "episodes.csv": (trains_with(tfr.callbacks.EpisodeLogger), 8),
}
APPENDED = "events", "episodes.csv"


def contents(folder):
    """Returns the content of each file below a folder, by path."""
    return {x: x.read_bytes() for x in folder.rglob("*") if x.is_file()}


@pytest.mark.parametrize("name", WRITERS)
def test_full_disk_names_path_and_cause_and_keeps_the_old_files(agent, name, tmp_path):
    """TensorFlow raises errors of its own, and HDF5 may end the process."""
    write, free = WRITERS[name]
    if name not in APPENDED:
        write(agent, tmp_path / name)
    before = contents(tmp_path)
    for target in (tmp_path / name, tmp_path / f"new.{name}"):
        message = f"{name}.* could not be written: File too large. .* unchanged. Free"
        with pytest.raises(OSError, match=message) as raised, full_disk.disk_with(free):
            write(agent, target)
        assert raised.value.errno == errno.EFBIG
        if name not in APPENDED:
            assert contents(tmp_path) == before


# Files of weights


def test_load_weights_restores_the_optimizer_state(tmp_path):
    first, second = (tfr.Reinforce.for_env(Aim, hidden=(3,), seed=s) for s in (0, 1))
    for agent in (first, second):
        agent.compile("adam")  # whose variables do not exist yet
    fit(first, Aim, epochs=2)
    first.save_weights(tmp_path / "agent.weights.h5")
    second.load_weights(tmp_path / "agent.weights.h5")
    assert int(second.optimizer.iterations) == 2
    assert same_bits(everything(first), everything(second))


@pytest.mark.slow
def test_keras_loads_an_agent_in_a_new_process_after_both_imports(tmp_path):
    """Importing the package registers its classes with Keras if Keras is imported."""
    agent = tfr.Reinforce.for_env(
        "CartPole-v1",
        hidden=(4,),
        baseline={"kind": "value"},
        normalize_observations=True,
    )
    agent.fit("CartPole-v1", epochs=1, episodes_per_epoch=2, verbose=0)
    agent.save(tmp_path / "agent.keras")
    code = (
        "import keras, tf_reinforce, numpy as np\n"
        "agent = keras.saving.load_model('agent.keras', safe_mode=True)\n"
        "assert type(agent) is tf_reinforce.Reinforce and agent.updates == 1\n"
        "agent.fit('CartPole-v1', epochs=2, initial_epoch=1, episodes_per_epoch=2)\n"
        "np.savez('weights.npz', *agent.get_weights())"
    )
    root = os.path.dirname(os.path.dirname(tfr.__file__))
    environment = {**os.environ, "PYTHONPATH": root}
    command = [sys.executable, "-c", code]
    subprocess.run(command, cwd=tmp_path, env=environment, check=True)
    agent.fit("CartPole-v1", epochs=2, initial_epoch=1, episodes_per_epoch=2, verbose=0)
    loaded = np.load(tmp_path / "weights.npz")
    for name, weight in zip(loaded.files, agent.get_weights(), strict=True):
        np.testing.assert_array_equal(loaded[name], weight)


class Always(tfr.baselines.Baseline):
    """A baseline of a user, which has an argument and no `get_config`."""

    def __init__(self, value, **kwargs):
        super().__init__(**kwargs)
        self.value = value

    def estimate(self, returns, valid, values):
        return tf.where(valid, tf.cast(self.value, returns.dtype), 0.0)


def test_file_keeps_the_arguments_of_a_baseline_that_keras_can_save(tmp_path):
    agent = tfr.Reinforce.for_env(Aim, baseline=Always(0.5), hidden=())
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras", custom_objects={"Always": Always})
    assert loaded.baseline.value == 0.5
    # In checkpoints, it is compared with the config of an earlier version.
    assert "autocast" in tfr.baselines.Mean().get_config()
