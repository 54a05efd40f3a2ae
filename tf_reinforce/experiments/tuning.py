"""Searches settings of a training with Optuna, in a folder that contains all trials."""

import collections
import concurrent.futures
import contextlib
import math
import multiprocessing
import os
import pathlib
import signal
import threading
import warnings
from concurrent.futures import process
from multiprocessing import resource_tracker

import optuna
import tensorflow as tf
from optuna.storages import journal

from tf_reinforce.data import seeding
from tf_reinforce.experiments import comparison
from tf_reinforce.experiments import plots
from tf_reinforce.experiments import run_config
from tf_reinforce.experiments import search_space
from tf_reinforce.experiments import tuning_trial
from tf_reinforce.settings import toml_files
from tf_reinforce.support import files
from tf_reinforce.support import locks
from tf_reinforce.support import version

JOURNAL = "journal.log"  # the file of the trials
NUM_FINALISTS = 5  # trials that are trained with further seeds at the end
_NUM_RANDOM = 8  # trials before the sampler learns from earlier trials
_NUM_UNPRUNED = 4  # complete trials before the pruner ends trials
_WARMUP = 10  # no trial ends before this part of the budget of its first training
_CONFIRMED = "confirmed {}"  # attribute of the study with the values of a trial
_MAX_FAILURES = 5  # failed trials in a row that end the search
_MAX_TRIES = 5  # how often a trial begins whose process dies or is interrupted
_MAX_DEATHS = 10  # of child processes, which end the search
# Trials of one process. TensorFlow keeps about 25 MB of the programs of each trial.
_MAX_TRIALS = 25
_STATES = optuna.trial.TrialState
# Attributes of a trial: its index in the search, and why it has failed. A trial that was
# interrupted has no error, and another trial with its index follows.
INDEX, ERROR = "index", "error"


@contextlib.contextmanager
def open_search(directory, config):
    """Yields a `Search` in a new folder, or the search that the folder contains.

    Only one process at a time can open a search. Trials that were running when the last
    process ended are tried again.

    Args:
        directory: Path of a new or empty folder, or of a search with the same config.
        config: `tuning_trial.SearchConfig`.

    Raises:
        ValueError: If the folder contains a search with another config.
        FileExistsError: If the folder contains other files.
        FolderLocked: If another process uses the folder.
    """
    directory = pathlib.Path(directory)
    is_new = not expect_same_search(directory, config)
    with locks.FolderLock(directory):
        if is_new:
            versions = {**version.installed(), "optuna": optuna.__version__}
            run_config.write_json(directory / "versions.json", versions)
            run_config.write(directory, config.content())
        _repair(directory)
        search = Search(directory, config)
        search.retried = search.retry_unfinished()
        yield search


def _repair(directory):
    """Repairs the journal of a search whose processes have been killed.

    Optuna appends whole lines under a lock, a link beside the journal. A killed process
    leaves the lock, or an incomplete line after which no line could be read.
    """
    path = directory / JOURNAL
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    files.expect_no_link(path)
    if path.exists():
        files.expect_regular_file(path)
        os.truncate(path, path.read_bytes().rfind(b"\n") + 1)


def expect_same_search(directory, config):
    """Returns whether a folder contains a search, which must have the same config.

    Raises:
        ValueError: If the folder contains a search with another config, or a run.
        FileExistsError: If the folder contains other files.
    """
    stored, content = run_config.read(directory), config.content()
    if not stored:
        files.expect_empty_folder(pathlib.Path(directory))
        return False
    path = pathlib.Path(directory) / run_config.FILE_NAME
    if "ranges" not in stored:
        raise ValueError(
            f"The folder {directory} contains a run, and no search. Choose another "
            "folder: --run-dir DIR."
        )
    stored = {key: stored.get(key) for key in content}
    if stored != content:
        name, expected, received = _difference("", stored, content)
        raise ValueError(
            f"The search in {path} has another `{name}`. Expected: {expected}. Received: "
            f"{received}. Repeat the command of the search, or choose another folder."
        )
    return True


def _difference(name, stored, received):
    """Returns the name of the first setting that differs, and its two values."""
    if isinstance(stored, dict) and isinstance(received, dict):
        for key in {**stored, **received}:
            if stored.get(key) != received.get(key):
                name = f"{name}.{key}".removeprefix(".")
                return _difference(name, stored.get(key), received.get(key))
    return name, stored, received


