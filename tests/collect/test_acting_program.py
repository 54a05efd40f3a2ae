"""Acting: LiteRT does what Keras does, and whatever cannot go there is still right."""

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
from ai_edge_litert import interpreter as litert
from toy_layers import Unconvertible

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.collect import acting_program
from tf_reinforce.data import seeding
from tf_reinforce.policies import actor as deciding


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
    rng = seeding.generator(1, "engine_comparison")
    if structure.dtype.is_integer:
        return rng.integers(0, 256, (count, *structure.shape), structure.dtype.name)
    return rng.standard_normal((count, *structure.shape), structure.dtype.name)


def noise_of(head, count, dtype="float32"):
    rng = seeding.generator(2, "engine_comparison")
    draw = rng.random if head.noise.kind == "uniform" else rng.standard_normal
    return draw((count, *head.noise.shape), dtype)


def program(model, head, *, deterministic=False, dtype="float32"):
    """The acting program of a model and a head, and its kind of observations."""
    head.build((None, head.outputs_size))
    structure = tf.TensorSpec(model.input_shape[1:], model.inputs[0].dtype)

    def step(observations, states):
        return model(observations, training=False), states

    variables = [*model.variables, *head.variables]
    made = acting_program.ActingProgram(
        deciding.ActorPolicy(step, head, structure, dtype, variables),
        [observations_of(structure, 8)],
        [noise_of(head, 8, dtype)],
        deterministic,
    )
    return made, structure


def act(made, observations, noise):
    """Raw actions, what the environment receives, and whether outputs are finite."""
    (raw,), (sent,), _, finite = made.for_batch(len(noise))([observations, noise])
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
    "whole": lambda: (
        dense(3, 2),
        heads.Gaussian(2, low=-1, high=[9, 200], integer=True),
    ),
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


