"""Collects in a Gymnasium `VectorEnv`."""

import copy

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.settings import config

_MODES = gym.vector.AutoresetMode


class VectorEnvAdapter(batched_envs.BatchedEnvs):
    """Adapts a `VectorEnv`, which resets and seeds its environments itself.

    Only steps are recorded, and resets are not, whichever autoreset mode the `VectorEnv`
    has. In the mode NEXT_STEP, the call after the end of an episode is a reset, which
    ignores the action and returns the first observation of the next episode.

    Args:
        env: `gymnasium.vector.VectorEnv` to adapt.
        max_episode_steps: Int, after how many steps an episode that has not ended raises
            an error, by default the limit in the spec of `env`, else 10,000.
    """

    is_vector_env = True

    def __init__(self, env, max_episode_steps):
        # EnvPool has a spec of another kind, and only its own seed.
        self._is_gymnasium = env.spec is None or hasattr(env.spec, "entry_point")
        spec = env.spec if self._is_gymnasium else None
        env_spaces = env.single_observation_space, env.single_action_space
        super().__init__(env.num_envs, *env_spaces, spec)
        self._env = env
        self._mode = env.metadata.get("autoreset_mode")
        if not isinstance(self._mode, _MODES):
            raise ValueError(
                "A VectorEnv must state how it resets in "
                "`metadata['autoreset_mode']`, a gymnasium.vector.AutoresetMode. "
                f"Received: {self._mode!r}"
            )
        self._originals = {}  # the attributes that `set` has replaced
        self._finals = []  # indices, final observations and their copies, to compare
        limit = max_episode_steps or (spec and spec.max_episode_steps)
        self.max_episode_steps = limit or config.DEFAULT_MAX_EPISODE_STEPS

    def configure(self, float_dtype, mask_reader=None):
        super().configure(float_dtype, mask_reader)
        arguments = self.observation_space, float_dtype, (self.num_envs,)
        self._read_batch = batched_envs.ObservationReader(*arguments)

    def set(self, settings):
        if settings.reset_options is not None and self._mode is not _MODES.DISABLED:
            raise ValueError(
                "`reset_options` needs an environment id, EnvSpec or callable, or a "
                "VectorEnv with autoreset_mode=AutoresetMode.DISABLED. Received: "
                f"{self._env} in the mode {self._mode}"
            )
        self._settings = settings
        values = {
            name: [copy.deepcopy(value) for _ in range(self.num_envs)]
            for name, value in (settings.env_attrs or {}).items()
        }
        env, originals = self._env.unwrapped, self._originals
        batched_envs.set_attributes(env, originals, values, "attr")

    def reset(self, seed, out):
        arguments = {"seed": seed} if self._is_gymnasium else {}
        observations, infos = self._call("reset", **arguments, **self._reset_arguments())
        self._read_batch(None, observations, out)
        self._write_masks(observations, infos, out, range(self.num_envs))
        self._can_start = np.ones(self.num_envs, bool)
        # True for an environment whose next step is a reset.
        self._resetting = np.zeros(self.num_envs, bool)
        self._first_observations = {}  # of the next episodes, by environment index

    def can_start(self, env_index):
        return self._can_start[env_index]

    def start_episode(self, env_index, seed, out):
        first_observation = self._first_observations.pop(env_index, ())
        for array, part in zip(out, first_observation, strict=False):
            array[env_index] = part

    def step(self, actions, out, rewards, active, time_limit_envs):
        stacked = keras.tree.map_structure(lambda *parts: np.stack(parts), *actions)
        outputs = self._call("step", stacked)
        observations, env_rewards, terminations, truncations, infos = outputs
        self._read_batch(None, observations, out)
        rewards[:] = self._column("reward", env_rewards, "fiub")
        terminations = self._flags("termination", terminations)
        truncations = self._flags("truncation", truncations)
        was_reset, self._first_observations = self._resetting, {}
        has_ended = (terminations | truncations) & ~was_reset
        ended = np.flatnonzero(has_ended).tolist()
        keys = self._settings.info_keys
        ends = [
            batched_envs.episode_end(i, terminations[i], _last_info(infos, i), keys)
            for i in ended
        ]
        # In the mode SAME_STEP, these are masks of the next episodes.
        needs_mask = ~has_ended | (self._mode is _MODES.SAME_STEP)
        self._write_masks(observations, infos, out, np.flatnonzero(needs_mask))
        if self._mode is _MODES.NEXT_STEP:
            self._resetting, self._can_start = has_ended, was_reset
        else:
            self._can_start = has_ended
            self._reset_ended(ended, observations, infos, out)
        for env_index in time_limit_envs:
            if env_index not in ended:
                raise batched_envs.IndexedFault(
                    env_index,
                    f"the episode did not end within {self.max_episode_steps:,} steps. "
                    "Wrap the environments with gymnasium.wrappers.TimeLimit, or pass a "
                    "larger `max_episode_steps`",
                )
        return ends

    def _reset_ended(self, env_indices, observations, infos, out):
        """Writes the last observations of ended episodes into `out`.

        The first observations of the next episodes are kept until these episodes start.
        In the mode DISABLED, the environments are reset by this method.
        """
        if not env_indices:
            return
        if self._mode is _MODES.DISABLED:
            ended = np.isin(np.arange(self.num_envs), env_indices)
            options = self._reset_arguments().get("options", {})
            options = {**options, "reset_mask": ended}
            observations, infos = self._call("reset", options=options)
            self._write_masks(observations, infos, out, env_indices)
        parts = self._reader.flatten(None, observations)
        for env_index in env_indices:
            first_observation = [np.array(part[env_index]) for part in parts]
            self._first_observations[env_index] = first_observation
            if self._mode is _MODES.SAME_STEP:
                self._write_final(env_index, infos, out)

    def _write_final(self, env_index, infos, out):
        if "final_obs" not in infos:
            text = "an episode ended without infos['final_obs']"
            raise batched_envs.IndexedFault(env_index, text)
        final = infos["final_obs"][env_index]
        self._reader(env_index, final, out)
        # A `SyncVectorEnv` passes on the arrays of the environments themselves.
        if isinstance(self._env.unwrapped, gym.vector.SyncVectorEnv):
            for part in self._reader.flatten(env_index, final):
                self._finals.append((env_index, part, np.copy(part)))

    def _write_masks(self, observations, infos, out, env_indices):
        for env_index in env_indices if self._mask_reader is not None else ():
            outputs = env_index, observations, infos
            self._write_mask(env_index, out, self._mask_reader.read_env, *outputs)

    def _call(self, name, *args, **kwargs):
        """Returns what a method of the `VectorEnv` returns; explains its exceptions.

        Raises `IndexedFault` if it has overwritten the last observation of an episode.
        """
        try:
            outputs = getattr(self._env, name)(*args, **kwargs)
        except Exception as error:
            text = f"{name} raised {type(error).__name__}: {error}"
            raise batched_envs.IndexedFault(None, text, raised=True) from error
        finals, self._finals = self._finals, []
        for env_index, part, first_copy in finals:
            if not np.array_equal(part, first_copy):
                raise batched_envs.IndexedFault(
                    env_index,
                    "the environment returns the same array for every observation, so "
                    "that a reset overwrote the last observation of an episode. Return "
                    "`observation.copy()`, or use autoreset_mode=AutoresetMode.NEXT_STEP",
                )
        return outputs

    def _flags(self, name, flags):
        flags = self._column(name, flags, "iub")
        if not ((flags == 0) | (flags == 1)).all():
            text = f"the {name}s must be bools. Received: {flags}"
            raise batched_envs.IndexedFault(None, text)
        return flags.astype(bool)

    def _column(self, name, values, kinds):
        """Returns `values` as an array with one number per environment."""
        is_masked, values = np.ma.is_masked(values), np.asarray(values)
        is_column = values.shape == (self.num_envs,) and values.dtype.kind in kinds
        if is_masked or not is_column:
            raise batched_envs.IndexedFault(
                None,
                f"the {name}s are of shape {values.shape} and type {values.dtype}"
                f"{', with masked entries' * is_masked}. "
                f"Expected: numbers or bools of shape {(self.num_envs,)}",
            )
        return values


def _last_info(infos, env_index):
    """Returns the info with which an environment's episode has ended."""
    infos = infos.get("final_info", infos)
    # For each key, `_key` states which environments reported it in this step.
    masks = {f"_{key}" for key in infos} & infos.keys()
    return {
        key: values[env_index] if isinstance(values, np.ndarray) else values
        for key, values in infos.items()
        if key not in masks
        if f"_{key}" not in masks or infos[f"_{key}"][env_index]
    }
