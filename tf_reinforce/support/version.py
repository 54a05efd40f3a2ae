"""Defines the version of the package, and describes the software of a process."""

import copy
import importlib.metadata
import os
import platform
import re
import subprocess

VERSION = "0.1.0"
CONFIG_KEY = "tf_reinforce"  # of the version in the config of a saved object

_PACKAGES = (
    "tensorflow",
    "keras",
    "tensorflow-probability",
    "gymnasium",
    "numpy",
    "ai-edge-litert",
    "mujoco",
)


def expect_not_newer(source, written):
    """Raises `ValueError` if a newer version of the package wrote a file.

    Args:
        source: String, the start of the message, which names the file.
        written: The version that the file states. A value that is no string is ignored.
    """
    if isinstance(written, str) and _numbers(written) > _numbers(VERSION):
        raise ValueError(
            f"{source} was written by tf_reinforce {written[:40]}, this is {VERSION}. "
            f"Install tf_reinforce {written[:40]} or newer."
        )


def _numbers(text):
    """Returns the numbers in a version, `[0, 1, 0]` for `"0.1.0"`."""
    return [int(number) for number in re.findall(r"\d{1,9}", text[:40])]


def own_config(kind, config):
    """Returns the saved config of an object without the version that wrote it.

    Args:
        kind: The class of the object, whose `get_config` has the key `CONFIG_KEY`.
        config: Dict.

    Raises:
        ValueError: If a newer version wrote the config.
    """
    config = copy.deepcopy(config)  # Keras removes entries of nested configs
    expect_not_newer(f"The {kind.__name__}", config.pop(CONFIG_KEY, None))
    return config


def installed():
    """Returns the versions of Python, the platform and the packages of a run."""
    result = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            result[package] = None
    # The metadata of an editable installation may be those of an earlier version.
    return {**result, "tf-reinforce": VERSION}


def of_run():
    """Returns the result of `installed`, and the Git commit of the current folder.

    The value of `git_commit` ends in `-dirty` if files differ from the commit, and is
    `None` if the current folder belongs to no Git repository.
    """
    return {**installed(), "git_commit": _git_commit()}


def _git_commit():
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40", "--match="]
    try:
        described = subprocess.run(command, capture_output=True, timeout=5, text=True)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return described.stdout.strip() or None


def flags():
    """Returns a dict of the processor and the environment variables of TensorFlow.

    With other flags, TensorFlow may round results differently.
    """
    names = sorted(x for x in os.environ if x.startswith(("TF_", "XLA_", "KERAS_")))
    return {"processor": _processor(), **{name: os.environ[name] for name in names}}


def _processor():
    try:
        with open("/proc/cpuinfo") as file:
            models = [line for line in file if line.startswith("model name")]
        return models[0].split(":", 1)[1].strip()
    except (OSError, IndexError):
        return platform.processor() or platform.machine()
