"""Stores the trials of a search, so that a killed search loses no finished trial."""

import contextlib
import fcntl
import os
import re

from tf_reinforce import files
from tf_reinforce.data import seeding

try:
    import optuna
    from optuna.storages import journal
except ImportError as error:
    raise ImportError(
        'Tuning needs Optuna. Install it with `pip install "tf-reinforce[tune]"`.'
    ) from error

_SQLITE = "sqlite:///"
_JOURNAL_START, _SQLITE_START = b'{"op_code":', b"SQLite format 3"  # of a file
_WAIT_SECONDS = 60  # for another process that writes to a SQLite file
# How often the process of one trial may die before the trial counts as failed.
MAX_DEATHS = 3
_STATES = optuna.trial.TrialState

# Attributes of a trial. A retried trial has the index of the trial that it replaces.
INDEX, PROCESS, ERROR = "index", "process", "error"
DEATHS, REPLACES = "deaths", "replaces"


def check(storage):
    """Raises `ValueError` unless a storage is a SQLite URL or the path of a journal file.

    A file that exists must be empty, or a file of its kind, because Optuna would write
    into any other file.
    """
    is_url = re.match(r"\w+(\+\w+)?://", storage)
    if not storage or (is_url and not storage.startswith(_SQLITE)):
        raise ValueError(
            "`--storage` must be `sqlite:///FILE.db`, or the path of a journal file. "
            f"Received: --storage {storage}"
        )
    path, start = storage, _JOURNAL_START
    if is_url:
        path, start = storage.removeprefix(_SQLITE), _SQLITE_START
    if not os.path.exists(path):
        return
    files.expect_regular_file(path)
    with open(path, "rb") as file:
        content = file.read(len(start))
    if not start.startswith(content):
        raise ValueError(
            "`--storage` must be a new file, or a file of an earlier search. Received: "
            f"--storage {storage}, which is another file"
        )


def open_storage(storage):
    """Returns the storage of Optuna for a SQLite URL or the path of a journal file.

    Both kinds of files can be used by several processes at the same time.
    """
    if storage.startswith(_SQLITE):
        folder = os.path.dirname(storage.removeprefix(_SQLITE))
        os.makedirs(folder or ".", exist_ok=True)
        waiting = {"connect_args": {"timeout": _WAIT_SECONDS}}
        return optuna.storages.RDBStorage(storage, engine_kwargs=waiting)
    os.makedirs(os.path.dirname(storage) or ".", exist_ok=True)
    return journal.JournalStorage(
        journal.JournalFileBackend(storage, lock_obj=_JournalLock(storage))
    )


@contextlib.contextmanager
def explain_damage(storage):
    """Raises a `ValueError` that names a storage which cannot be read."""
    try:
        yield
    except OSError:  # it names the file
        raise
    except Exception as error:  # Optuna raises many types of errors for a damaged file
        raise ValueError(
            f"The storage {storage} of the search cannot be read "
            f"({type(error).__name__}: {str(error)[:200]}). If it is damaged, restore "
            "it, or search in another folder."
        ) from error


def close_storage(storage):
    """Closes the connections to a SQLite file that `open_storage` has opened."""
    if isinstance(storage, optuna.storages.RDBStorage):
        storage.remove_session()
        storage.engine.dispose()


class _JournalLock:
    """Locks a journal file while a process appends to it, and repairs its end.

    The operating system releases the lock when the process ends, also if the process is
    killed. If a process could not write a whole line, for example on a full disk, the
    next process that appends removes the incomplete line.
    """

    def __init__(self, path):
        self._path = path
        self._descriptor = None

    def acquire(self):
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            _remove_incomplete_line(descriptor)
        except BaseException:  # Ctrl-C
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        return True

    def release(self):
        os.close(self._descriptor)


def _remove_incomplete_line(descriptor):
    """Truncates a file after its last line break."""
    end = size = os.fstat(descriptor).st_size
    while end and os.pread(descriptor, 1, end - 1) != b"\n":
        end -= 1
    if end < size:
        os.ftruncate(descriptor, end)


