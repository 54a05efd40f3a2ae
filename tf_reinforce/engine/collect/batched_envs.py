"""Makes environments, and runs several of them side by side behind one interface.

Every value that an environment returns is checked immediately. The argument `env_index`
is the index of an environment in the batch. The collector decides which episode runs in
which environment. Worker processes import this module, and not TensorFlow.
"""

import abc
import contextlib
import copy
import re
from collections.abc import Mapping

import gymnasium as gym
import numpy as np

from tf_reinforce.data import action_masks
from tf_reinforce.data import spaces
from tf_reinforce.engine.collect import env_outputs
from tf_reinforce.settings import config
from tf_reinforce.support import validation


def check_arguments(env_kwargs):
    """Raises `TypeError` unless `env_kwargs` is `None` or a dict with string keys."""
    is_dict = isinstance(env_kwargs, Mapping)
    has_names = is_dict and all(isinstance(name, str) for name in env_kwargs)
    if env_kwargs is not None and not has_names:
        raise TypeError(
            "`env_kwargs` must be a dict of keyword arguments for the constructor of the "
            f"environment. Received: env_kwargs={env_kwargs!r}"
        )


@contextlib.contextmanager
def explain_errors(env, env_kwargs):
    """Raises `ValueError` if the constructor in a `with` block needs other arguments."""
    try:
        yield
    except TypeError as error:
        mistakes = "unexpected keyword|multiple values for|missing \\d+ required"
        if not re.search(mistakes, str(error)):
            raise
        raise ValueError(
            "`env_kwargs`, `--env-arg NAME=VALUE` on the command line, must be arguments "
            f"of the environment's constructor. Received: env_kwargs={env_kwargs!r} for "
            f"{env!r} ({error})"
        ) from error


class EnvFactory:
    """Makes environments from an `EnvSpec`, or from a callable and its arguments.

    Args:
        env: `EnvSpec`, or a callable that returns an environment.
        kwargs: Dict of keyword arguments for the callable; empty for an `EnvSpec`.
        max_episode_steps: Int or `None`, an argument of `SyncEnvs`.
        faults: Dict with the options `on_bad_env` and `on_env_error`.
    """

    def __init__(self, env, kwargs, max_episode_steps, faults):
        self.env = env
        self.kwargs = kwargs
        self.max_episode_steps = max_episode_steps
        self.faults = faults

    def make(self):
        """Returns one environment."""
        if isinstance(self.env, gym.envs.registration.EnvSpec):
            return gym.make(self.env)
        with explain_errors(self.env, self.kwargs):
            return self.env(**self.kwargs)

    def make_batch(self, count, first=()):
        """Returns `SyncEnvs` of the environments `first` and of new ones, `count` in all.

        If an environment cannot be made, `make_batch` closes all environments.
        """
        envs = [*first]
        try:
            while len(envs) < count:
                envs.append(self.make())
            for env in envs:
                if not isinstance(env, gym.Env):
                    raise TypeError(
                        "The callable must return a gymnasium.Env. Received: "
                        f"{env!r}. Wrap an old Gym environment with shimmy."
                    )
            options = {"owned": True, "make": self.make, **self.faults}
            return SyncEnvs(envs, self.max_episode_steps, **options)
        except BaseException:
            for env in envs:
                if isinstance(env, gym.Env):
                    env.close()
            raise


