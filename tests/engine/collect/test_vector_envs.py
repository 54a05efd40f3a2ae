"""Tests that an EnvPool is collected like a `VectorEnv`, with an imitation of it."""

import gymnasium as gym
import numpy as np
import pytest
import toys

import tf_reinforce as tfr


class ImitatedEnvPool(gym.vector.VectorEnv):
    """Imitates EnvPool 1.2.5 with `env_type="gymnasium"`.

    EnvPool is a `VectorEnv` in the mode NEXT_STEP. The attribute `spec` is no `EnvSpec`
    and no `max_episode_steps`. `reset` warns of a seed and ignores it. `info` contains
    no key that starts with an underscore. With a smaller `batch_size`, each step returns
    only some environments.
    """

    def __init__(self, num_envs, batch_size=None):
        makers = [lambda: gym.wrappers.TimeLimit(toys.Clock(), 7)] * num_envs
        self._envs = gym.vector.SyncVectorEnv(makers)  # in the mode NEXT_STEP
        self.num_envs, self.metadata = num_envs, self._envs.metadata
        self.spec, self._first = object(), slice(batch_size)
        self.single_observation_space = self._envs.single_observation_space
        self.single_action_space = self._envs.single_action_space

    def reset(self):
        return self._envs.reset()[0][self._first], {"env_id": np.arange(self.num_envs)}

    def step(self, actions):
        results = [x[self._first] for x in self._envs.step(actions)[:4]]
        return *results, {"env_id": np.arange(self.num_envs)}


def test_episodes_of_an_envpool_equal_those_of_the_vector_env_behind_it():
    """The step that resets an environment is not recorded."""
    env = ImitatedEnvPool(3)
    agent = tfr.Reinforce.for_env(env, hidden=())
    episodes = agent.collect(env, 7, seed=0)
    expected = agent.collect(env._envs, 7, seed=0)
    for name in ("observations", "actions", "rewards", "lengths", "terminated"):
        one, other = getattr(episodes, name), getattr(expected, name)
        np.testing.assert_array_equal(one, other, err_msg=name)


class OtherTypes(gym.vector.SyncVectorEnv):
    """Returns observations as int64, flags as integers, and no `final_obs`."""

    def __init__(self, space, mode):
        super().__init__([lambda: toys.Observing(space)] * 2, autoreset_mode=mode)

    def step(self, actions):
        observations, rewards, *flags, _ = super().step(actions)
        flags = [flag.astype("int64") for flag in flags]
        return observations.astype("int64"), rewards, *flags, {}


def test_integers_of_another_type_and_integer_flags_are_accepted():
    space = gym.spaces.Box(0, 255, (2,), np.uint8)
    env = OtherTypes(space, gym.vector.AutoresetMode.NEXT_STEP)
    episodes = tfr.Reinforce.for_env(env, hidden=()).collect(env, 4)
    assert episodes.observations.dtype == np.uint8 and episodes.terminated.all()


def test_missing_final_observation_is_an_error():
    env = OtherTypes(gym.spaces.Discrete(5), gym.vector.AutoresetMode.SAME_STEP)
    agent = tfr.Reinforce.for_env(env, hidden=())
    with pytest.raises(tfr.collect.EnvironmentFault, match="without infos.'final_obs'"):
        agent.collect(env, 4)


def test_asynchronous_pool_is_refused():
    agent = tfr.Reinforce.for_env(ImitatedEnvPool(3), hidden=())
    with pytest.raises(tfr.collect.EnvironmentFault, match=r"shape \(2, 1\) instead of"):
        agent.collect(ImitatedEnvPool(3, batch_size=2), 3)
