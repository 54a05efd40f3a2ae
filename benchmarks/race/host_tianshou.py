"""Tianshou's REINFORCE, with its own collector.

An update is one gradient step on whole episodes, their returns standardised by a running
mean and deviation, for Tianshou's REINFORCE has no critic: 16 of CartPole-v1, or 4 of
HalfCheetah-v5 (4,000 steps, a Gaussian with a free log standard deviation).
"""

import gymnasium as gym
import numpy as np
import protocol
import torch
from tianshou.algorithm import Reinforce
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Batch
from tianshou.data import Collector
from tianshou.data import ReplayBuffer
from tianshou.data import VectorReplayBuffer
from tianshou.data import to_numpy
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
RATES = {"CartPole-v1": 1e-2, "HalfCheetah-v5": 1e-3}
SOLVE_EPISODES, SOLVE_RATE = 8, 5e-3  # the fastest of 3e-3 to 2e-2, 8 or 16
torch.set_num_threads(1)  # faster than two for networks this small
Distribution.set_default_validate_args(False)  # faster


def make_world(env="CartPole-v1"):
    return gym.make(env, disable_env_checker=True)


def gaussian(parameters):
    return Independent(Normal(*parameters), 1)


def policy_for(world):
    """Two tanh layers of 64, for logits or the means of a Gaussian."""
    space = world.action_space
    discrete = isinstance(space, gym.spaces.Discrete)
    net = Net(
        state_shape=world.observation_space.shape,
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


def algorithm_for(policy, rate, standardise=True):
    optimizer = AdamOptimizerFactory(lr=rate)
    return Reinforce(policy=policy, optim=optimizer, return_standardization=standardise)


class Learner:
    """An algorithm from scratch and its collector."""

    def __init__(self, env, envs, seed, count, rate):
        torch.manual_seed(seed)
        worlds = DummyVectorEnv([lambda: make_world(env) for _ in range(envs)])
        worlds.seed([seed * envs + slot for slot in range(envs)])
        self.policy, self.count = policy_for(make_world(env)), count
        self.algorithm = algorithm_for(self.policy, rate)
        buffer = VectorReplayBuffer(20_000, envs, ignore_obs_next=True)
        self.collector = Collector(self.algorithm, worlds, buffer)
        self.collector.reset()

    def update(self):
        """Plays and learns; returns the number of steps."""
        with policy_within_training_step(self.policy), torch.no_grad():
            collected = self.collector.collect(n_episode=self.count)
        learn_from(self.algorithm, self.collector.buffer)
        self.collector.reset_buffer(keep_statistics=True)
        return collected.n_collected_steps

    def greedy(self, observations):
        with torch.no_grad():
            return self.policy.actor(observations)[0].argmax(-1).numpy()


def learn_from(algorithm, buffer):
    with policy_within_training_step(algorithm.policy):
        algorithm.update(buffer=buffer, batch_size=None, repeat=1)


def train(env, envs, steps, seed):
    learner = Learner(env, envs, seed, EPISODES[env], RATES[env])
    return protocol.trained(learner.update, steps)


def solve(envs, seed, limit):
    learner = Learner("CartPole-v1", envs, seed, SOLVE_EPISODES, SOLVE_RATE)
    return protocol.until_solved(learner.update, learner.greedy, limit)


def act(batch):
    policy = policy_for(make_world())
    observations = np.random.default_rng(0).normal(size=(batch, 4)).astype("float32")

    def sample():
        with torch.no_grad():
            answer = policy(Batch(obs=observations, info=Batch()))
        return policy.map_action(to_numpy(answer.act))

    return protocol.latency(sample)


def buffer_of(observations, actions, rewards, lengths):
    """A replay buffer of episodes, from arrays `[T, E, ...]`, one after the other."""

    def joined(values):
        return np.concatenate([values[:length, e] for e, length in enumerate(lengths)])

    ends = np.arange(len(rewards))[:, None] == np.array(lengths) - 1
    ends, seen = joined(ends), joined(observations)
    return ReplayBuffer.from_data(
        obs=seen,
        act=joined(actions),
        rew=joined(rewards),
        terminated=ends,
        truncated=np.zeros_like(ends),
        done=ends,
        obs_next=np.roll(seen, -1, axis=0),  # which REINFORCE does not look at
    )


def learn(rows):
    shape, rng = (500, rows // 500), np.random.default_rng(0)
    observations = rng.normal(size=(*shape, 4)).astype("float32")
    steps = observations, rng.integers(2, size=shape), rng.normal(size=shape)
    buffer = buffer_of(*steps, [500] * shape[1])
    algorithm = algorithm_for(policy_for(make_world()), 1e-2)
    return protocol.learned(lambda: learn_from(algorithm, buffer), rows)


def gradient(weights, observations, actions, lengths):
    """Tianshou takes the mean over steps: times their number, over that of episodes."""
    policy = policy_for(make_world())
    algorithm = algorithm_for(policy, 1e-2, standardise=False)
    parameters = list(policy.actor.parameters())
    for mine, given in zip(parameters, weights, strict=True):
        mine.data = torch.tensor(np.transpose(given), dtype=torch.float32)
    seen, done = np.array(observations, "float32")[:-1], np.array(actions)
    learn_from(algorithm, buffer_of(seen, done, np.ones(done.shape), lengths))
    factor = sum(lengths) / len(lengths)
    return {"gradients": [(factor * mine.grad.numpy().T).tolist() for mine in parameters]}


if __name__ == "__main__":
    operations = train, solve, act, learn, gradient
    protocol.serve({operation.__name__: operation for operation in operations})
