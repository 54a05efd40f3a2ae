"""Checks the shapes and types that a tensor environment returns."""

import math
import types

import gymnasium as gym
import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import spaces
from tf_reinforce.data import tensor_specs
from tf_reinforce.support import validation

_ROWS = 7  # trial episodes; no other axis should have this size


def check(env):
    """Raises an error if the functions of an environment return wrong shapes or types.

    `check` traces the functions of the environment as a TensorFlow graph, but does not
    run this graph.

    Args:
        env: `TensorEnv` to check.

    Raises:
        ValueError: If a tensor of the environment has a wrong shape or type.
    """
    spaces.check_observation_space(env.observation_space)
    spaces.check_action_space(env.action_space)
    validation.positive_int_or_none("max_episode_steps", env.max_episode_steps)
    # The check traces in a separate graph, because an environment may contain tensors and
    # variables.
    tf.function(lambda: _check_functions(env), autograph=False).get_concrete_function()


def _check_functions(env):
    name = type(env).__name__
    state = _call(env, "initial", _zero_noise(env, "initial_noise"))
    state_specs = keras.tree.map_structure(_spec_reader(f"{name}.initial"), state)
    observation = _call(env, "observation", state)
    _check_mask(f"{name}.action_mask", _call(env, "action_mask", state), env)
    _check_observation(f"{name}.observation", observation, env)
    actions = keras.tree.map_structure(_zero_actions, spaces.to_nest(env.action_space))
    actions = cast_actions(env, actions)
    noise = None
    if env.transition_noise is not None:
        noise = _zero_noise(env, "transition_noise")
    next_state = _call(env, "transition", state, actions, noise)
    next_specs = keras.tree.map_structure(_spec_reader(f"{name}.transition"), next_state)
    if next_specs != state_specs:
        raise ValueError(
            f"`{name}.transition` must return a state as `initial` does. Expected: "
            f"{state_specs}. Received: {next_specs}"
        )
    reward = _call(env, "reward", state, actions, next_state)
    _check_tensor(f"{name}.reward", reward, (), "float")
    terminal = _call(env, "terminal", next_state)
    _check_tensor(f"{name}.terminal", terminal, (), "bool")


def _call(env, function, *arguments):
    """Returns the result of a function; raises if the function changes its arguments."""
    before = keras.tree.flatten(arguments)
    result = getattr(env, function)(*arguments)
    after = keras.tree.flatten(arguments)
    if [*map(id, before)] != [*map(id, after)]:
        raise ValueError(
            f"`{type(env).__name__}.{function}` must not change its arguments. Expected: "
            "a new structure, for example {**state, 'x': …}. Received: an argument in "
            "which a tensor was replaced"
        )
    return result


def cast_actions(env, actions):
    """Returns actions in the number types that a tensor environment expects.

    Integer actions get the type of the action space, and real actions get the `dtype` of
    the environment.
    """

    def cast(space, action):
        is_real = np.issubdtype(space.dtype, np.floating)
        return tf.cast(action, env.dtype if is_real else space.dtype)

    return keras.tree.map_structure(cast, spaces.to_nest(env.action_space), actions)


# `constants` compares models and functions by their identity, not by their contents.
_OPAQUE_TYPES = (
    tf.Module,
    tf.Variable,
    keras.Variable,
    keras.Layer,
    type,
    types.ModuleType,
)


class _Identity:
    """Compares an object by identity, and keeps the object alive.

    While the object is alive, no other object has the same id.
    """

    def __init__(self, value):
        self._value = value

    def __eq__(self, other):
        return isinstance(other, _Identity) and self._value is other._value

    def __hash__(self):
        return id(self._value)


def constants(env):
    """Returns the values of an environment that a traced program contains as constants.

    If the results for two environments are equal, both environments have equal programs.

    Returns:
        A hashable tuple of the class of the environment and the constants. The tuple
        changes if an attribute of the environment or of its class gets another value. A
        changed number inside a list, dict, set, array, space or object of the environment
        also changes the tuple. The values of variables and the contents of models and
        functions are not part of the tuple.
    """
    attributes = {}
    for owner in reversed(type(env).__mro__[:-1]):
        attributes |= vars(owner)
    attributes |= vars(env)
    attributes = {k: x for k, x in attributes.items() if not k.startswith("__")}
    return type(env), *((k, _constant(x, (id(env),))) for k, x in attributes.items())


