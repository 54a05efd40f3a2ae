"""Tests that every format computes the actions of the agent, for every head."""

import itertools
import json

import gymnasium as gym
import keras
import numpy as np
import parts
import pytest
import tensorflow as tf
import toys
from gymnasium.spaces import Box
from gymnasium.spaces import Dict
from gymnasium.spaces import Discrete
from gymnasium.spaces import MultiBinary
from gymnasium.spaces import MultiDiscrete
from gymnasium.spaces import Tuple

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.testing import export_report

FORMATS = "tf_saved_model", "onnx", "litert"
INF = float("inf")

# The action space and the head; `None` is the default head of the space.
ACTIONS = {
    **{name: (example.space, example.make) for name, example in parts.HEADS.items()},
    "HalfBounded": (Box(np.array([-1, 0, -INF], "f"), np.array([1, INF, 3], "f")), None),
    "GaussianIntegers": (Box(0, 10, (3,), np.int64), None),
    "GaussianScales": (parts.BOX_SPACE, lambda: parts.HEADS["Gaussian"].make(2)),
    "Nested": (
        Dict({"z a": Tuple([Discrete(2), Dict(b=MultiBinary(2))]), "c": Box(0, 9)}),
        None,
    ),
}
OBSERVATIONS = {
    "float64": Box(0, INF, (2, 2), np.float64),
    "pixels": Box(0, 255, (36, 40, 3), np.uint8),
    "categories": Tuple([Discrete(5, start=-3), MultiDiscrete([[2, 3], [4, 2]])]),
    "noise": Dict(
        {"noise": Box(-1, 1, (2,)), "seed": MultiBinary(3), "count": Box(-5, 5, (), int)}
    ),
}
# Action types that differ from those in which the head computes.
TYPES = {
    name: Box(0, 100, (2,), name)
    for name in ("float16", "float64", "uint8", "int16", "int32", "uint32", "uint64")
}


class Spaces(gym.Env):
    """An environment that only has spaces."""

    def __init__(self, observation_space, action_space):
        self.observation_space, self.action_space = observation_space, action_space

    def reset(self, *, seed=None, options=None):
        raise AssertionError("the test plays no episodes")


def make_agent(observed, acted, head=None, normalizer=False, mask=False, recurrent=False):
    """Returns a built agent with random weights that change actions."""
    keras.utils.set_random_seed(1)
    options = {"normalize_observations": normalizer}
    if head is not None:
        options["head"] = head()
    if mask:
        options["action_mask"] = "info/action_mask"
    if recurrent:
        size = (options.get("head") or heads.for_space(acted)).outputs_size
        sequence = [keras.Input((None, *observed.shape))]
        sequence += [
            keras.layers.GRU(5, return_sequences=True),
            keras.layers.LSTM(4, return_sequences=True),
        ]
        policy = keras.Sequential([*sequence, keras.layers.Dense(size)])
        agent = tfr.Reinforce(policy, **options)
    else:
        env = Spaces(observed, acted)
        agent = tfr.Reinforce.for_env(lambda: env, hidden=(8,), **options)
    agent.build_for_spaces(observed, acted)
    rng = np.random.default_rng(0)
    for weight in agent.policy.trainable_variables:
        weight.assign(weight + 0.3 * rng.standard_normal(weight.shape))
    if normalizer:
        agent.normalizer.update(rng.normal(2.0, 3.0, (50, *observed.shape)).astype("f"))
    return agent


def check(agent, path, format):
    agent.export(path, format=format)
    report = export_report.check_export(agent, path)
    assert report.passed, f"{format}\n{report}"
    metadata = json.loads((path / "policy.json").read_text())
    assert metadata["format"] == format
    return report


@pytest.mark.parametrize("head", ACTIONS)
@pytest.mark.parametrize(
    "normalizer, mask, recurrent", [*itertools.product((False, True), repeat=3)]
)
@pytest.mark.slow
def test_every_format_equals_the_agent(head, normalizer, mask, recurrent, tmp_path):
    space, make_head = ACTIONS[head]
    if mask and not (make_head() if make_head else heads.for_space(space)).mask_size:
        pytest.skip("the head has no masks")
    agent = make_agent(
        Box(-INF, INF, (3,)), space, make_head, normalizer, mask, recurrent
    )
    for format in FORMATS:
        report = check(agent, tmp_path / format, format)
        assert report.observations == 1000 and report.ties <= 3