class BatchedEnvs(abc.ABC):
    """Runs `num_envs` environments with equal spaces as one batch.

    The argument `out` of the methods is a list of arrays `[num_envs, …]`, one for each
    array of an observation. The methods write observations into `out`. If actions can be
    illegal, the last array of `out` contains the action masks, `[num_envs, M]` int8.

    Attributes:
        num_envs: Int, the number of environments.
        max_episode_steps: Number, the time limit: the number of steps after which the
            collector truncates an episode.
        observation_space, action_space: The spaces of one environment.
        spec: `EnvSpec` of one environment, or `None`.
        first_index: Int, the index of the first environment among those of all workers.
        progress: `env_outputs.Progress`, where calls of environments are recorded.
        is_vector_env: Bool, whether the environments are a `VectorEnv`, which seeds its
            episodes itself.
        fault_keys: Tuple of the log keys that count dropped episodes and restarts.
    """

    first_index = 0
    is_vector_env = False
    fault_keys: tuple[str, ...] = ()
    num_envs: int
    max_episode_steps: float
    observation_space: gym.Space
    action_space: gym.Space
    spec: gym.envs.registration.EnvSpec | None

    def configure(self, float_dtype, mask_reader=None):
        """Prepares reading observations and masks.

        Args:
            float_dtype: The float type in which float observations are stored.
            mask_reader: `action_masks.MaskReader`, or `None` if all actions are legal.
        """
        self._reader = env_outputs.ObservationReader(self.observation_space, float_dtype)
        self._mask_reader = mask_reader

    def _write_mask(self, env_index, out, read, *outputs):
        """Writes the action mask that `read` returns into the last array of `out`."""
        try:
            out[-1][env_index] = read(*outputs)
        except KeyError as error:
            raise env_outputs.IndexedFault(
                env_index,
                f"there is no action mask in {error}. Expected: an action mask after "
                "every reset, and after every step that does not end the episode. "
                f"Received: info with the keys {', '.join(map(repr, outputs[-1]))}",
            ) from None
        except (ValueError, TypeError, IndexError) as error:
            raise env_outputs.IndexedFault(env_index, f"{error}") from None

    @abc.abstractmethod
    def set(self, settings):
        """Sets attributes of all environments, and the options of further resets.

        An attribute that `settings` no longer names gets back its original value, so that
        episodes depend on the settings of their own collection only.

        Args:
            settings: `config.EnvSettings` without functions.

        Raises:
            ValueError: If an environment has no attribute of a name in `env_attrs`.
        """

    def reset(self, seed, out):
        """Resets a `VectorEnv` with `seed`; does nothing for other environments."""
        return None

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

    def recover(self, fault):
        """Prepares an environment for another episode after a fault, or raises the fault.

        Args:
            fault: `env_outputs.IndexedFault`. By default, `recover` raises every fault.
        """
        raise fault

    def close_all(self):
        """Closes the environments that `open_envs` made, and no others.

        Returns:
            List of texts, one for each environment that raised an exception.
        """
        return []


