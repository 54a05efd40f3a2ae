"""Makes Gymnasium environments, steps a batch of them, and checks what they return.

The environments of a batch are numbered, and `env_index` is the number of one of them.
Which episode runs in which environment is decided by the collector. Worker processes
import this module, so it must not import TensorFlow.
"""

import abc
import contextlib
import copy
import importlib
import itertools
import logging
import math
import numbers
import re
import sys
import threading
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np

from tf_reinforce.data import spaces
from tf_reinforce.settings import config
from tf_reinforce.support import validation

log = logging.getLogger("tf_reinforce")

SUCCESS = "is_success"  # the key of an info from which the log key `success` follows


class IndexedFault(Exception):
    """Raised when an environment returns an invalid value or raises an exception.

    The collector adds episode and step to the message.

    Attributes:
        env_index: Int, the environment's index in the batch, or `None` for a fault of a
            whole `VectorEnv`.
        raised: Bool, whether the environment raised an exception.
    """

    def __init__(self, env_index, message, raised=False):
        super().__init__(message)
        self.env_index = env_index
        self.raised = raised


class EpisodeEnd(NamedTuple):
    """How an environment's current episode ended."""

    env_index: int
    terminated: bool  # False: the episode was truncated
    info: Sequence = ()  # success and the numbers under `info_keys`, or NaN
    info_names: frozenset = frozenset()  # the keys of this info, if one is missing
    fault: IndexedFault | None = None  # makes the episode invalid: another replaces it


class ObservationReader:
    """Checks observations, and writes them into a batch's arrays.

    Args:
        space: The observation space of one environment.
        float_dtype: The type in which float observations are stored.
        batch_shape: `(num_envs,)` to read the observations of a `VectorEnv`, with
            `env_index=None`.

    Attributes:
        shape, dtypes: A single array of this shape and one of these types needs no check.
            The shape is `None` if an observation is no single array.
    """

    def __init__(self, space, float_dtype, batch_shape=()):
        self._space, self._nest = space, spaces.to_nest(space)
        leaves = spaces.flatten(self._nest)
        self._leaf_readers = [_leaf_reader(leaf, batch_shape) for leaf in leaves]
        first = leaves[0]
        dtype = np.dtype(float_dtype) if first.dtype.kind == "f" else first.dtype
        self.dtypes = dtype, first.dtype
        self.shape = space.shape if isinstance(space, gym.spaces.Box) else None

    def __call__(self, env_index, observation, out):
        """Writes an observation into row `env_index` of the arrays in `out`."""
        row = ... if env_index is None else env_index
        if not isinstance(self._nest, (dict, tuple)):  # fast
            out[0][row] = self._leaf_readers[0](env_index, observation)
            return
        parts = self.flatten(env_index, observation)
        for array, read_leaf, part in zip(out, self._leaf_readers, parts):
            array[row] = read_leaf(env_index, part)

    def flatten(self, env_index, observation):
        """Returns an observation's parts, in the order of `spaces.flatten`."""
        if (parts := _parts(self._nest, observation)) is None:
            raise IndexedFault(
                env_index,
                f"the observation is not nested like the space {self._space}. Received: "
                f"{observation!r:.200}",
            )
        return parts


def _parts(nest, nested):
    """Returns an observation's parts, or `None` unless it is nested like the space."""
    if isinstance(nest, dict):
        keys = sorted(nest)
        is_alike = isinstance(nested, Mapping) and nested.keys() == nest.keys()
    elif isinstance(nest, tuple):
        keys = range(len(nest))
        is_alike = isinstance(nested, (tuple, list)) and len(nested) == len(nest)
    else:
        return [nested]
    parts = [_parts(nest[key], nested[key]) for key in keys] if is_alike else [None]
    return None if None in parts else [*itertools.chain(*parts)]


