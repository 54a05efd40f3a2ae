"""Tests that running statistics equal those of all data, and change in updates only."""

import functools
import types
import warnings

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys
from keras.src import testing

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.export import formats
from tf_reinforce.policies import normalization


def new_layer(shape=(None, 3), **kwargs):
    layer = normalization.RunningNormalization(**kwargs)
    layer.build(shape)
    return layer


def updated_layer(data, chunk, **kwargs):
    layer = new_layer((None, *data.shape[1:]), dtype="float64", **kwargs)
    for start in range(0, len(data), chunk):
        layer.update(data[start : start + chunk])
    return layer


@pytest.mark.parametrize("kind, origin", [("float64", 1e8), ("mixed_float16", 1e3)])
def test_small_differences_of_large_observations_are_normalized(kind, origin):
    """The statistics use observations that are not cast to the type of the policy."""
    keras.config.set_dtype_policy(kind)
    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    agent = tfr.Reinforce(policy, heads.Categorical(2), normalize_observations=True)
    agent.compile()
    dtype = "float64" if kind == "float64" else "float32"
    seen = (origin + np.arange(4.0) / 8)[:, None, None].astype(dtype)
    ended = dict(lengths=[3], terminated=[True])
    agent.update(tfr.Episodes(seen, np.zeros((3, 1), int), np.ones((3, 1)), **ended))
    found = agent.normalizer(seen[:3, 0]).numpy()[:, 0]
    steps = np.array([-1.0, 0.0, 1.0]) / 8
    deviation = np.sqrt(1 / 96 + agent.normalizer.epsilon)
    rtol = 1e-12 if kind == "float64" else 1e-6  # half precision has 5e-4
    np.testing.assert_allclose(found, steps / deviation, rtol)


DATA = np.random.default_rng(0).normal(3.0, 2.0, size=(600, 3))


@pytest.mark.parametrize(
    "origin, chunk",
    sweeps.some(
        [(origin, chunk) for origin in (0.0, 1e8) for chunk in (1, 7, 64, 600)],
        always=[(0.0, 7), (0.0, 600), (1e8, 7), (1e8, 64)],
    ),
)
def test_statistics_do_not_depend_on_how_the_data_are_split(chunk, origin):
    """The test includes nearly constant data far from zero.

    The expected values are computed near zero, because the subtraction is exact.
    """
    data = origin + DATA
    layer, near = updated_layer(data, chunk), data - origin
    variance = layer.squares[0].numpy() / len(data)
    np.testing.assert_allclose(layer.shifts[0], origin + near.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance, near.var(axis=0), rtol=1e-12)
    assert float(layer.count) == len(data)


