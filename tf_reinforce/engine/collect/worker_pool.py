"""Collects the episodes of an update in several worker processes.

Each worker process has its own environments, and selects the actions itself. For given
weights and a given seed, an episode depends only on its number. The result of a
collection therefore does not depend on which worker plays which episode, nor on workers
that died and were replaced.
"""

import contextlib
import dataclasses
import functools
import io
import logging
import math
import time

import cloudpickle
import keras
import numpy as np

from tf_reinforce.engine.collect import acting_program
from tf_reinforce.engine.collect import environments
from tf_reinforce.engine.collect import local_worker
from tf_reinforce.engine.collect import results
from tf_reinforce.engine.collect import worker as workers

log = logging.getLogger("tf_reinforce")

_MAX_LOSSES = 10  # workers that may die while they play the same episode
_ERRORS = {
    error.__name__: error
    for error in (results.EnvironmentFault, FloatingPointError, TypeError, ValueError)
}


class WorkerPool(environments.HostEnvironments):
    """Collects episodes in several processes, which also select the actions.

    The worker processes start at the first collection, as fresh processes that do not
    import TensorFlow. A worker that dies is replaced while the others go on.

    Args:
        closed_envs: `batched_envs.SyncEnvs` of one closed environment, from which the
            pool reads the spaces.
        factory: `batched_envs.EnvFactory`, which the workers receive.
        sizes: List of positive ints, the number of environments of each worker.
        launcher: `local_worker.LocalLauncher`, or another launcher with its methods,
            which starts the workers.
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
        self._failures = {}  # from numbers of workers to losses that cost no episode
        self._last_check = 0.0  # the time of the last look at the workers' progress
        self._programs = {}  # from `ActingProgram`s to their encoded messages
        self._num_collections = 0
        self._busy = False  # whether a collection was interrupted
        self._lost = results.Faults()  # counts replaced workers
        self._lengths = {}  # from collection keys to episode lengths by number
        self._mean_length = None  # mean length of the episodes in the last collection

    def _collect_episodes(self, actor, program, request):
        if program.runtime != "litert":
            raise ValueError(
                "`workers` above 1 requires a policy that acts through LiteRT, and the "
                "log states why this one does not. Use workers=1."
            )
        if self._busy or not self._workers:
            self._start()
        start = time.perf_counter()
        self._num_collections += 1
        run = _Run(
            self._num_collections,
            self._program_message(actor, program),
            self._weights_message(request),
            self._start_messages(program, request),
            self._dispatcher(request),
        )
        self._busy = True
        shares, stepping, faults = self._run(run)
        self._busy = False
        total, self._lost = self._lost, results.Faults()
        arrays = _merge_shares(shares, request.steps)
        self._keep_lengths(request, arrays)
        for number in arrays.numbers.tolist():
            total.add(faults[number])
        stepping, seconds = stepping / len(self._sizes), time.perf_counter() - start
        return environments.to_collected(arrays, actor, stepping, seconds, total)

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
            self._launcher.close()
            self._workers, self._failures, self._busy = [], {}, False
        for text in problems:
            # After an interruption, an error is on its way, which no warning may replace.
            log.warning("%s", text) if interrupted else environments.warn_of_close(text)

    def _start(self):
        """Starts the worker processes, which make their environments side by side.

        Workers that wait for a machine of a cluster may become ready later, if there is
        at least one other worker.
        """
        self.close()
        self._busy = True
        message = self._encode_factory()
        self._launcher.open()
        self._programs = {}
        self._factory_message = self._launcher.share(message)
        for number in range(len(self._sizes)):
            self._workers.append(self._start_worker(number))
        while waiting := [one for one in self._workers if not one.ready]:
            has_others = len(waiting) < len(self._workers)
            if has_others and all(one.waits_for_machine for one in waiting):
                return
            for one, message in self._receive(waiting):
                _expect_no_error(one, message)
                one.ready = True

    def _encode_factory(self):
        received = f"env={self._factory.env!r}, env_kwargs={self._factory.kwargs}"
        blob, models = _encode_of_user(self._factory.make_batch, received)
        for model in models:
            environments.warn_of_copy(model)
        return workers.encode({"kind": "factory"}, [blob])

    def _start_worker(self, number):
        """Returns a new worker, which begins to make its environments."""
        size, first_index = self._sizes[number], sum(self._sizes[:number])
        one = self._launcher.start(number, size, first_index)
        header = {"kind": "environments", "count": size, "first_index": first_index}
        with contextlib.suppress(local_worker.WorkerLost):  # `receive` reports it
            one.send(self._factory_message)
            one.send(workers.encode(header))
        return one

    def _program_message(self, actor, program):
        """Returns the number of an acting program, and the message that sends it."""
        if program not in self._programs:
            parts = actor.acting_specs(), program.layout, program.model
            blob = np.frombuffer(cloudpickle.dumps(parts), "uint8")
            number = len(self._programs)
            header = {"kind": "program", "program": number}
            message = self._launcher.share(workers.encode(header, [blob]))
            self._programs[program] = number, message
        return self._programs[program]

    def _weights_message(self, request):
        """Returns the message that sends the weights and the settings of environments."""
        settings, _ = _encode_of_user(request.settings, repr(request.settings))
        arrays = [settings, *request.weights.values]
        message = workers.encode({"kind": "weights"}, arrays)
        return self._launcher.share(message)

    def _start_messages(self, program, request):
        """Returns, for each size of a worker, the message that starts a collection.

        Initial recurrent states can be learned. Therefore every collection sends them.
        """
        options = {"key": list(request.key), "group_size": request.group_size}
        options["deterministic"] = request.deterministic
        number, messages = self._programs[program][0], {}
        for size in set(self._sizes):
            header = {"kind": "collect", "program": number, "options": options}
            states = acting_program.initial_states(request.weights, size)
            messages[size] = workers.encode(header, states)
        return messages

    def _dispatcher(self, request):
        episodes = request.episodes if request.steps is None else None
        expected = self._lengths.get(request.key, {})
        limits = episodes, request.steps, expected, self._mean_length
        return EpisodeDispatcher(self._sizes, *limits)

    def _keep_lengths(self, request, arrays):
        """Keeps the lengths of episodes, to start long ones first in the next round."""
        self._mean_length = arrays.lengths.mean()
        if request.key.stream != "training":  # every update has other random numbers
            lengths = zip(arrays.numbers.tolist(), arrays.lengths.tolist())
            self._lengths = {request.key: dict(lengths)}

    def _run(self, run):
        """Collects episodes until the dispatcher needs no more.

        Returns:
            List of `results.EpisodeArrays`, the sum over the workers of the seconds that
            resets and steps took, and a dict from episode numbers to `results.Faults`.
        """
        shares, stepping, faults = [], 0.0, {}
        self._employ_idle_workers(run)
        while not run.dispatcher.complete:
            running = run.dispatcher.running
            busy = [x for x in self._workers if not x.ready or running(x.number)]
            for one, message in self._receive(busy, run):
                header, arrays = _expect_no_error(one, message)
                if one.ready:
                    share = workers.to_episode_arrays(header, arrays)
                    shares.append(share)
                    stepping += header["seconds"]
                    numbers = share.numbers.tolist()
                    each = [results.Faults(**fields) for fields in header["faults"]]
                    faults.update(zip(numbers, each, strict=True))
                    run.dispatcher.finish(one.number, numbers, share.lengths.tolist())
                    self._failures.pop(one.number, None)
                one.ready = True
                self._hand_out(run, one)
            self._employ_idle_workers(run)
        return shares, stepping, faults

    def _employ_idle_workers(self, run):
        """Hands out episodes to all workers that have none, if there are any."""
        running = run.dispatcher.running
        idle = [x for x in self._workers if x.ready and not running(x.number)]
        for waiting, one in zip(range(len(idle), 0, -1), idle):
            self._hand_out(run, one, waiting)

    def _hand_out(self, run, one, waiting=1):
        """Sends a worker the numbers of its next episodes, if there are any."""
        numbers = run.dispatcher.take(one.number, waiting)
        if not numbers:
            return
        program, message = run.program
        try:
            if program not in one.programs:
                one.send(message)
                one.programs.add(program)
            if one.collection != run.number:
                one.send(run.weights)
                one.send(run.start[one.size])
                one.collection = run.number
            one.send(workers.encode({"kind": "episodes", "numbers": numbers}))
        except local_worker.WorkerLost as error:
            run.dispatcher.put_back(one.number, numbers)
            self._replace(run, one, error)

    def _receive(self, busy, run=None):
        """Waits for messages of workers; returns a list of workers and their messages."""
        interval = min(1.0, self._launcher.step_timeout / 4)
        ready, messages = self._launcher.wait(busy, interval), []
        is_check_due = time.monotonic() - self._last_check > interval or not ready
        self._last_check = time.monotonic() if is_check_due else self._last_check
        for one in busy:
            try:
                if one in ready:
                    messages.append((one, one.receive()))
                elif is_check_due:
                    one.check_progress()
            except local_worker.WorkerLost as error:
                self._replace(run, one, error)
        return messages

    def _replace(self, run, one, error):
        """Starts another worker in place of one that is lost."""
        restarts = self._restarts
        if isinstance(error, local_worker.HostLost):
            restarts = self._launcher.restarts_lost_hosts
        if not restarts:
            raise _lost_error(one, error) from None
        lost = run.dispatcher.lose(one.number) if run else []
        played = lost if error.in_episode else []
        for number in played:
            run.losses[number] = run.losses.get(number, 0) + 1
            if run.losses[number] > _MAX_LOSSES:
                raise results.EnvironmentFault(
                    f"Worker {one.number} {error}. Episode {number} was started "
                    f"{_MAX_LOSSES + 1} times, and each time its worker was lost."
                ) from None
        if not played:
            self._failures[one.number] = self._failures.get(one.number, 0) + 1
            if self._failures[one.number] > _MAX_LOSSES:
                raise _lost_error(one, error) from None
        log.warning("Worker %d %s. It is started again.", one.number, error)
        self._lost.add(results.Faults(worker_restarts=1))
        self._workers[one.number] = self._start_worker(one.number)


@dataclasses.dataclass
class _Run:
    """One collection of a pool."""

    number: int
    program: tuple  # the number of the acting program, and the message that sends it
    weights: object  # the message that sends the weights, as the launcher shares it
    start: dict  # from sizes of workers to the message that starts the collection
    dispatcher: "EpisodeDispatcher"
    losses: dict = dataclasses.field(default_factory=dict)  # of workers, by episode


class _Pickler(cloudpickle.Pickler):
    """Pickles an object of the user, and lists the Keras models in it."""

    def __init__(self, file):
        super().__init__(file)
        self.models = []

    def reducer_override(self, value):
        if isinstance(value, keras.Model):
            self.models.append(value)
        return super().reducer_override(value)


def _encode_of_user(value, received):
    """Returns an object as an array of bytes, and the list of the Keras models in it.

    Args:
        value: Object that contains objects of the user.
        received: String for an error: the received arguments.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(value)
    except Exception as error:  # `pickle` raises errors of many types
        raise ValueError(
            "The environment cannot be sent to worker processes, because a part of it "
            f"cannot be pickled. Received: {received} ({type(error).__name__}: {error}). "
            "Let the callable make this part, or use workers=1."
        ) from error
    return np.frombuffer(file.getbuffer(), "uint8"), pickler.models


