"""Converts Gymnasium spaces to specs, names and configs."""

import re

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

OBSERVATIONS = (
    "Box, Discrete, MultiDiscrete, MultiBinary, and Dict or Tuple of these, nested to "
    "any depth"
)
_OBSERVED = (
    gym.spaces.Box,
    gym.spaces.Discrete,
    gym.spaces.MultiDiscrete,
    gym.spaces.MultiBinary,
)
ACTIONS = (
    "Discrete, MultiDiscrete, MultiBinary, Box of a float or integer type, and Dict or "
    "Tuple of these, nested to any depth"
)


UNBOUNDED_WIDTH = 1e7  # bounds as wide as the type are how many environments say "none"


def check_observation_space(space):
    """Returns the space, or names the part of it that is not supported.

    Raises:
        ValueError: with the unsupported part and the supported kinds.
    """
    _check_keys(to_nest(space), "observation")
    for part in _parts(space):
        if not isinstance(part, _OBSERVED) or 0 in part.shape:
            raise ValueError(
                f"Observation space {part!r} is not supported. "
                f"Supported: {OBSERVATIONS}; nothing empty. Received: {space!r}. "
                "Wrap the environment with gymnasium.wrappers.FlattenObservation, "
                "FilterObservation or TransformObservation."
            )
    named = [safe_name(name) for name in keras.tree.flatten(names(to_nest(space)))]
    if len(set(named)) < len(named):
        raise ValueError(
            "The keys of an observation, joined by '_', become names of inputs, of "
            "letters, digits, '_' and '.', and no two may have the same. "
            f"Received: {sorted(named)} from {space!r}. Rename "
            "one with gymnasium.wrappers.TransformObservation."
        )
    return space


def _parts(space):
    """The simple spaces inside, and the containers that hold nothing."""
    if isinstance(space, gym.spaces.Dict | gym.spaces.Tuple) and len(space):
        children = space.values() if isinstance(space, gym.spaces.Dict) else space
        return [part for child in children for part in _parts(child)]
    return [space]


def _check_keys(nested, whole):
    """Refuses keys that cannot be names, for Keras and for the export."""
    for key, child in _children(nested):
        if isinstance(nested, dict) and not (isinstance(key, str) and "/" not in key):
            raise ValueError(
                f"The keys of an {whole} become names: strings without '/'. "
                f"Received: {key!r} in {nested!r}. Rename it with "
                f"gymnasium.wrappers.Transform{whole.capitalize()}."
            )
        _check_keys(child, whole)


def _children(nested):
    """`(key, child)` of a dict, `(number, child)` of a tuple; a leaf has none."""
    if isinstance(nested, dict):
        return nested.items()
    return enumerate(nested) if isinstance(nested, tuple) else ()


def check_action_space(space):
    """Returns the space, or names the part of it that is not supported.

    Raises:
        ValueError: when no head exists for the space.
    """
    nested = to_nest(space)
    for part in keras.tree.flatten(nested):
        if not _has_head(part):
            raise ValueError(
                f"Action space {part!r} is not supported. Supported: {ACTIONS}. "
                f"Received: {space!r}. Wrap the environment with "
                "gymnasium.wrappers.TransformAction, or give the agent a head: "
                "`head=tfr.heads.Multinomial(categories, trials)` for counts, or one of "
                "your own."
            )
    if nested is not space:
        action_names(nested)
    return space


def _has_head(space):
    if isinstance(space, gym.spaces.Box):
        return space.dtype.kind in "fiu" and 0 not in space.shape
    if isinstance(space, (gym.spaces.MultiDiscrete, gym.spaces.MultiBinary)):
        return 0 not in space.shape
    return isinstance(space, gym.spaces.Discrete)


def action_names(nested):
    """A name for each leaf of a nested action, in the order of `keras.tree.flatten`.

    Args:
        nested: Tuple or dict of leaves, or of such tuples and dicts.

    Raises:
        ValueError: when a tuple or dict is empty, a key is no string or has a "/", or
            two leaves get the same name.

    Example:

    >>> action_names({"arm": (1.5, 0), "grip": 1}), action_names((1.5, 0))
    (('arm_0', 'arm_1', 'grip'), ('action_0', 'action_1'))
    """
    _check_not_empty(nested)
    _check_keys(nested, "action")
    found = tuple(keras.tree.flatten(names(nested, whole="action")))
    if len(set(found)) < len(found):
        raise ValueError(
            "The keys on the way down to a part of an action, joined by '_', make its "
            f"name. Expected: a name for each. Received: {found}. Rename a key with "
            "gymnasium.wrappers.TransformAction."
        )
    return found