class SyncEnvs(BatchedEnvs):
    """Steps a list of Gymnasium environments one after another.

    Args:
        envs: Nonempty list of `gymnasium.Env`.
        max_episode_steps: Int, the time limit in steps, or `None` for the time limit in
            the spec of the environments, else 10,000.
        owned: Bool, whether `close_all` closes the environments.
        make: Function that makes an environment, for `on_env_error="restart"`.
        on_bad_env, on_env_error: Fields of `config.FitOptions`.
    """

    def __init__(
        self,
        envs,
        max_episode_steps,
        *,
        owned,
        make=None,
        on_bad_env="raise",
        on_env_error="raise",
    ):
        _check_compatible(envs)
        first = envs[0]
        self._envs = envs
        spec_limit = first.spec is not None and first.spec.max_episode_steps
        self._warn_at_limit = not (max_episode_steps or spec_limit)
        self.max_episode_steps = (
            max_episode_steps or spec_limit or config.DEFAULT_MAX_EPISODE_STEPS
        )
        self.num_envs = len(envs)
        self.observation_space = spaces.check_observation_space(first.observation_space)
        self.action_space = first.action_space
        self.spec = first.spec
        self._owned = owned
        self._make = make
        self._drops_bad, self._restarts = on_bad_env != "raise", on_env_error != "raise"
        keys = "dropped_episodes", "env_restarts", "worker_restarts"
        self.fault_keys = keys if self._restarts else keys[: self._drops_bad]
        self._steps = [env.step for env in envs]
        self._infos = [{}] * self.num_envs
        self._settings = config.EnvSettings()
        self._originals = [{} for _ in envs]  # the attributes that `set` has replaced
        self.progress = env_outputs.Progress(self.num_envs)

    def set(self, settings):
        self._settings = settings
        for env, originals in zip(self._envs, self._originals, strict=True):
            _set_attributes(env, originals, settings.env_attrs or {})

    def can_start(self, env_index):
        return True

    def start_episode(self, env_index, seed, out):
        try:
            options = reset_arguments(self._settings)
            outputs = self._envs[env_index].reset(seed=seed, **options)
        except (Exception, SystemExit) as error:
            raise env_outputs.reset_error(env_index, error) from error
        env_outputs.check_reset(env_index, outputs)
        self._infos[env_index] = outputs[1]
        self._reader(env_index, outputs[0], out)
        if self._mask_reader is not None:
            self._write_mask(env_index, out, self._mask_reader.read, *outputs)
        if self._drops_bad and (faults := _not_finite([env_index], out, [])):
            raise faults[env_index]

    def step(self, actions, out, rewards, active, time_limit_envs):
        ends, steps, read, infos = [], self._steps, self._reader, self._infos
        mask_reader, first_out = self._mask_reader, out[0]
        shape, (dtype, other) = read.shape, read.dtypes
        array, float_types = np.ndarray, (float, np.float64)
        words = self.progress.words
        env_index, remaining = 0, iter(active)
        while True:
            try:
                for env_index in remaining:
                    words[env_outputs.ENV] = env_index
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
                        reward = env_outputs.read_reward(env_index, reward)
                    rewards[env_index] = reward
                    if info.__class__ is not dict:
                        env_outputs.check_info(env_index, info)
                    infos[env_index] = info
                    ended = terminated is not False or truncated is not False
                    if ended and env_outputs.has_ended(env_index, terminated, truncated):
                        ends.append(self._episode_end(env_index, terminated))
                    elif mask_reader is not None and env_index not in time_limit_envs:
                        outputs = observation, info
                        self._write_mask(env_index, out, mask_reader.read, *outputs)
                break
            except (Exception, SystemExit) as error:
                fault = self._step_fault(env_index, error)
                self.recover(fault)
                ends.append(env_outputs.EpisodeEnd(env_index, False, None, fault))
        if self._drops_bad:
            _drop_not_finite(active, out, rewards, ends)
        if time_limit_envs:
            ended = {end.env_index for end in ends}
            self._truncate([i for i in time_limit_envs if i not in ended], ends)
        return ends

    def _step_fault(self, env_index, error):
        """Returns the `IndexedFault` for an exception; names an unused action mask."""
        fault = env_outputs.step_error(env_index, error)
        path = action_masks.find(self.observation_space, self._infos[env_index])
        if fault.raised and self._mask_reader is None and path is not None:
            fault.args = (
                f"{fault}. The environment returns a mask of legal actions, which the "
                f"agent does not use. Pass action_mask={path!r} to the agent; on the "
                f"command line, --set action_mask={path}",
            )
        return fault

    def recover(self, fault):
        if not (self._restarts if fault.raised else self._drops_bad):
            raise fault
        if fault.raised:
            self._restart(fault.env_index)

    def _restart(self, env_index):
        """Closes an environment that raised an exception, and makes a new one."""
        with contextlib.suppress(Exception):
            self._envs[env_index].close()
        try:
            env = self._make()
            _check_compatible([self._envs[env_index], env])
            self._originals[env_index] = originals = {}
            _set_attributes(env, originals, self._settings.env_attrs or {})
        except Exception as error:
            text = f"the environment could not be made again: {error}"
            raise env_outputs.IndexedFault(env_index, text) from error
        self._envs[env_index], self._steps[env_index] = env, env.step

    def _truncate(self, env_indices, ends):
        ends += [self._episode_end(env_index, False) for env_index in env_indices]
        if env_indices and self._warn_at_limit:
            self._warn_at_limit = False
            validation.warn(
                "An episode was truncated because the episode did not end within "
                f"{self.max_episode_steps:,} steps. Give the environment a time limit, "
                "or pass `max_episode_steps`.",
            )

    def _episode_end(self, env_index, terminated):
        success = self._infos[env_index].get("is_success")
        success = env_outputs.read_success(env_index, success)
        return env_outputs.EpisodeEnd(env_index, bool(terminated), success)

    def close_all(self):
        errors = []
        for i, env in enumerate(self._envs if self._owned else ()):
            self.progress.words[env_outputs.ENV] = i
            try:
                env.close()
            except (Exception, SystemExit) as error:
                text = env_outputs.describe_error(error)
                place = f"environment {self.first_index + i}"
                errors.append(f"{place}: close raised {text}")
        return errors


