"""Tests that the exported policy equals the agent and requires only TensorFlow."""

import inspect
import json
import re
import subprocess
import sys
import typing

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce.cli import commands
from tf_reinforce.export import formats
from tf_reinforce.testing import export_report

SIGNATURES = ["act", "sample", "distribution", "log_prob"]


class Aim(toys.Clock):
    """A `Clock` with bounded actions in float64."""

    action_space = gym.spaces.Box(-1.0, np.array([1.0, 0.5]), (2,), np.float64)


class Named(toys.Clock):
    """A `Clock` with a dict observation, in the order of its space."""

    observation_space = gym.spaces.Dict(
        speed=gym.spaces.Box(-1.0, 1.0, (2,)), place=gym.spaces.Box(-30.0, 30.0, (3,))
    )

    def _observation(self):
        half = np.full(3, 0.5, np.float32)
        return {"speed": half[:2], "place": half * self.now}


AGENTS = {
    "Discrete with a start": (toys.Lengths, {}),
    "Box with bounds": (Aim, {}),
    "normalizer": (toys.Lengths, {"normalize_observations": True}),
    "Dict": (Named, {}),
}


@pytest.fixture(scope="module")
def exports(tmp_path_factory):
    """Returns agents with random weights and the folders of their exported policies."""
    found, rng = {}, np.random.default_rng(0)
    for name, (env, settings) in AGENTS.items():
        agent = tfr.Reinforce.for_env(env, hidden=(4,), learning_rate=0.5, **settings)
        for variable in agent.policy_variables:
            variable.assign(rng.normal(size=variable.shape))
        if agent.normalizer is not None:
            agent.normalizer.update(
                rng.normal(3.0, 2.0, (9, *agent.observation_space.shape))
            )
        path = str(tmp_path_factory.mktemp("export") / "policy")
        agent.export(path)
        found[name] = agent, path
    return found


@pytest.fixture(scope="module", params=AGENTS)
def exported(exports, request):
    """Returns an agent, and its exported policy after loading."""
    agent, path = exports[request.param]
    return agent, tf.saved_model.load(path)


def batch(agent, rows):
    space, rng = agent.observation_space, np.random.default_rng(0)

    def draw(box):
        return tf.constant(rng.normal(size=(rows, *box.shape)), tf.float32)

    if isinstance(space, gym.spaces.Dict):
        return {name: draw(box) for name, box in space.items()}
    return draw(space)


def by_name(observations):
    """Returns the observations as keyword arguments of a signature."""
    named = isinstance(observations, dict)
    return observations if named else {"observation": observations}


def same_bits(first, second):
    first, second = np.asarray(first), np.asarray(second)
    assert first.dtype == second.dtype
    np.testing.assert_array_equal(first, second)


def test_exported_distribution_equals_that_of_the_agent(exported):
    (agent, policy), rows = exported, 1000
    observations = batch(agent, rows)
    outputs = agent(observations)
    expected = agent.head.parameters(outputs)
    found = policy.distribution(observations)
    assert set(found) == set(expected)
    for name, values in expected.items():
        np.testing.assert_allclose(found[name], values, rtol=1e-5, atol=1e-6)
    raw = policy.sample(observations, tf.constant(1, tf.int64))["raw_action"]
    log_prob = policy.log_prob(observations, raw)["log_prob"]
    assert log_prob.shape == (rows,)
    live = agent.head.distribution(outputs).log_prob(raw)
    np.testing.assert_allclose(log_prob, live, rtol=1e-5, atol=1e-6)


def test_exported_functions_equal_those_of_the_agent_to_the_bit(exported):
    """The live policy of the agent has the functions that the export contains."""
    agent, policy = exported
    observations = batch(agent, 7)
    live = agent.trainer.live_policy().functions
    for name in ("act", "distribution"):
        for key, values in live[name](observations).items():
            same_bits(getattr(policy, name)(observations)[key], values)
    seed = tf.constant(4, tf.int64)
    drawn = live["sample"](observations, seed)
    for key, values in drawn.items():
        same_bits(policy.sample(observations, seed)[key], values)
    given = observations, drawn["raw_action"]
    same_bits(policy.log_prob(*given)["log_prob"], live["log_prob"](*given)["log_prob"])


@pytest.fixture(scope="module")
def remembering():
    """Returns an agent whose exported functions have every kind of argument."""
    inputs = [keras.Input((None, 2), name=name) for name in ("place", "state")]
    hidden = keras.layers.GRU(3, return_sequences=True)(keras.layers.Add()(inputs))
    outputs = keras.layers.Dense(5)(hidden)
    policy = keras.Model(dict(zip(("place", "state"), inputs)), outputs)
    agent = tfr.Reinforce(policy, action_mask="info/action_mask")
    box = gym.spaces.Box(-1, 1, (2,))
    agent.build_for_spaces(
        gym.spaces.Dict(place=box, state=box),
        gym.spaces.Dict(arm=gym.spaces.Discrete(2), leg=gym.spaces.Discrete(3)),
    )
    return agent


