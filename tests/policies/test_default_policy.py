"""Tests the default policy: its preprocessing of each space, its layers and its units."""

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.data import seeding
from tf_reinforce.data import spaces
from tf_reinforce.engine.collect import environments
from tf_reinforce.policies import default_policy

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete
MultiDiscrete, MultiBinary = gym.spaces.MultiDiscrete, gym.spaces.MultiBinary


def encoded(space, array):
    """Returns the input of the first tanh layer for a batch of observations."""
    model = default_policy.default_policy(space, (3,), 2, seed=0)
    sight = keras.Model(model.input, model.get_layer("policy.hidden_0").input)
    return sight(tf.constant(array)).numpy()


def convolution_input(space, pixels):
    """Returns the input of the first convolution for a batch of images."""
    model = default_policy.default_policy(space, (), 2, seed=0)
    sight = keras.Model(model.input, model.get_layer("observation.conv_0").input)
    return sight(tf.constant(pixels)).numpy()


def image(*shape):
    return Box(0, 255, shape, np.uint8)


# Preprocessing of observations


@pytest.mark.parametrize("start", [0, 2, -1])
def test_discrete_observation_is_one_hot_encoded_from_its_start(start):
    space = Discrete(3, start=start)
    found = encoded(space, start + np.arange(3))
    np.testing.assert_array_equal(found, np.eye(3, dtype="float32"))


@pytest.mark.parametrize("space", [MultiBinary([2, 2]), Box(0, 1, (2, 2), np.bool_)])
def test_binary_observations_are_encoded_as_zeros_and_ones(space):
    flags = np.array([[[0, 1], [1, 1]]], space.dtype)
    assert encoded(space, flags).tolist() == [[0.0, 1.0, 1.0, 1.0]]


@pytest.mark.parametrize(
    "space, values, expected",
    [
        (Box(0, 200, (3,), np.uint8), [0, 100, 200], [-1.0, 0.0, 1.0]),
        (Box(-1, 1, (3,), np.int8), [-1, 0, 1], [-1.0, 0.0, 1.0]),
        (Box(1000, 1010, (2,), np.int64), [1000, 1010], [-1.0, 1.0]),
        (Box(np.array([0, 7]), np.array([2, 9]), dtype=np.int8), [1, 7], [0.0, -1.0]),
        (Box(-(2**31), 2**31 - 1, (2,), np.int32), [-7, 9], [-7.0, 9.0]),
        (Box(np.array([0, 0]), np.array([4, 2**40])), [4, 9], [4.0, 9.0]),
        (Box(5, 5, (1,), np.int8), [5], [5.0]),
    ],
    ids=lambda value: repr(value) if isinstance(value, Box) else "",
)
def test_integer_box_observations_are_scaled_by_their_bounds(space, values, expected):
    """Observations are not scaled if bounds are as wide as the type, or equal."""
    found = encoded(space, np.array([values], space.dtype))
    np.testing.assert_allclose(found, [expected], atol=1e-4)


def test_image_is_scaled_to_zero_to_one_before_the_convolutions():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 9, 8, 3), "uint8")
    found = convolution_input(image(9, 8, 3), pixels)
    np.testing.assert_allclose(found, pixels / 255, rtol=1e-6)
    bools = pixels > 127
    found = convolution_input(Box(0, 1, (9, 8, 3), np.bool_), bools)
    np.testing.assert_array_equal(found, bools.astype("float32"))


