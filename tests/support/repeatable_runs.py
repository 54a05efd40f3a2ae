"""Short trainings, and the digests by which tests compare them."""

import functools
import hashlib

import gymnasium as gym
import keras
from toys import rewinding

import tf_reinforce as tfr

NAMES = ("CartPole-v1", "Pendulum-v1")
BATCH = {"episodes_per_epoch": 5, "max_episode_steps": 60, "verbose": 0}


def make(name, seed=0):
    """Returns an agent with stateful parts: normalizer, value model and Adam."""
    keras.utils.set_random_seed(0)  # for the value model; the policy has its own seed
    value = keras.Sequential([keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    return tfr.Reinforce.for_env(
        name,
        hidden=(16,),
        seed=seed,
        baseline=tfr.baselines.Value(value),
        gae_lambda=0.95,
        normalize_observations=True,
    )


@functools.cache
def traced(name):
    agent = make(name)
    return agent, rewinding(agent, gym.make(name))


def renewed(name):
    """Returns one cached agent with its initial variables; its programs stay traced."""
    agent, rewind = traced(name)
    rewind()
    return agent


def weights(agent):
    """Returns a SHA-256 for each weight, counter and optimizer variable."""
    variables = [*agent.variables, *agent.optimizer.variables]
    return [hashlib.sha256(variable.numpy()).hexdigest() for variable in variables]


def logs(history):
    return {
        name: [float(value).hex() for value in values]
        for name, values in history.history.items()
        if name != "steps_per_second"
    }


def digest(agent, history):
    """Returns one SHA-256 of all weights and all logs."""
    facts = weights(agent), sorted(logs(history).items())
    return hashlib.sha256(repr(facts).encode()).hexdigest()


def train(name, num_envs=4, epochs=4, make=make):
    agent = make(name)
    history = agent.fit(name, epochs=epochs, seed=0, num_envs=num_envs, **BATCH)
    return agent, history


@functools.cache
def reference(name):
    """Returns weights, logs and digest after four epochs with seed 0."""
    agent, history = train(name, make=renewed)
    return weights(agent), logs(history), digest(agent, history)
