"""Collects episodes of a tensor environment in one XLA program."""

import tensorflow as tf

from tf_reinforce.data import episode_statistics
from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import environments
from tf_reinforce.engine.collect import xla_rollout
from tf_reinforce.envs import checks


class BatchedTensorEnv(environments.Environments):
    """Runs all episodes of a collection as one batch, in a tensor environment.

    A tensor environment is an environment that is written in TensorFlow operations.

    Args:
        env: `envs.TensorEnv` that runs the episodes.
        max_episode_steps: Int, the time limit in steps, or `None` for the time limit of
            the environment.

    Raises:
        ValueError: If a function of `env` returns a tensor of a wrong shape or type.
    """

    in_graph = True

    def __init__(self, env, max_episode_steps=None):
        checks.check(env)
        self.env = env
        self.max_episode_steps = max_episode_steps or env.max_episode_steps
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def program_key(self, request):
        # Environments with equal constants share a program, because TensorFlow never
        # frees the result of an XLA compilation.
        key = "rollout", checks.constants(self.env), self.max_episode_steps
        return (
            *key,
            request.episodes,
            request.deterministic,
            request.group_size,
            request.recorded,
        )

    def make_program(self, actor, request):
        if request.episodes is None:
            raise ValueError(
                "A tensor environment runs a fixed number of episodes at once. Pass "
                "`episodes_per_epoch` to `fit`, or `episodes` to `collect`, instead "
                "of a number of steps."
            )
        return xla_rollout.Rollout(
            self,
            actor,
            request.episodes,
            deterministic=request.deterministic,
            group_size=request.group_size,
            recorded=request.recorded,
        )

    def collect(self, actor, program, request):
        return xla_rollout.collect(program, request.key, request.weights.values)

    def evaluate(self, actor, program, request):
        keys = seeding.episode_keys(seeding.rollout_keys(*request.key))
        with xla_rollout.explain_compile_errors():
            result = program(keys, request.weights.values)
        if tf.reduce_all(result.valid):
            lengths = result.episodes.lengths
            return episode_statistics.metrics(
                result.episode_returns.numpy(), lengths.numpy()
            )
        # The error message contains the step, which is known only if the episodes are
        # recorded.
        recorded = self.make_program(actor, request._replace(recorded=True))
        collected = self.collect(actor, recorded, request)
        return episode_statistics.batch_metrics(collected.episodes, collected.success)

    def close(self):
        """Does nothing, because a tensor environment has no resources to close."""
