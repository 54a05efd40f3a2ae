"""Acting: LiteRT does what Keras does, and whatever cannot go there is still right."""

import logging

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce import decision as deciding
from tf_reinforce import heads, seeding
from tf_reinforce.collect import acting


def dense(inputs, outputs, activation="tanh"):
    return keras.Sequential(
        [
            keras.Input((inputs,)),
            keras.layers.Dense(32, activation),
            keras.layers.Dense(outputs),
        ]
    )


def conv(outputs=3, depth=1):
    return keras.Sequential(
        [
            keras.Input((12, 12, 2), dtype="uint8"),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(4, 3, strides=2, activation="relu"),
            *[keras.layers.Conv2D(4, 3) for _ in range(depth - 1)],
            keras.layers.Flatten(),
            keras.layers.Dense(outputs),
        ]
    )


def observations_of(structure, count):
    rng = seeding.generator(1, "parity")
    if structure.dtype.is_integer:
        return rng.integers(0, 256, (count, *structure.shape), structure.dtype.name)
    return rng.standard_normal((count, *structure.shape), structure.dtype.name)


def noise_of(head, count, dtype="float32"):
    rng = seeding.generator(2, "parity")
    draw = rng.random if head.noise.kind == "uniform" else rng.standard_normal
    return draw((count, *head.noise.shape), dtype)


def program(model, head, *, greedy=False, dtype="float32"):
    """The acting program of a model and a head, and its kind of observations."""
    head.build((None, head.outputs_size))
    structure = tf.TensorSpec(model.input_shape[1:], model.inputs[0].dtype)

    def step(observations, states):
        return model(observations, training=False), states

    variables = [*model.variables, *head.variables]
    made = acting.Acting(
        deciding.Decision(step, head, structure, dtype, variables),
        [observations_of(structure, 8)],
        [noise_of(head, 8, dtype)],
        greedy,
    )
    return made, structure


def act(made, observations, noise):
    """Raw actions, what the environment receives, and whether outputs are finite."""
    (raw,), (sent,), _, finite = made.rows(len(noise))([observations, noise])
    return raw, sent, finite


def decide(model, head, observations, noise):
    """The same by the definition."""
    outputs = model(observations)
    raw = head.mode(outputs) if noise is None else head.sample(outputs, noise)
    return raw, head.to_environment(raw), np.isfinite(outputs).all()


PAIRS = {
    "dense": lambda: (dense(4, 3), heads.Categorical(3, start=5)),
    "relu": lambda: (dense(4, 3, "relu"), heads.Categorical(3)),
    # One row and one output are a dot product, which adds up in another order.
    "single": lambda: (dense(2, 1), heads.Gaussian(1, low=-9.0, high=9.0)),
    "gaussian": lambda: (dense(3, 2), heads.Gaussian(2, low=-1.0, high=[0.5, 2.0])),
    "unbounded": lambda: (dense(3, 2), heads.Gaussian(2, initial_scale=[0.5, 2.0])),
    "shaped": lambda: (dense(3, 4), heads.Gaussian(4, low=-1, high=1, shape=(2, 2))),
    "whole": lambda: (dense(3, 2), heads.Gaussian(2, low=-1, high=[9, 200], whole=True)),
    "scaled": lambda: (
        dense(3, 4),
        heads.Gaussian(2, initial_scale=[0.5, 2.0], state_dependent_scale=True),
    ),
    "clipped": lambda: (dense(3, 2), heads.ClippedGaussian(2, [-1, 0], [0.5, np.inf])),
    "tanh": lambda: (dense(3, 2), heads.TanhGaussian(2, -1.0, [0.5, 3.0])),
    "beta": lambda: (dense(3, 4), heads.Beta(2, -1.0, [0.5, 3.0])),
    "beta-whole": lambda: (dense(3, 2), heads.Beta(1, 0, 255, whole=True)),
    "counts": lambda: (dense(4, 3), heads.Multinomial(3, trials=4)),
    "choices": lambda: (dense(4, 9), heads.MultiCategorical([2, 4, 3])),
    "named": lambda: (
        dense(4, 9),
        heads.MultiCategorical([2, 4, 3], start=[1, 0, -5], shape=(3, 1)),
    ),
    "switches": lambda: (dense(4, 3), heads.Bernoulli(3)),
    "conv": lambda: (conv(), heads.Categorical(3)),
    "deep": lambda: (conv(2, depth=2), heads.Gaussian(2, low=-9, high=9)),
}


