"""Keras' own callbacks work unchanged, with `mode` left at `"auto"`."""

import csv
import functools
import glob

import keras
import numpy as np
import pytest
import tensorflow as tf
import toys

import tf_reinforce as tfr


def new_bandit(seed=0, **kwargs):
    agent = tfr.Reinforce.for_env(toys.Bandit, hidden=(), seed=seed)
    agent.compile(optimizer=keras.optimizers.Adam(0.1, **kwargs))
    return agent


@pytest.fixture(scope="module")
def fresh():
    """One agent and the numbers it began with; traced and converted once."""
    agent = new_bandit()
    agent.optimizer.build(agent.policy_variables)
    return agent, numbers(agent)


@pytest.fixture
def agent(fresh):
    """The agent as it was before any test trained it."""
    agent, values = fresh
    for variable, value in zip(variables(agent), values, strict=True):
        variable.assign(value)
    return agent


def fit(agent, *callbacks, epochs=3, **options):
    options = {"episodes_per_epoch": 4, "verbose": 0, **options}
    return agent.fit(toys.Bandit, epochs=epochs, callbacks=callbacks, **options)


def variables(agent):
    return [*agent.variables, *agent.optimizer.variables]


def numbers(agent):
    return [np.array(v) for v in variables(agent)]


def same_bits(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


class Says(keras.callbacks.Callback):
    """Puts given numbers under a key of the logs, one per epoch, before others look."""

    def __init__(self, key, values):
        super().__init__()
        self.key = key
        self.values = values

    def on_epoch_end(self, epoch, logs):
        logs[self.key] = self.values[epoch]


class Remembers(keras.callbacks.Callback):
    """Keeps the policy's weights at the end of each epoch."""

    def on_train_begin(self, logs=None):
        self.weights = []

    def on_epoch_end(self, epoch, logs):
        self.weights.append(self.model.policy.get_weights())


class Interrupts(keras.callbacks.Callback):
    """What a user's Ctrl-C does when an epoch begins."""

    def __init__(self, at):
        super().__init__()
        self.at = at

    def on_epoch_begin(self, epoch, logs=None):
        if epoch == self.at:
            raise KeyboardInterrupt


def test_history_is_kept_and_returned(agent):
    history = fit(agent, epochs=3)
    assert isinstance(history, keras.callbacks.History) and history is agent.history
    assert history.epoch == [0, 1, 2]
    assert len(history.history["episode_return"]) == 3


def test_one_callback_needs_no_list(agent):
    """As in Keras."""
    stop = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: setattr(agent, "stop_training", True)
    )
    history = agent.fit(
        toys.Bandit, epochs=3, callbacks=stop, episodes_per_epoch=4, verbose=0
    )
    assert history.epoch == [0]


def test_csv_logger_writes_one_row_per_epoch(agent, tmp_path):
    path = tmp_path / "log.csv"
    history = fit(agent, keras.callbacks.CSVLogger(path)).history
    rows = list(csv.DictReader(path.read_text().splitlines()))
    assert {"epoch", *history} <= set(rows[0])
    assert [int(row["epoch"]) for row in rows] == [0, 1, 2]
    returns = [float(row["episode_return"]) for row in rows]
    assert returns == history["episode_return"]


def test_tensorboard_receives_every_log_key(agent, tmp_path):
    history = fit(agent, keras.callbacks.TensorBoard(tmp_path)).history
    found = {}
    for path in glob.glob(f"{tmp_path}/train/*"):
        for event in tf.compat.v1.train.summary_iterator(path):
            for value in event.summary.value:
                number = float(tf.make_ndarray(value.tensor))
                found.setdefault(value.tag, []).append(number)
    tags = {f"epoch_{key}" for key in history}
    assert tags <= set(found)
    np.testing.assert_allclose(found["epoch_entropy"], history["entropy"], rtol=1e-6)


def test_model_checkpoint_keeps_the_best_agent_whole(agent, tmp_path):
    path, seen = str(tmp_path / "best.keras"), Remembers()
    fit(
        agent,
        Says("episode_return", [1.0, 3.0, 2.0]),
        seen,
        keras.callbacks.ModelCheckpoint(
            path, monitor="episode_return", save_best_only=True
        ),
    )
    best = tfr.load(path)
    assert same_bits(best.policy.get_weights(), seen.weights[1])
    assert not same_bits(seen.weights[1], seen.weights[2])
    assert best.updates == 2
    fit(best, epochs=1)


def test_early_stopping_brings_back_the_best_weights(agent):
    seen = Remembers()
    history = fit(
        agent,
        Says("episode_return", [1.0, 5.0, 3.0, 2.0, 9.0]),
        seen,
        keras.callbacks.EarlyStopping(
            "episode_return", patience=2, restore_best_weights=True
        ),
        epochs=5,
    )
    assert history.epoch == [0, 1, 2, 3]
    assert same_bits(agent.policy.get_weights(), seen.weights[1])
    assert not same_bits(seen.weights[1], seen.weights[3])


