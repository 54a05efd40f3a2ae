"""Tests acting programs: results of LiteRT, and the fallback to TensorFlow."""

import itertools
import logging
import re

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys
from toy_layers import Unconvertible

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import environments
from tf_reinforce.policies import actor as deciding


def dense(inputs, outputs, activation="tanh"):
    layers = [keras.layers.Dense(32, activation), keras.layers.Dense(outputs)]
    return keras.Sequential([keras.Input((inputs,)), *layers])


def conv(outputs=3, depth=1):
    layers = [
        keras.layers.Rescaling(1 / 255),
        keras.layers.Conv2D(4, 3, strides=2, activation="relu"),
        *[keras.layers.Conv2D(4, 3) for _ in range(depth - 1)],
        keras.layers.Flatten(),
        keras.layers.Dense(outputs),
    ]
    return keras.Sequential([keras.Input((12, 12, 2), dtype="uint8"), *layers])


def observations_of(structure, count):
    rng = seeding.generator(1, "engine_comparison")
    if structure.dtype.is_integer:
        return rng.integers(0, 256, (count, *structure.shape), structure.dtype.name)
    return rng.standard_normal((count, *structure.shape), structure.dtype.name)


def noise_of(head, count, dtype="float32"):
    rng = seeding.generator(2, "engine_comparison")
    draw = rng.random if head.noise.kind == "uniform" else rng.standard_normal
    return draw((count, *head.noise.shape), dtype)


def program(model, head, *, deterministic=False, dtype="float32"):
    """Returns the acting program of a model and a head, and the observation spec."""
    head.build((None, head.outputs_size))
    structure = tf.TensorSpec(model.input_shape[1:], model.inputs[0].dtype)

    def step(observations, states):
        return model(observations, training=False), states

    variables = [*model.variables, *head.variables]
    examples = [observations_of(structure, 8)]
    examples += [] if deterministic else [noise_of(head, 8, dtype)]
    actor = deciding.ActorPolicy(step, head, structure, dtype, variables)
    acting = environments.ActingProgram(actor, examples, deterministic)
    acting.variables = variables
    return acting, structure


def act(acting, observations, noise):
    """Returns raw actions, actions for the environment, and whether outputs are
    finite.
    """
    weights = environments.finite_weights(acting.variables)
    select = acting.for_batch(len(noise), weights)
    (raw,), (actions,), _, finite = select([observations, noise])
    return raw, actions, finite


def decide(model, head, observations, noise):
    """Returns the results that `act` must return, computed with Keras."""
    outputs = model(observations)
    raw = head.mode(outputs) if noise is None else head.sample(outputs, noise)
    return raw, head.to_environment(raw), np.isfinite(outputs).all()


