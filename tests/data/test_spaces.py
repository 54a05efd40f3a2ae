"""Tests supported and unsupported spaces, their configs and their specs."""

import json

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.data import spaces

INF = np.inf
Box, Discrete = gym.spaces.Box, gym.spaces.Discrete


def box(low, high, dtype):
    return Box(np.array(low, dtype), np.array(high, dtype), dtype=dtype)


SPACES = {
    "discrete": Discrete(4),
    "start": Discrete(3, start=-2),
    "uniform": Box(-0.1, 0.3, (2, 3), np.float32),
    "scalar": Box(0.0, 1.0, (), np.float32),
    "per_dimension": box([-1.5, 0.1], [0.2, 1 / 3], np.float32),
    "infinite": Box(-INF, INF, (4,), np.float32),
    "half_infinite": box([-INF, 0.0], [1.0, INF], np.float32),
    "image": Box(0, 255, (8, 8, 3), np.uint8),
    "wide": box([0.1, -1e300], [1 / 3, 1e300], np.float64),
    "widest_ints": Box(-(2**63), 2**63 - 1, (2,), np.int64),
    "bools": Box(0, 1, (3, 2), np.bool_),
    "small_choice": Discrete(3, start=-1, dtype=np.int8),
    "choices": gym.spaces.MultiDiscrete([[3, 2], [5, 7]], start=[[0, -9], [4, 1]]),
    "small_choices": gym.spaces.MultiDiscrete([3, 2], np.int8, start=[-1, 4]),
    "flags": gym.spaces.MultiBinary(4),
    "rows_of_flags": gym.spaces.MultiBinary([2, 3]),
}
SPACES["nested"] = gym.spaces.Dict(
    z=SPACES["wide"],
    a=gym.spaces.Tuple([SPACES["image"], gym.spaces.Dict(b=SPACES["half_infinite"])]),
)
SPACES["of_choices"] = gym.spaces.Tuple(
    [SPACES["start"], gym.spaces.Dict(z=SPACES["choices"], a=SPACES["flags"])]
)
EVERY_SPACE = pytest.mark.parametrize("space", SPACES.values(), ids=SPACES.keys())
OBSERVED = list(SPACES.values())


def assert_identical(one, other):
    """Raises unless two spaces are equal in every bit.

    Gymnasium compares bounds with a tolerance.
    """
    assert one == other
    if isinstance(one, gym.spaces.Dict):
        for key in one:
            assert_identical(one[key], other[key])
    elif isinstance(one, gym.spaces.Tuple):
        for left, right in zip(one, other, strict=True):
            assert_identical(left, right)
    assert one.dtype == other.dtype and one.shape == other.shape
    if isinstance(one, Box):
        for name in ("low", "high", "bounded_below", "bounded_above"):
            np.testing.assert_array_equal(getattr(one, name), getattr(other, name))


@EVERY_SPACE
def test_from_config_restores_a_space(space):
    config = json.loads(json.dumps(spaces.to_config(space)))
    assert_identical(space, spaces.from_config(config))


def test_config_stores_a_uniform_bound_as_one_number():
    """The config of an image space must not contain the bounds of every pixel."""
    config = spaces.to_config(SPACES["image"])
    assert (config["low"], config["high"]) == (0, 255)


def test_to_config_raises_for_an_unsupported_space():
    with pytest.raises(ValueError, match="saved in a config. Received: Text"):
        spaces.to_config(gym.spaces.Dict(a=gym.spaces.Text(3)))


def test_from_config_raises_for_an_unknown_kind():
    with pytest.raises(ValueError, match="must have the form that.*'Graph'"):
        spaces.from_config({"kind": "Graph"})


@pytest.mark.parametrize(
    "config",
    [
        {"kind": "MultiDiscrete", "nvec": [2.7, 3]},
        {"kind": "Discrete", "n": 3, "start": 0.5},
        {"kind": "MultiBinary", "n": 2.5},
    ],
)
def test_from_config_raises_for_fractions(config):
    with pytest.raises(ValueError, match="must be a whole number"):
        spaces.from_config(config)


