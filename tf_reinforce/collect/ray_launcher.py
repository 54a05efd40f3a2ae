"""Starts workers on the machines of a Ray cluster, and exchanges messages with them."""

import collections
import contextlib
import logging
import signal
import socket
import sys
import threading
import time

import numpy as np

from tf_reinforce.collect import local_worker
from tf_reinforce.collect import ray_host

log = logging.getLogger("tf_reinforce")

_ACTOR_ENVIRON = {
    # Otherwise Ray would kill the guard together with the actor.
    "RAY_kill_child_processes_on_worker_exit": "0",
}
_SHORT = 32_768  # bytes of a message that is no object of its own
_CONNECT_SECONDS = 5.0  # to reach the address of a cluster
_START_SECONDS = 300.0  # without any answer, while actors wait for a machine


class RayLauncher:
    """Starts workers as actors of a Ray cluster, and waits for their messages.

    The launcher has the methods of `local_worker.LocalLauncher`.

    Args:
        options: `config.RayWorkers`.
        step_timeout: Float, the seconds after which one reset or step counts as hanging.
    """

    def __init__(self, options, step_timeout):
        self.ray = _import_ray()
        self.options = options
        self.step_timeout = step_timeout
        self.restarts_lost_hosts = options.restart_failed_workers
        self.silence = 0.0  # seconds of `wait` since the last answer of any worker
        self._is_open = False

    def open(self):
        """Connects to the cluster."""
        _connection.open(self.ray, self.options.address)
        self._is_open = True
        self.silence = 0.0
        self._actor_class = self.ray.remote(ray_host.WorkerHost).options(
            num_cpus=self.options.num_cpus_per_worker,
            scheduling_strategy="SPREAD",
            max_concurrency=2,  # `close` runs beside `exchange`
            runtime_env={"env_vars": _ACTOR_ENVIRON},
        )
        if lack := self.describe_lack_of_cores():
            log.warning("%s The workers wait for further machines.", lack)

    def start(self, number, size, first_index):
        """Returns a new `RayWorker`, which does not have its environments yet."""
        own = None if self.options.allow_other_versions else ray_host.versions(sys.path)
        reply_seconds = min(5.0, self.options.worker_health_probe_timeout_s / 4)
        limits = self.step_timeout, reply_seconds
        actor = self._actor_class.remote(number, size, first_index, limits, sys.path, own)
        return RayWorker(self, actor, number, size, first_index)

    def share(self, message):
        """Returns a message as an object of Ray, which each machine copies once.

        A short message remains as it is: it is sent with the call of an actor, which
        takes less time.
        """
        if len(message) <= _SHORT:
            return message
        return self.ray.put(np.frombuffer(message, np.uint8))

    def wait(self, workers, seconds):
        """Waits until at least one worker has sent a message, or is lost.

        Returns:
            List of the workers that have a message or are lost; empty after `seconds`.
        """
        for one in workers:
            one.request()
        waiting = {one.reply: one for one in workers if not one.has_message}
        if len(waiting) == len(workers):
            start = time.monotonic()
            replied, _ = self.ray.wait([*waiting], timeout=seconds)
            elapsed = time.monotonic() - start
            self.silence = 0.0 if replied else self.silence + elapsed
        if waiting:
            replied, _ = self.ray.wait([*waiting], num_returns=len(waiting), timeout=0)
            for reply in replied:
                waiting[reply].take_reply()
        return [one for one in workers if one.has_message]

    def close(self):
        """Ends the connection, if this program has no other use for it."""
        if self._is_open:
            self._is_open = False
            _connection.close(self.ray)

    def describe_lack_of_cores(self):
        """Returns a text if the cluster has too few cores, else `None`."""
        count, each = self.options.num_workers, self.options.num_cpus_per_worker
        cores = self.ray.cluster_resources().get("CPU", 0)
        if count * each <= cores:
            return None
        return (
            f"The Ray cluster has {cores:g} cores, and {count} workers with "
            f"num_cpus_per_worker={each:g} need {count * each:g}. Use fewer workers, or "
            "pass a smaller `num_cpus_per_worker`."
        )