class Search:
    """A search in a folder, with a study of Optuna that stores the trials.

    Args:
        directory: `pathlib.Path` of the folder.
        config: `tuning_trial.SearchConfig`.

    Attributes:
        study: `optuna.Study`.
        retried: List of the indices of the trials that are tried again.
    """

    def __init__(self, directory, config):
        self.directory = directory
        self.config = config
        self.retried = []
        self._sign = 1 if config.minimize else -1
        # Optuna logs each trial; the command prints its own lines.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        path = directory.absolute() / JOURNAL
        try:
            storage = journal.JournalStorage(journal.JournalFileBackend(str(path)))
            self.study = optuna.create_study(
                study_name=(*optuna.get_all_study_names(storage), config.env)[0],
                storage=storage,
                pruner=_pruner(config),
                direction="minimize" if config.minimize else "maximize",
                load_if_exists=True,
            )
            self.finished()
        except Exception as error:  # Optuna raises many types of errors
            if isinstance(error, OSError):  # it names the file
                raise
            raise ValueError(
                f"The file {path} of the search is damaged ({type(error).__name__}: "
                f"{str(error)[:200]}). Restore it, or search in another folder."
            ) from error

    def _sampler(self, index):
        """Returns the sampler of a trial, whose random numbers depend on its index.

        An interrupted search in one process therefore continues with the settings of an
        uninterrupted one. The parameters of the first trials are not drawn.
        """
        seed = int(seeding.generator(self.config.seed, "tuning", index).integers(2**32))
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=_NUM_RANDOM)
        start = search_space.start_trials(self.config.space, self.config.settings)
        if self.config.sampler == "random":
            sampler, start = optuna.samplers.RandomSampler(seed=seed), start[:1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            fixed = start[index] if index < len(start) else {}
            return optuna.samplers.PartialFixedSampler(fixed, sampler)

    def finished(self):
        """Returns the trials that are complete, pruned or failed, by their indices."""
        states = _STATES.COMPLETE, _STATES.PRUNED
        trials = [
            trial
            for trial in self.study.get_trials(deepcopy=False)
            if trial.state in states
            or (trial.state == _STATES.FAIL and ERROR in trial.user_attrs)
        ]
        return sorted(trials, key=self.index)

    def index(self, trial):
        """Returns the index of a trial; a trial that is tried again keeps its index."""
        return trial.user_attrs[INDEX]

    def missing(self, num_trials, running=()):
        """Returns the indices of the trials that have neither finished nor begun."""
        taken = {*map(self.index, self.finished()), *running}
        return [index for index in range(num_trials) if index not in taken]

    def retry_unfinished(self):
        """Marks running trials as failed, whose processes must have ended.

        Returns:
            List of the indices of these trials, which are missing now.
        """
        trials = self.study.get_trials(deepcopy=False, states=[_STATES.RUNNING])
        for trial in trials:
            self.study.tell(trial.number, state=_STATES.FAIL)
        return [self.index(x) for x in trials if INDEX in x.user_attrs]

    def ranked(self):
        """Returns the complete trials, with the best value first."""
        complete = [x for x in self.finished() if x.state == _STATES.COMPLETE]
        return sorted(complete, key=lambda trial: self._sign * trial.value)

    def best(self):
        """Returns the best trial, or `None` if no trial is complete.

        Of confirmed trials, it is the one with the best mean over all trainings.
        """
        trials = self.ranked()
        confirmed = [x for x in trials if self.confirmed(x) is not None]
        key = lambda trial: self._sign * self.confirmed(trial)  # noqa: E731
        return min(confirmed, key=key) if confirmed else next(iter(trials), None)

    def confirm(self, notify):
        """Trains the best trials with further seeds, unless they are confirmed already.

        The value of the best of many trials is better than its settings are, because it
        was selected. The further trainings were not.

        Args:
            notify: Function that is called with the index of each confirmed trial.
        """
        for trial in self.unconfirmed():
            try:
                values = tuning_trial.confirm(self.config, self.settings(trial))
            except tuning_trial.FAILURES as error:  # these settings do not always train
                values = _failure(error)
            else:
                if not all(map(math.isfinite, values)):
                    values = f"a value is not finite: {values}"
            self.study.set_user_attr(_CONFIRMED.format(self.index(trial)), values)
            notify(self.index(trial))

    def unconfirmed(self):
        """Returns the list of the trials that `confirm` trains."""
        best = self.ranked()[: NUM_FINALISTS if self.config.confirm else 0]
        return [trial for trial in best if self.confirmation(trial) is None]

    def confirmed(self, trial):
        """Returns the mean value of a trial over all its trainings, or `None`.

        The mean is `None` before `confirm`, and if a training of `confirm` has failed.
        """
        values = self.confirmation(trial)
        if not isinstance(values, list):
            return None
        values = [*values, *(x["value"] for x in trial.user_attrs["trainings"])]
        return sum(values) / len(values)

    def confirmation(self, trial):
        """Returns the values of `confirm` for a trial, or its error, or `None`."""
        return self.study.user_attrs.get(_CONFIRMED.format(self.index(trial)))

    def settings(self, trial):
        """Returns the settings of a trial, with which `runs.train` trains."""
        return self.config.suggest(optuna.trial.FixedTrial(trial.params))

    def run_trial(self, index):
        """Trains the trial with an index, and stores its result.

        A training that fails is stored with its error as a failed trial.

        Raises:
            UnknownLogKey: If the log key of the objective does not exist.
        """
        trials = self.study.get_trials(deepcopy=False)
        tries = sum(x.user_attrs.get(INDEX) == index for x in trials)
        self.study.sampler = self._sampler(index)
        trial = self.study.ask()
        trial.set_user_attr(INDEX, index)
        if tries >= _MAX_TRIES:
            return self._fail(trial, f"the trial has begun {tries} times without an end")
        try:
            value = tuning_trial.run(self.config, trial, index)
        except optuna.TrialPruned:
            self.study.tell(trial, state=_STATES.PRUNED)
        except tuning_trial.FAILURES as error:
            self._fail(trial, _failure(error))
            if isinstance(error, tuning_trial.UnknownLogKey):
                raise
        else:
            if math.isfinite(value):
                self.study.tell(trial, value)
            else:
                self._fail(trial, f"the value of the trial is not finite: {value}")

    def _fail(self, trial, message):
        """Stores a trial as failed by itself."""
        trial.set_user_attr(ERROR, message)
        self.study.tell(trial, state=_STATES.FAIL)

    def check_failures(self):
        """Raises `ValueError` if the last trials have all failed."""
        errors = [x.user_attrs.get(ERROR) for x in self.finished()][-_MAX_FAILURES:]
        if len(errors) == _MAX_FAILURES and None not in errors:
            raise ValueError(
                f"The last {_MAX_FAILURES} trials have failed. Correct the environment, "
                f"the settings or the ranges. The last error: {errors[-1]}"
            )


def _failure(error):
    return f"{type(error).__name__}: {str(error)[:1000]}"


def _pruner(config):
    if not config.prune:
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner(
        n_startup_trials=_NUM_UNPRUNED,
        n_warmup_steps=config.budget // _WARMUP,
        n_min_trials=_NUM_UNPRUNED,
    )


def run_trials(search, num_trials, jobs, notify, start_child):
    """Runs trials until a search has enough finished trials.

    Args:
        search: `Search`.
        num_trials: Int, the number of finished trials of the search at the end, with the
            trials that are already finished.
        jobs: Int, the number of processes side by side. With 1, up to 25 trials run in
            this process, and more trials in one child process after the other.
        notify: Function that is called with the index of each finished trial.
        start_child: Function that calls `end_with_parent`, in each new child process. The
            process imports the module of the function first.

    Raises:
        ValueError: If the last trials have all failed, or child processes die.
        UnknownLogKey: If the log key of the objective does not exist.
    """
    missing = search.missing(num_trials)
    if len(missing) <= (_MAX_TRIALS if jobs == 1 else 1):
        _use_one_thread_per_operation()
        for index in missing:
            search.run_trial(index)
            notify(index)
            search.check_failures()
        return
    for _ in range(_MAX_DEATHS):
        try:
            return _run_in_processes(search, num_trials, jobs, notify, start_child)
        except process.BrokenProcessPool:
            _repair(search.directory)
            search.retry_unfinished()
    raise ValueError(
        f"{_MAX_DEATHS} processes of the search have died. Use fewer --jobs if the "
        "memory is full, or --jobs 1 to see the error."
    )


def _use_one_thread_per_operation():
    """Uses one thread per TensorFlow operation, unless the user set the thread count.

    With more threads, the results of a trial could depend on the number of cores.
    """
    if "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):  # TensorFlow has already started
            tf.config.threading.set_intra_op_parallelism_threads(1)


def end_with_parent():
    """Ends the current child process when its parent process dies."""
    _use_one_thread_per_operation()
    threading.Thread(target=_wait_and_exit, daemon=True).start()


def _wait_and_exit():
    multiprocessing.parent_process().join()
    os._exit(1)


def _run_in_processes(search, num_trials, jobs, notify, start_child):
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # its start would unblock SIGINT
    running, options = {}, dict(max_tasks_per_child=_MAX_TRIALS)
    with concurrent.futures.ProcessPoolExecutor(
        jobs, context, start_child, **options
    ) as pool:
        try:
            while True:
                missing = search.missing(num_trials, running.values())
                for index in missing[: jobs - len(running)]:
                    with _without_interrupts():
                        future = pool.submit(_run, search.directory, search.config, index)
                    running[future] = index
                if not running:
                    return
                done, _ = concurrent.futures.wait(running, return_when="FIRST_COMPLETED")
                for future in done:
                    future.result()
                    notify(running.pop(future))
                    search.check_failures()
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
    Search(directory, config).run_trial(index)


_WORDS = {
    _STATES.COMPLETE: "complete",
    _STATES.PRUNED: "pruned",
    _STATES.FAIL: "failed",
}
_NUM_ROWS = 10  # of the table


def trial_line(search, index):
    """Returns a line about a finished trial, and the best trial so far."""
    [trial] = [x for x in search.finished() if search.index(x) == index]
    if trial.state == _STATES.FAIL:
        reason = trial.user_attrs[ERROR].splitlines()[0]
        return f"trial {index}: failed: {reason[:200]}"
    seconds = sum(x["seconds"] for x in trial.user_attrs.get("trainings", ()))
    parameters = (f"{_short(name)} {_number(x)}" for name, x in trial.params.items())
    text = f"{_value_text(search, trial)} · {seconds:.0f} s · {', '.join(parameters)}"
    best = search.best()
    is_best = best is not None and best.number == trial.number
    return f"trial {index}: {text}" + " · best so far" * is_best


def confirmed_line(search, index):
    """Returns a line about a trial that was trained with further seeds."""
    [trial] = [x for x in search.ranked() if search.index(x) == index]
    mean, count = search.confirmed(trial), search.config.confirm
    if mean is None:
        reason = search.confirmation(trial).splitlines()[0]
        return f"trial {index}: a training with a further seed failed: {reason[:200]}"
    trainings = "1 further training" if count == 1 else f"{count} further trainings"
    unit = search.config.objective
    return f"trial {index}: mean {mean:,.5g} {unit} with {trainings}"


def _value_text(search, trial):
    """Returns the value of a trial with its unit, and what the trial has reached."""
    config, trainings = search.config, trial.user_attrs["trainings"]
    if trial.state == _STATES.PRUNED:
        steps = sum(x["env_steps"] for x in trainings)
        return f"pruned after {steps:,} steps"
    if config.objective != "steps":
        return f"{config.objective} {trial.value:.5g}"
    reached = sum(x["reached"] for x in trainings)
    if reached == len(trainings):
        return f"{trial.value:,.0f} steps to {config.target:g}"
    returns = sum(x["best_return"] for x in trainings) / len(trainings)
    return f"{reached} of {len(trainings)} reach {config.target:g}, return {returns:.4g}"


def reaches_target(search, trial):
    """Returns whether all trainings of a trial reach the target return, if it has one."""
    trainings = trial.user_attrs["trainings"]
    return search.config.objective != "steps" or all(x["reached"] for x in trainings)


def _short(name):
    """Returns the name of a setting without its table."""
    return name.partition(".")[2]


def _number(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(search):
    """Returns a table of the best trials as text, with one row for each trial."""
    names = [x.name for x in search.config.space]
    confirmed = f"confirmed ({search.config.objective})"
    best = search.best()
    rows = [["trial", "result", confirmed, *map(_short, names), ""]]
    for trial in search.ranked()[:_NUM_ROWS]:
        mean = search.confirmed(trial)
        first = [str(search.index(trial)), _value_text(search, trial)]
        values = [_number(trial.params[name]) for name in names]
        last = "best" if trial.number == best.number else ""
        rows.append([*first, "" if mean is None else f"{mean:,.5g}", *values, last])
    counts = collections.Counter(_WORDS[trial.state] for trial in search.finished())
    summary = ", ".join(f"{counts[word]} {word}" for word in _WORDS.values())
    return f"{comparison.align(rows)}\n{summary}"


def write_preset(search, path):
    """Writes the settings of the best trial as a preset file."""
    best, config = search.best(), search.config
    seeds = ", ".join(str(x["seed"]) for x in best.user_attrs["trainings"])
    result = f"{_value_text(search, best)} (seeds {seeds})"
    if (mean := search.confirmed(best)) is not None:
        further = f"{config.confirm} further seeds"
        result += f"; mean {mean:,.5g} {config.objective} with {further}"
    settings = {"env": config.env, "result": result, **search.settings(best)}
    comment = f"Trial {search.index(best)} of tf-reinforce tune {version.VERSION}."
    toml_files.write(path, settings, comment)


def save_picture(search, path):
    """Draws the value of each complete trial, and the best value so far.

    Raises:
        ImportError: Without matplotlib.
    """
    plots.import_matplotlib()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        panel = optuna.visualization.matplotlib.plot_optimization_history(
            search.study, target_name=search.config.objective
        )
    plots.save(panel.figure, path)
