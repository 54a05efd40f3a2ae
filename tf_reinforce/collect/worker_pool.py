"""Plays the episodes of an update in several processes.

Each worker has environments and an acting program of its own. It takes the number of
the next episode from a counter that all workers share. An episode depends on its number
alone, so the result does not depend on which worker played it.
"""

import contextlib
import functools
import multiprocessing
import time
import warnings
from multiprocessing import connection

import numpy as np

from tf_reinforce.collect import acting_program
from tf_reinforce.collect import host_loop
from tf_reinforce.collect import results
from tf_reinforce.collect import worker

_PATIENCE = 10  # seconds to close environments in, before a process is killed
_ERRORS = {
    error.__name__: error
    for error in (results.EnvironmentFault, FloatingPointError, TypeError, ValueError)
}


class WorkerPool:
    """Environments in several processes, which act for themselves.

    The processes are forked when episodes are first wanted, so that nothing has to be
    importable or pickled. They run no TensorFlow operation: its threads are not there.

    Args:
        first: `batched_envs.SyncEnvs` of one environment, which says what all are like.
        make: Function from a number of environments to a `batched_envs.SyncEnvs` of them.
        sizes: Positive ints, the environments of each worker.
    """

    seeds_episodes = True

    def __init__(self, first, make, sizes):
        if "fork" not in multiprocessing.get_all_start_methods():
            raise ValueError(
                "`workers` are processes that fork, which this system does not offer. "
                "Use workers=1."
            )
        self.observation_space = first.observation_space
        self.action_space = first.action_space
        self.spec = first.spec
        self._make = make
        self._sizes = sizes
        self._program = None  # that of the workers
        self._processes = []
        self._channels = []
        self._owing = set()  # channels from which an answer is still to come
        self._usual = None  # steps of an episode, as it was last time

    def collect(self, decision, program, *, episodes, steps, **address):
        """Plays whole episodes.

        Args:
            program: `acting_program.ActingProgram` of the decision.
            decision, episodes, steps, **address: As for `host_loop.collect`.
        """
        if program.engine != "litert":
            raise ValueError(
                "With `workers` a policy acts through LiteRT, and this one does not; the "
                "log says why. Use workers=1."
            )
        if self._owing or self._program is not program:
            self._hire(decision, program)
        began = time.perf_counter()
        weights = acting_program.finite_weights(decision.variables)
        # A cell may learn its first state: every collection begins with that of now.
        states = [host_loop.initial_states(decision, size) for size in self._sizes]
        shares, stepping, first = [], 0.0, 0
        while (end := self._end(shares, first, episodes, steps)) > first:
            played, seconds = self._play(first, end, weights, states, address)
            shares += played
            stepping += seconds
            first = end
        columns = _joined(shares, steps)
        self._usual = columns.lengths.mean()
        seconds = {"stepping": stepping}
        seconds["acting"] = time.perf_counter() - began - stepping
        return results.CollectedEpisodes(
            results.to_episodes(columns, decision), columns.success, seconds
        )

    def close(self):
        """Closes the environments and ends the processes."""
        for process, channel in zip(self._processes, self._channels):
            if channel in self._owing:
                process.terminate()
            else:
                with contextlib.suppress(OSError):  # it has ended already
                    worker.send(channel, None, [])
            channel.close()
        deadline, killed = time.monotonic() + _PATIENCE, []
        for number, process in enumerate(self._processes):
            process.join(max(0.0, deadline - time.monotonic()))
            if process.exitcode is None:
                process.kill()
                process.join()
                killed.append(number)
        self._processes, self._channels = [], []
        self._program, self._owing = None, set()
        if killed:
            warnings.warn(
                f"The workers {killed} did not close their environments within "
                f"{_PATIENCE} s, and were killed.",
                stacklevel=2,
            )

    def _end(self, shares, first, episodes, steps):
        """The number behind the episodes to play next: what seems to be enough."""
        if steps is None:
            return episodes
        left = steps - sum(int(share.lengths.sum()) for share in shares)
        if left <= 0:
            return first
        usual = (steps - left) / first if first else self._usual
        return first + (int(np.ceil(left / usual)) if usual else sum(self._sizes))

    def _hire(self, decision, program):
        """Forks the processes."""
        self.close()
        context = multiprocessing.get_context("fork")
        self._counter = context.Value("q")
        pipes = [context.Pipe() for _ in self._sizes]
        self._channels = [ours for ours, _ in pipes]
        for size, (_, theirs) in zip(self._sizes, pipes, strict=True):
            worker = self._worker(size, decision, program)
            others = [end for pipe in pipes for end in pipe if end is not theirs]
            process = context.Process(
                target=worker.serve, args=(theirs, others), daemon=True
            )
            with warnings.catch_warnings():  # of TensorFlow's threads
                warnings.simplefilter("ignore", DeprecationWarning)
                process.start()
            self._processes.append(process)
        for _, theirs in pipes:
            theirs.close()
        self._program = program

    def _worker(self, size, decision, program):
        return worker.EnvWorker(
            lambda: self._make(size),
            decision,
            lambda weights: program.rows(size, weights),
            self._counter,
        )

    def _play(self, first, end, weights, states, address):
        """The shares of all workers in these episodes; mean seconds of stepping.

        `states` are the initial states of the policy for each worker; see
        `host_loop.initial_states`.
        """
        self._counter.value = first
        most = -(-(end - first) // len(self._sizes))
        request = {"end": end, "most": most, "address": address}
        for number, channel in enumerate(self._channels):
            self._owing.add(channel)
            own = {**request, "states": len(states[number])}
            with self._naming(number):
                worker.send(channel, own, [*states[number], *weights])
        shares, seconds, waiting = [], [], list(self._channels)
        while waiting:
            for channel in connection.wait(waiting):
                waiting.remove(channel)
                number = self._channels.index(channel)
                with self._naming(number):
                    answer, arrays = worker.receive(channel)
                self._owing.remove(channel)
                if "error" in answer:
                    _raise(number, arrays, **answer)
                shares.append(worker.columns_of(answer, arrays))
                seconds.append(answer["seconds"])
        return shares, float(np.mean(seconds))

    @contextlib.contextmanager
    def _naming(self, number):
        """Says which process is no longer there."""
        try:
            yield
        except (EOFError, OSError) as lost:
            process = self._processes[number]
            process.join(_PATIENCE)
            raise results.EnvironmentFault(
                f"Worker {number} ended with the exit code {process.exitcode}: an "
                "environment ended the process, or crashed it, or memory ran out. "
                "Nothing was learned from this batch. With workers=1 environments run "
                "in this process."
            ) from lost


def _raise(number, arrays, error, message, trace):
    kind = _ERRORS.get(error, RuntimeError)
    if error == results.OutputsNotFinite.__name__:
        kind = functools.partial(results.OutputsNotFinite, inputs=arrays)
    named = f"{error}: {message}" if kind is RuntimeError else message
    raise kind(f"Worker {number}: {named}") from RuntimeError(
        f"in worker {number}\n{trace}"
    )


def _joined(shares, steps):
    """Returns the episodes of all shares as one `EpisodeArrays`, in starting order.

    Args:
        shares: List of `results.EpisodeArrays`, which together hold all episode numbers
            from 0 on.
        steps: Int: the fewest episodes, in their order, with so many steps; or `None`.
    """
    of_episodes = zip(*(share[:4] for share in shares), strict=True)
    numbers, lengths, *endings = map(np.concatenate, of_episodes)
    order = np.argsort(numbers)
    if steps is not None:
        taken = np.cumsum(lengths[order])
        order = order[: np.searchsorted(taken, steps) + 1]
    count, rows = len(order), lengths[order].max()

    def columns(parts, rows):
        whole = np.zeros((rows, count, *parts[0].shape[2:]), parts[0].dtype)
        for share, part in zip(shares, parts, strict=True):
            used = share.numbers < count
            whole[: len(part), share.numbers[used]] = part[:rows, used]
        return whole

    observed, played = (
        zip(*parts, strict=True) for parts in zip(*(x[4:] for x in shares))
    )
    return results.EpisodeArrays(
        *(array[order] for array in (numbers, lengths, *endings)),
        [columns(parts, rows + 1) for parts in observed],
        [columns(parts, rows) for parts in played],
    )
