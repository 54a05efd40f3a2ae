"""Locks that keep two trainings from sharing a folder or a model."""

import contextlib
import functools
import os
import pathlib
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


class TrainingLock:
    """Refuses to train a model while another thread trains it.

    Within one thread it can be held again, so a callback may train the model that it
    belongs to.

    Args:
        model: String, what errors call the model.
    """

    def __init__(self, model):
        expect_usable_tensorflow()
        self._model = model
        self._lock = threading.RLock()
        self._owner = None

    @contextlib.contextmanager
    def hold(self, method):
        """Holds the lock during a `with` block; errors show the name `method`."""
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"`{method}` cannot change the {self._model} now, because {self._owner} "
                "trains it. Wait until that call has ended, or use `copy.deepcopy`."
            )
        before, thread = self._owner, threading.current_thread().name
        self._owner = f"`{method}` in the thread {thread!r}"
        try:
            yield
        finally:
            self._owner = before
            self._lock.release()


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


# A training method holds its model's `_training_lock`.
training = _within(lambda model, name: model._training_lock.hold(name))
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