def _lost_error(one, error):
    """Returns the `EnvironmentFault` for a worker that is lost."""
    remedy = (
        'Correct the environment, or pass on_env_error="restart" to replace the worker '
        "and to play its episodes again."
    )
    if isinstance(error, local_worker.HostLost):
        remedy = (
            "Look at the machines of the cluster. With restart_failed_workers=True, "
            f"RayWorkers replaces such a worker up to {_MAX_LOSSES} times."
        )
    return results.EnvironmentFault(
        f"Worker {one.number} {error}. The agent did not learn from the failed batch. "
        + remedy
    )


def _expect_no_error(one, message):
    """Returns a message of a worker, or raises the error that the message reports.

    The cause of the error contains the traceback of the worker.
    """
    header, arrays = message
    if header["kind"] != "error":
        return message
    error, text = header["error"], header["message"]
    if error == results.OutputsNotFinite.__name__:
        error_type = functools.partial(results.OutputsNotFinite, inputs=arrays)
    elif (error_type := _ERRORS.get(error)) is None:
        error_type, text = RuntimeError, f"{error}: {text}"
    raise error_type(f"Worker {one.number}: {text}") from RuntimeError(
        f"in worker {one.number}\n{header['trace']}"
    )


def _merge_shares(shares, steps):
    """Returns the episodes of all workers as one `EpisodeArrays`, in starting order.

    Args:
        shares: List of `results.EpisodeArrays` from the workers, which together contain
            the episodes 0, 1, 2, …, each array as a list of blocks. The blocks are
            removed, so that long episodes are not in memory twice.
        steps: Int, or `None`. With an int, the result contains the first episodes in
            starting order, until the episodes have at least `steps` steps.
    """
    parts = zip(*(share[:4] for share in shares), strict=True)
    numbers, lengths, *ends = map(np.concatenate, parts)
    permutation = np.argsort(numbers)
    if steps is not None:
        total_steps = np.cumsum(lengths[permutation])
        permutation = permutation[: np.searchsorted(total_steps, steps) + 1]
    count, rows = len(permutation), lengths[permutation].max()

    def merge(parts, rows):
        merged = results.zeros((rows, count, *parts[0][0].shape[2:]), parts[0][0].dtype)
        for start in range(0, rows, results.BLOCK_ROWS):
            for share, blocks in zip(shares, parts, strict=True):
                if blocks:
                    used, block = share.numbers < count, blocks.pop(0)
                    stop = min(start + len(block), rows)
                    merged[start:stop, share.numbers[used]] = block[: stop - start, used]
        return merged

    observations, others = (
        zip(*parts, strict=True) for parts in zip(*(share[4:] for share in shares))
    )
    return results.EpisodeArrays(
        *(array[permutation] for array in (numbers, lengths, *ends)),
        [merge(parts, rows + 1) for parts in observations],
        [merge(parts, rows) for parts in others],
    )


