"""Training on CartPole's twin in one program: ours."""

import pathlib
import resource

import keras
import numpy as np
import protocol
import tensorflow as tf

import tf_reinforce as tfr

RATE, GAMMA, HIDDEN = 1e-2, 0.99, (64, 64)
_made = {}


def agent_for(envs, updates, seed=0):
    """An agent as it begins, of graphs made once for each number of both."""
    if (envs, updates) not in _made:
        world = tfr.envs.CartPole()
        agent = tfr.Reinforce.for_env(world, hidden=HIDDEN, gamma=GAMMA)
        agent.compile(keras.optimizers.Adam(RATE), steps_per_execution=updates)
        agent.build_for_env(world)
        variables = [*agent.variables, *agent.optimizer.variables]
        _made[envs, updates] = world, agent, variables, [v.numpy() for v in variables]
    world, agent, variables, fresh = _made[envs, updates]
    for variable, value in zip(variables, fresh, strict=True):
        variable.assign(value)
    other = tfr.Reinforce.for_env(world, hidden=HIDDEN, seed=seed)
    agent.policy.set_weights(other.policy.get_weights())
    return world, agent


def train(envs, updates, seed):
    world, agent = agent_for(envs, updates, seed)
    began = tf.timestamp()
    history = agent.fit(
        world, epochs=updates, episodes_per_epoch=envs, seed=seed, verbose=0
    ).history
    return {
        "seconds": float(tf.timestamp() - began),
        "steps": agent.env_steps,
        "returns": history["episode_return"],
    }


def solve(envs, updates, seed, target=475):
    """Trains until a batch reaches the target and 100 real episodes confirm it."""
    world, agent = agent_for(envs, updates, seed)
    seconds, returned = 0.0, 0.0
    while returned < target:
        stop = tfr.callbacks.StopAtReturn(target)
        options = dict(episodes_per_epoch=envs, seed=seed, callbacks=[stop], verbose=0)
        began = tf.timestamp()
        agent.fit(world, epochs=200, **options)
        seconds += float(tf.timestamp() - began)
        returned = agent.evaluate("CartPole-v1", episodes=100)["episode_return"]
    return {"seconds": seconds, "steps": agent.env_steps, "return": returned}


def memory():
    """GiB in use now, and at the most so far."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"now": pages * resource.getpagesize() / 2**30, "most": most / 2**20}


def long(envs, updates, steps):
    """Memory in use while so many steps are trained, once for each call of a tenth."""
    world, agent = agent_for(envs, updates)
    used = []
    for _ in range(10):
        agent.fit(world, steps=steps // 10, episodes_per_epoch=envs, verbose=0)
        used.append(memory()["now"])
    return {"steps": agent.env_steps, "used": used}


def gradient(weights, observations, actions, lengths):
    """The gradient from CartPole's episodes at given weights."""
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
