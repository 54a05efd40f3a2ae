"""Tests that several learner replicas give the weights of one replica."""

import importlib
import itertools
import pathlib
import pkgutil
import subprocess
import sys
import types

import keras
import numpy as np
import pytest
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce.callbacks import run_files
from tf_reinforce.engine import learner_processes
from tf_reinforce.engine import loop
from tf_reinforce.experiments import tuning_trial
from tf_reinforce.sampling import resumed_fit
from tf_reinforce.sequences import training
from tf_reinforce.settings import config

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
    """A strategy of several processes, without TensorFlow's servers.

    Process 0 is the first worker, or the task `chief` before the workers.
    """

    def __init__(self, number=1, count=2, has_chief=False):
        hosts = [f"127.0.0.1:{n + 1}" for n in range(count)]
        cluster, task = {"worker": hosts}, ("worker", number)
        if has_chief:
            cluster = {"chief": hosts[:1], "worker": hosts[1:]}
            task = ("worker", number - 1) if number else ("chief", 0)
        self.cluster_resolver = types.SimpleNamespace(
            cluster_spec=lambda: tf.train.ClusterSpec(cluster),
            task_type=task[0],
            task_id=task[1],
        )


def test_strategy_of_one_process_needs_no_coordination():
    processes = learner_processes.get(tf.distribute.get_strategy())
    assert isinstance(processes, learner_processes.SingleProcess)
    assert processes.is_chief and processes.own_callbacks(["any"]) == ["any"]


# Whether every process calls a callback, or the chief only: callbacks that write files or
# send logs. A callback that is in neither group is not tested, which fails a test.
EVERY_PROCESS = {
    *(keras.callbacks.Callback, keras.callbacks.CallbackList),
    *(keras.callbacks.EarlyStopping, keras.callbacks.History),
    *(keras.callbacks.LambdaCallback, keras.callbacks.LearningRateScheduler),
    *(keras.callbacks.ProgbarLogger, keras.callbacks.ReduceLROnPlateau),
    *(keras.callbacks.SwapEMAWeights, keras.callbacks.TerminateOnNaN),
    *(tfr.callbacks.EpisodeCallback, tfr.callbacks.StopAtReturn),
    *(run_files.BestModel, loop.CallbackList),
    *(tuning_trial.TrialCallback, resumed_fit.RecordedCallbacks, training.Means),
    training.Progress,
}
CHIEF_ONLY = {
    *(keras.callbacks.CSVLogger, keras.callbacks.ModelCheckpoint),
    *(keras.callbacks.OrbaxCheckpoint, keras.callbacks.RemoteMonitor),
    *(keras.callbacks.TensorBoard, tfr.callbacks.TensorBoardLogger),
    *(tfr.callbacks.Diagnostics, tfr.callbacks.EpisodeLogger),
    *(tfr.callbacks.ProgressLine, run_files.RunLog),
}


