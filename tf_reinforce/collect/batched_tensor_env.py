"""Collects episodes of a tensor environment in one XLA program."""

import tensorflow as tf

from tf_reinforce.collect import acting_program
from tf_reinforce.collect import compiled_rollout
from tf_reinforce.collect import environments
from tf_reinforce.data import episode_statistics
from tf_reinforce.data import seeding
from tf_reinforce.envs import checks


class BatchedTensorEnv(environments.Environments):
    """A tensor environment with a time limit; all episodes run side by side.

    Args:
        env: `envs.TensorEnv`.
        limit: Int, a time limit in steps, or `None` for the environment's own.

    Raises:
        ValueError: if the tensors of the environment do not fit its spaces.
    """

    in_graph = True

    def __init__(self, env, limit=None):
        checks.check(env)
        self.env = env
        self.limit = limit or env.max_episode_steps
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def program_key(self, request):
        # The program keeps its environment alive, so that no other has the same id.
        key = "rollout", id(self.env), checks.constants(self.env), self.limit
        return (
            *key,
            request.episodes,
            request.deterministic,
            request.group_size,
            request.recorded,
        )

    def make_program(self, actor, request):
        acting_program.finite_weights(actor.variables)
        if request.episodes is None:
            raise ValueError(
                "A tensor environment plays a fixed number of episodes at once. Give "
                "`episodes_per_epoch`, or `episodes` to `collect`, instead of a number "
                "of steps."
            )
        return compiled_rollout.Rollout(
            self,
            actor,
            request.episodes,
            deterministic=request.deterministic,
            group_size=request.group_size,
            recorded=request.recorded,
        )

    def collect(self, actor, program, request):
        acting_program.finite_weights(actor.variables)
        return compiled_rollout.collect(program, request.key)

    def evaluate(self, actor, program, request):
        acting_program.finite_weights(actor.variables)
        with compiled_rollout.explain_compile_errors():
            result = program(seeding.episode_keys(seeding.rollout_keys(*request.key)))
        if tf.reduce_all(result.valid):
            lengths = result.episodes.lengths
            return episode_statistics.metrics(result.returns.numpy(), lengths.numpy())
        # The error names the step, for which the episodes have to be recorded.
        recorded = self.make_program(actor, request._replace(recorded=True))
        collected = compiled_rollout.collect(recorded, request.key)
        return episode_statistics.batch_metrics(collected.episodes, collected.success)

    def close(self):
        """Does nothing: a tensor environment holds no resources."""