def _check_not_empty(nested):
    if isinstance(nested, (dict, tuple)) and not nested:
        raise ValueError(
            "Every tuple and dict of an action must have a part. "
            f"Received: {nested!r}. Remove it with gymnasium.wrappers.TransformAction."
        )
    for _, child in _children(nested):
        _check_not_empty(child)


def observation_spec(space, float_dtype):
    """One observation as a structure of `tf.TensorSpec`, without the batch axis.

    Args:
        space: An observation space.
        float_dtype: The type in which the policy computes. Real observations are
            recorded in it, so that acting and learning see the same bits; whole
            numbers keep their own type.

    Returns:
        A `tf.TensorSpec`, or dicts and tuples of them as the space nests.

    Example:

    >>> observation_spec(gym.spaces.Dict(speed=gym.spaces.Box(0, 1, (2,))), "float32")
    {'speed': TensorSpec(shape=(2,), dtype=tf.float32, name=None)}
    >>> observation_spec(gym.spaces.Discrete(3), "float32")
    TensorSpec(shape=(), dtype=tf.int64, name=None)
    """

    def leaf(part):
        real = np.issubdtype(part.dtype, np.floating)
        return tf.TensorSpec(part.shape, float_dtype if real else part.dtype)

    return keras.tree.map_structure(leaf, to_nest(space))


def real_shapes(structure):
    """The shapes of a structure, batch axis first; an empty one for what is not real.

    Example:

    >>> real_shapes({"speed": tf.TensorSpec((2,)), "gear": tf.TensorSpec((), "int64")})
    {'speed': (None, 2), 'gear': ()}
    """
    return keras.tree.map_structure(
        lambda leaf: (None, *leaf.shape) if leaf.dtype.is_floating else (), structure
    )


def names(structure, path=(), whole="observation"):
    """A name for each part of a structure: the keys on the way down to it.

    Args:
        structure: A leaf, or a tuple or dict of leaves or of such tuples and dicts.
        path: Keys that lead to the structure itself.
        whole: Name of what has no key, or begins with the number of a tuple's part.

    Example:

    >>> speed = tf.TensorSpec((2,))
    >>> names(speed), names({"speed": speed, "arms": (speed, speed)})
    ('observation', {'speed': 'speed', 'arms': ('arms_0', 'arms_1')})
    """
    if isinstance(structure, dict):
        parts = structure.items()
        return {key: names(child, (*path, key), whole) for key, child in parts}
    if isinstance(structure, tuple):
        parts = enumerate(structure)
        return tuple(names(child, (*path, i), whole) for i, child in parts)
    if not path or isinstance(path[0], int):
        path = (whole, *path)
    return "_".join(map(str, path))


def safe_name(name):
    """A name as TensorFlow takes it, of letters, digits, `_` and `.`; no `_` begins it.

    Example:

    >>> safe_name("left arm"), safe_name("é")
    ('left_arm', 'key_')
    """
    return re.sub("^_", "key_", re.sub("[^A-Za-z0-9_.]", "_", name))


def of_shapes(shapes, float_dtype):
    """The same as `structure` from shapes alone, where no space is known.

    Args:
        shapes: Shape with the batch axis first, or dicts and tuples of such shapes.
        float_dtype: The type of every array: shapes do not tell whole numbers.

    Example:

    >>> of_shapes({"speed": (None, 2)}, "float32")
    {'speed': TensorSpec(shape=(2,), dtype=tf.float32, name=None)}
    """
    if isinstance(shapes, dict):
        return {key: of_shapes(child, float_dtype) for key, child in shapes.items()}
    if all(size is None or isinstance(size, int) for size in shapes):
        return tf.TensorSpec(tuple(shapes)[1:], float_dtype)
    return tuple(of_shapes(child, float_dtype) for child in shapes)


