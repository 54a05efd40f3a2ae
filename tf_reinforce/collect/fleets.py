"""Fleets: environments side by side, whoever made them, behind one face.

Every answer of an environment is checked when it arrives. A fleet knows slots; which
episode runs in a slot is the collector's business.
"""

import abc
import math
import numbers
import warnings
from collections.abc import Mapping

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce import spaces

DEFAULT_LIMIT = 10_000  # steps, for an environment that states no limit of its own


class Fault(Exception):
    """What a slot did wrong; the collector adds the episode and the step."""

    def __init__(self, slot, message):
        super().__init__(message)
        self.slot = slot


class Ending:
    """The end of the episode in a slot."""

    __slots__ = ("slot", "terminated", "success")

    def __init__(self, slot, terminated, success):
        self.slot = slot
        self.terminated = terminated
        self.success = success


class Fleet(abc.ABC):
    """`size` environments with the same spaces.

    `rows` are lists with one array `[size, …]` per array of an observation, and where
    actions can be illegal the masks `[size, M]` behind them; a fleet writes into them
    and into nothing else.
    """

    size: int
    limit: float  # steps after which the collector cuts an episode
    seeds_episodes = True  # each begins with a seed of ours
    observation_space: gym.Space
    action_space: gym.Space
    spec: gym.envs.registration.EnvSpec | None

    def prepare(self, float_dtype, masks=None):
        """Fixes how answers are read; returns the structure of an observation.

        Args:
            float_dtype: The type of real observations.
            masks: `masks.Reader`, or `None` where every action is always legal.
        """
        self._read = _Reader(self.observation_space, float_dtype)
        self._masks = masks
        return self._read.structure

    def _mask(self, slot, rows, read, *answer):
        """Writes what an answer says of the next actions."""
        try:
            rows[-1][slot] = read(*answer)
        except KeyError as error:
            raise Fault(
                slot,
                f"there is no mask in {error}. Expected: one after every reset and every "
                "step that does not end the episode",
            ) from None
        except (ValueError, TypeError, IndexError) as error:
            raise Fault(slot, f"{error}") from None

    def reset(self, seed, rows):  # noqa: B027
        """Begins a collection; `seed` is for fleets that seed their slots themselves."""

    @abc.abstractmethod
    def ready(self, slot):
        """Whether an episode can begin in this slot now."""

    @abc.abstractmethod
    def begin(self, slot, seed, rows):
        """Begins an episode in a slot that is ready and writes its first observation."""

    @abc.abstractmethod
    def step(self, actions, rows, rewards, live, cut):
        """Steps the live slots; returns the `Ending`s.

        `cut` are the slots whose time is up with this step, unless the task ends.
        Writes what followed each action into `rows` (at an ending: the true last
        observation) and the rewards into `rewards`, `[size]` float64.
        """

    def close(self):  # noqa: B027
        """Closes what the fleet opened itself."""


class _Reader:
    """Checks one observation and writes it into a row."""

    def __init__(self, space, float_dtype):
        self.structure = spaces.structure(space, float_dtype)
        self._nest = spaces.nest(space)
        self.spaces = leaves = keras.tree.flatten(self._nest)
        self._leaves = [_leaf(leaf) for leaf in leaves]
        # The quick path of `Plain.step`: one array, of the recorded type or the space's.
        self.flat = len(leaves) == 1 and self._nest is leaves[0]
        self.dtype = np.dtype(keras.tree.flatten(self.structure)[0].dtype.name)
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
    return Fault(
        slot,
        f"the observation does not nest as its space. Expected: {expected}. "
        f"Received: a {received}",
    )


def _leaf(space):
    """A function from (slot, part of an observation) to the part, once it is checked."""
    return (_choice if isinstance(space, gym.spaces.Discrete) else _array)(space)


