"""Several replicas or processes that train one agent together, with a strategy.

Every process runs the same `fit` and collects the same episodes. The processes split the
computation of the gradients between them. Process 0, the chief, writes all files.
"""

import contextlib
import json
import os
import re
import time
import zlib

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.support import optimizers
from tf_reinforce.support import startup

# A process that has lost another stays alive for some seconds, or the others would
# regard it as lost.
_LINGER_SECONDS = 5.0

# Errors of a collective operation when a process has ended or does not respond.
_LOST_ERRORS = (
    tf.errors.AbortedError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
    tf.errors.UnavailableError,
)
# In the messages of TensorFlow that another process is lost.
_LOSS = re.compile(r"/task:|heartbeat|CoordinationService|connection|socket", re.I)

# Callbacks that write files or send logs, which only the chief calls.
_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.ModelCheckpoint,
    keras.callbacks.OrbaxCheckpoint,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.TensorBoard,
)


_SUPPORTED = "MirroredStrategy", "MultiWorkerMirroredStrategy", "OneDeviceStrategy"


class LearnerLost(RuntimeError):
    """Another process of the training has ended or does not respond."""


def learner_strategy() -> tf.distribute.Strategy:
    """Returns the strategy for training one agent in several processes.

    Set the environment variable `TF_CONFIG` in each process, and call this function
    before anything else in TensorFlow. The call waits until all processes have made it.

    Returns:
        `tf.distribute.MultiWorkerMirroredStrategy` if `TF_CONFIG` lists several
        processes, else TensorFlow's default strategy, whose scope has no effect.

    Raises:
        ValueError: If `TF_CONFIG` is invalid.
        RuntimeError: If TensorFlow has already started.
        OSError: If this process cannot connect to the others, for example because its
            port is in use.

    Example:

    >>> import tf_reinforce as tfr
    >>> with tfr.learner_strategy().scope():
    ...     agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(8,))
    """
    cluster = startup.learner_cluster(os.environ)
    if cluster is None:
        return tf.distribute.get_strategy()
    try:
        return tf.distribute.MultiWorkerMirroredStrategy()
    except tf.errors.OpError as error:
        raise OSError(
            f"Process {cluster[1]} cannot connect to the others of {cluster[0]}. "
            f"Start all of them, each at an unused port ({error.message})."
        ) from error


def scope(strategy):
    """Returns the scope of a `tf.distribute.Strategy`; for `None`, one without effect."""
    return contextlib.nullcontext() if strategy is None else strategy.scope()


def check_strategy(strategy):
    """Raises `ValueError` if agents do not support a strategy. `None` is supported."""
    kinds = tuple(getattr(tf.distribute, name) for name in _SUPPORTED)
    if strategy is not None and not isinstance(strategy, kinds):
        raise ValueError(
            f"An agent does not support the strategy {type(strategy).__name__}, but only "
            f"{', '.join(_SUPPORTED)}."
        )


def check_same_scope(strategy, parts):
    """Raises `ValueError` if parts of an agent were made in another scope than the agent.

    Args:
        strategy: `tf.distribute.Strategy` in whose scope the agent was made, or `None`.
        parts: Dict from the parts' names to lists of their Keras variables.
    """
    if strategy is not None and strategy.num_replicas_in_sync < 2:
        strategy = None
    for name, variables in parts.items():
        if any(optimizers.strategy_of([v]) is not strategy for v in variables):
            raise ValueError(
                f"The {name} and the agent were not made in the same scope. Make policy, "
                "head, baseline, optimizer and agent in one `with strategy.scope():`, or "
                "all without."
            )


def check_outside_scope(method):
    """Raises `RuntimeError` inside a strategy's scope, where no updates can be made.

    Args:
        method: String, the method that makes updates.
    """
    if tf.distribute.in_cross_replica_context():
        raise RuntimeError(
            f"`{method}` was called in the scope of a strategy. Make the agent and its "
            f"parts in `with strategy.scope():`, and call `{method}` after this block."
        )


