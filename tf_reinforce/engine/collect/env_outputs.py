"""Checks the values that an environment returns, and writes them into arrays."""

import math
import numbers
import pathlib
import re
import traceback
from collections.abc import Mapping

import gymnasium as gym
import numpy as np

from tf_reinforce.data import nests
from tf_reinforce.data import spaces
from tf_reinforce.support import validation


class IndexedFault(Exception):
    """Reports that an environment returned an invalid value, or raised an exception.

    The collector adds the numbers of the episode and of the step to the message.

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
        success: Real number or bool from `info["is_success"]`, or `None`.
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
    """Checks observations and writes them into the arrays of a batch.

    Args:
        space: The observation space of one environment.
        float_dtype: The float type in which float observations are stored.
    """

    def __init__(self, space, float_dtype):
        self._nest = spaces.to_nest(space)
        self.leaf_spaces = leaf_spaces = nests.flatten(self._nest)
        self._leaf_readers = [_leaf_reader(leaf) for leaf in leaf_spaces]
        # The fast path requires a single array of the shape `shape` and a type in
        # `dtypes`.
        self._is_single = len(leaf_spaces) == 1 and self._nest is leaf_spaces[0]
        own_dtype = leaf_spaces[0].dtype
        dtype = np.dtype(float_dtype) if own_dtype.kind == "f" else own_dtype
        self.dtypes = dtype, own_dtype
        is_box = self._is_single and isinstance(space, gym.spaces.Box)
        self.shape = space.shape if is_box else None

    def __call__(self, env_index, observation, out):
        """Writes an observation into row `env_index` of the arrays in `out`."""
        if self._is_single:
            out[0][env_index] = self._leaf_readers[0](env_index, observation)
            return
        parts = self.flatten(env_index, observation)
        for array, read_leaf, part in zip(out, self._leaf_readers, parts):
            array[env_index] = read_leaf(env_index, part)

    def flatten(self, env_index, observation):
        """Returns the parts of an observation, in the order of `nests.flatten`."""
        parts = []
        self._flatten(env_index, self._nest, observation, parts)
        return parts

    def _flatten(self, env_index, nest, observation, parts):
        if isinstance(nest, dict):
            if not isinstance(observation, Mapping) or observation.keys() != nest.keys():
                _raise_structure(
                    env_index, f"a dict with the keys {list(nest)}", observation
                )
            for key in sorted(nest):
                self._flatten(env_index, nest[key], observation[key], parts)
        elif isinstance(nest, tuple):
            is_sequence = isinstance(observation, (tuple, list))
            if not is_sequence or len(observation) != len(nest):
                _raise_structure(env_index, f"a tuple of {len(nest)} parts", observation)
            for child, part in zip(nest, observation, strict=True):
                self._flatten(env_index, child, part, parts)
        else:
            parts.append(observation)


def _raise_structure(env_index, expected, observation):
    received = f"a {type(observation).__name__}"
    if isinstance(observation, Mapping):
        received += f" with the keys {list(observation)}"
    elif isinstance(observation, (tuple, list)):
        received += f" of {len(observation)} parts"
    raise IndexedFault(
        env_index,
        "the observation is not nested like the observation space. Expected: "
        f"{expected}. Received: {received}",
    )


def _leaf_reader(space):
    """Returns a function of an index and a part of an observation, which it checks."""
    is_discrete = isinstance(space, gym.spaces.Discrete)
    return _discrete_reader(space) if is_discrete else _array_reader(space)


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
                f"the observation is a {type(part).__name__}. Expected: a NumPy array of "
                f"shape {shape}, np.asarray(observation, self.observation_space.dtype)",
            )
        expect_unmasked(env_index, "observation", part)
        problem = None
        if part.shape != shape:
            problem = f"has the shape {part.shape}. Expected: {shape}"
        elif part.dtype is not dtype and not np.can_cast(part.dtype, dtype, "same_kind"):
            problem = f"is of type {part.dtype}. Expected: {dtype.name}"
        elif bounds and not ((part >= bounds[0]) & (part <= bounds[1])).all():
            problem = f"{part.tolist()} is not in {space!r}"
        elif part.dtype is not dtype and not fits_dtype(part, dtype):
            problem = f"{part.tolist()} does not fit into {dtype.name}"
        if problem:
            raise IndexedFault(
                env_index, f"the observation {problem}, as in the observation space"
            )
        return part

    return read


def fits_dtype(array, dtype):
    """Returns whether a cast of `array` to `dtype` changes no integer by an overflow."""
    may_overflow = dtype.kind in "iu" and not np.can_cast(array.dtype, dtype)
    return not may_overflow or np.array_equal(array.astype(dtype), array)


def describe(outputs):
    """Returns a description of a value from `reset` or `step`, such as "3 values"."""
    is_tuple = isinstance(outputs, tuple)
    return f"{len(outputs)} values" if is_tuple else f"a {type(outputs).__name__}"


def check_reset(env_index, outputs):
    """Raises `IndexedFault` unless a reset returned a pair `(observation, info)`."""
    if not (isinstance(outputs, tuple) and len(outputs) == 2):
        raise IndexedFault(
            env_index,
            f"reset returned {describe(outputs)}. Expected: a pair (observation, info), "
            "as in Gymnasium. Wrap an environment of the old Gym with shimmy",
        )
    check_info(env_index, outputs[1])


def check_info(env_index, info):
    """Raises `IndexedFault` unless `info` is a dict."""
    if not isinstance(info, dict):
        text = f"the info is a {type(info).__name__}. Expected: a dict"
        raise IndexedFault(env_index, text)


def reset_error(env_index, error):
    """Returns the `IndexedFault` for an exception that `reset` raised."""
    fault = _raised_fault(env_index, "reset", error)
    if re.search("unexpected keyword argument '(seed|options)'", error_text(error)):
        fault.args = (
            f"{fault}. Expected: a method reset(self, *, seed=None, options=None)",
        )
    return fault


def step_error(env_index, error):
    """Returns the `IndexedFault` for an exception of `step`, or of unpacking its result.

    Unpacking raises its exception in the calling function, so that the traceback has one
    frame.
    """
    if isinstance(error, IndexedFault):
        return error
    if "unpack" not in error_text(error) or error.__traceback__.tb_next is not None:
        return _raised_fault(env_index, "step", error)
    fault = IndexedFault(
        env_index,
        f"step did not return five values: {error}. Expected: (observation, reward, "
        "terminated, truncated, info). Wrap an environment of the old Gym with shimmy",
    )
    fault.__cause__ = error
    return fault


def _raised_fault(env_index, method, error):
    text = f"{method} raised {describe_error(error)}{place(error)}"
    fault = IndexedFault(env_index, text, raised=True)
    fault.__cause__ = error
    return fault


def describe_error(error):
    """Returns the type and the text of an exception, whose text may itself fail."""
    return f"{type(error).__name__}: {error_text(error)}"


def error_text(error):
    """Returns the text of an exception, or what reading the text has raised."""
    try:
        return str(error)
    except Exception as failure:
        return f"(no message: its text raised {type(failure).__name__})"


def place(error):
    """Returns the line in which an environment raised an exception, or an empty string.

    It is the innermost line outside of this package, of installed packages and of
    Python's own modules, for example `" (my_env.py, line 12, in step: assert x > 0)"`.
    """
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith((*validation.LIBRARIES, "<"))
    ]
    if not frames:
        return ""
    last = frames[-1]
    name = pathlib.Path(last.filename).name
    source = f": {last.line}" if last.line else ""
    return f" ({name}, line {last.lineno}, in {last.name}{source})"


def expect_unmasked(env_index, name, values):
    """Raises `IndexedFault` if an entry of a masked array is masked."""
    if np.ma.is_masked(values):
        text = f"the {name} has masked entries: {values}. Their numbers are arbitrary"
        raise IndexedFault(env_index, text)


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
        text = f"the reward does not fit into float64: {error}"
        raise IndexedFault(env_index, text) from None


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
        text = f"`is_success` in the info is {success!r}. Expected: a bool"
        raise IndexedFault(env_index, text)
    return success


WORDS = 3  # words of a `Progress` before those of the environments
STATE, ENV, ROW = range(WORDS)
IDLE, STARTING, RESET, STEP, CLOSING = range(5)  # values of the word `STATE`
_CALLS = {STARTING: "start", RESET: "reset", STEP: "step"}


class Progress:
    """What a process that plays episodes does at the moment, as 64-bit integers.

    A worker process shares the integers with its pool. If it dies or hangs, the pool
    reads there which environment, episode and step it was.

    Args:
        num_envs: Int, the number of environments of the process.
        buffer: Writable buffer of at least `progress_size(num_envs)` bytes, or `None` for
            memory of the current process.

    Attributes:
        words: `memoryview` of integers: the state of the process, the index of the
            environment that is called, the number of the collection's current step, and,
            for each environment, the number of its episode plus one (0 if it has played
            none), and the step of the collection at which the episode started.
    """

    def __init__(self, num_envs, buffer=None):
        buffer = bytearray(progress_size(num_envs)) if buffer is None else buffer
        self.words = memoryview(buffer).cast("q")

    def start_episode(self, env_index, number, row):
        """Records that an environment is reset for an episode at a step."""
        words, first = self.words, WORDS + 2 * env_index
        words[first], words[first + 1] = number + 1, row
        words[ENV], words[STATE] = env_index, RESET

    def snapshot(self):
        """Returns the present state as bytes; equal bytes mean that nothing happened."""
        return self.words[:WORDS].tobytes()

    def is_in_episode(self):
        """Returns whether an environment makes a reset or steps."""
        return self.words[STATE] in (RESET, STEP)

    def describe(self, first_index):
        """Returns a text that names the call, the environment, the episode and the step.

        Args:
            first_index: Int, the index of the first environment of the process.
        """
        state, env_index, row = self.words[:WORDS]
        if state == CLOSING:
            return f"close of environment {first_index + env_index}"
        if not self.is_in_episode():
            return _CALLS.get(state, "waiting for a request")
        number, start_row = self.words[WORDS + 2 * env_index : WORDS + 2 * env_index + 2]
        place = f"environment {first_index + env_index}, episode {number - 1}"
        step = f", step {row - start_row}" if state == STEP else ""
        return f"{_CALLS[state]} of {place}{step}"


def progress_size(num_envs):
    """Returns the number of bytes of a `Progress` of `num_envs` environments."""
    return 8 * (WORDS + 2 * num_envs)
