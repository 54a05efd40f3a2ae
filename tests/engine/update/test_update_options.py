"""Tests options of an update: repeatability, dropped episodes, value models, errors."""

import functools

import definitions
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys
from definitions import OBSERVED
from definitions import columns
from definitions import padded
from update_agents import GAMMA
from update_agents import A
from update_agents import N
from update_agents import close
from update_agents import complete
from update_agents import dense
from update_agents import drawn
from update_agents import everything
from update_agents import made
from update_agents import numbers
from update_agents import parts_of
from update_agents import record
from update_agents import step_of

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.engine import trainer as trainers
from tf_reinforce.engine.update import inspection


def are_identical(first, second):
    return all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))


def assign(variables, values):
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


# Repeatability


def test_update_depends_on_seed_and_number_of_the_update():
    agent = made("softmax", "float32", minibatch_size=6)
    episodes = record("softmax", "float32")
    variables = everything(agent)
    fresh, ends = numbers(variables), []
    for seed, update in ((0, 0), (0, 0), (1, 0), (0, 1)):
        assign(variables, fresh)
        agent.counters.assign([update, 0, 0])
        agent.update(episodes, seed=seed)
        ends.append(numbers(agent.policy_variables))
    assert are_identical(ends[0], ends[1])
    assert not any(are_identical(ends[i], ends[j]) for i, j in ((0, 2), (0, 3), (2, 3)))


def schedule():
    return keras.optimizers.schedules.PolynomialDecay(0.5, 4, 0.0)


def test_entropy_coef_schedule_uses_the_number_of_the_update():
    """The coefficients are 0.5, 0.375, …, 0.

    All gradient steps of update u use that of u.
    """
    agent, episodes = made(entropy_coef=schedule()), record()
    for update, coef in enumerate((0.5, 0.375, 0.25, 0.125, 0.0, 0.0)):
        agent.counters.assign([update, 0, 0])
        fixed = made(policy=agent.policy, entropy_coef=coef)
        close(agent.gradients(episodes)[0], fixed.gradients(episodes)[0])


# Dropped episodes


def without_truncated(episodes):
    """Returns the episodes without the truncated ones."""
    return columns(episodes, np.flatnonzero(episodes.terminated))


@pytest.mark.parametrize("minibatch_size", [sweeps.rare(None), 4])
def test_dropping_equals_an_update_without_the_truncated_episodes(minibatch_size):
    """Weights, value model and scales are equal.

    NaN rewards of truncated episodes and padding have no effect.
    """
    critic = baselines.Value(dense(1), keras.optimizers.SGD(0.1), minibatch_size=4)
    options = dict(minibatch_size=minibatch_size, scale_advantages="running")
    agent = made(baseline=critic, on_truncation="drop", scale_rewards=True, **options)
    variables, episodes = everything(agent), record()
    fresh = numbers(variables)
    agent.update(without_truncated(episodes))
    agent.update(without_truncated(episodes))
    expected = numbers(variables)
    rewards = np.where(episodes.terminated, episodes.rewards, np.nan)
    spoiled = episodes._replace(rewards=rewards)
    ends = []
    for some_episodes in (episodes, spoiled, padded(episodes, 5)):
        assign(variables, fresh)
        for _ in range(2):
            logs = agent.update(some_episodes)
        assert np.isfinite(
            [logs[k] for k in ("loss", "gradient_norm", "value_loss")]
        ).all()
        assert agent.counters.numpy().tolist() == [2, 10, 2 * N]
        ends.append(numbers(variables))
    assert are_identical(ends[0], ends[1]) and are_identical(ends[0], ends[2])
    counters = [v is agent.counters for v in variables].index(True)
    ends[0][counters] = expected[counters]
    close(ends[0], expected)
    assert not are_identical(expected, fresh)


def test_error_names_only_the_first_nonfinite_number():
    """Later nonfinite numbers are consequences of the first one."""
    agent = made()
    episodes = agent.trainer.check_episodes(record())
    episodes.observations[0, 0] = np.nan
    episodes.observations[0, 1] = np.inf
    episodes.rewards[0, 1] = np.nan
    message = inspection.explain_non_finite(agent.trainer.estimator, episodes)
    assert message.startswith("In episode 0, step 0, the observation is [nan")
    assert message.count("In episode") == 1


class NaNPaddingBaseline(baselines.Baseline):
    """Returns NaN in the padding, where a baseline may return any number."""

    def estimate(self, returns, valid, values):
        return tf.where(valid, tf.ones_like(returns), np.nan)


