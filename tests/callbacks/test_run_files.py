"""Tests validations in `fit`, and the best model and the log of a run."""

import csv
import math
import types

import keras
import numpy as np
import pytest

import tf_reinforce as tfr
from tf_reinforce.callbacks import run_files
from tf_reinforce.engine import learner_processes
from tf_reinforce.engine import loop
from tf_reinforce.engine import validation
from tf_reinforce.experiments import tuning_trial
from tf_reinforce.settings import config


def curve(updates_per_call, target):
    """Returns the validated updates and their returns."""
    env = tfr.envs.Bandit([0.0, 1.0])
    options = dict(learning_rate=0.1, steps_per_execution=updates_per_call)
    agent = tfr.Reinforce.for_env(env, hidden=(), **options)
    options = dict(validation_env=env, validation_freq=3, validation_episodes=50)
    options |= dict(validation_deterministic=False, episodes_per_epoch=4, verbose=0)
    stop = target and tfr.callbacks.StopAtReturn(target, monitor="val_episode_return")
    rows = []
    log = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: rows.append(
            (epoch, logs.get("val_episode_return"))
        )
    )
    agent.fit(env, epochs=8, callbacks=[log, *[stop] * bool(target)], **options)
    return rows


@pytest.mark.parametrize("target", [None, 0.9])
def test_validations_do_not_depend_on_the_updates_per_call(target):
    """A call of two updates ends at the third, the sixth, and each that may be the last.

    When the training episodes reach the target, the agent is validated at once.
    """
    expected = curve(1, target)
    assert curve(2, target) == expected
    due = {epoch for epoch, value in expected if value is not None}
    assert due == {2, 5} if target is None else due > {2}, expected


def test_validations_are_due_after_multiples_of_the_freq():
    """Also in a training that continues between two multiples."""
    calls = loop.CallbackList(
        None, learner_processes.get(None), [], config.FitOptions(epochs=9), 0
    )
    validator = types.SimpleNamespace(table={"every": 3})
    validator.is_due = lambda epoch: validation.Validation.is_due(validator, epoch)
    due = [epoch + calls.updates_until_due(epoch, 99, validator) for epoch in range(7)]
    assert due == [3, 3, 3, 6, 6, 6, 9]
    validator.table["every"] = [2, 7]
    due = [epoch + calls.updates_until_due(epoch, 9, validator) for epoch in range(8)]
    assert due == [2, 2, 7, 7, 7, 7, 7, 9]


def test_first_model_with_the_best_value_is_saved_also_after_a_resume():
    returns, saved, state = (
        [math.nan, -2.0, 3.0, 3.0, 1.0, None, 4.0, math.nan, 4.0],
        [],
        None,
    )
    for monitor, sign in (("val_episode_return", 1), ("loss", -1)):
        judged = []
        for update, value in enumerate(returns):
            best = run_files.BestModel(["missing", monitor], saved.append)
            if update:
                best.set_state(state)
            logs = {} if value is None else {monitor: sign * value}
            best.on_epoch_end(update, {**logs, "update": update})
            state = best.get_state()
            judged.append(state["judged_update"])
        assert [logs.pop("update") for logs in saved] == [0, 1, 2, 6]
        assert state["best_value"] == 4.0 and judged == [1, 2, 3, 4, 5, 5, 7, 8, 9]
        saved.clear()


def test_log_keeps_its_columns_and_has_those_of_later_validations(tmp_path):
    """A resumed run appends to the columns of its file."""
    path = tmp_path / "log.csv"
    log = run_files.RunLog(path, ("val_a", "info", "val_info", "val_other"))
    log.on_train_begin()
    log.on_epoch_end(0, {"b": 1.5, "a": 2})
    log.on_epoch_end(1, {"a": 3, "b": 2.5, "val_a": 4, "late": 1})
    again = run_files.RunLog(path)
    again.append = True
    again.on_train_begin()
    again.on_epoch_end(2, {"b": 0.0, "new": 1})
    rows = [*csv.reader(path.read_text().splitlines())]
    assert rows == [
        ["epoch", "a", "b", "info", "val_a", "val_info"],
        ["0", "2", "1.5", "nan", "nan", "nan"],
        ["1", "3", "2.5", "nan", "4", "nan"],
        ["2", "nan", "0.0", "nan", "nan", "nan"],
    ]


@pytest.mark.parametrize(
    "greedy, verbose, hints", [(300, 1, 1), (300, 0, 0), (376, 1, 0), (400, 1, 0)]
)
def test_greedy_actions_that_return_clearly_less_are_reported_once(
    greedy, verbose, hints, capsys
):
    """The sampled actions return 379 on average."""
    rng = np.random.default_rng(0)
    agent = types.SimpleNamespace(updates=1)
    given = dict(seed=0, validation_env=None, env="CartPole-v1", verbose=verbose)
    given |= dict(env_kwargs=None)
    table = {"every": 1, "episodes": 9, "deterministic": True, "max_episode_steps": None}
    options = config.FitOptions(epochs=1)

    def hints_of(count, at_end):
        validator = validation.Validation(agent, given, options, table)
        validator.play = lambda stream, number: {"episode_return": greedy + rng.normal()}
        for _ in range(count):
            validator.metrics({"episode_return": 379 + rng.normal()})
        if at_end:
            validator.compare()
        return capsys.readouterr().out

    printed = hints_of(30, True)
    assert printed.count("validation_deterministic=False") == hints
    assert ("sampled ones 378.7" in printed) == bool(hints)
    assert not hints_of(2, True) and not hints_of(9, False)
    assert hints_of(3, True).count("In the last 3 validations") == hints


def test_trial_of_a_search_needs_the_agent_of_each_update():
    trial = tuning_trial.TrialCallback(None, None, "CartPole-v1", {}, 0)
    calls = loop.CallbackList(
        None, learner_processes.get(None), [trial], config.FitOptions(epochs=9), 0
    )
    assert calls.updates_until_due(5, 9, None) == 1


class Collected(tfr.callbacks.EpisodeCallback):
    def on_episodes_collected(self, episodes, logs=None):
        pass


@pytest.mark.parametrize("callback", [Collected(), keras.callbacks.TensorBoard("x")])
def test_callbacks_of_the_chief_limit_the_calls_of_all_processes(callback):
    """Otherwise, the processes would make different numbers of updates, and wait."""
    other = types.SimpleNamespace(own_callbacks=lambda callbacks: [])
    calls = loop.CallbackList(None, other, [callback], config.FitOptions(epochs=9), 0)
    assert calls.updates_until_due(5, 9, None) == 1
