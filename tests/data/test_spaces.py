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
    text = json.dumps(spaces.to_config(space))
    assert_identical(space, spaces.from_config(json.loads(text)))
    assert len(text) < 500  # a uniform bound of an image is one number


def test_to_config_raises_for_an_unsupported_space():
    with pytest.raises(ValueError, match="saved in a config. Received: Text"):
        spaces.to_config(gym.spaces.Dict(a=gym.spaces.Text(3)))


@pytest.mark.parametrize(
    "config, message",
    [
        ({"kind": "Graph"}, "must have the form that.*'Graph'"),
        ({"kind": "MultiDiscrete", "nvec": [2.7, 3]}, "must be a whole number"),
        ({"kind": "Discrete", "n": 3, "start": 0.5}, "must be a whole number"),
        ({"kind": "MultiBinary", "n": 2.5}, "must be a whole number"),
    ],
)
def test_from_config_raises_for_an_unknown_kind_and_fractions(config, message):
    with pytest.raises(ValueError, match=message):
        spaces.from_config(config)


UNSUPPORTED = [
    gym.spaces.Text(3),
    gym.spaces.Graph(Box(0, 1, (2,)), Discrete(2)),
    gym.spaces.Sequence(Discrete(2)),
    gym.spaces.OneOf([Discrete(2), Box(0, 1)]),
    Box(0, 1, (0,)),
    Box(0, 1, (2, 0), np.uint8),
    gym.spaces.MultiDiscrete(np.zeros(0, "int64")),
]


@pytest.mark.parametrize("part", UNSUPPORTED, ids=repr)
@pytest.mark.parametrize("nested", [False, True], ids=["alone", "nested"])
@pytest.mark.parametrize("root", ["observation", "action"])
def test_error_names_the_unsupported_part_of_a_space(root, part, nested):
    check = getattr(spaces, f"check_{root}_space")
    space = gym.spaces.Dict(b=gym.spaces.Tuple([Discrete(2), part])) if nested else part
    with pytest.raises(ValueError, match="Supported spaces are .*wrappers") as refused:
        check(space)
    assert f"{root.capitalize()} space {part!r} is not supported" in str(refused.value)
    assert check(SPACES["of_choices"]) is SPACES["of_choices"]


NO_NAMES = {
    "slash": (gym.spaces.Dict({"a/b": Discrete(2)}), "without '/'"),
    "number": (gym.spaces.Dict({1: Discrete(2)}), "strings"),
    "empty": (gym.spaces.Tuple([Discrete(2), gym.spaces.Tuple([])]), "must not be empty"),
    "same": (
        gym.spaces.Dict({"a_0": Discrete(2), "a": gym.spaces.Tuple([Discrete(2)])}),
        "a different name for each part. Received: .'a_0', 'a_0'.",
    ),
    "alike": (gym.spaces.Dict({"a 0": Discrete(2), "a_0": Discrete(2)}), "a different"),
}


@pytest.mark.parametrize("name", NO_NAMES)
def test_spaces_raise_if_names_of_parts_are_invalid(name):
    """The exported policy has the arrays as arguments by name."""
    space, message = NO_NAMES[name]
    for check in (spaces.check_action_space, spaces.check_observation_space):
        with pytest.raises(ValueError, match=message):
            check(space)


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
