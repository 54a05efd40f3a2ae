"""Kills processes that store trials, and counts the finished trials that are lost.

    python killed_searches.py STORAGE NUM_KILLS SEED

A process stores trials without training, and prints the index and the value of each
finished trial. SIGKILL ends it at a random moment, and the next process continues. The
program prints the counts as JSON. It does not import TensorFlow.
"""

import json
import os
import random
import signal
import sys

import optuna

from tf_reinforce.experiments import tuning_storage

NAMES = ["x", "y"]
MAX_SECONDS = 0.15  # from the first trial of a process to its death


def open_study(storage):
    sampler = tuning_storage.SeededSampler(
        lambda seed: optuna.samplers.TPESampler(seed=seed, n_startup_trials=3), 0
    )
    return optuna.create_study(
        study_name="killed",
        storage=tuning_storage.open_storage(storage),
        sampler=sampler,
        load_if_exists=True,
    )


def store_trials(study, count=None, notify=lambda index, value: None):
    """Stores trials, whose values depend on their parameters only."""
    while count is None or len(tuning_storage.finished(study)) < count:
        trial = study.ask()
        index = tuning_storage.trial_index(study, trial)
        trial.set_user_attr(tuning_storage.INDEX, index)
        x = trial.suggest_float("x", 0, 1)
        y = trial.suggest_int("y", 1, 100, log=True)
        value = x + 1 / y
        for step in range(3):
            trial.report(value + 3 - step, step)
        study.tell(trial, value)
        notify(index, value)


def run_killed_process(storage, rng):
    """Returns the printed trials of a process that is killed at a random moment."""
    reader, writer = os.pipe()
    process = os.fork()
    if process == 0:
        study = open_study(storage)
        tuning_storage.retry_unfinished(study, NAMES, by_signal=True)
        os.write(writer, b"[]\n")
        store_trials(
            study,
            notify=lambda index, value: os.write(
                writer, f"{json.dumps([index, value])}\n".encode()
            ),
        )
    os.close(writer)
    with open(reader) as lines:
        lines.readline()  # the process has begun
        signal.signal(signal.SIGALRM, lambda *_: os.kill(process, signal.SIGKILL))
        signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-4, MAX_SECONDS))
        printed = [json.loads(line) for line in lines if line.endswith("\n")]
    os.waitpid(process, 0)
    return printed


def main(storage, num_kills, seed):
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    rng, printed = random.Random(seed), []
    for _ in range(num_kills):
        printed += run_killed_process(storage, rng)
    study = open_study(storage)
    retried = tuning_storage.retry_unfinished(study, NAMES, by_signal=True)
    store_trials(study, len(tuning_storage.finished(study)) + 3)
    trials = tuning_storage.finished(study)
    stored = {tuning_storage.trial_index(study, x): x.value for x in trials}
    plain = optuna.create_study(sampler=study.sampler)
    store_trials(plain, len(trials))
    expected = {x.number: x.value for x in plain.get_trials()}
    states = [x.state for x in study.get_trials()]
    result = {
        "printed": len(printed),
        "lost": sum(stored.get(index) != value for index, value in printed),
        "retried at the end": len(retried),
        "replaced": sum(map(tuning_storage.is_replaced, study.get_trials())),
        "twice": len(trials) - len(stored),
        "unfinished": sum(not state.is_finished() for state in states),
        "unequal": sum(stored.get(index) != expected[index] for index in expected),
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
