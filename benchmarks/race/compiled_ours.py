"""Trains on CartPole's twin in one program, with tf_reinforce."""

import pathlib
import resource

import keras
import numpy as np
import protocol
import tensorflow as tf

import tf_reinforce as tfr

LEARNING_RATE, GAMMA, HIDDEN = 1e-2, 0.99, (64, 64)
_cache = {}


def agent_for(num_envs, updates, seed=0):
    """Returns an untrained agent, traced once for each pair of numbers."""
    if (num_envs, updates) not in _cache:
        env = tfr.envs.CartPole()
        agent = tfr.Reinforce.for_env(env, hidden=HIDDEN, gamma=GAMMA)
        agent.compile(keras.optimizers.Adam(LEARNING_RATE), steps_per_execution=updates)
        agent.build_for_env(env)
        variables = [*agent.variables, *agent.optimizer.variables]
        _cache[num_envs, updates] = env, agent, variables, [v.numpy() for v in variables]
    env, agent, variables, initial_values = _cache[num_envs, updates]
    for variable, value in zip(variables, initial_values, strict=True):
        variable.assign(value)
    reseeded = tfr.Reinforce.for_env(env, hidden=HIDDEN, seed=seed)
    agent.policy.set_weights(reseeded.policy.get_weights())
    return env, agent


def train(num_envs, updates, seed):
    env, agent = agent_for(num_envs, updates, seed)
    start = tf.timestamp()
    history = agent.fit(
        env, epochs=updates, episodes_per_epoch=num_envs, seed=seed, verbose=0
    ).history
    return {
        "seconds": float(tf.timestamp() - start),
        "steps": agent.env_steps,
        "returns": history["episode_return"],
    }


def solve(num_envs, updates, seed, target=475):
    """Trains until a batch reaches the target and 100 Gymnasium episodes confirm it."""
    env, agent = agent_for(num_envs, updates, seed)
    seconds, mean_return = 0.0, 0.0
    while mean_return < target:
        stop = tfr.callbacks.StopAtReturn(target)
        options = dict(
            episodes_per_epoch=num_envs, seed=seed, callbacks=[stop], verbose=0
        )
        start = tf.timestamp()
        agent.fit(env, epochs=200, **options)
        seconds += float(tf.timestamp() - start)
        mean_return = agent.evaluate("CartPole-v1", episodes=100)["episode_return"]
    return {"seconds": seconds, "steps": agent.env_steps, "return": mean_return}


def memory():
    """Returns the memory in use and the peak memory, in GiB."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"now": pages * resource.getpagesize() / 2**30, "most": peak / 2**20}


def long(num_envs, updates, steps):
    """Trains for `steps` steps in ten calls, and measures the memory after each call."""
    env, agent = agent_for(num_envs, updates)
    used = []
    for _ in range(10):
        agent.fit(env, steps=steps // 10, episodes_per_epoch=num_envs, verbose=0)
        used.append(memory()["now"])
    return {"steps": agent.env_steps, "used": used}


def gradient(weights, observations, actions, lengths):
    """Computes the gradient from episodes of CartPole at given weights."""
    _, agent = agent_for(len(lengths), 1)
    agent.policy.set_weights([np.array(w, "float32") for w in weights])
    rewards = np.arange(len(actions))[:, None] < np.array(lengths)
    episodes = tfr.Episodes(
        np.array(observations, "float32"),
        np.array(actions),
        rewards.astype("float64"),
        np.array(lengths),
        np.ones(len(lengths), bool),
    )
    gradients, _, logs = agent.gradients(episodes)
    return {"gradients": [g.numpy().tolist() for g in gradients]}


_OPERATIONS = {
    function.__name__: function for function in (train, solve, memory, long, gradient)
}

if __name__ == "__main__":
    protocol.serve(_OPERATIONS)
