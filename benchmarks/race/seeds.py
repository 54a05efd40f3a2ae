"""CartPole's twin from a cold start: one seed, or many of them at once.

    python benchmarks/race/seeds.py one SEED [UPDATES EPISODES]
    python benchmarks/race/seeds.py many K [UPDATES EPISODES]

Prints a line of JSON.
"""

import json
import resource
import sys

import tensorflow as tf

import tf_reinforce as tfr

UPDATES, EPISODES = map(int, sys.argv[3:] or (25, 16))
RATE = 1e-2

world = tfr.envs.CartPole()


def make(seed):
    agent = tfr.Reinforce.for_env(world, seed=seed, learning_rate=RATE)
    agent.compile(agent.optimizer, steps_per_execution=UPDATES)
    return agent


def one(seed):
    agent = make(seed)
    options = dict(epochs=UPDATES, episodes_per_epoch=EPISODES, seed=seed, verbose=0)
    agent.fit(world, **options)
    return {"steps": agent.env_steps}


def many(count):
    tf.config.threading.set_intra_op_parallelism_threads(1)  # each program has a core
    options = dict(epochs=UPDATES, episodes_per_epoch=EPISODES)
    trained = tfr.train_seeds(make, world, range(count), **options)
    returns = trained.history["episode_return"].tolist()
    return {"steps": trained.env_steps, "returns": returns}


if __name__ == "__main__":
    answer = {"one": one, "many": many}[sys.argv[1]](int(sys.argv[2]))
    answer["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(answer))
