"""Trains for a long time in an environment that crashes, and looks for growth.

    python stress/soak.py --minutes 30 --out soak.json

The training validates its policy, writes checkpoints, and restarts an environment that
raises an exception in one of a thousand steps. The program counts episodes, restarts and
checkpoints. It compares memory and open files at the end with those after the first
fifth of the time.

TensorFlow's oneDNN library keeps up to 1024 compiled operations for each thread, one for
each size of a batch. `TF_ENABLE_ONEDNN_OPTS=0` switches this cache off.
"""

import argparse
import json
import os
import pathlib
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gymnasium as gym
import keras
import numpy as np

import tf_reinforce as tfr

EPISODES = 8  # episodes of each update
CRASHES = 1e-3  # probability that a step raises an exception
MIB = 2**20


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
        now = time.monotonic()
        if now >= self.next:
            self.next = now + self.period
            self.samples.append(measure())
        if now >= self.end:
            self.model.stop_training = True


def measure():
    """Returns the memory in MiB, and the numbers of open files and of threads."""
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    files = len(os.listdir("/proc/self/fd"))
    return (
        pages * os.sysconf("SC_PAGE_SIZE") / MIB,
        files,
        len(os.listdir("/proc/self/task")),
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
    expected = counts["episodes expected"]
    return not (
        counts["episodes of the agent"] == counts["episodes in the log"] == expected
        and counts["environment restarts"] > 0
        and counts["open files at the end"]
        <= counts["open files after a fifth of the time"]
    )


if __name__ == "__main__":
    sys.exit(main())