@pytest.mark.parametrize(
    "shape, axes",
    [
        ((84, 84), (0, 1)),
        ((210, 160, 3), (0, 1, 2)),
        ((3, 210, 160), (1, 2, 0)),
        ((10, 10, 20), (0, 1, 2)),
        ((20, 10, 10), (1, 2, 0)),
        ((7, 7, 3), (0, 1, 2)),
        ((4, 20, 24, 3), (1, 2, 0, 3)),
    ],
    ids=str,
)
def test_channel_axis_of_an_image_is_found_by_its_shape(shape, axes):
    """Frames and colors become channels, in this order."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, *shape), "uint8")
    moved = np.transpose(pixels, (0, *(axis + 1 for axis in axes)))
    expected = moved.reshape(*moved.shape[:3], -1) / 255
    np.testing.assert_allclose(
        convolution_input(image(*shape), pixels), expected, rtol=1e-6
    )


@pytest.mark.parametrize("shape", [(6, 84), (6, 6, 3), (5, 7, 7, 9), (128,)], ids=str)
def test_small_arrays_are_not_treated_as_images(shape):
    model = default_policy.default_policy(image(*shape), (3,), 2, seed=0)
    assert model.get_layer("policy.hidden_0").input.shape == (None, np.prod(shape))


# Layers


def test_policy_for_float_vectors_equals_a_stack_of_dense_layers():
    rng = seeding.generator(7, "weights")

    def dense(units, activation, gain):
        weights = keras.initializers.Orthogonal(gain, seed=int(rng.integers(2**31)))
        return keras.layers.Dense(units, activation, kernel_initializer=weights)

    gain = np.sqrt(2.0)
    layers = [dense(64, "tanh", gain), dense(5, "tanh", gain), dense(2, None, 0.01)]
    plain = keras.Sequential([keras.Input((4,)), *layers])
    model = default_policy.default_policy(Box(-1, 1, (4,)), (64, 5), 2, seed=7)
    for one, other in zip(plain.weights, model.weights, strict=True):
        np.testing.assert_array_equal(one, other)
    observations = np.random.default_rng(0).normal(size=(9, 4)).astype("float32")
    np.testing.assert_array_equal(plain(observations), model(observations))


def test_one_hot_raises_if_there_are_too_many_values():
    with pytest.raises(ValueError, match="100,000.*Received.*Embedding"):
        default_policy.default_policy(MultiDiscrete([60_000, 60_000]), (), 2, seed=0)


@pytest.mark.parametrize("sizes", [[4], [3, 2]])
def test_one_hot_layer_equals_a_loop_over_numbers_and_values(sizes):
    """A number outside its range has no entry."""
    starts = [5, -1][: len(sizes)]
    layer, inputs = default_policy.OneHot(sizes, starts), [[5, 0], [7, -1], [0, 9]]
    inputs = np.array(inputs)[:, : len(sizes)]
    pairs = [(i, starts[i] + k) for i, size in enumerate(sizes) for k in range(size)]
    expected = [[float(row[i] == value) for i, value in pairs] for row in inputs]
    assert layer(inputs).numpy().tolist() == expected


# Acting

SPACES = {
    "choice": Discrete(5, start=-2),
    "choices": MultiDiscrete([[3, 2], [5, 7]], np.int8),
    "flags": MultiBinary([2, 3]),
    "counts": Box(0, 9, (3,), np.int16),
    "bools": Box(0, 1, (10, 10, 4), np.bool_),
    "frames": image(4, 36, 36),
    "hand": gym.spaces.Tuple([Discrete(32), Discrete(11), Discrete(2)]),
    "nested": gym.spaces.Dict(
        z=Discrete(3),
        a=gym.spaces.Tuple([MultiBinary(3), gym.spaces.Dict(eye=image(7, 7, 3))]),
        dense=Box(-1, 1, (2,)),
    ),
}
OFTEN = "choice", "bools", "frames", "nested"


@pytest.mark.parametrize("name", sweeps.some(SPACES, always=OFTEN))
def test_litert_actions_equal_keras_for_any_batch_size(name):
    space = SPACES[name]
    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space), hidden=(8,))
    made = toys.acting_program(agent, space)
    assert made.runtime == "litert"
    weights = environments.finite_weights(agent.trainer.actor.variables)
    rng = np.random.default_rng(3)
    flat = keras.tree.flatten(spaces.sample_observations(space, "float32", 10, rng))
    noise = rng.random((10, 2), "float32")
    outputs = []
    for count in (1, 2, 3, 5):
        act = made.for_batch(count, weights)
        raw = [
            act([x[i : i + count] for x in (*flat, noise)])[0][0]
            for i in range(0, 11 - count, count)
        ]
        outputs.append(np.concatenate(raw)[:9])
    (whole,), *_ = made.for_batch(10, weights)([*flat, noise])
    for found in outputs:
        np.testing.assert_array_equal(found, whole[: len(found)])
    nested = keras.tree.pack_sequence_as(spaces.to_nest(space), flat)
    by_keras = agent.head.sample(agent(nested), tf.constant(noise))
    np.testing.assert_array_equal(whole, by_keras)


# Policies that do not fit the observations


def policy_of(inputs, *parts):
    """Returns a policy with two outputs and named inputs of two numbers."""
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Concatenate()(parts)))


def test_build_raises_if_input_names_do_not_match_the_observation():
    """Keras only warns, and would pass `place` to the input `speed`."""
    space = gym.spaces.Dict(place=Box(-1, 1, (2,)), speed=Box(-1, 1, (2,)))
    speed = keras.Input((2,), name="speed")
    agent = tfr.Reinforce(policy_of({"speed": speed}, speed, speed))
    with pytest.raises(ValueError, match="does not take the observations"):
        agent.build_for_spaces(space, Discrete(2))


# The units of actions


@pytest.mark.parametrize(
    "space, offsets, scales",
    [
        (Box(10, 20, (1,)), [15], [5]),
        (Box(np.float32([-1, 0]), np.float32([3, 8]), (2,)), [1, 4], [2, 4]),
        (Box(100, np.inf, (1,)), [100], [1]),
        (Box(-np.inf, np.inf, (1,)), [0], [1]),
        (Box(0, 255, (1,), np.uint8), [127.5], [127.5]),
        (Discrete(3), [0, 0, 0], [1, 1, 1]),
        (
            gym.spaces.Dict(arm=Box(2, 4, (1,)), grip=Discrete(2)),
            [3, 0, 0],
            [1, 1, 1],
        ),
    ],
    ids=str,
)
def test_output_scaling_sets_the_units_of_the_action_space(space, offsets, scales):
    head = heads.for_space(space)
    np.testing.assert_array_equal(head.output_scaling(), [offsets, scales])
    observed = Box(-1, 1, (3,))
    plain = default_policy.default_policy(observed, (4,), len(offsets), seed=0)
    moved = default_policy.default_policy(
        observed, (4,), len(offsets), seed=0, output_scaling=head.output_scaling()
    )
    x = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    np.testing.assert_allclose(moved(x), offsets + scales * plain(x).numpy(), rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    "space, best",
    [(Box(10, 20, (1,)), 17.0), sweeps.rare(Box(100, np.inf, (1,)), 103.0)],
    ids=["off the centre", "half infinite"],
)
def test_agent_learns_actions_far_from_zero(space, best):
    """Without output scaling, all means begin at 0, so that every action is one bound."""

    class Aim(toys.Clock):
        action_space = space

        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, -abs(float(action[0]) - best), *rest

    agent = tfr.Reinforce.for_env(lambda: Aim(1), hidden=(8,))
    agent.fit(lambda: Aim(1), epochs=150, episodes_per_epoch=16, verbose=0)
    action = agent.act(np.zeros((1, 1), "float32"), deterministic=True)
    assert abs(float(action[0, 0]) - best) < 1