@pytest.mark.parametrize(
    "key, values, rates",
    [
        ("episode_return", [1.0, 2.0, 3.0, 3.0], [0.1, 0.1, 0.1, 0.05]),
        ("episode_return_min", [1.0, 2.0, 3.0, 3.0], [0.1, 0.1, 0.1, 0.05]),
        ("success", [0.0, 0.5, 1.0, 1.0], [0.1, 0.1, 0.1, 0.05]),
        ("loss", [3.0, 2.0, 1.0, 1.0], [0.1, 0.1, 0.1, 0.05]),
        ("value_loss", [3.0, 2.0, 1.0, 1.0], [0.1, 0.1, 0.1, 0.05]),
    ],
)
def test_reduce_on_plateau_knows_which_way_is_up(agent, key, values, rates):
    """A rise of a return is no plateau, and neither is a fall of a loss."""
    seen = []
    plateau = keras.callbacks.ReduceLROnPlateau(key, factor=0.5, patience=1)
    watch = keras.callbacks.LambdaCallback(
        on_epoch_end=lambda epoch, logs: seen.append(float(agent.optimizer.learning_rate))
    )
    fit(agent, Says(key, values), plateau, watch, epochs=4)
    np.testing.assert_allclose(seen, rates, rtol=1e-6)


def test_monitors_of_validation_know_which_way_is_up(agent):
    stop = keras.callbacks.EarlyStopping("val_episode_return", patience=1)
    rising = Says("val_episode_return", [1.0, 2.0, 3.0, 3.0, 3.0])
    options = dict(validation_env=toys.Bandit, validation_episodes=1)
    history = fit(agent, rising, stop, epochs=5, **options)
    assert history.epoch == [0, 1, 2, 3]


def test_a_learning_rate_scheduler_is_obeyed(agent):
    schedule = keras.callbacks.LearningRateScheduler(lambda epoch, rate: 0.5**epoch)
    history = fit(agent, schedule).history
    np.testing.assert_allclose(history["learning_rate"], [1.0, 0.5, 0.25])


def test_terminate_on_nan_stops_at_a_loss_that_is_none(agent):
    """It looks at the end of each batch: an epoch is one."""

    class Spoils(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs):
            logs["loss"] = float("nan")

    history = fit(agent, Spoils(), keras.callbacks.TerminateOnNaN(), epochs=9)
    assert history.epoch == [0]


def test_a_run_that_is_interrupted_and_restored_ends_with_the_same_bits(tmp_path):
    """The second agent begins with other weights: all comes from the backup."""

    def backup():
        return keras.callbacks.BackupAndRestore(tmp_path / "backup")

    whole, first, second = new_bandit(), new_bandit(), new_bandit(seed=1)
    fit(whole, epochs=5)
    with pytest.raises(KeyboardInterrupt):
        fit(first, backup(), Interrupts(3), epochs=5)
    history = fit(second, backup(), epochs=5)
    assert history.epoch == [3, 4]
    assert same_bits(numbers(whole), numbers(second))
    assert not same_bits(numbers(whole), numbers(first))


def test_a_restored_run_spends_what_is_left_of_its_budget_of_steps(tmp_path):
    """The steps that were learned before the interruption count."""

    whole, first = new_bandit(), new_bandit()
    fit(whole, epochs=None, steps=16)
    backup = keras.callbacks.BackupAndRestore(tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        fit(first, backup, Interrupts(2), epochs=None, steps=16)
    again = new_bandit(seed=1)
    fit(again, backup, epochs=None, steps=16)
    assert whole.env_steps == 16
    assert same_bits(numbers(whole), numbers(again))


def test_a_lambda_callback_hears_epochs_and_batches_in_order(agent):
    heard = []
    hooks = [
        "on_train_begin", "on_epoch_begin", "on_train_batch_begin", "on_train_batch_end",
        "on_test_begin", "on_test_end", "on_epoch_end", "on_train_end",
    ]  # fmt: skip
    callback = keras.callbacks.LambdaCallback(
        **{hook: lambda *_, hook=hook, **__: heard.append(hook) for hook in hooks}
    )
    options = dict(validation_env=toys.Bandit, validation_freq=2, validation_episodes=1)
    fit(agent, callback, epochs=2, **options)
    quiet = [*hooks[1:4], hooks[6]]
    assert heard == [hooks[0], *quiet, *hooks[1:7], hooks[7]]


def test_averaged_weights_are_swapped_in_for_each_epoch_s_end():
    agent, seen, raw = new_bandit(use_ema=True, ema_momentum=0.5), Remembers(), []
    learned = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: raw.append(agent.policy.get_weights())
    )
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    fit(agent, swap, learned, seen)
    average = raw[0]
    for now, found in zip(raw, seen.weights, strict=True):
        average = [(a + b) / 2 for a, b in zip(average, now, strict=True)]
        for a, b in zip(average, found, strict=True):
            np.testing.assert_allclose(a, b, atol=1e-6)
    assert same_bits(agent.policy.get_weights(), seen.weights[-1])


