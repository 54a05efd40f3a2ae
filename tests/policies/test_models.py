"""Tests how an agent builds and checks its Keras models."""

import warnings

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf

import tf_reinforce as tfr

layers = keras.layers


class TwoLayers(keras.Model):
    """A subclassed model without a method `build`."""

    def __init__(self, size, one_hot=0, **kwargs):
        super().__init__(**kwargs)
        self.size = size
        self.one_hot = one_hot
        options = dict(dtype=self.dtype_policy)
        self.hidden = layers.Dense(5, "tanh", **options)
        self.last = layers.Dense(size, **options)

    def call(self, x):
        if self.one_hot:
            x = tf.one_hot(x, self.one_hot)  # refuses real numbers
        return self.last(self.hidden(x))

    def get_config(self):
        return {**super().get_config(), "size": self.size, "one_hot": self.one_hot}


def functional(size, dtype):
    x = keras.Input((4,), dtype=dtype)
    hidden = layers.Dense(5, "tanh", dtype=dtype)(x)
    return keras.Model(x, layers.Dense(size, dtype=dtype)(hidden), dtype=dtype)


def agent_of(make, dtype):
    baseline = tfr.baselines.Value(make(1, dtype=dtype), keras.optimizers.SGD(0.1))
    agent = tfr.Reinforce(make(2, dtype=dtype), baseline=baseline)
    agent.compile(keras.optimizers.SGD(0.1))
    return agent


@pytest.mark.parametrize("dtype", [sweeps.rare("float32"), "float64"])
def test_subclassed_models_learn_like_functional_models(dtype):
    """Keras' own `build` of a subclassed model would create no weights."""
    env = gym.make("CartPole-v1")
    agents = agent_of(TwoLayers, dtype), agent_of(functional, dtype)
    for agent in agents:
        agent.build_for_env(env)
        assert agent.head.compute_dtype == dtype
        assert {x.dtype for x in agent.policy.weights} == {dtype}
    start = agents[0].policy.get_weights(), agents[0].baseline.model.get_weights()
    agents[1].policy.set_weights(start[0])
    agents[1].baseline.model.set_weights(start[1])
    for agent in agents:
        agent.fit("CartPole-v1", epochs=2, seed=3, verbose=0)
    for name in ("policy", "baseline"):
        found, expected = (getattr(agent, name).get_weights() for agent in agents)
        before = start[name == "baseline"]
        assert len(found) == len(before) and not np.array_equal(found[0], before[0])
        for a, b in zip(found, expected, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-6)


def test_error_names_the_subclassed_model_that_does_not_take_the_observations():
    dense = keras.Sequential([layers.Dense(2)])
    value = tfr.baselines.Value(TwoLayers(1, one_hot=3))
    for name, agent in {
        "policy": tfr.Reinforce(TwoLayers(2, one_hot=3)),
        "value model": tfr.Reinforce(dense, baseline=value),
    }.items():
        agent.compile("adam")
        with pytest.raises(ValueError, match=f"The {name} does not take the observ"):
            agent.fit("CartPole-v1", epochs=1, verbose=0)


# Random models


