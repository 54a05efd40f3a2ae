"""Checks the shapes and types that a tensor environment returns."""

import types

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import validation
from tf_reinforce.data import spaces

_ROWS = 7  # episodes it is tried with, a number that no shape has by accident


def check(env):
    """Refuses an environment whose tensors are not what its spaces and words say.

    Its functions are traced, and nothing is computed.

    Args:
        env: `TensorEnv`.

    Raises:
        ValueError: naming the function, and the shapes and types expected and received.
    """
    spaces.check_observation_space(env.observation_space)
    spaces.check_action_space(env.action_space)
    validation.positive_int_or_none("max_episode_steps", env.max_episode_steps)
    # A graph of a function, so that a world may hold tensors and variables.
    tf.function(lambda: _try_out(env), autograph=False).get_concrete_function()


def _try_out(env):
    name = type(env).__name__
    state = _answer(env, "initial", _noise(env, env.initial_noise))
    form = keras.tree.map_structure(_leaf(f"{name}.initial"), state)
    seen = _answer(env, "observation", state)
    _expect_observation(f"{name}.observation", seen, env)
    actions = keras.tree.map_structure(_some_actions, spaces.to_nest(env.action_space))
    actions = cast_actions(env, actions)
    noise = _noise(env, env.transition_noise)
    following = _answer(env, "transition", state, actions, noise)
    met = keras.tree.map_structure(_leaf(f"{name}.transition"), following)
    if met != form:
        raise ValueError(
            f"`{name}.transition` must return a state as `initial` does. Expected: "
            f"{form}. Received: {met}"
        )
    reward = _answer(env, "reward", state, actions, following)
    _expect(f"{name}.reward", reward, (), "float", lambda dtype: dtype.is_floating)
    over = _answer(env, "terminal", following)
    _expect(f"{name}.terminal", over, (), "bool", lambda dtype: dtype.is_bool)


def _answer(env, function, *given):
    """What a function of the environment returns, and leaves as it was given."""
    before = keras.tree.flatten(given)
    answer = getattr(env, function)(*given)
    after = keras.tree.flatten(given)
    if [*map(id, before)] != [*map(id, after)]:
        raise ValueError(
            f"`{type(env).__name__}.{function}` must not change what it is given: others "
            "read it still. Expected: a new structure, as {**state, 'x': …}. Received: "
            "one in which a tensor was replaced"
        )
    return answer


def cast_actions(env, actions):
    """Actions as a world receives them: whole numbers in the type of their space, real
    ones in that of the world.
    """

    def cast(space, action):
        real = np.issubdtype(space.dtype, np.floating)
        return tf.cast(action, env.dtype if real else space.dtype)

    return keras.tree.map_structure(cast, spaces.to_nest(env.action_space), actions)


# Objects that are not looked into: they have a state of their own, or none at all.
_WHOLE = (
    gym.Space,
    tf.Module,
    tf.Variable,
    keras.Variable,
    keras.Layer,
    type,
    types.FunctionType,
    types.ModuleType,
)


def constants(env):
    """What a traced program holds of an environment as constants.

    Returns:
        A tuple that can be hashed, and differs once an attribute or a number in one of
        its lists, dicts, sets, arrays and objects has changed. Variables are no
        constants, and spaces, models and functions are not looked into.
    """
    return tuple((name, _constant(value, {id(env)})) for name, value in vars(env).items())