def test_functions_take_each_argument_by_the_name_of_the_documents(remembering, tmp_path):
    """`policy.json` names the parts of nested arguments, as the signatures do."""
    remembering.export(tmp_path)
    policy = tf.saved_model.load(tmp_path)
    state = policy.initial_state(count=3)
    mask = tf.constant([[1, 0, 0, 1, 1]] * 3, tf.int8)
    given = {"observation": batch(remembering, 3), "action_mask": mask, "state": state}
    seed = tf.constant(3, tf.int64)
    drawn = policy.sample(**given, seed=seed)
    raw = {key: drawn[f"raw_action_{key}"] for key in ("arm", "leg")}
    own = {"sample": {"seed": seed}, "log_prob": {"raw_action": raw}}
    metadata = formats.read_metadata(tmp_path)["functions"]
    for name in SIGNATURES:
        found = getattr(policy, name)(**own.get(name, {}), **given)
        parts = {**given["observation"], **state, "action_mask": mask, "seed": seed}
        parts |= {f"raw_action_{key}": x for key, x in raw.items()}
        inputs = {x["name"]: parts[x["name"]] for x in metadata[name]["inputs"]}
        expected = policy.signatures[name](**inputs)
        assert (
            set(found) == set(expected) == {x["name"] for x in metadata[name]["results"]}
        )
        for key, values in expected.items():
            same_bits(found[key], values)
    live = remembering.act(
        given["observation"], action_mask=mask, deterministic=True, state=state
    )[0]
    found = policy.act(**given)
    same_bits(found["action_arm"], live["arm"])
    same_bits(found["action_leg"], live["leg"])


@pytest.mark.parametrize(
    "format", sweeps.some(formats.WRITERS, always=["tf_saved_model"])
)
def test_every_name_of_an_observation_is_that_of_metadata_and_file(format, tmp_path):
    """TensorFlow refuses `self` and `class`, and would rename `a.b` and `0`.

    The others are arguments or results; formats without random numbers have `noise`.
    """
    own = "noise", "seed", "raw_action", "action", "log_prob", "logits"
    keys = "a.b", "0", "self", "class", "x y", "count", *own
    space = gym.spaces.Dict({key: gym.spaces.Box(0, 1, (2,)) for key in keys})
    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space))
    agent.export(tmp_path / "policy", format=format)
    metadata = formats.read_metadata(tmp_path / "policy")
    names = {x["name"] for x in metadata["functions"]["act"]["inputs"]}
    prefixed = {f"observation_{name}" for name in ("0", "self", "class", *own)}
    assert names == {"a_b", "x_y", "count", *prefixed}
    act = formats.load(tmp_path / "policy")["act"]
    rng = np.random.default_rng(0)
    rows = {key: rng.normal(size=(50, 2)).astype("float32") for key in keys}
    arguments = {re.sub("[. ]", "_", key): x for key, x in rows.items()}
    arguments |= {f"observation_{key}": x for key, x in rows.items()}
    actions = act(arguments)["action"]
    assert len(set(actions.tolist())) > 1
    assert actions.tolist() == agent.act(rows, deterministic=True).tolist()
    assert export_report.check_export(agent, tmp_path / "policy", observations=20).passed


def test_names_that_differ_in_case_raise_in_a_saved_model_only(tmp_path):
    space = gym.spaces.Dict({key: gym.spaces.Box(0, 1, (2,)) for key in "Aa"})
    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space))
    agent.export(tmp_path / "onnx", format="onnx")
    with pytest.raises(ValueError, match="do not distinguish upper from lower case"):
        agent.export(tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


KNOWS_ONLY_TENSORFLOW = """
import json, sys
for name in ("keras", "tensorflow_probability", "tf_reinforce"):
    sys.modules[name] = None  # importing it fails
import tensorflow as tf
for path, given in json.load(sys.stdin):
    policy = tf.saved_model.load(path)
    given = {name: tf.constant(array) for name, array in given.items()}
    seed = tf.constant(5, tf.int64)
    action = policy.signatures["sample"](**given, seed=seed)["action"]
    print(json.dumps(action.numpy().tolist()))
"""


@pytest.mark.slow
def test_process_with_only_tensorflow_loads_the_export(exports):
    given = []
    for agent, path in exports.values():
        arrays = by_name(batch(agent, 3))
        given.append([path, {k: np.asarray(x).tolist() for k, x in arrays.items()}])
    answer = subprocess.run(
        [sys.executable, "-c", KNOWS_ONLY_TENSORFLOW],
        input=json.dumps(given),
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
    lines = answer.stdout.splitlines()
    for (agent, _), line in zip(exports.values(), lines, strict=True):
        live = agent.act(batch(agent, 3), seed=5)
        same_bits(np.array(json.loads(line), live.dtype), live)


def test_export_keeps_its_weights_when_the_agent_changes(tmp_path):
    agent, found = tfr.Reinforce.for_env(toys.Bandit, hidden=()), []
    for weight in (1.0, 2.0):
        agent.policy.layers[-1].bias.assign([0.0, weight])
        agent.export(tmp_path / "policy")
        found.append(tf.saved_model.load(tmp_path / "policy"))
    for policy, weight in zip(found, (1.0, 2.0), strict=True):
        probs = policy.distribution(np.zeros([1, 1], "float32"))["probs"]
        np.testing.assert_allclose(probs, tf.nn.softmax([[0.0, weight]]), 1e-6)


def test_command_line_offers_every_format():
    offered = typing.get_args(
        inspect.signature(commands.export).parameters["format"].annotation
    )
    assert offered == tuple(formats.WRITERS) == tuple(formats._LOADERS)
