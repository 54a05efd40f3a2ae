"""Plays episodes in a worker process.

A worker process needs NumPy, Gymnasium and LiteRT, and does not import TensorFlow or
Keras. The pool sends an environment factory once, each acting program once, and, for each
collection, weights, settings of the environments and numbers of episodes. The worker
sends whole episodes back.
"""

import atexit
import collections
import contextlib
import dataclasses
import functools
import mmap
import os
import select
import signal
import socket
import sys
import traceback

import cloudpickle

from tf_reinforce.data import seeding
from tf_reinforce.engine.collect import buffers
from tf_reinforce.engine.collect import channel as channels
from tf_reinforce.engine.collect import env_outputs
from tf_reinforce.engine.collect import host_loop
from tf_reinforce.engine.collect import litert_runner
from tf_reinforce.engine.collect import progress
from tf_reinforce.engine.collect import results
from tf_reinforce.engine.collect import scheduler

_MAX_MESSAGE, _MAX_TRACE = 2_000, 8_000  # characters of an error that are sent


class EpisodeWorker:
    """Plays episodes in its own environments, at the request of a pool.

    Args:
        channel: `channel.Channel` to the pool.
        report: `progress.Progress` that the pool can read.
    """

    def __init__(self, channel, report):
        self._channel = channel
        self._report = report
        self._programs = {}
        self._runners = {}
        self._factory = None
        self._weights = []
        self._settings = None
        self._envs = None
        self._first_index = 0
        self._collection = None  # the arguments of the current collection
        self._queue = EpisodeQueue(channel)

    def serve(self):
        """Answers requests until the pool asks the worker to stop."""
        requests = {
            "factory": self._set_factory,
            "environments": self._make_envs,
            "program": self._add_program,
            "weights": self._set_weights,
            "collect": self._start_collection,
            "episodes": self._add_episodes,
        }
        while True:
            self._report.words[progress.STATE] = progress.IDLE
            header, arrays = self._channel.receive()
            kind = header.pop("kind")
            if kind == "stop":
                return
            try:
                requests[kind](arrays, **header)
                self._play()
            except (_Terminated, channels.Closed):
                raise
            except BaseException as error:  # also `SystemExit` of a constructor
                self._queue.clear()
                message = _error_message(error)
                if not isinstance(error, Exception):  # no check has added the place
                    place = self._report.describe(self._first_index)
                    message["message"] += f" ({place})"
                self._channel.send(message, getattr(error, "inputs", []))

    def close(self):
        """Closes the environments; returns a list of texts, one for each error."""
        if self._envs is None:
            return []
        self._report.words[progress.STATE] = progress.CLOSING
        try:
            return self._envs.close_all()
        except BaseException as error:  # an exception that is no `Exception`
            place = self._report.describe(self._first_index)
            return [f"{place} raised {env_outputs.describe_error(error)}"]

    def _set_factory(self, arrays):
        self._factory = arrays[0].tobytes()

    def _make_envs(self, arrays, count, first_index):
        self._report.words[progress.STATE] = progress.STARTING
        self._first_index = first_index
        make_batch = cloudpickle.loads(self._factory)
        self._envs = make_batch(count)
        self._envs.first_index = first_index
        self._envs.progress = self._report
        modules = sorted({name.partition(".")[0] for name in sys.modules})
        self._channel.send({"kind": "ready", "modules": modules})

    def _add_program(self, arrays, program):
        self._programs[program] = cloudpickle.loads(arrays[0].tobytes())

    def _set_weights(self, arrays):
        settings, *self._weights = arrays
        self._settings = cloudpickle.loads(settings.tobytes())

    def _start_collection(self, states, program, options):
        specs, layout, model = self._programs[program]
        if program not in self._runners:
            self._runners[program] = litert_runner.make_runner(
                model, layout, self._envs.num_envs
            )
        act = self._runners[program]
        act.set_weights(self._weights)
        self._envs.set(self._settings)
        self._envs.configure(specs.float_dtype, specs.mask_reader)
        self._collection = specs, act, states, options

    def _add_episodes(self, arrays, numbers):
        self._queue.extend(numbers)

    def _play(self):
        """Plays the episodes that the pool has named, until none is left."""
        while self._queue:
            specs, act, states, options = self._collection
            share = scheduler.QueueScheduler(self._queue)
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
                # The loop refers to the share. With a reference back to the loop, its
                # buffers would fill the memory until Python looks for such cycles.
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
        size = buffers.BLOCK_ROWS
        blocks = (
            array[start : start + size]
            for array in (*arrays.observations, *arrays.others)
            for start in range(0, len(array), size)
        )
        self._channel.send(header, [*arrays[:4], *blocks])