def test_averaged_weights_are_those_that_fit_ends_with():
    """As in Keras' own `fit`, which calls `optimizer.finalize_variable_values`."""
    agent, seen = new_bandit(use_ema=True, ema_momentum=0.5), Remembers()
    fit(agent, seen, epochs=2)
    first, last = seen.weights
    for a, b, found in zip(first, last, agent.policy.get_weights(), strict=True):
        np.testing.assert_allclose((a + b) / 2, found, atol=1e-6)


def test_averages_that_need_the_last_epoch_take_epochs():
    agent = new_bandit(use_ema=True)
    swap = keras.callbacks.SwapEMAWeights(swap_on_epoch=True)
    with pytest.raises(ValueError, match="`epochs` instead of `steps`.*steps=9"):
        agent.fit(toys.Bandit, steps=9, callbacks=[swap], verbose=0)
    assert agent.updates == 0


AVERAGED = dict(use_ema=True, ema_momentum=0.5)


class Cut(toys.Bandit):
    """The clock ends every episode."""

    def step(self, action):
        seen, reward, over, _, info = super().step(action)
        return seen, reward, False, over, info


def test_without_a_step_there_is_no_average():
    """All episodes are dropped, or there is no epoch left; averages begin at zero."""
    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    agent = tfr.Reinforce(policy, on_truncation="drop")
    agent.compile(keras.optimizers.SGD(0.1, **AVERAGED))
    agent.build_for_env(Cut())
    before = policy.get_weights()
    agent.fit(Cut, epochs=2, verbose=0)
    assert agent.updates == 2 and same_bits(policy.get_weights(), before)
    agent.fit(toys.Bandit, epochs=3, initial_epoch=2, verbose=0)
    learned = policy.get_weights()
    assert not np.array_equal(learned[0], before[0])
    policy.set_weights(before)
    agent.fit(toys.Bandit, epochs=2, initial_epoch=2, verbose=0)
    assert same_bits(policy.get_weights(), before)


def test_a_layer_that_was_frozen_keeps_its_weights():
    """And the next one, of the same shape, does not get them."""
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


def test_keras_progress_bar_runs_beside_ours(agent, capsys):
    fit(agent, keras.callbacks.ProgbarLogger(), epochs=2, verbose=1)
    printed = capsys.readouterr().out
    assert "Epoch 1/2" in printed and "episode_return" in printed


def test_an_episode_callback_hears_each_episode_in_order_before_the_batch_ends(agent):
    heard = []

    class Listens(tfr.callbacks.EpisodeCallback):
        def on_episode_end(self, episode, logs=None):
            heard.append((episode, logs["update"], logs["episode_return"]))
            assert logs["terminated"] and logs["episode_length"] == 1

        def on_train_batch_end(self, batch, logs=None):
            heard.append(logs["episode_return"])

    fit(agent, Listens(), epochs=2, episodes_per_epoch=3)
    assert [x if isinstance(x, float) else x[:2] for x in heard] == [
        (0, 0), (1, 0), (2, 0), heard[3], (3, 1), (4, 1), (5, 1), heard[7],
    ]  # fmt: skip
    for batch in (heard[:4], heard[4:]):
        assert np.mean([x[2] for x in batch[:3]]) == pytest.approx(batch[3])


class EndsBadly(keras.callbacks.Callback):
    """A Ctrl-C when training has ended."""

    def on_train_end(self, logs=None):
        raise KeyboardInterrupt


def test_a_fit_after_a_restored_one_begins_with_its_first_epoch(tmp_path):
    backup = functools.partial(keras.callbacks.BackupAndRestore, tmp_path / "backup")
    with pytest.raises(KeyboardInterrupt):
        fit(new_bandit(), backup(), Interrupts(3), epochs=5)
    again = new_bandit()
    fit(again, backup(), epochs=5)
    assert again.updates == 5
    fit(again, epochs=2)
    assert again.updates == 7


def test_a_restored_run_makes_no_update_beyond_its_steps(tmp_path):
    """Interrupted before Keras removed the backup of the last update."""
    backup = functools.partial(keras.callbacks.BackupAndRestore, tmp_path / "backup")
    budget = dict(epochs=None, steps=8)
    with pytest.raises(KeyboardInterrupt):
        fit(new_bandit(), EndsBadly(), backup(), **budget)
    again = new_bandit()
    fit(again, backup(), **budget)
    assert again.env_steps == 8
