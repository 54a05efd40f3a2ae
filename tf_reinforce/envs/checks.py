"""Checks of the shapes and types that a tensor environment returns."""

import collections
import types

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import episodes as records
from tf_reinforce.data import spaces
from tf_reinforce.support import validation

_ROWS = 7  # trial episodes; no other axis should have this size


def check(env):
    """Raises an error if an environment's functions return wrong shapes or types.

    They are traced as a TensorFlow graph, but not run.

    Args:
        env: `TensorEnv` to check.

    Raises:
        ValueError: If a tensor has a wrong shape or type.
    """
    spaces.check_observation_space(env.observation_space)
    spaces.check_action_space(env.action_space)
    validation.positive_int_or_none("max_episode_steps", env.max_episode_steps)
    # Traced in a separate graph, because an environment may hold tensors and variables.
    tf.function(lambda: _check_functions(env), autograph=False).get_concrete_function()


def _check_functions(env):
    rows, choices = (_ROWS,), spaces.to_nest(env.action_space)
    state = _call(env, "initial", _zero_noise(env, "initial_noise"))
    for part in map(tf.convert_to_tensor, keras.tree.flatten(state)):
        if part.shape[:1] != rows or not part.shape.is_fully_defined():
            raise ValueError(
                f"`{type(env).__name__}.initial` must return tensors with a row for each "
                f"of {_ROWS} episodes, and axes of fixed sizes. Received: {part.shape}"
            )
    masks = _call(env, "action_mask", state)
    if masks is not None:
        forms = keras.tree.map_structure(
            lambda x: f"bool or int {(_ROWS, gym.spaces.flatdim(x))}", choices
        )
        _expect(env, "action_mask", masks, forms)
    observation = keras.tree.map_structure(
        lambda x: f"{_kind(x.dtype)} {(_ROWS, *x.shape)}",
        records.observation_spec(env.observation_space, env.dtype),
    )
    _expect(env, "observation", _call(env, "observation", state), observation)
    actions = keras.tree.map_structure(lambda x: tf.zeros((_ROWS, *x.shape)), choices)
    noise = env.transition_noise and _zero_noise(env, "transition_noise")
    actions = cast_actions(env, actions)
    next_state = _call(env, "transition", state, actions, noise)
    states = keras.tree.map_structure(lambda x: _form(x, exact=True), state)
    _expect(env, "transition", next_state, states, exact=True)
    reward = _call(env, "reward", state, actions, next_state)
    _expect(env, "reward", reward, f"float {rows}")
    _expect(env, "terminal", _call(env, "terminal", next_state), f"bool {rows}")


def _call(env, function, *arguments):
    """Returns the result of a function; raises if it changes its arguments."""
    before = keras.tree.flatten(arguments)
    result = getattr(env, function)(*arguments)
    after = keras.tree.flatten(arguments)
    if [*map(id, before)] != [*map(id, after)]:
        raise ValueError(
            f"`{type(env).__name__}.{function}` must not change its arguments. Return a "
            "new structure, for example {**state, 'x': …}."
        )
    return result


def cast_actions(env, actions):
    """Returns actions in the types that a tensor environment expects.

    Integers get the type of the action space, and reals the environment's `dtype`.
    """

    def cast(space, action):
        is_real = np.issubdtype(space.dtype, np.floating)
        return tf.cast(action, env.dtype if is_real else space.dtype)

    return keras.tree.map_structure(cast, spaces.to_nest(env.action_space), actions)


class _Identity:
    """Compares an object by identity, and keeps it alive, so its id is not used again."""

    def __init__(self, value):
        self._value = value

    def __eq__(self, other):
        return isinstance(other, _Identity) and self._value is other._value

    def __hash__(self):
        return id(self._value)


def constants(env):
    """Returns the values of an environment that a traced program contains as constants.

    Environments with equal results have equal programs.

    Returns:
        A hashable tuple of the class and the constants. It changes if an attribute of the
        environment or its class gets another value, or if a number changes inside a list,
        dict, array, space or object. The values of variables and the contents of
        models and functions are not part of it.
    """
    attributes = collections.ChainMap(vars(env), *map(vars, type(env).__mro__[:-1]))
    attributes = {k: x for k, x in attributes.items() if not k.startswith("__")}
    return type(env), *((k, _constant(x, (id(env),))) for k, x in attributes.items())


