"""Holds a worker process on a machine of a Ray cluster."""

import contextlib
import importlib.metadata
import os
import platform
import re
import select
import sys
import threading
import time

from tf_reinforce import version
from tf_reinforce.collect import local_worker

_POLL_SECONDS = 0.2
# What a worker needs before it has made its environments.
_REQUIRED = ("python", "tf_reinforce", "numpy", "gymnasium", "ai_edge_litert")


class WorkerHost:
    """An actor that starts a worker process on its machine, and relays its messages.

    The process is a `local_worker.LocalWorker`, so that all faults of environments have
    the same effects and messages as on the machine of the pool.

    Args:
        number, size, first_index: As for `local_worker.Worker`.
        limits: Pair of floats: the `step_timeout` of the process, and the seconds after
            which `exchange` returns, also without a message.
        search_path: List of strings, the import path of the pool. The worker process
            also finds modules there, if the folders exist on its machine.
        versions: Dict, the result of `versions` on the machine of the pool, or `None` to
            accept other versions.
    """

    def __init__(self, number, size, first_index, limits, search_path, versions):
        self._versions = versions
        self._reply_seconds = limits[1]
        self._search_path = [*dict.fromkeys([*sys.path, *search_path])]
        self._lock = threading.Lock()
        self._closing = False
        self._refusal = self._compare(_REQUIRED)
        self._guard = local_worker.WorkerGuard()
        self._worker = local_worker.LocalWorker(
            number, size, first_index, limits[0], self._guard, self._search_path
        )

    def exchange(self, *messages):
        """Sends messages to the process, and waits for a message of the process.

        Args:
            *messages: Bytes, or arrays of bytes, that `channel.encode` returned.

        Returns:
            Dict with the key `messages`: list of pairs of headers and arrays, which is
            empty if the process sends nothing in time. If the process is
            lost, the dict also contains the key `lost` with a text.
        """
        with self._lock:
            try:
                if self._refusal:
                    return {"messages": [self._refusal]}
                for message in messages:
                    self._worker.send(message)
                return {"messages": self._receive()}
            except local_worker.WorkerLost as error:
                return {"messages": [], "lost": f"{error} on {platform.node()}"}

    def close(self, seconds, interrupted):
        """Closes the environments and ends the process.

        Args:
            seconds: Float, the time after which the process is killed.
            interrupted: Bool, whether to end the process in the middle of an episode.

        Returns:
            List of texts, one for each problem.
        """
        self._closing = True  # `exchange` soon releases the lock
        with self._lock:
            self._worker.terminate() if interrupted else self._worker.stop()
            return self._worker.join(time.monotonic() + seconds)

    def _receive(self):
        end = time.monotonic() + self._reply_seconds
        while not self._closing and time.monotonic() < end:
            if select.select([self._worker], [], [], _POLL_SECONDS)[0]:
                header, arrays = self._worker.receive()
                if header["kind"] == "ready":
                    error = self._compare_modules(header["modules"])
                    return [error or (header, arrays)]
                return [(header, arrays)]
            self._worker.check_progress()
        return []

    def _compare_modules(self, modules):
        """Compares the versions of the packages that the process has imported."""
        if self._versions is None or self._versions == versions(self._search_path):
            return None
        distributions = importlib.metadata.packages_distributions()
        names = {name for module in modules for name in distributions.get(module, ())}
        return self._compare(map(_normalized, names))

    def _compare(self, names):
        """Returns an error message if packages have other versions than on the pool's
        machine, else `None`.
        """
        if self._versions is None:
            return None
        own = versions(self._search_path)
        differing = [
            f"{name} {own.get(name, 'missing')} (expected {self._versions.get(name)})"
            for name in sorted(names)
            if own.get(name) != self._versions.get(name, own.get(name))
        ]
        if not differing:
            return None
        text = (
            f"The machine {platform.node()} of the Ray cluster has other versions of "
            f"packages than the machine of the training: {', '.join(differing)}. Results "
            "could differ. Install the same versions, or pass "
            "RayWorkers(allow_other_versions=True)."
        )
        header = {"kind": "error", "error": "ValueError", "message": text, "trace": ""}
        return header, []


def versions(search_path):
    """Returns the versions of Python and of all packages that can be imported.

    Args:
        search_path: List of strings, the folders in which Python searches packages.

    Returns:
        Dict from normalized names of packages to their versions, read from the names of
        the folders `name-version.dist-info`.
    """
    result = {}
    for folder in filter(os.path.isdir, search_path):
        with contextlib.suppress(OSError):  # a folder of the pool's machine only
            for entry in os.listdir(folder):
                name, _, number = entry.removesuffix(".dist-info").rpartition("-")
                if name and entry.endswith(".dist-info"):
                    result.setdefault(_normalized(name), number)
    result["tf_reinforce"] = version.VERSION
    result["python"] = platform.python_version()
    return result


def _normalized(name):
    return re.sub(r"[-_.]+", "_", name).lower()
