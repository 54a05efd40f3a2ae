"""Collects episodes from environments."""

from tf_reinforce.collect.make_envs import open_envs
from tf_reinforce.collect.results import EnvironmentFault

__all__ = ["EnvironmentFault", "open_envs"]


def __dir__() -> list[str]:
    return __all__