def _leaf_reader(space, batch_shape):
    """Returns a function that checks an array of an observation and returns it."""
    shape, bounds = (*batch_shape, *space.shape), spaces.category_bounds(space)
    is_discrete = isinstance(space, gym.spaces.Discrete)
    low, high = bounds or (0, 0)
    dtype = np.dtype("float64") if space.dtype.kind == "f" else space.dtype
    # A `VectorEnv` may return integers of another type, if they fit.
    kind = np.int64 if batch_shape and dtype.kind in "iu" else dtype

    def read(env_index, part):
        if is_discrete and part.__class__ is int and low <= part <= high:
            return part
        if batch_shape or (is_discrete and isinstance(part, int)):
            part = np.asarray(part)
        problem, is_valid = None, np.True_
        if not isinstance(part, (np.ndarray, np.generic)):
            problem = f"is a {type(part).__name__}"
        elif np.ma.is_masked(part):
            problem = f"has masked entries: {part}"
        elif part.shape != shape:
            problem = f"has the shape {part.shape} instead of {shape}"
        elif part.dtype is not dtype and not np.can_cast(part.dtype, kind, "same_kind"):
            problem = f"is of type {part.dtype}"
        elif bounds:
            is_valid = (part >= low) & (part <= high)
        elif dtype.kind in "iu" and not np.can_cast(part.dtype, dtype):
            is_valid = part.astype(dtype) == part
        if not is_valid.all():
            if batch_shape:
                env_index = int(np.argwhere(~is_valid)[0][0])
                part = part[env_index]
            problem = f"is {part.tolist()}"
        if problem:
            text = f"the observation {problem}. Expected: a member of {space}"
            raise IndexedFault(env_index, text)
        return part

    return read


def _check_info(env_index, info):
    if not isinstance(info, dict):
        text = f"the info is a {type(info).__name__}. Expected: a dict"
        raise IndexedFault(env_index, text)


def _raised_fault(env_index, method, error):
    """Returns the `IndexedFault` for an exception of `reset` or `step`."""
    if isinstance(error, IndexedFault):
        return error
    text = f"{method} raised {type(error).__name__}: {error}"
    # Unpacking another number of values raises an exception too, here and not deeper.
    is_unpacking = "unpack" in str(error) and error.__traceback__.tb_next is None
    if is_unpacking:
        count = {"reset": 2, "step": 5}[method]
        text = (
            f"{method} did not return {count} values ({error}). Wrap an environment of "
            "the old Gym with shimmy"
        )
    fault = IndexedFault(env_index, text, raised=not is_unpacking)
    fault.__cause__ = error
    return fault


def _read_reward(env_index, reward):
    """Returns a reward as a float; raises `IndexedFault` unless it is a real number."""
    if isinstance(reward, np.ndarray) and reward.shape == ():
        reward = reward[()]
    if not isinstance(reward, (numbers.Real, np.bool_)):
        text = f"the reward is a {type(reward).__name__}: {reward!r}"
        raise IndexedFault(env_index, f"{text}. Expected: one real number")
    return float(reward)


def _has_ended(env_index, terminated, truncated):
    """Returns `terminated or truncated`; raises `IndexedFault` if one is no bool."""
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_)):
            text = f"`{name}` of a step is a {type(flag).__name__}: {flag!r}"
            raise IndexedFault(env_index, f"the flag {text}. Expected: a bool")
    return bool(terminated or truncated)


def episode_end(env_index, terminated, info, keys):
    """Returns an `EpisodeEnd`, given the last info of the episode.

    Raises `IndexedFault` if a number in the info is invalid.

    Args:
        env_index: Int.
        terminated: Bool, False if the episode was truncated.
        info: Dict.
        keys: Strings, the keys to read after `"is_success"`.
    """
    values = [_read_info(env_index, key, info.get(key)) for key in (SUCCESS, *keys)]
    is_complete = not any(map(math.isnan, values[1:]))
    names = () if is_complete else (key for key in info if isinstance(key, str))
    return EpisodeEnd(env_index, bool(terminated), values, frozenset(names))


def _read_info(env_index, key, value):
    """Returns a number of an info as a float, NaN for `None`."""
    if value is None:
        return math.nan
    number, is_array = value, isinstance(value, (np.ndarray, np.generic))
    if is_array and value.size == 1 and not np.ma.is_masked(value):
        number = value.item()
    # No comparison holds for NaN, and none fails for an int outside of float64.
    limit = sys.float_info.max
    if not isinstance(number, numbers.Real) or not -limit <= number <= limit:
        raise IndexedFault(
            env_index,
            f"info[{key!r}] at the end of an episode is a {type(value).__name__}: "
            f"{repr(value)[:200]}. Expected: one finite number, a bool or None",
        )
    return float(number)


WORDS = 3  # words of a `Progress` before those of the environments
STATE, ENV, ROW = range(WORDS)
IDLE, STARTING, RESET, STEP, CLOSING = range(5)  # values of the word `STATE`
_CALLS = {STARTING: "start", RESET: "reset", STEP: "step"}


