"""Tests that callbacks of Keras work unchanged, with `mode` left at `"auto"`."""

import functools

import keras
import numpy as np
import pytest
import toys

import tf_reinforce as tfr

AVERAGED = dict(use_ema=True, ema_momentum=0.5)


def new_bandit(seed=0, **kwargs):
    agent = tfr.Reinforce.for_env(toys.Bandit, hidden=(), seed=seed)
    agent.compile(optimizer=keras.optimizers.Adam(0.1, **kwargs))
    return agent


@pytest.fixture(scope="module")
def fresh():
    """Returns an agent and its initial values. The agent is traced and converted once."""
    agent = new_bandit()
    agent.optimizer.build(agent.policy_variables)
    return agent, values_of(agent)


@pytest.fixture
def rewound(fresh):
    """Returns a function that gives the agent its initial values again."""
    agent, values = fresh

    def rewind():
        for variable, value in zip(variables(agent), values, strict=True):
            variable.assign(value)
        return agent

    return rewind


@pytest.fixture
def agent(rewound):
    """Returns the agent with its initial values."""
    return rewound()


def fit(agent, *callbacks, epochs=3, **options):
    options = {"episodes_per_epoch": 4, "verbose": 0, **options}
    return agent.fit(toys.Bandit, epochs=epochs, callbacks=callbacks, **options)


def variables(agent):
    return [*agent.variables, *agent.optimizer.variables]


def values_of(agent):
    return [np.array(v) for v in variables(agent)]


