"""Checks the values that an environment returns, and writes them into arrays."""

import math
import numbers
import re
from collections.abc import Mapping

import gymnasium as gym
import numpy as np

from tf_reinforce.data import nests
from tf_reinforce.data import spaces
from tf_reinforce.engine.collect import error_places

_NO_SEED = r"reset\(\) got an unexpected keyword argument '(seed|options)'"


def describe_error(error):
    """Returns the type and the text of an exception, whose text may itself fail."""
    return f"{type(error).__name__}: {error_text(error)}"


def error_text(error):
    """Returns the text of an exception, or what reading the text has raised."""
    try:
        return str(error)
    except Exception as failure:
        return f"(no message: its text raised {type(failure).__name__})"


class IndexedFault(Exception):
    """Reports that an environment returned an invalid value, or raised an exception.

    The collector adds the numbers of the episode and of the step to the message of an
    `IndexedFault`.

    Attributes:
        env_index: Int, the index of the environment in the batch, or `None` for a fault
            of a `VectorEnv` that belongs to none of its environments.
        raised: Bool, True if the environment raised an exception, and False if it
            returned an invalid value.
    """

    def __init__(self, env_index, message, raised=False):
        super().__init__(message)
        self.env_index = env_index
        self.raised = raised


class EpisodeEnd:
    """The end of the current episode of one environment.

    Attributes:
        env_index: Int, the index of the environment in the batch.
        terminated: Bool, True if the environment terminated the episode, and False if the
            episode was truncated.
        success: Real number or bool from `info["is_success"]`, or `None` if the key is
            missing.
        fault: `IndexedFault`, if the episode is invalid and another episode replaces it,
            else `None`.
    """

    __slots__ = ("env_index", "terminated", "success", "fault")

    def __init__(self, env_index, terminated, success, fault=None):
        self.env_index = env_index
        self.terminated = terminated
        self.success = success
        self.fault = fault


class ObservationReader:
    """Checks observations and writes the observations into the arrays of a batch.

    Args:
        space: The observation space of one environment.
        float_dtype: The float type in which float observations are stored.
    """

    def __init__(self, space, float_dtype):
        self.space = space
        self._nest = spaces.to_nest(space)
        self.leaf_spaces = leaf_spaces = nests.flatten(self._nest)
        self._leaf_readers = [_leaf_reader(leaf) for leaf in leaf_spaces]
        # The fast paths require a single array of the shape `shape` and a type in
        # `dtypes`.
        self.is_single = len(leaf_spaces) == 1 and self._nest is leaf_spaces[0]
        is_float = leaf_spaces[0].dtype.kind == "f"
        self.dtype = np.dtype(float_dtype) if is_float else leaf_spaces[0].dtype
        self.dtypes = self.dtype, leaf_spaces[0].dtype if is_float else self.dtype
        is_box = self.is_single and isinstance(space, gym.spaces.Box)
        self.shape = space.shape if is_box else None

    def __call__(self, env_index, observation, out):
        """Writes an observation into row `env_index` of the arrays in `out`."""
        if self.is_single:
            out[0][env_index] = self._leaf_readers[0](env_index, observation)
            return
        parts = self.flatten(env_index, observation)
        for array, read_leaf, part in zip(out, self._leaf_readers, parts):
            array[env_index] = read_leaf(env_index, part)

    def check(self, env_index, observation):
        """Raises `IndexedFault` if an observation is invalid."""
        for read_leaf, part in zip(
            self._leaf_readers, self.flatten(env_index, observation)
        ):
            read_leaf(env_index, part)

    def flatten(self, env_index, observation):
        """Returns the parts of an observation, in the order of `nests.flatten`."""
        parts = []
        self._flatten(env_index, self._nest, observation, parts)
        return parts

    def _flatten(self, env_index, nest, observation, parts):
        """Appends the parts of an observation in the order of `nests.flatten`."""
        if isinstance(nest, dict):
            if not isinstance(observation, Mapping) or observation.keys() != nest.keys():
                expected = f"a dict with the keys {list(nest)}"
                raise _structure_fault(env_index, expected, observation)
            for key in sorted(nest):
                self._flatten(env_index, nest[key], observation[key], parts)
        elif isinstance(nest, tuple):
            is_sequence = isinstance(observation, (tuple, list))
            if not is_sequence or len(observation) != len(nest):
                expected = f"a tuple of {len(nest)} parts"
                raise _structure_fault(env_index, expected, observation)
            for child, part in zip(nest, observation, strict=True):
                self._flatten(env_index, child, part, parts)
        else:
            parts.append(observation)


