"""Tests that a search loses no finished trial, whatever interrupts it."""

import json
import os
import pathlib
import subprocess
import sys

import killed_searches
import optuna
import pytest
import sweeps

from tf_reinforce.experiments import tuning_storage

STATES = optuna.trial.TrialState
NAMES = killed_searches.NAMES


def random_study():
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))


@pytest.mark.parametrize(
    ("storage", "kills"),
    [
        ("journal.log", 5),
        sweeps.rare("journal.log", 200),
        sweeps.rare("sqlite:///study.db", 50),
    ],
)
def test_killed_processes_lose_no_finished_trial(storage, kills, tmp_path):
    """The trials equal those of a process that was not killed."""
    program = pathlib.Path(killed_searches.__file__)
    result = subprocess.run(
        [sys.executable, str(program), storage, str(kills), "0"],
        stdout=subprocess.PIPE,
        check=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    counts = json.loads(result.stdout)
    for name in ("lost", "twice", "unfinished", "unequal"):
        assert counts[name] == 0, counts
    assert counts["replaced"] > 0


def test_incomplete_line_of_a_journal_is_removed_before_the_next_line(tmp_path):
    """Without the removal, the journal could never be read again."""
    path = tmp_path / "journal.log"
    study = killed_searches.open_study(str(path))
    killed_searches.store_trials(study, 2)
    with open(path, "ab") as file:
        file.write(b'{"op_code": 4, "worker_')
    killed_searches.store_trials(study, 3)
    again = killed_searches.open_study(str(path))
    assert [x.value for x in again.trials] == [x.value for x in study.trials]
    assert len(again.trials) == 3


def test_running_trial_is_replaced_by_a_trial_with_its_parameters_and_index():
    study = random_study()
    killed_searches.store_trials(study, 1)
    trial = study.ask()
    parameters = trial.suggest_float("x", 0, 1), trial.suggest_int("y", 1, 100, log=True)
    assert tuning_storage.retry_unfinished(study, NAMES, by_signal=True) == [1]
    assert tuning_storage.retry_unfinished(study, NAMES, by_signal=True) == []
    assert [x.state for x in study.trials[1:]] == [STATES.FAIL, STATES.WAITING]
    again = study.ask()
    assert (
        again.suggest_float("x", 0, 1),
        again.suggest_int("y", 1, 100, log=True),
    ) == parameters
    assert tuning_storage.trial_index(study, again) == 1 and again.number == 2
    study.tell(again, 0.0)
    later = study.ask()
    assert tuning_storage.trial_index(study, later) == 2 and later.number == 3
    assert [x.number for x in tuning_storage.finished(study)] == [0, 2]


@pytest.mark.parametrize("processes", [[None], [0, 1], [1, 0]])
def test_trials_that_run_side_by_side_keep_their_indices(processes):
    """The processes die after Optuna has numbered the trials, without a stored index.

    number     0          1          2           3           4
    trial      complete   killed     killed      retry of 1  retry of 2
    index      0          1          2           1           2
    """
    study = random_study()
    study.tell(study.ask(), 1.0)
    trials = [study.ask() for _ in range(2)]
    for number, trial in enumerate(trials):
        trial.set_user_attr(tuning_storage.PROCESS, number)
    retried = [
        tuning_storage.retry_unfinished(study, NAMES, by_signal=False, process=process)
        for process in processes
    ]
    assert sorted(sum(retried, [])) == [1, 2]
    assert [tuning_storage.trial_index(study, study.ask()) for _ in range(3)][2] == 3
    indices = [x.user_attrs[tuning_storage.INDEX] for x in study.trials[3:5]]
    assert sorted(indices) == [1, 2]


def test_trial_is_replaced_once_if_the_replacement_was_interrupted(monkeypatch):
    """The first process ends after it has queued the parameters again."""
    study = random_study()
    study.ask().suggest_float("x", 0, 1)

    def interrupt(*_, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(study, "tell", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tuning_storage.retry_unfinished(study, NAMES, by_signal=True)
    assert tuning_storage.retry_unfinished(study, NAMES, by_signal=True) == [0]
    assert [x.state for x in study.trials] == [STATES.FAIL, STATES.WAITING]


def test_trials_of_one_process_only_are_replaced():
    study = random_study()
    for process in (11, 12):
        study.ask().set_user_attr(tuning_storage.PROCESS, process)
    assert tuning_storage.retry_unfinished(study, NAMES, False, process=12) == [1]
    assert [x.state for x in study.trials[:2]] == [STATES.RUNNING, STATES.FAIL]


def test_trial_whose_process_dies_again_and_again_counts_as_failed():
    study, deaths = random_study(), tuning_storage.MAX_DEATHS
    for _ in range(deaths + 1):
        assert not tuning_storage.finished(study)
        study.ask()
        tuning_storage.retry_unfinished(study, NAMES, by_signal=False)
    [failed] = tuning_storage.finished(study)
    message = failed.user_attrs[tuning_storage.ERROR]
    assert message == f"the process of the trial has died {deaths + 1} times"
    assert all(x.state.is_finished() for x in study.trials)


def test_interruptions_by_the_user_are_not_counted():
    study = random_study()
    for _ in range(tuning_storage.MAX_DEATHS + 2):
        study.ask()
        tuning_storage.retry_unfinished(study, NAMES, by_signal=True)
    assert study.ask().user_attrs[tuning_storage.DEATHS] == 0


def test_settings_of_the_first_trial_are_tried_again():
    sampler = tuning_storage.SeededSampler(
        lambda seed: optuna.samplers.RandomSampler(seed=seed), 0, [{"x": 0.25, "y": 7}]
    )
    study = optuna.create_study(sampler=sampler)
    study.ask()
    tuning_storage.retry_unfinished(study, NAMES, by_signal=False)
    assert study.ask().suggest_float("x", 0, 1) == 0.25
    assert study.ask().suggest_float("x", 0, 1) != 0.25


@pytest.mark.parametrize("storage", ["", "mysql://host/db", "postgresql+x://h/db"])
def test_other_storages_are_refused(storage):
    with pytest.raises(ValueError, match="sqlite:///FILE.db"):
        tuning_storage.check(storage)


def test_files_are_storages():
    for storage in ("sqlite:///a.db", "a/b.log", "C:log"):
        tuning_storage.check(storage)


@pytest.mark.parametrize("prefix", ["", sweeps.rare("sqlite:///")])
def test_file_of_the_user_is_refused_and_files_of_a_search_are_accepted(prefix, tmp_path):
    path = tmp_path / "file"
    storage = prefix + str(path)
    path.write_text("text of the user")
    with pytest.raises(ValueError, match="another file"):
        tuning_storage.check(storage)
    assert path.read_text() == "text of the user"
    path.unlink()
    killed_searches.store_trials(killed_searches.open_study(storage), 1)
    tuning_storage.check(storage)
    path.write_text("")
    tuning_storage.check(storage)
