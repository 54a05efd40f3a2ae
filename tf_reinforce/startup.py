"""Imports TensorFlow, and removes start-up messages from standard error.

The C++ code of TensorFlow, CUDA and LiteRT prints messages when it starts. No log level
suppresses the messages that are printed before the log level is read. The module
`startup` removes start-up messages from file descriptor 2, which is standard error.
"""

import contextlib
import importlib
import os
import re
import signal
import sys
import tempfile
import threading
import warnings

from tf_reinforce import interrupts

# CUDA's error 100 means that the machine has no GPU, and error 303 means that it has no
# driver. Other CUDA errors are printed.
_STARTUP_MESSAGE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|I\d{4} \d\d:\d\d:"
    rb"|To enable the following instructions: .* rebuild TensorFlow"
    rb"|E\d{4} .*failed call to cuInit: .*(\((100|303)\)|CUDA_ERROR_NO_DEVICE)"
    rb"|INFO: Created TensorFlow Lite XNNPACK delegate for CPU\."
    rb"|W\d{4} .*\] Ignored (output_format|drop_control_dependency)\."
)

_GPU_DEVICES = ("/dev/nvidiactl", "/dev/dxg", "/dev/kfd")
_is_redirected = threading.Lock()

# Optional packages that Keras and TensorFlow Probability import for functions which the
# command line does not call. The imports of matplotlib and of SciPy each take about as
# long as a quarter of that of TensorFlow.
_UNUSED = ("matplotlib", "IPython", "cv2", "scipy", "sklearn", "pandas")


def import_tensorflow():
    """Imports TensorFlow and TensorFlow Probability, without start-up messages.

    Optional packages are not imported with them, because their import takes long. They
    can be imported later.

    After the import, TensorFlow prints errors only. If the user has set the environment
    variable `TF_CPP_MIN_LOG_LEVEL`, the user's log level is kept. Log level 0 prints all
    messages.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if "tensorflow" not in sys.modules:
        _import_distutils()
        with (
            interrupts.kept(at_once=False),
            without_startup_messages(fork=True),
            _without_packages(_UNUSED),
        ):
            importlib.import_module("tensorflow").config.list_physical_devices()
            importlib.import_module("tensorflow_probability")


@contextlib.contextmanager
def quiet_first_import():
    """Removes the start-up messages of TensorFlow if a `with` block imports it.

    The log level does not change. If TensorFlow was imported before, nothing happens.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    with without_startup_messages():
        yield
        tensorflow = sys.modules.get("tensorflow")
        # TensorFlow prints later that it found no GPU. With a GPU, the call would fix
        # which GPUs are visible.
        if tensorflow is not None and not any(map(os.path.exists, _GPU_DEVICES)):
            tensorflow.config.list_physical_devices()


def _import_distutils():
    """Imports the package distutils of Python 3.11, which TensorFlow Probability uses.

    Otherwise, setuptools replaces it by its own, and imports pkg_resources for that,
    which takes about 0.2 s. Later versions of Python have no such package.
    """
    shims = [x for x in sys.meta_path if type(x).__module__ == "_distutils_hack"]
    if sys.version_info >= (3, 12) or not shims or "setuptools" in sys.modules:
        return
    try:
        sys.meta_path[:] = [x for x in sys.meta_path if x not in shims]
        with warnings.catch_warnings(), contextlib.suppress(ImportError):
            warnings.simplefilter("ignore", DeprecationWarning)
            importlib.import_module("distutils.version")
    finally:
        sys.meta_path[:0] = shims


@contextlib.contextmanager
def _without_packages(names):
    """Makes the packages look as if they were not installed, in a `with` block.

    A package that was imported before is not changed. After the `with` block, the other
    packages can be imported.
    """
    hidden = [name for name in names if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextlib.contextmanager
def without_startup_messages(fork=False):
    """Removes the start-up messages that a `with` block writes to standard error.

    Messages that are no start-up messages are printed when the `with` block ends, even if
    the block raises an exception.

    Args:
        fork: Bool, whether a forked process prints the messages that are not removed. A
            forked process can print the last message of a process that dies in the `with`
            block.
            `fork=True` requires that the current process has no threads.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    # Of blocks that overlap, also in several threads, only the first removes messages.
    if not _is_redirected.acquire(blocking=False):
        yield
        return
    try:
        with _redirected(fork):
            yield
    finally:
        _is_redirected.release()


@contextlib.contextmanager
def _redirected(fork):
    """Writes standard error to a file, and then prints all but start-up messages."""
    with contextlib.ExitStack() as stack:
        try:
            out = stack.enter_context(os.fdopen(os.dup(2), "wb", buffering=0))
            file = stack.enter_context(tempfile.TemporaryFile())
        except OSError:  # there is no standard error, or no folder for the file
            yield
            return
        wait = _print_in_child(file, out) if fork and hasattr(os, "fork") else None
        _flush()
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(out.fileno(), 2)
            wait() if wait is not None else _print_others(file, out)


@contextlib.contextmanager
def without_standard_error():
    """Removes everything that a `with` block writes to file descriptor 2.

    Use the function only for libraries that also raise an error for what they print.
    """
    try:
        stderr = os.dup(2)
    except OSError:  # the process has no standard error
        yield
        return
    with os.fdopen(stderr, "wb", buffering=0), open(os.devnull, "wb") as null:
        _flush()
        os.dup2(null.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(stderr, 2)


def _flush():
    with contextlib.suppress(Exception):  # `sys.stderr` may be any object, or closed
        sys.stderr.flush()


def _print_in_child(file, out):
    """Forks a process that prints the messages in `file`, except start-up messages.

    The forked process prints when the returned function is called, or when the current
    process dies.

    Returns:
        Function that asks the forked process to print, and waits until it has printed.
    """
    # The pipe is closed by `os.close`, or by the system when the current process dies.
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles Ctrl-C
            os.close(writing)
            os.read(reading, 1)
            _print_others(file, out)
        finally:
            os._exit(0)
    os.close(reading)

    def wait():
        os.close(writing)
        os.waitpid(child, 0)

    return wait


def _print_others(file, out):
    file.seek(0)
    for line in file:
        if not _STARTUP_MESSAGE.match(line):
            out.write(line)