def _choice(space):
    first, behind = int(space.start), int(space.start) + int(space.n)

    def read(slot, part):
        if part.__class__ is int and first <= part < behind:
            return part
        if isinstance(part, np.ndarray) and part.shape == ():
            part = part[()]
        if not isinstance(part, (int, np.integer, np.bool_)):
            raise Fault(
                slot,
                f"the observation is a {type(part).__name__}. Expected: a whole number "
                f"of {space!r}. Return int(observation)",
            )
        if not first <= part < behind:
            raise Fault(slot, f"the observation {part} is none of {space!r}")
        return part

    return read


def _array(space):
    shape, real = space.shape, np.issubdtype(space.dtype, np.floating)
    kind = np.dtype("float64") if real else space.dtype
    bounds = _bounds(space)

    def read(slot, part):
        if not isinstance(part, (np.ndarray, np.generic)):
            raise Fault(
                slot,
                f"the observation is a {type(part).__name__}. Expected: a NumPy "
                f"array of shape {shape}. Return "
                "np.asarray(observation, dtype=self.observation_space.dtype)",
            )
        if part.shape != shape:
            raise Fault(
                slot,
                f"the observation has the shape {part.shape}. Expected: {shape}",
            )
        if part.dtype is not kind and not np.can_cast(part.dtype, kind, "same_kind"):
            raise Fault(
                slot,
                f"the observation is of type {part.dtype}. Expected: {kind.name}",
            )
        if bounds and not ((part >= bounds[0]) & (part <= bounds[1])).all():
            raise Fault(slot, f"the observation {part.tolist()} is none of {space!r}")
        if part.dtype is not kind and not _fits(part, kind):
            said = f"does not fit into {kind.name}, the type of its space"
            raise Fault(slot, f"the observation {part.tolist()} {said}")
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


def _real(slot, reward):
    """A reward as a float, or a Fault that says what came instead."""
    if isinstance(reward, np.ndarray) and reward.shape == ():
        reward = reward[()]
    if not isinstance(reward, (numbers.Real, np.bool_)):
        shape = f" of shape {reward.shape}" if isinstance(reward, np.ndarray) else ""
        raise Fault(
            slot,
            f"the reward is a {type(reward).__name__}{shape}: {reward!r}. "
            "Expected: one real number. Return float(reward)",
        )
    return float(reward)


def _ended(slot, terminated, truncated):
    """Whether the episode ended, from two flags that may be NumPy's."""
    for name, flag in (("terminated", terminated), ("truncated", truncated)):
        if not isinstance(flag, (bool, np.bool_)):
            raise Fault(
                slot,
                f"`{name}` is a {type(flag).__name__}: {flag!r}. Expected: a bool",
            )
    return bool(terminated or truncated)


def _success(slot, said):
    """What an environment says of success, or a Fault where that is no flag."""
    if not isinstance(said, (numbers.Real, np.bool_, type(None))):
        raise Fault(slot, f"`is_success` is {said!r}. Expected: a bool")
    return said


