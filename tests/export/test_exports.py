"""Tests that the exported policy equals the agent and requires only TensorFlow."""

import json
import logging
import os
import re
import subprocess
import sys

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce.cli import entry
from tf_reinforce.cli import export
from tf_reinforce.export import formats
from tf_reinforce.export import policy_functions
from tf_reinforce.export import runtimes
from tf_reinforce.support import files

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


def test_export_has_four_signatures_also_as_attributes(exported):
    _, policy = exported
    assert set(SIGNATURES) <= set(policy.signatures)
    assert not hasattr(policy, "initial_state")  # the policy is not recurrent
    assert all(callable(getattr(policy, name)) for name in SIGNATURES)


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_exported_actions_equal_those_of_the_agent_for_any_batch_size(exported, rows):
    agent, policy = exported
    observations = batch(agent, rows)
    live = agent.act(observations, deterministic=True)
    same_bits(policy.act(observations)["action"], live)
    for seed in (0, 2**40):
        drawn = policy.sample(observations, tf.constant(seed, tf.int64))
        same_bits(drawn["action"], agent.act(observations, seed=seed))
        assert len(drawn["raw_action"]) == rows
    assert live.dtype == agent.action_space.dtype
    assert all(agent.action_space.contains(action) for action in live)


@pytest.mark.parametrize("rows", [1, 3, 1000])
def test_exported_distribution_equals_that_of_the_agent(exported, rows):
    agent, policy = exported
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
    """`_live_policy` of the agent has the functions that the export contains."""
    agent, policy = exported
    observations = batch(agent, 7)
    live = agent._live_policy.functions
    for name in ("act", "distribution"):
        for key, values in live[name](observations).items():
            same_bits(getattr(policy, name)(observations)[key], values)
    seed = tf.constant(4, tf.int64)
    drawn = live["sample"](observations, seed)
    for key, values in drawn.items():
        same_bits(policy.sample(observations, seed)[key], values)
    given = observations, drawn["raw_action"]
    same_bits(policy.log_prob(*given)["log_prob"], live["log_prob"](*given)["log_prob"])


def test_signatures_accept_observations_by_name(exported):
    agent, policy = exported
    observations = batch(agent, 3)
    named, seed = by_name(observations), tf.constant(9, tf.int64)
    for name, more in (("act", {}), ("distribution", {}), ("sample", {"seed": seed})):
        found = policy.signatures[name](**named, **more)
        expected = getattr(policy, name)(observations, *more.values())
        assert set(found) == set(expected)
        for key, values in expected.items():
            same_bits(found[key], values)
    raw = policy.sample(observations, seed)["raw_action"]
    found = policy.signatures["log_prob"](**named, raw_action=raw)
    same_bits(found["log_prob"], policy.log_prob(observations, raw)["log_prob"])


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
    metadata = runtimes.read_metadata(tmp_path)["functions"]
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


def test_observations_named_as_an_argument_get_a_prefix(tmp_path):
    """Without the prefix, TensorFlow would rename one of the two to `seed_1`."""
    space = gym.spaces.Dict(
        {name: gym.spaces.Box(0, 1, (2,)) for name in ("raw_action", "seed", "x")}
    )
    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space))
    agent.export(tmp_path / "policy")
    policy = tf.saved_model.load(tmp_path / "policy")
    observations, seed = batch(agent, 3), tf.constant(9, tf.int64)
    expected = policy.sample(observations, seed)
    inputs = {
        "observation_raw_action": observations["raw_action"],
        "observation_seed": observations["seed"],
        "x": observations["x"],
    }
    found = policy.signatures["sample"](**inputs, seed=seed)
    same_bits(found["raw_action"], expected["raw_action"])
    raw = expected["raw_action"]
    found = policy.signatures["log_prob"](**inputs, raw_action=raw)
    same_bits(found["log_prob"], policy.log_prob(observations, raw)["log_prob"])


