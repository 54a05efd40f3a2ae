"""Search of settings with Optuna, in a folder that contains all trials."""

import concurrent.futures
import contextlib
import functools
import multiprocessing
import os
import pathlib
import shlex
import signal
import textwrap
import threading
import warnings
from concurrent.futures import process
from multiprocessing import resource_tracker

import numpy as np
import optuna
import tensorflow as tf
from optuna.storages import journal

from tf_reinforce.data import seeding
from tf_reinforce.experiments import curves
from tf_reinforce.experiments import tuning_trial
from tf_reinforce.settings import run_config
from tf_reinforce.settings import toml_files
from tf_reinforce.support import files
from tf_reinforce.support import locks
from tf_reinforce.support import startup
from tf_reinforce.support import version

JOURNAL = "journal.log"  # the file of the trials
NUM_FINALISTS = 5  # trials that are confirmed with further seeds
_NUM_RANDOM = 8  # trials before the sampler learns from earlier trials
_NUM_UNPRUNED = 4  # complete trials before the pruner ends trials
_WARMUP = 10  # no trial is pruned in the first 1 / 10 of its first training
_CONFIRMED = "confirmed {}"  # attribute of the study: a trial's values
_MAX_TRIES = 5  # of a trial whose process dies or is interrupted
# Trials of one process. Of each, TensorFlow keeps about 25 MB of programs.
_MAX_TRIALS = 25
_STATES = optuna.trial.TrialState
# Attributes of a trial: its index in the search, and why it failed. An interrupted trial
# has no error; another one with the same index follows.
INDEX, ERROR = "index", "error"


@contextlib.contextmanager
def open_search(directory, config):
    """Yields the `Search` in a folder, a new one or one to continue.

    Only one process at a time can open a search. If a process has ended in the middle of
    trials, these trials are tried again.

    Args:
        directory: Path of a new or empty folder, or of a search with the same config.
        config: `tuning_trial.SearchConfig`.

    Raises:
        ValueError: If the folder contains a search with another config.
        FileExistsError: If it contains other files.
        FolderLocked: If another process uses it.
    """
    directory, content = pathlib.Path(directory), config.content()
    if stored := run_config.read(directory):
        for name in {**content, **dict.fromkeys(tuning_trial.OPTIONAL)}:
            if stored.get(name) != content.get(name):
                raise ValueError(
                    f"{directory} contains a run, or a search with another `{name}`. "
                    f"Expected: {stored.get(name)}. Received: {content.get(name)}"
                )
    else:
        files.expect_empty_folder(directory)
    with locks.FolderLock(directory):
        versions = version.installed() | {"optuna": optuna.__version__}
        run_config.write(directory, content, versions=versions)
        _repair(directory)
        search = Search(directory, config)
        search.retry_unfinished()
        yield search


def _repair(directory):
    """Repairs the journal after processes of the search were killed.

    Optuna appends whole lines while it holds a lock, which is a link beside the journal.
    A killed process can leave the lock behind. It can also leave a part of a line, which
    would make later lines unreadable.
    """
    path = directory / JOURNAL
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    files.expect_no_link(path)
    if path.exists():
        files.expect_regular_file(path)
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


