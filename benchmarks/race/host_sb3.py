"""Stable-Baselines3's A2C, which is not REINFORCE: pieces of episodes, with a critic.

An update of `train` is one gradient step, of the policy and of the critic, on pieces of
500 steps of each environment, 1,000 of HalfCheetah-v5 (4,000 steps from 4 environments, a
Gaussian with a free log standard deviation). It has no `gradient` of REINFORCE.
"""

import time

import gymnasium as gym
import numpy as np
import protocol
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.vec_env import DummyVecEnv

PIECES = {"CartPole-v1": 500, "HalfCheetah-v5": 1000}  # steps of one environment
SOLVE = dict(n_steps=16, learning_rate=2e-3)  # of 5 to 32 steps, RMSprop or Adam
SOLVE_STEPS = 1000  # between two evaluations
torch.set_num_threads(1)  # faster than two for networks this small


def model_for(env, envs, seed=0, **options):
    """A2C from scratch; its policy and critic have two tanh layers of 64 each."""

    def make_world():
        return gym.make(env, disable_env_checker=True)

    worlds = DummyVecEnv([make_world] * envs)
    return A2C("MlpPolicy", worlds, seed=seed, device="cpu", **options)


def train(env, envs, steps, seed):
    model = model_for(env, envs, seed, n_steps=PIECES[env], gae_lambda=1.0)
    began = time.perf_counter()
    model.learn(steps)
    return {"seconds": time.perf_counter() - began, "steps": model.num_timesteps}


def solve(envs, seed, limit):
    model = model_for("CartPole-v1", envs, seed, **SOLVE)

    def update():
        before = model.num_timesteps
        model.learn(SOLVE_STEPS, reset_num_timesteps=False)
        return model.num_timesteps - before

    def greedy(observations):
        return model.predict(observations, deterministic=True)[0]

    return protocol.until_solved(update, greedy, limit)


def act(batch):
    """The policy's call while collecting, which asks the critic as well."""
    policy = model_for("CartPole-v1", 1).policy
    observations = np.random.default_rng(0).normal(size=(batch, 4)).astype("float32")

    def sample():
        with torch.no_grad():
            return policy(torch.as_tensor(observations))[0].numpy()

    return protocol.latency(sample)


def learn(rows):
    """Advantages and one gradient step of policy and critic."""
    envs, rng = rows // 500, np.random.default_rng(0)
    model = model_for("CartPole-v1", envs, n_steps=500, gae_lambda=1.0)
    model.learn(0)  # what its `train` asks for
    buffer, dones, values = model.rollout_buffer, np.ones(envs), torch.zeros(envs)

    def fill():
        buffer.reset()
        for step in range(500):
            seen = rng.normal(size=(envs, 4)).astype("float32")
            actions = rng.integers(2, size=(envs, 1))
            starts = dones * (step == 0)
            buffer.add(seen, actions, rng.normal(size=envs), starts, values, values)
        return ()

    def update():
        buffer.compute_returns_and_advantage(values, dones)
        model.train()

    return protocol.learned(update, rows, fill)


if __name__ == "__main__":
    operations = train, solve, act, learn
    protocol.serve({operation.__name__: operation for operation in operations})
