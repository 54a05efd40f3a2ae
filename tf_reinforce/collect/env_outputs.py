"""Checks what an environment returns, and reads it into arrays."""

import numbers
from collections.abc import Mapping

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce.data import spaces


class EnvFault(Exception):
    """What a slot did wrong; the collector adds the episode and the step."""

    def __init__(self, slot, message):
        super().__init__(message)
        self.slot = slot


class EpisodeEnd:
    """The end of the episode in a slot."""

    __slots__ = ("slot", "terminated", "success")

    def __init__(self, slot, terminated, success):
        self.slot = slot
        self.terminated = terminated
        self.success = success


class ObservationReader:
    """Checks one observation and writes it into a row."""

    def __init__(self, space, float_dtype):
        self.observation_spec = spaces.observation_spec(space, float_dtype)
        self._nest = spaces.to_nest(space)
        self.spaces = leaves = keras.tree.flatten(self._nest)
        self._leaves = [_leaf_reader(leaf) for leaf in leaves]
        # The quick path of `SyncEnvs.step`: one array of the recorded type.
        self.flat = len(leaves) == 1 and self._nest is leaves[0]
        self.dtype = np.dtype(keras.tree.flatten(self.observation_spec)[0].dtype.name)
        self.own = leaves[0].dtype if self.dtype.kind == "f" else self.dtype
        quick = self.flat and isinstance(space, gym.spaces.Box)
        self.shape = space.shape if quick else None

    def __call__(self, slot, observation, rows):
        if self.flat:
            rows[0][slot] = self._leaves[0](slot, observation)
            return
        for row, leaf, part in zip(rows, self._leaves, self.flatten(slot, observation)):
            row[slot] = leaf(slot, part)

    def flatten(self, slot, observation):
        """The arrays of an observation, in the order of the rows."""
        parts = []
        self._flatten(slot, self._nest, observation, parts)
        return parts

    def _flatten(self, slot, nest, observation, parts):
        """Appends the arrays of an observation, in the order of `keras.tree.flatten`."""
        if isinstance(nest, dict):
            if not isinstance(observation, Mapping) or observation.keys() != nest.keys():
                raise _misnested(slot, f"a dict with the keys {list(nest)}", observation)
            for key in sorted(nest):
                self._flatten(slot, nest[key], observation[key], parts)
        elif isinstance(nest, tuple):
            listed = isinstance(observation, (tuple, list))
            if not listed or len(observation) != len(nest):
                raise _misnested(slot, f"a tuple of {len(nest)} parts", observation)
            for child, part in zip(nest, observation, strict=True):
                self._flatten(slot, child, part, parts)
        else:
            parts.append(observation)


def _misnested(slot, expected, observation):
    received = type(observation).__name__
    if isinstance(observation, Mapping):
        received += f" with the keys {list(observation)}"
    elif isinstance(observation, (tuple, list)):
        received += f" of {len(observation)} parts"
    return EnvFault(
        slot,
        f"the observation does not nest as its space. Expected: {expected}. "
        f"Received: a {received}",
    )


def _leaf_reader(space):
    """A function from (slot, part of an observation) to the part, once it is checked."""
    return (
        _discrete_reader if isinstance(space, gym.spaces.Discrete) else _array_reader
    )(space)


def _discrete_reader(space):
    first, behind = int(space.start), int(space.start) + int(space.n)

    def read(slot, part):
        if part.__class__ is int and first <= part < behind:
            return part
        if isinstance(part, np.ndarray) and part.shape == ():
            part = part[()]
        if not isinstance(part, (int, np.integer, np.bool_)):
            raise EnvFault(
                slot,
                f"the observation is a {type(part).__name__}. Expected: a whole number "
                f"of {space!r}. Return int(observation)",
            )
        if not first <= part < behind:
            raise EnvFault(slot, f"the observation {part} is none of {space!r}")
        return part

    return read


def _array_reader(space):
    shape, real = space.shape, np.issubdtype(space.dtype, np.floating)
    kind = np.dtype("float64") if real else space.dtype
    bounds = _bounds(space)

    def read(slot, part):
        if not isinstance(part, (np.ndarray, np.generic)):
            raise EnvFault(
                slot,
                f"the observation is a {type(part).__name__}. Expected: a NumPy "
                f"array of shape {shape}. Return "
                "np.asarray(observation, dtype=self.observation_space.dtype)",
            )
        if part.shape != shape:
            raise EnvFault(
                slot,
                f"the observation has the shape {part.shape}. Expected: {shape}",
            )
        if part.dtype is not kind and not np.can_cast(part.dtype, kind, "same_kind"):
            raise EnvFault(
                slot,
                f"the observation is of type {part.dtype}. Expected: {kind.name}",
            )
        if bounds and not ((part >= bounds[0]) & (part <= bounds[1])).all():
            raise EnvFault(slot, f"the observation {part.tolist()} is none of {space!r}")
        if part.dtype is not kind and not _fits(part, kind):
            said = f"does not fit into {kind.name}, the type of its space"
            raise EnvFault(slot, f"the observation {part.tolist()} {said}")
        return part

    return read


def _fits(part, kind):
    """Whether no whole number is another one in this type: 200 is -56 in int8."""
    whole = kind.kind in "iu" and not np.can_cast(part.dtype, kind)
    return not whole or np.array_equal(part.astype(kind), part)


def _bounds(space):
    """First and last value of choices and flags; a Box is often wrong by a little."""
    if isinstance(space, gym.spaces.MultiBinary):
        return 0, 1
    if isinstance(space, gym.spaces.MultiDiscrete):
        return space.start, space.start + (space.nvec - 1)
    if isinstance(space, gym.spaces.Discrete):
        return int(space.start), int(space.start) + int(space.n) - 1
    return None


def read_reward(slot, reward):
    """A reward as a float, or a Fault that says what came instead."""
    if isinstance(reward, np.ndarray) and reward.shape == ():
        reward = reward[()]
    if not isinstance(reward, (numbers.Real, np.bool_)):
        shape = f" of shape {reward.shape}" if isinstance(reward, np.ndarray) else ""
        raise EnvFault(
            slot,
            f"the reward is a {type(reward).__name__}{shape}: {reward!r}. "
            "Expected: one real number. Return float(reward)",
        )
    return float(reward)


def has_ended(slot, terminated, truncated):
    """Whether the episode ended, from two flags that may be NumPy's."""
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_)):
            raise EnvFault(
                slot,
                f"`{name}` is a {type(flag).__name__}: {flag!r}. Expected: a bool",
            )
    return bool(terminated or truncated)


def read_success(slot, said):
    """What an environment says of success, or a Fault where that is no flag."""
    if not isinstance(said, (numbers.Real, np.bool_, type(None))):
        raise EnvFault(slot, f"`is_success` is {said!r}. Expected: a bool")
    return said