class Search:
    """A search in a folder, whose trials are stored by an Optuna study.

    Trials are named by their index. A trial that is tried again keeps its index.

    Args:
        directory: `pathlib.Path` of the folder.
        config: `tuning_trial.SearchConfig`.

    Attributes:
        study: `optuna.Study`.
    """

    def __init__(self, directory, config):
        self.directory = directory
        self.config = config
        # Optuna logs each trial; the command prints its own lines.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path, count = directory.absolute() / JOURNAL, _NUM_UNPRUNED
        median = optuna.pruners.MedianPruner(
            count, config.budget // _WARMUP, n_min_trials=count
        )
        storage = journal.JournalStorage(journal.JournalFileBackend(str(path)))
        self.study = optuna.create_study(
            study_name=(*optuna.get_all_study_names(storage), config.env)[0],
            storage=storage,
            pruner=median if config.prune else optuna.pruners.NopPruner(),
            direction="minimize" if config.minimize else "maximize",
            load_if_exists=True,
        )

    def _sampler(self, index):
        """Returns the sampler of a trial, seeded by its index.

        The parameters of the first trials are given, and those of all later ones are
        drawn from the sampler. Because the seed depends only on the index, an interrupted
        search in one process continues with the settings that an uninterrupted one would
        try.
        """
        seed = int(seeding.generator(self.config.seed, "tuning", index).integers(2**32))
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_NUM_RANDOM)
        start = self.config.start_trials()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            fixed = start[index] if index < len(start) else {}
            return optuna.samplers.PartialFixedSampler(fixed, sampler)

    def finished(self):
        """Returns the trials that are complete, pruned or failed, as `{index: trial}`."""
        trials = self.study.get_trials(deepcopy=False)
        ended = _STATES.COMPLETE, _STATES.PRUNED
        finished = [x for x in trials if x.state in ended or ERROR in x.user_attrs]
        return dict(sorted((trial.user_attrs[INDEX], trial) for trial in finished))

    def missing(self, num_trials):
        """Returns the indices of the trials that have not finished."""
        return sorted({*range(num_trials)} - self.finished().keys())

    def retry_unfinished(self):
        """Marks running trials as failed, so they are missing; returns their number.

        Their processes must have ended.
        """
        trials = self.study.get_trials(deepcopy=False, states=[_STATES.RUNNING])
        for trial in trials:
            self.study.tell(trial.number, state=_STATES.FAIL)
        return len(trials)

    def ranked(self):
        """Returns the indices of the complete trials, best first."""
        trials = self.finished().items()
        values = {i: x.value for i, x in trials if x.state == _STATES.COMPLETE}
        return sorted(values, key=values.get, reverse=not self.config.minimize)

    def best(self):
        """Returns the index of the best trial, or `None` if no trial is complete.

        If trials are confirmed, the best mean over all their trainings decides.
        """
        ranked = self.ranked()
        means = {i: x for i in ranked if (x := self.confirmed(i)) is not None}
        if not means:
            return next(iter(ranked), None)
        return (min if self.config.minimize else max)(means, key=means.get)

    def unconfirmed(self):
        """Returns the indices of the best trials that `confirm` has not trained yet."""
        best = self.ranked()[: NUM_FINALISTS if self.config.confirm else 0]
        return [index for index in best if self.confirmation(index) is None]

    def confirm(self, index):
        """Trains a trial's settings with further seeds, and stores the values.

        The best of many trials has a good value partly by chance, so its settings look
        better than they are. The further trainings were not part of the selection and do
        not have this bias.
        """
        try:
            values = tuning_trial.confirm(self.config, self.settings(index))
        except tuning_trial.FAILURES as error:  # these settings do not always train
            values = _failure(error)
        self.study.set_user_attr(_CONFIRMED.format(index), values)

    def confirmation(self, index):
        """Returns the values of `confirm` for a trial, or its error, or `None`."""
        return self.study.user_attrs.get(_CONFIRMED.format(index))

    def confirmed(self, index):
        """Returns a trial's mean value over all trainings, once `confirm` has trained it.

        The result is `None` before `confirm`, or if one of these trainings failed.
        """
        values = self.confirmation(index)
        if not isinstance(values, list):
            return None
        return float(np.mean([*values, *(x["value"] for x in self.trainings(index))]))

    def trainings(self, index):
        """Returns the results of a trial's trainings, a list of dicts."""
        return self.finished()[index].user_attrs["trainings"]

    def settings(self, index):
        """Returns the settings of a trial, in the form that `runs.train` accepts."""
        return self.config.draw(optuna.trial.FixedTrial(self.finished()[index].params))

    def run_trial(self, index):
        """Trains one trial, and stores its result or its error."""
        trials = self.study.get_trials(deepcopy=False)
        tries = sum(x.user_attrs.get(INDEX) == index for x in trials)
        self.study.sampler = self._sampler(index)
        trial = self.study.ask()
        trial.set_user_attr(INDEX, index)
        try:
            if tries >= _MAX_TRIES:
                raise ValueError(f"it has begun {tries} times without an end")
            self.study.tell(trial, tuning_trial.run(self.config, trial, index))
        except optuna.TrialPruned:
            self.study.tell(trial, state=_STATES.PRUNED)
        except tuning_trial.FAILURES as error:
            trial.set_user_attr(ERROR, _failure(error))
            self.study.tell(trial, state=_STATES.FAIL)


def _failure(error):
    """Describes an error in one line."""
    return f"{type(error).__name__}: {error}".splitlines()[0][:300]


def run_trials(search, num_trials, jobs, notify):
    """Runs trials until enough have finished.

    Args:
        search: `Search`.
        num_trials: Int, how many trials shall have finished, including earlier ones.
        jobs: Int, the number of parallel processes. With 1, up to 25 trials run in this
            process, and more in one child process after the other.
        notify: Function that is called with the index of each finished trial.

    Raises:
        ValueError: If child processes die.
    """
    missing = search.missing(num_trials)
    if len(missing) <= (_MAX_TRIALS if jobs == 1 else 1):
        _use_one_thread_per_operation()
        for index in missing:
            search.run_trial(index)
            notify(index)
    while missing := search.missing(num_trials)[: jobs * _MAX_TRIALS]:
        try:
            _run_in_processes(search, missing, min(jobs, len(missing)), notify)
        except process.BrokenProcessPool:
            _repair(search.directory)
            stopped, left = search.retry_unfinished(), search.missing(num_trials)
            for index in sorted({*missing} - {*left}):  # stored when the pool broke
                notify(index)
            if not stopped and missing[0] in left:
                raise ValueError(
                    "The processes of the search die. Use --jobs 1 to see the error."
                ) from None


