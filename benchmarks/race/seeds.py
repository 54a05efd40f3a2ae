"""Trains one seed or many seeds on CartPole's twin, from a cold start.

    python benchmarks/race/seeds.py one SEED [UPDATES EPISODES]
    python benchmarks/race/seeds.py many K [UPDATES EPISODES]

Prints one line of JSON.
"""

import json
import resource
import sys

import tensorflow as tf

import tf_reinforce as tfr

UPDATES, EPISODES = map(int, sys.argv[3:] or (25, 16))
LEARNING_RATE = 1e-2

env = tfr.envs.CartPole()


def make(seed):
    agent = tfr.Reinforce.for_env(env, seed=seed, learning_rate=LEARNING_RATE)
    agent.compile(agent.optimizer, steps_per_execution=UPDATES)
    return agent


def train_one(seed):
    agent = make(seed)
    options = dict(epochs=UPDATES, episodes_per_epoch=EPISODES, seed=seed, verbose=0)
    agent.fit(env, **options)
    return {"steps": agent.env_steps}


def train_many(count):
    tf.config.threading.set_intra_op_parallelism_threads(1)  # each program uses one core
    options = dict(epochs=UPDATES, episodes_per_epoch=EPISODES)
    results = tfr.train_seeds(make, env, range(count), **options)
    returns = results.history["episode_return"].tolist()
    return {"steps": results.env_steps, "returns": returns}


if __name__ == "__main__":
    answer = {"one": train_one, "many": train_many}[sys.argv[1]](int(sys.argv[2]))
    answer["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(answer))
