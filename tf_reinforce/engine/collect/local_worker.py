"""Starts, watches and ends worker processes on this machine."""

import contextlib
import json
import math
import mmap
import multiprocessing
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from multiprocessing import connection

from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.engine.collect import worker as workers

START_TIMEOUT = 60.0  # seconds to start, or to read programs and weights
CLOSE_TIMEOUT = 10.0  # seconds to close the environments before a process is killed
END_TIMEOUT = 3.0  # the same after an error, or after Ctrl-C
_CODE = (  # of a worker process
    "import json, sys; sys.path[:] = json.loads(sys.argv[1]); "
    "from tf_reinforce.engine.collect import worker; "
    "worker.main(*map(int, sys.argv[2:]))"
)


class WorkerLost(Exception):
    """Raised when a worker process has died or did not answer in time.

    The text is what follows "Worker 3" in a message.
    """


class HostLost(WorkerLost):
    """Raised when a machine is lost, or the process on it that holds a worker."""


class LocalLauncher:
    """Starts worker processes on this machine, and waits for their messages.

    Args:
        step_timeout: Float, the seconds after which one reset or step counts as hanging.
    """

    restarts_lost_hosts = False  # the machine is that of the current process

    def __init__(self, step_timeout):
        self.step_timeout = step_timeout

    def start(self, number, size, first_index):
        """Returns a new `LocalWorker`, still without its environments."""
        return LocalWorker(number, size, first_index, self.step_timeout)

    def share(self, message):
        """Returns a message in the form in which several workers receive it."""
        return message

    def wait(self, workers, seconds):
        """Waits up to `seconds` until a worker has a message or has ended.

        Returns:
            List of all such workers, empty if the time is over.
        """
        ended = [one for one in workers if one.lost]  # `send` has found that they are
        return ended or connection.wait(workers, seconds)


class LocalWorker:
    """A worker process on this machine.

    The process starts fresh, not as a fork, and does not import the main module. It leads
    a process group of its own. Therefore it does not receive Ctrl-C, and the processes
    that its environments start end together with it.

    Args:
        number: Int, which names the worker in messages.
        size: Positive int, the number of its environments.
        first_index: Int, the index of its first environment among those of all workers.
        step_timeout: Float, the seconds after which one reset or step counts as hanging.
        search_path: List of strings, its import path, by default `sys.path`.
    """

    ready = False  # whether the process has made its environments
    waits_for_machine = False  # whether no machine has free cores for the worker

    def __init__(self, number, size, first_index, step_timeout, search_path=None):
        self.number = number
        self._first_index = first_index
        self._step_timeout = step_timeout
        with tempfile.TemporaryFile() as file:
            file.truncate(batched_envs.progress_size(size))
            self._progress = batched_envs.Progress(size, mmap.mmap(file.fileno(), 0))
            self._channel, theirs = multiprocessing.Pipe()
            descriptors = theirs.fileno(), file.fileno()
            path = json.dumps(search_path or sys.path)
            arguments = [path, *map(str, descriptors), str(first_index)]
            self._process = subprocess.Popen(
                [sys.executable, "-c", _CODE, *arguments],
                stdin=subprocess.DEVNULL,
                env={**os.environ, "TF_REINFORCE_WORKER": str(number)},
                pass_fds=descriptors,
                start_new_session=True,
            )
            theirs.close()
        self.fileno, self.pid = self._channel.fileno, self._process.pid
        # A process may stop in the middle of a message.
        limit = struct.pack("ll", math.ceil(step_timeout + START_TIMEOUT), 0)
        with socket.socket(fileno=os.dup(self.fileno())) as end:
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                end.setsockopt(socket.SOL_SOCKET, option, limit)
        self._last, self._since = None, 0.0  # the last progress, and when it was new

    def send(self, message):
        """Sends a pickled message; raises `WorkerLost`."""
        self._last = None  # `check_progress` begins to measure `step_timeout` anew
        with self._explain_lost():
            self._channel.send_bytes(message)

    def receive(self):
        """Returns the next message, a tuple; raises `WorkerLost`."""
        with self._explain_lost():
            message = workers.receive(self._channel)
        self._last = None
        return message

    def check_progress(self):
        """Raises `WorkerLost` if the process has ended, or hangs for `step_timeout`."""
        if self._process.poll() is not None:
            self._lose()
        snapshot, now = self._progress.snapshot(), time.monotonic()
        if snapshot != self._last:
            self._last, self._since = snapshot, now
        limit = self._step_timeout
        limit += 0 if self._progress.is_in_episode() else START_TIMEOUT
        if now - self._since > limit:
            self._lose(is_late=True)

    def _lose(self, is_late=False):
        """Kills the process, and raises a `WorkerLost` that says why."""
        place = self._progress.describe(self._first_index)
        if is_late:
            more = f" and further {START_TIMEOUT:g} s"
            more = "" if self._progress.is_in_episode() else more
            text = f"did not answer within step_timeout={self._step_timeout:g} s{more}"
            text += ", and was ended"
            self.kill()
        else:
            text = _describe_exit(self._exit_code(1.0))
        raise WorkerLost(f"{text} ({place})") from None

    @contextlib.contextmanager
    def _explain_lost(self):
        try:
            yield
        except BlockingIOError:  # the time is over
            self._lose(is_late=True)
        except (EOFError, OSError):
            self._lose()

    def stop(self):
        """Asks the process to close its environments and end."""
        with contextlib.suppress(OSError):  # `join` reports it
            self._channel.send_bytes(pickle.dumps(("stop",)))

    def terminate(self):
        """Asks the process to end, even in the middle of an episode."""
        self._process.terminate()

    def join(self, deadline):
        """Waits until the process has ended, and kills it at the deadline.

        Args:
            deadline: Float, a time of `time.monotonic`.

        Returns:
            List of texts, one for each exception of an environment's `close`, and one if
            the process did not end in time or failed.
        """
        if self.lost:
            return []
        problems, text = [], None
        try:
            problems = self._close_errors(deadline)
        except TimeoutError:
            text = "did not end in time, and was killed"
        # A message may be incomplete: SIGTERM has interrupted its sender.
        except (EOFError, OSError, ValueError, pickle.UnpicklingError):
            code = self._exit_code(max(0.01, deadline - time.monotonic()))
            text = _describe_exit(code) if code else None
        self.kill()
        if text:
            place = self._progress.describe(self._first_index)
            problems = [f"the process {text} ({place})"]
        return [f"worker {self.number}: {problem}" for problem in problems]

    def _close_errors(self, deadline):
        """Waits for the last message, and returns its texts."""
        while self._channel.poll(max(0.01, deadline - time.monotonic())):
            kind, errors, *_ = workers.receive(self._channel)
            if kind == "closed":
                return errors
        raise TimeoutError

    @property
    def lost(self):
        """Returns whether the worker was ended."""
        return self._channel.closed

    def kill(self):
        """Kills the process group, and returns the process' exit code.

        It is the original one if the process had already ended.
        """
        if not self.lost:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            self._channel.close()
        return self._process.wait()

    def _exit_code(self, seconds):
        """Returns the exit code of a process that ends within some seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(seconds)
        return self.kill()


def _describe_exit(code):
    """Returns a text such as "was killed by the signal SIGKILL" for an exit code."""
    if code < 0:
        return f"was killed by the signal {signal.Signals(-code).name}"
    return f"ended with the exit code {code}"