def to_config(space):
    """The space as plain numbers, strings, lists and dicts; None stays None.

    Example:

    >>> to_config(gym.spaces.Discrete(3, start=1))
    {'kind': 'Discrete', 'n': 3, 'start': 1, 'dtype': 'int64'}
    """
    if space is None:
        return None
    if isinstance(space, gym.spaces.Discrete):
        return {
            "kind": "Discrete",
            "n": int(space.n),
            "start": int(space.start),
            "dtype": space.dtype.name,
        }
    if isinstance(space, gym.spaces.MultiDiscrete):
        return {
            "kind": "MultiDiscrete",
            "nvec": space.nvec.tolist(),
            "start": np.asarray(space.start).tolist(),
            "dtype": space.dtype.name,
        }
    if isinstance(space, gym.spaces.MultiBinary):
        return {"kind": "MultiBinary", "n": np.asarray(space.n).tolist()}
    if isinstance(space, gym.spaces.Box):
        return {
            "kind": "Box",
            "low": _bound_to_config(space.low),
            "high": _bound_to_config(space.high),
            "shape": list(space.shape),
            "dtype": space.dtype.name,
        }
    if isinstance(space, gym.spaces.Dict):
        parts = {key: to_config(child) for key, child in space.items()}
        return {"kind": "Dict", "parts": parts}
    if isinstance(space, gym.spaces.Tuple):
        return {"kind": "Tuple", "parts": [to_config(child) for child in space]}
    raise ValueError(f"Space {space!r} cannot be written down.")


def from_config(config):
    """The space that `to_config` wrote; only the kinds named there are built.

    Raises:
        ValueError: when the kind is unknown.
    """
    if config is None or isinstance(config, gym.Space):
        return config
    kind = config.get("kind")
    if kind == "Discrete":
        # Files of version 0 do not say the type.
        dtype = np.dtype(config.get("dtype", "int64"))
        return gym.spaces.Discrete(
            int(config["n"]), start=int(config["start"]), dtype=dtype
        )
    if kind == "MultiDiscrete":
        nvec, start = np.asarray(config["nvec"]), np.asarray(config["start"])
        return gym.spaces.MultiDiscrete(nvec, np.dtype(config["dtype"]), start=start)
    if kind == "MultiBinary":
        return gym.spaces.MultiBinary(config["n"])
    if kind == "Box":
        shape, dtype = tuple(config["shape"]), np.dtype(config["dtype"])
        low, high = (
            np.broadcast_to(np.asarray(config[side]), shape).astype(dtype)
            for side in ("low", "high")
        )
        return gym.spaces.Box(low, high, shape, dtype)
    if kind == "Dict":
        parts = {key: from_config(part) for key, part in config["parts"].items()}
        return gym.spaces.Dict(parts)
    if kind == "Tuple":
        return gym.spaces.Tuple([from_config(part) for part in config["parts"]])
    raise ValueError(
        "A space's `kind` must be Discrete, MultiDiscrete, MultiBinary, Box, Dict or "
        f"Tuple. Received: kind={kind!r}"
    )


def _bound_to_config(bound):
    # One number for a uniform bound keeps the file of an image policy small.
    same = bound.size > 0 and bool(np.all(bound == bound.flat[0]))
    return bound.flat[0].item() if same else bound.tolist()


def expect_spaces(agent_spaces, environment_spaces):
    """Refuses an environment whose spaces are not those of the agent.

    Args:
        agent_spaces: `(observation space, action space)` the agent was built for.
        environment_spaces: The same two of the environment.

    Raises:
        ValueError: with both spaces, when one of the two differs.
    """
    names = ("observation", "action")
    for name, ours, theirs in zip(names, agent_spaces, environment_spaces, strict=True):
        if ours is not None and ours != theirs:
            raise ValueError(
                f"The agent was made for another {name} space. Expected: {ours!r}. "
                f"Received: {theirs!r}. Build a new agent for this environment, or "
                "wrap the environment so that its spaces agree."
            )


def expect_shapes(ours, theirs):
    """Refuses observations of other shapes than an agent was built for.

    Args:
        ours, theirs: See `structure`.

    Raises:
        ValueError: with the shapes of both.
    """
    ours, theirs = (
        keras.tree.map_structure(lambda leaf: tuple(leaf.shape), x)
        for x in (ours, theirs)
    )
    if ours != theirs:
        raise ValueError(
            "The agent was built for observations of other shapes. "
            f"Expected: {ours}. Received: {theirs}"
        )