class EpisodeDispatcher:
    """Hands out the numbers of the episodes of one collection to workers.

    For given weights and a given seed, an episode depends only on its number. Therefore
    the result does not depend on which worker plays which episode. If few episodes are
    left, they are handed out one at a time, so that no worker waits for another one.

    Args:
        sizes: List of positive ints, the number of environments of each worker.
        episodes: Int, the number of episodes to collect, or `None`.
        steps: Int, the number of steps to collect, if `episodes` is `None`. The
            collection then needs the first episodes that have this many steps together.
        expected: Dict from numbers of episodes to their lengths in an earlier collection
            with the same random numbers. The longest episodes start first.
        mean_length: Float, the mean length of earlier episodes, or `None`.
    """

    def __init__(self, sizes, episodes, steps, expected, mean_length):
        self._sizes = sizes
        self._episodes = episodes
        self._steps = steps
        self._mean_length = mean_length
        self._running = [set() for _ in sizes]
        self._lengths = {}
        self._lost = []  # numbers of episodes whose worker has died
        self._next = 0
        self._order = None
        if episodes is not None:
            numbers = range(episodes)
            self._order = sorted(numbers, key=lambda n: -expected.get(n, 0))

    def take(self, worker, waiting=1):
        """Returns the numbers of the episodes that a worker plays next, a list.

        Args:
            worker: Int, the index of the worker.
            waiting: Int, the number of workers, this one included, that have not yet
                received an episode in this collection.
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
        """Notes that a worker has died; returns the numbers of its episodes."""
        lost = sorted(self._running[worker])
        self.put_back(worker, lost)
        return lost

    def put_back(self, worker, numbers):
        """Notes that a worker has not received episodes that `take` returned for it."""
        self._running[worker].difference_update(numbers)
        self._lost = sorted([*self._lost, *numbers])

    def running(self, worker=None):
        """Returns the number of episodes that a worker, or all workers, play now."""
        if worker is not None:
            return len(self._running[worker])
        return sum(map(len, self._running))

    @property
    def complete(self):
        """Returns whether no episode runs, and no further episode is needed."""
        return not self.running() and self._num_left() <= 0

    def _take_one(self):
        if self._lost:  # the other episodes wait for none longer than for these
            return self._lost.pop(0)
        number, self._next = self._next, self._next + 1
        return number if self._order is None else self._order[number]

    def _num_left(self):
        """Returns the number of episodes to hand out, an estimate if steps are wanted."""
        if self._order is not None:
            return len(self._lost) + len(self._order) - self._next
        steps, mean_length = sum(self._lengths.values()), self._mean_length
        if self._lengths:
            mean_length = steps / len(self._lengths)
        if mean_length is None:  # one episode in each environment, to learn the length
            return len(self._lost) + max(0, sum(self._sizes) - self._next)
        missing = self._steps - steps - self.running() * mean_length
        return max(len(self._lost), math.ceil(missing / mean_length))