@pytest.mark.parametrize("space", OBSERVED)
def test_supported_observation_spaces_are_returned(space):
    assert spaces.check_observation_space(space) is space


UNSUPPORTED = [
    gym.spaces.Text(3),
    gym.spaces.Graph(Box(0, 1, (2,)), Discrete(2)),
    gym.spaces.Sequence(Discrete(2)),
    gym.spaces.OneOf([Discrete(2), Box(0, 1)]),
    Box(0, 1, (0,)),
    Box(0, 1, (2, 0), np.uint8),
]


@pytest.mark.parametrize("part", UNSUPPORTED, ids=repr)
@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
def test_observation_space_error_names_the_unsupported_part(part, nested):
    space = gym.spaces.Dict(a=SPACES["image"], b=gym.spaces.Tuple([part]))
    with pytest.raises(
        ValueError, match="Supported spaces are .*FlattenObservation"
    ) as refused:
        spaces.check_observation_space(space if nested else part)
    assert f"Observation space {part!r} is not supported" in str(refused.value)


def test_observation_space_raises_if_two_arrays_have_one_name():
    """The exported policy has the arrays as inputs by name."""
    for space in (
        gym.spaces.Dict(a=gym.spaces.Tuple([Discrete(2)]), a_0=Discrete(2)),
        gym.spaces.Dict({"a 0": Discrete(2), "a_0": Discrete(2)}),
    ):
        with pytest.raises(
            ValueError, match="a different name for each part.*TransformObservation"
        ):
            spaces.check_observation_space(space)


NO_ACTIONS = {
    "text": gym.spaces.Text(3),
    "sequence": gym.spaces.Sequence(Discrete(2)),
    "one_of": gym.spaces.OneOf([Discrete(2), Discrete(3)]),
    "graph": gym.spaces.Graph(Discrete(2), None),
    "no_number": Box(0.0, 1.0, (0,)),
    "no_choice": gym.spaces.MultiDiscrete(np.zeros(0, "int64")),
}


@pytest.mark.parametrize("name", NO_ACTIONS)
@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
def test_action_space_error_names_the_unsupported_part(name, nested):
    part = NO_ACTIONS[name]
    space = gym.spaces.Dict(a=gym.spaces.Tuple([Discrete(2), part])) if nested else part
    with pytest.raises(
        ValueError, match="Supported spaces are Box, Discrete, MultiDis"
    ) as refused:
        spaces.check_action_space(space)
    assert f"Action space {part!r} is not supported" in str(refused.value)
    assert f"Received: {space!r}" in str(refused.value)


NO_NAMES = {
    "slash": (gym.spaces.Dict({"a/b": Discrete(2)}), "without '/'"),
    "number": (gym.spaces.Dict({1: Discrete(2)}), "strings"),
    "empty": (gym.spaces.Tuple([Discrete(2), gym.spaces.Tuple([])]), "must not be empty"),
    "same": (
        gym.spaces.Dict({"a_0": Discrete(2), "a": gym.spaces.Tuple([Discrete(2)])}),
        "a different name for each part. Received: .'a_0', 'a_0'.",
    ),
}


@pytest.mark.parametrize("name", NO_NAMES)
def test_action_space_raises_if_names_of_parts_are_invalid(name):
    space, message = NO_NAMES[name]
    with pytest.raises(ValueError, match=message):
        spaces.check_action_space(space)


