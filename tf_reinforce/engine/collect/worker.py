"""Plays episodes in a worker process, and exchanges messages with its pool.

A worker needs NumPy, Gymnasium and LiteRT, but imports neither TensorFlow nor Keras. The
pool sends the environment factory once. For every collection, the pool sends the acting
program, weights, environment settings and episode numbers, and the worker returns whole
episodes.
"""

import atexit
import collections
import contextlib
import mmap
import os
import pickle
import select
import signal
import sys
import threading
import time
import traceback
from multiprocessing import connection

from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.engine.collect import host_loop

_DELIVERY_SECONDS = 0.02  # finished episodes are sent together for this time
_GRACE = 5.0  # seconds in which a worker without a pool may close its environments
# Errors that the pool raises as they are; others become a `RuntimeError`.
_ERRORS = (
    host_loop.EnvironmentFault,
    host_loop.OutputsNotFinite,
    FloatingPointError,
    TypeError,
    ValueError,
)


def send(channel, message):
    """Sends an object through a `Connection`; its arrays are not copied."""
    buffers = []
    content = pickle.dumps(message, 5, buffer_callback=buffers.append)
    channel.send((content, len(buffers)))
    for buffer in buffers:
        channel.send_bytes(buffer.raw())


def receive(channel):
    """Returns the next object from `send`. Its arrays can be freed one by one."""
    content, count = channel.recv()
    return pickle.loads(content, buffers=[channel.recv_bytes() for _ in range(count)])


class EpisodeWorker:
    """Plays a pool's episodes in its own environments.

    The pool sends pickled tuples of a kind and further values, see `_handle`. For the
    loop that plays the episodes, this is the scheduler, see `host_loop.EpisodeScheduler`.

    Args:
        channel: `multiprocessing.connection.Connection` to the pool.
        report: `batched_envs.Progress` that the pool can read.
        num_envs: Positive int, the number of environments.
        first_index: Int, the index of the first one among those of all workers.
    """

    waits = True  # an environment without an episode may receive one later

    def __init__(self, channel, report, num_envs, first_index):
        self._channel = channel
        self._report = report
        self._num_envs = num_envs
        self._first_index = first_index
        self._programs = {}  # from pickled acting programs to specs and runners
        self._envs = None
        self._collection = None  # what the current collection needs
        self._numbers = collections.deque()  # of episodes that no environment has started
        self._episodes = []  # running episodes, and finished ones that are not sent yet
        self._delivered = 0.0  # the time at which episodes were sent
        self._loop = None  # the `host_loop.CollectionLoop` that plays

    def serve(self):
        """Answers requests until the pool asks the worker to stop."""
        while True:
            self._report.words[batched_envs.STATE] = batched_envs.IDLE
            message = self._channel.recv_bytes()
            try:
                self._handle(*pickle.loads(message))
                self._play()
            except _Stopped:
                raise
            except BaseException as error:  # also `SystemExit` of a constructor
                self._numbers.clear()
                self._episodes.clear()
                text = str(error)
                if not isinstance(error, Exception):  # no check has added the place
                    text += f" ({self._report.describe(self._first_index)})"
                kind = type(error)
                if kind not in _ERRORS:
                    kind, text = RuntimeError, f"{kind.__name__}: {text}"
                inputs = [error.inputs] if kind is host_loop.OutputsNotFinite else []
                trace = "".join(traceback.format_exception(error, limit=-20))
                send(self._channel, ("error", kind, text, inputs, trace))

    def close(self):
        """Closes the environments; returns a text for each error."""
        if self._envs is None:
            return []
        self._report.words[batched_envs.STATE] = batched_envs.CLOSING
        try:
            return self._envs.close_all()
        except BaseException as error:  # an exception that is no `Exception`
            place = self._report.describe(self._first_index)
            return [f"{place} raised {type(error).__name__}: {error}"]

    def _handle(self, kind, *values):
        match kind:
            case "stop":
                raise _Stopped
            case "environments":
                self._report.words[batched_envs.STATE] = batched_envs.STARTING
                make_batch, shown = values
                batched_envs.SHOWN.update(shown)
                self._envs = pickle.loads(make_batch)(self._num_envs)
                self._envs.first_index = self._first_index
                self._envs.progress = self._report
                modules = sorted({name.partition(".")[0] for name in sys.modules})
                send(self._channel, ("ready", modules))
            case "collect":
                program, request, settings, states, weights = values
                if program not in self._programs:
                    specs, layout, model = pickle.loads(program)
                    act = host_loop.make_runner(model, layout, self._num_envs)
                    self._programs[program] = specs, act
                specs, act = self._programs[program]
                act.set_weights(weights)
                self._envs.set(settings)
                self._envs.configure(specs.float_dtype, specs.mask_reader)
                self._collection = specs, act, states, *request
            case "episodes":
                self._numbers.extend(*values)

    def _play(self):
        """Plays the wanted episodes until none is left."""
        while self._numbers:
            specs, act, states, key, group_size, deterministic = self._collection
            seeds = seeding.EpisodeSeeds(*key, group_size)
            self._loop = host_loop.CollectionLoop(
                self._envs, specs, self, seeds, states, deterministic
            )
            self._delivered = time.monotonic()
            try:
                self._loop.play(act)
            finally:
                self._loop = None  # frees its buffers

    def start_next(self, row, env_index):
        """Starts the next episode, or returns `None` if the pool wants no more."""
        while not self._numbers and select.select([self._channel], [], [], 0)[0]:
            self._handle(*pickle.loads(self._channel.recv_bytes()))
        if not self._numbers:
            return None
        number = self._numbers.popleft()
        self._episodes.append(host_loop.EpisodeInProgress(number, row, env_index))
        return self._episodes[-1]

    def result(self):
        """Sends finished episodes; returns `[]` after the last one, else `None`.

        Several episodes are sent together, unless an environment waits for an episode.
        """
        now = time.monotonic()
        if not self._numbers or now - self._delivered > _DELIVERY_SECONDS:
            finished = [episode for episode in self._episodes if episode.length]
            if finished:
                self._send(finished)
            self._episodes = [x for x in self._episodes if not x.length]
            self._delivered = now
        return None if self._episodes or self._numbers else []

    def _send(self, episodes):
        """Sends finished episodes to the pool.

        Their arrays are cut into blocks of rows, which the pool can free one by one.
        """
        arrays, size = self._loop.episode_arrays(episodes), host_loop.BLOCK_ROWS
        observations, others = (
            [[x[i : i + size] for i in range(0, len(x), size)] for x in parts]
            for parts in (arrays.observations, arrays.others)
        )
        arrays = arrays._replace(observations=observations, others=others)
        send(self._channel, ("episodes", arrays))


