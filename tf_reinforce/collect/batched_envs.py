"""Runs several environments side by side behind one interface.

Every value that an environment returns is checked immediately. The argument `env_index`
is the index of an environment in the batch. The collector decides which episode runs in
which environment.
"""

import abc
import warnings

import gymnasium as gym
import numpy as np

from tf_reinforce.collect import env_outputs
from tf_reinforce.collect import environments
from tf_reinforce.collect import host_loop
from tf_reinforce.data import spaces

DEFAULT_MAX_EPISODE_STEPS = 10_000  # if an environment states no limit of its own


class BatchedEnvs(environments.HostEnvironments):
    """Runs `num_envs` environments with equal spaces as one batch.

    The argument `out` of the methods is a list of arrays `[num_envs, …]`, one for each
    array of an observation. The methods write observations into `out`. If actions can be
    illegal, the last array of `out` contains the action masks, `[num_envs, M]` int8, with
    M entries for each environment.

    Attributes:
        num_envs: Int, the number of environments.
        max_episode_steps: Number, the time limit: the number of steps after which the
            collector truncates an episode.
        observation_space, action_space: The spaces of one environment.
        spec: `EnvSpec` of one environment, or `None`.
    """

    num_envs: int
    max_episode_steps: float
    observation_space: gym.Space
    action_space: gym.Space
    spec: gym.envs.registration.EnvSpec | None

    def configure(self, float_dtype, mask_reader=None):
        """Prepares reading observations and masks, and returns the observation spec.

        Args:
            float_dtype: The float type in which float observations are stored.
            mask_reader: `action_masks.MaskReader`, or `None` if all actions are legal.
        """
        self._reader = env_outputs.ObservationReader(self.observation_space, float_dtype)
        self._mask_reader = mask_reader
        return self._reader.observation_spec

    def _collect_episodes(self, actor, program, request):
        self.configure(actor.dtype, actor.mask_reader())
        return host_loop.collect(self, actor, program.for_batch(self.num_envs), request)

    def _write_mask(self, env_index, out, read, *outputs):
        """Writes the action mask that `read` returns into the last array of `out`."""
        try:
            out[-1][env_index] = read(*outputs)
        except KeyError as error:
            raise env_outputs.IndexedFault(
                env_index,
                f"there is no action mask in {error}. Expected: an action mask after "
                "every reset, and after every step that does not end the episode",
            ) from None
        except (ValueError, TypeError, IndexError) as error:
            raise env_outputs.IndexedFault(env_index, f"{error}") from None

    def reset(self, seed, out):
        """Resets a `VectorEnv` with `seed`; does nothing for other environments."""

    @abc.abstractmethod
    def can_start(self, env_index):
        """Returns whether an episode can start in the environment `env_index` now."""

    @abc.abstractmethod
    def start_episode(self, env_index, seed, out):
        """Starts an episode in one environment; writes its first observation to `out`."""

    @abc.abstractmethod
    def step(self, actions, out, rewards, active, time_limit_envs):
        """Makes one step in each active environment; returns a list of `EpisodeEnd`.

        The method `step` writes the observation that follows each action into `out`. If
        an episode ends, `out` receives the last observation of this episode, not the
        first observation of the next episode.

        Args:
            actions: List of `num_envs` actions. An action for an environment without a
                running episode is ignored.
            out: List of arrays `[num_envs, …]`, into which the observations are written.
            rewards: `[num_envs]` float64 array to write the rewards into.
            active: Indices of the environments with a running episode.
            time_limit_envs: The indices of environments whose episodes reach the time
                limit with this step. An episode at the time limit is truncated unless
                the step terminates the episode.
        """

    def close(self):
        """Closes the environments that `open_envs` made, and no others."""


