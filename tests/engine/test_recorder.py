"""Tests that an interrupted training continues to the same bits."""

import collections
import csv
import itertools
import logging
import os
import signal

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import toys

import tf_reinforce as tfr
from tf_reinforce import envs
from tf_reinforce.callbacks import diagnostics
from tf_reinforce.engine import agent_state
from tf_reinforce.engine import interruption
from tf_reinforce.support import locks

EPOCHS = 6
BATCH = {"episodes_per_epoch": 3, "max_episode_steps": 20, "verbose": 0}


class At(keras.callbacks.Callback):
    """Calls a function at the end of one epoch."""

    def __init__(self, epoch, function):
        super().__init__()
        self.epoch, self.function = epoch, function

    def on_epoch_end(self, epoch, logs=None):
        if epoch == self.epoch:
            self.function()


class Counter(keras.callbacks.Callback):
    """A callback of a user with a state of its own."""

    def on_train_begin(self, logs=None):
        self.epochs, self.total = [], np.zeros(2)

    def on_epoch_end(self, epoch, logs=None):
        self.epochs.append(epoch)
        self.total += logs["episode_return"]

    def get_state(self):
        return {"epochs": self.epochs, "total": self.total.copy()}

    def set_state(self, state):
        self.epochs, self.total = state["epochs"], np.array(state["total"])


class Attributes(keras.callbacks.Callback):
    """Has options that `on_train_begin` completes, and data of unusual types."""

    def __init__(self, path):
        super().__init__()
        self.path = self._path = path
        self.seen = {"lengths": collections.Counter()}

    def on_train_begin(self, logs=None):
        self.path = self._path = f"{self.path}.txt"
        self.last, self.half = collections.deque(maxlen=2), None
        self.returns = {"before": 0.0}
        self.same_returns = self.returns

    def on_epoch_end(self, epoch, logs=None):
        self.returns.pop("before", None)
        self.returns[epoch] = logs["episode_return"]
        self.last.append(epoch)
        self.seen["lengths"][int(logs["episode_length"])] += 1
        self.half = keras.ops.cast([epoch], "bfloat16").numpy()


@pytest.fixture(scope="module")
def trained():
    """Yields an agent, and a function that restores its state before training."""
    keras.utils.set_random_seed(0)
    value = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(1)])
    agent = tfr.Reinforce.for_env(
        "CartPole-v1",
        hidden=(4,),
        baseline=tfr.baselines.Value(value),
        normalize_observations=True,
        scale_rewards=True,
    )
    return agent, toys.rewinding(agent, gym.make("CartPole-v1"))


def values(agent):
    return [variable.numpy().tobytes() for variable in agent_state.variables(agent)]


calls = itertools.count()


def fit(agent, folder, *callbacks, **options):
    """Trains with callbacks that have a state; returns everything that must be equal.

    A path that was passed to a callback is that of this call, also at resume.
    """
    path = f"path {next(calls)}"
    attributes = Attributes(path)
    monitor = dict(monitor="episode_return", mode="max")
    logs = os.path.join(folder, "log.csv"), os.path.join(folder, "episodes.csv")
    counter, reports = Counter(), diagnostics.Diagnostics(every=2, verbose=0)
    csv_logger = keras.callbacks.CSVLogger(logs[0])
    callbacks = [
        keras.callbacks.ReduceLROnPlateau(patience=1, **monitor),
        keras.callbacks.EarlyStopping(patience=4, restore_best_weights=True, **monitor),
        csv_logger,
        tfr.callbacks.EpisodeLogger(logs[1]),
        counter,
        reports,
        attributes,
        *callbacks,
    ]
    try:
        history = agent.fit(
            "CartPole-v1", epochs=EPOCHS, callbacks=callbacks, **BATCH, **options
        )
    finally:
        if csv_logger.csv_file is not None:
            csv_logger.csv_file.close()  # Keras closes the file only without an error
    timed = ("steps_per_second",)
    rows = [read_csv(path, timed) for path in logs]
    history = {k: x for k, x in history.history.items() if k not in timed}
    assert attributes.path == attributes._path == f"{path}.txt"
    assert attributes.returns is attributes.same_returns
    totals = counter.epochs, counter.total.tolist(), attributes.returns
    totals = *totals, attributes.last, attributes.half.tolist(), attributes.seen
    shown = [rows, history, totals, reports.history, reports.findings]
    return repr(shown), values(agent)


