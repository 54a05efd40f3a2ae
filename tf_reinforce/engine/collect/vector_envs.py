"""Adapts a Gymnasium `VectorEnv` to the interface of the collector."""

import copy
import math

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce.data import spaces
from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.engine.collect import env_outputs
from tf_reinforce.settings import config

_MODES = gym.vector.AutoresetMode


class VectorEnvAdapter(batched_envs.BatchedEnvs):
    """Adapts a `VectorEnv`, which resets and seeds its environments itself.

    In all three autoreset modes of Gymnasium, the collector records steps of episodes,
    and records no resets. In the mode NEXT_STEP, the `VectorEnv` ignores the action after
    the end of an episode, resets the environment, and returns the first observation of
    the next episode. The values are checked as the `VectorEnv` returns them: a
    `SyncVectorEnv` has already converted those of its environments.

    Args:
        env: `gymnasium.vector.VectorEnv` to adapt.
        max_episode_steps: Int, the number of steps after which an episode that has not
            ended raises an error. `max_episode_steps=None` uses the limit in the spec of
            `env`, else 10,000.
    """

    max_episode_steps = math.inf  # the collector cannot truncate episodes of a VectorEnv
    is_vector_env = True

    def __init__(self, env, max_episode_steps):
        self._env = env
        self.num_envs = env.num_envs
        self.progress = env_outputs.Progress(self.num_envs)
        self.observation_space = spaces.check_observation_space(
            env.single_observation_space
        )
        self.action_space = env.single_action_space
        envpool = _envpool_config(env)
        self._is_envpool = bool(envpool)
        self.spec = None if envpool else env.spec
        self._mode = env.metadata.get("autoreset_mode")
        if not isinstance(self._mode, _MODES):
            raise ValueError(
                "A VectorEnv must state how it resets in "
                "`metadata['autoreset_mode']`, a gymnasium.vector.AutoresetMode. "
                f"Received: {self._mode!r}"
            )
        self._settings = config.EnvSettings()
        self._originals = {}  # the attributes that `set` has replaced
        # In the mode SAME_STEP, the `final_obs` of a `SyncVectorEnv` contains the arrays
        # that the environments returned, and not copies of them.
        is_sync = isinstance(env.unwrapped, gym.vector.SyncVectorEnv)
        self._shares_final_arrays = is_sync and self._mode is _MODES.SAME_STEP
        self._final_copies = {}  # from environments to pairs of such an array and a copy
        spec_limit = envpool.get("max_episode_steps")
        if self.spec is not None:
            spec_limit = self.spec.max_episode_steps
        self._max_steps_before_error = (
            max_episode_steps or spec_limit or config.DEFAULT_MAX_EPISODE_STEPS
        )

    def set(self, settings):
        if settings.reset_options is not None and self._mode is not _MODES.DISABLED:
            raise ValueError(
                "A VectorEnv that resets its environments itself passes them no "
                "`options`. Expected for `reset_options`: a VectorEnv with "
                "autoreset_mode=AutoresetMode.DISABLED, or an environment id, EnvSpec or "
                f"callable. Received: {self._env} in the mode {self._mode}"
            )
        self._settings = settings
        attributes, env = settings.env_attrs or {}, self._env.unwrapped
        originals = self._originals
        values = {name: x for name, x in originals.items() if name not in attributes}
        for name, value in attributes.items():
            values[name] = [copy.deepcopy(value) for _ in range(self.num_envs)]
        for name, each in values.items():
            try:
                if name not in originals:
                    originals[name] = env.get_attr(name)
                env.set_attr(name, each)
            except Exception as error:
                raise batched_envs.attribute_error(self._env, name, error) from error

    def reset(self, seed, out):
        # EnvPool has a seed of its own, `envpool.make(..., seed=N)`.
        arguments = {} if self._is_envpool else {"seed": seed}
        arguments |= batched_envs.reset_arguments(self._settings)
        observations, infos = self._call("reset", 2, **arguments)
        self._check_reused_arrays()
        self._mask_faults = {}  # fault of the last mask, by environment index
        self._write(observations, out)
        self._write_masks(observations, infos, out, range(self.num_envs))
        self._can_start = np.ones(self.num_envs, bool)
        # True for an environment whose next step is a reset.
        self._resetting = np.zeros(self.num_envs, bool)
        self._first_observations = {}  # of the next episodes, by environment index
        self._lengths = np.zeros(self.num_envs, int)

    def can_start(self, env_index):
        return self._can_start[env_index]

    def start_episode(self, env_index, seed, out):
        first_observation = self._first_observations.pop(env_index, ())
        for array, part in zip(out, first_observation, strict=False):
            array[env_index] = part
        if env_index in self._mask_faults:
            raise self._mask_faults[env_index]

    def step(self, actions, out, rewards, active, time_limit_envs):
        stacked = keras.tree.map_structure(lambda *parts: np.stack(parts), *actions)
        observations, env_rewards, terminations, truncations, infos = self._call(
            "step", 5, stacked
        )
        self._check_reused_arrays()
        self._write(observations, out)
        self._write_masks(observations, infos, out, range(self.num_envs))
        rewards[:] = self._column("rewards", env_rewards)
        terminations = self._flags("terminations", terminations)
        truncations = self._flags("truncations", truncations)
        was_reset, self._first_observations = self._resetting, {}
        ended = (terminations | truncations) & ~was_reset
        self._lengths = np.where(was_reset | self._can_start, 0, self._lengths)
        self._lengths = self._lengths + ~was_reset
        ends = [
            env_outputs.EpisodeEnd(i, bool(terminations[i]), self._success(infos, i))
            for i in np.flatnonzero(ended).tolist()
        ]
        if self._mode is _MODES.NEXT_STEP:
            self._resetting, self._can_start = ended, was_reset
        else:
            self._can_start = ended
            self._reset_ended(ended, observations, infos, out)
        for env_index in active:
            if env_index in self._mask_faults and not ended[env_index]:
                raise self._mask_faults[env_index]
        self._check_lengths(active, ended)
        return ends

    def _reset_ended(self, ended, observations, infos, out):
        """Writes the last observations of ended episodes into `out`.

        `_reset_ended` also stores the first observations of the next episodes, until
        these episodes start. In the autoreset mode DISABLED, `_reset_ended` also resets
        the environments whose episodes have ended.
        """
        if not ended.any():
            return
        env_indices, finals = np.flatnonzero(ended).tolist(), {}
        if self._mode is _MODES.DISABLED:
            arguments = batched_envs.reset_arguments(self._settings)
            options = {**arguments.get("options", {}), "reset_mask": ended}
            observations, infos = self._call("reset", 2, options=options)
            self._write_masks(observations, infos, out, env_indices)
        elif "final_obs" not in infos:
            raise env_outputs.IndexedFault(
                env_indices[0],
                "in the autoreset mode SAME_STEP, an episode ended without its last "
                f"observation. Expected: infos with 'final_obs'. Received: {[*infos]}",
            )
        else:
            finals = {i: infos["final_obs"][i] for i in env_indices}
        parts = self._reader.flatten(None, observations)
        for env_index in env_indices:
            first_observation = [np.array(part[env_index]) for part in parts]
            self._first_observations[env_index] = first_observation
        for env_index, final in finals.items():
            self._reader(env_index, final, out)
            if self._shares_final_arrays:
                parts = map(np.asarray, self._reader.flatten(env_index, final))
                self._final_copies[env_index] = [(part, part.copy()) for part in parts]

    def _check_reused_arrays(self):
        """Raises `IndexedFault` if a reset overwrote an episode's last observation."""
        final_copies, self._final_copies = self._final_copies, {}
        for env_index, pairs in final_copies.items():
            if not all(np.array_equal(*pair, equal_nan=True) for pair in pairs):
                raise env_outputs.IndexedFault(
                    env_index,
                    "the environment returns the same array for every observation, so "
                    "that a reset overwrote the last observation of an episode. Return "
                    "`observation.copy()`, or use autoreset_mode=AutoresetMode.NEXT_STEP",
                )

    def _check_lengths(self, active, ended):
        limit = self._max_steps_before_error
        for i in active:
            if self._lengths[i] >= limit and not ended[i]:
                raise env_outputs.IndexedFault(
                    i,
                    f"the episode did not end within {limit:,} steps, and the collector "
                    "cannot truncate episodes of a VectorEnv. Wrap the environments with "
                    "gymnasium.wrappers.TimeLimit, or pass a larger `max_episode_steps`",
                )

    def _success(self, infos, env_index):
        infos = infos.get("final_info", infos)
        # For each key of `infos`, the entry `_key` states which environments reported the
        # key in this step.
        reported = infos.get("_is_success")
        is_missing = reported is not None and not reported[env_index]
        if "is_success" not in infos or is_missing:
            return None
        return env_outputs.read_success(env_index, infos["is_success"][env_index])

    def _write_masks(self, observations, infos, out, env_indices):
        """Writes the masks of some environments, and stores errors for invalid masks.

        A missing or invalid action mask raises an error only if its environment needs
        another action. After the last step of an episode, the action mask may be missing.
        """
        for env_index in env_indices if self._mask_reader is not None else ():
            self._mask_faults.pop(env_index, None)
            outputs = env_index, observations, infos
            try:
                self._write_mask(env_index, out, self._mask_reader.read_env, *outputs)
            except env_outputs.IndexedFault as fault:
                self._mask_faults[env_index] = fault

    def _call(self, name, size, *args, **kwargs):
        """Calls the method `name` of the `VectorEnv`, and checks and returns its results.

        `_call` raises `IndexedFault` if the method raises an exception, or does not
        return a tuple of `size` values that ends with a dict.
        """
        try:
            outputs = getattr(self._env, name)(*args, **kwargs)
        except Exception as error:
            text = f"{name} raised {type(error).__name__}: {error}"
            raise env_outputs.IndexedFault(None, text, raised=True) from error
        is_complete = isinstance(outputs, tuple) and len(outputs) == size
        if not is_complete or not isinstance(outputs[-1], dict):
            raise env_outputs.IndexedFault(
                None,
                f"{name} returned {env_outputs.describe(outputs)}. Expected: a tuple of "
                f"{size} values, the last of which is a dict",
            )
        env_ids = np.asarray(outputs[-1].get("env_id", ())).tolist()
        if self._is_envpool and env_ids != [*range(self.num_envs)]:
            raise env_outputs.IndexedFault(
                None,
                "the `env_id` of the infos must be 0, 1, … in the order of the "
                f"environments. Received: {env_ids}",
            )
        return outputs

    def _flags(self, name, flags):
        flags = self._column(name, flags, "bools")
        is_flag = (flags == 0) | (flags == 1)
        if not is_flag.all():
            raise env_outputs.IndexedFault(
                int(np.argmin(is_flag)),
                f"the {name} are {flags.tolist()}. Expected: one bool for each "
                "environment",
            )
        return flags.astype(bool)

    def _column(self, name, values, expected="numbers"):
        """Returns `values` as an array with one number for each environment."""
        env_outputs.expect_unmasked(None, f"array of {name}", values)
        values = np.asarray(values)
        if values.shape != (self.num_envs,) or values.dtype.kind not in "fiub":
            raise env_outputs.IndexedFault(
                None,
                f"the {name} are of shape {values.shape} and type {values.dtype}. "
                f"Expected: {expected} of shape {(self.num_envs,)}",
            )
        return values

    def _write(self, observations, out):
        parts = self._reader.flatten(None, observations)
        for array, space, part in zip(out, self._reader.leaf_spaces, parts):
            env_outputs.expect_unmasked(None, "array of observations", part)
            part = np.asarray(part)
            kinds = "fiub" if array.dtype.kind == "f" else "iub"
            if part.shape != array.shape or part.dtype.kind not in kinds:
                raise env_outputs.IndexedFault(
                    None,
                    f"the observations of all environments have the shape {part.shape} "
                    f"and the type {part.dtype}. Expected: {array.shape} and "
                    f"{space.dtype.name}, those of the observation space",
                )
            if (bounds := spaces.category_bounds(space)) is not None:
                is_inside = (part >= bounds[0]) & (part <= bounds[1])
                self._check_all(is_inside, part, f"is not in {space!r}")
            if not env_outputs.fits_dtype(part, array.dtype):
                is_equal = part.astype(array.dtype) == part
                self._check_all(is_equal, part, f"does not fit into {array.dtype.name}")
            array[:] = part

    def _check_all(self, is_valid, part, problem):
        """Raises `IndexedFault` for the first environment with an invalid value."""
        if not is_valid.all():
            env_index = int(np.argwhere(~is_valid)[0][0])
            text = f"the observation {part[env_index].tolist()} {problem}"
            raise env_outputs.IndexedFault(env_index, text)


def _envpool_config(env):
    """Returns the settings of an EnvPool, or an empty dict for another `VectorEnv`.

    Raises:
        ValueError: If the EnvPool is asynchronous, or has several players.
    """
    settings = getattr(env.unwrapped, "config", None)
    if not isinstance(settings, dict) or not {"batch_size", "env_seed"} <= set(settings):
        return {}
    players, batch_size = settings.get("max_num_players", 1), settings["batch_size"]
    if batch_size not in (0, env.num_envs) or players > 1:
        raise ValueError(
            "An EnvPool must have one player in each environment, and return all "
            "environments in every step: in the asynchronous mode, short episodes would "
            "be too frequent. Expected: batch_size equal to num_envs, or none. Received: "
            f"num_envs={env.num_envs}, batch_size={batch_size}, max_num_players={players}"
        )
    return settings
