"""Trains in an environment that crashes, and checks whether memory and open files grow.

    python stress/soak.py --minutes 30 --out soak.json

The training validates its policy, writes checkpoints, and restarts an environment that
raises an exception in one of a thousand steps. The program counts episodes, restarts and
checkpoints. It compares open files and threads at the end with those after the first
fifth of the time. In the last third of the time, memory must not grow by more than 5 MiB,
or by more than 5 MiB in ten minutes. The growth is the difference of two medians: of the
first and of the last third of the samples in this time.

Two things grow in every training, and would hide the growth of others: TensorFlow's
oneDNN library keeps up to 1024 compiled operations for each thread, one for each size of
a batch; and Keras' `History` keeps all logs. The program switches oneDNN off, and empties
the `History`.
"""

import argparse
import ctypes
import gc
import json
import os
import pathlib
import statistics
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["TF_ENABLE_ONEDNN_OPTS"] = "0"

import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr

EPISODES = 8  # episodes of each update
CRASHES = 1e-3  # probability that a step raises an exception
MIB = 2**20
GROWTH = 5.0  # largest growth in MiB
PERIOD = 10.0  # minutes in which memory may grow by `GROWTH`


class Crashing(gym.Wrapper):
    """An environment whose steps sometimes raise an exception."""

    def reset(self, *, seed=None, options=None):
        self._rng = np.random.default_rng(seed)
        return super().reset(seed=seed, options=options)

    def step(self, action):
        if self._rng.random() < CRASHES:
            raise RuntimeError("the simulator has crashed")
        return super().step(action)


def make():
    return Crashing(gym.make("CartPole-v1"))


class Measure(keras.callbacks.Callback):
    """Measures the process during training, and stops training after some seconds."""

    def __init__(self, seconds):
        super().__init__()
        self.end = time.monotonic() + seconds
        self.period = seconds / 60
        self.next = time.monotonic()
        self.samples, self.restarts = [], 0
        self.updates, self.episodes = 0, 0

    def on_epoch_end(self, epoch, logs=None):
        self.updates += 1
        self.episodes += logs["episodes"]
        self.restarts += logs["env_restarts"]
        self.model.history.epoch.clear()
        for values in self.model.history.history.values():
            values.clear()
        now = time.monotonic()
        if now >= self.next:
            self.next = now + self.period
            self.samples.append(measure())
        if now >= self.end:
            self.model.stop_training = True


def measure():
    """Returns the memory in MiB, and the numbers of open files and of threads."""
    gc.collect()
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    files = len(os.listdir("/proc/self/fd"))
    return (
        pages * os.sysconf("SC_PAGE_SIZE") / MIB,
        files,
        len(os.listdir("/proc/self/task")),
    )


def growth_in_last_third(sizes):
    """Returns the growth of memory in the last third of a list of sizes."""
    last = sizes[-len(sizes) // 3 :]
    part = -(-len(last) // 3)
    return statistics.median(last[-part:]) - statistics.median(last[:part])


def is_good(counts):
    """Returns whether all episodes were counted, and memory and files did not grow."""
    expected = counts["episodes expected"]
    limit = GROWTH * max(1.0, counts["minutes"] / 3 / PERIOD)
    after, end = "after a fifth of the time", "at the end"
    return (
        counts["episodes of the agent"] == counts["episodes in the log"] == expected
        and counts["environment restarts"] > 0
        and counts["growth of memory in the last third of the time (MiB)"] <= limit
        and all(
            counts[f"{kind} {end}"] <= counts[f"{kind} {after}"]
            for kind in ("open files", "threads")
        )
    )


def train(minutes, folder):
    """Trains, and returns the counts."""
    agent = tfr.Reinforce.for_env(make, hidden=(16,), learning_rate=1e-4)
    measurement = Measure(60 * minutes)
    agent.fit(
        make,
        epochs=10**9,
        episodes_per_epoch=EPISODES,
        on_env_error="restart",
        callbacks=[
            measurement,
            keras.callbacks.CSVLogger(os.path.join(folder, "log.csv")),
            tfr.callbacks.EpisodeLogger(os.path.join(folder, "episodes.csv")),
        ],
        validation_env="CartPole-v1",
        validation_freq=50,
        resume=tfr.Checkpoints(folder, every_seconds=5),
        verbose=0,
    )
    rows = pathlib.Path(folder, "episodes.csv").read_text().count("\n") - 1
    first = measurement.samples[len(measurement.samples) // 5]
    last = measurement.samples[-1]
    return {
        "minutes": minutes,
        "updates": measurement.updates,
        "episodes expected": EPISODES * measurement.updates,
        "episodes of the agent": agent.episodes_seen,
        "episodes in the log": rows,
        "environment restarts": int(measurement.restarts),
        "environment steps": agent.env_steps,
        "checkpoints at the end": len(os.listdir(os.path.join(folder, "checkpoints"))),
        "memory after a fifth of the time (MiB)": round(first[0], 1),
        "memory at the end (MiB)": round(last[0], 1),
        "open files after a fifth of the time": first[1],
        "open files at the end": last[1],
        "threads after a fifth of the time": first[2],
        "threads at the end": last[2],
        "growth of memory in the last third of the time (MiB)": round(
            growth_in_last_third([sample[0] for sample in measurement.samples]), 1
        ),
        "memory samples (MiB)": [round(sample[0], 1) for sample in measurement.samples],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--minutes", type=float, default=2)
    parser.add_argument("--out", help="JSON file for the counts")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        counts = train(options.minutes, folder)
    print(json.dumps(counts, indent=2))
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(counts, indent=2) + "\n")
    return not is_good(counts)


if __name__ == "__main__":
    sys.exit(main())