def read_csv(path, left_out):
    with open(path) as file:
        rows = csv.DictReader(file)
        return [{k: x for k, x in row.items() if k not in left_out} for row in rows]


@pytest.fixture(scope="module")
def expected(trained, tmp_path_factory):
    agent, rewind = trained
    rewind()
    return fit(agent, tmp_path_factory.mktemp("expected"))


def resume(folder, **options):
    return tfr.Checkpoints(folder, every_updates=1, **options)


def fail():
    raise RuntimeError("the process ends")


@pytest.mark.parametrize("epoch", sweeps.some(range(EPOCHS), always=[2]))
def test_resumed_training_equals_a_training_without_interruption(
    trained, expected, tmp_path, epoch
):
    """Weights, optimizers, logs, history and callbacks are equal, to the bit."""
    agent, rewind = trained
    rewind()
    with pytest.raises(RuntimeError, match="the process ends"):
        fit(agent, tmp_path, At(epoch, fail), resume=resume(tmp_path))
    rewind()
    assert fit(agent, tmp_path, resume=resume(tmp_path)) == expected
    last = [f"{EPOCHS - 1:08d}", f"{EPOCHS:08d}"]
    assert sorted(os.listdir(tmp_path / "checkpoints")) == last
    # The training has ended, and repeating the call changes nothing.
    rewind()
    assert fit(agent, tmp_path, resume=os.fspath(tmp_path)) == expected


@pytest.mark.parametrize(
    "number, error, code",
    [
        (signal.SIGINT, KeyboardInterrupt, None),
        (signal.SIGTERM, interruption.Terminated, 143),
    ],
)
def test_signal_ends_training_after_the_update_and_a_checkpoint(
    trained, expected, tmp_path, number, error, code
):
    agent, rewind = trained
    rewind()
    handlers = [signal.getsignal(x) for x in interruption.SIGNALS]
    interrupt = At(1, lambda: signal.raise_signal(number))
    with pytest.raises(error) as raised:
        fit(agent, tmp_path, interrupt, resume=os.fspath(tmp_path))
    assert getattr(raised.value, "code", None) == code
    assert agent.updates == 2
    assert os.listdir(tmp_path / "checkpoints") == ["00000002"]
    assert [signal.getsignal(x) for x in interruption.SIGNALS] == handlers
    rewind()
    assert fit(agent, tmp_path, resume=os.fspath(tmp_path)) == expected


def test_second_training_is_refused_and_the_first_is_not_disturbed(
    trained, expected, tmp_path
):
    agent, rewind = trained
    rewind()
    folder, bandit = resume(tmp_path), envs.Bandit([0.0, 1.0])
    other = tfr.Reinforce.for_env(bandit, hidden=())

    def train_too():
        with pytest.raises(locks.FolderLocked, match=str(tmp_path)):
            other.fit(bandit, epochs=1, verbose=0, resume=folder)

    # After the first refusal, the folder is still in use.
    twice = At(1, train_too), At(2, train_too)
    assert fit(agent, tmp_path, *twice, resume=folder) == expected
    assert other.updates == 0


