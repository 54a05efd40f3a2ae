"""Defines requests and answers between driver and worker: one JSON line each."""

import json
import os
import subprocess
import sys
import time

SOLVED = 475  # mean return over 100 episodes, from Gymnasium's registry


def serve(operations):
    """Answers the requests on standard input until it is closed.

    Args:
        operations: Dict from names to functions. The keywords of a request are
            the arguments of the function, which returns a dict.
    """
    output, sys.stdout = sys.stdout, sys.stderr  # libraries may print
    for line in sys.stdin:
        request = json.loads(line)
        answer = operations[request.pop("op")](**request)
        print(json.dumps(answer), file=output, flush=True)


def time_training(update, steps):
    """Calls `update` until it has made `steps` steps, and measures the time.

    Args:
        update: Function that makes one update and returns its number of steps.
        steps: Int, the least number of steps.
    """
    steps_done, start = 0, time.perf_counter()
    while steps_done < steps:
        steps_done += int(update())
    return {"seconds": time.perf_counter() - start, "steps": steps_done}


def train_until_solved(update, greedy, limit):
    """Trains until the mean return of 100 greedy episodes is at least 475.

    The agent is evaluated after every update. The time does not include evaluations.

    Args:
        update: Function that collects, makes one update and returns its steps.
        greedy: Function from observations `[100, 4]` to the most likely actions `[100]`.
        limit: Int, the number of steps after which training stops unsolved.

    Returns:
        Dict of `seconds`, `steps` and `return`, which is that of the last evaluation.
    """
    seconds, steps, value = 0.0, 0, 0.0
    while value < SOLVED and steps < limit:
        start = time.perf_counter()
        steps += int(update())
        seconds += time.perf_counter() - start
        value = greedy_return(greedy, seed=steps)
    return {"seconds": seconds, "steps": steps, "return": value}


def greedy_return(greedy, seed):
    """Returns the mean return of 100 episodes in Gymnasium's CartPole-v1."""
    import gymnasium
    import numpy as np

    envs = gymnasium.make_vec("CartPole-v1", 100)
    observations, _ = envs.reset(seed=seed)
    running, total = np.ones(100, bool), np.zeros(100)
    while running.any():
        actions = np.asarray(greedy(observations), "int64")
        observations, rewards, terminated, truncated, _ = envs.step(actions)
        total += rewards * running
        running &= ~(terminated | truncated)
    envs.close()
    return float(total.mean())


class Worker:
    """One implementation in a process of its own, seen from the driver."""

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

    def request(self, op, **arguments):
        """Sends a request and returns the answer, a dict."""
        self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self.name} ended without an answer to {op} {arguments}")
        return json.loads(line)

    def close(self):
        self._process.communicate()  # closes standard input, so that the worker ends