def sample_observations(space, float_dtype, count, rng):
    """`count` plausible observations, stacked; large bounds are not taken at their word.

    Args:
        space: An observation space.
        float_dtype: See `structure`.
        count: Positive int, the length of the leading axis.
        rng: `np.random.Generator`.

    Returns:
        The structure of the space, with an array `[count, …]` for each leaf.
    """

    def draw(part):
        shape = (count, *part.shape)
        if isinstance(part, gym.spaces.Box):
            return _in_box(part, shape, float_dtype, rng)
        if isinstance(part, gym.spaces.MultiBinary):
            first, last = 0, 1
        else:
            sizes = part.n if isinstance(part, gym.spaces.Discrete) else part.nvec
            first, last = part.start, part.start + (sizes - 1)
        return rng.integers(first, last, shape, endpoint=True).astype(part.dtype)

    return keras.tree.map_structure(draw, to_nest(space))


# The numbers at which an observation is tried, besides its bounds.
_EDGES = 0.0, 1.0, -1.0, 1e3, -1e3, -np.inf, np.inf


def edge_observations(space, float_dtype):
    """Observations at 0, ±1, ±1000 and the bounds of their space, stacked.

    Every number lies between its bounds; where these are infinite or more than 1e7 apart,
    ±1000 stands for them. Choices take their first and their last value.

    Args:
        space: An observation space.
        float_dtype: See `structure`.

    Returns:
        The structure of the space, with an array `[7, …]` for each leaf.

    Example:

    >>> edge_observations(gym.spaces.Box(-2, 5, (1,)), "float32").ravel().tolist()
    [0.0, 1.0, -1.0, 5.0, -2.0, -2.0, 5.0]
    """

    def at(part):
        if isinstance(part, gym.spaces.Box):
            low, high = (bound.astype("float64") for bound in (part.low, part.high))
            wide = ~(high - low < UNBOUNDED_WIDTH)
            low = np.where(wide, np.maximum(low, -1e3), low)
            high = np.where(wide, np.maximum(low, np.minimum(high, 1e3)), high)
            real = np.issubdtype(part.dtype, np.floating)
            dtype = float_dtype if real else part.dtype
        elif isinstance(part, gym.spaces.MultiBinary):
            low, high, dtype = np.zeros(part.shape), np.ones(part.shape), part.dtype
        else:
            sizes = part.n if isinstance(part, gym.spaces.Discrete) else part.nvec
            last = np.minimum(sizes - 1, UNBOUNDED_WIDTH)  # exact in float64
            low, high, dtype = part.start, part.start + last, part.dtype
        rows = [np.clip(np.full(part.shape, edge), low, high) for edge in _EDGES]
        return np.stack(rows).astype(dtype)

    return keras.tree.map_structure(at, to_nest(space))


def _in_box(box, shape, float_dtype, rng):
    if np.issubdtype(box.dtype, np.floating):
        values = np.clip(rng.standard_normal(shape), box.low, box.high)
        return values.astype(float_dtype)
    high = np.minimum(box.high.astype("float64") + 1, box.low + 256.0)
    return np.floor(rng.uniform(box.low, high, shape)).astype(box.dtype)


def middle_and_half(low, high):
    """The middle of bounds and half their width; 0 and 1 where they say nothing.

    Example:

    >>> middle_and_half([10, 0.0], [20, float("inf")])
    (array([15.,  0.]), array([5., 1.]))
    """
    low, high = np.asarray(low, "float64"), np.asarray(high, "float64")
    known = (high - low < UNBOUNDED_WIDTH) & (high > low)
    with np.errstate(invalid="ignore"):  # ∞ - ∞, which is not known
        middle = np.where(known, (high + low) / 2, 0.0)
    return middle, np.where(known, (high - low) / 2, 1.0)


def to_nest(space):
    """The space as plain dicts and tuples, with its simple spaces as leaves.

    Example:

    >>> to_nest(gym.spaces.Dict(gear=gym.spaces.Discrete(5)))
    {'gear': Discrete(5)}
    """
    if isinstance(space, gym.spaces.Dict):
        return {key: to_nest(child) for key, child in space.items()}
    if isinstance(space, gym.spaces.Tuple):
        return tuple(to_nest(child) for child in space)
    return space