class SeededSampler(optuna.samplers.BaseSampler):
    """Draws the settings of each trial with random numbers that the trial determines.

    The random numbers depend on the seed of the search and the index of the trial.
    Therefore a search in one process that was interrupted continues with the same
    settings as an uninterrupted search.

    Args:
        make: Function from a seed to an `optuna.samplers.BaseSampler`.
        seed: Int, the seed of the search.
        start: List of dicts, the parameters of the first trials, which are not drawn.
    """

    def __init__(self, make, seed, start=()):
        self._make = make
        self._seed = seed
        self._start = start
        self._parameters = {}  # of the present trial, if they are not drawn
        self._sampler = None

    def before_trial(self, study, trial):
        index = trial_index(study, trial)
        self._parameters = self._start[index] if index < len(self._start) else {}
        rng = seeding.generator(self._seed, "tuning", index)
        self._sampler = self._make(int(rng.integers(2**32)))
        self._sampler.before_trial(study, trial)

    def infer_relative_search_space(self, study, trial):
        if self._parameters:
            return {}
        return self._sampler.infer_relative_search_space(study, trial)

    def sample_relative(self, study, trial, search_space):
        return self._sampler.sample_relative(study, trial, search_space)

    def sample_independent(self, study, trial, param_name, param_distribution):
        if self._parameters:
            return self._parameters[param_name]
        return self._sampler.sample_independent(
            study, trial, param_name, param_distribution
        )


def trial_index(study, trial):
    """Returns the number of a trial, in which replaced trials do not count.

    The index equals Optuna's number of the trial in a search that was not interrupted.
    """
    if INDEX in trial.user_attrs:
        return trial.user_attrs[INDEX]
    # Not the earlier trials that have been replaced: a trial that is replaced after this
    # trial has begun has the next number, and its own index.
    earlier = study.get_trials(deepcopy=False)[: trial.number]
    return trial.number - sum(REPLACES in x.user_attrs for x in earlier)


def is_replaced(trial):
    """Returns whether a trial was interrupted, so that another trial replaces it."""
    return trial.state == _STATES.FAIL and ERROR not in trial.user_attrs


def is_finished(trial):
    """Returns whether a trial is complete, pruned, or failed by itself."""
    return trial.state.is_finished() and not is_replaced(trial)


def finished(study):
    """Returns the finished trials of a study, in the order of their indices."""
    trials = filter(is_finished, study.get_trials(deepcopy=False))
    return sorted(trials, key=lambda trial: trial_index(study, trial))


def retry_unfinished(study, names, by_signal, process=None):
    """Marks running trials as failed, and queues their parameters to be tried again.

    The processes of these trials must have ended. A trial whose process has died
    more than `MAX_DEATHS` times counts as failed, and is not tried again.

    Args:
        study: `optuna.Study`.
        names: List of the names of all parameters. A trial that had not drawn all of them
            draws them again, with the same random numbers.
        by_signal: Bool, whether the user has interrupted the search. If False, the
            process of the trials has died.
        process: Int, the id of the process whose trials are marked, or `None` for all.

    Returns:
        List of the indices of the trials that are tried again.
    """
    trials = study.get_trials(deepcopy=False)
    replaced = {trial.user_attrs.get(REPLACES) for trial in trials}
    retried = []
    for trial in trials:
        is_other = process not in (None, trial.user_attrs.get(PROCESS))
        if trial.state != _STATES.RUNNING or is_other:
            continue
        index = trial_index(study, trial)
        is_drawn = trial.params.keys() == set(names)
        deaths = trial.user_attrs.get(DEATHS, 0) + (not by_signal)
        if deaths > MAX_DEATHS:
            fail(study, trial, f"the process of the trial has died {deaths} times")
            continue
        if trial.number not in replaced:
            attributes = {INDEX: index, DEATHS: deaths, REPLACES: trial.number}
            study.add_trial(
                optuna.create_trial(
                    state=_STATES.WAITING,
                    params=trial.params if is_drawn else {},
                    distributions=trial.distributions if is_drawn else {},
                    user_attrs=attributes,
                )
            )
        study.tell(trial.number, state=_STATES.FAIL, skip_if_finished=True)
        retried.append(index)
    return retried


def fail(study, trial, message):
    """Marks a running trial as failed by itself, with a message."""
    storage = study._storage
    storage.set_trial_user_attr(trial._trial_id, ERROR, message)
    study.tell(trial.number, state=_STATES.FAIL)