class _Stopped(BaseException):
    """Ends a worker, after a request of its pool or the signal SIGTERM."""


def _stop(*_):
    """Raises `_Stopped` at the first SIGTERM; later ones have no effect."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Stopped


def main(channel_fd, progress_fd, first_index):
    """Runs a worker process, given file descriptors that its pool has opened.

    Args:
        channel_fd: Int, for a `Connection`.
        progress_fd: Int, for the file of a `batched_envs.Progress`.
        first_index: Int, as for `EpisodeWorker`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process of the pool handles Ctrl-C
    channel = connection.Connection(channel_fd)
    watch = threading.Thread(target=_end_with_pool, args=(channel_fd,), daemon=True)
    watch.start()
    shared = mmap.mmap(progress_fd, 0)
    os.close(progress_fd)
    num_envs = (len(shared) // 8 - batched_envs.WORDS) // 2
    report = batched_envs.Progress(num_envs, shared)
    worker = EpisodeWorker(channel, report, num_envs, first_index)
    with contextlib.suppress(OSError, EOFError, _Stopped):
        signal.signal(signal.SIGTERM, _stop)
        try:
            worker.serve()
        finally:  # a signal at this moment is suppressed too
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    errors = worker.close()
    # Threads that an environment left behind must not keep the process alive.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    try:
        send(channel, ("closed", errors))
    except OSError:  # without a pool, nobody else ends processes of the environments
        os.killpg(0, signal.SIGKILL)
    os._exit(0)


def _end_with_pool(channel_fd):
    """Ends this process group if the pool's process dies.

    Args:
        channel_fd: Int, the descriptor of the `Connection` to the pool.
    """
    poll = select.poll()
    poll.register(channel_fd, 0)  # the end of the other process is always reported
    poll.poll()
    os.killpg(0, signal.SIGTERM)
    time.sleep(_GRACE)
    os.killpg(0, signal.SIGKILL)
