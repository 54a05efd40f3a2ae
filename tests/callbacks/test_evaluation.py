"""Tests that each evaluation sees the agent of its update, for any number per call."""

import math
import types

import keras
import numpy as np
import pytest

import tf_reinforce as tfr
from tf_reinforce.callbacks import evaluation
from tf_reinforce.engine import learner_processes
from tf_reinforce.engine import loop
from tf_reinforce.experiments import tuning_trial
from tf_reinforce.settings import config


def curve(updates_per_call, target):
    """Returns the evaluations of a training, with NaN for epochs without evaluation."""
    env = tfr.envs.Bandit([0.0, 1.0])
    options = dict(learning_rate=0.1, steps_per_execution=updates_per_call)
    agent = tfr.Reinforce.for_env(env, hidden=(), **options)
    options = {"episodes": 50, "deterministic": False}
    callback = evaluation.EvaluationCallback(
        env, options, 0, None, every=3, target=target
    )
    options = dict(episodes_per_epoch=4, callbacks=[callback], verbose=0)
    return agent.fit(env, epochs=8, **options).history["val_episode_return"]


@pytest.mark.slow
@pytest.mark.parametrize("target", [None, 0.9])
def test_curve_does_not_depend_on_the_updates_per_call(target):
    expected = curve(1, target)
    # A call of two updates ends at the third and at the sixth.
    np.testing.assert_equal(curve(2, target), expected)
    assert len({x for x in expected if math.isfinite(x)}) > 1


def test_evaluations_are_due_after_multiples_of_every():
    """Also in a training that continues between two multiples."""
    evaluate = evaluation.EvaluationCallback(
        "CartPole-v1", {}, 0, None, every=3, target=None
    )
    due = [epoch + evaluate.updates_until_due(epoch) for epoch in range(7)]
    assert due == [3, 3, 3, 6, 6, 6, 9]
    # Each update may reach the target, and its agent is evaluated then.
    evaluate = evaluation.EvaluationCallback(
        "CartPole-v1", {}, 0, None, every=3, target=9.0
    )
    assert [evaluate.updates_until_due(epoch) for epoch in range(7)] == [1] * 7


def test_first_agent_with_the_best_return_is_saved_also_after_a_resume():
    returns, saved, state = [-2.0, 3.0, 3.0, 1.0, 3.0, 4.0, math.nan, 4.0], [], None
    for update, value in enumerate(returns):
        model = types.SimpleNamespace(
            updates=update,
            evaluate=lambda *_, value=value, **__: {"episode_return": value},
            save=lambda path, update=update: saved.append((path, update)),
        )
        callback = evaluation.EvaluationCallback(
            "CartPole-v1", {}, 0, "best.keras", every=1, target=None
        )
        callback.set_model(model)
        if state is not None:
            callback.set_state(state)
        callback.on_epoch_end(update, {})
        state = callback.get_state()
    assert saved == [("best.keras", update) for update in (0, 1, 5)]


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
