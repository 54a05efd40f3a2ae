"""Starts workers on the machines of a Ray cluster, and relays their messages.

Ray places one actor for each worker on a machine. The actor starts the worker as a
process of its own. This process can be watched, named and ended like a worker on the
local machine.
"""

import contextlib
import functools
import importlib.metadata
import logging
import platform
import select
import signal
import socket
import sys
import threading
import time

import numpy as np

from tf_reinforce.engine.collect import local_worker
from tf_reinforce.support import extras
from tf_reinforce.support import validation

_START_SECONDS = 300.0  # without any answer, while actors wait for a machine
_CONNECT_SECONDS = 5.0  # to reach the address of a cluster


class WorkerActor:
    """A Ray actor that starts a `local_worker.LocalWorker` and relays its messages.

    Args:
        number, size, first_index, step_timeout: As for `local_worker.LocalWorker`.
        search_path: List of strings, the pool's import path. The worker also searches
            those of its folders that exist on its machine.
    """

    def __init__(self, number, size, first_index, step_timeout, search_path):
        path = [*dict.fromkeys([*sys.path, *search_path])]
        options = number, size, first_index, step_timeout, path
        self._worker = local_worker.LocalWorker(*options)
        self._interval = min(1.0, step_timeout / 4)

    def exchange(self, *messages):
        """Sends messages to the process, then waits briefly for its next one.

        Returns:
            The message, `None` if none has come, or a `WorkerLost`.
        """
        try:
            for message in messages:
                self._worker.send(message)
            if not select.select([self._worker], [], [], self._interval)[0]:
                self._worker.check_progress()
                return None
            message = self._worker.receive()
        except local_worker.WorkerLost as error:
            return local_worker.WorkerLost(f"{error} on {platform.node()}")
        if message[0] == "ready":
            message = *message, package_versions(message[1]), platform.node()
        return message

    def close(self, seconds):
        """Ends the process after it has closed its environments; returns problems."""
        self._worker.stop()
        return self._worker.join(time.monotonic() + seconds)


class RayLauncher:
    """Starts workers in Ray actors; has the methods of `local_worker.LocalLauncher`.

    Args:
        options: `config.RayWorkers`.
        step_timeout: Float, the seconds after which one reset or step counts as hanging.
    """

    def __init__(self, options, step_timeout):
        self.ray = extras.load("ray", "ray")
        self.options = options
        self.step_timeout = step_timeout
        self.restarts_lost_hosts = options.restart_failed_workers
        self.last_answer = 0.0  # the time of the last answer or start of any actor
        connect(options.address)

    def start(self, number, size, first_index):
        """Returns a new `RayWorker`, still without its environments."""
        self.last_answer = time.monotonic()
        actor = self.ray.remote(WorkerActor).options(
            num_cpus=self.options.num_cpus_per_worker,
            scheduling_strategy="SPREAD",
            # Otherwise Ray would kill the process before it has closed its environments.
            runtime_env={"env_vars": {"RAY_kill_child_processes_on_worker_exit": "0"}},
        )
        actor = actor.remote(number, size, first_index, self.step_timeout, sys.path)
        return RayWorker(self, actor, number)

    def share(self, message):
        """Puts a message into Ray's object store; each machine copies it once."""
        return self.ray.put(np.frombuffer(message, np.uint8))

    def wait(self, workers, seconds):
        """Waits up to `seconds` until a worker has a message or is lost.

        Returns:
            List of all such workers, empty if the time is over.
        """
        if ended := [one for one in workers if one.lost]:
            return ended  # `check_progress` has found that they are lost
        replies = {one.request(): one for one in workers}
        self.ray.wait([*replies], timeout=seconds)
        arrived, _ = self.ray.wait([*replies], num_returns=len(replies), timeout=0)
        return [replies[one] for one in arrived if replies[one].take(one)]