def _constant(value, above):
    """`above` are the ids of what the value is a part of: it may be one of its parts."""
    if id(value) in above:
        return type(value).__name__, id(value)
    above = above | {id(value)}
    if isinstance(value, dict):
        return "dict", *((key, _constant(part, above)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return type(value).__name__, *(_constant(part, above) for part in value)
    if isinstance(value, (set, frozenset)):
        return "set", *sorted(repr(_constant(part, above)) for part in value)
    if isinstance(value, (np.ndarray, np.generic, tf.Tensor)):
        array = np.asarray(value)
        return array.dtype.str, array.shape, array.tobytes()
    if isinstance(value, (int, float, str, type(None))):
        return type(value).__name__, repr(value)  # NaN is the same as itself
    if isinstance(value, _WHOLE) or not hasattr(value, "__dict__"):
        return type(value).__name__, id(value)
    return type(value).__name__, id(value), _constant(vars(value), above)


def is_valid_observation(env, observation):
    """`[B]` bool: whether what is seen is finite, and choices are among their choices."""
    leaves = keras.tree.flatten(spaces.to_nest(env.observation_space))
    fit = [
        tf.reduce_all(tf.reshape(fits, [tf.shape(fits)[0], -1]), axis=1)
        for fits in map(_fitting, leaves, keras.tree.flatten(observation))
    ]
    return tf.reduce_all(tf.stack(fit), axis=0)


def _fitting(space, seen):
    if seen.dtype.is_floating:
        return tf.math.is_finite(seen)
    bounds = category_bounds(space)
    if bounds is None:
        return tf.ones_like(seen, tf.bool)
    low, high = (tf.constant(np.array(x), tf.int64) for x in bounds)
    seen = tf.cast(seen, tf.int64)
    return (low <= seen) & (seen <= high)


def category_bounds(space):
    """The least and the largest choice, or `None` where whole numbers are no choices."""
    if isinstance(space, gym.spaces.Discrete):
        return space.start, space.start + space.n - 1
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start, space.start + space.nvec - 1
    return (0, 1) if isinstance(space, gym.spaces.MultiBinary) else None


def _noise(env, noise):
    if noise is None:
        return None
    shape = getattr(noise, "shape", None)
    sizes = shape if isinstance(shape, tuple) else [None]
    fixed = all(isinstance(size, int) for size in sizes)
    if getattr(noise, "kind", None) not in ("uniform", "normal") or not fixed:
        raise ValueError(
            f"A noise of `{type(env).__name__}` must be one `NoiseSpec`, uniform or "
            "normal, of the shape of one episode's. Expected: for example "
            f"NoiseSpec('uniform', (2,)). Received: {noise!r}"
        )
    return tf.zeros([_ROWS, *shape], env.dtype)


def _leaf(function):
    """A function from a tensor of a batch to the `(shape, type)` of one episode's."""

    def described(tensor):
        tensor = tf.convert_to_tensor(tensor)
        shape = tensor.shape
        if shape.rank in (None, 0) or shape[0] != _ROWS or not shape.is_fully_defined():
            raise ValueError(
                f"`{function}` must return tensors with a row for each episode, and all "
                f"other axes of a fixed size. Expected, for {_ROWS} episodes: shape "
                f"({_ROWS}, …) without None. Received: {shape}. What is chosen by "
                "a value (`tf.boolean_mask`, `tf.unique`) has no fixed size: use "
                "`tf.where(condition, a, b)`."
            )
        return tuple(shape[1:]), tensor.dtype.name

    return described


def _expect_observation(function, seen, env):
    expected = spaces.observation_spec(env.observation_space, env.dtype)
    try:
        keras.tree.assert_same_structure(expected, seen)
    except ValueError:
        raise ValueError(
            f"`{function}` must be nested as the observation space. Expected: {expected}."
            f" Received: {seen}"
        ) from None

    def compare(leaf, tensor):
        kind = "a float type" if leaf.dtype.is_floating else leaf.dtype.name
        _expect(function, tensor, tuple(leaf.shape), kind, _alike(leaf.dtype))

    keras.tree.map_structure(compare, expected, seen)


def _alike(dtype):
    return lambda other: other == dtype or dtype.is_floating and other.is_floating


def _expect(function, tensor, shape, kind, fits):
    received, dtype = _leaf(function)(tensor)
    if received != shape or not fits(tf.as_dtype(dtype)):
        raise ValueError(
            f"`{function}` must return shape {(_ROWS, *shape)} for {_ROWS} episodes, of "
            f"type {kind}. Received: shape {(_ROWS, *received)} of type {dtype}. Nothing "
            "is broadcast or cast."
        )


def _some_actions(space):
    return tf.constant(np.zeros((_ROWS, *space.shape), space.dtype))