def all_callbacks():
    """Returns the callbacks of Keras and of all modules of the package."""
    for module in pkgutil.walk_packages(tfr.__path__, "tf_reinforce."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    names = [name for name in dir(keras.callbacks) if name[0].isupper()]
    classes = {getattr(keras.callbacks, name) for name in names}
    pending = [*classes]
    while pending:
        subclasses = pending.pop().__subclasses__()
        own = {x for x in subclasses if x.__module__.startswith("tf_reinforce.")}
        pending += own - classes
        classes |= own
    return classes - {keras.callbacks.BackupAndRestore}


def test_every_callback_is_called_by_the_chief_only_or_by_all():
    classes = all_callbacks()
    assert classes == EVERY_PROCESS | CHIEF_ONLY
    callbacks = [x.__new__(x) for x in sorted(classes, key=str)]
    callbacks += [type("Own", (x,), {}).__new__(x) for x in sorted(CHIEF_ONLY, key=str)]
    for number, has_chief in itertools.product((0, 1, 2), (False, True)):
        processes = learner_processes.get(Strategy(number, 3, has_chief))
        assert (processes.number, processes.is_chief) == (number, number == 0)
        received = processes.own_callbacks(callbacks)
        expected = [x for x in callbacks if not number or type(x) in EVERY_PROCESS]
        assert received == expected
        with pytest.raises(ValueError, match="BackupAndRestore"):
            backup = keras.callbacks.BackupAndRestore
            learner_processes.get(Strategy(number)).own_callbacks([backup("folder")])


@pytest.mark.parametrize("number", [0, 1])
def test_only_the_chief_writes_files_and_prints(number, tmp_path, monkeypatch, capsys):
    """The lock of the run directory is the only file of the other processes."""
    processes = learner_processes.get(Strategy(number))
    monkeypatch.setattr(learner_processes, "get", lambda strategy: processes)
    monkeypatch.setattr(processes, "gather", lambda values: np.array([values, values]))
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(2,), seed=0)
    agent._distribute_strategy = Strategy(number)
    options = dict(epochs=2, episodes_per_epoch=2, max_episode_steps=5, resume=tmp_path)
    options |= dict(validation_freq=1, validation_episodes=1, verbose=1 - number)
    history = agent.fit("CartPole-v1", **options).history
    assert len(history["val_episode_return"]) == 2
    assert bool(capsys.readouterr().out) == (number == 0)
    written = {path for path in tmp_path.rglob("*") if path.is_file()}
    names = {path.relative_to(tmp_path).parts[0] for path in written} - {".lock"}
    of_run = {"agent.keras", "checkpoints", "command.txt", "config.json"}
    of_run |= {"episodes.csv", "evaluation.json", "last.keras", "log.csv"}
    of_run |= {"versions.json"}
    assert names == (set() if number else of_run)


def test_all_processes_make_the_calls_of_the_smallest_limit():
    """The limit of a callback counts in processes that do not call it."""

    def due(limit, chief_only):
        callback = tfr.callbacks.EpisodeCallback()
        callback.updates_until_due = lambda epoch: limit - epoch % limit
        callback.chief_only = chief_only
        return callback

    kinds = [due(3, True), due(4, False), due(7, True), keras.callbacks.History()]
    for callbacks, number in itertools.product(itertools.permutations(kinds), range(2)):
        agent = types.SimpleNamespace(env_steps=0)
        processes = learner_processes.get(Strategy(number))
        calls = loop.CallbackList(
            agent, processes, list(callbacks), config.FitOptions(epochs=20), 0
        )
        limits = [calls.updates_until_due(epoch, 20, None) for epoch in range(9)]
        assert limits == [3, 2, 1, 1, 2, 1, 1, 1, 1]
    for callback in (
        keras.callbacks.EarlyStopping("loss"),
        keras.callbacks.LearningRateScheduler(lambda epoch: 0.1),
        keras.callbacks.ModelCheckpoint("best.keras"),
        keras.callbacks.ReduceLROnPlateau("loss"),
        keras.callbacks.SwapEMAWeights(),
        keras.callbacks.TensorBoard("logs"),
    ):
        calls = loop.CallbackList(
            agent, processes, [callback, kinds[1]], config.FitOptions(epochs=20), 0
        )
        assert calls.updates_until_due(0, 20, None) == 1, callback


def agreed(count, replicas, stops, signals, losses):
    """Returns `(stop_training, signal)` of each process, or its error."""
    rows = {}
    for _ in range(2):  # in the second round, the rows of all processes are known
        results = []
        for number in range(count):

            def gather(values, number=number):
                rows[number] = values
                return np.repeat([rows[n] for n in sorted(rows)], replicas, axis=0)

            facts = {"loss": losses[number], "weights": [np.ones(2), np.zeros(3)]}
            process = learner_processes.get(Strategy(number, count))
            process.gather = gather
            own = stops[number], signals[number], lambda facts=facts: facts
            try:
                results.append(process.agree_on_end(*own))
            except ValueError as error:
                results.append(str(error))
    return results


