"""Checkpoints, each with everything that a training needs to continue."""

import collections
import contextlib
import copy
import hashlib
import inspect
import json
import logging
import math
import os
import pathlib
import re
import threading
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.engine import interruption
from tf_reinforce.engine import learner_processes
from tf_reinforce.support import files
from tf_reinforce.support import locks
from tf_reinforce.support import validation
from tf_reinforce.support import version

MANIFEST = "manifest.json"
ARRAYS = "arrays.bin"

_MAX_MANIFEST_BYTES = 256 * 2**20
_NAME = re.compile(r"[0-9]{8,}")

log = logging.getLogger("tf_reinforce")


class Checkpoint(NamedTuple):
    """What was read from one checkpoint.

    Attributes:
        path: `pathlib.Path` of its folder.
        header: Dict of JSON values that describe the training (`recorder.Recorder`).
        state: Nested dicts and lists of JSON values and NumPy arrays.
    """

    path: pathlib.Path
    header: dict
    state: Any


class Checkpoints:
    """The folder of a run, with the checkpoints from which `fit(resume=…)` continues.

    If a training is interrupted and continues later, its weights and logs are the same,
    to the bit, as those of a training without an interruption. A checkpoint therefore
    contains everything that the rest of the training depends on, such as weights,
    optimizer states, counters and the states of callbacks. The state of the environment
    is not needed, because every episode starts with a `reset` and a seed of its own.

    The checkpoint after N epochs is the folder `checkpoints/N`. It appears under this
    name only when it is complete, and its digests show if a file is damaged later. If the
    newest checkpoint is damaged, training continues from the one before.

    Args:
        path: Path of the training's folder, which is created if need be.
        every_seconds: Float ≥ 0, the least time between two checkpoints. Zero writes one
            after every update. Another checkpoint is written when training ends.
        every_updates: Int, the number of updates between checkpoints, instead of
            `every_seconds`.
        keep: Int of at least 2, how many checkpoints to keep.
        grace_seconds: Float ≥ 0. After SIGTERM, training finishes the current update and
            writes a last checkpoint. If this takes longer than `grace_seconds`, the
            process ends even though the checkpoint is not complete.

    Example:

    >>> import tempfile, tf_reinforce as tfr
    >>> folder = tempfile.mkdtemp()
    >>> def train(epochs):
    ...     agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(8,))
    ...     resume = tfr.Checkpoints(folder, every_updates=1)
    ...     options = dict(episodes_per_epoch=2, resume=resume, verbose=0)
    ...     return agent.fit("CartPole-v1", epochs=epochs, **options)
    >>> train(epochs=2).epoch
    [0, 1]
    >>> train(epochs=3).epoch  # a new agent, which continues after the second update
    [0, 1, 2]
    """

    def __init__(
        self,
        path: str | os.PathLike,
        *,
        every_seconds: float = 60.0,
        every_updates: int | None = None,
        keep: int = 2,
        grace_seconds: float = 30.0,
    ) -> None:
        limits = 0, math.inf
        self.every_seconds = validation.within("every_seconds", every_seconds, *limits)
        self.grace_seconds = validation.within("grace_seconds", grace_seconds, *limits)
        positive = validation.positive_int_or_none
        self.every_updates = positive("every_updates", every_updates)
        self.keep = validation.whole_number("keep", keep, low=2)
        self.path = pathlib.Path(validation.path("path", path)).absolute()
        self.is_writer = True  # whether the current process writes checkpoints
        # Entries of `config.json` beside those of `fit`.
        self.settings: dict[str, Any] = {}
        self._lock = locks.FolderLock(self.path)
        self.training_lock = threading.Lock()  # held by the training that uses it
        self._last_time, self._last_epoch = time.monotonic(), 0

    @contextlib.contextmanager
    def open(self) -> Iterator["Checkpoints"]:
        """Locks the folder, removes leftovers of killed processes, and yields `self`.

        Raises:
            locks.FolderLocked: If another process uses the folder.
        """
        if not self.is_writer:
            yield self
            return
        with self._lock:
            files.expect_no_link(self._folder)
            for folder in (self.path, self._folder):
                if folder.is_dir():
                    files.remove_leftovers(folder)
            self._last_time, self._last_epoch = time.monotonic(), 0
            yield self

    @property
    def _folder(self):
        return self.path / "checkpoints"

    def options(self) -> dict[str, Any]:
        """Returns the options that are no defaults, as a table of a run's settings."""
        defaults = inspect.signature(type(self)).parameters
        names = "every_seconds", "every_updates", "grace_seconds"
        options = {name: getattr(self, name) for name in names}
        return {x: value for x, value in options.items() if value != defaults[x].default}

    def is_due(self, epoch: int) -> bool:
        """Returns whether to write a checkpoint after `epoch` epochs."""
        every = self.every_updates
        if every is None:
            return self.time_is_due
        return epoch // every > self._last_epoch // every

    @property
    def time_is_due(self) -> bool:
        """Returns whether `every_seconds` have passed since the last checkpoint."""
        since = time.monotonic() - self._last_time
        return self.every_updates is None and since >= self.every_seconds

    def graceful_stop(self) -> interruption.GracefulStop:
        """Returns the `interruption.GracefulStop` of the training."""
        return interruption.GracefulStop(grace_seconds=self.grace_seconds)

    def write(self, epoch: int, header: dict, state: Any) -> None:
        """Writes a checkpoint, and removes those that are no longer kept.

        Args:
            epoch: Int, the number of completed epochs.
            header: Dict of JSON values that describe the training.
            state: Nested dicts and lists of JSON values and NumPy arrays.
        """
        path = self._folder / f"{epoch:08d}"
        with files.atomic_folder(path) as folder:
            write_state(folder, header, state)
        older = [other for other in self._paths() if int(other.name) < epoch]
        kept = [path, *older[1 - self.keep :]]
        for other in self._paths():
            if other not in kept:  # also a damaged checkpoint with a larger number
                files.remove_folder(other)
        self._last_time, self._last_epoch = time.monotonic(), epoch

    def newest(self) -> Checkpoint | None:
        """Returns the newest complete `Checkpoint`, or `None` if there is none.

        Raises:
            ValueError: If there are checkpoints, but all are damaged.
        """
        problem = None
        for path in reversed(self._paths()):
            try:
                checkpoint = read(path)
            except version.NewerFile:
                raise
            except ValueError as error:
                problem = error
                continue
            if problem is not None:
                text = validation.printable(str(problem))
                log.warning("%s Training continues from %s.", text, path)
            self._last_epoch = int(path.name)
            return checkpoint
        if problem is not None:
            raise ValueError(
                f"All checkpoints in {self._folder} are damaged. {problem} To train from "
                "the start, remove the folder."
            )
        return None

    def _paths(self):
        """Returns the paths of all checkpoints, oldest first."""
        paths = self._folder.iterdir() if self._folder.is_dir() else ()
        numbered = {int(x.name): x for x in paths if _NAME.fullmatch(x.name)}
        return [numbered[number] for number in sorted(numbered)]


