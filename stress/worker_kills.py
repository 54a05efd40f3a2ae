"""Kills workers during trainings, and compares the results with those without kills.

    python stress/worker_kills.py [--kills 200] [--seed 0] [--kinds local ray]

SIGKILL comes at random moments. Half of the kills end workers of this machine, and half
end parts of a Ray cluster: the process of a worker, its actor, or a whole node, which is
then replaced. The trainings have `on_env_error="restart"`. The digests of their weights,
logs and episodes must equal those of a training in one process without kills, and the log
must count restarts. No process may remain after a training.
"""

import argparse
import collections
import contextlib
import ctypes
import functools
import hashlib
import itertools
import json
import math
import os
import pathlib
import random
import signal
import sys
import threading
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import cloudpickle
import gymnasium as gym
import keras
import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests" / "support"))
import ray_cluster

import tf_reinforce as tfr
from tf_reinforce.engine import agent_state

UPDATES, WORKERS, SEED = 12, 3, 11
MAX_KILLS = 4  # in one update; an episode may lose ten workers
STEP_TIMEOUT = 60.0  # a worker that ends for this reason is no kill
WORKER = b"TF_REINFORCE_WORKER="
# Workers receive the environments of this file without it: it imports TensorFlow.
cloudpickle.register_pickle_by_value(sys.modules[__name__])


class Maze(gym.Env):
    """A random walk with nested observations and nested, masked actions.

    An illegal action raises an error. The seed determines the lengths of episodes, but
    not how long the steps take.
    """

    observation_space = gym.spaces.Dict(
        place=gym.spaces.Box(-math.inf, math.inf, (2,)), flags=gym.spaces.MultiBinary(2)
    )
    action_space = gym.spaces.Dict(
        choice=gym.spaces.Discrete(4, start=1), push=gym.spaces.Box(-1, 1, (2,))
    )

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.place = self.np_random.normal(size=2)
        return self._observation(), self._info()

    def step(self, action):
        time.sleep(random.uniform(0, 0.002))
        if not self.mask[action["choice"] - 1]:
            raise ValueError(f"{action} is illegal with the mask {self.mask}")
        self.place = 0.9 * self.place + 0.1 * (action["push"] + action["choice"])
        terminated = bool(self.np_random.random() < 0.05)
        reward = -float(np.sum(self.place**2))
        return self._observation(), reward, terminated, False, self._info()

    def _observation(self):
        flags = self.np_random.integers(2, size=2).astype("int8")
        return {"place": self.place.astype("float32"), "flags": flags}

    def _info(self):
        self.mask = self.np_random.integers(2, size=4, dtype=np.int8)
        self.mask[self.np_random.integers(4)] = 1
        return {"action_mask": {"choice": self.mask, "push": None}}


def _simple(env, fit, **options):
    return tfr.Reinforce.for_env(env, hidden=(16,), **options), env, fit


def _recurrent():
    """Returns a training whose number of episodes depends on their lengths."""
    inputs = keras.Input((None, 4))
    features = keras.layers.GRU(8, return_sequences=True)(inputs)
    agent = tfr.Reinforce(keras.Model(inputs, keras.layers.Dense(2)(features)))
    agent.compile(keras.optimizers.Adam(0.01))
    return agent, "CartPole-v1", {"steps_per_epoch": 300}


VALUE = {"kind": "value", "hidden": [16], "passes": 2, "minibatch_size": 32}
# Functions that return a compiled agent, the environment, and arguments of `fit`
TRAININGS = {
    "CartPole-v1": functools.partial(_simple, "CartPole-v1", {"episodes_per_epoch": 20}),
    "Pendulum-v1, value, normalizer": functools.partial(
        _simple,
        "Pendulum-v1",
        {"episodes_per_epoch": 12, "max_episode_steps": 80},
        baseline=VALUE,
        gae_lambda=0.9,
        normalize_observations=True,
    ),
    "nested spaces, masks, random durations": functools.partial(
        _simple,
        Maze,
        {"episodes_per_epoch": 16, "max_episode_steps": 40},
        action_mask="info/action_mask",
    ),
    "recurrent, steps_per_epoch": _recurrent,
}


class EpisodeDigest(tfr.callbacks.EpisodeCallback):
    """Computes a digest of all episodes, in the order in which callbacks receive them."""

    def __init__(self):
        super().__init__()
        self.sha = hashlib.sha256()

    def on_episodes_collected(self, episodes, logs=None):
        for array in keras.tree.flatten(episodes._asdict()):
            if array is not None:
                self.sha.update(array.tobytes())

    def on_episode_end(self, episode, logs=None):
        self.sha.update(repr((episode, sorted(logs.items()))).encode())


def train(name, *callbacks, **options):
    """Trains an agent; returns the number of restarts, and digests of the training."""
    keras.utils.set_random_seed(0)  # for the policies that are made with Keras
    agent, env, fit = TRAININGS[name]()
    episodes = EpisodeDigest()
    fit = {"epochs": UPDATES, "seed": SEED, "num_envs": 8, "verbose": 0, **fit}
    options = {"on_env_error": "restart", **fit, **options}
    logs = agent.fit(env, callbacks=[episodes, *callbacks], **options).history
    restarts = sum(logs.pop("worker_restarts", [0]))
    logs.pop("steps_per_second")
    texts = {key: [float(x).hex() for x in logs[key]] for key in sorted(logs)}
    arrays = [variable.numpy().tobytes() for variable in agent_state.variables(agent)]
    return int(restarts), {
        "weights": hashlib.sha256(b"".join(arrays)).hexdigest(),
        "logs": hashlib.sha256(repr(texts).encode()).hexdigest(),
        "episodes": episodes.sha.hexdigest(),
    }


