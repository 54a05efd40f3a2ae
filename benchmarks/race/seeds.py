"""CartPole's twin from a cold start: one seed, or many of them at once.

    python benchmarks/race/seeds.py one SEED
    python benchmarks/race/seeds.py many K [UPDATES]

Prints a line of JSON.
"""

import json
import resource
import sys

import tf_reinforce as tfr

EPISODES, RATE = 16, 1e-2
UPDATES = int(sys.argv[3]) if len(sys.argv) > 3 else 25

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
    options = dict(epochs=UPDATES, episodes_per_epoch=EPISODES)
    trained = tfr.train_seeds(make, world, range(count), **options)
    returns = trained.history["episode_return"].tolist()
    return {"steps": trained.env_steps, "returns": returns}


if __name__ == "__main__":
    answer = {"one": one, "many": many}[sys.argv[1]](int(sys.argv[2]))
    answer["gigabytes"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(json.dumps(answer))
