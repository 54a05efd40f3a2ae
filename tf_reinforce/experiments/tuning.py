"""Searches settings of a training with Optuna, in a folder that contains all trials."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import warnings
from typing import Any

import optuna
from optuna.storages import journal

from tf_reinforce.data import seeding
from tf_reinforce.experiments import run_config
from tf_reinforce.experiments import search_space
from tf_reinforce.experiments import tuning_trial
from tf_reinforce.support import files
from tf_reinforce.support import locks
from tf_reinforce.support import version

JOURNAL = "journal.log"  # the file of the trials
_VERSIONS = "versions.json"
_NUM_RANDOM = 8  # trials before the sampler learns from earlier trials
_NUM_UNPRUNED = 4  # complete trials before the pruner ends trials
_WARMUP = 10  # no trial ends before this part of the budget of its first training
NUM_FINALISTS = 5  # trials that are trained with further seeds at the end
_CONFIRMED = "confirmed {}"  # attribute of the study with the values of a trial
_MAX_FAILURES = 5  # failed trials in a row that end the search
_MAX_TRIES = 5  # how often a trial begins whose process dies or is interrupted
_STATES = optuna.trial.TrialState
# Attributes of a trial: its index in the search, and why it has failed. A trial that was
# interrupted has no error, and another trial with its index follows.
INDEX, ERROR = "index", "error"


@dataclasses.dataclass(frozen=True)
class SearchConfig:
    """All settings that determine a search, as they are stored in `config.json`.

    Attributes:
        env: String, the environment id.
        settings: Dict of the settings of a training, as for `runs.train`. `fit` contains
            `steps`, the budget of each training.
        ranges: Dict, the table `ranges` of a preset.
        engine: `"host"`, or `"compiled"` for trainings on the twin of the environment.
        objective: String, the `key` of `tuning_trial.Objective`.
        minimize: Bool, whether smaller values are better.
        target: Float, the target return, or `None`.
        seed: Int, from which all random numbers of the search are derived.
        seeds: Int, the number of trainings of each trial.
        confirm: Int, the number of further trainings of the best trials.
        sampler: `"tpe"`, or `"random"`.
        prune: Bool, whether trials end early if they are worse than the median.
    """

    env: str
    settings: dict[str, Any]
    ranges: dict[str, Any]
    engine: str
    objective: str
    minimize: bool
    target: float | None
    seed: int = 0
    seeds: int = 3
    confirm: int = 7
    sampler: str = "tpe"
    prune: bool = True

    def content(self):
        """Returns the dict of the fields, as `json` reads them from `config.json`."""
        return json.loads(json.dumps(dataclasses.asdict(self)))

    def task(self):
        """Returns the `tuning_trial.TrialTask` of the search."""
        budget = self.settings["fit"]["steps"]
        return tuning_trial.TrialTask(
            self.env,
            self.settings,
            search_space.parse(self.ranges),
            tuning_trial.Objective(self.objective, self.minimize, self.target, budget),
            self.engine == "compiled",
            self.seed,
            self.seeds,
        )


@contextlib.contextmanager
def open_search(directory, config):
    """Yields a `Search` in a new folder, or the search that the folder contains.

    Only one process at a time can open a search. Trials that were running when the last
    process ended are tried again.

    Args:
        directory: Path of a new or empty folder, or of a search with the same config.
        config: `SearchConfig`.

    Raises:
        ValueError: If the folder contains a search with another config.
        FileExistsError: If the folder contains other files.
        FolderLocked: If another process uses the folder.
    """
    directory = pathlib.Path(directory)
    content = config.content()
    is_new = not expect_same_search(directory, content)
    with locks.FolderLock(directory):
        if is_new:
            versions = {**version.installed(), "optuna": optuna.__version__}
            run_config.write_json(directory / _VERSIONS, versions)
            run_config.write(directory, content)
        repair(directory)
        search = Search(directory, config)
        search.retried = search.retry_unfinished()
        yield search


def repair(directory):
    """Repairs the journal of a search whose processes have been killed.

    Optuna appends whole lines under a lock, a link beside the journal. A killed process
    leaves the lock, or an incomplete line after which no line could be read.
    """
    path = directory / JOURNAL
    path.with_name(f"{path.name}.lock").unlink(missing_ok=True)
    files.expect_no_link(path)
    if path.exists():
        files.expect_regular_file(path)
        size = path.read_bytes().rfind(b"\n") + 1
        os.truncate(path, size)


def expect_same_search(directory, content):
    """Returns whether a folder contains a search, which must have the same config.

    Args:
        directory: Path of the folder, which may not exist.
        content: Dict of the config of the search, as it is stored.

    Raises:
        ValueError: If the folder contains a search with another config, or a run.
        FileExistsError: If the folder contains other files.
    """
    stored = run_config.read(directory)
    if not stored:
        files.expect_empty_folder(pathlib.Path(directory))
        return False
    path = pathlib.Path(directory) / run_config.FILE_NAME
    version.expect_not_newer(path, stored.get(version.CONFIG_KEY))
    if "ranges" not in stored:
        raise ValueError(
            f"The folder {directory} contains a run, and no search. Choose another "
            "folder: --run-dir DIR."
        )
    for key in content:
        if stored.get(key) != content[key]:
            name, expected, received = _difference(key, stored.get(key), content[key])
            raise ValueError(
                f"The search in {directory} has another `{name}`. Expected: the value in "
                f"{path}, {_shorten(expected)}. Received: "
                f"{_shorten(received)}. A search continues with its own settings: "
                "repeat the command of the search, or choose another folder."
            )
    return True


def _difference(name, stored, received):
    """Returns the name of the first setting that differs, and its two values."""
    if isinstance(stored, dict) and isinstance(received, dict):
        for key in {**stored, **received}:
            if stored.get(key) != received.get(key):
                name = f"{name}.{key}"
                return _difference(name, stored.get(key), received.get(key))
    return name, stored, received


def _shorten(value):
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]} …"


class Search:
    """A search in a folder, with a study of Optuna that stores the trials.

    Args:
        directory: `pathlib.Path` of the folder.
        config: `SearchConfig`.

    Attributes:
        study: `optuna.Study`.
        task: `tuning_trial.TrialTask`.
        retried: List of the indices of the trials that are tried again.
    """

    def __init__(self, directory, config):
        self.directory = directory
        self.config = config
        self.task = config.task()
        self.retried = []
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
        except OSError:  # it names the file
            raise
        except Exception as error:  # Optuna raises many types of errors
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
        start = search_space.start_trials(self.task.ranges, self.config.settings)
        if self.config.sampler == "random":
            sampler, start = optuna.samplers.RandomSampler(seed=seed), start[:1]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            fixed = start[index] if index < len(start) else {}
            return optuna.samplers.PartialFixedSampler(fixed, sampler)

    def finished(self):
        """Returns the list of finished trials, in the order of their indices."""
        trials = self.study.get_trials(deepcopy=False)
        return sorted(filter(_is_finished, trials), key=self.index)

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
        sign = 1 if self.config.minimize else -1
        return sorted(complete, key=lambda trial: sign * trial.value)

    def best(self):
        """Returns the best trial, or `None` if no trial is complete.

        Of confirmed trials, it is the one with the best mean over all trainings.
        """
        trials = self.ranked()
        confirmed = [x for x in trials if self.confirmed(x) is not None]
        sign = 1 if self.config.minimize else -1
        if confirmed:
            return min(confirmed, key=lambda trial: sign * self.confirmed(trial))
        return trials[0] if trials else None

    def confirm(self, notify):
        """Trains the best trials with further seeds, unless they are confirmed already.

        The value of the best of many trials is better than its settings are, because it
        was selected. The further trainings were not.

        Args:
            notify: Function that is called with the index of each confirmed trial.
        """
        for trial in self.unconfirmed():
            key = _CONFIRMED.format(self.index(trial))
            settings = self.settings(trial)
            try:
                values = tuning_trial.confirm(self.task, settings, self.config.confirm)
            except tuning_trial.FAILURES as error:  # these settings do not always train
                values = _failure(error)
            else:
                if not all(map(math.isfinite, values)):
                    values = f"a value is not finite: {values}"
            self.study.set_user_attr(key, values)
            notify(self.index(trial))

    def unconfirmed(self):
        """Returns the list of the trials that `confirm` trains."""
        best = self.ranked()[: NUM_FINALISTS if self.config.confirm else 0]
        stored = self.study.user_attrs
        return [x for x in best if _CONFIRMED.format(self.index(x)) not in stored]

    def confirmed(self, trial):
        """Returns the mean value of a trial over all its trainings, or `None`.

        The mean is `None` before `confirm`, and if a training of `confirm` has failed.
        """
        values = self._confirmation(trial)
        if not isinstance(values, list):
            return None
        values = [*values, *(x["value"] for x in trial.user_attrs["trainings"])]
        return sum(values) / len(values)

    def confirmation_error(self, trial):
        """Returns why a training of `confirm` has failed, a string, or `None`."""
        values = self._confirmation(trial)
        return values if isinstance(values, str) else None

    def _confirmation(self, trial):
        """Returns the values of `confirm` for a trial, or its error, or `None`."""
        return self.study.user_attrs.get(_CONFIRMED.format(self.index(trial)))

    def settings(self, trial):
        """Returns the settings of a trial, with which `runs.train` trains."""
        fixed = optuna.trial.FixedTrial(trial.params)
        return search_space.suggest(self.task.ranges, self.config.settings, fixed)

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
            value = tuning_trial.run(self.task, trial, index)
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
        errors = [x.user_attrs.get(ERROR) for x in self.finished()]
        recent = errors[-_MAX_FAILURES:]
        if len(recent) == _MAX_FAILURES and None not in recent:
            raise ValueError(
                f"The last {_MAX_FAILURES} trials have failed. Correct the environment, "
                f"the settings or the ranges. The last error: {recent[-1]}"
            )


def _is_finished(trial):
    """Returns whether a trial is complete, pruned, or failed by itself."""
    is_ended = trial.state in (_STATES.COMPLETE, _STATES.PRUNED)
    return is_ended or trial.state == _STATES.FAIL and ERROR in trial.user_attrs


def _failure(error):
    return f"{type(error).__name__}: {str(error)[:1000]}"


def _pruner(config):
    if not config.prune:
        return optuna.pruners.NopPruner()
    return optuna.pruners.MedianPruner(
        n_startup_trials=_NUM_UNPRUNED,
        n_warmup_steps=config.settings["fit"]["steps"] // _WARMUP,
        n_min_trials=_NUM_UNPRUNED,
    )
