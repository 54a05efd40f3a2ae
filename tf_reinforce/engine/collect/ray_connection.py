"""Connects this program to a Ray cluster, and describes the errors of Ray."""

import contextlib
import logging
import re
import signal
import socket
import threading

_CONNECT_SECONDS = 5.0  # to reach the address of a cluster


class Connection:
    """The connection of this program to a cluster, which several pools may use."""

    def __init__(self):
        self._lock = threading.Lock()
        self._users = 0
        self._address = None  # `None` if the program itself has called `ray.init`
        self._session = None

    def open(self, ray, address):
        """Connects to a cluster, unless this program is connected to it.

        Returns:
            The session of the connection, an argument of `close`.
        """
        with self._lock:
            if not ray.is_initialized():
                _connect(ray, address)
                self._users, self._address = 0, address
            elif not self._users or self._session != session_of(ray):
                self._users, self._address = 0, None  # the program has connected itself
            self._session = session_of(ray)
            if address not in ("auto", self._address):
                raise ValueError(
                    "This program is connected to another Ray cluster. Expected: "
                    f'address="auto" or {self._address!r}. Received: '
                    f"address={address!r}. Call `ray.shutdown()`, or close the other "
                    "environments first."
                )
            self._users += 1
            return self._session

    def close(self, ray, session):
        """Ends the connection with its last user, unless the program has made it."""
        with self._lock:
            if session != session_of(ray):  # the program has called `ray.shutdown`
                return
            self._users -= 1
            if not self._users and self._address is not None:
                ray.shutdown()


connection = Connection()


@contextlib.contextmanager
def hold(address):
    """Keeps one connection, so that several pools with "local" share a cluster."""
    ray = import_ray()
    session = connection.open(ray, address)
    try:
        yield
    finally:
        connection.close(ray, session)


def session_of(ray):
    """Returns what identifies the present connection of this program, or `None`."""
    if not ray.is_initialized():
        return None
    context = ray.get_runtime_context()
    return context.gcs_address, context.get_job_id()


def import_ray():
    """Returns the module of Ray; raises an `ImportError` that names the extra."""
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
            f"one with `ray start --head`. If the cluster requires tokens, set "
            f"RAY_AUTH_MODE=token. Received: address={address!r} "
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
        text = f"no server answers at {found}: {error}"
        if address not in ("auto", found):
            text += (
                f"; Ray replaces {address} by {found}, unless the environment variable "
                "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER is 0"
            )
        raise ConnectionError(text) from None


def describe_error(error):
    """Returns the predicate of a sentence about a worker, for an error of Ray."""
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # colors
    lines = [line.strip() for line in text.splitlines() if line.strip()] or [""]
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
