"""Tests that several learner replicas give the weights of one replica."""

import contextlib
import pathlib
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.training import learner_processes

PROGRAM = pathlib.Path(__file__).parents[2] / "stress" / "replicated_learners.py"


def run_program(*arguments):
    command = [sys.executable, str(PROGRAM), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=1800)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    ["value with minibatches and passes", "limited change", "recurrent", "one episode"],
)
def test_several_replicas_give_the_weights_of_one(name):
    result = run_program("--only", name)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.slow
def test_processes_name_a_killed_or_stopped_process_and_training_resumes():
    result = run_program("--only", "kill")
    assert result.returncode == 0, result.stdout + result.stderr


class Strategy:
    """A strategy of two processes, without TensorFlow's servers."""

    def __init__(self, number=1):
        cluster = {"worker": ["127.0.0.1:1", "127.0.0.1:2"]}
        self.cluster_resolver = types.SimpleNamespace(
            cluster_spec=lambda: tf.train.ClusterSpec(cluster),
            task_type="worker",
            task_id=number,
        )


def test_strategy_of_one_process_needs_no_coordination():
    processes = learner_processes.get(tf.distribute.get_strategy())
    assert isinstance(processes, learner_processes.SingleProcess)
    assert processes.is_chief and processes.own_callbacks(["any"]) == ["any"]


@pytest.mark.parametrize("number", [0, 1])
def test_only_the_chief_calls_callbacks_that_write_files(number, tmp_path):
    processes = learner_processes.get(Strategy(number))
    logger = keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))
    stopping = keras.callbacks.EarlyStopping()
    callbacks = processes.own_callbacks([logger, stopping])
    assert callbacks == ([logger, stopping] if number == 0 else [stopping])
    with pytest.raises(ValueError, match="BackupAndRestore"):
        processes.own_callbacks([keras.callbacks.BackupAndRestore(str(tmp_path))])


def test_error_of_a_collective_operation_names_the_lost_process(monkeypatch):
    """No process listens at port 1, so that process 0 counts as lost."""
    monkeypatch.setattr(learner_processes, "_LINGER_SECONDS", 0.0)
    processes = learner_processes.get(Strategy(1))
    lost = pytest.raises(
        learner_processes.LearnerLost, match=r"Process 0 \(127.0.0.1:1\)"
    )
    with lost, processes.explain_lost():
        raise tf.errors.UnavailableError(None, None, "Connection refused")


def test_other_errors_are_raised_unchanged(monkeypatch):
    monkeypatch.setattr(learner_processes, "_is_reachable", lambda host: True)
    processes = learner_processes.get(Strategy(1))
    with pytest.raises(tf.errors.InternalError), processes.explain_lost():
        raise tf.errors.InternalError(None, None, "a bug")


def agree(rows, monkeypatch, signal=0):
    """Returns whether a training ends, and its agent and record, for gathered rows."""
    processes = learner_processes.get(Strategy(1))
    monkeypatch.setattr(processes, "gather", lambda values: rows(values))
    agent = types.SimpleNamespace(stop_training=False)
    received = []
    record = types.SimpleNamespace(
        interrupted=False, signal=signal, interrupt=received.append
    )
    ends = processes.agree_on_end(agent, record, lambda agent: {"loss": 1.0})
    return ends, agent, received


def test_all_processes_end_when_one_callback_stops_the_training(monkeypatch):
    def rows(values):
        return np.array([[values[0], 1, 15], values])

    ends, agent, received = agree(rows, monkeypatch)
    assert ends and agent.stop_training and received == [15]


def test_processes_with_different_episodes_are_refused(monkeypatch):
    def rows(values):
        return np.array([[values[0] + 1, 0, 0], values])

    with pytest.raises(ValueError, match="Process 1 .* differs .* loss"):
        agree(rows, monkeypatch)


def test_context_without_processes_does_nothing():
    with learner_processes.SingleProcess().explain_lost() as value:
        assert value is None
    assert isinstance(
        learner_processes.SingleProcess().explain_lost(), contextlib.nullcontext
    )


REMOTE = "Connection refused, remote target /job:worker/replica:0/task:1"
UNHEALTHY = (
    "Collective ops is aborted by: Error reported from /job:worker/task:0: The following "
    "tasks are unhealthy (stopped sending heartbeats):\n/job:worker/replica:0/task:1"
)
OWN = "Unexpected heartbeat request from an already-in-error task: /job:worker/task:0"
NO_ANSWER = "Deadline Exceeded\n\nRPC: /tensorflow.CoordinationService/Heartbeat"


@pytest.mark.parametrize(
    "error, number, lost",
    [
        (tf.errors.UnavailableError(None, None, UNHEALTHY), 0, 1),
        (tf.errors.DeadlineExceededError(None, None, NO_ANSWER), 1, 0),
        (tf.errors.DeadlineExceededError(None, None, "a timeout"), 1, None),
        (tf.errors.InternalError(None, None, REMOTE), 0, 1),
        (tf.errors.AbortedError(None, None, OWN), 0, 0),
    ],
)
def test_stopped_process_is_named_although_it_accepts_connections(
    monkeypatch, error, number, lost
):
    monkeypatch.setattr(learner_processes, "_is_reachable", lambda host: True)
    assert learner_processes.get(Strategy(number))._lost(error) == lost


def test_process_that_was_stopped_names_itself(monkeypatch):
    monkeypatch.setattr(learner_processes, "_LINGER_SECONDS", 0.0)
    lost = pytest.raises(
        learner_processes.LearnerLost, match=r"Process 1 \(127.0.0.1:2\) .* did not resp"
    )
    with lost, learner_processes.get(Strategy(1)).explain_lost():
        raise tf.errors.AbortedError(None, None, OWN)


def test_process_that_does_not_answer_is_named_before_one_that_has_ended(monkeypatch):
    """Another process may already have ended, because process 0 did not answer."""
    monkeypatch.setattr(learner_processes, "_is_reachable", lambda host: False)
    error = tf.errors.DeadlineExceededError(None, None, NO_ANSWER)
    assert learner_processes.get(Strategy(1))._lost(error) == 0