# Every kind of head once sampled; of the most likely actions those that differ most.
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
def test_litert_decides_as_keras_does_for_any_number_of_rows(pair, deterministic):
    """Rows do not depend on the batch, so the number of environments is no matter."""
    model, head = PAIRS[pair]()
    made, structure = program(model, head, deterministic=deterministic)
    assert made.engine == "litert"
    observations, noise = observations_of(structure, 64), noise_of(head, 64)
    drawn = None if deterministic else tf.constant(noise)
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
    made, structure = program(model, head, deterministic=True)
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
    agent.build_for_spaces(toys.Lengths.observation_space, toys.Lengths.action_space)
    made = toys.acting_program(agent, agent.observation_space, deterministic=True)
    observations = 5 + 3 * observations_of(tf.TensorSpec((2,)), 8)
    for _ in range(2):
        agent.normalizer.update(tf.constant(observations))
        raw, _, _ = act(made, observations, noise_of(agent.head, 8))
        np.testing.assert_allclose(
            made.for_batch(8).results()[2], agent(observations), rtol=1e-5, atol=1e-6
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
    agent.build_for_spaces(space, gym.spaces.Discrete(2))
    made = toys.acting_program(agent, space)
    assert made.engine == "litert"
    two = {"b": np.ones((2, 2), "f"), "a": (np.array([3, 4], "i"), np.ones((2, 1), "f"))}
    made.for_batch(2)([*keras.tree.flatten(two), np.full((2, 2), 0.5, "f")])
    np.testing.assert_allclose(made.for_batch(2).results()[2], agent(two), rtol=1e-5)


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


# Where LiteRT departs from Keras


class Share(keras.layers.Layer):
    """x / softplus(x): next to x when softplus is infinite, or bounded, is not."""

    def call(self, inputs):
        return inputs / keras.ops.softplus(inputs)


DEPARTING = {
    "softplus": (
        lambda: keras.layers.Dense(4, "softplus", kernel_initializer="ones"),
        100.0,
    ),
    "log_sigmoid": (lambda: keras.layers.Activation("log_sigmoid"), -300.0),
    "share": (Share, 100.0),
    "unit": (keras.layers.UnitNormalization, 0.0),
}


ACTIVATIONS = [
    *("celu", "elu", "exponential", "gelu", "glu", "hard_shrink", "hard_sigmoid"),
    *("hard_silu", "hard_tanh", "leaky_relu", "log_sigmoid", "log_softmax", "mish"),
    *("relu", "relu6", "selu", "sigmoid", "silu", "soft_shrink", "softmax", "softplus"),
    *("softsign", "sparse_plus", "sparse_sigmoid", "sparsemax", "squareplus", "tanh"),
    "tanh_shrink",
]


def test_litert_departs_from_two_activations_of_keras_and_only_far_out():
    """As docs/architecture.md lists them: from zero to a thousand, of either sign."""
    sizes = np.concatenate([[0.0], np.geomspace(1e-3, 1e3, 37)]).astype("f")
    rows = np.concatenate([sizes, -sizes])
    rows = np.stack([rows, -rows, np.roll(rows, 1), np.ones_like(rows)], axis=1)

    def every(inputs):
        found = [keras.activations.get(name)(inputs) for name in ACTIVATIONS]
        return [tf.identity(each, name) for each, name in zip(found, ACTIVATIONS)]

    spec = tf.TensorSpec((None, 4), tf.float32, "inputs")
    traced = tf.function(every, autograph=False).get_concrete_function(spec)
    model = tf.lite.TFLiteConverter.from_concrete_functions([traced]).convert()
    lite = litert.Interpreter(model_content=model, num_threads=1)
    place = lite.get_input_details()[0]["index"]
    lite.resize_tensor_input(place, rows.shape)
    lite.allocate_tensors()
    lite.set_tensor(place, rows)
    lite.invoke()
    results = [lite.get_tensor(d["index"]) for d in lite.get_output_details()]
    given, departs = traced(tf.constant(rows)), {}
    for name, each, received in zip(ACTIVATIONS, given, results, strict=True):
        expected = each.numpy()
        finite = np.isfinite(expected)
        near = 1e-5 * abs(rows).max(1, keepdims=True) + 1e-5 + 1e-4 * abs(expected)
        far = finite & (abs(received - np.where(finite, expected, 0)) > near)
        if far.any():
            departs[name] = rows[:, : received.shape[1]][far]
    assert set(departs) == {"softplus", "log_sigmoid"}
    assert departs["softplus"].min() > 88
    assert departs["log_sigmoid"].max() < -88


class Constant(toys.Clock):
    """Two steps in which `number` is observed."""

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


class Real(Constant):
    """The same with real actions, which it remembers."""

    action_space = gym.spaces.Box(-np.inf, np.inf, (1,), np.float32)


@pytest.mark.parametrize("name", DEPARTING)
def test_a_layer_of_which_litert_makes_another_number_acts_through_tensorflow(
    name, caplog
):
    """On zeros, ±1, ±1000 and the bounds, before the first action is taken."""
    layer, number = DEPARTING[name]
    agent = gaussian_agent(layer())
    with caplog.at_level(logging.WARNING, "tf_reinforce"):
        episodes = agent.collect(lambda: Real(number), 2)
    assert caplog.text.count("Acting through TensorFlow, not LiteRT") == 1
    mean = agent(episodes.observations[:-1].reshape(-1, 4)).numpy().reshape(2, 2, 1)
    drawn = [
        seeding.EpisodeSeeds(0, "training", 0)
        .action(e)
        .standard_normal((2, 1), "float32")
        for e in range(2)
    ]
    np.testing.assert_allclose(episodes.actions - mean, np.stack(drawn, 1), atol=1e-4)


@pytest.mark.parametrize("mode", ["plain", "workers"])
def test_what_only_the_first_collection_shows_changes_the_engine(mode, caplog):
    """Observations of 100, where only bounds of 5 are declared, are seen when played."""
    make = lambda: Real(100.0, -5.0, 5.0)  # noqa: E731
    agent = gaussian_agent(Share())
    options = {} if mode == "plain" else dict(workers=2)
    with caplog.at_level(logging.WARNING, "tf_reinforce"):
        if mode == "workers":
            with pytest.raises(ValueError, match="Use workers=1"):
                agent.collect(make, 2, **options)
        else:
            one = agent.collect(make, 3, num_envs=1)
            several = agent.collect(make, 3, num_envs=3)
            np.testing.assert_array_equal(one.actions, several.actions)
            assert one.actions.mean() > 2.0  # four times 1, and not zero
    assert caplog.text.count("of LiteRT differs from that of Keras") == 1
    assert agent.trainer.collector.programs["acting", False].engine == "tensorflow"


@pytest.mark.parametrize("workers", [1, 2])
def test_outputs_that_only_litert_makes_infinite_are_not_refused(workers):
    """A zero that no space declares, later than the first collection."""
    agent = gaussian_agent(keras.layers.UnitNormalization())
    budget = dict(num_envs=2, workers=workers)
    agent.collect(lambda: Real(2.0, 1.0, 3.0), 2, **budget)
    made = agent.trainer.collector.programs["acting", False]
    assert made.engine == "litert"
    zeros = lambda: Real(0.0, 1.0, 3.0)  # noqa: E731
    if workers > 1:
        with pytest.raises(ValueError, match="Use workers=1"):
            agent.collect(zeros, 2, **budget)
    else:
        played = agent.collect(zeros, 2, **budget)
        assert np.isfinite(played.actions).all() and not played.observations.any()
    assert made.engine == "tensorflow"


@pytest.mark.parametrize("workers", [1, 2])
def test_outputs_that_overflow_are_refused_though_litert_saturates(workers):
    """The layers of LiteRT end at the largest number, those of Keras at infinity."""
    agent = gaussian_agent(keras.layers.Rescaling(1e37))
    budget = dict(num_envs=2, workers=workers)
    agent.collect(lambda: Real(1.0, -5.0, 5.0), 2, **budget)
    said = r"^(Worker \d: )?The policy's outputs are not finite.*the policy overflows"
    with pytest.raises(FloatingPointError, match=said):
        agent.collect(lambda: Real(100.0, -5.0, 5.0), 2, **budget)
    assert agent.trainer.collector.programs["acting", False].engine == "litert"


def test_a_policy_that_rules_out_actions_by_the_smallest_number_acts(caplog):
    """Such outputs are finite, which LiteRT cannot tell from an overflow."""
    smallest = np.finfo("float32").min

    class Ruling(keras.layers.Layer):
        def call(self, inputs):
            return keras.ops.where([True, False], inputs, smallest)

    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2), Ruling()])
    agent = tfr.Reinforce(policy)
    agent.compile("sgd")
    with caplog.at_level(logging.WARNING, "tf_reinforce"):
        assert not agent.collect(toys.Clock, 3).actions.any()
    assert caplog.text.count("the result `finite` of LiteRT differs") == 1