def _structure_fault(env_index, expected, observation):
    received = type(observation).__name__
    if isinstance(observation, Mapping):
        received += f" with the keys {list(observation)}"
    elif isinstance(observation, (tuple, list)):
        received += f" of {len(observation)} parts"
    return IndexedFault(
        env_index,
        "the observation is not nested like the observation space. Expected: "
        f"{expected}. Received: a {received}",
    )


def _leaf_reader(space):
    """Returns a function that checks and returns one part of an observation.

    The returned function has two arguments: the index of the environment, for the error
    message, and the part of the observation.
    """
    return (
        _discrete_reader if isinstance(space, gym.spaces.Discrete) else _array_reader
    )(space)


def _discrete_reader(space):
    start, stop = int(space.start), int(space.start) + int(space.n)

    def read(env_index, part):
        if part.__class__ is int and start <= part < stop:
            return part
        if isinstance(part, np.ndarray) and part.shape == ():
            part = part[()]
        if not isinstance(part, (int, np.integer, np.bool_)):
            raise IndexedFault(
                env_index,
                f"the observation is a {type(part).__name__}. Expected: an integer in "
                f"{space!r}. Return int(observation)",
            )
        if not start <= part < stop:
            raise IndexedFault(env_index, f"the observation {part} is not in {space!r}")
        return part

    return read


def _array_reader(space):
    shape, is_float = space.shape, np.issubdtype(space.dtype, np.floating)
    dtype = np.dtype("float64") if is_float else space.dtype
    bounds = spaces.category_bounds(space)

    def read(env_index, part):
        if not isinstance(part, (np.ndarray, np.generic)):
            raise IndexedFault(
                env_index,
                f"the observation is a {type(part).__name__}. Expected: a NumPy "
                f"array of shape {shape}. Return "
                "np.asarray(observation, dtype=self.observation_space.dtype)",
            )
        expect_unmasked(env_index, "observation", part)
        if part.shape != shape:
            raise IndexedFault(
                env_index,
                f"the observation has the shape {part.shape}. Expected: {shape}, the "
                "shape of the observation space",
            )
        if part.dtype is not dtype and not np.can_cast(part.dtype, dtype, "same_kind"):
            raise IndexedFault(
                env_index,
                f"the observation is of type {part.dtype}. Expected: {dtype.name}, the "
                "type of the observation space",
            )
        if bounds and not ((part >= bounds[0]) & (part <= bounds[1])).all():
            raise IndexedFault(
                env_index, f"the observation {part.tolist()} is not in {space!r}"
            )
        if part.dtype is not dtype and not fits_dtype(part, dtype):
            raise IndexedFault(
                env_index,
                f"the observation {part.tolist()} does not fit into {dtype.name}, the "
                "number type of the observation space",
            )
        return part

    return read


def fits_dtype(array, dtype):
    """Returns whether a cast of `array` to `dtype` changes no integer by an overflow."""
    may_overflow = dtype.kind in "iu" and not np.can_cast(array.dtype, dtype)
    return not may_overflow or np.array_equal(array.astype(dtype), array)


def describe(outputs):
    """Returns a description of a value from `reset` or `step`, such as "3 values"."""
    if isinstance(outputs, tuple):
        return f"{len(outputs)} values"
    return f"a {type(outputs).__name__}"