class SyncEnvs(BatchedEnvs):
    """Steps a list of Gymnasium environments one after another.

    Args:
        envs: Nonempty list of `gymnasium.Env`.
        max_episode_steps: Int, the time limit in steps, or `None` for the time limit in
            the spec of the environments, else 10,000.
        owned: Bool, whether `close` closes the environments.
    """

    def __init__(self, envs, max_episode_steps, *, owned):
        _check_compatible(envs)
        first = envs[0]
        self._envs = envs
        spec_limit = first.spec is not None and first.spec.max_episode_steps
        self._warn_at_limit = not (max_episode_steps or spec_limit)
        self.max_episode_steps = (
            max_episode_steps or spec_limit or DEFAULT_MAX_EPISODE_STEPS
        )
        self.num_envs = len(envs)
        self.observation_space = spaces.check_observation_space(first.observation_space)
        self.action_space = first.action_space
        self.spec = first.spec
        self._owned = owned
        self._steps = [env.step for env in envs]
        self._infos = [{}] * self.num_envs

    def can_start(self, env_index):
        return True

    def start_episode(self, env_index, seed, out):
        try:
            outputs = self._envs[env_index].reset(seed=seed)
        except Exception as error:
            raise env_outputs.IndexedFault(
                env_index, f"reset raised {type(error).__name__}: {error}"
            ) from error
        if not (isinstance(outputs, tuple) and len(outputs) == 2):
            raise env_outputs.IndexedFault(
                env_index,
                f"reset returned {env_outputs.describe(outputs)}. Expected: a pair "
                "(observation, info), as in Gymnasium. Wrap an old Gym environment with "
                "shimmy",
            )
        self._reader(env_index, outputs[0], out)
        if self._mask_reader is not None:
            self._write_mask(env_index, out, self._mask_reader.read, *outputs)

    def step(self, actions, out, rewards, active, time_limit_envs):
        ends, steps, read, infos = [], self._steps, self._reader, self._infos
        mask_reader, first_out, shape = self._mask_reader, out[0], read.shape
        dtype, space_dtype = read.dtype, read.space_dtype
        array, float_types = np.ndarray, (float, np.float64)
        env_index = 0
        try:
            for env_index in active:
                observation, reward, terminated, truncated, infos[env_index] = steps[
                    env_index
                ](actions[env_index])
                if (
                    observation.__class__ is array
                    and (observation.dtype is dtype or observation.dtype is space_dtype)
                    and observation.shape == shape
                ):
                    first_out[env_index] = observation
                else:
                    read(env_index, observation, out)
                if reward.__class__ not in float_types:
                    reward = env_outputs.read_reward(env_index, reward)
                rewards[env_index] = reward
                ended = terminated is not False or truncated is not False
                if ended and env_outputs.has_ended(env_index, terminated, truncated):
                    ends.append(self._episode_end(env_index, terminated))
                elif mask_reader is not None and env_index not in time_limit_envs:
                    info = infos[env_index]
                    self._write_mask(env_index, out, mask_reader.read, observation, info)
        except env_outputs.IndexedFault:
            raise
        except Exception as error:
            raise env_outputs.IndexedFault(env_index, _describe_error(error)) from error
        if time_limit_envs:
            ended = {end.env_index for end in ends}
            self._truncate([i for i in time_limit_envs if i not in ended], ends)
        return ends

    def _truncate(self, env_indices, ends):
        ends += [self._episode_end(env_index, False) for env_index in env_indices]
        if env_indices and self._warn_at_limit:
            self._warn_at_limit = False
            warnings.warn(
                "An episode was truncated because the episode did not end within "
                f"{self.max_episode_steps:,} steps. Give the environment a time limit, "
                "or pass `max_episode_steps`.",
                stacklevel=2,
            )

    def _episode_end(self, env_index, terminated):
        info = self._infos[env_index]
        if not isinstance(info, dict):
            raise env_outputs.IndexedFault(
                env_index, f"the info is a {type(info).__name__}. Expected: a dict"
            )
        success = env_outputs.read_success(env_index, info.get("is_success"))
        return env_outputs.EpisodeEnd(env_index, bool(terminated), success)

    def close(self):
        if self._owned:
            for env in self._envs:
                env.close()


def _check_compatible(envs):
    """Raises an error if two environments are the same object or differ in spaces."""
    if len(set(map(id, envs))) < len(envs):
        raise ValueError(
            "The callable returned the same environment twice. Expected: a new "
            "environment from every call of the callable. To train on one environment "
            "object, pass the object instead of a callable: fit(env)."
        )
    for env in envs[1:]:
        for name in ("observation_space", "action_space"):
            expected, received = getattr(envs[0], name), getattr(env, name)
            if expected != received:
                raise ValueError(
                    f"All environments must have the same {name}. Received: "
                    f"{expected!r} and {received!r}"
                )


def _describe_error(error):
    if isinstance(error, ValueError) and "expected 5, got 4" in str(error):
        return (
            "step returned four values, as in the old Gym. Expected: (observation, "
            "reward, terminated, truncated, info). Wrap the environment with shimmy"
        )
    return f"step raised {type(error).__name__}: {error}"