class Progress:
    """What a process that plays episodes is doing, as 64-bit integers.

    A worker shares these integers with its pool. If the worker dies or hangs, the pool
    reads from them at which environment, episode and step that happened.

    Args:
        num_envs: Int, the number of environments of the process.
        buffer: Writable buffer of at least `progress_size(num_envs)` bytes, by default
            new memory of this process.

    Attributes:
        words: `memoryview` of integers: the process' state, the index of the environment
            that is called, and the collection's current step; then for each environment,
            its episode's number plus one (0 before the first) and the step of the
            collection at which it started.
    """

    def __init__(self, num_envs, buffer=None):
        buffer = bytearray(progress_size(num_envs)) if buffer is None else buffer
        self.words = memoryview(buffer).cast("q")

    def start_episode(self, env_index, number, row):
        """Records that an environment is reset for an episode."""
        words, first = self.words, WORDS + 2 * env_index
        words[first], words[first + 1] = number + 1, row
        words[ENV], words[STATE] = env_index, RESET

    def snapshot(self):
        """Returns the state as bytes, which stay equal while nothing happens."""
        return self.words[:WORDS].tobytes()

    def is_in_episode(self):
        """Returns whether an environment is being reset or stepped."""
        return self.words[STATE] in (RESET, STEP)

    def describe(self, first_index):
        """Returns a text that names the call, environment, episode and step.

        Args:
            first_index: Int, the index of the process' first environment.
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
    """Returns the bytes of a `Progress` of `num_envs` environments."""
    return 8 * (WORDS + 2 * num_envs)


SHOWN: set[str] = set()  # the warnings of constructors that users have seen
_is_patched = threading.Lock()


@contextlib.contextmanager
def shown_once(env):
    """Shows each warning of constructors in the `with` block once per process.

    Python shows a warning again after a library has changed the filters. MuJoCo prints
    its warnings to the file descriptor of `sys.stderr`, so through a progress display.

    Args:
        env: What is made: an environment id, `EnvSpec` or callable.
    """
    spec = gym.registry.get(env) if isinstance(env, str) else env
    if isinstance(entry := getattr(spec, "entry_point", None), str):
        importlib.import_module(entry.partition(":")[0])  # MuJoCo, before it warns
    if not _is_patched.acquire(blocking=False):  # another thread makes an environment
        yield
        return
    show, mujoco, texts = warnings.showwarning, sys.modules.get("mujoco"), []

    def show_new(message, *place):
        if str(message) not in SHOWN:
            SHOWN.add(str(message))
            show(message, *place)

    is_quiet = mujoco is not None and mujoco.get_mju_user_warning() is None
    try:
        warnings.showwarning = show_new
        if is_quiet:
            mujoco.set_mju_user_warning(texts.append)
        yield
    finally:
        warnings.showwarning = show
        if is_quiet:
            mujoco.set_mju_user_warning(None)
        _is_patched.release()
        for text in dict.fromkeys(texts):
            if text not in SHOWN:
                SHOWN.add(text)
                log.warning("MuJoCo: %s", text)


_WRONG_ARGUMENTS = (
    "unexpected keyword|multiple values for|missing \\d+ required|a mapping|be strings"
)


@contextlib.contextmanager
def explain_errors(env, env_kwargs):
    """Raises `ValueError` if a constructor in the `with` block refuses `env_kwargs`.

    Its warnings are `shown_once`.
    """
    try:
        with shown_once(env):
            yield
    except TypeError as error:
        if not re.search(_WRONG_ARGUMENTS, str(error)):
            raise
        raise ValueError(
            "`env_kwargs`, `--env-arg NAME=VALUE` on the command line, must be arguments "
            f"of the environment's constructor. Received: env_kwargs={env_kwargs!r} for "
            f"{env!r} ({error})"
        ) from error


class EnvFactory(NamedTuple):
    """Makes environments from an `EnvSpec`, or from a callable and its arguments."""

    env: Any  # `EnvSpec`, or a callable that returns an environment
    kwargs: dict  # keyword arguments for the callable; empty for an `EnvSpec`
    max_episode_steps: int | None  # an argument of `SyncEnvs`
    faults: dict  # the options `on_bad_env` and `on_env_error`

    def make(self):
        """Returns one environment."""
        if isinstance(self.env, gym.envs.registration.EnvSpec):
            with shown_once(self.env):
                return gym.make(self.env)
        with explain_errors(self.env, self.kwargs):
            return self.env(**self.kwargs)

    def make_batch(self, count, first=()):
        """Returns `SyncEnvs` of `count` environments: those in `first`, and new ones.

        If one cannot be made, all are closed.
        """
        envs = [*first]
        try:
            while len(envs) < count:
                envs.append(self.make())
            return SyncEnvs(envs, self.max_episode_steps, self.make, **self.faults)
        except BaseException:
            for env in envs:
                if isinstance(env, gym.Env):
                    env.close()
            raise


class BatchedEnvs(abc.ABC):
    """Runs environments with equal spaces as one batch.

    The methods write observations into the argument `out`, a list of arrays `[num_envs,
    …]` with one array for each array of an observation. If actions can be illegal, a last
    array receives the action masks, `[num_envs, M]` int8.

    Attributes:
        num_envs: Int, the number of environments.
        max_episode_steps: Int, the steps after which `step` must end an episode.
        observation_space, action_space: The spaces of one environment.
        spec: `EnvSpec` of one environment, or `None`.
        first_index: Int, the index of the first environment among those of all workers.
        progress: `Progress`, which records calls of environments.
        is_vector_env: Bool, whether this is a `VectorEnv`, which seeds its episodes
            itself.
        fault_keys: Tuple of the log keys that count dropped episodes and restarts.
        warns_of_faults: Bool, whether the next dropped episode causes a warning.
    """

    first_index = 0
    warns_of_faults = True
    is_vector_env = False
    fault_keys: tuple[str, ...] = ()

    def __init__(self, num_envs, observation_space, action_space, spec):
        self.num_envs = num_envs
        self.observation_space = spaces.check_observation_space(observation_space)
        self.action_space = action_space
        self.spec = spec
        self.progress = Progress(num_envs)
        self._settings = config.EnvSettings()

    def configure(self, float_dtype, mask_reader=None):
        """Prepares reading observations and masks.

        Args:
            float_dtype: The type in which float observations are stored.
            mask_reader: `action_masks.MaskReader`, or `None` if all actions are legal.
        """
        self._reader = ObservationReader(self.observation_space, float_dtype)
        self._mask_reader = mask_reader

    def _write_mask(self, env_index, out, read, *outputs):
        """Writes the action mask from `read(*outputs)` into the last array of `out`."""
        try:
            out[-1][env_index] = read(*outputs)
        except KeyError as error:
            raise IndexedFault(
                env_index,
                f"there is no action mask in {error}. Expected: an action mask after "
                "every reset, and after every step that does not end the episode. "
                f"Received: info with the keys {[*outputs[-1]]}",
            ) from None
        except (ValueError, TypeError, IndexError) as error:
            raise IndexedFault(env_index, f"{error}") from None

    def _reset_arguments(self):
        """Returns keyword arguments for one reset, with its own copy of the options."""
        options = self._settings.reset_options
        return {} if options is None else {"options": copy.deepcopy(options)}

    @abc.abstractmethod
    def set(self, settings):
        """Sets attributes of all environments, and the options of further resets.

        An attribute that is no longer named gets back its original value, so that
        episodes depend only on the settings of their own collection.

        Args:
            settings: `config.EnvSettings` without functions.

        Raises:
            ValueError: If an environment lacks an attribute in `env_attrs`.
        """

    def reset(self, seed, out):
        """Resets a `VectorEnv` with `seed`; does nothing for other environments."""
        return None

    def can_start(self, env_index):
        """Returns whether an episode can start in an environment now."""
        return True

    @abc.abstractmethod
    def start_episode(self, env_index, seed, out):
        """Starts an episode in one environment; writes its first observation to `out`."""

    @abc.abstractmethod
    def step(self, actions, out, rewards, active, time_limit_envs):
        """Steps each active environment; returns a list of `EpisodeEnd`.

        The observation after each action is written to `out`. If the action ends the
        episode, this observation is the last one of the episode, and not the first one of
        the next.

        Args:
            actions: List of `num_envs` actions; those for idle environments are ignored.
            out: List of arrays `[num_envs, …]` for the observations.
            rewards: `[num_envs]` float64 array for the rewards.
            active: Indices of the environments with a running episode.
            time_limit_envs: Indices of environments that reach the time limit with this
                step. Their episodes are truncated, unless the step terminates them.
        """

    def recover(self, fault):
        """Prepares an environment for another episode after a fault, or raises the fault.

        Raising is the default.

        Args:
            fault: `IndexedFault`.
        """
        raise fault

    def close_all(self):
        """Closes environments that `open_envs` made, and no others.

        Returns:
            List of texts, one for each environment that raised an exception.
        """
        return []


class SyncEnvs(BatchedEnvs):
    """Steps a list of Gymnasium environments one after another.

    Args:
        envs: Nonempty list of `gymnasium.Env`.
        max_episode_steps: Int, the time limit in steps, by default that of the
            environments' spec, else 10,000.
        make: Function that makes an environment, for `on_env_error="restart"`. Without
            it, `close_all` closes no environment, because the caller made them.
        on_bad_env, on_env_error: Fields of `config.FitOptions`.
    """

    def __init__(
        self, envs, max_episode_steps, make=None, on_bad_env="raise", on_env_error="raise"
    ):
        _check_compatible(envs)
        first = envs[0]
        env_spaces = first.observation_space, first.action_space
        super().__init__(len(envs), *env_spaces, first.spec)
        self._envs = envs
        limit = max_episode_steps or (first.spec and first.spec.max_episode_steps)
        if not limit and first.has_wrapper_attr("_max_episode_steps"):
            limit = first.get_wrapper_attr("_max_episode_steps")  # of gym's `TimeLimit`
        self._warn_at_limit = not limit
        self.max_episode_steps = limit or config.DEFAULT_MAX_EPISODE_STEPS
        self._make = make
        self._drops_bad, self._restarts = on_bad_env != "raise", on_env_error != "raise"
        keys = "dropped_episodes", "env_restarts", "worker_restarts"
        self.fault_keys = keys if self._restarts else keys[: self._drops_bad]
        self._steps = [env.step for env in envs]
        self._infos = [{}] * self.num_envs
        self._originals = [{} for _ in envs]  # the attributes that `set` has replaced

    def set(self, settings):
        self._settings = settings
        for env, originals in zip(self._envs, self._originals, strict=True):
            self._set_attributes(env, originals)

    def _set_attributes(self, env, originals):
        set_attributes(env, originals, self._settings.env_attrs or {}, "wrapper_attr")

    def start_episode(self, env_index, seed, out):
        try:
            reset = self._envs[env_index].reset
            observation, info = reset(seed=seed, **self._reset_arguments())
        except (Exception, SystemExit) as error:
            raise _raised_fault(env_index, "reset", error) from error
        _check_info(env_index, info)
        self._reader(env_index, observation, out)
        if self._mask_reader is not None:
            self._write_mask(env_index, out, self._mask_reader.read, observation, info)
        if self._drops_bad and (faults := _not_finite([env_index], observation=out)):
            raise faults[env_index]

    def step(self, actions, out, rewards, active, time_limit_envs):
        ends, steps, read, infos = [], self._steps, self._reader, self._infos
        read_mask, first_out = self._mask_reader and self._mask_reader.read, out[0]
        shape, (dtype, other) = read.shape, read.dtypes
        array, float_types = np.ndarray, (float, np.float64)
        words = self.progress.words
        env_index, remaining = 0, iter(active)
        while True:
            try:
                for env_index in remaining:
                    words[ENV] = env_index
                    observation, reward, terminated, truncated, info = steps[env_index](
                        actions[env_index]
                    )
                    if (
                        observation.__class__ is array
                        and (observation.dtype is dtype or observation.dtype is other)
                        and observation.shape == shape
                    ):
                        first_out[env_index] = observation
                    else:
                        read(env_index, observation, out)
                    if reward.__class__ not in float_types:
                        reward = _read_reward(env_index, reward)
                    rewards[env_index] = reward
                    if info.__class__ is not dict:
                        _check_info(env_index, info)
                    infos[env_index] = info
                    ended = terminated is not False or truncated is not False
                    if ended and _has_ended(env_index, terminated, truncated):
                        ends.append(self._episode_end(env_index, terminated))
                    elif read_mask is not None and env_index not in time_limit_envs:
                        self._write_mask(env_index, out, read_mask, observation, info)
                break
            except (Exception, SystemExit) as error:
                fault = _raised_fault(env_index, "step", error)
                self.recover(fault)
                ends.append(EpisodeEnd(env_index, False, fault=fault))
        if self._drops_bad:  # such an end replaces another one of the same episode
            faulty = {end.env_index for end in ends if end.fault}
            rest = [i for i in active if i not in faulty]
            faults = _not_finite(rest, observation=out, reward=[rewards])
            ends += [EpisodeEnd(i, False, fault=fault) for i, fault in faults.items()]
        if time_limit_envs:
            self._truncate(time_limit_envs, ends)
        return ends

    def recover(self, fault):
        if not (self._restarts if fault.raised else self._drops_bad):
            raise fault
        if fault.raised:
            self._restart(fault.env_index)

    def _restart(self, env_index):
        """Replaces an environment that raised an exception by a new one."""
        with contextlib.suppress(Exception):
            self._envs[env_index].close()
        try:
            env = self._make()
            _check_compatible([self._envs[env_index], env])
            self._originals[env_index] = originals = {}
            self._set_attributes(env, originals)
        except Exception as error:
            text = f"the environment could not be made again: {error}"
            raise IndexedFault(env_index, text) from error
        self._envs[env_index], self._steps[env_index] = env, env.step

    def _truncate(self, env_indices, ends):
        ended = {end.env_index for end in ends}
        running = [i for i in env_indices if i not in ended]
        ends += [self._episode_end(env_index, False) for env_index in running]
        if running and self._warn_at_limit:
            self._warn_at_limit = False
            validation.warn(
                f"An episode was truncated after {self.max_episode_steps:,} steps. Give "
                "the environment a time limit, or pass `max_episode_steps`.",
            )

    def _episode_end(self, env_index, terminated):
        info, keys = self._infos[env_index], self._settings.info_keys
        try:
            return episode_end(env_index, terminated, info, keys)
        except IndexedFault as fault:
            self.recover(fault)
            return EpisodeEnd(env_index, False, fault=fault)

    def close_all(self):
        errors = []
        for i, env in enumerate(self._envs if self._make is not None else ()):
            self.progress.words[ENV] = i
            try:
                env.close()
            except (Exception, SystemExit) as error:
                text = f"close raised {type(error).__name__}: {error}"
                errors.append(f"environment {self.first_index + i}: {text}")
        return errors


def set_attributes(env, originals, attributes, kind):
    """Sets attributes, and gives back their original values to others.

    Args:
        env: Environment with the methods `get_<kind>` and `set_<kind>`.
        originals: Dict of original values, to which new ones are added.
        attributes: Dict from names to values.
        kind: String, `"attr"` for a `VectorEnv`, else `"wrapper_attr"`.
    """
    for name, value in {**originals, **attributes}.items():
        try:
            originals.setdefault(name, getattr(env, f"get_{kind}")(name))
            # An environment that changes the value must not change it for the others.
            getattr(env, f"set_{kind}")(name, copy.deepcopy(value))
        except Exception as error:
            raise ValueError(
                f"`env_attrs` cannot set the attribute {name!r} of {env} "
                f"({type(error).__name__}: {error}). Expected: attributes that the "
                "environment or one of its wrappers has."
            ) from error


def _check_compatible(envs):
    """Raises an error unless all environments are different objects with equal spaces."""
    for env in envs:
        if not isinstance(env, gym.Env):
            raise TypeError(
                "The callable must return a gymnasium.Env. Received: "
                f"{env!r}. Wrap an old Gym environment with shimmy."
            )
    if len(set(map(id, envs))) < len(envs):
        raise ValueError(
            "The callable returned the same environment twice. Expected: a new one from "
            "every call. To train on one environment, pass the object: fit(env)."
        )
    expected, *others = [(env.observation_space, env.action_space) for env in envs]
    for received in others:
        if received != expected:
            raise ValueError(
                "All environments must have the same spaces. Received: "
                f"{expected!r} and {received!r}"
            )


def _not_finite(env_indices, **columns):
    """Returns the faults of environments with numbers that are not finite, by index.

    Args:
        env_indices: Indices of the environments to check.
        **columns: Lists of arrays `[num_envs, …]` by the name of what they contain.
    """
    faults = {}
    for name, values in [(name, x) for name, each in columns.items() for x in each]:
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            for i in env_indices:
                if not np.isfinite(values[i]).all():
                    text = f"the {name} is not finite: {values[i]}"
                    faults[i] = IndexedFault(i, text)
    return faults
