"""Checks the outputs of the environments in a `VectorEnv` before Gymnasium converts them.

A `SyncVectorEnv` and an `AsyncVectorEnv` write rewards, flags and observations into
arrays. The conversion turns the reward "1.5" into 1.5, for example, and the flag 2 into
True.
"""

import contextlib
import copy

import gymnasium as gym
import numpy as np

from tf_reinforce.data import spaces
from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.engine.collect import env_outputs
from tf_reinforce.settings import config


class SubEnvs:
    """Checks each reset and step of the environments in a `VectorEnv`.

    In a `SyncVectorEnv`, the environments are wrapped. In an `AsyncVectorEnv`, the
    connections to the processes are wrapped. The processes have already written the
    observations into shared memory, so that these observations are not checked. In a
    `VectorEnv` of another class, nothing is wrapped or checked.

    Args:
        env: `gymnasium.vector.VectorEnv`.
    """

    def __init__(self, env):
        base = env.unwrapped
        self._is_async = isinstance(base, gym.vector.AsyncVectorEnv)
        if self._is_async:
            self._parts, self._wrapper = base.parent_pipes, _CheckedPipe
        elif isinstance(base, gym.vector.SyncVectorEnv):
            self._parts, self._wrapper = base.envs, _CheckedEnv
        else:
            self._parts, self._wrapper = [], None
        self.settings = config.EnvSettings()  # what `VectorEnvAdapter.set` receives
        self._space = base.single_observation_space
        self._has_observations = not (self._is_async and base.shared_memory)

    @contextlib.contextmanager
    def checked(self, float_dtype):
        """Wraps the environments, and removes the wrappers after the `with` block.

        Args:
            float_dtype: The float type in which float observations are stored.
        """
        reader, parts = self._reader(float_dtype), self._parts
        for i, part in enumerate(parts):
            if part is not None:  # the connection to a process that has ended
                parts[i] = self._wrapper(part, i, reader, self.settings)
        try:
            yield
        finally:
            for i, part in enumerate(parts):
                if isinstance(part, self._wrapper):
                    parts[i] = part.wrapped

    def _reader(self, float_dtype):
        """Returns an `ObservationReader`, or `None` if observations are not checked."""
        if self._has_observations:
            # A wrapper of the `VectorEnv` may replace observations of other spaces.
            with contextlib.suppress(ValueError):
                spaces.check_observation_space(self._space)
                return env_outputs.ObservationReader(self._space, float_dtype)
        return None

    def raise_fault(self):
        """Raises the first fault that an `AsyncVectorEnv` returned in the last call."""
        for part in self._parts if self._is_async else ():
            if isinstance(part, _CheckedPipe):
                part.raise_fault()

    def failed_env(self):
        """Returns the index of the environment whose process failed, or `None`."""
        return next((i for i, part in enumerate(self._parts) if part is None), None)


class _CheckedEnv(gym.Wrapper):
    """Raises `IndexedFault` if a reset or step of an environment is invalid."""

    def __init__(self, env, env_index, reader, settings):
        super().__init__(env)
        self.wrapped = env
        self._settings = settings
        self._env_index = env_index
        self._reader = reader

    def reset(self, **kwargs):
        # An autoreset receives no options, and other resets share their options.
        kwargs |= batched_envs.reset_arguments(self._settings)
        try:
            outputs = self.env.reset(**kwargs)
        except Exception as error:
            raise env_outputs.reset_error(self._env_index, error) from error
        _check_reset(self._env_index, outputs, self._reader)
        return outputs

    def step(self, action):
        try:
            observation, reward, terminated, truncated, info = self.env.step(action)
        except Exception as error:
            raise env_outputs.step_error(self._env_index, error) from error
        outputs = observation, reward, terminated, truncated, info
        _check_step(self._env_index, outputs, self._reader)
        return outputs


class _CheckedPipe:
    """Checks the results that the process of one environment sends.

    A raised exception would leave the results of other processes unread, and
    `AsyncVectorEnv.close` would wait for them forever. A `_CheckedPipe` therefore stores
    the fault, and replaces the invalid result.
    """

    def __init__(self, pipe, env_index, reader, _):
        self.wrapped = pipe
        self._env_index = env_index
        self._reader = reader
        self._fault = None

    def __getattr__(self, name):
        return getattr(self.wrapped, name)

    def recv(self):
        outputs, succeeded = self.wrapped.recv()
        size = len(outputs) if isinstance(outputs, tuple) else 0
        if not succeeded or size not in (2, 5):
            return outputs, succeeded
        check = _check_reset if size == 2 else _check_step
        try:
            check(self._env_index, outputs, self._reader)
            final_info = outputs[-1].get("final_info", {})
            env_outputs.check_info(self._env_index, final_info)
        except env_outputs.IndexedFault as fault:
            self._fault = fault
            # Without a reader, the processes share the arrays of the observations.
            valid = self._reader and copy.deepcopy(self._reader.space).sample()
            outputs = (valid, {}) if size == 2 else (valid, 0.0, False, False, {})
        return outputs, succeeded

    def raise_fault(self):
        """Raises the stored fault, if there is one, and removes the fault."""
        fault, self._fault = self._fault, None
        if fault is not None:
            raise fault


def _check_reset(env_index, outputs, reader):
    env_outputs.check_reset(env_index, outputs)
    if reader is not None:
        reader.check(env_index, outputs[0])


def _check_step(env_index, outputs, reader):
    observation, reward, terminated, truncated, info = outputs
    # The conditions are faster than the functions, which check the values again.
    if reader is not None and not (
        observation.__class__ is np.ndarray
        and observation.dtype in reader.dtypes
        and observation.shape == reader.shape
    ):
        reader.check(env_index, observation)
    if reward.__class__ is not float:
        env_outputs.read_reward(env_index, reward)
    if terminated.__class__ is not bool or truncated.__class__ is not bool:
        env_outputs.has_ended(env_index, terminated, truncated)
    if info.__class__ is not dict:
        env_outputs.check_info(env_index, info)
