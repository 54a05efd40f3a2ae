"""The default policy: what it sees of each space, and that it is what it was."""

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
from tf_reinforce.policies import default_policy

Box, Discrete = gym.spaces.Box, gym.spaces.Discrete
MultiDiscrete, MultiBinary = gym.spaces.MultiDiscrete, gym.spaces.MultiBinary


def seen(space, array):
    """What the first tanh layer sees of a batch of observations."""
    model = default_policy.default_policy(space, (3,), 2, seed=0)
    sight = keras.Model(model.input, model.get_layer(".hidden_0").input)
    return sight(tf.constant(array)).numpy()


def scaled(space, pixels):
    """What the first convolution sees of a batch of images."""
    model = default_policy.default_policy(space, (), 2, seed=0)
    sight = keras.Model(model.input, model.get_layer("observation.conv_0").input)
    return sight(tf.constant(pixels)).numpy()


def image(*shape):
    return Box(0, 255, shape, np.uint8)


# What it sees


@pytest.mark.parametrize("start", [0, 2, -1])
def test_a_choice_is_seen_one_hot_from_its_start(start):
    space = Discrete(3, start=start)
    found = seen(space, start + np.arange(3))
    np.testing.assert_array_equal(found, np.eye(3, dtype="float32"))


def test_choices_are_seen_one_hot_each_from_its_own_start():
    space = MultiDiscrete([[3, 2], [2, 4]], start=[[1, 0], [-3, 7]])
    found = seen(space, np.array([[[1, 1], [-2, 10]], [[3, 0], [-3, 7]]]))
    rows = [1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 1], [0, 0, 1, 1, 0, 1, 0, 1, 0, 0, 0]
    np.testing.assert_array_equal(found, np.array(rows, "float32"))


@pytest.mark.parametrize("space", [MultiBinary([2, 2]), Box(0, 1, (2, 2), np.bool_)])
def test_flags_are_seen_as_zeros_and_ones(space):
    flags = np.array([[[0, 1], [1, 1]]], space.dtype)
    assert seen(space, flags).tolist() == [[0.0, 1.0, 1.0, 1.0]]


def test_reals_are_seen_as_they_are():
    values = np.array([[[-9.5, 1e-3], [0.25, 3e8]]], "float32")
    np.testing.assert_array_equal(
        seen(Box(-np.inf, np.inf, (2, 2)), values), values.reshape(1, 4)
    )


@pytest.mark.parametrize(
    "space, values, expected",
    [
        (Box(0, 200, (3,), np.uint8), [0, 100, 200], [-1.0, 0.0, 1.0]),
        (Box(-1, 1, (3,), np.int8), [-1, 0, 1], [-1.0, 0.0, 1.0]),
        (Box(1000, 1010, (2,), np.int64), [1000, 1010], [-1.0, 1.0]),
        (Box(np.array([0, -4]), np.array([2, 4]), dtype=np.int16), [1, 4], [0.0, 1.0]),
        (Box(-(2**31), 2**31 - 1, (2,), np.int32), [-7, 9], [-7.0, 9.0]),
        (Box(0, 2**63 - 1, (2,), np.int64), [0, 9], [0.0, 9.0]),
        (Box(np.array([0, 0]), np.array([4, 2**40])), [4, 9], [4.0, 9.0]),
        (Box(5, 5, (1,), np.int8), [5], [5.0]),
    ],
    ids=lambda value: repr(value) if isinstance(value, Box) else "",
)
def test_whole_numbers_are_seen_from_their_bounds(space, values, expected):
    """Bounds as wide as the type say nothing, nor do those that leave no room."""
    found = seen(space, np.array([values], space.dtype))
    np.testing.assert_allclose(found, [expected], atol=1e-4)


def test_an_image_is_scaled_before_the_convolutions():
    pixels = np.random.default_rng(0).integers(0, 256, (2, 9, 8, 3), "uint8")
    found = scaled(image(9, 8, 3), pixels)
    np.testing.assert_allclose(found, pixels / 255, rtol=1e-6)
    bools = pixels > 127
    found = scaled(Box(0, 1, (9, 8, 3), np.bool_), bools)
    np.testing.assert_array_equal(found, bools.astype("float32"))


