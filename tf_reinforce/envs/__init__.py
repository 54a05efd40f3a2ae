"""Environments written in TensorFlow operations: Gymnasium's classics, and toys."""

import gymnasium as gym

from tf_reinforce.data.seeding import NoiseSpec
from tf_reinforce.envs.acrobot import Acrobot
from tf_reinforce.envs.base import TensorEnv
from tf_reinforce.envs.cartpole import CartPole
from tf_reinforce.envs.mountain_car import MountainCar
from tf_reinforce.envs.mountain_car import MountainCarContinuous
from tf_reinforce.envs.pendulum import Pendulum
from tf_reinforce.envs.toys import Bandit
from tf_reinforce.envs.toys import Catch
from tf_reinforce.envs.toys import Corridor

__all__ = [
    "Acrobot",
    "Bandit",
    "CartPole",
    "Catch",
    "Corridor",
    "MountainCar",
    "MountainCarContinuous",
    "NoiseSpec",
    "Pendulum",
    "TWINS",
    "TensorEnv",
    "make",
    "twin_of",
]

TWINS = {
    "Acrobot-v1": Acrobot,
    "CartPole-v1": CartPole,
    "MountainCar-v0": MountainCar,
    "MountainCarContinuous-v0": MountainCarContinuous,
    "Pendulum-v1": Pendulum,
}


def make(id, **kwargs):
    """The tensor environment that equals one of Gymnasium's.

    Args:
        id: Environment id, a key of `TWINS`.
        **kwargs: Keywords of every `TensorEnv`, for example `dtype`.

    Raises:
        ValueError: when there is none, with the ids that have one.

    Example:

    >>> make("CartPole-v1").max_episode_steps
    500
    """
    if id not in TWINS:
        raise ValueError(
            f"There is no tensor environment for {id!r}. Expected one of {list(TWINS)}. "
            "Train on the host instead (`agent.fit(id)`, `--engine host`), or write one: "
            "docs/your_tensor_env.md."
        )
    return TWINS[id](**kwargs)


def twin_of(id):
    """The twin of an environment as it is registered now, or `None` where none equals it.

    Args:
        id: Environment id.

    Example:

    >>> twin_of("CartPole-v1"), twin_of("CartPole-v0")
    (CartPole(), None)
    """
    if id not in TWINS:
        return None
    twin, spec = make(id), gym.spec(id)
    ours = twin.max_episode_steps, twin.reward_threshold, {}, ()
    theirs = (
        spec.max_episode_steps,
        spec.reward_threshold,
        spec.kwargs,
        spec.additional_wrappers,
    )
    original = str(spec.entry_point).startswith("gymnasium.envs.classic_control.")
    return twin if original and ours == theirs else None
