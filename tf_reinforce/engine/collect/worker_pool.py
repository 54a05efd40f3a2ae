"""Collects an update's episodes in several worker processes.

Each worker has its own environments and selects actions itself. For given weights and a
given seed, an episode depends only on its number. The result is therefore the same,
whichever worker plays an episode, and even if a worker dies and is replaced.
"""

import collections
import contextlib
import logging
import math
import pickle
import time

import cloudpickle
import numpy as np

from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.engine.collect import environments
from tf_reinforce.engine.collect import host_loop
from tf_reinforce.engine.collect import local_worker

log = logging.getLogger("tf_reinforce")

_MAX_LOSSES = 10  # replacements of one worker in a collection


class WorkerPool(environments.HostEnvironments):
    """Collects episodes in several processes, which also select the actions.

    The processes start at the first collection, without TensorFlow. If one of them dies,
    it is replaced while the others go on.

    Args:
        closed_envs: `batched_envs.SyncEnvs` of one closed environment, from which the
            pool reads the spaces.
        factory: `batched_envs.EnvFactory`, sent to the workers.
        sizes: List of positive ints, the number of environments of each worker.
        launcher: Starts the workers: `local_worker.LocalLauncher`, or an object with its
            methods.
    """

    def __init__(self, closed_envs, factory, sizes, launcher):
        super().__init__(closed_envs)
        if launcher.restarts_lost_hosts:
            keys = dict.fromkeys([*self.fault_keys, "worker_restarts"])
            self.fault_keys = tuple(keys)
        self._restarts = factory.faults["on_env_error"] != "raise"
        self._factory = factory
        self._sizes = sizes
        self._launcher = launcher
        self._workers = []  # what `launcher.start` returned
        self._last_check = 0.0  # the time of the last look at the workers' progress
        self._programs = {}  # from `ActingProgram`s to what workers need, pickled
        self._busy = False  # whether a collection was interrupted
        self._losses = collections.Counter()  # replaced workers, by number
        self._mean_length = None  # mean length of the episodes in the last collection
        # Of the current collection: its message, and the workers that have received it.
        self._message, self._informed = None, set()
        self._dispatcher = None

    def _collect_episodes(self, actor, program, request):
        if program.runtime != "litert":
            raise ValueError(
                "`workers` above 1 requires a policy that acts through LiteRT, and the "
                "log states why this one does not. Use workers=1."
            )
        if self._busy or not self._workers:
            self._start()
        self._message = self._collect_message(actor, program, request)
        self._informed.clear()
        episodes = request.episodes if request.steps is None else None
        limits = episodes, request.steps, self._mean_length
        self._dispatcher = EpisodeDispatcher(self._sizes, *limits)
        self._busy = True
        shares = self._run()
        self._busy, self._dispatcher = False, None
        arrays = _merge_shares(shares, request.steps)
        self._mean_length = arrays.lengths.mean()
        restarts = self._losses.total()
        self._losses.clear()
        return self._to_collected(arrays, actor, request.settings.info_keys, restarts)

    def close(self):
        """Closes the environments and ends the worker processes."""
        interrupted = self._busy
        seconds = local_worker.END_TIMEOUT if interrupted else local_worker.CLOSE_TIMEOUT
        deadline, problems = time.monotonic() + seconds, []
        try:
            for one in self._workers:
                one.terminate() if interrupted else one.stop()
            for one in self._workers:
                problems += one.join(deadline)
        finally:  # also if the user interrupts `close`
            for one in self._workers:
                one.kill()
            self._workers, self._dispatcher, self._busy = [], None, False
        for text in problems:
            # After an interruption, no warning may replace the error being raised.
            log.warning("%s", text) if interrupted else environments.warn_of_close(text)

    def _start(self):
        """Starts the workers, which make their environments in parallel.

        Once one worker is ready, those that wait for a cluster's machine may join later.
        """
        self.close()
        self._busy = True
        received = f"env={self._factory.env!r}, env_kwargs={self._factory.kwargs}"
        make_batch = _pickled(self._factory.make_batch, received)
        self._losses.clear()
        message = pickle.dumps(("environments", make_batch, batched_envs.SHOWN))
        self._env_message = self._launcher.share(message)
        for number in range(len(self._sizes)):
            self._workers.append(self._start_worker(number))
        while waiting := [one for one in self._workers if not one.ready]:
            has_others = len(waiting) < len(self._workers)
            if has_others and all(one.waits_for_machine for one in waiting):
                return
            for one, _ in self._receive(waiting):
                one.ready = True

    def _start_worker(self, number):
        """Returns a new worker, which begins to make its environments."""
        size, first_index = self._sizes[number], sum(self._sizes[:number])
        one = self._launcher.start(number, size, first_index)
        with contextlib.suppress(local_worker.WorkerLost):  # `receive` reports it
            one.send(self._env_message)
        return one

    def _collect_message(self, actor, program, request):
        """Returns the message that starts a collection, with weights and settings.

        Initial recurrent states may be learned, so they are sent every time.
        """
        if program not in self._programs:
            parts = actor.acting_specs(), program.layout, program.model
            self._programs[program] = cloudpickle.dumps(parts)
        weights = request.weights
        options = tuple(request.key), request.group_size, request.deterministic
        message = "collect", self._programs[program], options, request.settings
        message = *message, weights.states, weights.values
        return self._launcher.share(_pickled(message, repr(request.settings)))

    def _run(self):
        """Returns `host_loop.EpisodeArrays` that are all episodes of a collection."""
        shares, dispatcher = [], self._dispatcher
        self._employ_idle_workers()
        while not dispatcher.complete:
            running = dispatcher.running
            busy = [x for x in self._workers if not x.ready or running(x.number)]
            for one, (_, share, *_) in self._receive(busy):
                if one.ready:
                    shares.append(share)
                    numbers, lengths = share.numbers.tolist(), share.lengths.tolist()
                    dispatcher.finish(one.number, numbers, lengths)
                one.ready = True
                self._hand_out(one)
            self._employ_idle_workers()
        return shares

    def _employ_idle_workers(self):
        """Hands out episodes to all ready workers that have none."""
        running = self._dispatcher.running
        idle = [x for x in self._workers if x.ready and not running(x.number)]
        for waiting, one in zip(range(len(idle), 0, -1), idle):
            self._hand_out(one, waiting)

    def _hand_out(self, one, waiting=1):
        """Sends a worker the numbers of its next episodes, if there are any."""
        numbers = self._dispatcher.take(one.number, waiting)
        if not numbers:
            return
        with contextlib.suppress(local_worker.WorkerLost):  # `receive` reports it
            if one not in self._informed:
                one.send(self._message)
                self._informed.add(one)
            one.send(pickle.dumps(("episodes", numbers)))

    def _receive(self, busy):
        """Waits for messages; returns pairs of a worker and its message.

        Lost workers are replaced. Raises the error that a worker reports.
        """
        interval = min(1.0, self._launcher.step_timeout / 4)
        ready, messages = self._launcher.wait(busy, interval), []
        is_check_due = time.monotonic() - self._last_check > interval or not ready
        self._last_check = time.monotonic() if is_check_due else self._last_check
        for one in busy:
            try:
                if one in ready:
                    messages.append((one, _expect_no_error(one, one.receive())))
                elif is_check_due:
                    one.check_progress()
            except local_worker.WorkerLost as error:
                self._replace(one, error)
        return messages

    def _replace(self, one, error):
        """Starts another worker in place of a lost one."""
        is_host = isinstance(error, local_worker.HostLost)
        restarts = self._launcher.restarts_lost_hosts if is_host else self._restarts
        if self._losses[one.number] == _MAX_LOSSES or not restarts:
            option = 'on_env_error="restart"'
            option = "RayWorkers(restart_failed_workers=True)" if is_host else option
            raise host_loop.EnvironmentFault(
                f"Worker {one.number} {error}. The agent did not learn from the failed "
                f"batch. With {option}, a lost worker is replaced up to {_MAX_LOSSES} "
                "times in a collection, and its episodes are played again."
            ) from None
        if self._dispatcher:
            self._dispatcher.lose(one.number)
        log.warning("Worker %d %s. It is started again.", one.number, error)
        self._losses[one.number] += 1
        self._workers[one.number] = self._start_worker(one.number)