@pytest.mark.parametrize(
    "shape, axes",
    [
        ((84, 84), (0, 1)),
        ((84, 84, 4), (0, 1, 2)),
        ((4, 84, 84), (1, 2, 0)),
        ((210, 160, 3), (0, 1, 2)),
        ((3, 210, 160), (1, 2, 0)),
        ((10, 10, 20), (0, 1, 2)),
        ((20, 10, 10), (1, 2, 0)),
        ((8, 8, 8), (0, 1, 2)),
        ((7, 7, 3), (0, 1, 2)),
        ((4, 20, 24, 3), (1, 2, 0, 3)),
    ],
    ids=str,
)
def test_the_channels_of_an_image_are_found(shape, axes):
    """Frames and their colours become channels, in this order."""
    pixels = np.random.default_rng(0).integers(0, 256, (2, *shape), "uint8")
    moved = np.transpose(pixels, (0, *(axis + 1 for axis in axes)))
    expected = moved.reshape(*moved.shape[:3], -1) / 255
    np.testing.assert_allclose(scaled(image(*shape), pixels), expected, rtol=1e-6)


@pytest.mark.parametrize("shape", [(6, 84), (6, 6, 3), (5, 7, 7, 9), (128,)], ids=str)
def test_small_and_odd_arrays_are_no_images(shape):
    model = default_policy.default_policy(image(*shape), (3,), 2, seed=0)
    assert model.get_layer(".hidden_0").input.shape == (None, np.prod(shape))


# What it is


def test_for_a_vector_of_reals_it_is_the_plain_stack_to_the_bit():
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


def test_its_inputs_have_the_names_and_types_of_the_observation():
    space = gym.spaces.Dict(
        place=Discrete(3), parts=gym.spaces.Tuple([image(9, 9), Box(-1, 1, ())])
    )
    model = default_policy.default_policy(space, (3,), 2, seed=0)
    found = {x.name: (x.shape, x.dtype) for x in model.inputs}
    assert found == {
        "place": ((None,), "int64"),
        "parts_0": ((None, 9, 9), "uint8"),
        "parts_1": ((None,), "float32"),
    }


def test_keys_may_be_called_as_layers_are():
    keys = ["dense", "flatten", "outputs", "hidden_0", "conv2d", "policy", "all"]
    space = gym.spaces.Dict({key: Box(-1, 1, (2,)) for key in keys})
    assert len(default_policy.default_policy(space, (3,), 2, seed=0).inputs) == len(keys)


def test_too_many_values_for_one_hot_are_refused():
    with pytest.raises(ValueError, match="100,000.*Received.*Embedding"):
        default_policy.default_policy(MultiDiscrete([60_000, 60_000]), (), 2, seed=0)


def test_one_hot_survives_its_config():
    layer = default_policy.OneHot([3, 2], [1, -1], name="mine")
    again = keras.saving.deserialize_keras_object(
        keras.saving.serialize_keras_object(layer)
    )
    assert again.get_config() == layer.get_config()
    assert layer.compute_output_shape((None, 2)) == (None, 5)
    with keras.device("cpu"):
        assert again(np.array([[1, 0]])).numpy().tolist() == [[1, 0, 0, 0, 1]]


# Acting

SPACES = {
    "choice": Discrete(5, start=-2),
    "choices": MultiDiscrete([[3, 2], [5, 7]], np.int8),
    "flags": MultiBinary([2, 3]),
    "counts": Box(0, 9, (3,), np.int16),
    "bools": Box(0, 1, (10, 10, 4), np.bool_),
    "gray": image(10, 10),
    "frames": image(4, 36, 36),
    "large": image(84, 84, 3),
    "hand": gym.spaces.Tuple([Discrete(32), Discrete(11), Discrete(2)]),
    "nested": gym.spaces.Dict(
        z=Discrete(3),
        a=gym.spaces.Tuple([MultiBinary(3), gym.spaces.Dict(eye=image(7, 7, 3))]),
        dense=Box(-1, 1, (2,)),
    ),
}
EVERY_SPACE = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)


@EVERY_SPACE
def test_litert_acts_as_keras_does_and_the_same_for_any_number_of_rows(space):
    agent = tfr.Reinforce.for_env(lambda: toys.Observing(space), hidden=(8,))
    made = toys.acting_program(agent, space)
    assert made.engine == "litert"
    rng = np.random.default_rng(3)
    flat = keras.tree.flatten(spaces.sample_observations(space, "float32", 10, rng))
    noise = rng.random((10, 2), "float32")
    outputs = []
    for count in (1, 2, 3, 5):
        act = made.for_batch(count)
        raw = [
            act([x[i : i + count] for x in (*flat, noise)])[0][0]
            for i in range(0, 11 - count, count)
        ]
        outputs.append(np.concatenate(raw)[:9])
    (whole,), *_ = made.for_batch(10)([*flat, noise])
    for found in outputs:
        np.testing.assert_array_equal(found, whole[: len(found)])
    nested = keras.tree.pack_sequence_as(spaces.to_nest(space), flat)
    by_keras = agent.head.sample(agent(nested), tf.constant(noise))
    np.testing.assert_array_equal(whole, by_keras)


