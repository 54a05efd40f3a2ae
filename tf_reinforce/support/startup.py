"""Imports TensorFlow without its messages, and reads `TF_CONFIG`.

TensorFlow, CUDA and LiteRT print some messages before they read the log level, so no log
level can suppress them. These messages are filtered out of the standard error instead.
"""

import contextlib
import importlib
import json
import os
import re
import sys
import tempfile
import threading

from tf_reinforce.support import locks

# CUDA's error 100 means "no GPU", 303 "no driver". Other CUDA errors are printed.
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

# Optional packages of Keras and TensorFlow Probability that the command line never uses.
# Importing matplotlib or SciPy takes about a quarter as long as importing TensorFlow.
_UNUSED = ("matplotlib", "IPython", "cv2", "scipy", "sklearn", "pandas")


def import_tensorflow():
    """Imports TensorFlow and TensorFlow Probability, without start-up messages.

    To save time, optional packages such as SciPy are not imported with them, but they can
    be imported later. After the import, TensorFlow prints errors only, unless you have
    set another level in `TF_CPP_MIN_LOG_LEVEL`. Level 0 shows all messages.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    if "tensorflow" not in sys.modules:
        with (
            locks.kept(at_once=False),
            quiet_first_import(),
            _without_packages(_UNUSED),
        ):
            importlib.import_module("tensorflow")
            importlib.import_module("tensorflow_probability")


@contextlib.contextmanager
def quiet_first_import():
    """Removes TensorFlow's start-up messages if a `with` block imports it first.

    The log level does not change.
    """
    if "tensorflow" in sys.modules:
        yield
        return
    with without_messages():
        yield
        tensorflow = sys.modules.get("tensorflow")
        # Otherwise TensorFlow prints later that it found no GPU. With a GPU, the call
        # would fix which GPUs are visible.
        if tensorflow is not None and not any(map(os.path.exists, _GPU_DEVICES)):
            tensorflow.config.list_physical_devices()


@contextlib.contextmanager
def _without_packages(names):
    """Makes packages look as if they were not installed, during a `with` block.

    Those already imported stay available.
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
    """Removes matching lines from the standard error of a `with` block.

    All other lines are printed when the block ends. If the process dies inside the block,
    these lines are lost. With `TF_CPP_MIN_LOG_LEVEL=0`, nothing is removed.

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


def learner_cluster(environ):
    """Returns the learner processes of `TF_CONFIG`, or `None` for a single process.

    TensorFlow could parse this variable too, but the command line needs it before
    TensorFlow is imported.

    Returns:
        Tuple of the processes' addresses `"host:port"`, and the index of this process
        among them. Process 0 is the chief.

    Raises:
        ValueError: If `TF_CONFIG` is invalid, or has jobs other than chief and worker.

    Example:

    >>> cluster = {"worker": ["10.0.0.1:2222", "10.0.0.2:2222"]}
    >>> task = {"type": "worker", "index": 1}
    >>> environ = {"TF_CONFIG": json.dumps({"cluster": cluster, "task": task})}
    >>> learner_cluster(environ)
    (('10.0.0.1:2222', '10.0.0.2:2222'), 1)
    """
    text = environ.get("TF_CONFIG") or "{}"
    try:
        config = json.loads(text)
        if config in ({}, {"cluster": {}}):
            return None
        jobs, task = config["cluster"], config["task"]
        hosts = {
            (job, index): host
            for job in sorted(jobs, key=("chief", "worker").index)
            for index, host in enumerate(jobs[job])
        }
        number = [*hosts].index((task["type"], int(task["index"])))
        if not all(host.partition(":")[2] for host in hosts.values()):
            raise ValueError
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(
            'TF_CONFIG must be {"cluster": {"worker": ["host:port", …]}, "task": '
            '{"type": "worker", "index": N}}, or unset; jobs: chief, worker. '
            f"Received: TF_CONFIG={text!r}"
        ) from error
    return (tuple(hosts.values()), number) if len(hosts) > 1 else None