def test_baseline_values_in_the_padding_are_ignored():
    agent = made(baseline=NaNPaddingBaseline(), scale_advantages="batch")
    batch = agent.trainer.estimator.batch(agent.trainer.check_episodes(record()))
    assert np.mean(batch.advantages.numpy() ** 2) == pytest.approx(1)


@pytest.mark.parametrize("changed", ["optimizer", sweeps.rare("trainable")])
def test_update_uses_the_current_optimizer_and_trainable_flag_of_value(changed):
    agent = made(baseline=baselines.Value(dense(1), keras.optimizers.SGD(0.1)))
    agent.update(record())
    if changed == "optimizer":
        agent.baseline.optimizer = keras.optimizers.SGD(0.0)
    else:
        agent.baseline.model.trainable = False
    before = numbers(agent.baseline.model.variables)
    agent.update(record())
    assert are_identical(before, numbers(agent.baseline.model.variables))


def test_loss_of_a_half_precision_value_model_is_float32():
    """The sum of 2,000 squared returns near 100 overflows in float16."""
    critic = keras.Sequential([keras.layers.Dense(1, dtype="mixed_float16")])
    baseline = baselines.Value(critic)
    baseline.build((None, 2))
    targets = np.full(2000, 100.0)
    baseline_batch = baselines.BaselineBatch(
        np.ones((2000, 2), "float32"), targets, targets, 10
    )
    loss, gradients = baseline.gradients(baseline_batch)
    assert loss.dtype == tf.float32 and 9e5 < float(loss) < 1.1e6
    assert all(np.isfinite(gradient).all() for gradient in gradients)


def test_policy_and_value_model_that_share_weights_raise():
    """Keras could not load the saved file of such an agent."""
    trunk = keras.layers.Dense(3, dtype="float64")
    policy, critic = (
        keras.Sequential(
            [
                keras.Input((OBSERVED,), dtype="float64"),
                trunk,
                keras.layers.Dense(size, dtype="float64"),
            ]
        )
        for size in (A, 1)
    )
    with pytest.raises(ValueError, match="must not share weights.*in common.*one policy"):
        made(policy=policy, baseline=baselines.Value(critic))


class MeanPenalty(keras.layers.Layer):
    """Adds the mean of its inputs to the loss, which is NaN for an empty batch."""

    def call(self, x):
        self.add_loss(keras.ops.mean(x))
        return x


class RequiresRows(keras.layers.Layer):
    """Raises for a batch without rows."""

    def call(self, x):
        with tf.control_dependencies([tf.debugging.assert_positive(tf.shape(x)[0])]):
            return tf.identity(x)


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"minibatch_size": 4, "passes": 2}], ids=str)
def test_models_are_never_called_with_an_empty_batch(options):
    models = [
        keras.Sequential([keras.Input((1,)), RequiresRows(), keras.layers.Dense(size)])
        for size in (2, 1)
    ]
    baseline = baselines.Value(models[1], keras.optimizers.SGD(0.1))
    agent = tfr.Reinforce(models[0], baseline=baseline, on_truncation="drop", **options)
    agent.compile(keras.optimizers.SGD(0.1))
    limit = dict(epochs=1, episodes_per_epoch=2, max_episode_steps=2, verbose=0)
    assert agent.fit(toys.Clock, **limit).history["loss"] == [0.0]


@pytest.mark.parametrize(
    "options", [sweeps.rare({}), {"minibatch_size": 4, "passes": 2}], ids=str
)
def test_update_of_dropped_episodes_changes_only_counters_and_normalizer(options):
    optimizer = keras.optimizers.Adam(0.1, weight_decay=0.1)
    inside = keras.layers.Dense(A)
    policy = keras.Sequential([keras.Input((OBSERVED,)), MeanPenalty(), inside])
    agent = complete(optimizer, policy, on_truncation="drop", **options)
    episodes = record("gaussian", "float32")
    agent.update(episodes)
    variables = everything(agent)
    before = numbers(variables)
    episodes = episodes._replace(
        terminated=np.zeros(5, bool), observations=episodes.observations + 1
    )
    logs = agent.update(padded(episodes, 3))
    changed = {
        variable.path.split("/")[-2].rstrip("_0123456789")
        for variable, old in zip(variables, before, strict=True)
        if not np.array_equal(variable.numpy(), old)
    }
    assert changed == {"reinforce", "running_normalization"}
    assert agent.counters.numpy().tolist() == [2, 10, 40]
    losses = [logs[k] for k in ("loss", "policy_loss", "gradient_norm")]
    assert losses == [0.0, 0.0, 0.0]
    assert np.isnan([logs["entropy"], logs["effective_sample_size"]]).all()
    agent.update(record("gaussian", "float32"))
    assert all(np.isfinite(x).all() for x in numbers(variables))


