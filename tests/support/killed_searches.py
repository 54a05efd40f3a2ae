"""Kills processes that store trials, and counts the finished trials that are lost.

    python killed_searches.py FOLDER NUM_KILLS SEED

A process stores trials without training, and prints the index and the value of each
finished trial. SIGKILL ends it at a random moment, and the next process continues. The
program prints the counts as JSON.
"""

import json
import os
import pathlib
import random
import signal
import sys

from tf_reinforce.experiments import search_space
from tf_reinforce.experiments import tuning
from tf_reinforce.experiments import tuning_trial

MAX_SECONDS = 0.15  # from the first trial of a process to its death
RANGE = {"low": 0.0, "high": 1.0}
CONFIG = tuning.SearchConfig(
    "Killed-v0",
    {"env_kwargs": {}, "agent": {}, "fit": {"steps": 3}, "evaluation": {}},
    {"agent": {"gamma": RANGE, "gae_lambda": RANGE}},
    engine="host",
    objective="return",
    minimize=True,
    target=None,
    sampler="tpe",
    prune=False,
)


def run_without_training(task, trial, index):
    """Returns a value that depends on the settings of the trial only."""
    agent = search_space.suggest(task.ranges, task.settings, trial)["agent"]
    value = agent["gamma"] + agent["gae_lambda"] ** 2
    for step in range(3):
        trial.report(value + 3 - step, step)
    return value


def store_trials(search, count, notify=lambda index, value: None):
    for index in search.missing(count):
        search.run_trial(index)
        notify(index, search.finished()[-1].value)


def run_killed_process(folder, rng):
    """Returns the printed trials of a process that is killed at a random moment."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        with tuning.open_search(folder, CONFIG) as search:
            os.write(writer, b"[]\n")

            def notify(*trial):
                os.write(writer, f"{json.dumps(trial)}\n".encode())

            store_trials(search, 10**4, notify)
    os.close(writer)
    with open(reader) as lines:
        lines.readline()  # the process has begun
        signal.signal(signal.SIGALRM, lambda *_: os.kill(process, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, MAX_SECONDS))
        printed = [json.loads(line) for line in lines if line.endswith("\n")]
    os.waitpid(process, 0)
    return printed


def main(folder, num_kills, seed):
    tuning_trial.run = run_without_training
    tuning._MAX_TRIES = num_kills
    rng, printed = random.Random(seed), []
    for _ in range(num_kills):
        printed += run_killed_process(folder / "killed", rng)
    with tuning.open_search(folder / "killed", CONFIG) as search:
        count = len(search.finished()) + 3
        store_trials(search, count)
        stored = {search.index(x): x.value for x in search.finished()}
        num_stored = len(search.study.trials)
    with tuning.open_search(folder / "whole", CONFIG) as search:
        store_trials(search, count)
        expected = {search.index(x): x.value for x in search.finished()}
    result = {
        "printed": len(printed),
        "lost": sum(stored.get(index) != value for index, value in printed),
        "interrupted": num_stored - count,
        "unequal": len(stored.items() ^ expected.items()),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
