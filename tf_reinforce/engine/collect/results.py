"""Stores the steps of a collection: see `host_loop`."""

from tf_reinforce.engine.collect.host_loop import BLOCK_ROWS as BLOCK_ROWS
from tf_reinforce.engine.collect.host_loop import EnvironmentFault as EnvironmentFault
from tf_reinforce.engine.collect.host_loop import EpisodeArrays as EpisodeArrays
from tf_reinforce.engine.collect.host_loop import Faults as Faults
from tf_reinforce.engine.collect.host_loop import OutputsNotFinite as OutputsNotFinite
from tf_reinforce.engine.collect.host_loop import zeros as zeros
