"""Trains on CartPole's twin in one program, with tf_reinforce."""

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


_OPERATIONS = {function.__name__: function for function in (train, gradient)}

if __name__ == "__main__":
    protocol.serve(_OPERATIONS)
