"""Collecting: the only rooms that talk to environments."""

from tf_reinforce.collect.fleets import open_fleet
from tf_reinforce.collect.host import EnvironmentFault

__all__ = ["EnvironmentFault", "open_fleet"]