def get(strategy):
    """Returns the processes of a `tf.distribute.Strategy`, or `SingleProcess`."""
    resolver = None if strategy is None else strategy.cluster_resolver
    if resolver is None:
        return SingleProcess()
    jobs = resolver.cluster_spec().as_dict()
    hosts = [*jobs.get("chief", []), *jobs.get("worker", [])]
    if len(hosts) < 2:
        return SingleProcess()
    number = resolver.task_id
    if resolver.task_type == "worker":
        number += len(jobs.get("chief", []))
    return LearnerProcesses(strategy, hosts, number)


class SingleProcess:
    """A training in one process, which needs no coordination.

    Attributes:
        is_chief: Bool, whether the current process writes the training's files.
    """

    is_chief = True
    explain_lost = staticmethod(contextlib.nullcontext)

    def own_callbacks(self, callbacks):
        return callbacks

    def agree_on_end(self, stopped, signal, get_facts):
        return stopped, signal


class LearnerProcesses:
    """The processes that train one agent together.

    Args:
        strategy: `tf.distribute.MultiWorkerMirroredStrategy`.
        hosts: List of `"host:port"` strings, one for each process.
        number: Int, which of them is the current one.
    """

    def __init__(self, strategy, hosts, number):
        self.strategy = strategy
        self.hosts = hosts
        self.number = number
        self.is_chief = number == 0

    def own_callbacks(self, callbacks):
        """Returns the callbacks that the current process calls.

        Callbacks that write files are called by the chief only.

        Raises:
            ValueError: If there is a BackupAndRestore.
        """
        if any(isinstance(x, keras.callbacks.BackupAndRestore) for x in callbacks):
            raise ValueError(
                "The callback BackupAndRestore does not support several processes. Use "
                "`fit(resume=folder)` instead."
            )
        if self.is_chief:
            return callbacks
        others = [x for x in callbacks if not isinstance(x, _WRITERS)]
        return [x for x in others if not getattr(x, "chief_only", False)]

    def agree_on_end(self, stopped, signal, get_facts):
        """Exchanges reasons to stop, so that all processes end after the same update.

        Args:
            stopped: Bool, whether a callback of this process has set `stop_training`.
            signal: Int, the number of the signal that this process received, or zero.
            get_facts: Function that returns a dict of numbers and arrays, which must be
                equal in all processes.

        Returns:
            Whether a callback of any process has stopped the training, and the largest
            number of a signal.

        Raises:
            ValueError: If the numbers or arrays differ between the processes.
        """
        facts = get_facts()
        content = [np.asarray(x).tobytes() for x in keras.tree.flatten(facts)]
        rows = self.gather([zlib.crc32(b"".join(content)), int(stopped), signal])
        different = np.flatnonzero(rows[:, 0] != rows[0, 0])
        if len(different):
            other = different[0] * len(self.hosts) // len(rows)
            numbers = {k: x for k, x in facts.items() if isinstance(x, (int, float))}
            raise ValueError(
                f"Process {other} ({self.hosts[other]}) of the training differs from "
                f"process 0 ({self.hosts[0]}) in its {', '.join(facts)}. Use equal code, "
                "packages, arguments of `fit`, environments and, with `resume`, one "
                f"folder. Received, in process {self.number}: {json.dumps(numbers)}"
            )
        return bool(rows[:, 1].any()), int(rows[:, 2].max())

    def gather(self, values):
        """Returns `[R, K]` int64, K ints from each of the R replicas."""
        return self._gather(tf.constant(values, tf.int64)).numpy()

    @tf.function(autograph=False)
    def _gather(self, values):
        def on_replica():
            context = tf.distribute.get_replica_context()
            place = context.replica_id_in_sync_group, context.num_replicas_in_sync
            rows = tf.one_hot(*place, dtype=tf.int64)[:, None] * values
            return context.all_reduce(tf.distribute.ReduceOp.SUM, rows)

        return self.strategy.experimental_local_results(self.strategy.run(on_replica))[0]

    @contextlib.contextmanager
    def explain_lost(self):
        """Raises `LearnerLost` if an operation fails because a process was lost."""
        try:
            yield
        except _LOST_ERRORS as error:
            if not _LOSS.search(str(error)):
                raise
            time.sleep(_LINGER_SECONDS)
            raise LearnerLost(
                "Another process of the training has ended or does not respond: "
                f"{error.message[:300]} Process {self.number} therefore ends. Start all "
                "processes again. With `resume` (`--resume`), the training continues "
                "from its last checkpoint."
            ) from error
