"""Collects the episodes of an update in several worker processes.

Each worker process has its own environments, and selects the actions itself. For given
weights and a given seed, an episode depends only on its number. The result of a
collection therefore does not depend on which worker plays which episode, nor on workers
that died and were replaced.
"""

import functools
import logging
import selectors
import time
from typing import NamedTuple

import cloudpickle
import numpy as np

from tf_reinforce.collect import acting_program
from tf_reinforce.collect import channel as channels
from tf_reinforce.collect import collected
from tf_reinforce.collect import dispatcher
from tf_reinforce.collect import environments
from tf_reinforce.collect import in_process
from tf_reinforce.collect import local_worker
from tf_reinforce.collect import results
from tf_reinforce.collect import worker as workers

log = logging.getLogger("tf_reinforce")

_CLOSE_TIMEOUT = 10.0  # seconds to close the environments before a process is killed
_END_TIMEOUT = 3.0  # the same after an error, or after Ctrl-C
_MAX_LOSSES = 10  # workers that may die while they play the same episode
_ERRORS = {
    error.__name__: error
    for error in (results.EnvironmentFault, FloatingPointError, TypeError, ValueError)
}


class WorkerPool(environments.HostEnvironments):
    """Collects episodes in several processes, which also select the actions.

    The worker processes start at the first collection, as fresh processes that do not
    import TensorFlow.

    Args:
        closed_envs: `batched_envs.SyncEnvs` of one closed environment, from which the
            pool reads the spaces.
        factory: `env_factory.EnvFactory`, which the workers receive.
        sizes: List of positive ints, the number of environments of each worker.
        step_timeout: Float, the seconds after which one reset or step counts as hanging.
    """

    def __init__(self, closed_envs, factory, sizes, step_timeout):
        self.observation_space = closed_envs.observation_space
        self.action_space = closed_envs.action_space
        self.spec = closed_envs.spec
        self.fault_keys = closed_envs.fault_keys
        self._restarts = factory.faults["on_env_error"] != "raise"
        self._factory = factory
        self._sizes = sizes
        self._step_timeout = step_timeout
        self._workers = []  # `LocalWorker`s
        self._guard = None
        self._programs = {}  # from `ActingProgram`s to their encoded messages
        self._num_collections = 0
        self._busy = False  # whether a collection was interrupted
        self._lost = results.Faults()  # counts replaced workers
        self._lengths = {}  # from collection keys to episode lengths by number
        self._mean_length = None  # mean length of the episodes in the last collection

    def _collect_episodes(self, actor, program, request):
        if program.runtime != "litert":
            raise ValueError(
                "`workers` above 1 requires a policy that acts through LiteRT. The "
                "policy acts through TensorFlow, for a reason that the log states. Use "
                "workers=1."
            )
        if self._busy or not self._workers:
            self._start()
        start = time.perf_counter()
        self._num_collections += 1
        run = _Run(
            self._num_collections,
            self._program_message(actor, program),
            self._weights_messages(actor, program, request),
            self._dispatcher(request),
            {},
            results.Faults(),
        )
        self._busy = True
        shares, stepping, faults = self._run(run)
        self._busy = False
        run.faults.add(self._lost)
        self._lost = results.Faults()
        arrays = _merge_shares(shares, request.steps)
        self._keep_lengths(request, arrays)
        for number in arrays.numbers.tolist():
            run.faults.add(faults[number])
        seconds = {"stepping": stepping / len(self._sizes)}
        seconds["acting"] = time.perf_counter() - start - seconds["stepping"]
        episodes = collected.to_episodes(arrays, actor)
        return collected.CollectedEpisodes(
            episodes, arrays.success, seconds, faults=run.faults
        )

    def close(self):
        """Closes the environments and ends the worker processes."""
        interrupted = self._busy
        for one in self._workers:
            one.terminate() if interrupted else one.stop()
        seconds = min(_CLOSE_TIMEOUT, _END_TIMEOUT) if interrupted else _CLOSE_TIMEOUT
        deadline, problems = time.monotonic() + seconds, []
        try:
            for one in self._workers:
                problems += one.join(deadline)
        finally:  # also if the user interrupts `close`
            for one in self._workers:
                one.kill()
            if self._guard is not None:
                self._guard.close()
            self._workers, self._guard, self._busy = [], None, False
        for text in problems:
            # After an interruption, an error is on its way, which no warning may replace.
            log.warning("%s", text) if interrupted else in_process.warn_of_close(text)

    def _start(self):
        """Starts the worker processes, which make their environments side by side."""
        self.close()
        self._guard = local_worker.WorkerGuard()
        self._busy = True
        self._factory_message = self._encode_factory()
        for number in range(len(self._sizes)):
            self._workers.append(self._start_worker(number))
        for function in (self._send_factory, self._expect_ready):
            for one in [*self._workers]:
                try:
                    function(one)
                except local_worker.WorkerLost as error:
                    self._start_again(one, error)

    def _encode_factory(self):
        try:
            return _encode_object(self._factory.make_batch)
        except Exception as error:  # `pickle` raises errors of many types
            raise ValueError(
                "The environment cannot be sent to worker processes. Expected: an "
                "environment id, an EnvSpec, or a callable that can be pickled. "
                f"Received: env={self._factory.env!r}, env_kwargs={self._factory.kwargs} "
                f"({type(error).__name__}: {error}). Let the callable make the object "
                "that cannot be pickled, or use workers=1."
            ) from error

    def _start_worker(self, number):
        size, first_index = self._sizes[number], sum(self._sizes[:number])
        return local_worker.LocalWorker(
            number, size, first_index, self._step_timeout, self._guard
        )

    def _send_factory(self, one):
        header = {"kind": "environment", "count": one.size}
        header["first_index"] = one.first_index
        one.send(channels.encode(header, [self._factory_message]))

    def _expect_ready(self, one):
        header, arrays = one.receive()
        if header["kind"] == "error":
            _raise_worker_error(one.number, arrays, header)

    def _program_message(self, actor, program):
        """Returns the number of an acting program, and the message that sends it."""
        if program not in self._programs:
            blob = _encode_object((actor.acting_specs(), program.layout, program.model))
            number = len(self._programs)
            header = {"kind": "program", "program": number}
            self._programs[program] = number, channels.encode(header, [blob])
        return self._programs[program]

    def _weights_messages(self, actor, program, request):
        """Returns, for each size of a worker, the header and arrays of its collection.

        Initial recurrent states can be learned. Therefore every collection sends them.
        """
        weights, messages = acting_program.finite_weights(actor.variables), {}
        options = {"key": list(request.key), "group_size": request.group_size}
        options["deterministic"] = request.deterministic
        for size in set(self._sizes):
            states = in_process.initial_states(actor, size)
            header = {
                "kind": "collect",
                "program": self._programs[program][0],
                "num_states": len(states),
                "options": options,
            }
            messages[size] = channels.encode(header, [*states, *weights])
        return messages

    def _dispatcher(self, request):
        return dispatcher.EpisodeDispatcher(
            self._sizes,
            request.episodes if request.steps is None else None,
            request.steps,
            self._lengths.get(request.key, {}),
            self._mean_length,
        )

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
        for waiting, one in zip(range(len(self._workers), 0, -1), [*self._workers]):
            self._attempt(run, one, self._hand_out, waiting)
        while not run.dispatcher.complete:
            for one, message in self._receive(run):
                header, arrays = message
                if header["kind"] == "error":
                    _raise_worker_error(one.number, arrays, header)
                share = workers.to_episode_arrays(header, arrays)
                shares.append(share)
                stepping += header["seconds"]
                numbers = share.numbers.tolist()
                each = [results.Faults(**fields) for fields in header["faults"]]
                faults.update(zip(numbers, each, strict=True))
                run.dispatcher.finish(one.number, numbers, share.lengths.tolist())
                self._attempt(run, one, self._hand_out, 1)
        return shares, stepping, faults

    def _hand_out(self, run, one, waiting):
        """Sends a worker the numbers of its next episodes, if there are any."""
        numbers = run.dispatcher.take(one.number, waiting)
        if not numbers:
            return
        program, message = run.program
        if program not in one.programs:
            one.send(message)
            one.programs.add(program)
        if one.collection != run.number:
            one.send(run.weights[one.size])
            one.collection = run.number
        one.send(channels.encode({"kind": "episodes", "numbers": numbers}))

    def _receive(self, run):
        """Waits for messages; returns a list of workers and their messages."""
        with selectors.DefaultSelector() as selector:
            for one in self._workers:
                if run.dispatcher.running(one.number):
                    selector.register(one, selectors.EVENT_READ)
            registered = [key.fileobj for key in selector.get_map().values()]
            ready = selector.select(min(1.0, self._step_timeout / 4))
        ready = [key.fileobj for key, _ in ready]
        messages = []
        for one in registered:
            if one in ready:
                message = self._attempt(run, one, lambda run, one: one.receive())
                if message is not None:
                    messages.append((one, message))
            else:
                self._attempt(run, one, lambda run, one: one.check_progress())
        return messages

    def _attempt(self, run, one, function, *args):
        """Returns `function(run, one, *args)`; replaces the worker `one` if it is lost.

        If the worker is lost, the result is `None`.
        """
        try:
            return function(run, one, *args)
        except local_worker.WorkerLost as error:
            self._replace(run, one, error)

    def _replace(self, run, one, error):
        """Starts another worker in place of one that is lost."""
        numbers = run.dispatcher.lose(one.number)
        if not self._restarts:
            raise _lost_error(one, error) from None
        for number in numbers:
            run.losses[number] = run.losses.get(number, 0) + 1
            if run.losses[number] > _MAX_LOSSES:
                raise results.EnvironmentFault(
                    f"Worker {one.number} {error}. Episode {number} was started "
                    f"{_MAX_LOSSES + 1} times, and each time its worker was lost. "
                    "Correct the environment."
                ) from None
        new = self._start_again(one, error)
        self._attempt(run, new, self._hand_out, 1)

    def _start_again(self, one, error):
        """Returns a new worker in place of one that is lost, ready to play episodes."""
        for _ in range(_MAX_LOSSES):
            if not self._restarts:
                break
            log.warning("Worker %d %s. It is started again.", one.number, error)
            self._lost.add(results.Faults(worker_restarts=1))
            one = self._workers[one.number] = self._start_worker(one.number)
            try:
                self._send_factory(one)
                self._expect_ready(one)
            except local_worker.WorkerLost as another:
                error = another
            else:
                return one
        raise _lost_error(one, error)