@pytest.mark.parametrize("greedy", [False, True], ids=["sampled", "greedy"])
@pytest.mark.parametrize("pair", PAIRS)
def test_litert_decides_as_keras_does_for_any_number_of_rows(pair, greedy):
    """Rows do not depend on the batch, so the number of environments is no matter."""
    model, head = PAIRS[pair]()
    made, structure = program(model, head, greedy=greedy)
    assert made.engine == "litert"
    observations, noise = observations_of(structure, 64), noise_of(head, 64)
    drawn = None if greedy else tf.constant(noise)
    expected = decide(model, head, tf.constant(observations), drawn)
    whole = act(made, observations, noise)
    for ours, theirs in zip(whole, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert whole[1].shape == (64, *getattr(head, "shape", head.action_shape))
    for count in (1, 2, 5, 8):
        for first in range(0, 65 - count, count):
            some = slice(first, first + count)
            raw, sent, finite = act(made, observations[some], noise[some])
            np.testing.assert_array_equal(raw, whole[0][some])
            np.testing.assert_array_equal(sent, whole[1][some])
            assert np.all(finite)
    assert made.conversions == 1


def test_the_greedy_program_does_not_look_at_the_noise():
    model, head = PAIRS["dense"]()
    made, structure = program(model, head, greedy=True)
    observations = observations_of(structure, 16)
    likely = model(observations).numpy().argmax(-1)
    for noise in (noise_of(head, 16), np.full((16, 3), np.nan, "float32")):
        raw, sent, _ = act(made, observations, noise)
        np.testing.assert_array_equal(raw, likely)
        np.testing.assert_array_equal(sent, likely + 5)


@pytest.mark.parametrize("pair", ["dense", "gaussian", "conv"])
def test_new_weights_act_at_once_without_a_new_conversion(pair):
    """The head's learned scale is a weight like any other."""
    model, head = PAIRS[pair]()
    made, structure = program(model, head)
    observations, noise = observations_of(structure, 8), noise_of(head, 8)
    before = act(made, observations, noise)[0].copy()
    for layer in (model, head):
        layer.set_weights([weight * 2 + 0.3 for weight in layer.get_weights()])
    raw, sent, _ = act(made, observations, noise)
    expected = decide(model, head, tf.constant(observations), tf.constant(noise))
    np.testing.assert_allclose(raw, expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(sent, expected[1], rtol=1e-5, atol=1e-5)
    assert not np.array_equal(before, raw)
    assert (made.engine, made.conversions) == ("litert", 1)


def test_the_normalizer_acts_with_the_statistics_of_this_moment():
    agent = tfr.Reinforce(dense(2, 3), normalize_observations=True)
    agent.compile()
    agent._meet(toys.Lengths.observation_space, toys.Lengths.action_space)
    made = agent._player._program(agent.observation_space, greedy=True)
    observations = 5 + 3 * observations_of(tf.TensorSpec((2,)), 8)
    for _ in range(2):
        agent.normalizer.update(tf.constant(observations))
        raw, _, _ = act(made, observations, noise_of(agent.head, 8))
        np.testing.assert_allclose(
            made.rows(8).results()[2], agent(observations), rtol=1e-5, atol=1e-6
        )
        np.testing.assert_array_equal(raw, np.argmax(agent(observations), -1))
        observations = observations * 2
    assert (made.engine, made.conversions) == ("litert", 1)


def test_nested_observations_enter_in_their_own_order():
    space = gym.spaces.Dict(
        b=gym.spaces.Box(-9, 9, (2,)),
        a=gym.spaces.Tuple([gym.spaces.Box(0, 9, (), np.int32), gym.spaces.Box(0, 9)]),
    )
    inputs = {
        "b": keras.Input((2,), name="b"),
        "a": (keras.Input((), dtype="int32", name="i"), keras.Input((1,), name="x")),
    }
    whole = keras.layers.Lambda(lambda i: keras.ops.cast(i, "float32")[:, None])
    parts = [inputs["b"], whole(inputs["a"][0]) * 10, inputs["a"][1] * 100]
    outputs = keras.layers.Dense(2)(keras.layers.Concatenate()(parts))
    agent = tfr.Reinforce(keras.Model(inputs, outputs))
    agent._meet(space, gym.spaces.Discrete(2))
    made = agent._player._program(space, greedy=False)
    assert made.engine == "litert"
    two = {"b": np.ones((2, 2), "f"), "a": (np.array([3, 4], "i"), np.ones((2, 1), "f"))}
    made.rows(2)([*keras.tree.flatten(two), np.full((2, 2), 0.5, "f")])
    np.testing.assert_allclose(made.rows(2).results()[2], agent(two), rtol=1e-5)


def test_a_float64_policy_acts_in_float64():
    layers = [keras.layers.Dense(size, dtype="float64") for size in (8, 2)]
    model = keras.Sequential([keras.Input((3,), dtype="float64"), *layers])
    head = heads.Gaussian(2, low=-1, high=1, dtype="float64")
    made, structure = program(model, head, dtype="float64")
    assert structure.dtype == "float64"
    observations, noise = observations_of(structure, 4), noise_of(head, 4, "float64")
    raw, _, finite = act(made, observations, noise)
    expected = decide(model, head, tf.constant(observations), tf.constant(noise))
    assert raw.dtype == "float64" and np.all(finite)
    np.testing.assert_allclose(raw, expected[0], rtol=1e-12)


# What does not convert


class Raw(keras.layers.Layer):
    """Keeps its weight where Keras does not see it."""

    def build(self, shape):
        self.hidden = tf.Variable(1.0)

    def call(self, inputs):
        return inputs * self.hidden


class Unconvertible(keras.layers.Layer):
    """LiteRT has no determinant."""

    def call(self, inputs):
        square = tf.eye(2) + inputs[:, :1, None] * tf.eye(2)
        return inputs * tf.linalg.det(square)[:, None]


@pytest.mark.parametrize("layer", [Raw, Unconvertible])
def test_what_does_not_convert_acts_and_learns_through_tensorflow(layer, caplog):
    policy = keras.Sequential([keras.Input((1,)), layer(), keras.layers.Dense(2)])
    agent = tfr.Reinforce(policy)
    agent.compile(keras.optimizers.SGD(0.1))
    with caplog.at_level(logging.WARNING, "tf_reinforce"):
        agent.fit(toys.Bandit, epochs=1, num_envs=2, verbose=0)
    assert "through TensorFlow, not LiteRT" in caplog.text
    made = agent._player.programs[False]
    assert made.engine == "compiled"
    before = policy.layers[-1].kernel.numpy()
    agent.fit(toys.Bandit, epochs=1, num_envs=2, verbose=0)
    assert not np.array_equal(before, policy.layers[-1].kernel.numpy())
    if layer is Raw:
        policy.layers[0].hidden.assign(-3.0)
    observations, noise = np.full((5, 1), 2.0, "f"), noise_of(agent.head, 5)
    raw, sent, finite = act(made, observations, noise)
    expected = decide(agent, agent.head, observations, tf.constant(noise))
    np.testing.assert_array_equal(raw, expected[0])
    np.testing.assert_array_equal(sent, expected[1])
    assert np.all(finite)


def test_an_engine_that_says_something_else_is_not_used(monkeypatch, caplog):
    honest = acting._LiteRows.results

    def lie(rows):
        raw, finite, outputs, sent = honest(rows)
        return raw, finite, outputs + 1, sent

    monkeypatch.setattr(acting._LiteRows, "results", lie)
    model, head = PAIRS["gaussian"]()
    with caplog.at_level(logging.WARNING, "tf_reinforce"):
        made, structure = program(model, head)
    assert made.engine == "compiled"
    assert "LiteRT gives another `outputs` than Keras" in caplog.text
    observations, noise = observations_of(structure, 3), noise_of(head, 3)
    raw, _, _ = act(made, observations, noise)
    expected = decide(model, head, tf.constant(observations), tf.constant(noise))
    np.testing.assert_allclose(raw, expected[0], rtol=1e-6)


# Weights that are no numbers


class Untouched(toys.Clock):
    def step(self, action):
        raise AssertionError("an action was taken")


def without_numbers(agent, weight):
    """Loses one weight of the agent; returns what brings it back."""
    variable = agent.policy.weights[weight]
    before = variable.numpy()
    variable.assign(np.full_like(before, np.nan))
    return lambda: variable.assign(before)


@pytest.mark.parametrize("weight", range(4))
@pytest.mark.parametrize("warm", [False, True], ids=["cold", "warm"])
@pytest.mark.parametrize("activation", ["tanh", "relu"])
def test_weights_that_are_not_finite_never_act(activation, warm, weight):
    """A compiled ReLU turns NaN into zero: finite outputs prove nothing."""
    agent = tfr.Reinforce(dense(1, 2, activation))
    agent.compile()
    agent._meet(Untouched.observation_space, Untouched.action_space)
    if warm:
        agent.fit(toys.Clock, epochs=1, episodes_per_epoch=2, verbose=0)
        agent.evaluate(toys.Clock, episodes=2)
    without_numbers(agent, weight)
    with pytest.raises(FloatingPointError, match="not finite"):
        agent.fit(Untouched, epochs=1, episodes_per_epoch=2, verbose=0)
    with pytest.raises(FloatingPointError, match="not finite"):
        agent.evaluate(Untouched, episodes=2)
    for deterministic in (False, True):
        with pytest.raises(FloatingPointError, match="not finite"):
            agent.act(np.ones((2, 1), "float32"), deterministic, seed=0)


def test_weights_that_come_back_act_through_litert_again():
    """The engines are compared once; a lost weight must not decide for good."""
    agent = tfr.Reinforce(dense(1, 2))
    agent.compile()
    agent._meet(toys.Clock.observation_space, toys.Clock.action_space)
    restore = without_numbers(agent, 0)
    with pytest.raises(FloatingPointError, match="not finite"):
        agent.evaluate(toys.Clock, episodes=2)
    restore()
    assert agent.evaluate(toys.Clock, episodes=2)["episode_return"] == 6.0
    assert agent._player.programs[True].engine == "litert"


def test_observations_that_are_not_finite_get_no_action_through_act():
    agent = tfr.Reinforce(dense(1, 2))
    agent._meet(toys.Clock.observation_space, toys.Clock.action_space)
    with pytest.raises(FloatingPointError, match="Look at the observations"):
        agent.act(np.array([[np.nan]], "float32"))