class Plain(Fleet):
    """A list of plain environments, each reset with a seed of its own."""

    def __init__(self, environments, limit, *, owned):
        _check_alike(environments)
        first = environments[0]
        self._environments = environments
        own_limit = first.spec is not None and first.spec.max_episode_steps
        self._stated = bool(limit or own_limit)
        self.limit = limit or own_limit or DEFAULT_LIMIT
        self.size = len(environments)
        self.observation_space = spaces.check_observation_space(first.observation_space)
        self.action_space = first.action_space
        self.spec = first.spec
        self._owned = owned
        self._steps = [env.step for env in environments]
        self._infos = [{}] * self.size

    def ready(self, slot):
        return True

    def begin(self, slot, seed, rows):
        try:
            answer = self._environments[slot].reset(seed=seed)
        except Exception as error:
            raise Fault(slot, f"reset raised {type(error).__name__}: {error}") from error
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise Fault(
                slot,
                "reset returned no pair (observation, info). Gymnasium's API is "
                "expected; wrap an old environment with shimmy",
            )
        self._read(slot, answer[0], rows)
        if self._masks is not None:
            self._mask(slot, rows, self._masks.one, *answer)

    def step(self, actions, rows, rewards, live, cut):
        endings, steps, read, infos = [], self._steps, self._read, self._infos
        masked = self._masks is not None
        row, shape, dtype, own = rows[0], read.shape, read.dtype, read.own
        array, reals = np.ndarray, (float, np.float64)
        slot = 0
        try:
            for slot in live:
                observation, reward, terminated, truncated, infos[slot] = steps[slot](
                    actions[slot]
                )
                if (
                    observation.__class__ is array
                    and (observation.dtype is dtype or observation.dtype is own)
                    and observation.shape == shape
                ):
                    row[slot] = observation
                else:
                    read(slot, observation, rows)
                if reward.__class__ not in reals:
                    reward = _real(slot, reward)
                rewards[slot] = reward
                ended = terminated is not False or truncated is not False
                if ended and _ended(slot, terminated, truncated):
                    endings.append(self._ending(slot, terminated))
                elif masked and slot not in cut:
                    self._mask(slot, rows, self._masks.one, observation, infos[slot])
        except Fault:
            raise
        except Exception as error:
            raise Fault(slot, _explain(error)) from error
        if cut:
            ended = {ending.slot for ending in endings}
            self._cut([slot for slot in cut if slot not in ended], endings)
        return endings

    def _cut(self, slots, endings):
        endings += [self._ending(slot, False) for slot in slots]
        if slots and not self._stated:
            self._stated = True
            warnings.warn(
                f"An episode did not end within {self.limit:,} steps and was cut. "
                "Give the environment a time limit, or pass `max_episode_steps`.",
                stacklevel=2,
            )

    def _ending(self, slot, terminated):
        info = self._infos[slot]
        if not isinstance(info, dict):
            raise Fault(slot, f"the info is a {type(info).__name__}. Expected: a dict")
        success = _success(slot, info.get("is_success"))
        return Ending(slot, bool(terminated), success)

    def close(self):
        if self._owned:
            for env in self._environments:
                env.close()


def _check_alike(environments):
    """Refuses the same environment in two slots, and different spaces."""
    if len(set(map(id, environments))) < len(environments):
        raise ValueError(
            "The callable returned the same environment twice. It must make a new one "
            "each time; an environment of your own runs alone: fit(env)."
        )
    for env in environments[1:]:
        for side in ("observation_space", "action_space"):
            ours, theirs = getattr(environments[0], side), getattr(env, side)
            if ours != theirs:
                raise ValueError(
                    f"All environments must have the same {side}. Received: {ours!r} "
                    f"and {theirs!r}"
                )


def _explain(error):
    if isinstance(error, ValueError) and "expected 5, got 4" in str(error):
        return (
            "step returned four values, as in the old Gym. Expected: (observation, "
            "reward, terminated, truncated, info). Wrap the environment with shimmy"
        )
    return f"step raised {type(error).__name__}: {error}"