def _constant(value, parents):
    """Returns a hashable copy of a value.

    `parents` holds the ids of the objects around it. At an object that contains itself,
    they end the recursion.
    """
    opaque = tf.Module, tf.Variable, keras.Variable, keras.Layer, types.ModuleType
    if isinstance(value, (type, types.FunctionType, *opaque)):
        return _Identity(value)
    if id(value) in parents:
        return "parent", parents.index(id(value))
    parents = *parents, id(value)
    if isinstance(value, dict):
        return "dict", *((key, _constant(part, parents)) for key, part in value.items())
    if isinstance(value, (list, tuple, set, frozenset)):
        return type(value).__name__, *(_constant(part, parents) for part in value)
    if isinstance(value, (np.ndarray, np.generic, tf.Tensor)):
        array = np.asarray(value)
        return array.dtype.str, array.shape, array.tobytes()
    if isinstance(value, (int, float, str, type(None))):
        return type(value).__name__, repr(value)  # `repr` makes NaN equal NaN
    parts = {k: x for k, x in getattr(value, "__dict__", {}).items() if k != "_np_random"}
    identity = type(value) if isinstance(value, gym.Space) else _Identity(value)
    return identity, _constant(parts, parents)


def is_valid_observation(env, observation):
    """Returns `[B]` bool, whether all numbers of an observation are finite and valid."""
    valid, parts = [], keras.tree.flatten(spaces.to_nest(env.observation_space))
    for space, numbers in zip(parts, keras.tree.flatten(observation), strict=True):
        is_valid, bounds = tf.ones_like(numbers, tf.bool), spaces.category_bounds(space)
        if numbers.dtype.is_floating:
            is_valid = tf.math.is_finite(numbers)
        elif bounds is not None:
            low, high = (tf.constant(np.array(x), tf.int64) for x in bounds)
            numbers = tf.cast(numbers, tf.int64)
            is_valid = (low <= numbers) & (numbers <= high)
        valid.append(tf.reshape(is_valid, [tf.shape(numbers)[0], -1]))
    return tf.reduce_all(tf.concat(valid, axis=1), axis=1)


def _zero_noise(env, attribute):
    """Returns zeros of the shape of a `NoiseSpec`; raises if the spec is invalid."""
    spec = getattr(env, attribute)
    try:
        if spec.kind in ("uniform", "normal"):
            return tf.zeros([_ROWS, *spec.shape], env.dtype)
    except (AttributeError, TypeError, ValueError):
        pass
    raise ValueError(
        f"`{type(env).__name__}.{attribute}` must be one `NoiseSpec` for one episode, "
        f"for example NoiseSpec('uniform', (2,)). Received: {spec!r}"
    )


def _kind(dtype):
    return "float" if dtype.is_floating else dtype.name


def _form(tensor, exact=False, is_mask=False):
    """Returns a tensor's type and shape as text; any float is `float` unless exact."""
    if tensor is None:
        return None
    tensor = tf.convert_to_tensor(tensor)
    kind, shape = tensor.dtype.name if exact else _kind(tensor.dtype), tensor.shape
    if is_mask and (tensor.dtype.is_bool or tensor.dtype.is_integer):
        kind = "bool or int"
        shape = shape[:1] + shape[2:] if shape.rank == 3 else shape  # without table rows
    return f"{kind} {shape}"


def _expect(env, function, tensors, expected, exact=False):
    """Raises `ValueError` unless tensors have expected forms; a mask may be `None`."""
    is_mask = function == "action_mask"
    received = keras.tree.map_structure(lambda x: _form(x, exact, is_mask), tensors)
    try:
        equal = keras.tree.map_structure(
            lambda x, y: x == y or (x is None and is_mask), received, expected
        )
        valid = all(keras.tree.flatten(equal))
    except (ValueError, TypeError):
        valid = False
    if not valid:
        raise ValueError(
            f"`{type(env).__name__}.{function}` must return {expected} for {_ROWS} "
            f"episodes. Received: {received}. Shapes are not broadcast, types are not "
            "cast, and instead of `tf.boolean_mask`, use `tf.where`."
        )
