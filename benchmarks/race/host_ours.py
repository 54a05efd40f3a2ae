"""Trains on Gymnasium's environments with the host engine of tf_reinforce.

    python host_ours.py [preset|one-pass] [workers]

An update is one gradient step on whole episodes, with the leave-one-out baseline: 16 of
CartPole-v1, or 4 of HalfCheetah-v5 (4,000 steps, a Gaussian with a free log standard
deviation). With `workers`, one process for each core collects the episodes. With
`preset`, all settings are those of the preset of the environment. With `one-pass`, the
settings are those of the preset HalfCheetah-v5-one-pass, with a value baseline: 16
gradient steps of the policy and 32 of the value model, in minibatches of 256, from 4
episodes.
"""

import functools
import os
import sys
import time

import keras
import numpy as np
import protocol

import tf_reinforce as tfr

ENV, LEARNING_RATE = "CartPole-v1", 1e-2
EPISODES = {"CartPole-v1": 16, "HalfCheetah-v5": 4}
SUFFIXES = {"preset": "", "one-pass": "-one-pass"}  # of the names of presets
SUFFIX = next((SUFFIXES[x] for x in sys.argv if x in SUFFIXES), None)
WORKERS = os.cpu_count() if "workers" in sys.argv else 1
SOLVE = dict(episodes=8, learning_rate=2e-2)


def make_agent(env, learning_rate=LEARNING_RATE, **options):
    if SUFFIX is not None:
        return tfr.Reinforce.for_env(env, preset=f"{env}{SUFFIX}", **options)
    if env != ENV:
        options, learning_rate = dict(head="ClippedGaussian", **options), 1e-3
    agent = tfr.Reinforce.for_env(env, **options)
    agent.compile(keras.optimizers.Adam(learning_rate))
    return agent


def training_state(agent):
    baseline_optimizer = getattr(agent.baseline, "optimizer", None)
    optimizers = [
        optimizer
        for optimizer in (agent.optimizer, baseline_optimizer)
        if optimizer is not None
    ]
    return [
        *agent.variables,
        *(v for optimizer in optimizers for v in optimizer.variables),
    ]


@functools.cache
def cached_agent(env, num_envs, learning_rate=LEARNING_RATE):
    """Returns a built agent, its environments, and its initial state."""
    opened = tfr.collect.open_envs(env, num_envs, workers=WORKERS)
    agent, envs = make_agent(env, learning_rate), opened.__enter__()
    agent.build_for_env(envs)
    initial_state = [variable.numpy() for variable in training_state(agent)]
    return agent, envs, initial_state


def untrained_agent(env, num_envs, seed=0, learning_rate=LEARNING_RATE):
    """Returns the cached agent with the initial weights of a seed."""
    agent, envs, initial_state = cached_agent(env, num_envs, learning_rate)
    for variable, value in zip(training_state(agent), initial_state, strict=True):
        variable.assign(value)
    agent.policy.set_weights(make_agent(env, seed=seed).policy.get_weights())
    return agent, envs


def train(env, num_envs, steps, seed):
    """Trains from the initial weights for at least `steps` steps."""
    agent, envs = untrained_agent(env, num_envs, seed)
    options = {} if SUFFIX == "" else dict(episodes_per_epoch=EPISODES[env])
    start = time.perf_counter()
    agent.fit(envs, steps=steps, seed=seed, verbose=0, **options)
    return {"seconds": time.perf_counter() - start, "steps": agent.env_steps}


def solve(num_envs, seed, limit):
    agent, envs = untrained_agent(ENV, num_envs, seed, SOLVE["learning_rate"])

    def update():
        episodes = agent.collect(envs, SOLVE["episodes"], seed=seed)
        agent.update(episodes)
        return episodes.lengths.sum()

    def greedy(observations):
        return agent.act(observations, deterministic=True)

    return protocol.train_until_solved(update, greedy, limit)


def gradient(weights, observations, actions, lengths):
    """Returns the gradient without a baseline."""
    agent = make_agent(ENV, baseline="none")
    agent.policy.set_weights([np.array(w, "float32") for w in weights])
    gradients, _, _ = agent.gradients(_episodes(observations, actions, lengths))
    return {"gradients": [g.numpy().tolist() for g in gradients]}


def _episodes(observations, actions, lengths):
    rewards = np.arange(len(actions))[:, None] < np.array(lengths)
    return tfr.Episodes(
        np.array(observations, "float32"),
        np.array(actions),
        rewards.astype("float64"),
        np.array(lengths),
        np.ones(len(lengths), bool),
    )


_OPERATIONS = {function.__name__: function for function in (train, solve, gradient)}

if __name__ == "__main__":
    protocol.serve(_OPERATIONS)