def _pickled(value, received):
    """Returns the bytes of a pickled object.

    Args:
        value: Object that contains the user's own objects.
        received: String, the received arguments, for an error.
    """
    try:
        return cloudpickle.dumps(value)
    except Exception as error:  # `pickle` raises errors of many types
        raise ValueError(
            "The environment cannot be sent to worker processes, because a part of it "
            f"cannot be pickled. Received: {received} ({type(error).__name__}: {error}). "
            "Let the callable make this part, or use workers=1."
        ) from error


def _expect_no_error(one, message):
    """Returns a worker's message, or raises the error that it reports.

    The error's cause contains the worker's traceback.
    """
    if message[0] != "error":
        return message
    _, error_type, text, inputs, trace = message
    raise error_type(f"Worker {one.number}: {text}", *inputs) from RuntimeError(
        f"in worker {one.number}\n{trace}"
    )


def _merge_shares(shares, steps):
    """Returns all workers' episodes as one `EpisodeArrays`, in starting order.

    Args:
        shares: List of `host_loop.EpisodeArrays`, together the episodes 0, 1, 2, …. Their
            observations, actions and rewards are lists of blocks, which are emptied to
            keep long episodes from being in memory twice.
        steps: Int, to return only the first episodes that together have at least this
            many steps, or `None` for all.
    """
    parts = zip(*(share[:-2] for share in shares), strict=True)
    numbers, lengths, *ends = map(np.concatenate, parts)
    permutation = np.argsort(numbers)
    if steps is not None:
        total_steps = np.cumsum(lengths[permutation])
        permutation = permutation[: np.searchsorted(total_steps, steps) + 1]
    count, rows = len(permutation), lengths[permutation].max()

    def merge(parts, rows):
        merged = host_loop.zeros((rows, count, *parts[0][0].shape[2:]), parts[0][0].dtype)
        for start in range(0, rows, host_loop.BLOCK_ROWS):
            for share, blocks in zip(shares, parts, strict=True):
                if blocks:
                    used, block = share.numbers < count, blocks.pop(0)
                    stop = min(start + len(block), rows)
                    merged[start:stop, share.numbers[used]] = block[: stop - start, used]
        return merged

    observations, others = (
        zip(*parts, strict=True) for parts in zip(*(share[-2:] for share in shares))
    )
    return host_loop.EpisodeArrays(
        *(array[permutation] for array in (numbers, lengths, *ends)),
        [merge(parts, rows + 1) for parts in observations],
        [merge(parts, rows) for parts in others],
    )


