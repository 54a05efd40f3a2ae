"""Environments in TensorFlow: Gymnasium's classics, and small tasks."""

from typing import Any

import gymnasium as gym

from tf_reinforce.data.seeding import NoiseSpec
from tf_reinforce.envs.base import TensorEnv
from tf_reinforce.envs.blackjack import Blackjack
from tf_reinforce.envs.classic_control import Acrobot
from tf_reinforce.envs.classic_control import CartPole
from tf_reinforce.envs.classic_control import MountainCar
from tf_reinforce.envs.classic_control import MountainCarContinuous
from tf_reinforce.envs.classic_control import Pendulum
from tf_reinforce.envs.tabular import CliffWalking
from tf_reinforce.envs.tabular import FrozenLake
from tf_reinforce.envs.tabular import Tabular
from tf_reinforce.envs.tabular import Taxi
from tf_reinforce.envs.toys import Bandit
from tf_reinforce.envs.toys import Catch
from tf_reinforce.envs.toys import Corridor
from tf_reinforce.settings import config

__all__ = [
    "Acrobot",
    "Bandit",
    "Blackjack",
    "CartPole",
    "Catch",
    "CliffWalking",
    "Corridor",
    "FrozenLake",
    "MountainCar",
    "MountainCarContinuous",
    "NoiseSpec",
    "Pendulum",
    "TWINS",
    "Tabular",
    "Taxi",
    "TensorEnv",
    "make",
    "twin_of",
]

__dir__ = __all__.copy  # what tab completion shows


TWINS: dict[str, type[TensorEnv]] = {
    id: globals()[name] for id, name in config.TWINS.items()
}

# The arguments with which Gymnasium registers a task, and the folders of its tasks.
_KWARGS = {
    "Blackjack-v1": {"sab": True, "natural": False},
    "FrozenLake-v1": {"map_name": "4x4"},
}
_FOLDERS = "gymnasium.envs.classic_control.", "gymnasium.envs.toy_text."


def make(id: str, **kwargs: Any) -> TensorEnv:
    """Returns the tensor environment that equals a Gymnasium environment step by step.

    Args:
        id: String, a Gymnasium id that is a key of `TWINS`.
        **kwargs: Arguments that every `TensorEnv` accepts, for example `dtype`.

    Raises:
        ValueError: If there is none for this id. The message lists all valid ids.

    Example:

    >>> make("CartPole-v1").max_episode_steps
    500
    """
    config.check_twin(id)
    return TWINS[id](**kwargs)


def twin_of(id: str) -> TensorEnv | None:
    """Returns the tensor environment that equals `gymnasium.make(id)`, or `None`.

    They are equal only if the id is registered with Gymnasium's own class, time limit,
    reward threshold and keyword arguments, and without additional wrappers.

    Args:
        id: String, the id of a registered environment, for example `"CartPole-v1"`.

    Example:

    >>> twin_of("CartPole-v1"), twin_of("CartPole-v0")
    (CartPole(), None)
    """
    if id not in TWINS:
        return None
    twin, spec = make(id), gym.spec(id)
    expected = twin.max_episode_steps, twin.reward_threshold, _KWARGS.get(id, {})
    registered = spec.max_episode_steps, spec.reward_threshold, spec.kwargs
    is_gymnasium = str(spec.entry_point).startswith(_FOLDERS)
    is_plain = is_gymnasium and not spec.additional_wrappers
    return twin if is_plain and registered == expected else None
