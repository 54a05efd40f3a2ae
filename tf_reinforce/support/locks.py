"""Keeps trainings from sharing a folder or model, and libraries from losing Ctrl-C."""

import contextlib
import functools
import os
import pathlib
import signal
import sys
import threading

FILE_NAME = ".lock"


def lock_file(folder):
    """Returns a lock that one process can hold, stored as a file in the folder.

    The operating system releases it when the process ends, even if killed. Forked
    processes do not inherit it.
    """
    import filelock  # not for `tf-reinforce --help`

    path = os.path.join(folder, FILE_NAME)
    return filelock.FileLock(path, blocking=False, thread_local=False)


class FolderLock:
    """Locks a folder for one training.

    Entering the same lock again inside its `with` block is allowed.

    Args:
        folder: Path of the folder, created if it does not exist.

    Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with FolderLock(folder), FolderLock(folder):
    ...     pass
    Traceback (most recent call last):
    tf_reinforce.support.locks.FolderLocked: Another training uses the folder ...
    """

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self._lock = lock_file(self.folder)

    def __enter__(self):
        if self.folder.is_file():
            raise NotADirectoryError(f"{self.folder} must be a folder. Received: a file")
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self._lock.acquire()
        except TimeoutError:
            raise FolderLocked(
                f"Another training uses the folder {self.folder}. Choose another one."
            ) from None
        return self

    def __exit__(self, *error):
        self._lock.release()


class FolderLocked(OSError):
    """Raised when another training uses the folder."""

    explained = True  # the message names the folder


@contextlib.contextmanager
def _of_training(model, method):
    """Refuses to train a model while another thread trains it.

    Within one thread it can be held again, so a callback may train its model.
    """
    if not model._training_lock.acquire(blocking=False):
        raise RuntimeError(
            f"`{method}` cannot change the {type(model).__name__} now, because another "
            "thread trains it. Wait until that has ended, or use `copy.deepcopy`."
        )
    try:
        yield
    finally:
        model._training_lock.release()


def _within(context):
    """Returns a decorator that runs methods inside `context(self, name)`."""

    def decorate(method):
        @functools.wraps(method)
        def locked(self, *args, **kwargs):
            expect_usable_tensorflow()
            with context(self, method.__name__):
                return method(self, *args, **kwargs)

        return locked

    return decorate


# A training method holds its model's `_training_lock`, a `threading.RLock`.
training = _within(_of_training)
# Waits for the update of another thread.
between_updates = _within(lambda agent, name: agent._weights_lock)
# Raises an error in a forked process, in which it would hang.
in_usable_process = _within(lambda model, name: contextlib.nullcontext())


def expect_usable_tensorflow():
    """Raises `RuntimeError` in a process forked after TensorFlow started.

    TensorFlow's threads are missing there, and operations would wait for them forever.
    """
    if _tensorflow_lost_threads:
        raise RuntimeError(
            "This process was forked after TensorFlow had run, which would hang in it. "
            'Start it with `multiprocessing.get_context("spawn")`, and load the model '
            "from a file there, or fork before the first use of TensorFlow."
        )


_tensorflow_lost_threads = False


def _note_fork():
    global _tensorflow_lost_threads
    module = sys.modules.get("tensorflow.python.eager.context")
    context = module and module.context_safe()
    _tensorflow_lost_threads = context is not None and context._initialized


os.register_at_fork(after_in_child=_note_fork)


@contextlib.contextmanager
def kept(*, at_once=True):
    """Keeps Ctrl-C from being lost or changed to another error in a `with` block.

    Python raises `KeyboardInterrupt` between any two instructions. If that happens while
    TensorFlow traces a function, the exception becomes a `TypeError`. Some modules even
    discard the exception when they are imported.

    Args:
        at_once: Bool, whether the handler of SIGINT runs when the signal arrives; an
            error that follows is replaced by `KeyboardInterrupt`. If False, it runs when
            the block ends, so nothing inside is interrupted.
    """
    handler = signal.getsignal(signal.SIGINT)
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or not callable(handler):
        yield
        return
    received = []

    def handle(*signal_and_frame):
        received.append(signal_and_frame)
        if at_once:
            handler(*signal_and_frame)
            received.pop()  # the handler has raised nothing

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    except Exception:
        if received and at_once:
            raise KeyboardInterrupt from None
        raise
    finally:
        signal.signal(signal.SIGINT, handler)
        if received and not at_once:
            handler(*received[0])