class EpisodeDispatcher:
    """Hands out one collection's episode numbers to workers.

    Any worker may play any episode, because an episode depends only on its number. When
    only few episodes are left, workers receive none in advance, so that no worker is idle
    while another has episodes waiting.

    Args:
        sizes: List of positive ints, the number of environments of each worker.
        episodes: Int, the number of episodes to collect, or `None`.
        steps: Int, used if `episodes` is `None`: collect until the first episodes
            together have this many steps.
        mean_length: Float, the mean length of earlier episodes, or `None`.
    """

    def __init__(self, sizes, episodes, steps, mean_length):
        self._sizes = sizes
        self._episodes = episodes
        self._steps = steps
        self._mean_length = mean_length
        self._running = [set() for _ in sizes]
        self._lengths = {}
        self._lost = []  # numbers of episodes whose worker has died
        self._next = 0

    def take(self, worker, waiting=1):
        """Returns the numbers of the episodes that a worker plays next, a list.

        Args:
            worker: Int, the index of the worker.
            waiting: Int, how many workers, including this one, have no episode yet.
        """
        left, size = self._num_left(), self._sizes[worker]
        ahead = min(size, left // (2 * len(self._sizes)))
        count = size + ahead - len(self._running[worker])
        numbers = [self._take_one() for _ in range(min(count, math.ceil(left / waiting)))]
        self._running[worker].update(numbers)
        return numbers

    def finish(self, worker, numbers, lengths):
        """Notes that a worker has played episodes of the given lengths."""
        if not self._running[worker].issuperset(numbers):
            raise RuntimeError(f"Worker {worker} returned unknown episodes {numbers}.")
        self._running[worker].difference_update(numbers)
        self._lengths.update(zip(numbers, lengths))

    def lose(self, worker):
        """Takes back the episodes of a worker that died."""
        self._lost = sorted([*self._lost, *self._running[worker]])
        self._running[worker].clear()

    def running(self, worker=None):
        """Returns how many episodes one worker, or all of them, are playing."""
        if worker is not None:
            return len(self._running[worker])
        return sum(map(len, self._running))

    @property
    def complete(self):
        """Returns whether no episode is running and no further one is needed."""
        return not self.running() and self._num_left() <= 0

    def _take_one(self):
        if self._lost:  # the other episodes wait for none longer than for these
            return self._lost.pop(0)
        self._next += 1
        return self._next - 1

    def _num_left(self):
        """Returns how many episodes to hand out; an estimate if steps are wanted."""
        if self._episodes is not None:
            return len(self._lost) + self._episodes - self._next
        steps, mean_length = sum(self._lengths.values()), self._mean_length
        if self._lengths:
            mean_length = steps / len(self._lengths)
        if mean_length is None:  # one episode in each environment, to learn the length
            return len(self._lost) + max(0, sum(self._sizes) - self._next)
        missing = self._steps - steps - self.running() * mean_length
        return max(len(self._lost), math.ceil(missing / mean_length))