# What does not convert


class Raw(keras.layers.Layer):
    """Keeps its weight where Keras does not see it."""

    def build(self, shape):
        self.hidden = tf.Variable(1.0)

    def call(self, inputs):
        return inputs * self.hidden


@pytest.mark.parametrize("layer", [Raw, Unconvertible])
def test_what_does_not_convert_acts_and_learns_through_tensorflow(layer, caplog):
    policy = keras.Sequential([keras.Input((1,)), layer(), keras.layers.Dense(2)])
    agent = tfr.Reinforce(policy)
    agent.compile(keras.optimizers.SGD(0.1))
    with caplog.at_level(logging.WARNING, "tf_reinforce"):
        agent.fit(toys.Bandit, epochs=1, num_envs=2, verbose=0)
    assert "through TensorFlow, not LiteRT" in caplog.text
    made = agent.trainer.collector.programs["acting", False]
    assert made.engine == "tensorflow"
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
    honest = acting_program._LiteRTRunner.results

    def lie(rows):
        raw, finite, outputs, sent = honest(rows)
        return raw, finite, outputs + 1, sent

    monkeypatch.setattr(acting_program._LiteRTRunner, "results", lie)
    model, head = PAIRS["gaussian"]()
    with caplog.at_level(logging.WARNING, "tf_reinforce"):
        made, structure = program(model, head)
    assert made.engine == "tensorflow"
    assert "the result `outputs` of LiteRT differs from that of Keras" in caplog.text
    observations, noise = observations_of(structure, 3), noise_of(head, 3)
    raw, _, _ = act(made, observations, noise)
    expected = decide(model, head, tf.constant(observations), tf.constant(noise))
    np.testing.assert_allclose(raw, expected[0], rtol=1e-6)


