"""How a driver talks to a worker: one line of JSON for a request, one for the answer."""

import json
import os
import resource
import statistics
import subprocess
import sys
import time

SOLVED = 475  # mean return of 100 episodes, as Gymnasium's registry has it


def serve(operations):
    """Answers requests on standard input until it ends.

    Args:
        operations: Dict from names to functions of keywords that return a dict.
            `memory` is added to them.
    """
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries like to print
    operations = {"memory": memory, **operations}
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        answer = operations[request.pop("op")](**request)
        answer["wall"] = time.perf_counter() - began
        print(json.dumps(answer), file=answers, flush=True)


def memory():
    """GiB this process has had in use at the most."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {"most": most / 2**20}


def trained(update, steps):
    """How long `update`, which returns the steps it took, takes for so many in all."""
    done, began = 0, time.perf_counter()
    while done < steps:
        done += int(update())
    return {"seconds": time.perf_counter() - began, "steps": done}


def learned(learn, rows, prepare=lambda: ()):
    """The median of 7 calls of `learn`, after one more, with what `prepare` returns.

    Args:
        learn: Function that makes one update.
        rows: Int, steps an update learns from.
        prepare: Function without arguments; not counted.
    """
    seconds = []
    for _ in range(8):
        given = prepare()
        began = time.perf_counter()
        learn(*given)
        seconds.append(time.perf_counter() - began)
    return {"seconds": statistics.median(seconds[1:]), "rows": rows}


def until_solved(update, greedy, limit):
    """Trains until 100 episodes of the most likely actions return 475 on average.

    The clock stands still while they are played, which is after every update.

    Args:
        update: Function that collects, makes one update and returns the steps it took.
        greedy: Function from observations `[100, 4]` to the most likely actions `[100]`.
        limit: Steps after which to give up.

    Returns:
        Dict of `seconds`, `steps`, `return` (of the last evaluation).
    """
    seconds, steps, value = 0.0, 0, 0.0
    while value < SOLVED and steps < limit:
        began = time.perf_counter()
        steps += int(update())
        seconds += time.perf_counter() - began
        value = greedy_return(greedy, seed=steps)
    return {"seconds": seconds, "steps": steps, "return": value}


def greedy_return(greedy, seed):
    """The mean return of 100 episodes of Gymnasium's own CartPole-v1."""
    import gymnasium
    import numpy as np

    worlds = gymnasium.make_vec("CartPole-v1", 100)
    observations, _ = worlds.reset(seed=seed)
    running, total = np.ones(100, bool), np.zeros(100)
    while running.any():
        actions = np.asarray(greedy(observations), "int64")
        observations, rewards, terminated, truncated, _ = worlds.step(actions)
        total += rewards * running
        running &= ~(terminated | truncated)
    worlds.close()
    return float(total.mean())


def latency(call):
    """Microseconds of one call: the median over 20 rounds of at least 10 ms."""
    call()
    count, rounds = 1, []
    while _seconds(call, count) < 0.01:
        count *= 2
    for _ in range(20):
        rounds.append(_seconds(call, count) / count)
    return {"microseconds": 1e6 * statistics.median(rounds)}


def _seconds(call, count):
    began = time.perf_counter()
    for _ in range(count):
        call()
    return time.perf_counter() - began


class Worker:
    """One implementation in a process of its own, as it is asked."""

    def __init__(self, name, python, script, *arguments):
        self.name = name
        self._process = subprocess.Popen(
            [python, script, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
        )

    def ask(self, op, **given):
        """The answer to a request, a dict."""
        self._process.stdin.write(json.dumps({"op": op, **given}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended without an answer to {op} {given}")
        return json.loads(line)

    def close(self):
        self._process.communicate()  # nothing more is asked: it ends
