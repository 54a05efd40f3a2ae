"""Runs the trials of a search in this process, or in several processes side by side."""

import concurrent.futures
import contextlib
import multiprocessing
import os
import signal
import threading
from concurrent.futures import process
from multiprocessing import connection
from multiprocessing import resource_tracker

import tensorflow as tf

from tf_reinforce.experiments import tuning

# Trials of one process. TensorFlow keeps about 25 MB of the programs of each trial.
_MAX_TRIALS = 25
_MAX_DEATHS = 10  # of child processes, which end the search


def run_trials(search, num_trials, jobs, notify, start_child):
    """Runs trials until a search has enough finished trials.

    Args:
        search: `tuning.Search`.
        num_trials: Int, the number of finished trials of the search at the end, with the
            trials that are already finished.
        jobs: Int, the number of processes side by side. With 1, up to 25 trials run in
            this process, and more trials in one child process after the other.
        notify: Function that is called with the index of each finished trial.
        start_child: Function that calls `end_with` with its argument, in each new child
            process. The process imports the module of the function first.

    Raises:
        ValueError: If the last trials have all failed, or child processes die.
        UnknownLogKey: If the log key of the objective does not exist.
    """
    missing = search.missing(num_trials)
    if len(missing) <= (_MAX_TRIALS if jobs == 1 else 1):
        use_one_thread_per_operation()
        for index in missing:
            search.run_trial(index)
            notify(index)
            search.check_failures()
        return
    for _ in range(_MAX_DEATHS):
        try:
            return _run_in_processes(search, num_trials, jobs, notify, start_child)
        except process.BrokenProcessPool:
            tuning.repair(search.directory)
            search.retry_unfinished()
    raise ValueError(
        f"{_MAX_DEATHS} processes of the search have died. Use fewer --jobs if the "
        "memory is full, or --jobs 1 to see the error."
    )


def use_one_thread_per_operation():
    """Uses one thread per TensorFlow operation, unless the user set the thread count.

    With more threads, the results of a trial could depend on the number of cores.
    """
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):  # TensorFlow has already started
            tf.config.threading.set_intra_op_parallelism_threads(1)


def end_with(pipe):
    """Ends the current process when the other end of a pipe is closed.

    It is closed when the parent process dies, or ends the search.
    """
    use_one_thread_per_operation()
    threading.Thread(target=_wait_and_exit, args=(pipe,), daemon=True).start()


def _wait_and_exit(pipe):
    connection.wait([pipe])
    os._exit(1)


def _run_in_processes(search, num_trials, jobs, notify, start_child):
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # its start would unblock SIGINT
    reader, writer = context.Pipe(duplex=False)
    pool = concurrent.futures.ProcessPoolExecutor(
        jobs, context, start_child, (reader,), max_tasks_per_child=_MAX_TRIALS
    )
    # `writer` is closed first, which ends the running trials.
    with reader, pool, writer:
        running = {}
        while True:
            missing = search.missing(num_trials, running.values())
            for index in missing[: jobs - len(running)]:
                with _without_interrupts():
                    future = pool.submit(_run, search.directory, search.config, index)
                running[future] = index
            if not running:
                return
            ended, _ = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
            for future in ended:
                future.result()
                notify(running.pop(future))
                search.check_failures()


@contextlib.contextmanager
def _without_interrupts():
    """Blocks SIGINT, also in the threads and processes that start in a `with` block."""
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _run(directory, config, index):
    """Runs one trial in a child process."""
    tuning.Search(directory, config).run_trial(index)