def test_observation_spec_keeps_integer_types_and_sets_the_float_type():
    spec = tf.TensorSpec
    assert records.observation_spec(SPACES["nested"], "float32") == {
        "a": (spec((8, 8, 3), tf.uint8), {"b": spec((2,), tf.float32)}),
        "z": spec((2,), tf.float32),
    }
    assert records.observation_spec(SPACES["scalar"], "float64") == spec((), tf.float64)
    assert records.observation_spec(SPACES["of_choices"], "float32") == (
        spec((), tf.int64),
        {"a": spec((4,), tf.int8), "z": spec((2, 2), tf.int64)},
    )
    assert records.observation_spec(SPACES["small_choice"], "float32") == spec(
        (), tf.int8
    )
    assert records.observation_spec(SPACES["bools"], "float32") == spec((3, 2), tf.bool)


@pytest.mark.parametrize("index, name", [(0, "observation"), (1, "action")])
def test_expect_spaces_error_shows_both_spaces(index, name):
    ours = [SPACES["uniform"], Discrete(3)]
    theirs = list(ours)
    theirs[index] = [SPACES["infinite"], Discrete(3, start=1)][index]
    with pytest.raises(ValueError, match=f"another {name} space") as refused:
        spaces.check_same_spaces(ours, theirs)
    assert repr(ours[index]) in str(refused.value)
    assert repr(theirs[index]) in str(refused.value)


@pytest.mark.parametrize(
    "space", [*OBSERVED, Box(5.0, 6.0, (2,)), Box(0, 0, (2,), np.int8)]
)
def test_sample_observations_are_finite_and_in_the_space(space):
    rng = np.random.default_rng(0)
    made = spaces.sample_observations(space, "float64", 16, rng)

    def check(part, values):
        if isinstance(part, gym.spaces.Dict):
            return [check(part[key], values[key]) for key in part]
        if isinstance(part, gym.spaces.Tuple):
            return [check(*pair) for pair in zip(part, values, strict=True)]
        real = np.issubdtype(part.dtype, np.floating)
        assert values.dtype == ("float64" if real else part.dtype)
        assert values.shape == (16, *part.shape)
        assert np.isfinite(values).all()
        assert all(part.contains(np.asarray(value, part.dtype)) for value in values)

    check(space, made)


@pytest.mark.parametrize("name", ["start", "choices", "flags", "bools"])
def test_sample_observations_cover_every_value_of_a_choice(name):
    space, rng = SPACES[name], np.random.default_rng(0)
    made = spaces.sample_observations(space, "float32", 400, rng)
    first, sizes = {
        "start": lambda: (space.start, space.n),
        "choices": lambda: (space.start, space.nvec),
        "flags": lambda: (0, np.full(4, 2)),
        "bools": lambda: (0, np.full((3, 2), 2)),
    }[name]()
    np.testing.assert_array_equal(made.min(axis=0), first)
    np.testing.assert_array_equal(made.max(axis=0), first + sizes - 1)


@pytest.mark.parametrize(
    ("space", "expected"),
    [
        (Box(0.0, 1.0, (2,)), True),
        (box([0, 0], [1, 900], "int32"), True),
        (box([-1, 0], [1, 1], "int8"), True),
        (Box(0, 255, (4,), np.uint8), True),
        (Box(0, 1, (4,), np.int64), False),
        *((SPACES[x], False) for x in ("image", "bools", "flags", "discrete", "choices")),
    ],
)
def test_numbers_are_quantities_unless_flags_categories_or_pixels(space, expected):
    assert bool(spaces.is_quantity(space)) == expected


# Nested structures

NESTS = [
    3,
    (),
    {},
    {"b": 1, "a": (2, {"d": 3, "c": 4})},
    ((1, 2), {"z": 5, "y": ()}),
]


@pytest.mark.parametrize("nest", NESTS, ids=str)
def test_leaves_have_the_order_and_the_structure_of_keras(nest):
    leaves = keras.tree.flatten(nest)
    assert spaces.flatten(nest) == leaves
    doubled = keras.tree.map_structure(lambda x: 2 * x, nest)
    assert spaces.map_leaves(lambda x: 2 * x, nest) == doubled
    packed = spaces.pack(nest, [2 * x for x in leaves])
    assert packed == doubled and str(packed) == str(doubled)