def test_training_that_a_callback_has_stopped_makes_no_further_update(
    trained, tmp_path, caplog, monkeypatch
):
    """Of TensorFlow's variables, those of what it prints change no result."""
    agent, rewind = trained
    rewind()

    def stop():
        agent.stop_training = True

    stopped = fit(agent, tmp_path, At(1, stop), resume=os.fspath(tmp_path))
    rewind()
    monkeypatch.setenv("TF_CPP_MIN_LOG_LEVEL", "1")
    monkeypatch.setenv("TF_OTHER", "1")
    with caplog.at_level(logging.WARNING, "tf_reinforce"):
        assert fit(agent, tmp_path, resume=os.fspath(tmp_path)) == stopped
    assert "another value of flags, TF_OTHER: 1 instead of None" in caplog.text
    assert "TF_CPP" not in caplog.text
    assert agent.updates == 2
    assert "A callback has ended this training after 2 epochs" in caplog.text


def test_interrupt_while_collecting_keeps_all_finished_updates(trained, tmp_path):
    """A terminal sends SIGINT also to the processes of environments, which then fail."""
    (agent, rewind), signals = trained, [signal.SIGINT]
    rewind()

    class Failing(tfr.callbacks.EpisodeCallback):
        def on_episodes_collected(self, episodes, logs=None):
            if logs["update"] == 2:
                for number in signals:
                    signal.raise_signal(number)
                raise RuntimeError("a process of an environment has ended")

    with pytest.raises(KeyboardInterrupt):
        fit(agent, tmp_path, Failing(), resume=os.fspath(tmp_path))
    assert os.listdir(tmp_path / "checkpoints") == ["00000002"]
    signals.clear()
    with pytest.raises(RuntimeError, match="a process of an environment has ended"):
        fit(agent, tmp_path, Failing(), resume=os.fspath(tmp_path))


@pytest.fixture
def interrupted(trained, tmp_path):
    """Yields an agent with its first weights, and a folder with two checkpoints."""
    agent, rewind = trained
    rewind()
    with pytest.raises(RuntimeError, match="the process ends"):
        fit(agent, tmp_path, At(2, fail), resume=resume(tmp_path))
    rewind()
    return agent, tmp_path


@pytest.mark.parametrize(
    "options, message",
    [
        ({"seed": 1}, "settings, seed. Expected, as in the checkpoint: 0"),
        ({"env_kwargs": {"sutton_barto_reward": True}}, "settings, env_kwargs"),
    ],
)
def test_checkpoint_of_another_training_is_refused(interrupted, options, message):
    agent, folder = interrupted
    before = values(agent), (folder / "log.csv").read_bytes()
    with pytest.raises(ValueError, match=message):
        fit(agent, folder, resume=resume(folder), **options)
    assert (values(agent), (folder / "log.csv").read_bytes()) == before


def test_checkpoint_of_another_optimizer_or_schedule_is_refused(tmp_path):
    """Only a constant learning rate may have changed: callbacks set it."""
    agent = tfr.Reinforce.for_env(toys.Bandit, hidden=())

    def train(rate=None, optimizer=keras.optimizers.SGD, **changes):
        schedule = dict(initial_learning_rate=0.1, decay_steps=4, decay_rate=0.5)
        decay = keras.optimizers.schedules.ExponentialDecay
        rate = rate or decay(**{**schedule, **changes.pop("schedule", {})})
        agent.compile(optimizer(rate, **changes))
        options = dict(epochs=1, episodes_per_epoch=2, verbose=0)
        agent.fit(toys.Bandit, resume=resume(tmp_path), **options)

    train()
    others = {"decay_rate": 0.2, "decay_steps": 5, "initial_learning_rate": 0.2}
    for change in (
        *({"schedule": {name: value}} for name, value in others.items()),
        *({"rate": 0.1}, {"clipnorm": 1.0}, {"optimizer": keras.optimizers.Lion}),
    ):
        with pytest.raises(ValueError, match="value of agent, (optimizer 0|weights)"):
            train(**change)
    train()


def test_lost_log_rows_are_an_error(interrupted):
    agent, folder = interrupted
    before = values(agent)
    os.truncate(folder / "episodes.csv", 40)
    with pytest.raises(ValueError, match="episodes.csv has lost rows: it has 40 bytes"):
        fit(agent, folder, resume=resume(folder))
    assert values(agent) == before