PAIRS = {
    "dense": lambda: (dense(4, 3), heads.Categorical(3, start=5)),
    "relu": lambda: (dense(4, 3, "relu"), heads.Categorical(3)),
    # One row and one output are a dot product, which is summed in another order.
    "single": lambda: (dense(2, 1), heads.Gaussian(1, low=-9.0, high=9.0)),
    "gaussian": lambda: (dense(3, 2), heads.Gaussian(2, low=-1.0, high=[0.5, 2.0])),
    "scaled": lambda: (
        dense(3, 4),
        heads.Gaussian(2, initial_scale=[0.5, 2.0], state_dependent_scale=True),
    ),
    "clipped": lambda: (dense(3, 2), heads.ClippedGaussian(2, [-1, 0], [0.5, np.inf])),
    "tanh": lambda: (dense(3, 2), heads.TanhGaussian(2, -1.0, [0.5, 3.0])),
    "beta": lambda: (dense(3, 4), heads.Beta(2, -1.0, [0.5, 3.0])),
    "beta-whole": lambda: (dense(3, 2), heads.Beta(1, 0, 255, integer=True)),
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


# Each kind of head is sampled once. Four different pairs act deterministically.
SAMPLED = ["single", "gaussian", "scaled", "clipped", "tanh", "beta-whole", "counts"]
SAMPLED += ["named", "switches", "conv"]
GREEDY = ["relu", "beta", "choices", "deep"]


@pytest.mark.parametrize(
    "pair, deterministic",
    sweeps.some(
        itertools.product(PAIRS, [False, True]),
        always=[*((pair, False) for pair in SAMPLED), *((pair, True) for pair in GREEDY)],
    ),
    ids=lambda value: {False: "sampled", True: "deterministic"}.get(value, value),
)
def test_litert_results_equal_keras_results_for_any_batch_size(pair, deterministic):
    """A row does not depend on the other rows, so the number of environments has no
    effect.
    """
    model, head = PAIRS[pair]()
    acting, structure = program(model, head, deterministic=deterministic)
    assert acting.runtime == "litert"
    observations, noise = observations_of(structure, 64), noise_of(head, 64)
    sampling_noise = None if deterministic else tf.constant(noise)
    expected = decide(model, head, tf.constant(observations), sampling_noise)
    whole = act(acting, observations, noise)
    for ours, theirs in zip(whole, expected):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    assert whole[1].shape == (64, *getattr(head, "shape", head.action_shape))
    for count in (1, 2, 5, 8):
        for first in range(0, 65 - count, count):
            some = slice(first, first + count)
            raw, actions, finite = act(acting, observations[some], noise[some])
            np.testing.assert_array_equal(raw, whole[0][some])
            np.testing.assert_array_equal(actions, whole[1][some])
            assert np.all(finite)


@pytest.mark.parametrize("pair", ["dense", "gaussian", "conv"])
def test_new_weights_take_effect_without_a_new_conversion(pair):
    """The learned scale of the head is one of the weights."""
    model, head = PAIRS[pair]()
    acting, structure = program(model, head)
    observations, noise = observations_of(structure, 8), noise_of(head, 8)
    before = act(acting, observations, noise)[0].copy()
    for layer in (model, head):
        layer.set_weights([weight * 2 + 0.3 for weight in layer.get_weights()])
    raw, actions, _ = act(acting, observations, noise)
    expected = decide(model, head, tf.constant(observations), tf.constant(noise))
    np.testing.assert_allclose(raw, expected[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(actions, expected[1], rtol=1e-5, atol=1e-5)
    assert not np.array_equal(before, raw)
    assert acting.runtime == "litert"


# Results of LiteRT that differ from those of Keras


class Ratio(keras.layers.Layer):
    """Returns x / softplus(x), which is wrong if softplus is infinite or has an upper
    bound.
    """

    def call(self, inputs):
        return inputs / keras.ops.softplus(inputs)


DIFFERING = {
    "softplus": (lambda: keras.layers.Dense(4, "softplus", True, "ones"), 100.0),
    "log_sigmoid": (lambda: keras.layers.Activation("log_sigmoid"), -300.0),
    "share": (Ratio, 100.0),
    "unit": (keras.layers.UnitNormalization, 0.0),
}


class Constant(toys.Clock):
    """Returns `number` as the observation of both steps of an episode."""

    action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)

    def __init__(self, number, low=-np.inf, high=np.inf):
        super().__init__(2)
        self.number = number
        self.observation_space = gym.spaces.Box(low, high, (4,), np.float32)

    def _observation(self):
        return np.full(4, self.number, np.float32)


def gaussian_agent(*layers):
    policy = keras.Sequential(
        [keras.Input((4,)), *layers, keras.layers.Dense(1, kernel_initializer="ones")]
    )
    agent = tfr.Reinforce(policy, heads.Gaussian(1))
    agent.compile(keras.optimizers.SGD(0.0))
    return agent


@pytest.mark.parametrize("name", DIFFERING)
def test_agent_acts_through_tensorflow_if_litert_results_differ(name, caplog):
    """The comparison uses zeros, ±1, ±1000 and the bounds, before the first action."""
    layer, number = DIFFERING[name]
    agent = gaussian_agent(layer())
    with caplog.at_level(logging.WARNING, "tf_reinforce"):
        episodes = agent.collect(lambda: Constant(number), 2)
    assert caplog.text.count("acts through TensorFlow instead of LiteRT") == 1
    mean = agent(episodes.observations[:-1].reshape(-1, 4)).numpy().reshape(2, 2, 1)
    noise = [
        seeding.EpisodeSeeds(0, "training", 0)
        .action_generator(e)
        .standard_normal((2, 1), "float32")
        for e in range(2)
    ]
    np.testing.assert_allclose(episodes.actions - mean, np.stack(noise, 1), atol=1e-4)


def test_first_collection_switches_to_tensorflow_if_litert_results_differ(caplog):
    """The observations are 100, but the declared bounds are ±5.

    The values appear only in episodes.
    """
    make_env = lambda: Constant(100.0, -5.0, 5.0)  # noqa: E731
    agent = gaussian_agent(Ratio())
    with caplog.at_level(logging.WARNING, "tf_reinforce"):
        one = agent.collect(make_env, 3, num_envs=1)
        several = agent.collect(make_env, 3, num_envs=3)
    np.testing.assert_array_equal(one.actions, several.actions)
    assert one.actions.mean() > 2.0  # four times 1, and not zero
    assert caplog.text.count("of LiteRT differs from that of Keras") == 1
    assert agent.trainer.programs["acting", False].runtime == "tensorflow"
    with pytest.raises(ValueError, match="Use workers=1"):
        agent.collect(make_env, 2, workers=2)


@pytest.mark.slow
@pytest.mark.parametrize("workers", [1, 2])
def test_overflowing_outputs_raise_although_litert_saturates(workers):
    """The outputs of LiteRT layers end at the largest number.

    Those of Keras layers overflow.
    """
    agent = gaussian_agent(keras.layers.Rescaling(1e37))
    budget = dict(num_envs=2, workers=workers)
    agent.collect(lambda: Constant(1.0, -5.0, 5.0), 2, **budget)
    message = r"^(Worker \d: )?The policy's outputs are not finite.*the policy overflows"
    with pytest.raises(FloatingPointError, match=message):
        agent.collect(lambda: Constant(100.0, -5.0, 5.0), 2, **budget)
    assert agent.trainer.programs["acting", False].runtime == "litert"


# Layers that LiteRT cannot convert


class Raw(keras.layers.Layer):
    """Stores a weight that Keras does not track."""

    def build(self, shape):
        self.hidden = tf.Variable(1.0)

    def call(self, inputs):
        return inputs * self.hidden


@pytest.mark.parametrize("layer", [Raw, Unconvertible])
def test_layer_that_litert_cannot_convert_acts_and_learns_in_tensorflow(layer, caplog):
    policy = keras.Sequential([keras.Input((1,)), layer(), keras.layers.Dense(2)])
    agent = tfr.Reinforce(policy)
    agent.compile(keras.optimizers.SGD(0.1))
    with caplog.at_level(logging.WARNING, "tf_reinforce"):
        agent.fit(toys.Bandit, epochs=1, num_envs=2, verbose=0)
    assert "through TensorFlow instead of LiteRT" in caplog.text
    program = agent.trainer.programs["acting", False]
    program.variables = agent.trainer.actor.variables
    assert program.runtime == "tensorflow"
    before = policy.layers[-1].kernel.numpy()
    agent.fit(toys.Bandit, epochs=1, num_envs=2, verbose=0)
    assert not np.array_equal(before, policy.layers[-1].kernel.numpy())
    if layer is Raw:
        policy.layers[0].hidden.assign(-3.0)
    observations, noise = np.full((5, 1), 2.0, "f"), noise_of(agent.head, 5)
    raw, actions, finite = act(program, observations, noise)
    expected = decide(agent, agent.head, observations, tf.constant(noise))
    np.testing.assert_array_equal(raw, expected[0])
    np.testing.assert_array_equal(actions, expected[1])
    assert np.all(finite)


# Weights that are not finite


class RaisesOnStep(toys.Clock):
    def step(self, action):
        raise AssertionError("an action was taken")


LOST = list(itertools.product(["tanh", "relu"], ["cold", "warm"], range(4)))


@pytest.mark.parametrize(
    "activation, start, weight",
    sweeps.some(LOST, always=[("tanh", "warm", 2), ("relu", "cold", 0)]),
)
def test_agent_with_nonfinite_weights_raises_before_the_first_step(
    activation, start, weight
):
    """A compiled ReLU turns NaN into zero, so finite outputs do not imply finite
    weights.
    """
    agent = tfr.Reinforce(dense(1, 2, activation))
    agent.compile()
    agent.build_for_spaces(RaisesOnStep.observation_space, RaisesOnStep.action_space)
    if start == "warm":
        agent.fit(toys.Clock, epochs=1, episodes_per_epoch=2, verbose=0)
        agent.evaluate(toys.Clock, episodes=2)
    variable = agent.policy.weights[weight]
    variable.assign(np.full(variable.shape, np.nan))
    with pytest.raises(FloatingPointError, match="not finite"):
        agent.fit(RaisesOnStep, epochs=1, episodes_per_epoch=2, verbose=0)
    with pytest.raises(FloatingPointError, match="not finite"):
        agent.evaluate(RaisesOnStep, episodes=2)
    for deterministic in (False, True):
        with pytest.raises(FloatingPointError, match="not finite"):
            agent.act(np.ones((2, 1), "float32"), deterministic, seed=0)


# Weights for which LiteRT and Keras differ


class Echo(gym.Env):
    """Runs one step, whose reward is the action. If `fails` is true, the step raises."""

    observation_space = gym.spaces.Box(1, 1, (1,), np.float32)
    action_space = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)
    fails = False
    resets = 0

    def reset(self, *, seed=None, options=None):
        self.resets += 1
        return np.ones(1, "float32"), {}

    def step(self, action):
        if self.fails:
            raise OSError("no such world")
        return np.ones(1, "float32"), float(action[0]), True, False, {}


def softplus_agent(weight):
    """Returns an agent with the mean softplus(weight).

    LiteRT's softplus is wrong from 88 on.
    """
    start = keras.initializers.Constant(weight)
    layer = keras.layers.Dense(1, "softplus", use_bias=False, kernel_initializer=start)
    agent = tfr.Reinforce(
        keras.Sequential([keras.Input((1,)), layer]),
        heads.Gaussian(1, low=-1e6, high=1e6, initial_scale=1e-3),
    )
    agent.compile(keras.optimizers.SGD(0.1))
    return agent


def test_engine_changes_to_tensorflow_if_new_weights_make_litert_wrong(caplog):
    agent, env = softplus_agent(60.0), Echo()
    assert agent.evaluate(env, 2)["episode_return"] == pytest.approx(60.0)
    collected = agent.collect(env, 2)
    engines = [program.runtime for program in agent.trainer.programs.values()]
    assert engines == ["litert", "litert"]
    agent.policy.set_weights([np.full((1, 1), 500.0, "float32")])
    assert agent.evaluate(env, 2)["episode_return"] == pytest.approx(500.0)
    # The wrong result is a number or an infinity, depending on the processor.
    assert re.search("the result `(outputs|finite)` of LiteRT differs", caplog.text)
    collected = agent.collect(env, 2)
    np.testing.assert_allclose(collected.actions, 500.0, atol=0.01)
    assert agent.step_statistics(collected).log_probs.min() > -10