class RayWorker:
    """A worker process that a Ray actor holds.

    While the pool waits for the worker, one call of `WorkerActor.exchange` is
    outstanding. This call has delivered all messages that were sent before.

    Args:
        launcher: `RayLauncher`.
        actor: Handle of the `WorkerActor`.
        number: Int, which names the worker in messages.
    """

    ready = False  # whether the process has made its environments

    def __init__(self, launcher, actor, number):
        self.number = number
        self.lost = None  # the `WorkerLost`, if the process or the actor is lost
        self._launcher = launcher
        self._ray = launcher.ray
        self._actor = actor
        self.waits_for_machine = True  # until its actor has answered
        self._messages = []  # for the next call
        self._reply = None  # the object of Ray that the outstanding call will return
        self._deadline = 0.0  # of this call
        self._content = None  # the next message
        self._closing = None  # what `WorkerActor.close` will return

    def send(self, message):
        """Keeps a message for the next call to the actor; raises `WorkerLost`."""
        self._expect_alive()
        self._messages.append(message)

    def request(self):
        """Returns the Ray object of the outstanding call; makes the call if necessary."""
        if self._reply is None:
            self._reply = self._actor.exchange.remote(*self._messages)
            limit = self._launcher.options.worker_health_probe_timeout_s
            limit += local_worker.START_TIMEOUT if self._messages else 0
            self._deadline = time.monotonic() + limit
            self._messages = []
        return self._reply

    def take(self, reply):
        """Reads what a call has returned; returns whether `receive` has an answer."""
        self._reply = None
        try:
            content = self._ray.get(reply)
        except self._ray.exceptions.RayError as error:
            self._lose(local_worker.HostLost(_describe_loss(error)))
            return True
        self.waits_for_machine, self._launcher.last_answer = False, time.monotonic()
        if isinstance(content, local_worker.WorkerLost):
            self._lose(content)
        elif content is not None:
            self._content = content
            if content[0] == "ready":
                self._check_versions(*content[1:])
        return content is not None

    def receive(self):
        """Returns the next message; raises `WorkerLost`."""
        self._expect_alive()
        return self._content

    def check_progress(self):
        """Raises `HostLost` if the actor does not answer.

        While the worker still waits for a machine, the method raises `TimeoutError` if no
        actor has answered for 300 s.
        """
        now, launcher = time.monotonic(), self._launcher
        seconds = launcher.options.worker_health_probe_timeout_s
        if not self.waits_for_machine and now > self._deadline:
            text = f"is lost: its actor did not answer for {seconds:g} s"
            self._lose(local_worker.HostLost(text))
        self._expect_alive()
        if self.waits_for_machine and now - launcher.last_answer > _START_SECONDS:
            cores = launcher.options.num_cpus_per_worker
            raise TimeoutError(
                f"Worker {self.number} has not started within {_START_SECONDS:g} s. It "
                f"waits for {cores:g} free cores on a machine, see `ray status`."
            )

    def stop(self):
        """Asks the actor to close its environments and end its process."""
        if not (self.waits_for_machine or self.lost) and self._ray.is_initialized():
            self._closing = self._actor.close.remote(local_worker.CLOSE_TIMEOUT)

    def join(self, deadline):
        """Waits for the process to end, about until `deadline`, then kills the actor.

        Returns:
            List of texts, one per problem, as for `local_worker.LocalWorker`.
        """
        problems = []
        if self._closing is not None and self._ray.is_initialized():
            try:
                seconds = max(0.0, deadline + 2.0 - time.monotonic())
                problems = self._ray.get(self._closing, timeout=seconds)
            except self._ray.exceptions.RayError as error:
                problems = [f"worker {self.number} {_describe_loss(error)}"]
        self.kill()
        return problems

    def kill(self):
        """Kills the actor; its process notices and ends."""
        if self._actor is not None and self._ray.is_initialized():
            with contextlib.suppress(Exception):  # the cluster may be lost
                self._ray.kill(self._actor)
        self._actor = None

    terminate = kill  # ends the worker in the middle of an episode

    def _lose(self, lost):
        self.lost = lost
        self.kill()

    def _expect_alive(self):
        if self.lost:
            raise self.lost

    def _check_versions(self, modules, versions, machine):
        """Raises `ValueError` if the worker's machine has other package versions."""
        own = package_versions(modules)
        differing = [
            f"{name} {number} (expected {own[name]})"
            for name, number in sorted(versions.items())
            if own.get(name, number) != number
        ]
        if differing and not self._launcher.options.allow_other_versions:
            raise ValueError(
                f"The machine {machine} of the Ray cluster has other versions "
                f"of packages: {', '.join(differing)}. Results could differ. Install the "
                "same versions, or pass RayWorkers(allow_other_versions=True)."
            )


def package_versions(modules):
    """Returns the versions of Python and of the packages that provide some modules."""
    names = {name for module in modules for name in _distributions().get(module, ())}
    versions = {name: importlib.metadata.version(name) for name in names}
    return {"Python": platform.python_version(), **versions}


_distributions = functools.cache(importlib.metadata.packages_distributions)


def _describe_loss(error):
    """Returns how a sentence about a worker goes on after an error of Ray."""
    text = validation.one_line(error)
    return f"is lost with its actor or its machine: {text[:150]} … {text[-150:]}"


_lock = threading.Lock()
_connected_to = None  # the address, if this module has made the connection


def connect(address):
    """Connects this program to a cluster until the program ends.

    Raises:
        ValueError: If the connection fails, or there is one to another cluster.
    """
    global _connected_to
    ray = extras.load("ray", "ray")
    with _lock:
        if not ray.is_initialized():
            _connect(ray, address)
            _connected_to = address
        if address not in ("auto", _connected_to):
            raise ValueError(
                "This program is connected to another Ray cluster: call `ray.shutdown()` "
                f"first. Expected: {_connected_to or 'auto'!r}. Received: {address!r}"
            )


def _connect(ray, address):
    """Connects to a cluster, or raises an error that says what to do."""
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address not in ("auto", "local"):  # else `ray.init` waits for minutes
            host, _, port = address.rpartition(":")
            server = host.strip("[]"), int(port)
            socket.create_connection(server, _CONNECT_SECONDS).close()
        ray.init(address=address, logging_level=logging.WARNING)
    except (OSError, OverflowError, RuntimeError, ValueError) as error:
        raise ValueError(
            "The connection to the Ray cluster failed. `address` must be that of a "
            "running cluster (`ray start --head`) with the same Ray and Python. "
            f"Received: address={address!r} ({type(error).__name__}: {error})"
        ) from error
    finally:
        is_main = threading.current_thread() is threading.main_thread()
        if is_main and handler is not None:  # `ray.init` replaces it
            signal.signal(signal.SIGTERM, handler)
