"""Converts Gymnasium spaces to specs, names and configs."""

import dataclasses
import math
import re
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from tf_reinforce.support import validation

_LEAVES = (
    gym.spaces.Discrete,
    gym.spaces.MultiDiscrete,
    gym.spaces.MultiBinary,
    gym.spaces.Box,
)
_SUPPORTED = (
    "Supported spaces are Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple "
    "of these, nested to any depth, if they are not empty"
)

# Many environments use the limits of the number type as bounds, if an observation has no
# bounds.
UNBOUNDED_WIDTH = 1e7


@dataclasses.dataclass(frozen=True)
class ArraySpec:
    """Shape and number type of an array, without batch axis."""

    shape: tuple
    dtype: str


class ActingSpecs(NamedTuple):
    """What an agent reads and returns when it acts."""

    float_dtype: str  # the type of float observations and of the noise
    observations: list[ArraySpec]  # the arrays of an observation, without action masks
    actions: list[ArraySpec]  # the arrays of a raw action, as the head samples it
    noise: list  # `seeding.NoiseSpec` of the noise for each part of an action
    mask_reader: Any  # `None` if all actions are legal
    reads_rewards: bool = False  # whether the last recurrent state is the reward before


def check_observation_space(space):
    """Returns the space, or raises `ValueError` if a part is not supported.

    Two parts whose names would be equal are refused as well.
    """
    wrappers = "FlattenObservation, FilterObservation or TransformObservation"
    return _check(space, "observation", f"gymnasium.wrappers.{wrappers}")


def check_action_space(space):
    """Returns the space, or raises `ValueError` if no head exists for a part."""
    head = "for example `head=tfr.heads.Multinomial(categories, trials)` for counts"
    wrapper = "gymnasium.wrappers.TransformAction, or pass a head to the agent"
    return _check(space, "action", f"{wrapper}, {head}")


def _check(space, root, remedy):
    nested = to_nest(space)
    for part in flatten(nested):
        is_bool = isinstance(part, gym.spaces.Box) and part.dtype.kind == "b"
        is_leaf = isinstance(part, _LEAVES) and 0 not in part.shape
        if not is_leaf or is_bool and root == "action":
            raise ValueError(
                f"{root.capitalize()} space {part!r} is not supported. {_SUPPORTED}. "
                f"Received: {space!r}. Wrap the environment with {remedy}."
            )
    leaf_names(nested, root)
    return space


def leaf_names(nested, root):
    """Returns a name for each leaf, in the order of `flatten`.

    Args:
        nested: Nested tuples and dicts of leaves.
        root: String, `"action"` or `"observation"`.

    Raises:
        ValueError: If a tuple or dict is empty, a key is no string or contains "/", or
            two leaves have the same name.

    Example:

    >>> leaf_names({"arm": (1.5, 0), "grip": 1}, "action"), leaf_names((1.5, 0), "action")
    (('arm_0', 'arm_1', 'grip'), ('action_0', 'action_1'))
    """
    _check_keys(nested, root)
    found = tuple(flatten(names(nested, root=root)))
    if len(set(map(safe_name, found))) < len(found):
        raise ValueError(
            f"The keys of each part of an {root}, joined by '_', become its name in "
            "letters, digits, '_' and '.'. Expected: a different name for each part. "
            f"Received: {found}. Rename a key with "
            f"gymnasium.wrappers.Transform{root.capitalize()}."
        )
    return found


def _check_keys(nested, root):
    """Raises an error if a nest is empty, or a key is no valid name in Keras."""
    if not isinstance(nested, (dict, tuple)):
        return
    keys = list(nested) if isinstance(nested, dict) else []
    if not nested or not all(isinstance(key, str) and "/" not in key for key in keys):
        raise ValueError(
            f"A tuple or dict of an {root} must not be empty, and its keys must be "
            f"strings without '/', because they become names. Received: {nested!r}. "
            f"Change the space with gymnasium.wrappers.Transform{root.capitalize()}."
        )
    for child in nested.values() if keys else nested:
        _check_keys(child, root)


def names(structure, path=(), root="observation"):
    """Returns each leaf's name: the keys that lead to it, joined by '_'.

    Args:
        structure: A leaf, or nested tuples and dicts of leaves.
        path: Tuple of the keys that lead to `structure`.
        root: String, the name of a single leaf, and the prefix of names that would begin
            with an index.

    Example:

    >>> names(2), names({"speed": 2, "arms": (2, 2)})
    ('observation', {'speed': 'speed', 'arms': ('arms_0', 'arms_1')})
    """
    if isinstance(structure, dict):
        parts = structure.items()
        return {key: names(child, (*path, key), root) for key, child in parts}
    if isinstance(structure, tuple):
        parts = enumerate(structure)
        return tuple(names(child, (*path, i), root) for i, child in parts)
    if not path or isinstance(path[0], int):
        path = (root, *path)
    return "_".join(map(str, path))


