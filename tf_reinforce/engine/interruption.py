"""SIGINT and SIGTERM, which stop a training after its current update."""

import contextlib
import logging
import multiprocessing
import os
import signal
import socket
import threading

SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger("tf_reinforce")


class Terminated(SystemExit):
    """Ends a training after SIGTERM, with exit code 143."""

    def __init__(self):
        super().__init__(128 + signal.SIGTERM)


class GracefulStop:
    """Lets a training finish its current update after SIGINT or SIGTERM.

    Training stops once `received` is not empty. After SIGTERM, the process has
    `grace_seconds` left. A second SIGINT raises `KeyboardInterrupt`, or ends the process
    if there are `last_words`.

    Outside the main thread, this does nothing, because Python handles signals there.

    Args:
        grace_seconds: Float, the seconds after SIGTERM after which the process ends.
        last_words: String to print when a second SIGINT ends the process, which it then
            does even while TensorFlow or an environment computes, without Python's
            `finally` blocks. With `None`, a second SIGINT does not end the process.

    Attributes:
        received: List of the numbers of the received signals.
    """

    def __init__(self, *, grace_seconds, last_words=None):
        self.grace_seconds = grace_seconds
        self.last_words = last_words
        self.received = []

    def __enter__(self):
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
        if self._handlers:
            for number, handler in self._handlers.items():
                # A handler that was not installed from Python is `None`.
                signal.signal(number, signal.SIG_DFL if handler is None else handler)
            signal.set_wakeup_fd(self._previous_fd)
            _wakeup_fds.discard(self._write_end.fileno())
            self._write_end.close()  # ends the thread

    def raise_if_received(self, *texts):
        """Raises `KeyboardInterrupt(*texts)` or `Terminated` after a signal."""
        if self.received:
            is_terminated = self.received[0] == signal.SIGTERM
            raise Terminated if is_terminated else KeyboardInterrupt(*texts)

    def _handle(self, number, frame):
        self.received.append(number)
        if self.received.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt
        log.warning("Finishing the update, then saving a checkpoint …")

    def _watch(self):
        """Ends the process after the grace period, or after a second SIGINT.

        The latter only if there are `last_words`.
        """
        timer = threading.Timer(self.grace_seconds, _end_process, [signal.SIGTERM])
        timer.daemon = True
        interrupts = 0
        while numbers := self._read_end.recv(1):
            if numbers[0] == signal.SIGTERM and not timer.is_alive():
                timer.start()
            elif numbers[0] == signal.SIGINT:
                interrupts += 1
                if interrupts > 1 and self.last_words is not None:
                    _print_last(self.last_words)
                    _end_process(signal.SIGINT)
        timer.cancel()
        self._read_end.close()


def _print_last(text):
    """Prints a text; ends the process if standard output blocks."""
    timer = threading.Timer(1.0, _end_process, [signal.SIGINT])
    timer.daemon = True
    timer.start()
    with contextlib.suppress(OSError):
        os.write(1, f"\n{text}\n".encode(errors="surrogateescape"))


def _end_process(number):
    """Ends the process at once; the guard of its worker processes then ends these."""
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(128 + number)


# The descriptors to which signals are written. A forked process must not write its
# signals to its parent's.
_wakeup_fds: set[int] = set()


def _reset_in_child():
    if _wakeup_fds:
        signal.set_wakeup_fd(-1)
        _wakeup_fds.clear()


os.register_at_fork(after_in_child=_reset_in_child)
