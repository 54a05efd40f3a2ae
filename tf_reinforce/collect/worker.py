"""Collects episodes in a worker process.

A worker process and its `WorkerPool` exchange JSON and the bytes of arrays.
"""

import contextlib
import dataclasses
import gc
import json
import signal
import traceback

import numpy as np

from tf_reinforce.collect import host_loop
from tf_reinforce.collect import results


class EnvWorker:
    """Collects episodes in a process that is forked after the `EnvWorker` was made.

    Args:
        make_envs: Function without arguments that returns a `batched_envs.SyncEnvs`.
        actor: `actor.ActorPolicy` that selects the actions.
        make_act: Function from a list of weights to a function that selects actions, for
            example `acting_program.ActingProgram.for_batch`.
        counter: Shared `multiprocessing` value, the number of the next episode that no
            process has claimed.
    """

    def __init__(self, make_envs, actor, make_act, counter):
        self._make_envs = make_envs
        self._actor = actor
        self._make_act = make_act
        self._counter = counter
        self._envs = None

    def run(self, channel, other_channels):
        """Answers requests of the pool until the pool asks the worker process to stop.

        Args:
            channel: `multiprocessing` connection to the pool.
            other_channels: List of connections between the pool and other workers, which
                the fork copied to the worker process, and which `run` closes.
        """
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles Ctrl-C
        gc.freeze()  # excludes objects from before the fork from garbage collection
        np.random.seed()  # otherwise all workers would draw the same numbers
        for other in other_channels:
            other.close()
        try:
            with contextlib.suppress(EOFError, OSError, _Terminated):
                signal.signal(signal.SIGTERM, _raise_terminated)
                self._serve_requests(channel)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if self._envs is not None:
                self._envs.close()

    def _serve_requests(self, channel):
        while True:
            request, arrays = receive(channel)
            if request is None:
                return
            try:
                response, arrays = self._collect(arrays, **request)
            except _Terminated:
                raise
            except BaseException as error:  # also `SystemExit` of an environment
                response, arrays = _error_response(error), getattr(error, "inputs", [])
            send(channel, response, arrays)

    def _collect(self, arrays, num_states, end, max_initial, options):
        """Collects episodes; returns a response for the pool, and the episodes' arrays.

        Args:
            arrays: List of arrays, the `num_states` initial recurrent states of the
                policy and then the weights of the policy.
            num_states: Int, the number of arrays of the recurrent state.
            end: Int, the number of the last episode of the request, plus one.
            max_initial: Int, the argument `max_initial` of `scheduler.SharedScheduler`.
            options: Dict of keyword arguments for `host_loop.collect_share`.
        """
        actor = self._actor
        if self._envs is None:
            self._envs = self._make_envs()
            self._envs.configure(actor.dtype, actor.mask_reader())
        episodes, seconds, faults = host_loop.collect_share(
            self._envs,
            actor,
            self._make_act(arrays[num_states:]),
            arrays[:num_states],
            lambda: self._next_episode(end),
            max_initial,
            **options,
        )
        arrays = [*episodes[:4], *episodes.observations, *episodes.others]
        response = {
            "seconds": seconds,
            "num_observations": len(episodes.observations),
            "faults": dataclasses.asdict(faults),
        }
        return response, arrays

    def _next_episode(self, end):
        """Claims an episode; returns its number, or `None` if no episode is left."""
        with self._counter.get_lock():
            number = self._counter.value
            if number >= end:
                return None
            self._counter.value = number + 1
            return number


class _Terminated(BaseException):
    """The exception with which a worker process reacts to the signal SIGTERM."""


def _raise_terminated(*_):
    raise _Terminated


def _error_response(error):
    return {
        "error": type(error).__name__,
        "message": str(error),
        "trace": "".join(traceback.format_exception(error)),
    }


def to_episode_arrays(response, arrays):
    """Returns the `results.EpisodeArrays` in a response of an `EnvWorker`."""
    stop = 4 + response["num_observations"]
    return results.EpisodeArrays(*arrays[:4], arrays[4:stop], arrays[stop:])


def send(channel, header, arrays):
    """Sends a dict and a list of arrays through a `multiprocessing` connection.

    Args:
        channel: `multiprocessing` connection.
        header: Dict of JSON values, or `None`. A header of `None` asks a worker to stop.
        arrays: List of NumPy arrays.
    """
    specs = [[array.dtype.name, array.shape] for array in arrays]
    channel.send_bytes(json.dumps([header, specs]).encode())
    for array in arrays:
        channel.send_bytes(array.tobytes())


def receive(channel):
    """Returns the header and the read-only arrays that `send` has sent."""
    header, specs = json.loads(channel.recv_bytes())
    arrays = [
        np.ndarray(shape, np.dtype(name), channel.recv_bytes()) for name, shape in specs
    ]
    return header, arrays
