"""Lets environments fail in worker processes in many ways, and looks for what remains.

    python stress/worker_faults.py [--out FILE.json] [--only NAME …] [--kinds local ray]

Each trial is a process that collects episodes with two workers, on this machine or on a
Ray cluster of two nodes, which listens on 127.0.0.1 only. One environment fails
once: in `reset`, in `step` or in `close`. The process must name the fault within the time
limit plus five seconds, and no process may remain ten seconds later. In half of the
trials, the process is killed with SIGKILL while the environment fails. In further trials,
Ctrl-C arrives while the environment hangs.
"""

import argparse
import contextlib
import json
import os
import pathlib
import signal
import sys
import tempfile
import threading
import time
import uuid
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import gymnasium as gym
import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests" / "support"))
import ray_cluster

import tf_reinforce as tfr
from tf_reinforce.engine.collect import local_worker
from tf_reinforce.engine.collect import make_envs

TIMEOUT = 1.0  # `step_timeout` of the trials, in seconds
PLACES = "reset", "step", "close"
CLUSTER_TOKEN = f"TFR_STRESS={uuid.uuid4().hex}"  # in the environment of the cluster


class TwoArguments(Exception):
    def __init__(self, one, other):
        super().__init__(f"{one} and {other}")


class KeywordOnly(Exception):
    def __init__(self, *, code):
        super().__init__(f"code {code}")


class Unpicklable(Exception):
    def __init__(self):
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def raise_error(error):
    raise error


FAULTS = {  # the function that fails, and what the message must contain
    "killed": (lambda: os.kill(os.getpid(), signal.SIGKILL), "signal SIGKILL"),
    "exits": (lambda: os._exit(7), "exit code 7"),
    "hangs": (lambda: threading.Event().wait(), "step_timeout|in time"),
    "late": (lambda: time.sleep(2 * TIMEOUT), "step_timeout|in time|nothing"),
    "SystemExit": (lambda: sys.exit(3), "SystemExit: 3"),
    "KeyboardInterrupt": (lambda: raise_error(KeyboardInterrupt()), "KeyboardInterrupt"),
    "two arguments": (lambda: raise_error(TwoArguments(1, 2)), "TwoArguments: 1 and 2"),
    "keyword only": (lambda: raise_error(KeywordOnly(code=5)), "KeywordOnly: code 5"),
    "UnicodeDecodeError": (lambda: b"\xff".decode(), "UnicodeDecodeError"),
    "unpicklable": (lambda: raise_error(Unpicklable()), "Unpicklable: holds a lock"),
    "50 MB": (lambda: raise_error(ValueError("x" * 50_000_000)), "ValueError: xxx"),
}


