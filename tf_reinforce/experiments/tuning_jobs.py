"""Runs the trials of a search in this process, or in several processes side by side."""

import contextlib
import dataclasses
import multiprocessing
import os
import signal
import threading
from multiprocessing import connection
from multiprocessing import resource_tracker

import tensorflow as tf

from tf_reinforce import interrupts
from tf_reinforce.experiments import tuning

# Trials of one process. TensorFlow keeps about 25 MB of the programs of each trial.
_MAX_TRIALS = 25
_MAX_DEATHS = 10  # of child processes in a row, without a finished trial


def run_trials(search, num_trials, jobs, notify, child_main):
    """Runs trials until a search has enough finished trials.

    Args:
        search: `tuning.Search`.
        num_trials: Int, the number of finished trials of the search at the end, with the
            trials that are already finished.
        jobs: Int, the number of processes side by side. With 1, up to 25 trials run in
            this process, and more trials in one child process after the other.
        notify: Function that is called with the index of each finished trial.
        child_main: Function that calls `serve` with its arguments in a child process. The
            process imports the module of the function first.

    Raises:
        ValueError: If the last trials have all failed, or the child processes die.
        UnknownLogKey: If the log key of the objective does not exist.
    """
    missing = num_trials - len(search.finished())
    if missing > (_MAX_TRIALS if jobs == 1 else 1):
        _run_in_processes(search, num_trials, min(jobs, missing), notify, child_main)
        return
    use_one_thread_per_operation()
    for _ in range(missing):
        notify(search.run_trial())
        search.check_failures()


def use_one_thread_per_operation():
    """Uses one thread per TensorFlow operation, unless the user set the thread count.

    With more threads, the results of a trial could depend on the number of cores.
    """
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):  # TensorFlow has already started
            tf.config.threading.set_intra_op_parallelism_threads(1)


def serve(pipe, directory, settings):
    """Runs one trial of a search for each message of the parent process.

    The process ends with its parent process, also if that is killed.

    Args:
        pipe: `multiprocessing.connection.Connection` to the parent process. The function
            sends the index of each trial, or the exception that ends the search.
        directory: `pathlib.Path` of the folder of the search.
        settings: Dict of the fields of `tuning.SearchConfig`.
    """
    threading.Thread(target=_end_with_parent, daemon=True).start()
    use_one_thread_per_operation()
    search = tuning.Search(directory, tuning.SearchConfig(**settings))
    with contextlib.suppress(EOFError):
        while pipe.recv():
            try:
                pipe.send(search.run_trial())
            except Exception as error:
                pipe.send(error)


def _end_with_parent():
    connection.wait([multiprocessing.parent_process().sentinel])
    os._exit(1)


def _run_in_processes(search, num_trials, jobs, notify, child_main):
    """Runs trials in child processes, and starts processes that have died again."""
    children, deaths = [], 0
    try:
        for _ in range(jobs):
            children.append(_Child(search, child_main))
        while True:
            busy = [child for child in children if child.is_busy]
            missing = num_trials - len(search.finished()) - len(busy)
            for child in [x for x in children if not x.is_busy][: max(0, missing)]:
                child.start_trial()
                busy.append(child)
            if not busy:
                return
            for child in _ready(busy):
                result = child.receive()
                deaths = deaths + 1 if result is None else 0
                if result is not None:
                    notify(result)
                    search.check_failures()
                    child.restart_if_old()
                _check_deaths(deaths)
    finally:
        for child in children:
            child.end()


def _ready(children):
    """Waits, and returns the children that have sent a result or have died."""
    ready = connection.wait([child.pipe for child in children])
    return [child for child in children if child.pipe in ready]


def _check_deaths(deaths):
    if deaths >= _MAX_DEATHS:
        raise ValueError(
            f"{deaths} processes of the search have died, one after the other, without "
            "a finished trial. Use fewer --jobs if the memory is full, or --jobs 1 to "
            "see the error."
        )


class _Child:
    """A child process that runs trials, one after the other.

    Attributes:
        pipe: `Connection` to the process, which is closed when the process dies.
        is_busy: Bool, whether the process runs a trial.
    """

    def __init__(self, search, child_main):
        self._search = search
        self._main = child_main
        self._start()

    def _start(self):
        context = multiprocessing.get_context("spawn")
        self.pipe, other = context.Pipe()
        settings = dataclasses.asdict(self._search.config)
        arguments = other, self._search.directory, settings
        self._process = context.Process(target=self._main, args=arguments, daemon=True)
        self.is_busy, self._num_trials = False, 0
        resource_tracker.ensure_running()  # its start would unblock SIGINT
        with interrupts.kept(at_once=False):
            # The process inherits the mask, also while it imports TensorFlow.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                self._process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                other.close()

    def start_trial(self):
        self.is_busy = True
        self._num_trials += 1
        with contextlib.suppress(OSError):  # the process has died, which `receive` finds
            self.pipe.send(True)

    def receive(self):
        """Returns the index of a finished trial, or `None` if the process has died.

        If the process has died, another process starts, and the trial is tried again.
        """
        self.is_busy = False
        try:
            result = self.pipe.recv()
        except (EOFError, OSError):
            self.end()
            self._search.retry_unfinished(by_signal=False, process=self._process.pid)
            self._start()
            return None
        if isinstance(result, Exception):
            raise result
        return result

    def end(self):
        """Ends the process at once; its trial remains unfinished."""
        self._process.kill()
        self._process.join()
        self.pipe.close()

    def restart_if_old(self):
        """Replaces the process after `_MAX_TRIALS` trials, to free its memory."""
        if self._num_trials >= _MAX_TRIALS:
            self.end()
            self._start()
