"""Stable-Baselines3's A2C, which is not REINFORCE: pieces of 500 steps, with a critic."""

import time

import protocol
import torch
from stable_baselines3 import A2C
from stable_baselines3.common.env_util import make_vec_env

torch.set_num_threads(1)  # faster than two for networks this small
PIECE = 500  # steps of each environment for one update


def train(env, envs, steps, seed):
    worlds = make_vec_env(env, envs, seed=seed)
    options = dict(n_steps=PIECE, gae_lambda=1.0, seed=seed, device="cpu")
    model = A2C("MlpPolicy", worlds, **options)
    began = time.perf_counter()
    model.learn(steps)
    return {"seconds": time.perf_counter() - began, "steps": model.num_timesteps}


if __name__ == "__main__":
    protocol.serve({"train": train})