class Vector(Fleet):
    """A Gymnasium `VectorEnv` as given; it resets and seeds its environments itself.

    In all three autoreset modes only true steps are recorded: the row with which
    NEXT_STEP answers an ignored action is passed over.
    """

    limit = math.inf  # it cannot be cut from outside
    seeds_episodes = False

    def __init__(self, env, limit):
        self._env = env
        self.size = env.num_envs
        self.observation_space = spaces.check_observation_space(
            env.single_observation_space
        )
        self.action_space = env.single_action_space
        self.spec = env.spec
        mode = env.metadata.get("autoreset_mode")
        if not isinstance(mode, gym.vector.AutoresetMode):
            raise ValueError(
                "A VectorEnv must state how it resets in "
                "`metadata['autoreset_mode']`, a gymnasium.vector.AutoresetMode. "
                f"Received: {mode!r}"
            )
        self._mode = mode
        # Here `final_obs` holds the very arrays that the environments returned.
        same_step = mode is gym.vector.AutoresetMode.SAME_STEP
        sync = isinstance(env.unwrapped, gym.vector.SyncVectorEnv)
        self._hands_on_arrays = same_step and sync
        self._finals = {}  # slot to `(array, copy)` for each array of its `final_obs`
        stated = env.spec is not None and env.spec.max_episode_steps
        self._endless = limit or stated or DEFAULT_LIMIT

    def reset(self, seed, rows):
        observations, infos = self._call("reset", 2, seed=seed)
        self._refuse_reused_arrays()
        self._maskless = {}  # slot to the `Fault` of what it said of its next actions
        self._write(observations, rows)
        self._write_masks(observations, infos, rows, range(self.size))
        self._ready = np.ones(self.size, bool)  # an episode can begin here now
        self._resetting = np.zeros(self.size, bool)  # the next row is a reset
        self._first = {}  # slot to the first observation of its next episode
        self._lengths = np.zeros(self.size, int)

    def ready(self, slot):
        return self._ready[slot]

    def begin(self, slot, seed, rows):
        for row, part in zip(rows, self._first.pop(slot, ()), strict=False):
            row[slot] = part
        if slot in self._maskless:
            raise self._maskless[slot]

    def step(self, actions, rows, rewards, live, cut):
        together = keras.tree.map_structure(lambda *parts: np.stack(parts), *actions)
        observations, given, terminations, truncations, infos = self._call(
            "step", 5, together
        )
        self._refuse_reused_arrays()
        self._write(observations, rows)
        self._write_masks(observations, infos, rows, range(self.size))
        rewards[:] = self._column("rewards", given)
        terminations = self._flags("terminations", terminations)
        truncations = self._flags("truncations", truncations)
        phantom, self._first = self._resetting, {}
        ended = (terminations | truncations) & ~phantom
        self._lengths = np.where(phantom | self._ready, 0, self._lengths) + ~phantom
        endings = [
            Ending(int(slot), bool(terminations[slot]), self._success(infos, slot))
            for slot in np.flatnonzero(ended)
        ]
        if self._mode is gym.vector.AutoresetMode.NEXT_STEP:
            self._resetting, self._ready = ended, phantom
        else:
            self._ready = ended
            self._reset_ended(ended, observations, infos, rows)
        for slot in live:
            if slot in self._maskless and not ended[slot]:
                raise self._maskless[slot]
        self._refuse_endless(live, ended)
        return endings

    def _reset_ended(self, ended, observations, infos, rows):
        """Keeps both observations of an ending: the last one and the first."""
        if not ended.any():
            return
        slots = np.flatnonzero(ended)
        if self._mode is gym.vector.AutoresetMode.DISABLED:
            options = {"reset_mask": ended}
            observations, infos = self._call("reset", 2, options=options)
            self._write_masks(observations, infos, rows, slots)
            finals = {}
        else:
            if "final_obs" not in infos:
                raise Fault(
                    int(slots[0]),
                    "an episode ended under SAME_STEP without the last observation. "
                    f"Expected: infos with 'final_obs'. Received: {sorted(infos)}",
                )
            finals = {slot: infos["final_obs"][slot] for slot in slots}
        parts = self._read.flatten(0, observations)
        for slot in slots:
            self._first[int(slot)] = [np.array(part[slot]) for part in parts]
        for slot, final in finals.items():
            self._read(slot, final, rows)
            if self._hands_on_arrays:
                parts = map(np.asarray, self._read.flatten(int(slot), final))
                self._finals[int(slot)] = [(part, part.copy()) for part in parts]

    def _refuse_reused_arrays(self):
        """Refuses environments whose reset overwrote the last observation."""
        finals, self._finals = self._finals, {}
        for slot, parts in finals.items():
            if not all(np.array_equal(*both, equal_nan=True) for both in parts):
                raise Fault(
                    slot,
                    "the environment returns the same array again and again. Its reset "
                    "overwrote the last observation of an episode before it could be "
                    "recorded. Expected: a new array for every observation. Return "
                    "`observation.copy()`, or make the VectorEnv with "
                    "`autoreset_mode=AutoresetMode.NEXT_STEP`",
                )

    def _refuse_endless(self, live, ended):
        for slot in live:
            if self._lengths[slot] >= self._endless and not ended[slot]:
                raise Fault(
                    slot,
                    f"the episode did not end within {self._endless:,} steps, and a "
                    "VectorEnv cannot be cut from outside. Wrap its environments "
                    "with gymnasium.wrappers.TimeLimit; if they are this long, pass "
                    "`max_episode_steps`",
                )

    def _success(self, infos, slot):
        infos = infos.get("final_info", infos)
        # Beside each key stands `_key`: which environments reported it in this step.
        reported = infos.get("_is_success")
        if "is_success" not in infos or (reported is not None and not reported[slot]):
            return None
        return _success(int(slot), infos["is_success"][slot])

    def _write_masks(self, observations, infos, rows, slots):
        """The masks of these slots; after an ending there may be none."""
        for slot in slots if self._masks is not None else ():
            self._maskless.pop(slot, None)
            answer = slot, observations, infos
            try:
                self._mask(slot, rows, self._masks.of_slot, *answer)
            except Fault as fault:
                self._maskless[slot] = fault

    def _call(self, name, parts, *args, **kwargs):
        """The answer, a tuple of so many parts of which the last one is a dict."""
        try:
            answer = getattr(self._env, name)(*args, **kwargs)
        except Exception as error:
            raise Fault(0, f"{name} raised {type(error).__name__}: {error}") from error
        if not isinstance(answer, tuple) or len(answer) != parts:
            several = isinstance(answer, tuple)
            kind = f"{len(answer)} values" if several else f"a {type(answer).__name__}"
            raise Fault(0, f"{name} returned {kind}. Expected: a tuple of {parts}")
        if not isinstance(answer[-1], dict):
            kind = type(answer[-1]).__name__
            raise Fault(0, f"{name} returned infos of type {kind}. Expected: a dict")
        return answer

    def _flags(self, name, given):
        given = self._column(name, given, "bools")
        if not ((given == 0) | (given == 1)).all():
            raise Fault(0, f"the {name} are {given.tolist()}. Expected: bools")
        return given.astype(bool)

    def _column(self, name, given, expected="numbers"):
        """One number for each environment, as an array."""
        given = np.asarray(given)
        if given.shape != (self.size,) or given.dtype.kind not in "fiub":
            raise Fault(
                0,
                f"the {name} are of shape {given.shape} and type {given.dtype}. "
                f"Expected: {expected} of shape {(self.size,)}",
            )
        return given

    def _write(self, observations, rows):
        parts = self._read.flatten(0, observations)
        for row, space, part in zip(rows, self._read.spaces, parts):
            part = np.asarray(part)
            if part.shape != row.shape:
                raise Fault(
                    0,
                    f"the observations have the shape {part.shape}. "
                    f"Expected: {row.shape}",
                )
            if part.dtype.kind not in ("fiub" if row.dtype.kind == "f" else "iub"):
                raise Fault(
                    0,
                    f"the observations are of type {part.dtype}. "
                    f"Expected: {space.dtype.name}",
                )
            if (bounds := _bounds(space)) is not None:
                inside = (part >= bounds[0]) & (part <= bounds[1])
                self._expect(inside, part, f"is none of {space!r}")
            if not _fits(part, row.dtype):
                said = f"does not fit into {row.dtype.name}, the type of its space"
                self._expect(part.astype(row.dtype) == part, part, said)
            row[:] = part

    def _expect(self, right, parts, said):
        """Names the first environment of which a number is not right, and its numbers."""
        if not right.all():
            slot = int(np.argwhere(~right)[0][0])
            raise Fault(slot, f"the observation {parts[slot].tolist()} {said}")