def parents_of_processes():
    """Returns a dict from the numbers of all living processes to those of their parents.

    Ended processes that nobody has waited for are left out.
    """
    parents = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, parent = path.read_text().rpartition(")")[2].split()[:2]
            if state not in "ZX":
                parents[int(path.parent.name)] = int(parent)
    return parents


def descendants(parents):
    """Returns the numbers of the living processes that descend from this one."""
    found = [os.getpid()]
    for one in found:
        found += [child for child, parent in parents.items() if parent == one]
    return found[1:]


def workers_in(parents):
    """Returns the processes of workers among the descendants of this process."""
    return [x for x in descendants(parents) if WORKER in _read(x, "environ")]


def remaining(words):
    """Waits until no descendant of this process has a word in command or environment."""
    deadline = time.monotonic() + 10
    while True:
        texts = {
            pid: _read(pid, "cmdline") + _read(pid, "environ")
            for pid in descendants(parents_of_processes())
        }
        found = [pid for pid, text in texts.items() if any(x in text for x in words)]
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.05)


def _read(pid, name):
    try:
        return pathlib.Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


class Killer(keras.callbacks.Callback):
    """Kills workers of a training at random moments.

    Args:
        rng: `random.Random`.
        max_kills: Int, the number of kills in this training.
        cluster: `ray_cluster.Cluster`, or `None` for workers of this machine.
    """

    def __init__(self, rng, max_kills, cluster):
        super().__init__()
        self.kills, self._left = collections.Counter(), 0
        self._rng, self._max_kills, self._cluster = rng, max_kills, cluster
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def on_train_begin(self, logs=None):
        self._thread.start()

    def on_epoch_begin(self, epoch, logs=None):
        self._left = MAX_KILLS

    def on_train_end(self, logs=None):
        self.end()

    def end(self):
        self._ended.set()
        self._thread.join()

    def _run(self):
        while not self._ended.wait(self._rng.uniform(0.0, 0.5)):
            parents = parents_of_processes()
            workers = workers_in(parents)
            if workers and self._left > 0 and self.kills.total() < self._max_kills:
                self._left -= 1
                self._kill(self._rng.choice(workers), parents)

    def _kill(self, worker, parents):
        forms = ["process"] if self._cluster is None else ["process", "actor", "node"]
        form = self._rng.choice(forms)
        if form == "node":
            self._cluster.kill_node()
            self._cluster.add_node()
        elif form == "actor" and not _read(parents[worker], "cmdline").startswith(b"ray"):
            return
        else:
            with contextlib.suppress(ProcessLookupError):
                os.kill(worker if form == "process" else parents[worker], signal.SIGKILL)
        self.kills[form] += 1


def run(kind, num_kills, rng, workers, cluster, expected):
    """Trains until enough workers were killed; returns counts, and a dict of problems."""
    totals, problems = collections.Counter(), {}
    for name in itertools.cycle(TRAININGS):
        if sum(totals[x] for x in ("process", "actor", "node")) >= num_kills:
            break
        if name not in expected:
            _, expected[name] = train(name)
        killer = Killer(rng, num_kills, cluster)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a worker may die after the last collection
            try:
                options = dict(workers=workers, step_timeout=STEP_TIMEOUT)
                restarts, digests = train(name, killer, **options)
            finally:
                killer.end()
        totals.update(**killer.kills, trainings=1, restarts=restarts)
        found = [f"the {x} differ" for x in digests if digests[x] != expected[name][x]]
        if killer.kills.total() > 2 and not restarts:
            found.append("no restart was counted")
        if pids := remaining((WORKER,)):
            found.append(f"processes remain: {pids}")
        print(f"{kind}, {name}: {dict(killer.kills)}, {restarts} restarts", *found)
        sys.stdout.flush()
        if found:
            problems[f"{kind} {totals['trainings']}, {name}"] = found
    return dict(totals), problems


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    kinds = ["local", "ray"]
    parser.add_argument("--kinds", nargs="*", choices=kinds, default=kinds)
    parser.add_argument("--out", type=pathlib.Path, metavar="FILE.json")
    options = parser.parse_args()
    set_child_subreaper = 36  # orphans among the descendants become children
    ctypes.CDLL(None).prctl(set_child_subreaper, 1, 0, 0, 0)
    rng, expected, problems, counts = random.Random(options.seed), {}, {}, {}
    kills = -(-options.kills // len(options.kinds))
    for kind in options.kinds:
        with contextlib.ExitStack() as stack:
            workers, cluster = WORKERS, None
            if kind == "ray":
                cluster = stack.enter_context(ray_cluster.running(3, WORKERS))
                workers = tfr.collect.RayWorkers(WORKERS, address=cluster.address)
            counts[kind], found = run(kind, kills, rng, workers, cluster, expected)
            problems |= found
    result = {**counts, "problems": problems}
    print(json.dumps(result, indent=2))
    if options.out:
        options.out.write_text(json.dumps(result, indent=2) + "\n")
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
