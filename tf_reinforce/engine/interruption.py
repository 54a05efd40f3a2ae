"""SIGINT and SIGTERM, which stop a training after its current update."""

import logging
import multiprocessing
import os
import signal
import threading

SIGNALS = (signal.SIGINT, signal.SIGTERM)

log = logging.getLogger("tf_reinforce")


class Terminated(SystemExit):
    """Ends a training after SIGTERM, with exit code 143."""

    def __init__(self):
        super().__init__(128 + signal.SIGTERM)


class GracefulStop:
    """Lets a training finish its current update after SIGINT or SIGTERM.

    Training stops once `received` is not empty. A second SIGINT does not wait for the end
    of the update and raises `KeyboardInterrupt`. After SIGTERM, the process has
    `grace_seconds` left, counted from the moment when a running call of TensorFlow has
    returned, because Python does not handle the signal earlier.

    This class does nothing outside of the main thread, because Python handles signals
    only there.

    Args:
        grace_seconds: Float, the seconds after SIGTERM after which the process ends.

    Attributes:
        received: List of the numbers of the received signals.
    """

    def __init__(self, *, grace_seconds):
        self.received = []
        self._timer = threading.Timer(grace_seconds, _end_process)
        self._timer.daemon = True

    def __enter__(self):
        self._handlers = {}
        if threading.current_thread() is threading.main_thread():
            self._handlers = {n: signal.signal(n, self._handle) for n in SIGNALS}
        return self

    def __exit__(self, *error):
        self._timer.cancel()
        for number, handler in self._handlers.items():
            # A handler that was not installed from Python is `None`.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)

    def raise_if_received(self, *texts):
        """Raises `KeyboardInterrupt(*texts)` or `Terminated` after a signal."""
        if self.received:
            is_terminated = self.received[0] == signal.SIGTERM
            raise Terminated if is_terminated else KeyboardInterrupt(*texts)

    def _handle(self, number, frame):
        self.received.append(number)
        if number == signal.SIGTERM and self.received.count(number) == 1:
            self._timer.start()
        if self.received.count(signal.SIGINT) > 1:
            raise KeyboardInterrupt
        log.warning("Finishing the update, then saving a checkpoint …")


def _end_process():
    """Ends the process and its workers when the grace period is over."""
    for process in multiprocessing.active_children():
        process.kill()
    os._exit(128 + signal.SIGTERM)