def test_training_does_not_depend_on_the_number_of_environments():
    """Of a choice, flags, an image and reals at once."""
    weights = []
    for num_envs in (1, 4):
        agent = tfr.Reinforce.for_env(
            lambda: toys.Observing(SPACES["nested"]), hidden=(8,)
        )
        agent.fit(
            lambda: toys.Observing(SPACES["nested"]),
            epochs=2,
            episodes_per_epoch=4,
            num_envs=num_envs,
            verbose=0,
        )
        weights.append(agent.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


# Another policy than the one that fits


def reading(inputs, *parts):
    """A policy of two outputs on named inputs of two numbers."""
    return keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Concatenate()(parts)))


def test_a_policy_that_would_read_arrays_in_each_others_places_is_refused():
    """Keras warns and goes on; here `speed` would have read what `place` says."""
    space = gym.spaces.Dict(place=Box(-1, 1, (2,)), speed=Box(-1, 1, (2,)))
    speed = keras.Input((2,), name="speed")
    agent = tfr.Reinforce(reading({"speed": speed}, speed, speed))
    with pytest.raises(ValueError, match="does not take the observations"):
        agent.build_for_spaces(space, Discrete(2))


def test_the_summary_of_an_agent_names_its_parts(capsys):
    agent = tfr.Reinforce.for_env(lambda: toys.Observing(SPACES["nested"]), hidden=(8,))
    agent.summary()
    said = capsys.readouterr().out
    assert "policy" in said and f"{agent.policy.count_params():,}" in said
    agent.policy.summary()
    said = capsys.readouterr().out
    assert "z.one_hot" in said and "a_1_eye.conv_0" in said


# The units of actions


@pytest.mark.parametrize(
    "space, offsets, scales",
    [
        (Box(10, 20, (1,)), [15], [5]),
        (Box(np.float32([-1, 0]), np.float32([3, 8]), (2,)), [1, 4], [2, 4]),
        (Box(100, np.inf, (1,)), [100], [1]),
        (Box(-np.inf, -7, (1,)), [-7], [1]),
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
def test_the_first_outputs_are_where_actions_are(space, offsets, scales):
    head = heads.for_space(space)
    np.testing.assert_array_equal(head.output_scaling(), [offsets, scales])
    observed = Box(-1, 1, (3,))
    plain = default_policy.default_policy(observed, (4,), len(offsets), seed=0)
    moved = default_policy.default_policy(
        observed, (4,), len(offsets), seed=0, units=head.output_scaling()
    )
    x = np.random.default_rng(0).normal(size=(5, 3)).astype("float32")
    np.testing.assert_allclose(moved(x), offsets + scales * plain(x).numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    "make", [heads.Beta, heads.TanhGaussian], ids=lambda make: make.__name__
)
def test_heads_that_fill_their_bounds_need_no_units(make):
    offsets, scales = make(2, 10.0, 20.0).output_scaling()
    assert not offsets.any() and (scales == 1).all()


def test_a_scale_that_depends_on_the_state_has_no_units_of_its_own():
    head = heads.Gaussian(1, low=10.0, high=20.0, state_dependent_scale=True)
    np.testing.assert_array_equal(head.output_scaling(), [[15, 0], [5, 1]])


@pytest.mark.parametrize(
    "space, best",
    [(Box(10, 20, (1,)), 17.0), sweeps.rare(Box(100, np.inf, (1,)), 103.0)],
    ids=["off the centre", "half infinite"],
)
def test_actions_far_from_zero_are_learned(space, best):
    """Before, all means began at 0: every action was one bound, and taught nothing."""

    class Aim(toys.Clock):
        action_space = space

        def step(self, action):
            observation, _, *rest = super().step(action)
            return observation, -abs(float(action[0]) - best), *rest

    agent = tfr.Reinforce.for_env(lambda: Aim(1), hidden=(8,))
    agent.fit(lambda: Aim(1), epochs=150, episodes_per_epoch=16, verbose=0)
    action = agent.act(np.zeros((1, 1), "float32"), deterministic=True)
    assert abs(float(action[0, 0]) - best) < 1


@pytest.mark.parametrize("wrong", [64, "64", None, {64}])
def test_hidden_sizes_are_a_list(wrong):
    with pytest.raises(ValueError, match="`hidden` must be a list of whole numbers"):
        default_policy.default_policy(Box(-1, 1, (3,)), wrong, 2, seed=0)