def check_reset(env_index, outputs):
    """Raises `IndexedFault` unless a reset returned a pair `(observation, info)`."""
    if not (isinstance(outputs, tuple) and len(outputs) == 2):
        raise IndexedFault(
            env_index,
            f"reset returned {describe(outputs)}. Expected: a pair (observation, info), "
            "as in Gymnasium. Return (observation, {}), or wrap an environment of the "
            "old Gym with shimmy",
        )
    check_info(env_index, outputs[1])


def check_info(env_index, info):
    """Raises `IndexedFault` unless `info` is a dict."""
    if not isinstance(info, dict):
        raise IndexedFault(
            env_index,
            f"the info is a {type(info).__name__}. Expected: a dict. If there is no "
            "information, return {}",
        )


def reset_error(env_index, error):
    """Returns the `IndexedFault` for an exception that `reset` raised."""
    text = f"reset raised {describe_error(error)}{error_places.place(error)}"
    if re.search(_NO_SEED, error_text(error)):
        text += ". Expected: a method reset(self, *, seed=None, options=None)"
    return _with_cause(IndexedFault(env_index, text, raised=True), error)


def step_error(env_index, error):
    """Returns the `IndexedFault` for an exception of `step`, or of unpacking its result.

    Unpacking raises its exception in the calling function, so that the traceback has one
    frame.
    """
    if isinstance(error, IndexedFault):
        return error
    if "unpack" in error_text(error) and error.__traceback__.tb_next is None:
        text = f"step did not return five values: {error}"
        if isinstance(error, ValueError) and "expected 5, got 4" in str(error):
            text = "step returned four values, as in the old Gym"
        text += (
            ". Expected: (observation, reward, terminated, truncated, info). Wrap an old "
            "Gym environment with shimmy"
        )
        return _with_cause(IndexedFault(env_index, text), error)
    text = f"step raised {describe_error(error)}{error_places.place(error)}"
    return _with_cause(IndexedFault(env_index, text, raised=True), error)


def _with_cause(fault, error):
    fault.__cause__ = error
    return fault


def not_finite(env_index, name, value):
    """Returns the `IndexedFault` for a reward or observation that is not finite."""
    return IndexedFault(env_index, f"the {name} is not finite: {value}")


def expect_unmasked(env_index, name, values):
    """Raises `IndexedFault` if an entry of a masked array is masked."""
    if np.ma.is_masked(values):
        raise IndexedFault(
            env_index,
            f"the {name} has masked entries: {values}. The numbers below a mask are "
            "arbitrary. Return an array without masked entries",
        )


def read_reward(env_index, reward):
    """Returns a reward as a float; raises `IndexedFault` unless it is a real number."""
    if isinstance(reward, np.ndarray) and reward.shape == ():
        reward = reward[()]
    if not isinstance(reward, (numbers.Real, np.bool_)):
        shape = f" of shape {reward.shape}" if isinstance(reward, np.ndarray) else ""
        raise IndexedFault(
            env_index,
            f"the reward is a {type(reward).__name__}{shape}: {reward!r}. "
            "Expected: one real number. Return float(reward)",
        )
    try:
        return float(reward)
    except OverflowError as error:
        raise IndexedFault(
            env_index, f"the reward does not fit into float64: {error}"
        ) from None


def has_ended(env_index, terminated, truncated):
    """Returns `terminated or truncated`; raises `IndexedFault` if one is not a bool."""
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_)):
            raise IndexedFault(
                env_index,
                f"the flag `{name}` of a step is a {type(flag).__name__}: {flag!r}. "
                "Expected: a bool",
            )
    return bool(terminated or truncated)


def read_success(env_index, success):
    """Returns `success` of an episode; raises `IndexedFault` if it is invalid."""
    is_number = isinstance(success, (numbers.Real, np.bool_))
    if success is not None and not (is_number and math.isfinite(success)):
        raise IndexedFault(
            env_index, f"`is_success` in the info is {success!r}. Expected: a bool"
        )
    return success
