"""Tianshou's REINFORCE, with its own collector."""

import time

import gymnasium as gym
import protocol
import torch
from tianshou.algorithm import Reinforce
from tianshou.algorithm.modelfree.reinforce import ProbabilisticActorPolicy
from tianshou.algorithm.optim import AdamOptimizerFactory
from tianshou.data import Collector, VectorReplayBuffer
from tianshou.env import DummyVectorEnv
from tianshou.utils.net.common import Net
from tianshou.utils.net.discrete import DiscreteActor, dist_fn_categorical_from_logits
from tianshou.utils.torch_utils import policy_within_training_step

torch.set_num_threads(1)  # faster than two for networks this small
EPISODES = 16


def train(env, envs, steps, seed):
    torch.manual_seed(seed)
    worlds = DummyVectorEnv([lambda: gym.make(env) for _ in range(envs)])
    worlds.seed(seed)
    one = gym.make(env)
    net = Net(
        state_shape=one.observation_space.shape,
        hidden_sizes=[64, 64],
        activation=torch.nn.Tanh,
    )
    policy = ProbabilisticActorPolicy(
        actor=DiscreteActor(
            preprocess_net=net, action_shape=one.action_space.n, softmax_output=False
        ),
        dist_fn=dist_fn_categorical_from_logits,
        action_space=one.action_space,
        action_scaling=False,
        action_bound_method=None,
    )
    algorithm = Reinforce(
        policy=policy, optim=AdamOptimizerFactory(lr=1e-2), return_standardization=True
    )
    collector = Collector(algorithm, worlds, VectorReplayBuffer(20_000, envs))
    collector.reset()
    done, began = 0, time.perf_counter()
    while done < steps:
        with policy_within_training_step(policy):
            done += collector.collect(n_episode=EPISODES).n_collected_steps
            algorithm.update(buffer=collector.buffer, batch_size=None, repeat=1)
        collector.reset_buffer(keep_statistics=True)
    return {"seconds": time.perf_counter() - began, "steps": done}


if __name__ == "__main__":
    protocol.serve({"train": train})