class RayWorker(local_worker.Worker):
    """A worker process that an actor of Ray holds.

    Args:
        launcher: `RayLauncher`.
        actor: Handle of an actor of the class `ray_host.WorkerHost`.
        number, size, first_index: As for `local_worker.Worker`.
    """

    def __init__(self, launcher, actor, number, size, first_index):
        super().__init__(number, size, first_index)
        self.reply = None  # the object of Ray that the actor will return
        self._launcher = launcher
        self._actor = actor
        self._replied = False  # whether the actor has started
        self._is_killed = False
        self._since = 0.0  # when the actor received the last request
        self._outbox = []  # messages for the process
        self._inbox = collections.deque()  # its messages, and `WorkerLost` at the end
        self._closing = None

    def send(self, message):
        """Sends a message, at the latest when the launcher waits for an answer."""
        self._outbox.append(message)

    @property
    def has_message(self):
        return bool(self._inbox)

    def request(self):
        """Asks the actor for the next message, unless an answer is already expected."""
        if self.reply is None and not self._inbox:
            self._since = time.monotonic()
            self.reply = self._actor.exchange.remote(*self._outbox)
            self._outbox = []

    def take_reply(self):
        """Reads the answer of the actor, which has arrived."""
        reply, self.reply = self.reply, None
        try:
            content = self._launcher.ray.get(reply)
        except self._launcher.ray.exceptions.RayError as error:
            self._inbox.append(local_worker.HostLost(_describe_error(error)))
            return
        self._replied = True
        self._inbox.extend(content["messages"])
        if "lost" in content:
            self._inbox.append(local_worker.WorkerLost(content["lost"]))

    def receive(self):
        """Returns the header and the arrays of the next message; raises `WorkerLost`."""
        message = self._inbox.popleft()
        if isinstance(message, Exception):
            self.kill()
            raise message
        return message

    def check_progress(self):
        """Raises `HostLost` if the actor does not answer."""
        if not self._replied:
            if self._launcher.silence > _START_SECONDS:
                lack = self._launcher.describe_lack_of_cores() or (
                    "Look at `ray status`: other actors may have reserved the cores. "
                    "Workers with num_cpus_per_worker=0 reserve none."
                )
                raise TimeoutError(
                    f"Worker {self.number} has not started within {_START_SECONDS:g} s, "
                    f"and no other worker has sent a message. {lack}"
                )
            return
        if self.reply is None:  # the next `request` starts to measure again
            return
        limit = self._launcher.options.worker_health_probe_timeout_s
        if time.monotonic() - self._since > limit:
            self.kill()
            raise local_worker.HostLost(
                "is lost: its actor did not answer within "
                f"worker_health_probe_timeout_s={limit:g} s"
            )

    def stop(self):
        """Asks the process to close its environments and to end."""
        self._close(local_worker.CLOSE_TIMEOUT, interrupted=False)

    def terminate(self):
        """Asks the process to end in the middle of an episode."""
        self._close(local_worker.END_TIMEOUT, interrupted=True)

    def _close(self, seconds, interrupted):
        if self._is_killed or not self._launcher.ray.is_initialized():
            return
        if self._replied or interrupted:  # else the actor still waits for a machine
            self._closing = self._actor.close.remote(seconds, interrupted)

    def join(self, deadline):
        """Waits until the process has ended, and kills the actor at the deadline.

        Returns:
            List of texts, one for each problem, as for `local_worker.LocalWorker`.
        """
        problems, ray = [], self._launcher.ray
        if self._closing is not None and ray.is_initialized():
            seconds = max(0.0, deadline + 2.0 - time.monotonic())
            try:
                problems = ray.get(self._closing, timeout=seconds)
            except ray.exceptions.RayError as error:  # or it did not end in time
                log.warning("Worker %d %s", self.number, _describe_error(error))
        self.kill()
        return problems

    def kill(self):
        """Kills the actor, whose guard then ends the process."""
        self._is_killed = True
        if self._launcher.ray.is_initialized():  # else Ray would connect again
            with contextlib.suppress(Exception):  # the cluster may be lost
                self._launcher.ray.kill(self._actor)


class _Connection:
    """The connection of this program to a cluster, which several pools may use."""

    def __init__(self):
        self._lock = threading.Lock()
        self._users = 0
        self._address = None  # `None` if the program itself has called `ray.init`

    def open(self, ray, address):
        """Connects to a cluster, unless this program is connected to it."""
        with self._lock:
            if not ray.is_initialized():
                _connect(ray, address)
                self._users, self._address = 0, address
            elif not self._users:
                self._address = None
            if address not in ("auto", self._address):
                raise ValueError(
                    "This program is connected to another Ray cluster. Expected: "
                    f'address="auto" or {self._address!r}. Received: '
                    f"address={address!r}. Call `ray.shutdown()`, or close the other "
                    "environments first."
                )
            self._users += 1

    def close(self, ray):
        """Ends the connection with its last user, unless the program has made it."""
        with self._lock:
            self._users -= 1
            if not self._users and self._address is not None:
                ray.shutdown()


_connection = _Connection()


def _import_ray():
    try:
        import ray
    except ImportError as error:
        raise ImportError(
            "RayWorkers needs Ray on this machine. Install it with "
            '`pip install "tf-reinforce[ray]"`, or use workers=N for processes of this '
            "machine."
        ) from error
    return ray


def _connect(ray, address):
    """Connects this program to a cluster, or raises an error that names the remedy."""
    is_main = threading.current_thread() is threading.main_thread()
    handler = signal.getsignal(signal.SIGTERM)
    try:
        if address != "local":
            _expect_cluster(address)
        ray.init(address=address, logging_level=logging.WARNING)
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ValueError(
            "The connection to the Ray cluster failed. Expected: `address` of a running "
            "cluster with the same versions of Ray and Python as this process; start "
            f"one with `ray start --head`. Received: address={address!r} "
            f"({type(error).__name__}: {_shorten(error)})"
        ) from error
    finally:
        if is_main and handler is not None:  # `ray.init` replaces it
            signal.signal(signal.SIGTERM, handler)


def _expect_cluster(address):
    """Raises `ConnectionError` if no server answers; `ray.init` waits for minutes."""
    from ray._private import services

    found = services.canonicalize_bootstrap_address_or_die(address)
    host, _, port = found.rpartition(":")
    try:
        socket.create_connection((host.strip("[]"), int(port)), _CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionError(f"no server answers at {found}: {error}") from None


def _describe_error(error):
    """Returns the predicate of a sentence about a worker, for an error of Ray."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [""]
    machines = [line.removeprefix("ip: ") for line in lines if line.startswith("ip: ")]
    place = f" ({machines[0]})" if machines else ""
    text = lines[0] if lines[0] == lines[-1] else f"{lines[0]} {lines[-1]}"
    remedy = (
        " Install tf-reinforce on every machine of the cluster."
        if "No module named 'tf_reinforce'" in lines[-1]
        else ""
    )
    return f"is lost with its actor or its machine{place}: {_shorten(text)}{remedy}"


def _shorten(text):
    """Returns a text in one line of at most 300 characters."""
    line = " ".join(str(text).split())
    return line if len(line) <= 300 else f"{line[:299]}…"
