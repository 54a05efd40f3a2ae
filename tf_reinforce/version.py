"""Defines the version of the package, and describes the software of a process."""

import importlib.metadata
import os
import platform
import subprocess

VERSION = "0.1.0"

_PACKAGES = (
    "tf-reinforce",
    "tensorflow",
    "keras",
    "tensorflow-probability",
    "gymnasium",
    "numpy",
    "ai-edge-litert",
    "mujoco",
)


def installed():
    """Returns the versions of Python, the platform and the packages of a run."""
    result = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            result[package] = None
    return result


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
