"""Checks the values that an environment returns: see `batched_envs`."""

from tf_reinforce.engine.collect.batched_envs import CLOSING as CLOSING
from tf_reinforce.engine.collect.batched_envs import IDLE as IDLE
from tf_reinforce.engine.collect.batched_envs import STARTING as STARTING
from tf_reinforce.engine.collect.batched_envs import STATE as STATE
from tf_reinforce.engine.collect.batched_envs import STEP as STEP
from tf_reinforce.engine.collect.batched_envs import WORDS as WORDS
from tf_reinforce.engine.collect.batched_envs import Progress as Progress
from tf_reinforce.engine.collect.batched_envs import describe_error as describe_error
from tf_reinforce.engine.collect.batched_envs import progress_size as progress_size

error_text = str
