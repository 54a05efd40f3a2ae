"""Tests that a hostile agent file is refused before it takes memory or runs code."""

import io
import json
import re

import gymnasium as gym
import h5py
import keras
import numpy as np
import pytest
from hostile_configs import CONFIGS
from hostile_configs import dense
from hostile_configs import read
from hostile_configs import write

import tf_reinforce as tfr
from tf_reinforce.loading import objects

# The file may ask for trust in no message, and for custom classes only if one is missing.
BAD_ADVICE = re.compile("trust|safe_mode|unsafe|regist|custom_objects", re.IGNORECASE)
CUSTOM_CLASSES = {
    "unknown custom class",
    "unknown class in a package",
    "agent of another class",
}
SLOW = {"200 unreachable layers"}  # builds 200 layers
VALID = {"loss in compile"}


@pytest.fixture(scope="module")
def members(tmp_path_factory):
    """Returns the files in the archive of a small agent."""
    path = tmp_path_factory.mktemp("agent") / "agent.keras"
    tfr.Reinforce.for_env(tfr.envs.CartPole(), hidden=(4,)).save(path)
    return read(path)


@pytest.fixture
def save(members, tmp_path, monkeypatch):
    """Returns a function that writes an agent file with an edited configuration."""
    monkeypatch.chdir(tmp_path)

    def save(edit):
        config = json.loads(members["config.json"])
        edit(config)
        write("agent.keras", {**members, "config.json": json.dumps(config)})
        return "agent.keras"

    return save


@pytest.mark.parametrize("name", sorted(CONFIGS.keys() - SLOW - VALID))
def test_hostile_configuration_is_refused_with_one_reason(save, tmp_path, name):
    path = save(CONFIGS[name])
    with pytest.raises(ValueError, match="^agent.keras cannot be loaded. ") as error:
        tfr.load(path)
    message = str(error.value)
    assert "\n" not in message and len(message) < 700
    if name not in CUSTOM_CLASSES:
        assert not BAD_ADVICE.search(re.sub("'[^']*'", "", message))
    assert [file.name for file in tmp_path.iterdir()] == ["agent.keras"]


def test_hostile_configuration_is_refused_before_keras_builds_a_layer(save, monkeypatch):
    """These attacks ran code or filled the memory while Keras built the model."""

    def fail(*args, **kwargs):
        raise AssertionError("Keras must not read the file")

    monkeypatch.setattr(keras.saving, "load_model", fail)
    names = ["os.system", "Lambda", "TFSMLayer", "200 million units", "3,000 layers"]
    for name in [*names, "huge input", "RepeatVector", "gamma is text", "typespec"]:
        with pytest.raises(ValueError, match="cannot be loaded"):
            tfr.load(save(CONFIGS[name]))


def test_layer_that_needs_more_weights_than_the_file_has_is_not_allocated(
    save, monkeypatch
):
    """10^6 inputs and 300 units have 10^9 bytes of weights."""
    shapes = []
    make_values = keras.initializers.Orthogonal.__call__

    def edit(config):
        layers = config["config"]["policy"]["config"]["layers"]
        layers[0]["config"]["batch_shape"] = [None, 10**6]
        dense(config)["config"]["units"] = 300
        dense(config)["build_config"] = {"input_shape": [None, 10**6]}

    def record(self, shape, dtype=None):
        shapes.append(shape)
        return make_values(self, shape, dtype)

    monkeypatch.setattr(keras.initializers.Orthogonal, "__call__", record)
    with pytest.raises(ValueError, match="more weights than the file contains"):
        tfr.load(save(edit))
    assert shapes == []


def test_caller_can_raise_the_limit_of_layers(save):
    path = save(lambda config: None)
    assert tfr.load(path, limits=tfr.LoadLimits(max_layers=10)).gamma == 0.99
    with pytest.raises(ValueError, match="limit of 2.*\\(max_layers=.*--max-layers N"):
        tfr.load(path, limits=tfr.LoadLimits(max_bytes=10**6, max_layers=2))
    with pytest.raises(ValueError, match="max_layers"):
        tfr.LoadLimits(max_layers=0)


def test_agent_without_the_saved_state_of_its_optimizer_is_refused(members, tmp_path):
    """Keras would warn, and continue with a new optimizer."""
    data = io.BytesIO(members["model.weights.h5"])
    with h5py.File(data, "r+") as file:
        del file["optimizer"]
    write(tmp_path / "a.keras", {**members, "model.weights.h5": data.getvalue()})
    with pytest.raises(ValueError, match="Skipping variable loading for optimizer"):
        tfr.load(tmp_path / "a.keras")


def test_limits_of_sizes_accept_the_largest_allowed_argument(members):
    """The limits are inclusive."""
    config = json.loads(members["config.json"])
    edited = dense(config)["config"]
    edited["units"] = 40
    objects.check(config, None, 40, tfr.LoadLimits())
    with pytest.raises(ValueError, match="units is 40, and .* only 39 bytes"):
        objects.check(config, None, 39, tfr.LoadLimits())
    edited["units"] = 4
    objects.check(config, None, 40, tfr.LoadLimits())


def test_numbers_that_are_no_sizes_are_not_limited(tmp_path):
    """A schedule may decay over 10^9 steps, and an observation be an identifier."""
    large, schedules = 10**9, keras.optimizers.schedules
    x = keras.Input((2,))
    edges = keras.layers.Discretization([0, large])(x)
    masked = keras.layers.Masking(-large)(x)
    words = keras.layers.IntegerLookup(vocabulary=[large])(keras.ops.cast(x, "int64"))
    hashes = keras.layers.Hashing(3, salt=large)(keras.ops.cast(x, "int64"))
    parts = [keras.ops.cast(part, "float32") for part in (edges, masked, words, hashes)]
    whole = keras.layers.Dropout(0.0, seed=large)(keras.ops.concatenate(parts))
    agent = tfr.Reinforce(
        keras.Model(x, keras.layers.Dense(3)(whole)),
        tfr.heads.Categorical(3, start=large),
        entropy_coef=schedules.PolynomialDecay(0.1, large, 0.0),
    )
    agent.compile(keras.optimizers.Adam(schedules.ExponentialDecay(0.1, large, 0.5)))
    numbers = gym.spaces.Box(-large, large, (2,), np.int32)
    agent.build_for_spaces(numbers, gym.spaces.Discrete(3, start=large))
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    for part in ("optimizer", "entropy_coef", "head"):
        assert getattr(loaded, part).get_config() == getattr(agent, part).get_config()
    batch = np.array([[large, -large], [5, 0]], "int32")
    np.testing.assert_array_equal(loaded.policy(batch), agent.policy(batch))


@pytest.mark.parametrize("name, largest", [("Dense", 55), ("LSTM", 12)])
def test_layers_that_keras_builds_slowly_count_as_several(members, name, largest):
    """One of n layers in sequence counts as 1 + n/16, a recurrent layer as 16 + n/16."""

    def check(count):
        config = json.loads(members["config.json"])
        layer = {"class_name": name, "module": "keras.layers", "config": {"units": 2}}
        layers = {"name": "policy", "layers": [layer] * count}
        config["config"]["policy"] = {
            "class_name": "Sequential",
            "module": "keras",
            "config": layers,
        }
        objects.check(config, None, 100, tfr.LoadLimits())

    check(largest)
    with pytest.raises(ValueError, match="more layers and calls of layers"):
        check(largest * 2)
