"""Plays episodes in a worker process.

What crosses between them is JSON and the bytes of arrays.
"""

import contextlib
import gc
import json
import signal
import traceback

import numpy as np

from tf_reinforce.collect import host_loop
from tf_reinforce.collect import results


class EnvWorker:
    """What a process needs to play; made before it forks.

    Args:
        make: Function without arguments that returns a `batched_envs.SyncEnvs`.
        decision: `actor.ActorPolicy`.
        act: Function from weights to a function that acts; see
            `acting_program.ActingProgram.rows`.
        counter: A shared number: the next episode that nobody plays yet.
    """

    def __init__(self, make, decision, act, counter):
        self._make = make
        self._decision = decision
        self._act = act
        self._counter = counter
        self._fleet = None

    def serve(self, channel, others):
        """Answers requests until there is none; the life of the process."""
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for those who ask
        gc.freeze()  # nothing made before the fork is taken down here
        np.random.seed()  # as Python does with its own: or all would draw alike
        for other in others:
            other.close()
        try:
            with contextlib.suppress(EOFError, OSError, _Leave):
                signal.signal(signal.SIGTERM, _leave)
                self._answer(channel)
        finally:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            if self._fleet is not None:
                self._fleet.close()

    def _answer(self, channel):
        while True:
            request, arrays = receive(channel)
            if request is None:
                return
            try:
                answer, arrays = self._play(arrays, **request)
            except _Leave:
                raise
            except BaseException as error:  # an environment may want to exit
                answer, arrays = _told(error), getattr(error, "inputs", [])
            send(channel, answer, arrays)

    def _play(self, arrays, states, end, most, address):
        """An answer, and the arrays of the episodes that were played.

        `arrays` are the first states of the policy, so many, and behind them its weights.
        """
        decision = self._decision
        if self._fleet is None:
            self._fleet = self._make()
            self._fleet.prepare(decision.dtype, decision.mask_reader())
        columns, seconds = host_loop.collect_share(
            self._fleet,
            decision,
            self._act(arrays[states:]),
            arrays[:states],
            lambda: self._claim(end),
            most,
            **address,
        )
        arrays = [*columns[:4], *columns.observations, *columns.others]
        return {"seconds": seconds, "observed": len(columns.observations)}, arrays

    def _claim(self, end):
        with self._counter.get_lock():
            number = self._counter.value
            if number >= end:
                return None
            self._counter.value = number + 1
            return number


class _Leave(BaseException):
    """Nobody waits for the answer any more."""


def _leave(*_):
    raise _Leave


def _told(error):
    return {
        "error": type(error).__name__,
        "message": str(error),
        "trace": "".join(traceback.format_exception(error)),
    }


def columns_of(answer, arrays):
    """`results.EpisodeArrays` from what `EnvWorker.serve` answered."""
    behind = 4 + answer["observed"]
    return results.EpisodeArrays(*arrays[:4], arrays[4:behind], arrays[behind:])


def send(channel, header, arrays):
    """Sends a dict and a list of arrays through a `multiprocessing` connection.

    `None` instead of the dict asks a worker to end.
    """
    kinds = [[array.dtype.name, array.shape] for array in arrays]
    channel.send_bytes(json.dumps([header, kinds]).encode())
    for array in arrays:
        channel.send_bytes(array.tobytes())


def receive(channel):
    """What `send` sent; the arrays are not to be written into."""
    header, kinds = json.loads(channel.recv_bytes())
    arrays = [
        np.ndarray(shape, np.dtype(name), channel.recv_bytes()) for name, shape in kinds
    ]
    return header, arrays
