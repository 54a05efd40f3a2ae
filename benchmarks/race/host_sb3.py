"""Stable-Baselines3's A2C and PPO: segments of episodes, with a critic.

    python host_sb3.py [ppo]

With `ppo`, `train` trains PPO with its default settings: 10 passes over 2,048 steps in
minibatches of 64. PPO has one environment, and normalized observations and rewards.

Without `ppo`, all operations use A2C, which is not REINFORCE. An update of `train` is one
gradient step, of the policy and of the critic, on segments of 500 steps of each
environment, 1,000 of HalfCheetah-v5 (4,000 steps from 4 environments, a Gaussian with a
free log standard deviation). A2C does not answer the request `gradient`.
"""

import sys
import time

import gymnasium as gym
import protocol
import torch
from stable_baselines3 import A2C
from stable_baselines3 import PPO
from stable_baselines3.common.vec_env import DummyVecEnv
from stable_baselines3.common.vec_env import VecNormalize

SEGMENTS = {"CartPole-v1": 500, "HalfCheetah-v5": 1000}  # steps of one environment
# The best of 5 to 32 steps, with RMSprop or Adam.
SOLVE = dict(n_steps=16, learning_rate=2e-3)
SOLVE_STEPS = 1000  # between two evaluations
torch.set_num_threads(1)  # faster than two for networks this small


def model_for(env, num_envs, seed=0, **options):
    """Returns an untrained A2C, whose policy and critic have two tanh layers of 64."""
    vector_env = make_envs(env, num_envs)
    return A2C("MlpPolicy", vector_env, seed=seed, device="cpu", **options)


def make_envs(env, num_envs):
    def make_env():
        return gym.make(env, disable_env_checker=True)

    return DummyVecEnv([make_env] * num_envs)


def train(env, num_envs, steps, seed):
    if "ppo" in sys.argv:
        vector_env = VecNormalize(make_envs(env, 1))
        model = PPO("MlpPolicy", vector_env, seed=seed, device="cpu")
    else:
        model = model_for(env, num_envs, seed, n_steps=SEGMENTS[env], gae_lambda=1.0)
    start = time.perf_counter()
    model.learn(steps)
    return {"seconds": time.perf_counter() - start, "steps": model.num_timesteps}


def solve(num_envs, seed, limit):
    model = model_for("CartPole-v1", num_envs, seed, **SOLVE)

    def update():
        before = model.num_timesteps
        model.learn(SOLVE_STEPS, reset_num_timesteps=False)
        return model.num_timesteps - before

    def greedy(observations):
        return model.predict(observations, deterministic=True)[0]

    return protocol.train_until_solved(update, greedy, limit)


if __name__ == "__main__":
    operations = train, solve
    protocol.serve({operation.__name__: operation for operation in operations})