def _use_one_thread_per_operation():
    """Uses one thread per TensorFlow operation, unless the user chose a number.

    With more, results could depend on the number of cores.
    """
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):  # TensorFlow has already started
            tf.config.threading.set_intra_op_parallelism_threads(1)


def _run_in_processes(search, indices, jobs, notify):
    """Runs trials in new processes, which then end; removes those that are reported."""
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # its start would unblock SIGINT
    start = startup.import_tensorflow  # before the process imports this module
    with concurrent.futures.ProcessPoolExecutor(jobs, context, start) as pool:
        try:
            with _without_interrupts():
                futures = {
                    pool.submit(_run, search.directory, search.config, index): index
                    for index in indices
                }
            for future in concurrent.futures.as_completed(futures):
                future.result()
                notify(futures[future])
                indices.remove(futures[future])
        except BaseException:  # also Ctrl-C: end the running trials
            for child in multiprocessing.active_children():
                child.kill()
            raise


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
    _end_with_parent()
    Search(directory, config).run_trial(index)


@functools.cache
def _end_with_parent():
    """Ends the current child process when its parent dies."""
    _use_one_thread_per_operation()
    parent = multiprocessing.parent_process()
    wait_and_exit = lambda: (parent.join(), os._exit(1))  # noqa: E731
    threading.Thread(target=wait_and_exit, daemon=True).start()


_NUM_ROWS = 10  # of the table
_INDENTED = dict(initial_indent=" " * 7, subsequent_indent=" " * 7)


def trial_line(search, index):
    """Describes a finished trial in one line, and says if it is the best so far."""
    trial = search.finished()[index]
    if ERROR in trial.user_attrs:
        return f"trial {index}: failed: {trial.user_attrs[ERROR]}"
    seconds = sum(x["seconds"] for x in search.trainings(index))
    text = f"{_result(search, index)} · {seconds:.0f} s · {', '.join(_settings(trial))}"
    return f"trial {index}: {text}" + " · best so far" * (search.best() == index)


def confirmed_line(search, index):
    """Describes a trial that was trained with further seeds in one line."""
    mean, config = search.confirmed(index), search.config
    if mean is None:
        return f"trial {index}: a further training failed: {search.confirmation(index)}"
    text = f"mean {mean:,.5g} {config.objective} with {config.confirm} further trainings"
    return f"trial {index}: {text}"


def _result(search, index):
    """Returns a trial's value with its unit, or how far it came."""
    config, trainings = search.config, search.trainings(index)
    trial, count = search.finished()[index], len(trainings)
    if trial.state == _STATES.PRUNED:
        steps = f"{sum(x['env_steps'] for x in trainings):,} steps"
        return f"pruned after {steps}{f' in {count} trainings' * (count > 1)}"
    if config.objective != "steps":
        return f"{config.objective} {trial.value:.5g}"
    reached = sum(x["reached"] for x in trainings)
    if reached == count:
        return f"{trial.value:,.0f} steps to {config.target:g}"
    returns = sum(x["best_return"] for x in trainings) / count
    return f"{reached} of {count} reach {config.target:g}, return {returns:.4g}"


def _settings(trial):
    """Returns the settings of a trial as texts, without the names of their tables."""
    return [
        f"{name.removeprefix('agent.').removeprefix('fit.')} {_number(x)}"
        for name, x in trial.params.items()
    ]


def _number(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(search):
    """Returns a table of the best trials as text, with the settings below each row."""
    finished, best, ranked = search.finished(), search.best(), search.ranked()[:_NUM_ROWS]
    rows = [["trial", "result", f"confirmed ({search.config.objective})", ""]]
    for index in ranked:
        mean = search.confirmed(index)
        mean = "" if mean is None else f"{mean:,.5g}"
        row = [str(index), _result(search, index), mean]
        rows.append([*row, "best" if index == best else ""])
    lines = curves.align(rows).splitlines()
    for index, line in zip(ranked, lines[1:], strict=True):
        settings = ", ".join(x.replace(" ", "\xa0") for x in _settings(finished[index]))
        wrapped = textwrap.wrap(settings, 80, **_INDENTED)
        lines += [line, *(x.replace("\xa0", " ") for x in wrapped)]
    return "\n".join([lines[0], *lines[len(ranked) + 1 :]])


def write_preset(search, path):
    """Writes the settings of the best trial as a preset; returns a command to use it."""
    best, config = search.best(), search.config
    result = _result(search, best)
    if search.confirmed(best) is not None:
        result += f"; {confirmed_line(search, best).partition(': ')[2]}"
    settings = {"env": config.env, "result": result, **search.settings(best)}
    words = ["tf-reinforce", "train", config.env, "--preset", str(path)]
    words += ["--agent", config.make_agent] if config.make_agent else []
    command = shlex.join(words)
    comment = f"Trial {best} of tf-reinforce tune {version.VERSION}: {command}"
    toml_files.write(path, settings, comment)
    return command
