"""Locks a folder for one process, and a model for one training."""

import contextlib
import fcntl
import functools
import json
import os
import pathlib
import platform
import sys
import threading

FILE_NAME = ".lock"


class FolderLock:
    """Locks a folder for the current process, with the file `.lock` in the folder.

    The operating system releases the lock when the process ends, also if the process is
    killed. The file `.lock` remains, and contains the process id and the host name of the
    last owner. A file whose owner has ended does not lock the folder.

    Nested `with` statements of one `FolderLock` lock the folder once.

    Args:
        folder: Path of the folder, which is created if it does not exist.

    Example:

    >>> import tempfile
    >>> folder = tempfile.mkdtemp()
    >>> with FolderLock(folder), FolderLock(folder):
    ...     pass
    Traceback (most recent call last):
    tf_reinforce.locks.FolderLocked: Another training uses the folder ...
    """

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)
        self._descriptor = None
        self._depth = 0

    def __enter__(self):
        if self._depth == 0:
            self._acquire()
        self._depth += 1
        return self

    def __exit__(self, *error):
        self._depth -= 1
        if self._depth == 0:
            unlock(self._descriptor)

    def _acquire(self):
        if self.folder.is_file():
            raise NotADirectoryError(f"{self.folder} must be a folder. Received: a file")
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / FILE_NAME
        # A folder of a stranger may contain a link `.lock` to a file of the user.
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        descriptor = os.open(path, flags, 0o644)
        if not try_lock(descriptor):
            owner = _read_owner(descriptor)
            os.close(descriptor)
            raise FolderLocked(
                f"Another training uses the folder {self.folder}: {owner}. Wait until it "
                "ends, or end it, or choose another folder."
            )
        self._descriptor = descriptor
        owner = {"process": os.getpid(), "host": platform.node()}
        with contextlib.suppress(OSError):  # the folder is locked also on a full disk
            os.truncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(owner).encode(), 0)


class FolderLocked(OSError):
    """The error that a folder is in use by another training."""

    explained = True  # the message names the folder


def try_lock(descriptor, without_locks=True):
    """Locks an open file or folder, unless another process has locked it.

    The lock ends when `unlock` closes the descriptor, or the process ends. On a file
    system without locks, nothing is locked.

    Args:
        descriptor: Int, the descriptor of an open file or folder.
        without_locks: Bool, the result on a file system without locks.

    Returns:
        Bool, False if another process or another descriptor holds the lock.
    """
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # some network file systems have no locks
        if not without_locks:
            return False
    _open_descriptors.add(descriptor)
    return True


def unlock(descriptor):
    """Closes a descriptor that `try_lock` has locked, which ends the lock."""
    _open_descriptors.discard(descriptor)
    os.close(descriptor)


# A fork copies the locks of a process, and would hold them after the process has ended.
_open_descriptors: set[int] = set()


def _close_in_child():
    for descriptor in _open_descriptors:
        with contextlib.suppress(OSError):
            os.close(descriptor)
    _open_descriptors.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _read_owner(descriptor):
    """Returns a description of the process that owns a lock."""
    try:
        owner = json.loads(os.pread(descriptor, 1000, 0))
        return f"process {owner['process']} on {owner['host']}"
    except (ValueError, TypeError, KeyError):
        return "an unknown process"


class TrainingLock:
    """Refuses to train a model while another thread trains it.

    A callback may train the model of its own training.

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
        """Holds the lock in a `with` block of the method with a name."""
        expect_usable_tensorflow()
        if not self._lock.acquire(blocking=False):
            raise RuntimeError(
                f"`{method}` cannot change the {self._model} now, because {self._owner} "
                "trains it. Wait until that call has ended, or use a copy from "
                "`copy.deepcopy`."
            )
        before, thread = self._owner, threading.current_thread().name
        self._owner = f"`{method}` in the thread {thread!r}"
        try:
            yield
        finally:
            self._owner = before
            self._lock.release()


def training(method):
    """Returns a method that holds the attribute `_training_lock` of its model."""

    @functools.wraps(method)
    def locked(self, *args, **kwargs):
        with self._training_lock.hold(method.__name__):
            return method(self, *args, **kwargs)

    return locked


def between_updates(method):
    """Returns a method of an agent that waits for the update of another thread."""

    @functools.wraps(method)
    def locked(self, *args, **kwargs):
        expect_usable_tensorflow()
        with self._weights_lock:
            return method(self, *args, **kwargs)

    return locked


def in_usable_process(method):
    """Returns a method that raises an error in a forked process, and does not hang."""

    @functools.wraps(method)
    def checked(self, *args, **kwargs):
        expect_usable_tensorflow()
        return method(self, *args, **kwargs)

    return checked


def expect_usable_tensorflow():
    """Raises `RuntimeError` in a process that was forked after TensorFlow had started.

    The threads of TensorFlow do not exist in the forked process, and operations would
    wait for them for ever.
    """
    if _tensorflow_lost_threads:
        raise RuntimeError(
            "This process was forked from one in which TensorFlow had already run, and "
            "TensorFlow would hang in it. Start it with "
            '`multiprocessing.get_context("spawn")` or as a subprocess, and load the '
            "agent or model from a file there; or fork before the first use of "
            "TensorFlow."
        )


_tensorflow_lost_threads = False


def _note_fork():
    global _tensorflow_lost_threads
    module = sys.modules.get("tensorflow.python.eager.context")
    context = module and module.context_safe()
    _tensorflow_lost_threads = context is not None and context._initialized


os.register_at_fork(after_in_child=_note_fork)
