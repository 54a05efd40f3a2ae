"""Imports TensorFlow, and removes start-up messages from standard error.

The C++ code of TensorFlow, CUDA and LiteRT prints messages when it starts. No log level
suppresses those that are printed before the log level is read, so they are removed from
file descriptor 2, which is standard error.
"""

import contextlib
import importlib
import os
import re
import sys
import tempfile
import threading

from tf_reinforce.support import interrupts

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
ANY_MESSAGE = re.compile(b"")

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
        with (
            interrupts.kept(at_once=False),
            quiet_first_import(),
            _without_packages(_UNUSED),
        ):
            importlib.import_module("tensorflow")
            importlib.import_module("tensorflow_probability")


@contextlib.contextmanager
def quiet_first_import():
    """Removes the start-up messages of TensorFlow if a `with` block imports it.

    The log level does not change. If TensorFlow was imported before, nothing happens.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    with without_messages():
        yield
        tensorflow = sys.modules.get("tensorflow")
        # TensorFlow prints later that it found no GPU. With a GPU, the call would fix
        # which GPUs are visible.
        if tensorflow is not None and not any(map(os.path.exists, _GPU_DEVICES)):
            tensorflow.config.list_physical_devices()


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
def without_messages(pattern=_STARTUP_MESSAGE):
    """Removes the lines that match a pattern from the standard error of a `with` block.

    The other lines are printed when the block ends, even if it raises an exception; they
    are lost if the process dies. Of blocks that overlap, also in several threads, only
    the first removes lines.

    Args:
        pattern: Pattern of bytes. Use `ANY_MESSAGE` only for libraries that also raise an
            error for what they print.
    """
    is_wanted = os.environ.get("TF_CPP_MIN_LOG_LEVEL") == "0"
    if is_wanted or not _is_redirected.acquire(blocking=False):
        yield
        return
    with contextlib.ExitStack() as stack:
        stack.callback(_is_redirected.release)
        try:
            out = stack.enter_context(os.fdopen(os.dup(2), "wb", buffering=0))
            file = stack.enter_context(tempfile.TemporaryFile())
        except OSError:  # there is no standard error, or no folder for the file
            yield
            return
        _flush()
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            _flush()
            os.dup2(out.fileno(), 2)
            file.seek(0)
            out.writelines(line for line in file if not pattern.match(line))


def _flush():
    with contextlib.suppress(Exception):  # `sys.stderr` may be any object, or closed
        sys.stderr.flush()