@pytest.mark.parametrize("name", ["log.csv", "episodes.csv"])
def test_linked_log_is_refused_without_a_checkpoint(trained, tmp_path, name):
    """Otherwise the training would empty the file before it writes rows."""
    agent, _ = trained
    (tmp_path / "run").mkdir()
    (tmp_path / "other").write_text("content")
    (tmp_path / "run" / name).symlink_to(tmp_path / "other")
    with pytest.raises(ValueError, match="symbolic link"):
        fit(agent, tmp_path / "run", resume=os.fspath(tmp_path / "run"))
    assert (tmp_path / "other").read_text() == "content"


def broken_states(state):
    """Yields states that no training has written."""
    progress, values = state["progress"], state["variables"]
    yield []
    yield {**state, "progress": {**progress, "epoch": "1"}}
    yield {**state, "progress": {**progress, "further": 1}}
    yield {**state, "callbacks": [{"name": "EarlyStopping 0"}]}
    yield {**state, "variables": values[1:]}
    yield {**state, "variables": [values[0].astype("float32"), *values[1:]]}


def test_invalid_state_is_refused_before_anything_changes(interrupted):
    agent, folder = interrupted
    checkpoint = tfr.Checkpoints(folder).newest()
    names = "format_version", "sha256", "arrays", "state"
    header = {k: x for k, x in checkpoint.header.items() if k not in names}
    for state in broken_states(checkpoint.state):
        tfr.Checkpoints(folder).write(9, header, state)
        before = values(agent), (folder / "log.csv").read_bytes()
        with pytest.raises(ValueError, match="its state is invalid"):
            fit(agent, folder, resume=resume(folder))
        assert (values(agent), (folder / "log.csv").read_bytes()) == before


def test_state_of_a_missing_callback_is_named_in_the_log(interrupted, caplog):
    agent, folder = interrupted
    with caplog.at_level(logging.WARNING, "tf_reinforce"):
        agent.fit("CartPole-v1", epochs=3, resume=resume(folder), **BATCH)
    assert "EarlyStopping 0" in caplog.text and "Counter 0" in caplog.text


@pytest.mark.parametrize(
    "make, error, message",
    [
        (
            lambda: keras.callbacks.BackupAndRestore("folder"),
            ValueError,
            "both restore a training",
        ),
        *(
            (
                lambda name=name: type("Half", (At,), {name: print})(0, fail),
                TypeError,
                f"callback Half, which only has `{name}`",
            )
            for name in ("get_state", "set_state")
        ),
    ],
)
def test_callback_that_cannot_be_resumed_is_refused_before_training(
    trained, tmp_path, make, error, message
):
    agent, _ = trained
    with pytest.raises(error, match=message):
        fit(agent, tmp_path, make(), resume=resume(tmp_path))


def test_resume_must_not_be_a_file(trained, tmp_path):
    (tmp_path / "file").write_text("kept")
    with pytest.raises(NotADirectoryError, match="must be a folder. Received: a file"):
        trained[0].fit("CartPole-v1", epochs=1, resume=tmp_path / "file", verbose=0)
    assert (tmp_path / "file").read_text() == "kept"


@pytest.mark.slow
@pytest.mark.parametrize("budget", [{"epochs": EPOCHS}, {"steps": 150}])
def test_resumed_training_in_xla_equals_a_training_without_interruption(budget, tmp_path):
    env = envs.make("CartPole-v1")

    def train(folder, *callbacks, **options):
        agent = tfr.Reinforce.for_env(
            env, hidden=(4,), learning_rate=dict(first=0.1, last=0)
        )
        options = dict(episodes_per_epoch=3, verbose=0, **options)
        history = agent.fit(env, callbacks=list(callbacks), **budget, **options).history
        return values(agent), history["learning_rate"], history["episode_return"]

    with pytest.raises(RuntimeError):
        train(tmp_path, At(1, fail), resume=resume(tmp_path))
    assert train(tmp_path, resume=resume(tmp_path)) == train(tmp_path)
