"""Training on Gymnasium's environments: ours, by the host engine.

    python host_ours.py [preset] [workers]

An update is one gradient step on whole episodes, with the leave-one-out baseline: 16 of
CartPole-v1, or 4 of HalfCheetah-v5 (4,000 steps, a Gaussian with a free log standard
deviation). `workers`: a process for each core plays them. `preset`: HalfCheetah-v5 as its
preset has it, with a critic; 16 gradient steps of the policy and 32 of the critic, in
minibatches of 256, from 4 episodes.
"""

import functools
import os
import sys
import time

import keras
import numpy as np
import protocol

import tf_reinforce as tfr

ENV, RATE = "CartPole-v1", 1e-2
EPISODES = {"CartPole-v1": 16, "HalfCheetah-v5": 4}
PRESET = "preset" in sys.argv
WORKERS = os.cpu_count() if "workers" in sys.argv else 1
SOLVING = dict(episodes=8, rate=2e-2)


def made(env, rate=RATE, **options):
    if PRESET:
        return tfr.Reinforce.for_env(env, preset=env, **options)
    if env != ENV:
        options, rate = dict(head="ClippedGaussian", **options), 1e-3
    agent = tfr.Reinforce.for_env(env, **options)
    agent.compile(keras.optimizers.Adam(rate))
    return agent


def state_of(agent):
    own = getattr(agent.baseline, "optimizer", None)
    optimizers = [one for one in (agent.optimizer, own) if one is not None]
    return [*agent.variables, *(v for one in optimizers for v in one.variables)]


@functools.cache
def kept(env, envs, rate=RATE):
    """An agent that has learned once, its environments, and how it began."""
    opened = tfr.collect.open_envs(env, envs, workers=WORKERS)
    agent, envs = made(env, rate), opened.__enter__()
    agent.build_for_env(envs)
    first = [variable.numpy() for variable in state_of(agent)]
    return agent, envs, first


def fresh(env, envs, seed=0, rate=RATE):
    """The same graphs, with the first weights of another seed."""
    agent, envs, first = kept(env, envs, rate)
    for variable, value in zip(state_of(agent), first, strict=True):
        variable.assign(value)
    agent.policy.set_weights(made(env, seed=seed).policy.get_weights())
    return agent, envs


def train(env, envs, steps, seed):
    """Learns from about so many steps, from scratch."""
    agent, envs = fresh(env, envs, seed)
    options = dict(episodes_per_epoch=EPISODES[env], seed=seed, verbose=0)
    began = time.perf_counter()
    agent.fit(envs, steps=steps, **options)
    return {"seconds": time.perf_counter() - began, "steps": agent.env_steps}


def solve(envs, seed, limit):
    agent, envs = fresh(ENV, envs, seed, SOLVING["rate"])

    def update():
        episodes = agent.collect(envs, SOLVING["episodes"], seed=seed)
        agent.update(episodes)
        return episodes.lengths.sum()

    def greedy(observations):
        return agent.act(observations, deterministic=True)

    return protocol.until_solved(update, greedy, limit)


def act(batch):
    """As the loop of the host engine asks its policy; the noise is drawn too."""
    agent, envs = fresh(ENV, 8)
    agent.collect(envs, 1)
    rows = agent._collector.programs[False].rows(batch)
    rng = np.random.default_rng(0)
    observations = rng.normal(size=(batch, 4)).astype("float32")

    def call():
        return rows([observations, rng.random((batch, 2), "float32")])

    return protocol.latency(call)


def act_publicly(batch):
    """`agent.act`, which anybody may call with anything."""
    agent, _ = fresh(ENV, 8)
    observations = np.zeros((batch, 4), "float32")
    return protocol.latency(lambda: agent.act(observations))


def learn(rows):
    agent, _ = fresh(ENV, 8)
    rng, count = np.random.default_rng(0), rows // 500
    episodes = _episodes(
        rng.normal(size=(501, count, 4)),
        rng.integers(2, size=(500, count)),
        [500] * count,
    )
    return protocol.learned(lambda: agent.update(episodes), rows)


def gradient(weights, observations, actions, lengths):
    """The gradient without a baseline."""
    agent = made(ENV, baseline="none")
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


_OPERATIONS = {
    function.__name__: function
    for function in (train, solve, act, act_publicly, learn, gradient)
}

if __name__ == "__main__":
    protocol.serve(_OPERATIONS)
