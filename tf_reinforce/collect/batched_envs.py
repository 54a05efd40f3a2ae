"""Runs several environments side by side behind one interface.

Every value that an environment returns is checked at once. An environment is addressed
by its slot, its index in the batch; the collector decides which episode runs in a slot.
"""

import abc
import warnings

import gymnasium as gym
import numpy as np

from tf_reinforce.collect import env_outputs
from tf_reinforce.data import spaces

DEFAULT_MAX_EPISODE_STEPS = 10_000  # if an environment states no limit of its own


class BatchedEnvs(abc.ABC):
    """`size` environments with the same spaces.

    `rows` are lists with one array `[size, …]` per array of an observation. If actions
    can be illegal, the masks `[size, M]` come last. The methods write into `rows`, and
    into nothing else.
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
            masks: `action_masks.MaskReader`, or `None` if every action is always legal.
        """
        self._read = env_outputs.ObservationReader(self.observation_space, float_dtype)
        self._masks = masks
        return self._read.observation_spec

    def _mask(self, slot, rows, read, *answer):
        """Writes what an answer says of the next actions."""
        try:
            rows[-1][slot] = read(*answer)
        except KeyError as error:
            raise env_outputs.EnvFault(
                slot,
                f"there is no mask in {error}. Expected: one after every reset and every "
                "step that does not end the episode",
            ) from None
        except (ValueError, TypeError, IndexError) as error:
            raise env_outputs.EnvFault(slot, f"{error}") from None

    def reset(self, seed, rows):  # noqa: B027
        """Begins a collection; `seed` is used if no episode has a seed of its own."""

    @abc.abstractmethod
    def ready(self, slot):
        """Whether an episode can begin in this slot now."""

    @abc.abstractmethod
    def begin(self, slot, seed, rows):
        """Begins an episode in a slot that is ready and writes its first observation."""

    @abc.abstractmethod
    def step(self, actions, rows, rewards, live, cut):
        """Steps the live slots; returns the `EpisodeEnd`s.

        `cut` are the slots whose time is up with this step, unless the task ends.
        Writes what followed each action into `rows` (at an ending: the true last
        observation) and the rewards into `rewards`, `[size]` float64.
        """

    def close(self):  # noqa: B027
        """Closes the environments that were made here."""


class SyncEnvs(BatchedEnvs):
    """A list of plain environments, each reset with a seed of its own."""

    def __init__(self, environments, limit, *, owned):
        _check_alike(environments)
        first = environments[0]
        self._environments = environments
        own_limit = first.spec is not None and first.spec.max_episode_steps
        self._stated = bool(limit or own_limit)
        self.limit = limit or own_limit or DEFAULT_MAX_EPISODE_STEPS
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
            raise env_outputs.EnvFault(
                slot, f"reset raised {type(error).__name__}: {error}"
            ) from error
        if not (isinstance(answer, tuple) and len(answer) == 2):
            raise env_outputs.EnvFault(
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
                    reward = env_outputs.read_reward(slot, reward)
                rewards[slot] = reward
                ended = terminated is not False or truncated is not False
                if ended and env_outputs.has_ended(slot, terminated, truncated):
                    endings.append(self._ending(slot, terminated))
                elif masked and slot not in cut:
                    self._mask(slot, rows, self._masks.one, observation, infos[slot])
        except env_outputs.EnvFault:
            raise
        except Exception as error:
            raise env_outputs.EnvFault(slot, _explain(error)) from error
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
            raise env_outputs.EnvFault(
                slot, f"the info is a {type(info).__name__}. Expected: a dict"
            )
        success = env_outputs.read_success(slot, info.get("is_success"))
        return env_outputs.EpisodeEnd(slot, bool(terminated), success)

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