class EpisodeQueue:
    """The numbers of episodes that the pool has named, and no environment has started.

    Args:
        channel: `channel.Channel` to the pool, which may name further episodes.
    """

    def __init__(self, channel):
        self._channel = channel
        self._numbers = collections.deque()
        self.extend, self.clear = self._numbers.extend, self._numbers.clear

    def __bool__(self):
        return bool(self._numbers)

    def take(self):
        """Removes and returns the first number, or returns `None` if none is named."""
        while not self._numbers and select.select([self._channel], [], [], 0)[0]:
            header, _ = self._channel.receive()
            if header["kind"] != "episodes":  # the pool stops the worker
                raise _Terminated
            self.extend(header["numbers"])
        return self._numbers.popleft() if self._numbers else None


class _Terminated(BaseException):
    """The exception with which a worker process reacts to the signal SIGTERM."""


class _TerminationHandler:
    """Raises `_Terminated` at the first signal, if the worker still serves requests."""

    is_serving = True

    def __call__(self, *_):
        if self.is_serving:
            self.is_serving = False
            raise _Terminated


def _error_message(error):
    trace = "".join(traceback.format_exception(error, limit=-20))
    return {
        "kind": "error",
        "error": type(error).__name__,
        "message": shorten(env_outputs.error_text(error), _MAX_MESSAGE),
        "trace": shorten(trace, _MAX_TRACE),
    }


def shorten(text, limit):
    """Returns a text, without its middle if it has more than `limit` characters."""
    if len(text) <= limit:
        return text
    half = limit // 2
    return f"{text[:half]} … ({len(text) - 2 * half:,} characters) … {text[-half:]}"


def to_episode_arrays(header, arrays):
    """Returns the `results.EpisodeArrays` in a message of an `EpisodeWorker`.

    Observations, actions and rewards are lists of blocks of rows, which the pool can free
    one by one. The list `arrays` is emptied.
    """
    first, blocks = arrays[:4], iter(arrays[4:])
    arrays.clear()
    rows = int(first[1].max())

    def take(count, rows):
        starts = range(0, rows, buffers.BLOCK_ROWS)
        return [[next(blocks) for _ in starts] for _ in range(count)]

    observations = take(header["num_observations"], rows + 1)
    return results.EpisodeArrays(*first, observations, take(header["num_others"], rows))


def main(channel_fd, progress_fd):
    """Runs a worker process, with the file descriptors that its pool has opened.

    Args:
        channel_fd: Int, the descriptor of a connected socket.
        progress_fd: Int, the descriptor of the file of a `progress.Progress`.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process of the pool handles Ctrl-C
    channel = channels.Channel(socket.socket(fileno=channel_fd))
    shared = mmap.mmap(progress_fd, 0)
    os.close(progress_fd)
    num_envs = (len(shared) // 8 - progress.WORDS) // 2
    worker = EpisodeWorker(channel, progress.Progress(num_envs, shared))
    with contextlib.suppress(channels.Closed, _Terminated):
        handler = _TerminationHandler()
        signal.signal(signal.SIGTERM, handler)
        try:
            worker.serve()
        finally:  # a signal at this moment is suppressed too
            handler.is_serving = False
    errors = worker.close()
    with contextlib.suppress(channels.Closed):
        channel.send({"kind": "closed", "errors": errors})
    # Threads that an environment left behind must not keep the process alive.
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            stream.flush()
    channel.close()
    os._exit(0)