@pytest.mark.parametrize(
    "format", sweeps.some(formats.WRITERS, always=["tf_saved_model", "onnx"])
)
def test_every_name_of_an_observation_is_that_of_metadata_and_file(format, tmp_path):
    """TensorFlow refuses `self` and `class`, and would rename `a.b` and `0`.

    The others are arguments or results; formats without random numbers have `noise`.
    """
    own = "noise", "seed", "raw_action", "action", "log_prob", "logits"
    keys = "a.b", "0", "self", "class", "x y", *own
    space = gym.spaces.Dict({key: gym.spaces.Box(0, 1, (2,)) for key in keys})
    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space))
    agent.export(tmp_path / "policy", format=format)
    metadata = runtimes.read_metadata(tmp_path / "policy")
    names = {x["name"] for x in metadata["functions"]["act"]["inputs"]}
    prefixed = {f"observation_{name}" for name in ("0", "self", "class", *own)}
    assert names == {"a_b", "x_y", *prefixed}
    act = runtimes.load(tmp_path / "policy")["act"]
    rng = np.random.default_rng(0)
    rows = {key: rng.normal(size=(50, 2)).astype("float32") for key in keys}
    arguments = {re.sub("[. ]", "_", key): x for key, x in rows.items()}
    arguments |= {f"observation_{key}": x for key, x in rows.items()}
    actions = act(arguments)["action"]
    assert len(set(actions.tolist())) > 1
    assert actions.tolist() == agent.act(rows, deterministic=True).tolist()


def test_more_than_ten_recurrent_states_keep_their_order():
    """In the order of text, `state_10` is between `state_1` and `state_2`.

    `act` calls the function that is exported.
    """
    cells = [keras.layers.SimpleRNNCell(1, activation=None) for _ in range(11)]
    memory = keras.layers.RNN(cells, return_sequences=True)
    agent = tfr.Reinforce(keras.Sequential([keras.Input((None, 1)), memory]))
    agent.build_for_spaces(*2 * [gym.spaces.Box(-np.inf, np.inf, (1,))])
    rng = np.random.default_rng(0)
    weights = agent.policy.get_weights()
    agent.policy.set_weights([rng.uniform(0.5, 1, x.shape) for x in weights])
    seen, state = rng.normal(size=(2, 4, 1)).astype("float32"), None
    for step, expected in enumerate(np.moveaxis(agent.policy(seen).numpy(), 1, 0)):
        actions, state = agent.act(seen[:, step], deterministic=True, state=state)
        np.testing.assert_allclose(actions, expected, rtol=1e-5)


def test_names_that_differ_in_case_raise_in_a_saved_model_only(tmp_path):
    space = gym.spaces.Dict({key: gym.spaces.Box(0, 1, (2,)) for key in "Aa"})
    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space))
    agent.export(tmp_path / "onnx", format="onnx")
    with pytest.raises(ValueError, match="do not distinguish upper from lower case"):
        agent.export(tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


def test_export_raises_if_prefixed_observation_names_collide(tmp_path):
    space = gym.spaces.Dict(
        {name: gym.spaces.Box(0, 1, (2,)) for name in ("observation_seed", "seed")}
    )
    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space))
    with pytest.raises(
        ValueError, match="a different name of letters.*'observation_seed'.*Rename"
    ):
        agent.export(tmp_path / "policy")
    assert not (tmp_path / "policy").exists()


def test_signature_names_raises_if_two_parts_get_the_same_name():
    with pytest.raises(ValueError, match="a different name of letters.*'action_a_b'"):
        policy_functions.signature_names({"a b": 1, "a_b": 2}, "action")


def test_exported_functions_are_not_traced_again(exports):
    agent, path = exports["Dict"]
    policy = tf.saved_model.load(path)
    observations = [batch(agent, rows) for rows in (1, 2, 5, 9)]
    functions = [getattr(policy, name) for name in ("act", "sample")]
    before = [len(function.concrete_functions) for function in functions]
    for call in range(12):
        policy.act(observations[call % 4])
        policy.sample(observations[call % 4], tf.constant(call, tf.int64))
    assert [len(function.concrete_functions) for function in functions] == before


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


def file_contents(path):
    found = {}
    for root, _, names in os.walk(path):
        for name in names:
            with open(os.path.join(root, name), "rb") as file:
                found[os.path.relpath(os.path.join(root, name), path)] = file.read()
    return found


@pytest.fixture
def agent(exports):
    return exports["Discrete with a start"][0]


def test_export_replaces_the_whole_folder(agent, tmp_path):
    path = tmp_path / "policy"
    with files.atomic_replace_folder(path) as temporary:
        os.makedirs(temporary)
        open(os.path.join(temporary, "old"), "w").close()
    agent.export(path)
    assert not (path / "old").exists()
    assert os.listdir(tmp_path) == ["policy"]
    observations = batch(agent, 2)
    policy = tf.saved_model.load(str(path))
    found = policy.act(observations)["action"]
    same_bits(found, agent.act(observations, deterministic=True))


