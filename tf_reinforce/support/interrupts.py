"""Keeps Ctrl-C from being lost, or turned into another error, inside of libraries."""

import contextlib
import signal
import threading


@contextlib.contextmanager
def kept(*, at_once=True):
    """Keeps the `KeyboardInterrupt` of a SIGINT in a `with` block from being changed.

    Python raises it between any two instructions. TensorFlow turns one that arrives while
    it traces a function into a `TypeError`, and a module may discard one during its
    import.

    Args:
        at_once: Bool, whether the handler of SIGINT is called when the signal arrives. An
            error that follows a `KeyboardInterrupt` is then replaced by it. If False, the
            handler is called when the block ends, so nothing in the block is interrupted.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler):
        yield
        return
    received, error = [], None

    def handle(*signal_and_frame):
        try:
            if at_once:
                handler(*signal_and_frame)
            else:
                received.append(signal_and_frame)
        except KeyboardInterrupt:
            received.append(signal_and_frame)
            raise

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    except Exception as caught:
        error = caught
    finally:
        signal.signal(signal.SIGINT, handler)
    if received and not at_once:
        handler(*received[0])
    if error is not None:
        raise KeyboardInterrupt if received and at_once else error