def test_how_far_litert_may_be_off(monkeypatch):
    """1e-4 of a result and 1e-5 of the largest input in its row, which is at least 1."""
    made, _ = program(dense(2, 2), heads.Gaussian(2))
    place = made._layout.names.index("outputs")
    inputs = [np.array([[0.5, -0.25], [-40, 3], [1, 1]], "f"), np.zeros((3, 2), "f")]
    theirs = acting_program.call_compiled(made._compiled, made._layout, inputs)
    theirs[place] = np.array([[3, -3], [-3, 3], [np.nan, 3]], "f")
    allowed = np.array([[1e-5], [40e-5], [0]]) + 3e-4  # the last row does not count

    def difference(share, row, slack):
        ours = [x.copy() for x in theirs]
        ours[place][row, 1] += share * slack * allowed[row, 0]
        ours[place][2] = 7.0
        monkeypatch.setattr(acting_program, "call_compiled", lambda *given: theirs)
        monkeypatch.setattr(acting_program._LiteRTRunner, "results", lambda rows: ours)
        return made._difference(
            inputs, acting_program.finite_weights([]), tolerance=slack
        )

    made._runners, made._comparison_runners = {}, {}
    monkeypatch.setattr(
        acting_program._LiteRTRunner, "set_weights", lambda rows, weights: None
    )
    for row in (0, 1):
        for slack in (1.0, 10.0):
            assert difference(0.99, row, slack) == ""
            assert "`outputs` of LiteRT differs" in difference(1.01, row, slack)


def test_the_converter_says_nothing_of_its_own():
    """It would have us convert another way; nobody who trains can do so."""
    heard, ear = [], logging.Handler()
    ear.emit = heard.append
    logging.getLogger("absl").addHandler(ear)
    try:
        assert program(dense(2, 2), heads.Categorical(2))[0].conversions == 1
    finally:
        logging.getLogger("absl").removeHandler(ear)
    assert [record.getMessage() for record in heard] == []


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


LOST = list(itertools.product(["tanh", "relu"], ["cold", "warm"], range(4)))


@pytest.mark.parametrize(
    "activation, start, weight", sweeps.some(LOST, always=LOST[1::5])
)
def test_weights_that_are_not_finite_never_act(activation, start, weight):
    """A compiled ReLU turns NaN into zero: finite outputs prove nothing."""
    agent = tfr.Reinforce(dense(1, 2, activation))
    agent.compile()
    agent.build_for_spaces(Untouched.observation_space, Untouched.action_space)
    if start == "warm":
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
    """A lost weight must not decide for good."""
    agent = tfr.Reinforce(dense(1, 2))
    agent.compile()
    agent.build_for_spaces(toys.Clock.observation_space, toys.Clock.action_space)
    restore = without_numbers(agent, 0)
    with pytest.raises(FloatingPointError, match="not finite"):
        agent.evaluate(toys.Clock, episodes=2)
    restore()
    assert agent.evaluate(toys.Clock, episodes=2)["episode_return"] == 6.0
    assert agent.trainer.collector.programs["acting", True].engine == "litert"