@pytest.mark.parametrize("count, replicas", [(2, 1), (2, 2), (3, 1), (3, 2)])
def test_processes_agree_on_the_end_for_every_order_of_ranks(count, replicas):
    """The stop or signal of any process ends all, also that of the last one."""
    ranks = itertools.product(
        itertools.product([False, True], repeat=count),
        itertools.product([0, 2, 15], repeat=count),
    )
    for stops, signals in ranks:
        expected = [(any(stops), max(signals))] * count
        assert agreed(count, replicas, stops, signals, [1.0] * count) == expected
    losses = [1.0] * (count - 1) + [1.0 + 2**-52]
    errors = agreed(count, replicas, [False] * count, [0] * count, losses)
    for number, error in enumerate(errors):
        assert f"Process {count - 1} (127.0.0.1:{count}) of" in error
        assert "differs from process 0 (127.0.0.1:1) in its loss, weights" in error
        assert f"in process {number}: " in error


@pytest.mark.parametrize(
    "message, is_loss",
    [
        ("Connection refused", True),
        ("remote target /job:worker/replica:0/task:0", True),
        ("RPC: /tensorflow.CoordinationService/Heartbeat", True),
        ("a bug", False),
    ],
)
def test_error_of_a_collective_operation_tells_that_a_process_is_lost(
    monkeypatch, message, is_loss
):
    """Other errors are raised unchanged."""
    monkeypatch.setattr(learner_processes, "_LINGER_SECONDS", 0.0)
    error = learner_processes.LearnerLost if is_loss else tf.errors.InternalError
    raises = pytest.raises(error, match=message)
    with raises, learner_processes.get(Strategy(1)).explain_lost():
        raise tf.errors.InternalError(None, None, message)


def small_policy():
    return keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])


def fake_strategy(kind=tf.distribute.MirroredStrategy, count=2):
    """Returns a strategy with several replicas that makes no variables."""

    class Strategy(kind):
        num_replicas_in_sync = count

        def __init__(self):
            pass

    return Strategy()


def variables_of(strategy):
    return [
        types.SimpleNamespace(value=types.SimpleNamespace(distribute_strategy=strategy))
    ]


def test_unsupported_strategies_are_refused():
    strategy = fake_strategy(tf.distribute.ParameterServerStrategy)
    expected = ", but only MirroredStrategy, MultiWorkerMirroredStrategy, "
    with pytest.raises(ValueError, match="Strategy" + expected):
        learner_processes.check_strategy(strategy)
    with tf.distribute.experimental.CentralStorageStrategy(["/cpu:0"]).scope():
        policy = small_policy()
        with pytest.raises(ValueError, match="CentralStorageStrategy" + expected):
            tfr.Reinforce(policy)


def test_parts_of_another_scope_are_refused():
    strategy = fake_strategy()
    learner_processes.check_same_scope(strategy, {"policy": variables_of(strategy)})
    learner_processes.check_same_scope(None, {"policy": variables_of(None)})
    learner_processes.check_same_scope(
        fake_strategy(count=1), {"policy": variables_of(None)}
    )
    for pair in ((strategy, None), (None, strategy)):
        with pytest.raises(ValueError, match="policy and the agent were not made in the"):
            learner_processes.check_same_scope(pair[0], {"policy": variables_of(pair[1])})


def test_training_in_the_scope_is_refused():
    """TensorFlow's error in the optimizer would name neither `fit` nor the scope."""
    with tf.distribute.MirroredStrategy(["/cpu:0"]).scope():
        agent = tfr.Reinforce(small_policy())
        agent.compile(keras.optimizers.Adam())
        with pytest.raises(
            RuntimeError, match="`fit` was called in the scope of a strat"
        ):
            agent.fit("CartPole-v1", epochs=1)
        with pytest.raises(RuntimeError, match="`update` .* after this block"):
            agent.update(None)


def test_learner_strategy_names_what_prevents_a_connection(monkeypatch):
    def refuse():
        raise tf.errors.UnknownError(None, None, "no server")

    cluster = '{"worker": ["127.0.0.1:1", "127.0.0.1:2"]}'
    task = '{"type": "worker", "index": 0}'
    monkeypatch.setenv("TF_CONFIG", f'{{"cluster": {cluster}, "task": {task}}}')
    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", refuse)
    with pytest.raises(OSError, match="each at an unused port .no server"):
        tfr.learner_strategy()