def _constant(value, parents):
    """Returns a hashable copy of a value.

    The argument `parents` contains the ids of the objects that contain the value. If an
    object contains itself, its id is in `parents`, and the recursion ends there.
    """
    if isinstance(value, types.FunctionType):  # the most frequent type
        return _Identity(value)
    if id(value) in parents:
        return "parent", parents.index(id(value))
    parents = *parents, id(value)
    if isinstance(value, dict):
        return "dict", *((key, _constant(part, parents)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return type(value).__name__, *(_constant(part, parents) for part in value)
    if isinstance(value, (set, frozenset)):
        return "set", *sorted(repr(_constant(part, parents)) for part in value)
    if isinstance(value, (np.ndarray, np.generic, tf.Tensor)):
        array = np.asarray(value)
        return array.dtype.str, array.shape, array.tobytes()
    if isinstance(value, (int, float, str, type(None))):
        return type(value).__name__, repr(value)  # `repr` makes NaN equal NaN
    if isinstance(value, gym.Space):
        parts = {k: x for k, x in vars(value).items() if k != "_np_random"}
        return type(value), _constant(parts, parents)
    if isinstance(value, _OPAQUE_TYPES) or not hasattr(value, "__dict__"):
        return _Identity(value)
    return _Identity(value), _constant(vars(value), parents)


def is_valid_observation(env, observation):
    """Returns `[B]` bool, whether each observation has only finite and valid numbers."""
    leaf_spaces = keras.tree.flatten(spaces.to_nest(env.observation_space))
    valid = [
        tf.reduce_all(tf.reshape(elements, [tf.shape(elements)[0], -1]), axis=1)
        for elements in map(_is_valid, leaf_spaces, keras.tree.flatten(observation))
    ]
    return tf.reduce_all(tf.stack(valid), axis=0)


def _is_valid(space, observation):
    """Returns whether each number of an observation array is valid, as a bool tensor."""
    if observation.dtype.is_floating:
        return tf.math.is_finite(observation)
    bounds = spaces.category_bounds(space)
    if bounds is None:
        return tf.ones_like(observation, tf.bool)
    low, high = (tf.constant(np.array(x), tf.int64) for x in bounds)
    observation = tf.cast(observation, tf.int64)
    return (low <= observation) & (observation <= high)


def _zero_noise(env, attribute):
    """Returns zeros of the shape of a `NoiseSpec`; raises if the spec is invalid."""
    spec = getattr(env, attribute)
    shape = getattr(spec, "shape", None)
    sizes = shape if isinstance(shape, tuple) else [None]
    is_fixed = all(isinstance(size, int) for size in sizes)
    if getattr(spec, "kind", None) not in ("uniform", "normal") or not is_fixed:
        raise ValueError(
            f"`{type(env).__name__}.{attribute}` must be one `NoiseSpec` for the noise "
            "of one episode. Expected, for example: NoiseSpec('uniform', (2,)). "
            f"Received: {spec!r}"
        )
    return tf.zeros([_ROWS, *shape], env.dtype)


def _spec_reader(function):
    """Returns a function from a batch tensor to the `(shape, type)` of one episode.

    The returned function raises an error unless the tensor has one row for each episode,
    and all other axes have a fixed size.
    """

    def read(tensor):
        tensor = tf.convert_to_tensor(tensor)
        shape = tensor.shape
        if shape.rank in (None, 0) or shape[0] != _ROWS or not shape.is_fully_defined():
            raise ValueError(
                f"`{function}` must return tensors with a row for each episode, and axes "
                f"of a fixed size. Expected, for {_ROWS} episodes: shape ({_ROWS}, …) "
                f"without None. Received: {shape}. Instead of operations that select by "
                "value, such as `tf.boolean_mask`, use `tf.where(condition, a, b)`."
            )
        return tuple(shape[1:]), tensor.dtype.name

    return read


def _expect_nested(function, expected, received, space):
    try:
        keras.tree.assert_same_structure(expected, received)
    except ValueError:
        raise ValueError(
            f"`{function}` must return arrays nested like the {space} space. Expected: "
            f"{expected}. Received: {received}"
        ) from None


def _check_observation(function, observation, env):
    expected = tensor_specs.observation_spec(env.observation_space, env.dtype)
    _expect_nested(function, expected, observation, "observation")

    def compare(spec, tensor):
        kind = "float" if spec.dtype.is_floating else spec.dtype.name
        _check_tensor(function, tensor, tuple(spec.shape), kind)

    keras.tree.map_structure(compare, expected, observation)


def _check_mask(function, mask, env):
    if mask is None:
        return
    parts = spaces.to_nest(env.action_space)
    _expect_nested(function, parts, mask, "action")
    pairs = zip(keras.tree.flatten(parts), keras.tree.flatten(mask), strict=True)
    for space, tensor in pairs:
        if tensor is not None:
            shape, _ = _spec_reader(function)(tensor)
            entries = _mask_entries(space) or shape[-1:]
            _check_tensor(function, tensor, entries, "bool or int")


def _mask_entries(space):
    """Returns `(M,)`, the number of mask entries of a space, or `()` for a `Box`."""
    if isinstance(space, gym.spaces.Box):
        return ()
    if isinstance(space, gym.spaces.MultiBinary):
        return (math.prod(space.shape),)
    return (
        int(np.sum(space.n if isinstance(space, gym.spaces.Discrete) else space.nvec)),
    )


def _check_tensor(function, tensor, shape, kind):
    """Raises `ValueError` unless a tensor has a shape, and the name of a type or kind."""
    received, name = _spec_reader(function)(tensor)
    dtype = tf.as_dtype(name)
    kinds = {"float": dtype.is_floating, "bool or int": dtype.is_bool or dtype.is_integer}
    if received != shape or not kinds.get(kind, name == kind):
        raise ValueError(
            f"`{function}` must return shape {(_ROWS, *shape)} for {_ROWS} episodes, of "
            f"type {kind}. Received: shape {(_ROWS, *received)} of type {name}. The "
            "shapes of an environment are not broadcast, and its types are not cast."
        )


def _zero_actions(space):
    return tf.constant(np.zeros((_ROWS, *space.shape), space.dtype))
