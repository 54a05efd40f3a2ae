"""Training on Gymnasium's environments: ours."""

import time

import keras
import protocol

import tf_reinforce as tfr

EPISODES = 16
_made = {}


def agent_for(env):
    """An agent as it begins, made once."""
    if env not in _made:
        agent = tfr.Reinforce.for_env(env)
        agent.compile(keras.optimizers.Adam(1e-2))
        agent.evaluate(env, episodes=8)
        agent.fit(env, epochs=1, episodes_per_epoch=EPISODES, verbose=0)
        variables = [*agent.variables, *agent.optimizer.variables]
        fresh = tfr.Reinforce.for_env(env)
        fresh.compile(keras.optimizers.Adam(1e-2))
        fresh._build_optimizer()
        given = [*fresh.variables, *fresh.optimizer.variables]
        _made[env] = agent, variables, [v.numpy() for v in given]
    agent, variables, fresh = _made[env]
    for variable, value in zip(variables, fresh, strict=True):
        variable.assign(value)
    return agent


def train(env, envs, steps, seed):
    """Learns from about so many steps, from scratch."""
    agent = agent_for(env)
    began = time.perf_counter()
    options = dict(num_envs=envs, episodes_per_epoch=EPISODES, seed=seed, verbose=0)
    agent.fit(env, steps=steps, **options)
    return {"seconds": time.perf_counter() - began, "steps": agent.env_steps}


if __name__ == "__main__":
    protocol.serve({"train": train})
