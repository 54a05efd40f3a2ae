"""Measures the memory, files, threads and processes that deleted objects keep.

    python stress/memory.py [--count 200] [--only NAME] [--out FILE.json]

For each subject, a new process makes, uses and deletes objects one after another. The
measured value is the growth of resident memory for each object, as the median over four
blocks of objects. The limit of a subject is its reference plus 1 MB. A reference is the
same work with a plain Keras model and a traced function.
"""

import argparse
import ctypes
import gc
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import threading

import gymnasium
import numpy as np

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
BLOCKS = 4
WARM_UP = 5
MARGIN = 1.0  # MB that an object may keep beyond its reference


def plain_model():
    """Trains a plain Keras model for one step with a traced function."""
    import keras
    import tensorflow as tf

    layers = [keras.layers.Dense(64, "tanh") for _ in range(2)]
    model = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(2)])
    optimizer = keras.optimizers.Adam(0.01)
    optimizer.build(model.trainable_variables)

    @tf.function(autograph=False)
    def step(observations, actions):
        with tf.GradientTape() as tape:
            losses = tf.nn.sparse_softmax_cross_entropy_with_logits(
                actions, model(observations)
            )
            loss = tf.reduce_mean(losses)
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    step(np.zeros((8, 4), "float32"), np.zeros(8, "int32"))


FIT = dict(epochs=1, episodes_per_epoch=2, num_envs=2, verbose=0)


def agent_on(make, head=None, **options):
    """Returns a function that makes, trains and deletes an agent."""

    def use():
        import tf_reinforce as tfr

        env = make()
        tfr.Reinforce.for_env(env, head=head).fit(env, **FIT, **options)

    return use


def cartpole_twin():
    import tf_reinforce as tfr

    return tfr.envs.CartPole()


def gymnasium_cartpole():
    return gymnasium.make("CartPole-v1")


def env_of(make, method="fit"):
    """Returns a function that uses a new environment with one agent."""
    agents = []

    def use():
        import tf_reinforce as tfr

        env = make()
        if not agents:
            agents.append(tfr.Reinforce.for_env(env))
        if method == "fit":
            agents[0].fit(env, **FIT)
        else:
            agents[0].evaluate(env, 2)

    return use


class Crashing(gymnasium.Wrapper):
    """An environment of which one step in a thousand raises an exception."""

    def reset(self, *, seed=None, options=None):
        self._rng = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self._rng.random() < 0.001:
            raise RuntimeError("the simulator has crashed")
        return super().step(action)


def long_training():
    """Returns a function that continues a training whose environments crash."""
    agents = []

    def use():
        import tf_reinforce as tfr

        make = lambda: Crashing(gymnasium_cartpole())  # noqa: E731
        if not agents:
            agents.append(tfr.Reinforce.for_env(make))
        with tempfile.TemporaryDirectory() as folder:
            agents[0].fit(
                make,
                epochs=10,
                episodes_per_epoch=4,
                num_envs=2,
                on_env_error="restart",
                callbacks=[tfr.callbacks.EpisodeLogger(f"{folder}/episodes.csv")],
                validation_env="CartPole-v1",
                validation_episodes=2,
                verbose=0,
            )

    return use


def gym_id():
    return "CartPole-v1"


def pendulum_id():
    return "Pendulum-v1"


# The function, the name of the reference, and the divisor of the number of objects.
SUBJECTS = {
    "Keras model": (plain_model, None, 1),
    "agent on Gymnasium": (agent_on(gym_id), "Keras model", 1),
    "Gaussian agent on Gymnasium": (
        agent_on(pendulum_id, "Gaussian", max_episode_steps=5), "Keras model", 4,
    ),
    "agent on a TensorEnv": (agent_on(cartpole_twin), "Keras model", 1),
    "TensorEnv of one agent": (env_of(cartpole_twin), None, 1),
    "Gymnasium environment of one agent": (env_of(gymnasium_cartpole), None, 1),
    "evaluation on a TensorEnv": (env_of(cartpole_twin, "evaluate"), None, 1),
    "evaluation on Gymnasium": (env_of(gym_id, "evaluate"), None, 1),
    "ten updates with crashes": (long_training(), None, 1),
    "agent with a worker pool": (agent_on(gym_id, workers=2), "Keras model", 8),
}  # fmt: skip


def resident():
    """Returns the resident memory of the process in MB."""
    for _ in range(2):
        gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def handles():
    """Returns the numbers of open files, threads and child processes."""
    children = pathlib.Path("/proc/self/task", str(os.getpid()), "children")
    return {
        "files": len(os.listdir("/proc/self/fd")),
        "threads": threading.active_count(),
        "processes": len(children.read_text().split()),
    }


def measure(name, count):
    """Returns the growth for each object of a subject, in the current process."""
    use, _, divisor = SUBJECTS[name]
    size = max(count // divisor // BLOCKS, 1)
    for _ in range(WARM_UP):
        use()
    before, sizes = handles(), [resident()]
    for _ in range(BLOCKS):
        for _ in range(size):
            use()
        sizes.append(resident())
    growth = [(b - a) / size for a, b in zip(sizes, sizes[1:])]
    after = handles()
    return {
        "objects": size * BLOCKS,
        "mb_per_object": round(statistics.median(growth), 3),
        "mb_per_object_of_each_block": [round(x, 3) for x in growth],
        "kept": {kind: after[kind] - before[kind] for kind in after},
    }


def judge(results):
    """Adds the limit to each result; returns the names of subjects beyond it."""
    failed = []
    for name, result in results.items():
        reference = SUBJECTS[name][1]
        if name == "Keras model":
            continue
        base = 0.0 if reference is None else results[reference]["mb_per_object"]
        result["limit"] = round(base + MARGIN, 3)
        beyond = result["mb_per_object"] > result["limit"]
        if beyond or any(n > 0 for n in result["kept"].values()):
            failed.append(name)
    return failed


def with_references(names):
    """Returns the names of subjects, after the references of their limits."""
    references = (SUBJECTS[name][1] for name in names)
    return list(dict.fromkeys([*filter(None, references), *names]))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--count", type=int, default=200, help="objects of a subject")
    parser.add_argument("--only", choices=SUBJECTS, action="append")
    parser.add_argument("--out", help="JSON file for the results")
    parser.add_argument("--child", choices=SUBJECTS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        print(json.dumps(measure(options.child, options.count)))
        return 0
    results = {}
    for name in with_references(options.only or SUBJECTS):
        command = [sys.executable, __file__, "--child", name]
        command += ["--count", str(options.count)]
        child = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
        results[name] = json.loads(child.stdout.splitlines()[-1])
        failed = judge(results)
        print(f"{name}: {results[name]}", flush=True)
    print(f"{len(results)} subjects, {len(failed)} beyond the limit: {failed}")
    if options.out:
        content = {"count": options.count, "failed": failed, "subjects": results}
        pathlib.Path(options.out).write_text(json.dumps(content, indent=2) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
