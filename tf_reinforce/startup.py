"""Imports TensorFlow, and removes start-up messages from standard error.

TensorFlow, CUDA and LiteRT write these messages in C++, some before they read the log
level. So they are removed from file descriptor 2.
"""

import contextlib
import importlib
import os
import re
import signal
import sys
import tempfile

# 100: there is no GPU; 303: there is no driver. Other errors of CUDA are printed.
_STARTUP_MESSAGE = re.compile(
    rb"WARNING: All log messages before absl::InitializeLog\(\) is called"
    rb"|I\d{4} \d\d:\d\d:"
    rb"|To enable the following instructions: .* rebuild TensorFlow"
    rb"|E\d{4} .*failed call to cuInit: .*(\((100|303)\)|CUDA_ERROR_NO_DEVICE)"
    rb"|INFO: Created TensorFlow Lite XNNPACK delegate for CPU\."
)


def import_tensorflow():
    """Imports TensorFlow and lists its devices, without their start-up messages.

    Afterwards TensorFlow prints errors only. If the user has set the environment variable
    `TF_CPP_MIN_LOG_LEVEL`, this level is kept, and level 0 prints everything.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if "tensorflow" not in sys.modules:
        with without_startup_messages(fork=True):
            importlib.import_module("tensorflow").config.list_physical_devices()


@contextlib.contextmanager
def without_startup_messages(fork=False):
    """Removes start-up messages from what the block writes to file descriptor 2.

    Everything else is printed when the block ends, also if it raises an exception.

    Args:
        fork: Bool. If True, a forked process prints, so that the last message of a
            process that dies in the block is not lost. Requires a process without
            threads.
    """
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0":
        yield
        return
    try:
        stderr = os.dup(2)
    except OSError:  # the process has no standard error
        yield
        return
    with os.fdopen(stderr, "wb", buffering=0) as out, tempfile.TemporaryFile() as file:
        wait = _print_in_child(file, out) if fork and hasattr(os, "fork") else None
        _flush()
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(stderr, 2)
            wait() if wait is not None else _print_others(file, out)


def _flush():
    if sys.stderr is not None:
        sys.stderr.flush()


def _print_in_child(file, out):
    """Forks a process that prints when this one ends the block, or dies.

    Returns:
        Function that ends the block: it returns when everything is printed.
    """
    # The pipe is closed by `os.close`, or by the system when this process dies.
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
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
