"""Collects the episodes of an update in several processes.

Each worker process has its own environments, and selects the actions itself. A worker
takes the number of the next episode from a counter that all workers share. For given
weights and a given seed, an episode depends only on its number. The result of a
collection does not depend on which worker collects which episode.
"""

import contextlib
import functools
import multiprocessing
import time
import warnings
from multiprocessing import connection

import numpy as np

from tf_reinforce.collect import acting_program
from tf_reinforce.collect import environments
from tf_reinforce.collect import host_loop
from tf_reinforce.collect import results
from tf_reinforce.collect import worker

_CLOSE_TIMEOUT = 10  # seconds to close the environments before a process is killed
_ERRORS = {
    error.__name__: error
    for error in (results.EnvironmentFault, FloatingPointError, TypeError, ValueError)
}


class WorkerPool(environments.HostEnvironments):
    """Collects episodes in several processes, which also select the actions.

    The worker processes are forked at the first collection. Because the processes are
    forked, environments need not be importable or picklable. The worker processes run no
    TensorFlow operation, because TensorFlow's threads do not exist in a forked process.

    Args:
        closed_envs: `batched_envs.SyncEnvs` of one closed environment, from which the
            pool reads the spaces.
        make_envs: Function from a number of environments and the index of the first one
            to a `batched_envs.SyncEnvs`.
        sizes: List of positive ints, the number of environments of each worker.
    """

    def __init__(self, closed_envs, make_envs, sizes):
        if "fork" not in multiprocessing.get_all_start_methods():
            raise ValueError(
                "`workers` above 1 requires processes that fork, which the operating "
                "system does not support. Use workers=1."
            )
        self.observation_space = closed_envs.observation_space
        self.action_space = closed_envs.action_space
        self.spec = closed_envs.spec
        self.fault_keys = closed_envs.fault_keys
        self._make_envs = make_envs
        self._sizes = sizes
        self._program = None  # `ActingProgram` of the running processes
        self._processes = []
        self._channels = []
        self._pending = set()  # channels from which a response is expected
        self._mean_length = None  # mean length of the episodes in the last collection

    def _collect_episodes(self, actor, program, request):
        if program.runtime != "litert":
            raise ValueError(
                "`workers` above 1 requires a policy that acts through LiteRT. The "
                "policy acts through TensorFlow, for a reason that the log states. Use "
                "workers=1."
            )
        if self._pending or self._program is not program:
            self._start(actor, program)
        start = time.perf_counter()
        weights = acting_program.finite_weights(actor.variables)
        # Initial states can be learned. Therefore every collection sends the current
        # initial states.
        states = [host_loop.initial_states(actor, size) for size in self._sizes]
        options = request.key._asdict()
        options.update(deterministic=request.deterministic, group_size=request.group_size)
        counts = request.episodes, request.steps
        shares, stepping, num_episodes, faults = [], 0.0, 0, results.Faults()
        while (end := self._next_target(shares, num_episodes, *counts)) > num_episodes:
            round_shares, seconds, round_faults = self._collect_round(
                num_episodes, end, weights, states, options
            )
            shares += round_shares
            faults.add(round_faults)
            stepping += seconds
            num_episodes = end
        arrays = _merge_shares(shares, request.steps)
        self._mean_length = arrays.lengths.mean()
        seconds = {"stepping": stepping}
        seconds["acting"] = time.perf_counter() - start - stepping
        return results.CollectedEpisodes(
            results.to_episodes(arrays, actor), arrays.success, seconds, faults=faults
        )

    def close(self):
        """Closes the environments and ends the worker processes."""
        for process, channel in zip(self._processes, self._channels):
            if channel in self._pending:
                process.terminate()
            else:
                with contextlib.suppress(OSError):  # the worker process has already ended
                    worker.send(channel, None, [])
            channel.close()
        deadline, killed = time.monotonic() + _CLOSE_TIMEOUT, []
        for number, process in enumerate(self._processes):
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()
                killed.append(number)
        self._processes, self._channels = [], []
        self._program, self._pending = None, set()
        if killed:
            warnings.warn(
                f"The workers {killed} did not close their environments within "
                f"{_CLOSE_TIMEOUT} s, and were killed.",
                stacklevel=2,
            )

    def _next_target(self, shares, num_episodes, episodes, steps):
        """Returns how many episodes must be collected by the end of the next round.

        In a round, the workers collect a fixed number of episodes. A collection of
        `steps` steps makes rounds until the episodes have enough steps. The number of
        episodes of a round is estimated from the mean length of earlier episodes. The
        first round of a pool makes one episode in each environment.

        Args:
            shares: List of `results.EpisodeArrays`, the episodes that were collected so
                far.
            num_episodes: Int, the number of episodes that were collected so far. If no
                further round is needed, `_next_target` returns `num_episodes`.
            episodes, steps: Fields of `environments.CollectionRequest`.
        """
        if steps is None:
            return episodes
        missing = steps - sum(int(share.lengths.sum()) for share in shares)
        if missing <= 0:
            return num_episodes
        mean_length = (
            (steps - missing) / num_episodes if num_episodes else self._mean_length
        )
        if not mean_length:
            return num_episodes + sum(self._sizes)
        return num_episodes + int(np.ceil(missing / mean_length))

    def _start(self, actor, program):
        """Forks the worker processes."""
        self.close()
        context = multiprocessing.get_context("fork")
        self._counter = context.Value("q")
        pipes = [context.Pipe() for _ in self._sizes]
        self._channels = [pool_end for pool_end, _ in pipes]
        for number, (_, worker_end) in enumerate(pipes):
            env_worker = self._worker(number, actor, program)
            others = [end for pipe in pipes for end in pipe if end is not worker_end]
            process = context.Process(
                target=env_worker.run,
                args=(worker_end, others),
                name=f"tf-reinforce-worker-{number}",
                daemon=True,
            )
            with warnings.catch_warnings():  # Python warns about TensorFlow's threads
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            self._processes.append(process)
        for _, worker_end in pipes:
            worker_end.close()
        self._program = program

    def _worker(self, number, actor, program):
        size, first_index = self._sizes[number], sum(self._sizes[:number])
        return worker.EnvWorker(
            lambda: self._make_envs(size, first_index),
            actor,
            lambda weights: program.for_batch(size, weights),
            self._counter,
        )

    def _collect_round(self, first_episode, end, weights, states, options):
        """Collects the episodes with numbers from `first_episode` to `end` - 1.

        Args:
            weights: List of arrays from `acting_program.finite_weights`.
            states: For each worker, the initial states of the policy from
                `host_loop.initial_states`.
            options: Dict of keyword arguments for `host_loop.collect_share`.

        Returns:
            A list of `results.EpisodeArrays`, one for each worker; the mean over the
            workers of the seconds that resets and steps took; and `results.Faults`.
        """
        self._counter.value = first_episode
        max_initial = -(-(end - first_episode) // len(self._sizes))
        request = {"end": end, "max_initial": max_initial, "options": options}
        for number, channel in enumerate(self._channels):
            self._pending.add(channel)
            header = {**request, "num_states": len(states[number])}
            with self._explain_lost(number):
                worker.send(channel, header, [*states[number], *weights])
        shares, seconds, waiting = [], [], list(self._channels)
        faults = results.Faults()
        while waiting:
            for channel in connection.wait(waiting):
                waiting.remove(channel)
                number = self._channels.index(channel)
                with self._explain_lost(number):
                    response, arrays = worker.receive(channel)
                self._pending.remove(channel)
                if "error" in response:
                    _raise_worker_error(number, arrays, **response)
                shares.append(worker.to_episode_arrays(response, arrays))
                seconds.append(response["seconds"])
                faults.add(results.Faults(**response["faults"]))
        return shares, float(np.mean(seconds)), faults

    @contextlib.contextmanager
    def _explain_lost(self, number):
        """Raises an error with the number of the worker if its process has ended."""
        try:
            yield
        except (EOFError, OSError) as error:
            process = self._processes[number]
            process.join(_CLOSE_TIMEOUT)
            raise results.EnvironmentFault(
                f"Worker {number} ended with the exit code {process.exitcode}: an "
                "environment ended or crashed the process, or there was not enough "
                "memory. The agent did not learn from the failed batch. To run the "
                "environments in the current process, use workers=1."
            ) from error


def _raise_worker_error(number, arrays, error, message, trace):
    """Raises the error of a worker in the current process, with the worker's traceback.

    Args:
        number: Int, the number of the worker.
        arrays: List of arrays, the attribute `inputs` of an `OutputsNotFinite`, or an
            empty list for an error of another type.
        error: String, the name of the type of the error.
        message: String, the error message.
        trace: String, the traceback in the worker.
    """
    error_type = _ERRORS.get(error, RuntimeError)
    if error == results.OutputsNotFinite.__name__:
        error_type = functools.partial(results.OutputsNotFinite, inputs=arrays)
    text = f"{error}: {message}" if error_type is RuntimeError else message
    raise error_type(f"Worker {number}: {text}") from RuntimeError(
        f"in worker {number}\n{trace}"
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
