"""Adapts a Gymnasium `VectorEnv` to the interface of the collector."""

import math

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce.collect import batched_envs
from tf_reinforce.collect import env_outputs
from tf_reinforce.data import spaces


class VectorEnvAdapter(batched_envs.BatchedEnvs):
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
        self._endless = limit or stated or batched_envs.DEFAULT_MAX_EPISODE_STEPS

    def reset(self, seed, rows):
        observations, infos = self._call("reset", 2, seed=seed)
        self._refuse_reused_arrays()
        self._maskless = {}  # slot to the `EnvFault` of what it said of its next actions
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
            env_outputs.EpisodeEnd(
                int(slot), bool(terminations[slot]), self._success(infos, slot)
            )
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
                raise env_outputs.EnvFault(
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
                raise env_outputs.EnvFault(
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
                raise env_outputs.EnvFault(
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
        return env_outputs.read_success(int(slot), infos["is_success"][slot])

    def _write_masks(self, observations, infos, rows, slots):
        """The masks of these slots; after an ending there may be none."""
        for slot in slots if self._masks is not None else ():
            self._maskless.pop(slot, None)
            answer = slot, observations, infos
            try:
                self._mask(slot, rows, self._masks.of_slot, *answer)
            except env_outputs.EnvFault as fault:
                self._maskless[slot] = fault

    def _call(self, name, parts, *args, **kwargs):
        """The answer, a tuple of so many parts of which the last one is a dict."""
        try:
            answer = getattr(self._env, name)(*args, **kwargs)
        except Exception as error:
            raise env_outputs.EnvFault(
                0, f"{name} raised {type(error).__name__}: {error}"
            ) from error
        if not isinstance(answer, tuple) or len(answer) != parts:
            several = isinstance(answer, tuple)
            kind = f"{len(answer)} values" if several else f"a {type(answer).__name__}"
            raise env_outputs.EnvFault(
                0, f"{name} returned {kind}. Expected: a tuple of {parts}"
            )
        if not isinstance(answer[-1], dict):
            kind = type(answer[-1]).__name__
            raise env_outputs.EnvFault(
                0, f"{name} returned infos of type {kind}. Expected: a dict"
            )
        return answer

    def _flags(self, name, given):
        given = self._column(name, given, "bools")
        if not ((given == 0) | (given == 1)).all():
            raise env_outputs.EnvFault(
                0, f"the {name} are {given.tolist()}. Expected: bools"
            )
        return given.astype(bool)

    def _column(self, name, given, expected="numbers"):
        """One number for each environment, as an array."""
        given = np.asarray(given)
        if given.shape != (self.size,) or given.dtype.kind not in "fiub":
            raise env_outputs.EnvFault(
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
                raise env_outputs.EnvFault(
                    0,
                    f"the observations have the shape {part.shape}. "
                    f"Expected: {row.shape}",
                )
            if part.dtype.kind not in ("fiub" if row.dtype.kind == "f" else "iub"):
                raise env_outputs.EnvFault(
                    0,
                    f"the observations are of type {part.dtype}. "
                    f"Expected: {space.dtype.name}",
                )
            if (bounds := env_outputs._bounds(space)) is not None:
                inside = (part >= bounds[0]) & (part <= bounds[1])
                self._expect(inside, part, f"is none of {space!r}")
            if not env_outputs._fits(part, row.dtype):
                said = f"does not fit into {row.dtype.name}, the type of its space"
                self._expect(part.astype(row.dtype) == part, part, said)
            row[:] = part

    def _expect(self, right, parts, said):
        """Names the first environment of which a number is not right, and its numbers."""
        if not right.all():
            slot = int(np.argwhere(~right)[0][0])
            raise env_outputs.EnvFault(
                slot, f"the observation {parts[slot].tolist()} {said}"
            )
