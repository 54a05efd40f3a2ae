"""Holds the worker processes of a machine of a Ray cluster."""

import collections
import contextlib
import functools
import importlib.metadata
import os
import platform
import re
import selectors
import sys
import threading
import time

from tf_reinforce.engine.collect import local_worker
from tf_reinforce.support import version

# What a worker needs before it has made its environments.
_REQUIRED = ("python", "tf_reinforce", "numpy", "gymnasium", "ai_edge_litert")


class WorkerHost:
    """An actor that starts worker processes on its machine, and relays their messages.

    The processes are `local_worker.LocalWorker`s, so that all faults of environments have
    the same effects and messages as on the machine of the pool. The methods run in
    threads of their own.

    Args:
        step_timeout: Float, the seconds after which one reset or step counts as hanging.
        search_path: List of strings, the import path of the pool. The worker processes
            also find modules there, if the folders exist on their machine.
        versions: Dict, the result of `own_versions` on the machine of the pool, or
            `None` to accept other versions.
    """

    def __init__(self, step_timeout, search_path, versions):
        self._step_timeout = step_timeout
        self._search_path = [*dict.fromkeys([*sys.path, *search_path])]
        self._required_versions = versions
        self._own_versions = versions and own_versions(self._search_path)
        self._refusal = self._compare(_REQUIRED)
        self._guard = local_worker.WorkerGuard()
        self._lock = threading.Lock()
        self._workers = {}  # by key
        self._expected = set()  # keys of the workers that must send a message
        self._num_calls = 0  # of `exchange`
        self._orders = collections.deque()  # what `send` and `exchange` received
        self._events = []  # what `exchange` returns
        self._last_check = 0.0  # the time of the last look at the workers' progress
        self._is_closing = False
        self._selector = selectors.DefaultSelector()
        reader, self._wakener = os.pipe()
        self._selector.register(reader, selectors.EVENT_READ)

    def ping(self):
        """Returns the number of calls of `exchange` that have begun."""
        return self._num_calls

    def send(self, orders, *messages):
        """Executes orders in the thread of `exchange`, which waits.

        Args:
            orders: List of tuples: `("start", key, number, size, first_index)` starts a
                worker process, `("send", key, index)` sends it a message. A key belongs
                to one process, and its successor has another key: Ray may change the
                order of calls, so that a message can arrive after its process is lost.
            *messages: Bytes, or arrays of bytes, that `channel.encode` returned.
        """
        self._orders.append((orders, messages))
        self._wake()

    def exchange(self, busy, orders, *messages):
        """Executes orders, and waits for a message of any worker process.

        Args:
            busy: List of the keys of workers that must send a message. The `send` that
                brings the reason may arrive later.
            orders, *messages: As for `send`.

        Returns:
            List of pairs: the key of a worker, and the header and the arrays of its
            message, or a `WorkerLost` if the process is lost. The list is empty if the
            actor ends.
        """
        with self._lock:
            self._num_calls += 1
            self._expected &= set(busy)
            self._orders.append((orders, messages))
            while not self._is_closing:
                while self._orders:
                    self._execute(*self._orders.popleft())
                if self._events:
                    break
                self._receive()
            events, self._events = self._events, []
            return events

    def close(self, seconds, interrupted):
        """Closes the environments and ends the processes.

        Args:
            seconds: Float, the time after which the processes are killed.
            interrupted: Bool, whether to end them in the middle of an episode.

        Returns:
            Dict from keys of workers to lists of texts, one for each problem.
        """
        self._is_closing = True
        self._wake()
        with self._lock:  # which `exchange` releases
            deadline = time.monotonic() + seconds
            for one in self._workers.values():
                one.terminate() if interrupted else one.stop()
            return {key: one.join(deadline) for key, one in self._workers.items()}

    def _wake(self):
        os.write(self._wakener, b"+")

    def _execute(self, orders, messages):
        for kind, key, *values in orders:
            if kind == "start":  # all of them before a large message is sent
                self._start(key, *values)
        for kind, key, *values in orders:
            if kind == "send" and key in self._workers:
                self._expected.add(key)
                with self._note_loss(key):
                    self._workers[key].send(messages[values[0]])

    def _start(self, key, number, size, first_index):
        if self._refusal:
            self._events.append((key, self._refusal))
            return
        options = self._step_timeout, self._guard, self._search_path
        try:
            one = local_worker.LocalWorker(number, size, first_index, *options)
        except OSError as error:
            text = f"could not be started on {platform.node()}: {error}"
            self._events.append((key, text))
        else:
            self._workers[key] = one
            self._selector.register(one, selectors.EVENT_READ, key)

    def _receive(self):
        """Waits for messages for a short time, and looks at the workers' progress."""
        interval = min(1.0, self._step_timeout / 4)
        for key, _ in self._selector.select(interval):
            if key.data is None:
                os.read(key.fd, 1_000)
                continue
            with self._note_loss(key.data):
                header, arrays = key.fileobj.receive()
                refusal = self._compare_modules(header.pop("modules", ()))
                self._events.append((key.data, refusal or (header, arrays)))
        if time.monotonic() - self._last_check > interval:
            self._last_check = time.monotonic()
            for key in self._expected & self._workers.keys():
                with self._note_loss(key):
                    self._workers[key].check_progress()

    @contextlib.contextmanager
    def _note_loss(self, key):
        """Turns the error of a lost worker into an event."""
        try:
            yield
        except local_worker.WorkerLost as error:
            self._selector.unregister(self._workers.pop(key))
            text = f"{error} on {platform.node()}"
            self._events.append((key, local_worker.WorkerLost(text, error.in_episode)))

    def _compare_modules(self, modules):
        """Compares the versions of the packages that a process has imported."""
        if not modules or self._required_versions == self._own_versions:
            return None
        distributions = _packages_distributions()
        names = {name for module in modules for name in distributions.get(module, ())}
        return self._compare(map(_normalized, names))

    def _compare(self, names):
        """Returns an error message if packages have other versions than on the pool's
        machine, else `None`.
        """
        own, expected = self._own_versions, self._required_versions
        differing = [
            f"{name} {own.get(name, 'missing')} (expected {expected.get(name)})"
            for name in (sorted(names) if expected else ())
            if own.get(name) != expected.get(name, own.get(name))
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


def own_versions(search_path):
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


@functools.cache
def _packages_distributions():
    return importlib.metadata.packages_distributions()


def _normalized(name):
    return re.sub(r"[-_.]+", "_", name).lower()
