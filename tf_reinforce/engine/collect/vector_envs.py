"""Collects in a Gymnasium `VectorEnv`."""

import copy
import math

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce.data import spaces
from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.settings import config

_MODES = gym.vector.AutoresetMode


class VectorEnvAdapter(batched_envs.BatchedEnvs):
    """Adapts a `VectorEnv`, which resets and seeds its environments itself.

    In all three autoreset modes, steps are recorded and resets are not. In NEXT_STEP, the
    call after an episode's end is a reset: the `VectorEnv` ignores the action and returns
    the next episode's first observation. Values are checked as it returns them; a
    `SyncVectorEnv` has already converted those of its environments.

    Args:
        env: `gymnasium.vector.VectorEnv` to adapt.
        max_episode_steps: Int, after how many steps an episode that has not ended raises
            an error, by default the limit in the spec of `env`, else 10,000.
    """

    max_episode_steps = math.inf  # the collector cannot truncate episodes of a VectorEnv
    is_vector_env = True

    def __init__(self, env, max_episode_steps):
        envpool = _envpool_config(env)
        env_spaces = env.single_observation_space, env.single_action_space
        super().__init__(env.num_envs, *env_spaces, None if envpool else env.spec)
        self._env = env
        self._is_envpool = bool(envpool)
        self._mode = env.metadata.get("autoreset_mode")
        if not isinstance(self._mode, _MODES):
            raise ValueError(
                "A VectorEnv must state how it resets in "
                "`metadata['autoreset_mode']`, a gymnasium.vector.AutoresetMode. "
                f"Received: {self._mode!r}"
            )
        self._originals = {}  # the attributes that `set` has replaced
        self._finals = []  # indices, final observations and their copies, to compare
        limit = self.spec.max_episode_steps if self.spec else None
        self._max_steps_before_error = (
            max_episode_steps
            or envpool.get("max_episode_steps", limit)
            or config.DEFAULT_MAX_EPISODE_STEPS
        )

    def set(self, settings):
        if settings.reset_options is not None and self._mode is not _MODES.DISABLED:
            raise ValueError(
                "`reset_options` needs an environment id, EnvSpec or callable, or a "
                "VectorEnv with autoreset_mode=AutoresetMode.DISABLED. Received: "
                f"{self._env} in the mode {self._mode}"
            )
        self._settings = settings
        attributes, originals = settings.env_attrs or {}, self._originals
        values = {name: x for name, x in originals.items() if name not in attributes}
        for name, value in attributes.items():
            values[name] = [copy.deepcopy(value) for _ in range(self.num_envs)]
        for name, each in values.items():
            with batched_envs.explain_attribute(self._env, name):
                if name not in originals:
                    originals[name] = self._env.unwrapped.get_attr(name)
                self._env.unwrapped.set_attr(name, each)

    def reset(self, seed, out):
        # EnvPool has a seed of its own, `envpool.make(..., seed=N)`.
        arguments = {} if self._is_envpool else {"seed": seed}
        arguments |= self._reset_arguments()
        observations, infos = self._call("reset", 2, **arguments)
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
        self._write(observations, out)
        self._write_masks(observations, infos, out, range(self.num_envs))
        rewards[:] = self._column("reward", env_rewards)
        terminations = self._flags("termination", terminations)
        truncations = self._flags("truncation", truncations)
        was_reset, self._first_observations = self._resetting, {}
        ended = (terminations | truncations) & ~was_reset
        lengths = np.where(was_reset | self._can_start, 0, self._lengths)
        self._lengths = lengths + ~was_reset
        ends = [
            batched_envs.EpisodeEnd(i, bool(terminations[i]), self._success(infos, i))
            for i in np.flatnonzero(ended).tolist()
        ]
        if self._mode is _MODES.NEXT_STEP:
            self._resetting, self._can_start = ended, was_reset
        else:
            self._can_start = ended
            self._reset_ended(np.flatnonzero(ended).tolist(), observations, infos, out)
        limit = self._max_steps_before_error
        for env_index in [i for i in active if not ended[i]]:
            if env_index in self._mask_faults:
                raise self._mask_faults[env_index]
            if self._lengths[env_index] >= limit:
                raise batched_envs.IndexedFault(
                    env_index,
                    f"the episode did not end within {limit:,} steps. Wrap the "
                    "environments with gymnasium.wrappers.TimeLimit, or pass a larger "
                    "`max_episode_steps`",
                )
        return ends

    def _reset_ended(self, env_indices, observations, infos, out):
        """Writes the last observations of ended episodes into `out`.

        The first observations of the next ones are kept until these start. In the mode
        DISABLED, the environments are reset here.
        """
        if not env_indices:
            return
        finals = {}
        if self._mode is _MODES.DISABLED:
            ended = np.isin(np.arange(self.num_envs), env_indices)
            options = self._reset_arguments().get("options", {})
            options = {**options, "reset_mask": ended}
            observations, infos = self._call("reset", 2, options=options)
            self._write_masks(observations, infos, out, env_indices)
        elif "final_obs" not in infos:
            raise batched_envs.IndexedFault(
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
            # A `SyncVectorEnv` passes on the arrays of the environments themselves.
            if isinstance(self._env.unwrapped, gym.vector.SyncVectorEnv):
                for part in self._reader.flatten(env_index, final):
                    self._finals.append((env_index, part, np.copy(part)))

    def _success(self, infos, env_index):
        infos = infos.get("final_info", infos)
        # For each key, `_key` states which environments reported it in this step.
        reported = infos.get("_is_success")
        is_missing = reported is not None and not reported[env_index]
        if "is_success" not in infos or is_missing:
            return None
        return batched_envs.read_success(env_index, infos["is_success"][env_index])

    def _write_masks(self, observations, infos, out, env_indices):
        """Writes the masks of some environments, and stores faults for later.

        A missing or invalid mask is an error only if its environment needs another
        action; after an episode's last step, it may be missing.
        """
        for env_index in env_indices if self._mask_reader is not None else ():
            self._mask_faults.pop(env_index, None)
            outputs = env_index, observations, infos
            try:
                self._write_mask(env_index, out, self._mask_reader.read_env, *outputs)
            except batched_envs.IndexedFault as fault:
                self._mask_faults[env_index] = fault

    def _call(self, name, size, *args, **kwargs):
        """Calls a method of the `VectorEnv`, checks its results and returns them.

        Raises:
            IndexedFault: If it raises an exception, does not return a tuple of `size`
                values that ends with a dict, or has overwritten an episode's last
                observation, which `final_obs` still contains.
        """
        try:
            outputs = getattr(self._env, name)(*args, **kwargs)
        except Exception as error:
            text = f"{name} raised {batched_envs.describe_error(error)}"
            raise batched_envs.IndexedFault(None, text, raised=True) from error
        is_complete = isinstance(outputs, tuple) and len(outputs) == size
        if not is_complete or not isinstance(outputs[-1], dict):
            raise batched_envs.IndexedFault(
                None,
                f"{name} returned {batched_envs.describe(outputs)}. Expected: a tuple of "
                f"{size} values, the last of which is a dict",
            )
        env_ids = np.asarray(outputs[-1].get("env_id", ())).tolist()
        if self._is_envpool and env_ids != [*range(self.num_envs)]:
            raise batched_envs.IndexedFault(
                None,
                "the `env_id` of the infos must be 0, 1, … in the order of the "
                f"environments. Received: {env_ids}",
            )
        finals, self._finals = self._finals, []
        for env_index, part, first_copy in finals:
            if not np.array_equal(part, first_copy, equal_nan=True):
                raise batched_envs.IndexedFault(
                    env_index,
                    "the environment returns the same array for every observation, so "
                    "that a reset overwrote the last observation of an episode. Return "
                    "`observation.copy()`, or use autoreset_mode=AutoresetMode.NEXT_STEP",
                )
        return outputs

    def _flags(self, name, flags):
        flags = self._column(name, flags)
        self._check_all((flags == 0) | (flags == 1), name, flags, "is not a bool")
        return flags.astype(bool)

    def _column(self, name, values):
        """Returns `values` as an array with one number per environment."""
        values = np.asarray(values)
        if values.shape != (self.num_envs,) or values.dtype.kind not in "fiub":
            raise batched_envs.IndexedFault(
                None,
                f"the {name}s are of shape {values.shape} and type {values.dtype}. "
                f"Expected: numbers or bools of shape {(self.num_envs,)}",
            )
        return values

    def _write(self, observations, out):
        parts = self._reader.flatten(None, observations)
        for array, space, part in zip(out, self._reader.leaf_spaces, parts):
            part = np.asarray(part)
            kinds = "fiub" if array.dtype.kind == "f" else "iub"
            if part.shape != array.shape or part.dtype.kind not in kinds:
                raise batched_envs.IndexedFault(
                    None,
                    f"the observations of all environments have the shape {part.shape} "
                    f"and the type {part.dtype}. Expected: {array.shape} and "
                    f"{space.dtype.name}, those of the observation space",
                )
            if (bounds := spaces.category_bounds(space)) is not None:
                is_inside = (part >= bounds[0]) & (part <= bounds[1])
                self._check_all(is_inside, "observation", part, f"is not in {space!r}")
            if not batched_envs.fits_dtype(part, array.dtype):
                is_equal, problem = part.astype(array.dtype) == part, "does not fit into"
                text = f"{problem} {array.dtype.name}"
                self._check_all(is_equal, "observation", part, text)
            array[:] = part

    def _check_all(self, is_valid, name, values, problem):
        """Raises `IndexedFault` for the first environment with an invalid value."""
        if not is_valid.all():
            env_index = int(np.argwhere(~is_valid)[0][0])
            text = f"the {name} {values[env_index].tolist()} {problem}"
            raise batched_envs.IndexedFault(env_index, text)


def _envpool_config(env):
    """Returns the settings of an EnvPool, or `{}` for another `VectorEnv`.

    Raises:
        ValueError: If it is asynchronous or has several players.
    """
    settings = getattr(env.unwrapped, "config", None)
    if not isinstance(settings, dict) or not {"batch_size", "env_seed"} <= set(settings):
        return {}
    players, batch_size = settings.get("max_num_players", 1), settings["batch_size"]
    if batch_size not in (0, env.num_envs) or players > 1:
        raise ValueError(
            "An EnvPool must have one player in each environment, and return all "
            "environments in every step, or short episodes would be too frequent. "
            f"Received: num_envs={env.num_envs}, batch_size={batch_size}, "
            f"max_num_players={players}"
        )
    return settings