class _Run(NamedTuple):
    """One collection of a pool."""

    number: int
    program: tuple  # the number of the acting program, and the message that sends it
    weights: dict  # from sizes of workers to the message that sends the weights
    dispatcher: dispatcher.EpisodeDispatcher
    losses: dict  # from numbers of episodes to how many workers were lost in them
    faults: results.Faults


def _encode_object(value):
    """Returns an object as an array of bytes, for another process of this pool."""
    return np.frombuffer(cloudpickle.dumps(value), "uint8")


def _lost_error(one, error):
    """Returns the `EnvironmentFault` for a worker that is lost."""
    return results.EnvironmentFault(
        f"Worker {one.number} {error}. The agent did not learn from the failed batch. "
        'Correct the environment, or pass on_env_error="restart" to replace the worker '
        "and to play its episodes again."
    )


def _raise_worker_error(number, arrays, header):
    """Raises the error of a worker in the current process, with the worker's traceback.

    Args:
        number: Int, the number of the worker.
        arrays: List of arrays, the attribute `inputs` of an `OutputsNotFinite`, or an
            empty list for an error of another type.
        header: Dict with the type of the error, its message and its traceback.
    """
    error, message = header["error"], header["message"]
    error_type = _ERRORS.get(error, RuntimeError)
    if error == results.OutputsNotFinite.__name__:
        error_type = functools.partial(results.OutputsNotFinite, inputs=arrays)
    text = f"{error}: {message}" if error_type is RuntimeError else message
    raise error_type(f"Worker {number}: {text}") from RuntimeError(
        f"in worker {number}\n{header['trace']}"
    )


def _merge_shares(shares, steps):
    """Returns the episodes of all workers as one `EpisodeArrays`, in starting order.

    Args:
        shares: List of `results.EpisodeArrays` from the workers, which together contain
            the episodes 0, 1, 2, …
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
        merged = np.zeros((rows, count, *parts[0].shape[2:]), parts[0].dtype)
        for share, part in zip(shares, parts, strict=True):
            used = share.numbers < count
            merged[: len(part), share.numbers[used]] = part[:rows, used]
        return merged

    observations, others = (
        zip(*parts, strict=True) for parts in zip(*(share[4:] for share in shares))
    )
    return results.EpisodeArrays(
        *(array[permutation] for array in (numbers, lengths, *ends)),
        [merge(parts, rows + 1) for parts in observations],
        [merge(parts, rows) for parts in others],
    )