def safe_name(name):
    """Returns a valid TensorFlow name of letters, digits, `_` and `.`.

    Any other character becomes `_`, and a leading `_` becomes `key_`.

    Example:

    >>> safe_name("left arm"), safe_name("é")
    ('left_arm', 'key_')
    """
    return re.sub("^_", "key_", re.sub("[^A-Za-z0-9_.]", "_", name))


def to_config(space):
    """Returns a space as numbers, strings, lists and dicts; `None` for `None`.

    Raises:
        ValueError: If the space has another type.

    Example:

    >>> to_config(gym.spaces.Discrete(3, start=1))
    {'kind': 'Discrete', 'n': 3, 'start': 1, 'dtype': 'int64'}
    """
    if space is None:
        return None
    if isinstance(space, gym.spaces.Dict):
        parts = {key: to_config(child) for key, child in space.items()}
        return {"kind": "Dict", "parts": parts}
    if isinstance(space, gym.spaces.Tuple):
        return {"kind": "Tuple", "parts": [to_config(child) for child in space]}
    for kind, fields in _FIELDS.items():
        if isinstance(space, getattr(gym.spaces, kind)):
            values = {name: _to_plain(name, getattr(space, name)) for name in fields}
            return {"kind": kind, **values}
    raise ValueError(
        f"{_SUPPORTED}. Only these can be saved in a config. Received: {space!r}"
    )


# The attributes of each kind of space in a config, and arguments of its constructor.
_FIELDS = {
    "Discrete": ("n", "start", "dtype"),
    "MultiDiscrete": ("nvec", "start", "dtype"),
    "MultiBinary": ("n",),
    "Box": ("low", "high", "shape", "dtype"),
}


def _to_plain(name, value):
    if name == "dtype":
        return value.name
    value = np.asarray(value)
    # Equal bounds are stored as one number, so that the file of an image policy is small.
    is_uniform = name in ("low", "high") and value.size and np.all(value == value.flat[0])
    return value.flat[0].item() if is_uniform else value.tolist()


def from_config(config):
    """Returns the space from a config of `to_config`.

    Raises:
        ValueError: If the `kind` is unknown, or an entry is invalid.
    """
    if config is None or isinstance(config, gym.Space):
        return config
    try:
        kind = config["kind"]
        if kind == "Dict":
            parts = config["parts"].items()
            return gym.spaces.Dict({key: from_config(part) for key, part in parts})
        if kind == "Tuple":
            return gym.spaces.Tuple([from_config(part) for part in config["parts"]])
        # Config files of version 0 do not contain the type of a `Discrete` space.
        fields = {name: config[name] for name in _FIELDS[kind] if name in config}
        dtype = fields.get("dtype", "int64")
        if np.dtype(dtype).name != dtype:
            raise TypeError(f"`dtype` must be the name of a number type, not {dtype!r}")
        for name in fields.keys() & {"n", "nvec", "start"}:
            for value in np.ravel(fields[name]).tolist():
                validation.whole_number(name, value)
        sizes = fields.get("shape", fields["n"] if kind == "MultiBinary" else 1)
        validation.size("shape", max(1, math.prod(np.ravel(sizes).tolist())))
        if kind == "Box":
            for side in ("low", "high"):
                fields[side] = np.full(fields["shape"], fields[side], dtype)
        return getattr(gym.spaces, kind)(**fields)
    # The constructors of spaces raise these errors, and the file may have any content.
    except (AssertionError, AttributeError, KeyError, OverflowError, TypeError) as error:
        raise ValueError(
            "The config of a space must have the form that `to_config` returns. "
            f"Received: {repr(config)[:100]} ({str(error)[:200]})"
        ) from None


def check_same_spaces(agent_spaces, environment_spaces):
    """Raises `ValueError` if the spaces of agent and environment differ.

    Args:
        agent_spaces: `(observation space, action space)`; `None` is not compared.
        environment_spaces: The same for the environment.
    """
    pairs = zip(("observation", "action"), agent_spaces, environment_spaces, strict=True)
    for name, expected, received in pairs:
        if expected is not None and expected != received:
            raise ValueError(
                f"The agent was made for another {name} space. Expected: {expected!r}. "
                f"Received: {received!r}. Build a new agent for the environment, or "
                "wrap the environment so that agent and environment have equal spaces."
            )


