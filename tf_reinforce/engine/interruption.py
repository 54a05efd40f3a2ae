"""SIGINT and SIGTERM, which stop a training after its current update."""

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable

SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger("tf_reinforce")


class Terminated(SystemExit):
    """Ends a training after SIGTERM, with exit code 143."""

    def __init__(self):
        super().__init__(128 + signal.SIGTERM)


def interrupted(text):
    """Returns a `KeyboardInterrupt` that says how to continue.

    A program that does not catch it ends with the text in one line, without a traceback.
    """
    _restore_hook()
    error, previous = KeyboardInterrupt(text), sys.excepthook

    def show(kind, value, trace):
        _restore_hook()
        if value is error:
            print(text, file=sys.stderr)
        else:
            previous(kind, value, trace)

    sys.excepthook = show
    _hooks[show] = previous
    return error


# From the hook of the last interrupted training to the one that it replaced.
_hooks: dict[Callable, Callable] = {}


def _restore_hook():
    """Restores `sys.excepthook` after a training whose interrupt the program caught."""
    previous = _hooks.pop(sys.excepthook, sys.excepthook)
    _hooks.clear()
    sys.excepthook = previous


@contextlib.contextmanager
def explained(text):
    """Turns a `KeyboardInterrupt` of the `with` block into `interrupted(text)`."""
    try:
        yield
    except KeyboardInterrupt:
        raise interrupted(text) from None


class GracefulStop:
    """Lets a training finish its current update after SIGINT or SIGTERM.

    Training stops once `received` is not empty. A second SIGINT does not wait for the end
    of the update and raises `KeyboardInterrupt`. After SIGTERM, the process has
    `grace_seconds` left, also during a long call of TensorFlow.

    This class does nothing outside of the main thread, because Python handles signals
    only there.

    Args:
        grace_seconds: Float, the seconds after SIGTERM after which the process ends.

    Attributes:
        received: List of the numbers of the received signals.
    """

    def __init__(self, *, grace_seconds):
        self.grace_seconds = grace_seconds
        self.received = []

    def __enter__(self):
        _restore_hook()
        self._handlers = {}
        if threading.current_thread() is threading.main_thread():
            # Python runs a handler only between two of its instructions. The thread reads
            # signals even while the main thread is in a long call.
            self._read_end, self._write_end = socket.socketpair()
            self._write_end.setblocking(False)
            self._previous_fd = signal.set_wakeup_fd(
                self._write_end.fileno(), warn_on_full_buffer=False
            )
            _wakeup_fds.add(self._write_end.fileno())
            self._handlers = {n: signal.signal(n, self._handle) for n in SIGNALS}
            threading.Thread(target=self._watch, daemon=True).start()
        return self

    def __exit__(self, *error):
        for number, handler in self._handlers.items():
            # A handler that was not installed from Python is `None`.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)
        if self._handlers:
            signal.set_wakeup_fd(self._previous_fd)
            _wakeup_fds.discard(self._write_end.fileno())
            self._write_end.close()  # ends the thread

    def raise_if_received(self, text):
        """Raises `interrupted(text)` or `Terminated` after a signal."""
        if self.received:
            is_terminated = self.received[0] == signal.SIGTERM
            raise Terminated() if is_terminated else interrupted(text)

    def _handle(self, number, frame):
        self.received.append(number)
        if self.received.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt
        log.warning(
            "Finishing the update, and its validation if one is due, then saving a "
            "checkpoint …"
        )

    def _watch(self):
        """Ends the process when the grace period after SIGTERM is over."""
        timer = threading.Timer(self.grace_seconds, _end_process)
        timer.daemon = True
        while numbers := self._read_end.recv(1):
            if numbers[0] == signal.SIGTERM and not timer.is_alive():
                timer.start()
        timer.cancel()
        self._read_end.close()


def _end_process():
    """Ends the process and its workers when the grace period is over."""
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(128 + signal.SIGTERM)


# The descriptors to which signals are written. A forked process must not write its
# signals to its parent's.
_wakeup_fds: set[int] = set()


def _reset_in_child():
    if _wakeup_fds:
        signal.set_wakeup_fd(-1)
        _wakeup_fds.clear()


os.register_at_fork(after_in_child=_reset_in_child)