def test_normalized_data_equal_the_formula():
    layer = updated_layer(DATA, 50, clip=2.0)
    truth = (DATA - DATA.mean(axis=0)) / np.sqrt(DATA.var(axis=0) + 1e-8)
    expected = np.clip(truth, -2.0, 2.0)
    np.testing.assert_allclose(layer(DATA), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_observations_are_unchanged_before_the_first_update(dtype):
    observations = np.array([[0.1, -1e30, 3e38]], dtype)
    normalized = new_layer(dtype=dtype)(observations)
    assert normalized.dtype == dtype
    np.testing.assert_array_equal(normalized, observations)


def test_calling_the_layer_changes_no_variable():
    layer = updated_layer(DATA, 100)
    before = layer.get_weights()
    layer(DATA + 5.0)
    for old, new in zip(before, layer.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)


def test_call_depends_on_the_acting_variables_only():
    """Only these variables are copied to the acting program after an update."""
    layer, far = updated_layer(DATA, 100), DATA * 9.0
    before = layer(far).numpy()
    acting = {id(variable) for variable in layer.acting_variables}
    for variable in layer.variables:
        if id(variable) not in acting:
            variable.assign(variable + 7.0)
    np.testing.assert_array_equal(layer(far), before)
    for variable in layer.acting_variables:
        kept = variable.numpy()
        variable.assign(kept * 0.5)
        assert (layer(far).numpy() != before).any()
        variable.assign(kept)


NESTED = {"z": (None, 2), "a": ((None, 2, 2), {"n": (None, 1), "b": (None, 3)})}


def nested(count=50):
    rng = np.random.default_rng(1)
    return {
        "z": rng.normal(1.0, 5.0, size=(count, 2)),
        "a": (
            rng.normal(-9.0, 0.1, size=(count, 2, 2)),
            {
                "n": rng.integers(0, 9, size=(count, 1)).astype("int64"),
                "b": rng.normal(size=(count, 3)),
            },
        ),
    }


BARE = {"z": (None, 2), "a": ((None, 2, 2), {"n": (), "b": (None, 3)})}


def test_arrays_without_shape_are_unchanged_and_have_no_statistics():
    """The statistics of an image would be several times as large as the image."""
    layer, bare, data = new_layer(NESTED), new_layer(BARE), nested()
    for one in (layer, bare):
        one.update(data)
    assert len(bare.means) == len(layer.means) - 1 and bare.count == 50
    normalized, unchanged = layer(data), bare(data)
    numbers = normalized["a"][1].pop("n")
    np.testing.assert_allclose([np.mean(numbers), np.std(numbers)], [0, 1], atol=1e-6)
    np.testing.assert_array_equal(unchanged["a"][1].pop("n"), data["a"][1]["n"])
    for one, other in zip(*map(keras.tree.flatten, (normalized, unchanged)), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.filterwarnings("ignore:.*(shuffle=True|no trainable weights|any trainable)")
@pytest.mark.parametrize("dtype", ["float32", "int32"])
def test_layer_passes_the_layer_test_of_keras(dtype):
    """Among others with mixed precision, saved configs, symbolic calls and a `fit`."""
    testing.TestCase().run_layer_test(
        normalization.RunningNormalization,
        {"epsilon": 1e-3, "clip": 3.0},
        input_shape=(3, 4),
        input_dtype=dtype,
        expected_output_shape=(3, 4),
        expected_num_trainable_weights=0,
    )


# Large numbers with small differences


class Far(gym.Env):
    """Observes an offset that decides which action is right, added to a large number."""

    def __init__(self, origin=0.0, dtype="float64"):
        self.origin, self.dtype = origin, dtype
        self.observation_space = gym.spaces.Box(-2e9, 2e9, (1,), dtype)
        self.action_space = gym.spaces.Discrete(2)

    def _observe(self):
        self.offset = self.np_random.integers(-30, 30)
        return np.array([self.origin + self.offset], self.dtype)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.steps = 0
        return self._observe(), {}

    def step(self, action):
        reward, self.steps = float(action == (self.offset > 0)), self.steps + 1
        return self._observe(), reward, self.steps == 5, False, {}


@functools.cache
def rewindable(dtype):
    env = Far(dtype=dtype)
    agent = tfr.Reinforce.for_env(env, hidden=(8,), seed=1, normalize_observations=True)
    agent.compile(keras.optimizers.SGD(0.0))
    return agent, toys.rewinding(agent, env)


def far_agent(env, dtype):
    """Returns an agent that has learned the statistics, but nothing else."""
    agent, rewind = rewindable(dtype)
    rewind()
    agent.fit(env, epochs=1, episodes_per_epoch=8, seed=2, verbose=0)
    agent.optimizer.learning_rate = 1.0
    return agent


FAR = [(1.7e9, "float64"), (1e5, "int32"), (1.7e9, "int64")]


OFFSETS = np.arange(-30.0, 30.0)[:, None]


@functools.cache
def results_at(origin=0.0, dtype="float64"):
    """Returns an agent far from zero, its episodes, and what it computes by all ways."""
    env = lambda: Far(origin, dtype)  # noqa: E731
    agent = far_agent(env, dtype)
    episodes = agent.collect(env, 8, seed=3)
    actions = [
        agent.act(OFFSETS + origin, deterministic=deterministic, seed=4)
        for deterministic in (True, False)
    ]
    gradients = [np.array(x) for x in agent.gradients(episodes)[0]]
    options = dict(epochs=2, episodes_per_epoch=8, seed=5, verbose=0)
    returns = agent.fit(env, **options).history["episode_return"]
    returns = [returns, agent.evaluate(env, episodes=8)]
    far = tf.constant(OFFSETS + origin, dtype)
    distribution = agent.trainer.live_policy().functions["distribution"](far)
    return agent, episodes, actions, gradients, returns, distribution


@pytest.mark.slow
@pytest.mark.parametrize("origin, dtype", FAR)
def test_large_observations_with_small_differences_are_normalized_everywhere(
    origin, dtype, tmp_path, caplog
):
    """All results equal those for observations near zero, which are exact in float32."""
    agent, large, *results, _ = results_at(origin, dtype)
    agent.save(tmp_path / "agent.keras")
    _, plain, *expected, truth = results_at()
    assert "TensorFlow instead" not in caplog.text
    np.testing.assert_array_equal(plain.observations + origin, large.observations)
    np.testing.assert_array_equal(plain.actions, large.actions)
    np.testing.assert_array_equal(results[0], expected[0])
    for one, other in zip(expected[1], results[1]):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)
    assert results[2] == expected[2]
    loaded = tfr.load(tmp_path / "agent.keras")
    loaded.export(tmp_path / "tf_saved_model")
    if dtype == "float64":
        with warnings.catch_warnings(record=True) as caught:  # on 3.13, also AutoGraph's
            warnings.simplefilter("always")
            loaded.export(tmp_path / "litert", "litert")
        assert any("rounds the observations by up to" in str(x.message) for x in caught)
        given = {name: np.zeros((2, 1), "f") for name in ("observation", "ignored")}
        assert len(formats.load(tmp_path / "litert")["act"](given)["action"]) == 2
    exported = tf.saved_model.load(tmp_path / "tf_saved_model")
    result = exported.distribution(tf.constant(OFFSETS + origin, dtype))
    for key, value in truth.items():
        np.testing.assert_allclose(result[key], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("normalizes", [True, False])
def test_value_network_of_for_env_reads_the_integers_that_the_policy_reads(normalizes):
    """An integer input of one of both would prevent that the agent normalizes."""
    agent = tfr.Reinforce.for_env(
        lambda: Far(1e5, "int32"),
        hidden=(2,),
        baseline="value",
        normalize_observations=normalizes,
    )
    models = agent.policy, agent.baseline.model
    expected = "float32" if normalizes else "int32"
    assert [model.inputs[0].dtype for model in models] == [expected] * 2
    assert agent.normalizer is None or len(agent.normalizer.means) == normalizes


def test_categories_flags_images_and_integer_inputs_are_not_normalized():
    """A warning names what stays as it is."""

    def policy(dtype):
        inputs = keras.Input((1,), dtype=dtype)
        return keras.Model(inputs, keras.layers.Dense(2)(inputs))

    space = gym.spaces.Box(0, 255, (1,), np.uint8)
    agents = [
        tfr.Reinforce(policy(x), normalize_observations=True)
        for x in ("uint8", "float32")
    ]
    with pytest.warns(UserWarning, match="leaves observation unchanged.*integer input"):
        agents[0].build_for_spaces(space, gym.spaces.Discrete(2))
    agents[1].build_for_spaces(space, gym.spaces.Discrete(2))
    assert [len(agent.normalizer.means) for agent in agents] == [0, 1]
    parts = dict(
        category=gym.spaces.Discrete(3),
        categories=gym.spaces.MultiDiscrete([3, 4]),
        flags=gym.spaces.Box(0, 1, (3,), np.int8),
        image=gym.spaces.Box(0, 255, (8, 8, 3), np.uint8),
    )
    env = types.SimpleNamespace(
        observation_space=gym.spaces.Dict(parts), action_space=gym.spaces.Discrete(2)
    )
    inputs = [keras.Input(x.shape, name=name) for name, x in sorted(parts.items())]
    flat = [keras.layers.Flatten()(x[:, None]) for x in inputs]
    outputs = keras.layers.Dense(2)(keras.layers.Concatenate()(flat))
    model = keras.Model({x.name: x for x in inputs}, outputs)
    agent = tfr.Reinforce(model, normalize_observations=True)
    agent.compile("sgd")
    with pytest.warns(UserWarning, match="has no effect.*categories, flags or images"):
        agent.build_for_env(env)
    assert agent.normalizer.means == []


def test_agents_of_earlier_versions_leave_integers_unchanged():
    inputs = keras.Input((1,))
    policy = keras.Model(inputs, keras.layers.Dense(2)(inputs))
    agent = tfr.Reinforce(policy, normalize_observations=True)
    space = gym.spaces.Box(0, 255, (1,), np.int64)
    agent.build_for_spaces(space, gym.spaces.Discrete(2))
    config = agent.get_build_config()
    assert config.pop("normalizes_integers")
    old = tfr.Reinforce.from_config(agent.get_config())
    old.build_from_config(config)
    again = tfr.Reinforce.from_config(old.get_config())
    again.build_from_config(old.get_build_config())
    assert old.normalizer.means == again.normalizer.means == []
    assert len(agent.normalizer.means) == 1
