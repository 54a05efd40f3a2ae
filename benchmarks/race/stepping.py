"""Stepping without learning: CartPole-v1 with actions drawn at random beforehand."""

import functools
import time

import gymnasium as gym
import numpy as np
import protocol

import tf_reinforce as tfr

STEPS = 5_000  # of each environment


def one_by_one(envs):
    """Plain environments of `gymnasium.make`, one after the other."""
    worlds = [gym.make("CartPole-v1") for _ in range(envs)]
    actions = np.random.default_rng(0).integers(2, size=(STEPS, envs)).tolist()
    for seed, world in enumerate(worlds):
        world.reset(seed=seed)
    began = time.perf_counter()
    for row in actions:
        for world, action in zip(worlds, row):
            _, _, terminated, truncated, _ = world.step(action)
            if terminated or truncated:
                world.reset()
    return {"seconds": time.perf_counter() - began, "steps": STEPS * envs}


def vectorized(envs):
    """Gymnasium's own CartPole for many at once, in NumPy."""
    worlds = gym.make_vec("CartPole-v1", envs)
    actions = np.random.default_rng(0).integers(2, size=(STEPS, envs))
    worlds.reset(seed=0)
    began = time.perf_counter()
    for row in actions:
        worlds.step(row)
    return {"seconds": time.perf_counter() - began, "steps": STEPS * envs}


def played(envs):
    """Whole episodes of our twin by a policy that has learned nothing, as a record."""
    world, agent = _learner()
    agent.collect(world, envs)
    began, steps = time.perf_counter(), 0
    for seed in range(20):
        steps += int(agent.collect(world, envs, seed=seed).lengths.sum())
    return {"seconds": time.perf_counter() - began, "steps": steps}


@functools.cache
def _learner():
    world = tfr.envs.CartPole()
    opened = tfr.collect.open_envs(world, 1).__enter__()  # checked once
    return opened, tfr.Reinforce.for_env(world)


if __name__ == "__main__":
    protocol.serve({"one_by_one": one_by_one, "vectorized": vectorized, "played": played})