def sample_observations(space, float_dtype, count, rng, scales=(1.0,)):
    """Returns random observations without extreme values, in stacked arrays.

    Floats are standard normal numbers that are clipped to the bounds of the space.
    Integers of a `Box` are at most 255 above the lower bound.

    Args:
        space: A Gymnasium observation space.
        float_dtype: The float type of the observations.
        count: Positive int, the length of the leading axis.
        rng: `np.random.Generator`.
        scales: Standard deviations of real numbers, before they are clipped to the
            bounds; each observation has the next of them, in turn.

    Returns:
        The space's structure, with an array `[count, …]` for each leaf.
    """

    def sample(part):
        shape = (count, *part.shape)
        if isinstance(part, gym.spaces.Box):
            return _sample_box(part, shape, float_dtype, rng, scales)
        first, last = category_bounds(part)
        return rng.integers(first, last, shape, endpoint=True).astype(part.dtype)

    return map_leaves(sample, to_nest(space))


def _sample_box(box, shape, float_dtype, rng, scales):
    if np.issubdtype(box.dtype, np.floating):
        by_row = np.resize(scales, (shape[0], *[1] * len(box.shape)))
        values = np.clip(by_row * rng.standard_normal(shape), box.low, box.high)
        return values.astype(float_dtype)
    high = np.minimum(box.high.astype("float64") + 1, box.low + 256.0)
    return np.floor(rng.uniform(box.low, high, shape)).astype(box.dtype)


def middle_and_half(low, high):
    """Returns the middle of two bounds and half their distance.

    They are 0 and 1 if the bounds are equal, infinite, or 1e7 or more apart.

    Example:

    >>> middle_and_half([10, 0.0], [20, float("inf")])
    (array([15.,  0.]), array([5., 1.]))
    """
    low, high = np.asarray(low, "float64"), np.asarray(high, "float64")
    bounded = (high - low < UNBOUNDED_WIDTH) & (high > low)
    with np.errstate(invalid="ignore"):  # ignores ∞ - ∞, which the condition excludes
        middle = np.where(bounded, (high + low) / 2, 0.0)
    return middle, np.where(bounded, (high - low) / 2, 1.0)


def to_nest(space):
    """Returns a space as nested dicts and tuples with simple spaces as leaves.

    Example:

    >>> to_nest(gym.spaces.Dict(gear=gym.spaces.Discrete(5)))
    {'gear': Discrete(5)}
    """
    if isinstance(space, gym.spaces.Dict):
        return {key: to_nest(child) for key, child in space.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(to_nest(child) for child in space)
    return space


def is_quantity(space):
    """Returns whether a space's numbers are quantities, which can be normalized.

    Others are categories, flags, or an image's pixels: uint8 with at least two axes.

    Example:

    >>> is_quantity(gym.spaces.Box(0, 9, (2,), int)), is_quantity(gym.spaces.Discrete(9))
    (True, False)
    """
    if not isinstance(space, gym.spaces.Box) or space.dtype.kind not in "fiu":
        return False
    is_image = space.dtype == np.uint8 and len(space.shape) > 1
    is_flags = np.all(space.low >= 0) and np.all(space.high <= 1)
    return space.dtype.kind == "f" or not (is_image or is_flags)


def category_bounds(space):
    """Returns the lowest and the highest category of a space, or `None` for a `Box`.

    The result `None` means that observations are not compared with the bounds of the
    `Box`. Many environments exceed the bounds of a `Box` slightly.

    Example:

    >>> category_bounds(gym.spaces.Discrete(3, start=1))
    (1, 3)
    """
    if isinstance(space, gym.spaces.MultiBinary):
        return 0, 1
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start, space.start + (space.nvec - 1)
    if isinstance(space, gym.spaces.Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    return None


def flatten(nest):
    """Returns the leaves of nested dicts and tuples, in the order of `keras.tree`.

    Processes that play episodes import no Keras.

    Example:

    >>> flatten({"b": 1, "a": (2, 3)})
    [2, 3, 1]
    """
    if isinstance(nest, dict):
        return [leaf for key in sorted(nest) for leaf in flatten(nest[key])]
    if isinstance(nest, tuple):
        return [leaf for part in nest for leaf in flatten(part)]
    return [nest]


def map_leaves(function, nest):
    """Returns the nest with `function(leaf)` for each leaf, called as `flatten` orders.

    Example:

    >>> map_leaves(str, {"b": 1, "a": (2, 3)})
    {'b': '1', 'a': ('2', '3')}
    """
    if isinstance(nest, dict):
        parts = {key: map_leaves(function, nest[key]) for key in sorted(nest)}
        return {key: parts[key] for key in nest}
    if isinstance(nest, tuple):
        return tuple(map_leaves(function, part) for part in nest)
    return function(nest)


def row_of_leaves(nest, index):
    """Returns one row of each array in a nest; a leaf may be `None`."""
    return map_leaves(lambda x: x if x is None else x[index], nest)


def pack(nest, leaves):
    """Returns leaves, in the order of `flatten`, nested like `nest`.

    Example:

    >>> pack({"b": 1, "a": (2, 3)}, ["first", "second", "third"])
    {'b': 'third', 'a': ('first', 'second')}
    """
    leaves = iter(leaves)
    return map_leaves(lambda _: next(leaves), nest)
