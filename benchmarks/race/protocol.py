"""How a driver talks to a worker: one line of JSON for a request, one for the answer."""

import json
import os
import subprocess
import sys
import time


def serve(operations):
    """Answers requests on standard input until it ends.

    Args:
        operations: Dict from names to functions of keywords that return a dict.
    """
    answers, sys.stdout = sys.stdout, sys.stderr  # libraries like to print
    for line in sys.stdin:
        request = json.loads(line)
        began = time.perf_counter()
        answer = operations[request.pop("op")](**request)
        answer["wall"] = time.perf_counter() - began
        print(json.dumps(answer), file=answers, flush=True)


class Worker:
    """One implementation in a process of its own, as it is asked."""

    def __init__(self, name, python, script, threads):
        self.name = name
        few = {} if threads is None else _threads(threads)
        self._process = subprocess.Popen(
            [python, script],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **few},
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
        self._process.stdin.close()
        self._process.wait()


def _threads(count):
    names = "OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"
    several = str(count > 1).lower()
    flags = {"XLA_FLAGS": f"--xla_cpu_multi_thread_eigen={several}"}
    return {**dict.fromkeys(names, str(count)), **flags}
