"""Trains 20 configurations again and again, and compares SHA-256 digests.

    python stress/repeatability.py [--out FILE.json] [--repeats 5] [--only NAME …]

Each configuration is trained with one seed in five processes with one thread and in five
processes with two threads, each time with 1, 4 and 16 environments: 600 short trainings.
A process has its own hash seed and its own order of the configurations. A digest covers
all weights, the state of all optimizers, the logs except `steps_per_second`, and the
episodes. All 30 digests of a configuration must be equal, with one exception: a Gymnasium
`VectorEnv` chooses its own reset seeds, so that its digests may depend on the number of
environments. A tensor environment ignores the number of environments.
"""

import argparse
import collections
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
SEED, THREADS, NUM_ENVS = 7, (1, 2), (1, 4, 16)

if __name__ == "__main__" and "--child" not in sys.argv:
    CONFIGURATIONS = {}  # the parent process does not import TensorFlow
else:
    from tf_reinforce.support import startup

    startup.import_tensorflow()
    from repeatable_configurations import CONFIGURATIONS


def train(name, num_envs):
    """Returns a dict of digests of one training of a configuration."""
    import keras

    import tf_reinforce as tfr

    keras.utils.set_random_seed(0)  # for the policies that a user makes with Keras

    class Digest(tfr.callbacks.EpisodeCallback):
        """Computes a digest of all episodes."""

        sha = hashlib.sha256()

        def on_episodes_collected(self, episodes, logs=None):
            for array in keras.tree.flatten(episodes):
                if array is not None:
                    self.sha.update(array.tobytes())

    agent, env, options = CONFIGURATIONS[name](num_envs)
    episodes = Digest()
    history = agent.fit(
        env,
        seed=SEED,
        num_envs=num_envs,
        callbacks=[episodes],
        verbose=0,
        **{"epochs": 2, "episodes_per_epoch": 4, "max_episode_steps": 12, **options},
    ).history
    optimizers = [agent.optimizer, getattr(agent.baseline, "optimizer", None)]
    variables = [v for optimizer in optimizers if optimizer for v in optimizer.variables]
    logs = {
        key: [float(value).hex() for value in values]
        for key, values in sorted(history.items())
        if key != "steps_per_second"
    }
    return {
        "weights": _digest(agent.variables),
        "optimizer": _digest(variables),
        "logs": hashlib.sha256(repr(logs).encode()).hexdigest(),
        "episodes": episodes.sha.hexdigest(),
    }


def _digest(variables):
    sha = hashlib.sha256()
    for variable in variables:
        sha.update(variable.numpy().tobytes())
    return sha.hexdigest()


def child(threads, repeat, only):
    """Trains each configuration with each number of environments, and prints digests."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    names = [name for name in CONFIGURATIONS if not only or name in only]
    for name in names[repeat:] + names[:repeat]:
        for num_envs in NUM_ENVS:
            digests = train(name, num_envs)
            record = {"name": name, "threads": threads, "num_envs": num_envs, **digests}
            print("DIGEST", json.dumps({**record, "repeat": repeat}), flush=True)


def run_children(repeats, only):
    """Returns the records of all trainings."""
    records = []
    for repeat in range(repeats):
        for threads in THREADS:
            numbers = str(threads), str(repeat)
            run = subprocess.run(
                [sys.executable, __file__, "--child", *numbers, "--only", *only],
                env={
                    **os.environ,
                    "PYTHONPATH": str(ROOT),
                    "PYTHONHASHSEED": str(repeat + 1),
                    "TF_CPP_MIN_LOG_LEVEL": "2",
                },
                stdout=subprocess.PIPE,
                text=True,
                check=True,
            )
            lines = [x for x in run.stdout.splitlines() if x.startswith("DIGEST ")]
            records += [json.loads(line.partition(" ")[2]) for line in lines]
            unequal = sum(map(bool, compare(records).values()))
            print(
                f"repeat {repeat}, {threads} threads: {len(records)} trainings so far, "
                f"{unequal} groups with unequal digests",
                flush=True,
            )
    return records


def compare(records):
    """Returns the names of the digests that differ, for each configuration.

    Digests of a `VectorEnv` are compared for equal numbers of environments only.
    """
    groups = collections.defaultdict(list)
    for record in records:
        is_vector_env = record["name"].startswith("vector_env")
        groups[record["name"], record["num_envs"] if is_vector_env else 0].append(record)
    parts = "weights", "optimizer", "logs", "episodes"
    return {
        f"{name} ({num_envs} environments)" if num_envs else name: [
            part for part in parts if len({record[part] for record in group}) > 1
        ]
        for (name, num_envs), group in groups.items()
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", metavar="FILE.json")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", nargs="*", default=[], metavar="NAME")
    parser.add_argument("--child", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        return child(*options.child, options.only)
    start = time.perf_counter()
    records = run_children(options.repeats, options.only)
    differences = compare(records)
    names = {record["name"] for record in records}
    unequal = {group: parts for group, parts in differences.items() if parts}
    result = {
        "configurations": len(names),
        "trainings": len(records),
        "groups_of_equal_digests": len(differences) - len(unequal),
        "unequal": unequal,
        "seconds": round(time.perf_counter() - start),
        "records": records,
    }
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=2) + "\n")
    print(
        f"repeatability: {len(names)} configurations, {len(records)} trainings, "
        f"{len(unequal)} of {len(differences)} groups with unequal digests {unequal} in "
        f"{result['seconds']} s"
    )
    expected = len(names) * len(THREADS) * len(NUM_ENVS) * options.repeats
    return int(bool(unequal) or len(records) != expected or not records)


if __name__ == "__main__":
    sys.exit(main())