def test_observations_that_are_not_finite_get_no_action_through_act():
    agent = tfr.Reinforce(dense(1, 2))
    agent.build_for_spaces(toys.Clock.observation_space, toys.Clock.action_space)
    with pytest.raises(FloatingPointError, match="Check the observations"):
        agent.act(np.array([[np.nan]], "float32"))


# LiteRT and Keras part company where the weights lead


class Echo(gym.Env):
    """One step, whose reward is the action; the first episodes may fail."""

    observation_space = gym.spaces.Box(1, 1, (1,), np.float32)
    action_space = gym.spaces.Box(-1e6, 1e6, (1,), np.float32)
    fails = False

    def reset(self, *, seed=None, options=None):
        return np.ones(1, "float32"), {}

    def step(self, action):
        if self.fails:
            raise OSError("no such world")
        return np.ones(1, "float32"), float(action[0]), True, False, {}


def softplus_agent(weight):
    """The mean is softplus(weight); LiteRT's ends at 88, or is infinite from there."""
    start = keras.initializers.Constant(weight)
    layer = keras.layers.Dense(1, "softplus", use_bias=False, kernel_initializer=start)
    agent = tfr.Reinforce(
        keras.Sequential([keras.Input((1,)), layer]),
        heads.Gaussian(1, low=-1e6, high=1e6, initial_scale=1e-3),
    )
    agent.compile(keras.optimizers.SGD(0.1))
    return agent


def test_litert_is_left_when_new_weights_lead_to_where_it_departs(caplog):
    agent, env = softplus_agent(60.0), Echo()
    assert agent.evaluate(env, 2)["episode_return"] == pytest.approx(60.0)
    collected = agent.collect(env, 2)
    engines = [made.engine for made in agent.trainer.collector.programs.values()]
    assert engines == ["litert", "litert"]
    agent.policy.set_weights([np.full((1, 1), 500.0, "float32")])
    assert agent.evaluate(env, 2)["episode_return"] == pytest.approx(500.0)
    # Whether a number or an infinity is wrong there depends on the processor.
    assert re.search("the result `(outputs|finite)` of LiteRT differs", caplog.text)
    collected = agent.collect(env, 2)
    np.testing.assert_allclose(collected.actions, 500.0, atol=0.01)
    assert agent.step_statistics(collected).log_probs.min() > -10


def test_litert_is_compared_again_in_every_collection(monkeypatch):
    honest, off = acting_program._LiteRTRunner.results, 0.0

    def results(rows):
        raw, finite, outputs, sent = honest(rows)
        return raw, finite, outputs + np.float32(off), sent

    monkeypatch.setattr(acting_program._LiteRTRunner, "results", results)
    agent, engines = softplus_agent(60.0), []
    for off in (0.0, 1.0):  # noqa: B007 (`results` reads it)
        agent.collect(Echo(), 2)
        engines.append(agent.trainer.collector.programs["acting", False].engine)
    assert engines == ["litert", "tensorflow"]


def test_training_that_leads_to_where_litert_departs_learns_from_what_keras_does():
    agent = softplus_agent(60.0)
    agent.fit(Echo, epochs=1, episodes_per_epoch=4, verbose=0)
    agent.policy.set_weights([np.full((1, 1), 120.0, "float32")])
    history = agent.fit(Echo, epochs=1, episodes_per_epoch=4, verbose=0).history
    assert history["episode_return"][0] == pytest.approx(120.0, abs=0.1)


def test_a_first_collection_that_fails_is_no_reason_to_trust_litert_later():
    agent, env = softplus_agent(60.0), Echo()
    env.fails = True
    with pytest.raises(tfr.collect.EnvironmentFault, match="no such world"):
        agent.evaluate(env, 1)
    env.fails = False
    agent.policy.set_weights([np.full((1, 1), 500.0, "float32")])
    assert agent.evaluate(env, 1)["episode_return"] == pytest.approx(500.0)
