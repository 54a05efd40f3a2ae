"""Tests that an EnvPool is collected like a `VectorEnv`, with an imitation of it."""

import gymnasium as gym
import numpy as np
import pytest
import toys

import tf_reinforce as tfr


class ImitatedEnvPool(gym.vector.VectorEnv):
    """Imitates EnvPool 1.2.5 with `env_type="gymnasium"`.

    EnvPool is a `VectorEnv` in the mode NEXT_STEP. The attribute `spec` is no `EnvSpec`
    and has no `max_episode_steps`. The dict `config` contains the settings of `make`.
    `reset` warns of a seed and ignores it. The step after the end of an episode returns
    the first observation of the next episode, and the reward zero. `info` contains
    `env_id` and `elapsed_step`, and no key that starts with an underscore.
    """

    def __init__(self, num_envs, env_ids=None, **config):
        makers = [lambda: gym.wrappers.TimeLimit(toys.Clock(), 7)] * num_envs
        self._envs = gym.vector.SyncVectorEnv(makers)  # in the mode NEXT_STEP
        self.num_envs, self.metadata = num_envs, self._envs.metadata
        self.spec = object()
        self.single_observation_space = self._envs.single_observation_space
        self.single_action_space = self._envs.single_action_space
        self.config = {"batch_size": num_envs, "env_seed": [], "max_num_players": 1}
        self.config |= {"num_envs": num_envs, "max_episode_steps": 7, **config}
        self._env_ids = range(num_envs) if env_ids is None else env_ids

    def _infos(self):
        return {"env_id": np.array(self._env_ids, "int32")}

    def reset(self):
        return self._envs.reset()[0], self._infos()

    def step(self, actions):
        return *self._envs.step(actions)[:4], self._infos()


def test_episodes_of_an_envpool_equal_those_of_the_vector_env_behind_it():
    """The step that resets an environment is not recorded."""
    env = ImitatedEnvPool(3)
    agent = tfr.Reinforce.for_env(env, hidden=())
    episodes = agent.collect(env, 7, seed=0)
    expected = agent.collect(env._envs, 7, seed=0)
    for name in ("observations", "actions", "rewards", "lengths", "terminated"):
        one, other = getattr(episodes, name), getattr(expected, name)
        np.testing.assert_array_equal(one, other, err_msg=name)


@pytest.mark.parametrize(
    ("config", "words"),
    [({"batch_size": 2}, "batch_size=2"), ({"max_num_players": 2}, "one player")],
)
def test_asynchronous_and_multiplayer_envpools_are_refused(config, words):
    with pytest.raises(ValueError, match=words):
        tfr.Reinforce.for_env(ImitatedEnvPool(3, **config))


@pytest.mark.parametrize(
    "config, message",
    [
        ({"env_ids": [0, 2, 1]}, r"Received: \[0, 2, 1\]"),
        ({"max_episode_steps": 2}, "did not end within 2 steps"),
    ],
)
def test_other_orders_and_longer_episodes_are_refused(config, message):
    env = ImitatedEnvPool(3, **config)
    agent = tfr.Reinforce.for_env(env, hidden=())
    with pytest.raises(tfr.collect.EnvironmentFault, match=message):
        agent.collect(env, 3)
