"""Tianshou's REINFORCE, with its own collector.

An update is one gradient step on whole episodes: 16 of CartPole-v1, 4 of HalfCheetah-v5
(4,000 steps, a Gaussian with a free log standard deviation). Tianshou's REINFORCE has no
critic; the returns are standardized by a running mean and deviation.
"""

import gymnasium as gym
import numpy as np
import protocol
import torch
from tianshou.algorithm import Reinforce
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector
from tianshou.data import ReplayBuffer
from tianshou.data import VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.continuous import ContinuousActorProbabilistic
from tianshou.utils.net.discrete import DiscreteActor
from tianshou.utils.net.discrete import dist_fn_categorical_from_logits
from tianshou.utils.torch_utils import policy_within_training_step
from torch.distributions import Distribution
from torch.distributions import Independent
from torch.distributions import Normal

EPISODES = {"CartPole-v1": 16, "HalfCheetah-v5": 4}
LEARNING_RATES = {"CartPole-v1": 1e-2, "HalfCheetah-v5": 1e-3}
# The fastest of rates from 3e-3 to 2e-2, and of 8 or 16 episodes.
SOLVE_EPISODES, SOLVE_LEARNING_RATE = 8, 5e-3
torch.set_num_threads(1)  # faster than two for networks this small
Distribution.set_default_validate_args(False)  # faster


def make_env(env="CartPole-v1"):
    return gym.make(env, disable_env_checker=True)


def gaussian(parameters):
    return Independent(Normal(*parameters), 1)


def policy_for(env):
    """Returns a policy with two tanh layers of 64, for logits or Gaussian means."""
    space = env.action_space
    discrete = isinstance(space, gym.spaces.Discrete)
    net = Net(
        state_shape=env.observation_space.shape,
        hidden_sizes=[64, 64],
        activation=torch.nn.Tanh,
    )
    if discrete:
        options = dict(action_shape=space.n, softmax_output=False)
        actor = DiscreteActor(preprocess_net=net, **options)
    else:
        options = dict(action_shape=space.shape, unbounded=True)
        actor = ContinuousActorProbabilistic(preprocess_net=net, **options)
    return ProbabilisticActorPolicy(
        actor=actor,
        dist_fn=dist_fn_categorical_from_logits if discrete else gaussian,
        action_space=space,
        action_scaling=not discrete,
        action_bound_method=None if discrete else "clip",
    )


def algorithm_for(policy, learning_rate, standardize=True):
    optimizer = AdamOptimizerFactory(lr=learning_rate)
    return Reinforce(policy=policy, optim=optimizer, return_standardization=standardize)


class Learner:
    """An untrained algorithm and its collector."""

    def __init__(self, env, num_envs, seed, num_episodes, learning_rate):
        torch.manual_seed(seed)
        vector_env = DummyVectorEnv([lambda: make_env(env) for _ in range(num_envs)])
        vector_env.seed([seed * num_envs + env_index for env_index in range(num_envs)])
        self.policy, self.num_episodes = policy_for(make_env(env)), num_episodes
        self.algorithm = algorithm_for(self.policy, learning_rate)
        buffer = VectorReplayBuffer(20_000, num_envs, ignore_obs_next=True)
        self.collector = Collector(self.algorithm, vector_env, buffer)
        self.collector.reset()

    def update(self):
        """Collects episodes, makes one update, and returns the number of steps."""
        with policy_within_training_step(self.policy), torch.no_grad():
            collected = self.collector.collect(n_episode=self.num_episodes)
        learn_from(self.algorithm, self.collector.buffer)
        self.collector.reset_buffer(keep_statistics=True)
        return collected.n_collected_steps

    def greedy(self, observations):
        with torch.no_grad():
            return self.policy.actor(observations)[0].argmax(-1).numpy()


def learn_from(algorithm, buffer):
    with policy_within_training_step(algorithm.policy):
        algorithm.update(buffer=buffer, batch_size=None, repeat=1)


def train(env, num_envs, steps, seed):
    learner = Learner(env, num_envs, seed, EPISODES[env], LEARNING_RATES[env])
    return protocol.time_training(learner.update, steps)


def solve(num_envs, seed, limit):
    learner = Learner("CartPole-v1", num_envs, seed, SOLVE_EPISODES, SOLVE_LEARNING_RATE)
    return protocol.train_until_solved(learner.update, learner.greedy, limit)


def buffer_of(observations, actions, rewards, lengths):
    """Returns a replay buffer of the episodes in arrays `[T, E, ...]`, concatenated."""

    def concatenate(values):
        return np.concatenate([values[:length, e] for e, length in enumerate(lengths)])

    ends = np.arange(len(rewards))[:, None] == np.array(lengths) - 1
    ends, observations = concatenate(ends), concatenate(observations)
    return ReplayBuffer.from_data(
        obs=observations,
        act=concatenate(actions),
        rew=concatenate(rewards),
        terminated=ends,
        truncated=np.zeros_like(ends),
        done=ends,
        obs_next=np.roll(observations, -1, axis=0),  # REINFORCE does not use it
    )


def gradient(weights, observations, actions, lengths):
    """Returns the gradient per episode; Tianshou computes a mean over steps."""
    policy = policy_for(make_env())
    algorithm = algorithm_for(policy, 1e-2, standardize=False)
    parameters = list(policy.actor.parameters())
    for parameter, weight in zip(parameters, weights, strict=True):
        parameter.data = torch.tensor(np.transpose(weight), dtype=torch.float32)
    observations, actions = np.array(observations, "float32")[:-1], np.array(actions)
    rewards = np.ones(actions.shape)
    learn_from(algorithm, buffer_of(observations, actions, rewards, lengths))
    factor = sum(lengths) / len(lengths)
    return {
        "gradients": [
            (factor * parameter.grad.numpy().T).tolist() for parameter in parameters
        ]
    }


if __name__ == "__main__":
    operations = train, solve, gradient
    protocol.serve({operation.__name__: operation for operation in operations})