def reset_arguments(settings):
    """Returns the keyword arguments of one reset, which may change its `options`."""
    options = settings.reset_options
    return {} if options is None else {"options": copy.deepcopy(options)}


def _set_attributes(env, originals, attributes):
    """Sets attributes of an environment, or of the wrappers that have them.

    Args:
        env: `gymnasium.Env`.
        originals: Dict to which the original values are added, and from which attributes
            are restored that are not in `attributes`.
        attributes: Dict from names to values.
    """
    for name, value in {**originals, **attributes}.items():
        try:
            originals.setdefault(name, env.get_wrapper_attr(name))
            # An environment that changes the value must not change it for the others.
            env.set_wrapper_attr(name, copy.deepcopy(value))
        except Exception as error:
            raise attribute_error(env, name, error) from error


def attribute_error(env, name, error):
    """Returns the `ValueError` for an attribute that cannot be set."""
    return ValueError(
        f"`env_attrs` cannot set the attribute {name!r} of {env} "
        f"({type(error).__name__}: {error}). Expected: attributes that the environment "
        "or one of its wrappers has."
    )


def _check_compatible(envs):
    """Raises an error if two environments are the same object or differ in spaces."""
    if len(set(map(id, envs))) < len(envs):
        raise ValueError(
            "The callable returned the same environment twice. Expected: a new one from "
            "every call. To train on one environment, pass the object: fit(env)."
        )
    for env in envs[1:]:
        for name in ("observation_space", "action_space"):
            expected, received = getattr(envs[0], name), getattr(env, name)
            if expected != received:
                raise ValueError(
                    f"All environments must have the same {name}. Received: "
                    f"{expected!r} and {received!r}"
                )


def _not_finite(env_indices, observations, rewards):
    """Returns a dict from environments with numbers that are not finite to their faults.

    Args:
        env_indices: Indices of the environments to check.
        observations: List of arrays `[num_envs, …]`.
        rewards: `[num_envs]` array, or an empty list after a reset.
    """
    faults = {}
    columns = [("observation", x) for x in observations if x.dtype.kind == "f"]
    for name, values in [*columns, *([("reward", rewards)] if len(rewards) else [])]:
        if not np.isfinite(values).all():
            for i in env_indices:
                if not np.isfinite(values[i]).all():
                    text = f"the {name} is not finite: {values[i]}"
                    faults[i] = env_outputs.IndexedFault(i, text)
    return faults


def _drop_not_finite(active, observations, rewards, ends):
    """Adds an end with a fault for each environment whose numbers are not finite.

    An end with a fault replaces another end of the same episode.
    """
    faulty = {end.env_index for end in ends if end.fault}
    faults = _not_finite([i for i in active if i not in faulty], observations, rewards)
    ends += [env_outputs.EpisodeEnd(i, False, None, x) for i, x in faults.items()]
