"""Collecting: the only rooms that talk to environments."""

from tf_reinforce.collect.host import EnvironmentFault
from tf_reinforce.collect.opening import open_fleet

__all__ = ["EnvironmentFault", "open_fleet"]