@contextlib.contextmanager
def open_checkpoints(resume, strategy=None):
    """Opens the argument `resume` of `fit`, for one training at a time.

    Args:
        resume: Path of a folder, or `Checkpoints`, which may be open already.
        strategy: `tf.distribute.Strategy` of the agent, or `None`. Of several learner
            processes, only the chief writes checkpoints, and the others read them.

    Yields:
        An open `Checkpoints`.

    Raises:
        locks.FolderLocked: If another training or process uses the folder.
    """
    if not isinstance(resume, Checkpoints):
        resume = Checkpoints(validation.path("resume", resume))
    if not learner_processes.get(strategy).is_chief:
        resume = copy.copy(resume)
        resume.is_writer = False
    if not resume.training_lock.acquire(blocking=False):
        raise locks.FolderLocked(
            f"Another training uses the folder {resume.path} through the same "
            "tfr.Checkpoints. Choose another one."
        )
    try:
        with resume.open():
            yield resume
    finally:
        resume.training_lock.release()


def write_state(folder, header, state):
    """Writes `manifest.json` and `arrays.bin`, which `read` reads.

    Args:
        folder: Path of an existing folder.
        header: Dict of JSON values.
        state: Nested dicts and lists of JSON values and NumPy arrays.
    """
    arrays: list[np.ndarray] = []
    encoded = encode(state, arrays)
    content = b"".join(array.tobytes() for array in arrays)
    manifest = {
        version.FORMAT_KEY: version.FORMAT,
        **header,
        "arrays": [[tf.as_dtype(x.dtype).name, list(x.shape)] for x in arrays],
        "sha256": hashlib.sha256(content).hexdigest(),
        "state": encoded,
    }
    manifest["manifest_sha256"] = _digest(manifest)
    pathlib.Path(folder, ARRAYS).write_bytes(content)
    pathlib.Path(folder, MANIFEST).write_text(json.dumps(manifest) + "\n")


def read(path):
    """Reads the `Checkpoint` in a folder.

    Raises:
        ValueError: If it is damaged, or was written by a newer version.
    """
    path = pathlib.Path(path)
    try:
        return _read(path)
    except version.NewerFile:
        raise
    except (LookupError, OSError, RecursionError, TypeError, ValueError) as error:
        text = str(error).removesuffix(".")
        raise ValueError(f"The checkpoint {path} is damaged: {text}.") from None