@pytest.mark.slow
def test_nan_observation_of_dropped_episode_does_not_change_the_normalizer():
    agent = complete(keras.optimizers.SGD(0.1), on_truncation="drop")
    episodes = record("gaussian", "float32")
    observations = episodes.observations.copy()
    observations[0, 1] = np.nan
    assert not episodes.terminated[1]
    before = numbers(everything(agent))
    with pytest.raises(FloatingPointError, match="Update 0 would not be finite"):
        agent.update(episodes._replace(observations=observations))
    assert are_identical(before, numbers(everything(agent)))


# The value model, and long records


@pytest.mark.parametrize("size, epochs", [(6, 1), (6, 3), (7, 2), (50, 2), (None, 2)])
def test_value_minibatch_steps_equal_a_loop(size, epochs):
    """Each pass uses the given permutation.

    Sums are scaled by N / n, and divided by the episodes.
    """
    critic = baselines.Value(
        dense(1), keras.optimizers.SGD(1 / 16), passes=epochs, minibatch_size=size
    )
    critic.build((None, OBSERVED))
    rng, order = np.random.default_rng(0), drawn(1)[0]
    observations, targets = rng.normal(size=(N, OBSERVED)), rng.normal(size=N)
    kernel, bias = critic.model.get_weights()
    for part in parts_of(order, size) * epochs:
        x = observations[part]
        errors = (x @ kernel + bias)[:, 0] - targets[part]
        factor = N / len(part) / 5 / 16
        kernel = kernel - factor * x.T @ errors[:, None]
        bias = bias - factor * errors.sum()
    times = np.arange(N, dtype="int32")
    baseline_batch = baselines.BaselineBatch(
        observations, tf.constant(targets), times, 5, order
    )
    _, gradients = critic.gradients(baseline_batch)
    critic.apply_gradients(gradients, baseline_batch)
    close(critic.model.get_weights(), [kernel, bias])


@pytest.mark.parametrize("block", [3, 7, 50])
def test_sum_of_block_gradients_is_the_gradient_of_the_batch(block):
    """The loss contains policy, entropy and value terms, regularizers and losses of
    layers.
    """
    head = heads.Categorical(2, dtype="float64")
    dense = functools.partial(keras.layers.Dense, dtype="float64")
    inputs = keras.Input((OBSERVED,), dtype="float64")
    hidden = dense(3, "tanh", kernel_regularizer=keras.regularizers.L2(0.1))(inputs)
    hidden = MeanPenalty(dtype="float64")(hidden)
    ends = {"outputs": dense(2, name="outputs")(hidden), "values": dense(1)(hidden)}
    policy = keras.Model(inputs, ends)
    shared = baselines.Value(loss_weight=0.7)
    agent = tfr.Reinforce(policy, head, shared, gamma=GAMMA, entropy_coef=0.2)
    agent.compile(optimizer=keras.optimizers.SGD(1 / 16))
    agent.build((None, OBSERVED))
    estimator, episodes = (
        agent.trainer.estimator,
        agent.trainer.check_episodes(definitions.record()),
    )
    batch = estimator.batch(episodes)
    whole, logs = estimator.policy_gradients(batch)
    update = step_of(agent, microbatch_size=block)
    gradients, block_logs = update.gradients_by_microbatches(batch)
    close(gradients, whole)
    for name, expected in logs.items():
        close([block_logs[name]], [expected])
    assert logs["loss"] != logs["policy_loss"] and logs["value_loss"] > 0


class SumPenalty(keras.layers.Layer):
    def call(self, x):
        self.add_loss(keras.ops.sum(x**2))
        return x


def test_sum_that_a_layer_adds_is_that_of_all_steps_of_a_long_record(monkeypatch):
    """A long record is computed in blocks, but not if that changes the loss."""
    results = []
    for block in (7, 1000):
        monkeypatch.setattr(trainers, "_MICROBATCH", block)
        policy = keras.Sequential([*dense(A).layers, SumPenalty(dtype="float64")])
        agent = made(policy=policy)
        logs = agent.update(record())
        results.append([logs["loss"], *numbers(agent.weights)])
    assert are_identical(*results)
