"""Steps CartPole-v1 without learning, with random actions that are drawn beforehand."""

import functools
import time

import gymnasium as gym
import numpy as np
import protocol

import tf_reinforce as tfr

STEPS = 5_000  # for each environment


def one_by_one(num_envs):
    """Steps environments of `gymnasium.make`, one after the other."""
    envs = [gym.make("CartPole-v1") for _ in range(num_envs)]
    actions = np.random.default_rng(0).integers(2, size=(STEPS, num_envs)).tolist()
    for seed, env in enumerate(envs):
        env.reset(seed=seed)
    start = time.perf_counter()
    for row in actions:
        for env, action in zip(envs, row):
            _, _, terminated, truncated, _ = env.step(action)
            if terminated or truncated:
                env.reset()
    return {"seconds": time.perf_counter() - start, "steps": STEPS * num_envs}


def vectorized(num_envs):
    """Steps Gymnasium's vectorized CartPole, which is written in NumPy."""
    vector_env = gym.make_vec("CartPole-v1", num_envs)
    actions = np.random.default_rng(0).integers(2, size=(STEPS, num_envs))
    vector_env.reset(seed=0)
    start = time.perf_counter()
    for row in actions:
        vector_env.step(row)
    return {"seconds": time.perf_counter() - start, "steps": STEPS * num_envs}


def played(num_envs):
    """Collects whole episodes in our twin with an untrained policy."""
    env, agent = _env_and_agent()
    agent.collect(env, num_envs)
    start, steps = time.perf_counter(), 0
    for seed in range(20):
        steps += int(agent.collect(env, num_envs, seed=seed).lengths.sum())
    return {"seconds": time.perf_counter() - start, "steps": steps}


@functools.cache
def _env_and_agent():
    env = tfr.envs.CartPole()
    opened_env = tfr.collect.open_envs(env, 1).__enter__()  # checks the environment once
    return opened_env, tfr.Reinforce.for_env(env)


if __name__ == "__main__":
    protocol.serve({"one_by_one": one_by_one, "vectorized": vectorized, "played": played})