def _read(path):
    files.expect_regular_file(path / MANIFEST, _MAX_MANIFEST_BYTES)
    files.expect_regular_file(path / ARRAYS)
    stored = json.loads((path / MANIFEST).read_text(errors="replace"))
    if not isinstance(stored, dict):
        raise ValueError(f"{MANIFEST} contains no JSON object")
    manifest = _current(path, stored)
    del manifest["manifest_sha256"]
    if stored.pop("manifest_sha256") != _digest(stored):
        raise ValueError(f"the SHA-256 digest of {MANIFEST} is wrong")
    specs = [(_dtype(name), shape) for name, shape in manifest["arrays"]]
    sizes = [math.prod(shape) * dtype.itemsize for dtype, shape in specs]
    if (size := (path / ARRAYS).stat().st_size) != sum(sizes):
        raise ValueError(f"{ARRAYS} has {size} bytes instead of {sum(sizes)}")
    content = (path / ARRAYS).read_bytes()
    if hashlib.sha256(content).hexdigest() != manifest["sha256"]:
        raise ValueError(f"the SHA-256 digest of {ARRAYS} is wrong")
    parts = np.split(np.frombuffer(content, "uint8"), np.cumsum(sizes)[:-1])
    pairs = zip(parts, specs)
    arrays = [part.view(dtype).reshape(shape).copy() for part, (dtype, shape) in pairs]
    return Checkpoint(path, manifest, decode(manifest["state"], arrays))


def _current(path, manifest):
    """Returns a manifest in today's format; its versions stand in the header."""
    versions = manifest.get("versions")
    written = versions.get("tf-reinforce") if isinstance(versions, dict) else None
    stamped = {**manifest, version.CONFIG_KEY: written}
    content = version.current("checkpoint", path, stamped)
    del content[version.CONFIG_KEY]
    return content


def _digest(manifest):
    return hashlib.sha256(json.dumps(manifest, sort_keys=True).encode()).hexdigest()


def _dtype(name):
    dtype = np.dtype(tf.as_dtype(name).as_numpy_dtype)
    if dtype.hasobject:
        raise TypeError(f"an array cannot have the type {name}")
    return dtype


# In the JSON of a state, the dict {_ARRAY: N} stands for array number N, and the dict
# {_KIND: name, _VALUE: content} for another object.
_ARRAY, _KIND, _VALUE = (f"tf_reinforce.{x}" for x in ("array", "kind", "value"))
_COLLECTIONS = {x.__name__: x for x in (tuple, set, frozenset, collections.deque)}


def encode(state, arrays):
    """Returns a state as JSON values, and appends its arrays to a list.

    Args:
        state: Nested dicts, lists, tuples, sets and deques of numbers, strings, arrays,
            tensors and Keras variables.
        arrays: List, to which NumPy arrays are appended.

    Raises:
        TypeError: If the state contains any other object.
    """

    def of_kind(name, content):
        return {_KIND: name, _VALUE: encode(content, arrays)}

    if isinstance(state, keras.Variable) or keras.ops.is_tensor(state):
        state = keras.ops.convert_to_numpy(state)
    if isinstance(state, np.generic):  # a NumPy float64 is also a float
        return of_kind("scalar", np.asarray(state))
    if state is None or isinstance(state, (int, float, str)):
        return state
    if isinstance(state, np.ndarray) and state.dtype.kind in "biufcV":
        arrays.append(state)
        return {_ARRAY: len(arrays) - 1}
    if isinstance(state, dict):
        if all(isinstance(key, str) for key in state):
            return {key: encode(value, arrays) for key, value in state.items()}
        return of_kind("dict", [list(item) for item in state.items()])
    if isinstance(state, list):
        if state and all(type(x) is float for x in state):  # takes less space
            return of_kind("floats", np.array(state))
        return [encode(value, arrays) for value in state]
    if type(state) is collections.deque and state.maxlen is not None:
        return of_kind("bounded deque", [state.maxlen, *state])
    kind = type(state).__name__
    if type(state) is _COLLECTIONS.get(kind):
        is_set = isinstance(state, (set, frozenset))
        return of_kind(kind, sorted(state) if is_set else list(state))
    raise TypeError(
        "The state of a callback must consist of dicts, lists, tuples, sets, numbers, "
        f"strings and arrays. Received: {state!r}. Change `get_state`."
    )


def decode(state, arrays):
    """Inverts `encode`; a variable or tensor becomes an array."""
    if isinstance(state, list):
        return [decode(value, arrays) for value in state]
    if not isinstance(state, dict):
        return state
    if state.keys() == {_ARRAY}:
        return arrays[state[_ARRAY]]
    content = {key: decode(value, arrays) for key, value in state.items()}
    if content.keys() != {_KIND, _VALUE}:
        return content
    kind, content = content[_KIND], content[_VALUE]
    if kind == "floats":
        return content.tolist()
    if kind == "scalar":
        return content[()]
    if kind == "dict":
        return dict(content)
    if kind == "bounded deque":
        return collections.deque(content[1:], maxlen=content[0])
    return _COLLECTIONS[kind](content)
