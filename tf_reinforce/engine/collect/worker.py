"""Plays episodes in a worker process, and exchanges messages with its pool.

It needs NumPy, Gymnasium and LiteRT, but imports neither TensorFlow nor Keras. The pool
sends the environment factory and each acting program once. For every collection it adds
weights, environment settings and episode numbers; whole episodes come back.
"""

import atexit
import collections
import contextlib
import dataclasses
import functools
import json
import mmap
import os
import select
import signal
import socket
import struct
import sys
import threading
import time
import traceback

import cloudpickle
import numpy as np

from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.engine.collect import host_loop
from tf_reinforce.engine.collect import litert_runner

_MAX_MESSAGE, _MAX_TRACE = 2_000, 8_000  # characters of an error that are sent
_GRACE = 5.0  # seconds in which a worker without a pool may close its environments
_LENGTH = struct.Struct("!Q")
_MAX_JOINED = 2**20  # bytes of a message that is sent at once, at the price of a copy


class Closed(EOFError):
    """Raised when the other process has closed its end or died."""


class Channel:
    """Sends messages through a socket, each a dict and a list of arrays.

    Args:
        connection: Connected `socket.socket`.
        timeout: Float, the seconds after which waiting for the other process raises
            `TimeoutError`, or `None` to wait without a limit.
    """

    def __init__(self, connection, timeout=None):
        self._socket = connection
        self._timeout = timeout
        connection.settimeout(timeout)
        self.fileno = connection.fileno

    def close(self):
        """Closes both ends, even if a forked process has inherited this one."""
        with contextlib.suppress(OSError):  # it is already closed
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()

    def send(self, header, arrays=()):
        """Sends a dict of JSON values and a list of NumPy arrays."""
        parts = _parts(header, arrays)
        if sum(map(len, parts)) < _MAX_JOINED:
            parts = [b"".join(parts)]
        for part in parts:
            self.send_encoded(part)

    def send_encoded(self, message):
        """Sends the bytes that `encode` returned."""
        try:
            self._socket.sendall(message)
        except ConnectionError as error:
            raise Closed(str(error)) from error

    def receive(self, timeout=None):
        """Waits for the next message, and returns its dict and arrays.

        Args:
            timeout: Float, for this message only; by default the channel's timeout.

        Raises:
            Closed: If the other process has closed its end or died.
        """
        self._socket.settimeout(self._timeout if timeout is None else timeout)
        (length,) = _LENGTH.unpack(self._read(bytearray(_LENGTH.size)))
        header, specs = json.loads(self._read(bytearray(length)))
        arrays = [host_loop.zeros(shape, name) for name, shape in specs]
        for array in arrays:
            if array.nbytes:
                self._read(array.reshape(-1))
        return header, arrays

    def _read(self, buffer):
        """Fills a buffer, and returns it."""
        view = memoryview(buffer).cast("B")
        while view:
            try:
                received = self._socket.recv_into(view)
            except ConnectionError:
                received = 0
            if not received:
                raise Closed("the other process has closed the connection")
            view = view[received:]
        return buffer


def encode(header, arrays=()):
    """Returns a message of a dict and NumPy arrays as bytes."""
    return b"".join(_parts(header, arrays))


def _parts(header, arrays):
    specs = [[array.dtype.name, array.shape] for array in arrays]
    text = json.dumps([header, specs]).encode()
    contents = (np.ascontiguousarray(array).reshape(-1) for array in arrays)
    return [_LENGTH.pack(len(text)) + text, *(x.view("uint8").data for x in contents)]


