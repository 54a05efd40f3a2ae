"""Pairs a tensor environment with a time limit."""

from tf_reinforce.envs import checks


class TensorEnvs:
    """What the compiled engine plays in.

    Args:
        env: `envs.TensorEnv`.
        limit: Int, a time limit in steps, or `None` for the environment's own.

    Raises:
        ValueError: when the tensors of the environment are not what its spaces say.
    """

    seeds_episodes = True  # each begins with noise of its own
    spec = None

    def __init__(self, env, limit=None):
        checks.check(env)
        self.env = env
        self.limit = limit or env.max_episode_steps
        self.observation_space = env.observation_space
        self.action_space = env.action_space

    def close(self):
        """There is nothing to close."""
