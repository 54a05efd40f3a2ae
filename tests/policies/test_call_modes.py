"""Tests that random policies are refused, and what layers with a training mode do."""

import warnings

import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf

import tf_reinforce as tfr

layers = keras.layers


class Layer(keras.layers.Layer):
    """Calls a function of the layer, of its inputs and of `training`."""

    def __init__(self, function, **kwargs):
        super().__init__(**kwargs)
        self.function = function
        self.seeds = keras.random.SeedGenerator(3)
        self.generator = tf.random.Generator.from_seed(1)
        self.mean = self.add_weight(name="mean", shape=(), trainable=False)

    def call(self, inputs, training=False):
        return self.function(self, inputs, training)


def normal(x):
    return tf.random.normal(tf.shape(x))


def agent_with(*policy_layers, size=2, **options):
    layer_list = [keras.Input((4,)), *policy_layers, layers.Dense(size)]
    agent = tfr.Reinforce(keras.Sequential(layer_list), **options)
    agent.compile(keras.optimizers.SGD(0.1))
    return agent


RANDOM = {
    "rare": lambda layer, x, _: tf.where(normal(x) > 9.0, 1.0, x),
    "large inputs": lambda layer, x, _: x + tf.where(x > 1e6, normal(x), 0.0),
    "seed": lambda layer, x, _: x * keras.random.uniform((1, 1), seed=layer.seeds),
    "generator": lambda layer, x, _: x + layer.generator.normal((1, 4)),
    "numpy": lambda layer, x, _: x * np.random.normal(),
}


@pytest.mark.parametrize("name", RANDOM)
def test_random_policy_is_refused_whatever_the_noise(name):
    with pytest.raises(ValueError, match="outputs are random in inference mode"):
        agent_with(Layer(RANDOM[name])).fit("CartPole-v1", epochs=1, verbose=0)


def test_random_value_model_and_recurrent_policy_are_refused():
    value = keras.Sequential([keras.Input((4,)), Layer(RANDOM["rare"]), layers.Dense(1)])
    agent = agent_with(baseline=tfr.baselines.Value(value))
    noise = Layer(RANDOM["rare"])
    inner = [layers.GRU(3, return_sequences=True), noise, layers.Dense(2)]
    other = tfr.Reinforce(keras.Sequential([keras.Input((None, 4)), *inner]))
    other.compile("sgd")
    for one in (agent, other):
        with pytest.raises(ValueError, match="outputs are random in inference mode"):
            one.fit("CartPole-v1", epochs=1, verbose=0)


DETERMINISTIC = {
    "fixed seed": lambda layer, x, _: x * keras.random.normal((1, 4), seed=3),
    "training": lambda layer, x, training: x * normal(x) if training else x,
    "selected": lambda layer, x, training: keras.ops.where(training, normal(x), x),
}


@pytest.mark.filterwarnings("ignore:The layers")
@pytest.mark.parametrize("name", DETERMINISTIC)
def test_policy_without_noise_in_inference_is_accepted(name):
    agent = agent_with(Layer(DETERMINISTIC[name]), head=tfr.heads.Categorical(2))
    agent.build((None, 4))
    observations = np.ones((3, 4))
    np.testing.assert_array_equal(agent(observations), agent(observations))


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


def recurrent(layer):
    return keras.Sequential([keras.Input((None, 3)), layer, layers.Dense(2)])


def flat(*policy_layers):
    return keras.Sequential([keras.Input((3,)), *policy_layers, layers.Dense(2)])


def lstm(**options):
    return recurrent(layers.LSTM(2, return_sequences=True, **options))


MODES = {
    "dropout": (lambda: flat(layers.Dropout(0.01)), ["dropout"]),
    "inner dropout": (lambda: flat(Block()), ["dropout"]),
    "own": (lambda: flat(Layer(lambda _, x, training: x * (1 + training))), ["layer"]),
    "lstm recurrent dropout": (lambda: lstm(recurrent_dropout=0.1), ["lstm"]),
    "lstm": (lstm, []),
    "attention dropout": (lambda: attention(0.1), ["multi_head_attention"]),
    "attention": (lambda: attention(0.0), []),
    "spectral": (lambda: flat(layers.SpectralNormalization(layers.Dense(4))), []),
}
RARE = {"inner dropout"}


@pytest.mark.parametrize("name", [sweeps.rare(x) if x in RARE else x for x in MODES])
def test_warning_names_the_layers_whose_outputs_differ_in_training(name):
    make, expected = MODES[name]
    policy = make()
    agent = tfr.Reinforce(policy, tfr.heads.Categorical(2))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        agent.build(policy.input_shape)
    texts = [str(x.message) for x in caught]
    assert len(texts) == len(expected)
    for text, layer_name in zip(texts, expected):
        assert f"The layers {layer_name}" in text and "inference mode" in text


def largest_singular_value(layer):
    return np.linalg.svd(np.array(layer.layer.kernel))[1][0]


def spectral():
    initializer = keras.initializers.RandomNormal(2.0, seed=1)
    return layers.SpectralNormalization(
        layers.Dense(4, kernel_initializer=initializer), power_iterations=8
    )


@pytest.mark.parametrize("name", ["host", *map(sweeps.rare, ["tensor", "recurrent"])])
def test_spectral_normalization_normalizes_once_per_update(name, tmp_path):
    """After each update, the largest singular value is one, in policy and value model.

    A resumed training continues to the same bits.
    """
    keras.utils.set_random_seed(0)
    policy_layer, value_layer = spectral(), spectral()
    value = keras.Sequential([keras.Input((4,)), value_layer, layers.Dense(1)])
    options = dict(minibatch_size=8, passes=2, baseline=tfr.baselines.Value(value))
    agent = agent_with(policy_layer, **options)
    if name == "recurrent":
        inner = [
            layers.GRU(4, return_sequences=True),
            layers.TimeDistributed(policy_layer),
        ]
        inner = [keras.Input((None, 4)), *inner, layers.Dense(2)]
        agent = tfr.Reinforce(keras.Sequential(inner), **options)
        agent.compile(keras.optimizers.SGD(0.1))
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


def test_statistics_that_training_mode_updates_are_those_of_all_steps():
    def center(layer, x, training):
        if training:
            layer.mean.assign(tf.reduce_mean(x))
        return x - layer.mean

    layer = Layer(center)
    agent = agent_with(layer)
    episodes = tfr.Reinforce.for_env("CartPole-v1", hidden=()).collect(
        "CartPole-v1", 3, seed=0
    )
    agent.build_for_env(tfr.envs.CartPole())
    agent.update(episodes)
    valid = np.arange(len(episodes.rewards))[:, None] < episodes.lengths
    expected = episodes.observations[:-1][valid].mean()
    np.testing.assert_allclose(layer.mean, expected, rtol=1e-5)
    huge = episodes._replace(rewards=np.full_like(episodes.rewards, 1e308))
    before = agent.get_weights()
    with pytest.raises(FloatingPointError):
        agent.update(huge)
    for one, other in zip(before, agent.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