class Faulty(gym.Env):
    """An environment that fails in worker 1, in its second episode or when it closes."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Discrete(2)

    def __init__(self, place, fail, folder):
        self.place, self.fail, self.folder = place, fail, folder
        self.episodes = 0

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.now, self.episodes = 0, self.episodes + 1
        if self._is_due():
            (self.folder / "due").touch()
        self._fail_at("reset")
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.now += 1
        if self.now == 3:
            self._fail_at("step")
        return np.zeros(2, np.float32), 1.0, self.now == 5, False, {}

    def close(self):
        if os.environ.get("TF_REINFORCE_WORKER"):
            self._fail_at("close")

    def _is_due(self):
        return os.environ.get("TF_REINFORCE_WORKER") == "1" and self.episodes > 1

    def _fail_at(self, place):
        if place == self.place and self._is_due():
            (self.folder / "failing").touch()
            self.fail()


def play(fault, place, folder, workers):
    """Collects episodes, and writes the error or the warnings to a file."""
    local_worker.CLOSE_TIMEOUT = local_worker.END_TIMEOUT = TIMEOUT
    agent = tfr.Reinforce.for_env(lambda: Faulty("", None, folder), hidden=(4,))
    make = lambda: Faulty(place, FAULTS[fault][0], folder)  # noqa: E731
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        text = ""
        try:
            with make_envs.open_envs(
                make, 2, workers=workers, step_timeout=TIMEOUT, max_episode_steps=9
            ) as envs:
                # On a cluster, worker 0 may have played all before worker 1 joins.
                while not (folder / "due").exists():
                    agent.collect(envs, 8)
        except BaseException as error:
            text = f"{type(error).__name__}: {error}"
    messages = [text, *(str(one.message) for one in caught)]
    (folder / "result.part").write_text("\n".join(messages))
    (folder / "result.part").rename(folder / "result")


def fork(function):
    process = os.fork()
    if process == 0:
        os.setsid()
        status = 1
        try:
            signal.signal(signal.SIGINT, signal.default_int_handler)
            function()
            status = 0
        finally:
            os._exit(status)
    return process


def wait_for(condition, seconds):
    """Waits for a condition; returns the seconds, or `None` after a time limit."""
    start = time.monotonic()
    while time.monotonic() - start < seconds:
        if condition():
            return time.monotonic() - start
        time.sleep(0.01)
    return None


def processes_with(token):
    """Returns the running workers whose environment contains a text."""
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            environ = (path / "environ").read_bytes()
        except OSError:
            continue
        is_ours = b"TF_REINFORCE_WORKER" in environ
        if token.encode() in environ and is_ours:
            found.append(int(path.name))
    return [pid for pid in found if pid != os.getpid()]


def is_named(text, fault, place):
    """Returns whether a text names fault, worker, environment and, if any, the step."""
    expected = FAULTS[fault][1].split("|")
    if "nothing" in expected and place == "close" and not text.strip():
        return True
    is_place = "nvironment 1" in text and "orker 1" in text
    if place == "step":
        is_place &= "step 2" in text
    return is_place and any(part in text for part in expected)


def trial(fault, place, end, cluster):
    """Runs one trial; returns a text that describes what is wrong, or "".

    Workers inherit an environment variable of the process or of the cluster.
    """
    token = f"TFR_STRESS={uuid.uuid4().hex}" if cluster is None else CLUSTER_TOKEN
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        os.environ["TFR_STRESS"] = token.split("=")[1]

        def begin():
            workers = 2
            if cluster is not None:
                workers = tfr.collect.RayWorkers(2, cluster.address)
            play(fault, place, folder, workers)

        process = fork(begin)
        try:
            if wait_for((folder / "failing").exists, 60) is None:
                return "the environment did not fail"
            if end == "killed":
                os.kill(process, signal.SIGKILL)
            if end == "Ctrl-C":
                os.kill(process, signal.SIGINT)
            limit = TIMEOUT + 5
            ended = wait_for(lambda: os.waitpid(process, os.WNOHANG)[0], limit + 5)
            process = None if ended is not None else process
            if ended is None:
                return "the process did not end"
            if ended > (2 if end == "Ctrl-C" else limit) + 1:
                return f"the process ended after {ended:.1f} s"
            if end != "killed":
                text = (folder / "result").read_text()
                if end == "Ctrl-C" and "KeyboardInterrupt" not in text:
                    return f"Ctrl-C was not heard: {text[:300]!r}"
                if end == "alive" and not is_named(text, fault, place):
                    return f"not named: {text[:300]!r}"
            if wait_for(lambda: not processes_with(token), 10) is None:
                return f"processes remain: {processes_with(token)}"
            return ""
        finally:
            if process is not None:
                os.killpg(process, signal.SIGKILL)
                os.waitpid(process, 0)
            for pid in processes_with(token):
                os.kill(pid, signal.SIGKILL)


def open_cluster(kind):
    """Returns a context manager that yields a Ray cluster, or `None` without one."""
    if kind == "local":
        return contextlib.nullcontext()
    name, _, value = CLUSTER_TOKEN.partition("=")
    return ray_cluster.running(2, 4, **{name: value})


def all_trials(faults):
    for fault in faults:
        for place in PLACES:
            ends = ["alive", "killed", *(["Ctrl-C"] if fault == "hangs" else [])]
            for end in ends if place != "close" else ["alive", "killed"]:
                yield fault, place, end


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=pathlib.Path)
    parser.add_argument("--only", nargs="*", choices=FAULTS, default=[*FAULTS])
    kinds = ("local", "ray")
    parser.add_argument("--kinds", nargs="*", choices=kinds, default=kinds)
    options = parser.parse_args()
    problems, counts = {}, {}
    for kind in options.kinds:
        with open_cluster(kind) as cluster:
            counts[kind] = 0
            for fault, place, end in all_trials(options.only):
                counts[kind] += 1
                if problem := trial(fault, place, end, cluster):
                    name = f"{kind}: {fault} in {place}, parent {end}"
                    problems[name] = problem
                    print(f"{name}: {problem}", flush=True)
    result = {"trials": counts, "problems": problems}
    print(f"{counts} trials, {len(problems)} problems")
    if options.out:
        options.out.write_text(json.dumps(result, indent=2))
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