@pytest.mark.slow
@pytest.mark.parametrize("observations", OBSERVATIONS)
def test_every_format_reads_every_observation(observations, tmp_path):
    agent = make_agent(OBSERVATIONS[observations], Discrete(3))
    for format in FORMATS:
        check(agent, tmp_path / format, format)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", TYPES)
def test_actions_have_the_number_type_of_the_space(dtype, tmp_path):
    agent = make_agent(Box(-1, 1, (2,)), TYPES[dtype])
    for format in FORMATS:
        if (dtype, format) == ("uint64", "litert"):
            with pytest.raises(ValueError, match="Received: format='litert'"):
                agent.export(tmp_path / format, format=format)
            continue
        check(agent, tmp_path / format, format)


@keras.saving.register_keras_serializable("test_export_parity")
class MatrixInverse(keras.layers.Layer):
    """A layer with an operation that neither ONNX nor LiteRT has."""

    def call(self, x):
        return tf.linalg.inv(x[:, :, None] * x[:, None, :] + tf.eye(3))[:, 0]


def refused_agent(dtype="float32", layer=None):
    layers = [layer] if layer else []
    policy = keras.Sequential(
        [keras.Input((3,), dtype=dtype), *layers, keras.layers.Dense(2, dtype=dtype)]
    )
    agent = tfr.Reinforce(policy)
    agent.build_for_spaces(Box(-1, 1, (3,)), Discrete(2))
    return agent


def test_format_that_cannot_express_the_policy_keeps_the_earlier_export(tmp_path):
    path = tmp_path / "policy"
    refused_agent().export(path, format="onnx")
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    assert set(before) > {"act.onnx", "distribution.onnx", "sample.onnx", "policy.json"}
    expected = (
        r"(?s)Received: format='onnx'.*Categorical\(size=2.*Use format='tf_saved_model'"
    )
    with pytest.raises(ValueError, match=expected):
        refused_agent(layer=MatrixInverse()).export(path, format="onnx")
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before


@pytest.mark.slow
def test_litert_refuses_other_operations_and_float64(tmp_path):
    for agent in (refused_agent(layer=MatrixInverse()), refused_agent("float64")):
        with pytest.raises(
            ValueError, match="Received: format='litert'.*head Categorical"
        ):
            agent.export(tmp_path / "policy", format="litert")
    assert list(tmp_path.iterdir()) == []


def test_metadata_name_the_noise_of_each_part_of_an_action(tmp_path):
    """Real numbers need normal noise. Choices and flags need uniform noise."""
    agent = make_agent(Box(-1, 1, (2,)), ACTIONS["Nested"][0])
    agent.export(tmp_path / "policy", format="onnx")
    metadata = json.loads((tmp_path / "policy" / "policy.json").read_text())
    inputs = metadata["functions"]["sample"]["inputs"]
    found = {x["name"]: x["distribution"] for x in inputs if x["role"] == "noise"}
    assert found == {
        "noise_c": "normal",
        "noise_z_a_0": "uniform",
        "noise_z_a_1_b": "uniform",
    }


def test_metadata_contain_the_learned_initial_state(tmp_path):
    agent = tfr.Reinforce(toys.with_learned_start(3, 1))
    agent.build_for_spaces(Box(-1, 1, (3,)), Box(-1, 1, (1,)))
    [start] = [x for x in agent.policy.weights if x.path.endswith("start")]
    start.assign([1.0, 2.0, 3.0, -4.0, 0.5])
    agent.export(tmp_path / "policy", format="onnx")
    metadata = json.loads((tmp_path / "policy" / "policy.json").read_text())
    assert metadata["initial_state"] == {"state_0": [1.0, 2.0, 3.0, -4.0, 0.5]}