@pytest.mark.parametrize("name", ["hidden=[64, 64]", "a*", "a?", "a\\b"])
def test_path_that_tensorflow_reads_as_a_pattern_is_refused(agent, tmp_path, name):
    """TensorFlow would write a SavedModel, and not find its variables."""
    for path in (tmp_path / name, tmp_path / name / "policy"):
        with pytest.raises(ValueError, match=r"characters \* \? \[ .*Choose another"):
            agent.export(path)
    assert os.listdir(tmp_path) == []
    agent.export(tmp_path / name, format="onnx")
    assert (tmp_path / name / "act.onnx").exists()


@pytest.mark.parametrize("command", ["export", "train"])
def test_commands_refuse_such_a_path_before_they_start(command, tmp_path, capsys):
    out = str(tmp_path / "a[1]")
    arguments = {
        "export": ["no_such_run", "--out", out],
        "train": ["CartPole-v1", "--run-dir", out, "--export"],
    }
    assert entry.main([command, *arguments[command]]) == 2
    assert "characters * ? [" in capsys.readouterr().err
    assert os.listdir(tmp_path) == []


def test_export_keeps_its_weights_when_the_agent_changes(tmp_path):
    agent = tfr.Reinforce.for_env(toys.Bandit, hidden=())
    agent.export(tmp_path / "policy")
    policy = tf.saved_model.load(str(tmp_path / "policy"))
    observations = np.ones([1, 1], "float32")
    before = policy.distribution(observations)["probs"].numpy()
    for variable in agent.policy.trainable_variables:
        variable.assign(tf.reshape(tf.range(2.0), variable.shape))
    same_bits(policy.distribution(observations)["probs"], before)
    agent.export(tmp_path / "policy")
    policy = tf.saved_model.load(str(tmp_path / "policy"))
    probs = keras.ops.softmax(agent(observations))
    np.testing.assert_allclose(policy.distribution(observations)["probs"], probs, 1e-6)


def test_loaded_agent_exports_the_same_policy(agent, tmp_path):
    agent.save(tmp_path / "agent.keras")
    tfr.load(tmp_path / "agent.keras").export(tmp_path / "policy")
    policy, observations = tf.saved_model.load(str(tmp_path / "policy")), batch(agent, 5)
    found = policy.sample(observations, tf.constant(2, tf.int64))
    same_bits(found["action"], agent.act(observations, seed=2))


def test_export_raises_if_the_format_is_unknown(agent, tmp_path):
    with pytest.raises(ValueError, match="`format` must be one of.*Received.*keras"):
        agent.export(tmp_path / "policy", format="keras")
    assert os.listdir(tmp_path) == []


def test_each_format_has_a_writer_that_export_calls(agent, tmp_path, monkeypatch):
    calls = []

    def write(folder, *args):
        os.makedirs(folder)
        calls.append((folder, *args))

    monkeypatch.setitem(formats.WRITERS, "list", write)
    monkeypatch.setattr(formats, "_run_once", lambda folder, functions: None)
    agent.export(tmp_path / "policy", format="list")
    [(_, functions, layers)] = calls
    assert {"act", "sample"} <= set(functions)
    assert agent.policy in layers


@pytest.mark.parametrize("format, name", [("litert", "absl"), ("onnx", "tf2onnx")])
def test_conversion_leaves_the_logger_of_its_converter_as_it_was(
    format, name, tmp_path, caplog
):
    """An agent also converts its policy to LiteRT for its first actions in Gymnasium."""
    logger = logging.getLogger(name)
    caplog.set_level(logging.WARNING, name)
    agent = tfr.Reinforce.for_env(toys.Bandit, hidden=())
    before = logger.level, logger.propagate, [*logger.handlers]
    agent.export(tmp_path / "policy", format)
    assert before == (logger.level, logger.propagate, logger.handlers)


def test_command_line_offers_every_format():
    assert export._FORMATS == tuple(formats.WRITERS) == tuple(runtimes._RUNTIMES)


def test_export_raises_if_the_path_is_a_file(agent, tmp_path):
    (tmp_path / "policy").write_text("not an export")
    with pytest.raises(
        ValueError, match="must be a folder, not a file. Received: the file"
    ):
        agent.export(tmp_path / "policy")
    assert (tmp_path / "policy").read_text() == "not an export"