class Layer(keras.layers.Layer):
    """Calls a function of the layer, of its inputs and of `training`."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function
        self.seeds = keras.random.SeedGenerator(3)

    def call(self, inputs, training=False):
        return self.function(self, inputs, training)


def agent_with(*policy_layers, shape=(4,), **options):
    layer_list = [keras.Input(shape), *policy_layers, layers.Dense(2)]
    agent = tfr.Reinforce(keras.Sequential(layer_list), **options)
    agent.compile(keras.optimizers.SGD(0.1))
    return agent


@pytest.mark.filterwarnings("ignore:The layers")
@pytest.mark.parametrize("kind", ["policy", "value model"])
def test_random_models_are_refused(kind):
    noise = Layer(lambda layer, x, _: x + keras.random.normal((1, 4), seed=layer.seeds))
    if kind == "policy":
        agent = agent_with(noise)
    else:
        value = keras.Sequential([keras.Input((4,)), noise, layers.Dense(1)])
        agent = agent_with(baseline=tfr.baselines.Value(value))
    with pytest.raises(ValueError, match="outputs are random in inference mode"):
        agent.fit("CartPole-v1", epochs=1, verbose=0)


# Layers with a training mode


class Block(keras.layers.Layer):
    """A layer with dropout, without an argument `training`."""

    def __init__(self):
        super().__init__()
        self.dropout = layers.Dropout(0.01)

    def call(self, inputs):
        return self.dropout(inputs)


def attention(dropout):
    inputs = keras.Input((2, 3))
    outputs = layers.MultiHeadAttention(1, 2, dropout=dropout)(inputs, inputs)
    return keras.Model(inputs, layers.Dense(2)(layers.Flatten()(outputs)))


def lstm(**options):
    recurrent = layers.LSTM(2, return_sequences=True, **options)
    return keras.Sequential([keras.Input((None, 3)), recurrent, layers.Dense(2)])


def flat(*policy_layers, last=None):
    return keras.Sequential([keras.Input((3,)), *policy_layers, layers.Dense(2, last)])


NOISE = "inference mode, also during training"
LINEAR = "outputs of the policy are logits of Categorical.*must be linear"
WARNED = {
    "dropout": (lambda: flat(layers.Dropout(0.01)), f"The layers dropout.* {NOISE}"),
    "no dropout": (lambda: flat(layers.Dropout(0.0)), None),
    "inner dropout": (lambda: flat(Block()), f"The layers dropout.* {NOISE}"),
    "own": (
        lambda: flat(Layer(lambda _, x, training: x * (1 + training))),
        f"The layers layer.* {NOISE}",
    ),
    "lstm recurrent dropout": (
        lambda: lstm(recurrent_dropout=0.1),
        f"The layers lstm.* run in {NOISE}",
    ),
    "lstm": (lstm, None),
    "attention dropout": (lambda: attention(0.1), f"The layers multi_head.* {NOISE}"),
    "attention": (lambda: attention(0.0), None),
    "batch": (lambda: flat(layers.BatchNormalization()), "The layers batch_norm"),
    "lambda": (lambda: flat(layers.Lambda(lambda x: x)), None),
    "spectral": (lambda: flat(layers.SpectralNormalization(layers.Dense(4))), None),
    "softmax": (lambda: flat(last="softmax"), f"{LINEAR}.*'dense.*in softmax"),
    "sigmoid": (
        lambda: keras.Sequential([flat(), layers.Activation("sigmoid")]),
        f"{LINEAR}.*in sigmoid",
    ),
    "tanh": (lambda: flat(last="tanh"), None),
}


@pytest.mark.parametrize("name", WARNED)
def test_warning_names_layers_with_a_training_mode_and_bounded_logits(name):
    make, expected = WARNED[name]
    policy = make()
    agent = tfr.Reinforce(policy, tfr.heads.Categorical(2))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if expected is None:
            agent.build(policy.input_shape)
            return
        with pytest.raises(UserWarning, match=expected):
            agent.build(policy.input_shape)


class Bounded(TwoLayers):
    """A subclassed model, whose layers are not visible."""

    def call(self, x):
        return keras.ops.softmax(super().call(x))


def test_softmax_of_a_subclassed_model_is_found_by_its_results():
    with pytest.warns(UserWarning, match=f"{LINEAR}.*in softmax"):
        tfr.Reinforce(Bounded(2), tfr.heads.Categorical(2)).build((None, 3))


def test_softmax_is_no_mistake_if_the_outputs_are_no_logits():
    policy = flat(last="softmax")
    tfr.Reinforce(policy, tfr.heads.Gaussian(2)).build(policy.input_shape)


def test_equal_logits_that_sum_to_one_are_no_softmax():
    policy = TwoLayers(2)
    policy.last.kernel_initializer = keras.initializers.Zeros()
    policy.last.bias_initializer = keras.initializers.Constant(0.5)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        tfr.Reinforce(policy, tfr.heads.Categorical(2)).build((None, 3))


def largest_singular_value(layer):
    return np.linalg.svd(np.array(layer.layer.kernel))[1][0]


def spectral():
    initializer = keras.initializers.RandomNormal(2.0, seed=1)
    return layers.SpectralNormalization(
        layers.Dense(4, kernel_initializer=initializer), power_iterations=8
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["host", "tensor", "recurrent"])
def test_spectral_normalization_normalizes_once_per_update(name, tmp_path):
    """After each update, the largest singular value is one, in policy and value model.

    A resumed training continues to the same bits.
    """
    keras.utils.set_random_seed(0)
    policy_layer, value_layer = spectral(), spectral()
    value = keras.Sequential([keras.Input((4,)), value_layer, layers.Dense(1)])
    options = dict(minibatch_size=8, passes=2, baseline=tfr.baselines.Value(value))
    if name == "recurrent":
        time_distributed = layers.TimeDistributed(policy_layer)
        parts = layers.GRU(4, return_sequences=True), time_distributed
        agent = agent_with(*parts, shape=(None, 4), **options)
    else:
        agent = agent_with(policy_layer, **options)
    env = tfr.envs.CartPole() if name == "tensor" else "CartPole-v1"
    agent.build_for_env(tfr.envs.CartPole())
    parts = policy_layer, value_layer
    assert min(map(largest_singular_value, parts)) > 1.5
    budget = dict(episodes_per_epoch=4, seed=1, verbose=0)
    agent.fit(env, epochs=1, **budget)
    np.testing.assert_allclose([*map(largest_singular_value, parts)], 1.0, rtol=1e-3)
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    for one in (agent, loaded):
        one.fit(env, epochs=1, **budget)
    np.testing.assert_allclose([*map(largest_singular_value, parts)], 1.0, rtol=1e-3)
    for one, other in zip(agent.get_weights(), loaded.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