def are_identical(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


@pytest.mark.parametrize("monitor", ["gradient_norm", "val_value_loss"])
def test_automatic_mode_minimizes_losses_and_norms(agent, monitor):
    stops = keras.callbacks.EarlyStopping(monitor)
    fit(agent, SetsLog(monitor, [1.0]), stops, epochs=1)
    assert stops.best == 1 and stops.monitor_op(0, 1)


@pytest.mark.parametrize("freq", [{1, 3}, [1, 3], (1, 3)])
def test_validation_of_given_epochs_does_not_change_the_training(rewound, freq):
    agent = rewound()
    fit(agent, seed=1)
    expected = values_of(agent)
    options = dict(validation_env=toys.Bandit, validation_freq=freq)
    history = fit(rewound(), seed=1, validation_episodes=1, **options).history
    assert len(history["val_episode_return"]) == 2
    assert are_identical(values_of(agent), expected)


class SetsLog(keras.callbacks.Callback):
    """Writes given values to a key of the logs, before the callbacks after it read the
    logs.
    """

    def __init__(self, key, values):
        super().__init__()
        self.key = key
        self.values = values

    def on_epoch_end(self, epoch, logs):
        logs[self.key] = self.values[epoch]


class RecordsWeights(keras.callbacks.Callback):
    """Stores the weights of the policy at the end of each epoch."""

    def on_train_begin(self, logs=None):
        self.weights = []

    def on_epoch_end(self, epoch, logs):
        self.weights.append(self.model.policy.get_weights())


class InterruptsEpoch(keras.callbacks.Callback):
    """Raises KeyboardInterrupt at the begin of an epoch."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.at:
            raise KeyboardInterrupt


def test_model_checkpoint_saves_the_complete_best_agent(agent, tmp_path):
    path, recorder = str(tmp_path / "best.keras"), RecordsWeights()
    fit(
        agent,
        SetsLog("episode_return", [1.0, 3.0, 2.0]),
        recorder,
        keras.callbacks.ModelCheckpoint(
            path, monitor="episode_return", save_best_only=True
        ),
    )
    best = tfr.load(path)
    assert are_identical(best.policy.get_weights(), recorder.weights[1])
    assert not are_identical(recorder.weights[1], recorder.weights[2])
    assert best.updates == 2
    fit(best, epochs=1)


def test_stock_callbacks_log_and_stop_one_training(agent, tmp_path):
    """The return falls from the third epoch on, and the first weights that were best
    come back."""
    recorder, path = RecordsWeights(), tmp_path / "log.csv"
    stop = dict(patience=1, restore_best_weights=True)
    history = fit(
        agent,
        SetsLog("episode_return", [1.0, 3.0, 2.0, 4.0]),
        recorder,
        keras.callbacks.CSVLogger(path),
        keras.callbacks.TensorBoard(tmp_path / "board"),
        keras.callbacks.EarlyStopping("episode_return", **stop),
        epochs=4,
    ).history
    assert history["episode_return"] == [1.0, 3.0, 2.0]
    assert are_identical(agent.policy.get_weights(), recorder.weights[1])
    rows = path.read_text().splitlines()
    assert len(rows) == 4 and set(rows[0].split(",")) >= {"epoch", *history}
    assert list((tmp_path / "board").rglob("events*"))
    nan = SetsLog("loss", [np.nan] * 4)
    nan.on_train_batch_end = lambda batch, logs: logs.update(loss=np.nan)
    assert len(fit(agent, nan, keras.callbacks.TerminateOnNaN(), epochs=4).epoch) == 1


def test_interrupted_and_restored_run_equals_uninterrupted_run(rewound, tmp_path):
    """The new agent has other initial weights, so every value comes from the backup."""

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    agent, restored = rewound(), new_bandit(seed=1)
    fit(agent, epochs=5)
    expected = values_of(agent)
    with pytest.raises(KeyboardInterrupt):
        fit(rewound(), backup(), InterruptsEpoch(3), epochs=5)
    assert not are_identical(expected, values_of(agent))
    history = fit(restored, backup(), epochs=5)
    assert history.epoch == [3, 4]
    assert are_identical(expected, values_of(restored))


def test_lambda_callback_hooks_run_in_the_order_of_keras(agent):
    calls = []
    hooks = [
        "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end",
        "on_test_begin", "on_test_end", "on_epoch_end", "on_train_end",
    ]  # fmt: skip
    callback = keras.callbacks.LambdaCallback(
        **{hook: lambda *_, hook=hook, **__: calls.append(hook) for hook in hooks}
    )
    options = dict(validation_env=toys.Bandit, validation_freq=2, validation_episodes=1)
    fit(agent, callback, epochs=2, **options)
    quiet = [*hooks[1:4], hooks[6]]
    assert calls == [hooks[0], *quiet, *hooks[1:7], hooks[7]]


def test_fit_sets_averaged_weights_at_its_end_and_swap_ema_weights_at_each_epoch_end():
    """Keras calls `optimizer.finalize_variable_values` at the end of `fit` as well."""
    agent, recorder, raw = new_bandit(**AVERAGED), RecordsWeights(), []
    fit(agent, recorder, epochs=2)
    average = agent.policy.get_weights()
    for a, b, final in zip(*recorder.weights, average, strict=True):
        np.testing.assert_allclose((a + b) / 2, final, atol=1e-6)
    learned = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: raw.append(agent.policy.get_weights())
    )
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    fit(agent, swap, learned, recorder)
    for now, recorded in zip(raw, recorder.weights, strict=True):
        average = [(a + b) / 2 for a, b in zip(average, now, strict=True)]
        for a, b in zip(average, recorded, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
    assert are_identical(agent.policy.get_weights(), recorder.weights[-1])


def test_swap_ema_weights_with_a_budget_of_steps_raises():
    agent = new_bandit(use_ema=True)
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    with pytest.raises(ValueError, match="`epochs` instead of `steps`.*steps=9"):
        agent.fit(toys.Bandit, steps=9, callbacks=[swap], verbose=0)
    assert agent.updates == 0


class TruncatedBandit(toys.Bandit):
    """Truncates every episode after its step."""

    def step(self, action):
        observation, reward, terminated, _, info = super().step(action)
        return observation, reward, False, terminated, info


def test_ema_weights_are_not_applied_without_an_optimizer_step():
    """No step is made if all episodes are dropped or no epoch is left.

    The averages start at zero.
    """
    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    agent = tfr.Reinforce(policy, on_truncation="drop")
    agent.compile(keras.optimizers.SGD(0.1, **AVERAGED))
    agent.build_for_env(TruncatedBandit())
    before = policy.get_weights()
    agent.fit(TruncatedBandit, epochs=2, verbose=0)
    assert agent.updates == 2 and are_identical(policy.get_weights(), before)
    agent.fit(toys.Bandit, epochs=3, initial_epoch=2, verbose=0)
    learned = policy.get_weights()
    assert not np.array_equal(learned[0], before[0])
    policy.set_weights(before)
    agent.fit(toys.Bandit, epochs=2, initial_epoch=2, verbose=0)
    assert are_identical(policy.get_weights(), before)


def test_ema_does_not_change_a_frozen_layer():
    """The next layer has the same shape, and must not receive the average of the
    frozen layer.
    """
    layers = [keras.layers.Dense(2, "tanh") for _ in range(2)]
    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2), *layers])
    agent = tfr.Reinforce(policy)
    agent.compile(keras.optimizers.SGD(0.01, **AVERAGED))
    agent.fit(toys.Bandit, epochs=1, verbose=0)
    layers[0].trainable = False
    layers[0].kernel.assign(np.eye(2))
    before = layers[1].kernel.numpy()
    agent.fit(toys.Bandit, epochs=1, verbose=0)
    np.testing.assert_array_equal(layers[0].kernel, np.eye(2))
    assert 0 < np.abs(layers[1].kernel - before).max() < 0.1


def test_on_episode_end_runs_for_each_episode_before_on_train_batch_end(agent):
    calls = []

    class RecordsCalls(tfr.callbacks.EpisodeCallback):
        def on_episode_end(self, episode, logs=None):
            calls.append((episode, logs["update"], logs["episode_return"]))
            assert logs["terminated"] and logs["episode_length"] == 1

        def on_train_batch_end(self, batch, logs=None):
            calls.append(logs["episode_return"])

    fit(agent, RecordsCalls(), epochs=2, episodes_per_epoch=3)
    assert [x if isinstance(x, float) else x[:2] for x in calls] == [
        (0, 0), (1, 0), (2, 0), calls[3], (3, 1), (4, 1), (5, 1), calls[7],
    ]  # fmt: skip
    for batch in (calls[:4], calls[4:]):
        assert np.mean([x[2] for x in batch[:3]]) == pytest.approx(batch[3])


class AtMost(keras.callbacks.Callback):
    """Ends a training whose budget has no effect."""

    def __init__(self, updates):
        super().__init__()
        self.updates = updates

    def on_epoch_end(self, epoch, logs=None):
        self.model.stop_training |= epoch > self.updates


class InterruptsTrainEnd(keras.callbacks.Callback):
    """Raises KeyboardInterrupt at the end of training."""

    def on_train_end(self, logs=None):
        raise KeyboardInterrupt


def test_fit_after_a_restored_fit_starts_at_epoch_zero(rewound, tmp_path):
    backup = functools.partial(keras.callbacks.BackupAndRestore, tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        fit(rewound(), backup(), InterruptsEpoch(3), epochs=5)
    agent = rewound()
    fit(agent, backup(), epochs=5)
    assert agent.updates == 5
    fit(agent, epochs=2)
    assert agent.updates == 7


def test_restored_run_makes_no_update_if_its_steps_are_complete(rewound, tmp_path):
    """The interruption occurs before Keras deletes the backup of the last update."""
    backup = functools.partial(keras.callbacks.BackupAndRestore, tmp_path / "backup")
    budget = dict(epochs=None, steps=8)
    with pytest.raises(KeyboardInterrupt):
        fit(rewound(), InterruptsTrainEnd(), backup(), AtMost(8), **budget)
    agent = rewound()
    fit(agent, backup(), AtMost(8), **budget)
    assert agent.env_steps == 8