class EpisodeWorker:
    """Plays a pool's episodes in its own environments.

    Args:
        channel: `Channel` to the pool.
        report: `batched_envs.Progress` that the pool can read.
        num_envs: Positive int, the number of environments.
        first_index: Int, the index of the first one among those of all workers.
    """

    def __init__(self, channel, report, num_envs, first_index):
        self._channel = channel
        self._report = report
        self._num_envs = num_envs
        self._first_index = first_index
        self._programs = {}
        self._envs = None
        self._collection = None  # the arguments of the current collection
        self._queue = EpisodeQueue(channel)

    def serve(self):
        """Answers requests until the pool asks the worker to stop."""
        while True:
            self._report.words[batched_envs.STATE] = batched_envs.IDLE
            header, arrays = self._channel.receive()
            if header["kind"] == "stop":
                return
            try:
                self._handle(header, arrays)
                self._play()
            except (_Terminated, Closed):
                raise
            except BaseException as error:  # also `SystemExit` of a constructor
                self._queue.clear()
                text = str(error)[:_MAX_MESSAGE]
                if not isinstance(error, Exception):  # no check has added the place
                    text += f" ({self._report.describe(self._first_index)})"
                trace = "".join(traceback.format_exception(error, limit=-20))
                header = {"kind": "error", "error": type(error).__name__, "message": text}
                header["trace"] = trace[-_MAX_TRACE:]
                self._channel.send(header, getattr(error, "inputs", []))

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

    def _handle(self, header, arrays):
        match header["kind"]:
            case "environments":
                self._report.words[batched_envs.STATE] = batched_envs.STARTING
                self._envs = cloudpickle.loads(arrays[0])(self._num_envs)
                self._envs.first_index = self._first_index
                self._envs.progress = self._report
                modules = sorted({name.partition(".")[0] for name in sys.modules})
                self._channel.send({"kind": "ready", "modules": modules})
            case "program":
                specs, layout, model = cloudpickle.loads(arrays[0])
                act = litert_runner.make_runner(model, layout, self._num_envs)
                self._programs[header["program"]] = specs, act
            case "collect":
                count = header["num_states"]
                settings, states, weights = (
                    arrays[0],
                    arrays[1 : 1 + count],
                    arrays[1 + count :],
                )
                specs, act = self._programs[header["program"]]
                act.set_weights(weights)
                self._envs.set(cloudpickle.loads(settings))
                self._envs.configure(specs.float_dtype, specs.mask_reader)
                states = [np.repeat(state, self._num_envs, axis=0) for state in states]
                self._collection = specs, act, states, header
            case "episodes":
                self._queue.extend(header["numbers"])

    def _play(self):
        """Plays the queued episodes until none is left."""
        while self._queue:
            specs, act, states, options = self._collection
            share = host_loop.QueueScheduler(self._queue)
            loop = host_loop.CollectionLoop(
                self._envs,
                specs,
                share,
                seeding.EpisodeSeeds(*options["key"], options["group_size"]),
                states,
                options["deterministic"],
            )
            share.deliver = functools.partial(self._send, loop)
            try:
                loop.play(act)
            finally:
                # Break the cycle of loop and share: until Python's garbage collector
                # found it, the loop's buffers would fill the memory.
                share.deliver = None

    def _send(self, loop, episodes):
        """Sends finished episodes to the pool."""
        arrays = loop.episode_arrays(episodes)
        header = {
            "kind": "episodes",
            "seconds": loop.take_stepping(),
            "faults": [dataclasses.asdict(episode.faults) for episode in episodes],
            "num_observations": len(arrays.observations),
            "num_others": len(arrays.others),
        }
        size = host_loop.BLOCK_ROWS
        blocks = (
            array[start : start + size]
            for array in (*arrays.observations, *arrays.others)
            for start in range(0, len(array), size)
        )
        self._channel.send(header, [*arrays[:4], *blocks])


class EpisodeQueue(collections.deque):
    """Numbers of the episodes that the pool wants and no environment has started.

    Args:
        channel: `Channel` to the pool, which may add further ones.
    """

    def __init__(self, channel):
        super().__init__()
        self._channel = channel

    def take(self):
        """Removes and returns the first number, or returns `None` if there is none."""
        while not self and select.select([self._channel], [], [], 0)[0]:
            header, _ = self._channel.receive()
            if header["kind"] != "episodes":  # the pool stops the worker
                raise _Terminated
            self.extend(header["numbers"])
        return self.popleft() if self else None


class _Terminated(BaseException):
    """Ends a worker process after the signal SIGTERM."""


def _terminate(*_):
    """Raises `_Terminated` at the first SIGTERM; later ones have no effect."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise _Terminated


def to_episode_arrays(header, arrays):
    """Returns the `host_loop.EpisodeArrays` in an `EpisodeWorker`'s message.

    Observations, actions and rewards are lists of row blocks, which the pool can free one
    by one; for the same reason, `arrays` is emptied.
    """
    first, blocks = arrays[:4], iter(arrays[4:])
    arrays.clear()
    rows = int(first[1].max())

    def take(count, rows):
        starts = range(0, rows, host_loop.BLOCK_ROWS)
        return [[next(blocks) for _ in starts] for _ in range(count)]

    observations = take(header["num_observations"], rows + 1)
    return host_loop.EpisodeArrays(*first, observations, take(header["num_others"], rows))


def main(channel_fd, progress_fd, first_index):
    """Runs a worker process, given file descriptors that its pool has opened.

    Args:
        channel_fd: Int, for a connected socket.
        progress_fd: Int, for the file of a `batched_envs.Progress`.
        first_index: Int, as for `EpisodeWorker`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process of the pool handles Ctrl-C
    channel = Channel(socket.socket(fileno=channel_fd))
    ending = threading.Event()
    options = {"target": _end_with_pool, "args": (channel_fd, ending), "daemon": True}
    threading.Thread(**options).start()
    shared = mmap.mmap(progress_fd, 0)
    os.close(progress_fd)
    num_envs = (len(shared) // 8 - batched_envs.WORDS) // 2
    report = batched_envs.Progress(num_envs, shared)
    worker = EpisodeWorker(channel, report, num_envs, first_index)
    with contextlib.suppress(Closed, _Terminated):
        signal.signal(signal.SIGTERM, _terminate)
        try:
            worker.serve()
        finally:  # a signal at this moment is suppressed too
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    errors, has_pool = worker.close(), True
    try:
        channel.send({"kind": "closed", "errors": errors})
    except Closed:
        has_pool = False
    # Threads that an environment left behind must not keep the process alive.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    if not has_pool and os.getpid() == os.getpgrp():
        # Nobody else ends the processes that environments have started.
        os.killpg(0, signal.SIGKILL)
    ending.set()
    channel.close()
    os._exit(0)


def _end_with_pool(channel_fd, ending):
    """Ends this process group if the pool's process dies.

    Args:
        channel_fd: Int, the descriptor of the socket to the pool.
        ending: `threading.Event`, set when this process itself closes the socket.
    """
    poll = select.poll()
    poll.register(channel_fd, 0)  # the end of the other process is always reported
    poll.poll()
    if not ending.is_set():
        os.killpg(0, signal.SIGTERM)
        time.sleep(_GRACE)
        os.killpg(0, signal.SIGKILL)
