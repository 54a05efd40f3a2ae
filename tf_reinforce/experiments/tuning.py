"""Searches settings of a training with Optuna, in a folder that contains all trials."""

import contextlib
import dataclasses
import json
import math
import os
import pathlib
from typing import Any

import optuna

from tf_reinforce import files
from tf_reinforce import locks
from tf_reinforce import version
from tf_reinforce.experiments import run_config
from tf_reinforce.experiments import search_space
from tf_reinforce.experiments import tuning_storage
from tf_reinforce.experiments import tuning_trial

JOURNAL = "journal.log"
_VERSIONS = "versions.json"
_NUM_RANDOM = 8  # trials before the sampler learns from earlier trials
_NUM_UNPRUNED = 4  # complete trials before the pruner ends trials
_WARMUP = 10  # no trial ends before this part of the budget of its first training
NUM_FINALISTS = 5  # trials that are trained with further seeds at the end
_CONFIRMED = "confirmed {}"  # attribute of the study with the values of a trial
# Attributes of the study with the config and the folder of the search.
_CONFIG, _FOLDER = "config", "folder"
_MAX_FAILURES = 5  # failed trials in a row that end the search
_STATES = optuna.trial.TrialState


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
        storage: String, see `tuning_storage.open_storage`, or `None` for a journal file
            in the folder of the search.
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
    storage: str | None = None

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

    Only one process at a time can open a search. Trials whose process has died are marked
    as failed, and their parameters are tried again.

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
        try:
            search = Search(directory, config)
        except ValueError:  # the storage contains another search
            if is_new:
                for name in (_VERSIONS, run_config.FILE_NAME):
                    (directory / name).unlink()
            raise
        with contextlib.closing(search):
            if is_new:
                search.study.set_user_attr("versions", versions)
            search.retried = search.retry_unfinished(by_signal=False)
            yield search


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


def _expect_same_study(study, config, directory):
    """Raises `ValueError` if a study belongs to a search with another config or folder.

    Searches in folders with equal names have studies with equal names. The folder of a
    search may have moved.
    """
    content, folder = config.content(), str(directory.resolve())
    del content["storage"]  # a relative path, or a path that has moved, is no difference
    stored = study.user_attrs.get(_CONFIG)
    if not isinstance(stored, dict):  # a new search
        study.set_user_attr(_CONFIG, stored := content)
    for key in content:
        if stored.get(key) != content[key]:
            name, expected, received = _difference(key, stored.get(key), content[key])
            raise ValueError(
                f"The storage {config.storage} contains a search with the name "
                f"{study.study_name!r} and another `{name}`. Expected: "
                f"{_shorten(expected)}. Received: {_shorten(received)}. The "
                "name is the environment and the name of the folder: choose a folder "
                "with another name, or another storage."
            )
    other = str(study.user_attrs.get(_FOLDER, folder))
    if other != folder and run_config.read(other):
        raise ValueError(
            f"The storage {config.storage} contains the search of the folder {other} "
            f"with the name {study.study_name!r}. The name is the environment and the "
            "name of the folder: choose a folder with another name, or another storage. "
            f"Received: {folder}"
        )
    if study.user_attrs.get(_FOLDER) != folder:
        study.set_user_attr(_FOLDER, folder)


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
        retried: List of the indices of the trials that are tried again, because their
            process has died.
    """

    def __init__(self, directory, config):
        self.directory = directory
        self.config = config
        self.task = config.task()
        self.retried = []
        # Optuna logs each trial; the command prints its own lines.
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = config.storage or str(directory / JOURNAL)
        tuning_storage.check(storage)
        with tuning_storage.explain_damage(storage):
            self._storage = tuning_storage.open_storage(storage)
            self.study = optuna.create_study(
                study_name=f"{config.env} {directory.resolve().name}",
                storage=self._storage,
                sampler=tuning_storage.SeededSampler(
                    self._sampler, config.seed, self._start_trials()
                ),
                pruner=_pruner(config),
                direction="minimize" if config.minimize else "maximize",
                load_if_exists=True,
            )
        try:
            _expect_same_study(self.study, config, directory)
            with tuning_storage.explain_damage(storage):
                self._check_trials()
        except ValueError:
            self.close()
            raise

    def _check_trials(self):
        """Raises an error if a finished trial lacks something that the results need."""
        for trial in self.finished():
            if tuning_storage.ERROR not in trial.user_attrs:
                self.settings(trial), self.confirmed(trial)
                for training in trial.user_attrs["trainings"]:
                    sum(training[x] for x in tuning_trial.NUMBERS)

    def close(self):
        """Closes the connections to the storage."""
        tuning_storage.close_storage(self._storage)

    def _start_trials(self):
        """Returns the parameters of the first trials; the others are drawn."""
        trials = search_space.start_trials(self.task.ranges, self.config.settings)
        return trials[:1] if self.config.sampler == "random" else trials

    def _sampler(self, seed):
        if self.config.sampler == "random":
            return optuna.samplers.RandomSampler(seed=seed)
        return optuna.samplers.TPESampler(seed=seed, n_startup_trials=_NUM_RANDOM)

    def finished(self):
        """Returns the list of finished trials, in the order of their indices."""
        return tuning_storage.finished(self.study)

    def index(self, trial):
        """Returns the index of a trial; a trial that is tried again keeps its index."""
        return tuning_storage.trial_index(self.study, trial)

    def retry_unfinished(self, by_signal, process=None):
        """Calls `tuning_storage.retry_unfinished` for the study."""
        names = [item.name for item in self.task.ranges]
        return tuning_storage.retry_unfinished(self.study, names, by_signal, process)

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

    def run_trial(self):
        """Trains one trial, stores its result, and returns the index of the trial.

        A training that fails is stored with its error as a failed trial.

        Raises:
            UnknownLogKey: If the log key of the objective does not exist.
        """
        trial = self.study.ask()
        index = self.index(trial)
        trial.set_user_attr(tuning_storage.PROCESS, os.getpid())
        trial.set_user_attr(tuning_storage.INDEX, index)
        try:
            value = tuning_trial.run(self.task, trial, index)
        except optuna.TrialPruned:
            self.study.tell(trial, state=_STATES.PRUNED)
        except tuning_trial.FAILURES as error:
            tuning_storage.fail(self.study, trial, _failure(error))
            if isinstance(error, tuning_trial.UnknownLogKey):
                raise
        else:
            if math.isfinite(value):
                self.study.tell(trial, value)
            else:
                message = f"the value of the trial is not finite: {value}"
                tuning_storage.fail(self.study, trial, message)
        return index

    def check_failures(self):
        """Raises `ValueError` if the last trials have all failed."""
        errors = [x.user_attrs.get(tuning_storage.ERROR) for x in self.finished()]
        recent = errors[-_MAX_FAILURES:]
        if len(recent) == _MAX_FAILURES and None not in recent:
            raise ValueError(
                f"The last {_MAX_FAILURES} trials have failed. Correct the environment, "
                f"the settings or the ranges. The last error: {recent[-1]}"
            )


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
