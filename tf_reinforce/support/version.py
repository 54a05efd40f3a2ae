"""Versions: of the package, of its files and of the software that runs it."""

import copy
import os
import platform
import re
from collections.abc import Callable
from typing import Any

VERSION = "1.0.0"
FORMAT = 2  # of all files; tests/files has files of each format
CONFIG_KEY, FORMAT_KEY = "tf_reinforce", "format_version"


def _run_1(content):
    """In format 1, a run without a budget stopped at its target, or after 300 updates."""
    fit, target = content.get("fit"), content.get("target_return")
    if not isinstance(fit, dict) or fit.keys() & {"epochs", "steps"}:
        return content
    callbacks = content.get("callbacks", {})
    if isinstance(callbacks, dict) and target is not None:
        callbacks = {**callbacks, "stop_at_return": target}
    return {**content, "fit": {**fit, "epochs": 300}, "callbacks": callbacks}


def _checkpoint_1(content):
    """In format 1, other callbacks wrote the log and the best agent of a run."""
    state = content.get("state")
    callbacks = state.get("callbacks") if isinstance(state, dict) else None
    by_name = {x.get("name"): x for x in callbacks or () if isinstance(x, dict)}
    best, log = by_name.get("EvaluationCallback 0"), by_name.get("CSVLogger 0")
    values = best and best.get("state")
    if isinstance(values, dict) and log is not None:
        update = values.get("evaluated_update")
        best["state"] = {
            "best_value": values.get("best_return"),
            "judged_update": -1 if update is None else update,
        }
        best["name"], log["name"], log["attributes"] = "BestModel 0", "RunLog 0", {}
    return content


# From a kind of file and its format to a function that converts the content to the next
# format. Missing kinds did not change.
MIGRATIONS: dict[tuple[str, int], Callable[[dict], dict]] = {
    ("run", 1): _run_1,
    ("checkpoint", 1): _checkpoint_1,
}


class NewerFile(ValueError):
    """A newer version of the package wrote a file."""


_PACKAGES = (
    "tensorflow",
    "keras",
    "tensorflow-probability",
    "gymnasium",
    "numpy",
    "ai-edge-litert",
    "mujoco",
)


def stamp() -> dict[str, Any]:
    """Returns the entries that tell which version wrote a file, and in which format."""
    return {CONFIG_KEY: VERSION, FORMAT_KEY: FORMAT}


def current(kind: str, source: Any, content: dict[str, Any]) -> dict[str, Any]:
    """Returns a copy of a file's content, converted to the current format.

    Args:
        kind: String, the kind of file: `"Reinforce"`, `"checkpoint"`, `"run"`, ….
        source: The start of an error message, which names the file.
        content: Dict. Without the entries of `stamp`, its format is 1.

    Raises:
        NewerFile: If a newer version of the package wrote the file.
        ValueError: If its format is no positive int, or it is nested too deeply.
    """
    writer, number = content.get(CONFIG_KEY), content.get(FORMAT_KEY, 1)
    if type(number) is not int or number < 1:  # True is an int too
        raise ValueError(
            f"{source} has the invalid entry {FORMAT_KEY}={repr(number)[:40]}. Expected: "
            f"a whole number in [1, {FORMAT}], as tf_reinforce writes it."
        )
    is_newer = isinstance(writer, str) and _release(writer) > _release(VERSION)
    if is_newer or number > FORMAT:
        name = f"tf_reinforce {str(writer)[:40]}" if is_newer else "a newer tf_reinforce"
        raise NewerFile(
            f"{source} was written by {name} (format {str(number)[:40]}), this is "
            f"{VERSION} (format {FORMAT}). Install {name}{' or newer' * is_newer}."
        )
    try:
        content = copy.deepcopy(content)  # Keras removes entries of nested configs
    except RecursionError:
        raise ValueError(f"{source} has too many levels.") from None
    for step in range(number, FORMAT):
        if (kind, step) in MIGRATIONS:
            content = MIGRATIONS[kind, step](content)
        content[FORMAT_KEY] = step + 1  # whoever reads it again converts no further
    return content


def unstamped(kind: str, source: Any, content: dict[str, Any]) -> dict[str, Any]:
    """Returns what `current` returns, without the entries of `stamp`."""
    content = current(kind, source, content)
    return {key: x for key, x in content.items() if key not in stamp()}


def _release(text):
    """Returns the numbers of a version, `[0, 1, 0]` for `"0.1.0"` and `"0.1.0rc2"`."""
    release = re.split(r"[^\d.]", text[:40])[0]
    return [int(number) for number in release.split(".") if number]


def installed():
    """Returns the versions of Python, the platform and the packages that we use."""
    import importlib.metadata  # takes a fifth of the time of `tf-reinforce --help`

    result = {"python": platform.python_version(), "platform": platform.platform()}
    for package in _PACKAGES:
        try:
            result[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            result[package] = None
    # The metadata of an editable installation may be those of an earlier version.
    return {**result, "tf-reinforce": VERSION}


def flags():
    """Returns the processor and TensorFlow's environment variables, a dict.

    TensorFlow may round differently if one of them differs.
    """
    names = (x for x in os.environ if x.startswith(("TF_", "XLA_", "KERAS_")))
    names = sorted(x for x in names if not x.startswith("TF_CPP_"))  # what it prints
    return {"processor": _processor(), **{name: os.environ[name] for name in names}}


def _processor():
    try:
        with open("/proc/cpuinfo") as file:
            lines = (line.partition(":") for line in file)
            facts = {name.strip(): value.strip() for name, _, value in lines}
        # On virtual machines, different processors have one name.
        numbers = [facts[name] for name in ("cpu family", "model", "stepping")]
        return f"{facts['model name']} ({'-'.join(numbers)})"
    except (OSError, KeyError):
        return platform.processor() or platform.machine()
