"""Tests options of an update: repeatability, dropped episodes, value models and
errors.
"""

import functools

import definitions
import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys
from definitions import DEFAULTS
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

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.data import minibatches
from tf_reinforce.engine import learner as learners
from tf_reinforce.engine.update import inspection
from tf_reinforce.engine.update import train_step


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


def learner(**settings):
    """Returns an agent with every option that has state or randomness."""
    policy = keras.Sequential([keras.Input((2,)), keras.layers.Dense(3)])
    agent = tfr.Reinforce(
        policy,
        baseline=settings.pop("baseline", "moving_average"),
        scale_rewards=True,
        scale_advantages="running",
        minibatch_size=9,
        passes=2,
        entropy_coef=schedule(),
        **settings,
    )
    agent.compile(optimizer=keras.optimizers.Adam(0.05))
    return agent


def fit(agent, epochs, num_envs=4, seed=5):
    options = dict(episodes_per_epoch=4, num_envs=num_envs, seed=seed, verbose=0)
    agent.fit(toys.Lengths, epochs=epochs, **options)


@pytest.mark.slow
def test_loaded_agent_continues_with_identical_updates(tmp_path):
    """The file contains the scales, the averages, the counters and the optimizer.

    The loaded agent uses another number of environments, which has no effect.
    """
    live = learner()
    fit(live, 2)
    live.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    assert are_identical(numbers(everything(live)), numbers(everything(loaded)))
    assert float(loaded.reward_scale.count) == float(loaded.advantage_scale.count) > 0
    weights = numbers(live.policy_variables)
    fit(live, 2)
    fit(loaded, 2, num_envs=1)
    assert are_identical(numbers(everything(live)), numbers(everything(loaded)))
    assert not are_identical(weights, numbers(live.policy_variables))


def test_update_options_are_restored_from_config():
    options = dict(
        scale_advantages="running",
        scale_rewards=True,
        on_truncation="drop",
        minibatch_size=7,
        passes=3,
        ratio_clip=1.5,
        max_kl=0.25,
    )
    agent = made(entropy_coef=schedule(), **options)
    restored = tfr.Reinforce.from_config(agent.get_config())
    assert {name: getattr(restored, name) for name in options} == options
    assert restored.entropy_coef.get_config() == schedule().get_config()
    assert made(entropy_coef=0.25).get_config()["entropy_coef"] == 0.25


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


@pytest.mark.parametrize("minibatch_size", [None, 4])
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


@pytest.mark.parametrize("baseline", ["leave_one_out", "mean", None])
def test_baseline_is_computed_without_the_dropped_episodes(baseline):
    agent = made(baseline=baselines.get(baseline), on_truncation="drop")
    batch = agent.trainer.estimator.batch(agent.trainer.check_episodes(record()))
    remaining = without_truncated(record())
    loop = definitions.loop_advantages(remaining, baseline, DEFAULTS)
    # The steps of a batch are ordered by row.
    expected = [x[t] for t in range(7) for x in loop if t < len(x)]
    np.testing.assert_allclose(batch.advantages, expected, rtol=1e-12, atol=1e-12)
    assert (float(batch.divisor), int(batch.num_episodes)) == (3, 3)


def test_truncated_episode_counts_as_terminated_or_is_bootstrapped():
    """With "terminal", the gradient is that of a record in which every episode
    terminated.
    """
    for baseline in (None, baselines.Value(dense(1))):
        agent, episodes = made(baseline=baseline), record()
        terminated = episodes._replace(terminated=np.ones_like(episodes.terminated))
        expected = agent.gradients(terminated)[0]
        bootstrapped = agent.gradients(episodes)[0]
        other = made(policy=agent.policy, baseline=baseline, on_truncation="terminal")
        close(other.gradients(episodes)[0], expected, 1e-15)
        assert np.array_equal(bootstrapped[0], expected[0]) == (baseline is None)


def test_nan_observation_error_names_dropped_episode_and_step():
    """The normalizer would include the NaN, although the policy learns nothing from
    the episode.
    """
    for terminated in (record().terminated, np.zeros_like(record().terminated)):
        agent = made(on_truncation="drop", normalize_observations=True)
        episodes = record()._replace(terminated=terminated)
        column = int(np.flatnonzero(~terminated)[0])
        episodes.observations[0, column, 0] = np.nan
        with pytest.raises(
            FloatingPointError, match=f"{column}, step 0, the observation"
        ):
            agent.update(episodes)


def test_error_names_only_the_first_nonfinite_number_and_variable():
    """Later nonfinite numbers are consequences of the first one."""
    agent = made()
    episodes = agent.trainer.check_episodes(record())
    episodes.observations[0, 0] = np.nan
    episodes.observations[0, 1] = np.inf
    episodes.rewards[0, 1] = np.nan
    message = inspection.explain_non_finite(agent.trainer.estimator, episodes)
    assert message.startswith("In episode 0, step 0, the observation is [nan")
    assert message.count("In episode") == message.count("The gradient of") == 1
    (first, *_) = agent.policy_variables
    assert message.endswith(f"The gradient of {first.path} is not finite.")


class NaNPaddingBaseline(baselines.Baseline):
    """Returns NaN in the padding, where a baseline may return any number."""

    def estimate(self, returns, valid, values):
        return tf.where(valid, tf.ones_like(returns), np.nan)


def test_baseline_values_in_the_padding_are_ignored():
    agent = made(baseline=NaNPaddingBaseline(), scale_advantages="batch")
    batch = agent.trainer.estimator.batch(agent.trainer.check_episodes(record()))
    assert np.mean(batch.advantages.numpy() ** 2) == pytest.approx(1)


@pytest.mark.parametrize("changed", ["optimizer", "trainable"])
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


class TruncatedImages(toys.Observing):
    """Returns images for five steps, and then truncates the episode."""

    def __init__(self):
        super().__init__(gym.spaces.Box(0, 255, (8, 8, 1), np.uint8))

    def step(self, action):
        observation, reward, ended, _, info = super().step(action)
        return observation, reward, False, ended, info


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [sweeps.rare({}), sweeps.rare({"minibatch_size": 4}), {"baseline": "value"}],
)
def test_update_of_convolutional_policy_without_steps_changes_nothing(options):
    """For an empty batch, the convolution of TensorFlow returns a wrong shape."""
    options = dict(on_truncation="drop", **options)
    agent = tfr.Reinforce.for_env(TruncatedImages, hidden=(4,), **options)
    before = numbers(agent.policy_variables)
    history = agent.fit(
        TruncatedImages, epochs=1, episodes_per_epoch=2, verbose=0
    ).history
    assert history["loss"] == history["gradient_norm"] == [0.0]
    for old, new in zip(before, numbers(agent.policy_variables), strict=True):
        np.testing.assert_array_equal(new, old)


class RequiresRows(keras.layers.Layer):
    """Raises for a batch without rows."""

    def call(self, x):
        with tf.control_dependencies([tf.debugging.assert_positive(tf.shape(x)[0])]):
            return tf.identity(x)


@pytest.mark.parametrize(
    "options", [sweeps.rare({}), {"minibatch_size": 4, "passes": 2}], ids=str
)
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


def test_call_on_rows_calls_the_function_with_at_least_one_row():
    row_counts = []

    def doubled(rows):
        row_counts.append(len(rows["x"]))
        return 2 * rows["x"], None

    for count in (0, 1, 3):
        rows = {"x": tf.range(2.0 * count)}
        results, nothing = minibatches.call_on_rows(doubled, rows)
        assert nothing is None
        np.testing.assert_array_equal(results, 2 * np.arange(2 * count))
    assert row_counts == [1, 2, 6]


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


class InfiniteGradient(keras.layers.Layer):
    """Returns its inputs, with an infinite gradient."""

    def call(self, inputs):
        @tf.custom_gradient
        def steep(x):
            return tf.identity(x), lambda slope: tf.fill(tf.shape(slope), np.inf)

        return steep(inputs)


def test_infinite_gradient_raises_although_the_optimizer_clips_it():
    episodes = record("softmax", "float32")
    policy = keras.Sequential(
        [keras.Input((OBSERVED,)), keras.layers.Dense(A), InfiniteGradient()]
    )
    agent = tfr.Reinforce(policy, heads.Categorical(A))
    agent.compile(keras.optimizers.SGD(0.1, clipvalue=1.0))
    agent.build((None, OBSERVED))
    before = numbers(everything(agent))
    with pytest.raises(FloatingPointError, match="Update 0 would not be finite"):
        agent.update(episodes)
    assert are_identical(before, numbers(everything(agent)))


def test_update_with_minibatches_does_not_depend_on_padding():
    agent = complete(keras.optimizers.Adam(0.1), minibatch_size=4, passes=2)
    episodes, variables = record("gaussian", "float32"), everything(agent)
    fresh, ends = numbers(variables), []
    for rows in (0, 64):
        assign(variables, fresh)
        for _ in range(2):
            agent.update(padded(episodes, rows) if rows else episodes)
        ends.append(numbers(variables))
    assert are_identical(ends[0], ends[1])
    assert not are_identical(ends[0], fresh)


# The value model


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


def test_policy_and_value_model_are_updated_independently():
    """Each model changes as if the learning rate of the other model were zero."""
    value_optimizer = keras.optimizers.SGD(0.1)
    critic = baselines.Value(
        dense(1, seed=4), value_optimizer, passes=2, minibatch_size=6
    )
    agent = made(baseline=critic, minibatch_size=6, passes=2)
    parts = [agent.policy_variables, critic.trainable_variables]
    fresh, ends = [numbers(part) for part in parts], []
    for rates in ((0.1, 0.1), (0.0, 0.1), (0.1, 0.0)):
        for part, start, optimizer, rate in zip(
            parts, fresh, (agent.optimizer, value_optimizer), rates, strict=True
        ):
            assign(part, start)
            optimizer.learning_rate.assign(rate)
        agent.counters.assign([0, 0, 0])
        agent.update(record())
        ends.append([numbers(part) for part in parts])
    both, critic_only, policy_only = ends
    assert are_identical(both[0], policy_only[0]) and are_identical(
        both[1], critic_only[1]
    )
    assert are_identical(critic_only[0], fresh[0]) and are_identical(
        policy_only[1], fresh[1]
    )
    assert not are_identical(both[0], fresh[0]) and not are_identical(both[1], fresh[1])


@pytest.mark.slow
def test_weighted_mean_of_minibatch_gradients_holds_for_shared_layers():
    """Σ n/N gᵢ = g for policy, entropy and value loss.

    The update equals a loop of these steps.
    """
    agent = tfr.Reinforce(
        definitions.shared_network(),
        heads.Categorical(2, dtype="float64"),
        baselines.Value(loss_weight=0.7),
        gamma=GAMMA,
        entropy_coef=0.2,
        minibatch_size=6,
        passes=2,
    )
    agent.compile(optimizer=keras.optimizers.SGD(1 / 16))
    agent.build((None, OBSERVED))
    estimator, episodes = (
        agent.trainer.estimator,
        agent.trainer.check_episodes(definitions.record()),
    )
    batch = estimator.batch(episodes)
    whole, permutations = estimator.policy_gradients(batch)[0], drawn(2)
    behavior_log_probs, total = (
        estimator.distribution(batch).log_prob(batch.actions),
        [0.0] * len(whole),
    )
    fresh = numbers(agent.policy_variables)
    for part in parts_of(permutations[0], 6):
        gradients, _ = estimator.policy_gradients(batch, part, behavior_log_probs)
        total = [s + len(part) / N * x for s, x in zip(total, gradients, strict=True)]
    close(total, whole)
    for part in [p for o in permutations for p in parts_of(o, 6)]:
        gradients, _ = estimator.policy_gradients(batch, part, behavior_log_probs)
        new_values = [
            v - x / 16 for v, x in zip(agent.policy_variables, gradients, strict=True)
        ]
        assign(agent.policy_variables, new_values)
    expected = numbers(agent.policy_variables)
    assign(agent.policy_variables, fresh)
    agent.update(episodes)
    close(numbers(agent.policy_variables), expected)


@pytest.mark.parametrize("dtype", ["bfloat16", "mixed_bfloat16", "float32"])
def test_gradients_by_blocks_work_for_every_dtype_and_frozen_policies(dtype):
    layers = [keras.layers.Dense(n, "tanh", dtype=dtype) for n in (4, 2)]
    policy = keras.Sequential([keras.Input((OBSERVED,)), *layers])
    policy.trainable = dtype != "float32"
    agent = tfr.Reinforce(policy, heads.Categorical(2), gamma=GAMMA)
    agent.compile(optimizer=keras.optimizers.SGD(1 / 16))
    agent.build((None, OBSERVED))
    episodes = agent.trainer.check_episodes(definitions.record(dtype="float32"))
    batch = agent.trainer.estimator.batch(episodes)
    update = train_step.TrainStep(
        agent.trainer.estimator, None, None, passes=1, microbatch_size=6
    )
    update.optimizer = agent.optimizer
    gradients, logs = update.gradients_by_microbatches(batch)
    whole, batch_logs = agent.trainer.estimator.policy_gradients(batch)
    tolerance = 1e-6 if dtype == "float32" else 0.1
    for actual, expected in zip(gradients, whole, strict=True):
        assert actual.dtype == expected.dtype
        np.testing.assert_allclose(
            np.array(actual, "float32"), np.array(expected, "float32"), atol=tolerance
        )
    np.testing.assert_allclose(float(logs["loss"]), float(batch_logs["loss"]), rtol=0.05)


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
    update = train_step.TrainStep(
        estimator, agent.optimizer, agent.counters, passes=1, microbatch_size=block
    )
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
        monkeypatch.setattr(learners, "_MICROBATCH", block)
        policy = keras.Sequential([*dense(A).layers, SumPenalty(dtype="float64")])
        agent = made(policy=policy)
        logs = agent.update(record())
        results.append([logs["loss"], *numbers(agent.weights)])
    assert are_identical(*results)


# Invalid options, permutations and blocks


@pytest.mark.parametrize(
    "setting, value, message",
    [
        ("minibatch_size", 0, "whole number of at least 1"),
        ("minibatch_size", 2.0, "whole number of at least 1"),
        ("minibatch_size", True, "whole number of at least 1"),
        ("passes", 0, "whole number of at least 1"),
        ("passes", None, "whole number of at least 1"),
        ("max_kl", -0.01, "finite number of at least 0"),
        ("max_kl", np.nan, "finite number of at least 0"),
        ("ratio_clip", 0.99, "finite number of at least 1"),
        ("ratio_clip", np.inf, "finite number of at least 1"),
        ("ratio_clip", np.nan, "finite number of at least 1"),
        ("ratio_clip", (0.2,), "pair of numbers"),
        ("ratio_clip", (1.2, 0.2), "pair of numbers"),
        ("ratio_clip", (0.2, -0.2), "pair of numbers"),
        ("on_truncation", "cut", "one of .'bootstrap', 'terminal', 'drop'."),
        ("on_truncation", None, "one of .'bootstrap', 'terminal', 'drop'."),
        ("scale_advantages", "std", "one of .None, 'batch', 'running'."),
        ("entropy_coef", "linear", "finite number of at least 0"),
    ],
)
def test_invalid_update_options_raise(setting, value, message):
    with pytest.raises(ValueError, match=f"`{setting}` must be.* {message}.*Received: "):
        tfr.Reinforce(dense(A), **{setting: value})


@pytest.mark.parametrize("seed, error", [(-1, ValueError), (1.0, TypeError)])
@pytest.mark.parametrize("passes", [1, 2])
def test_invalid_seed_raises_for_any_number_of_passes(passes, seed, error):
    agent = made(passes=passes)
    with pytest.raises(error, match="`seed` must"):
        agent.update(record(), seed)


def test_value_minibatch_size_without_model_or_below_one_raises():
    with pytest.raises(ValueError, match="minibatch_size=4"):
        baselines.Value(minibatch_size=4)
    with pytest.raises(ValueError, match="`minibatch_size` must be a whole number"):
        baselines.Value(dense(1), minibatch_size=0)


@pytest.mark.parametrize("options", [{}, {"minibatch_size": 4}], ids=["none", "one"])
def test_permutation_is_drawn_only_with_minibatches(options, monkeypatch):
    agent = made("softmax", "float32", baseline="moving_average", **options)
    permutations, apply_gradients = [], agent.baseline.apply_gradients

    def record_permutation(gradients, baseline_batch):
        permutations.append(baseline_batch.permutation)
        return apply_gradients(gradients, baseline_batch)

    monkeypatch.setattr(agent.baseline, "apply_gradients", record_permutation)
    agent.update(record("softmax", "float32"))
    assert [order is None for order in permutations] == [not options]


def test_gradients_by_blocks_passes_one_block_per_call(monkeypatch):
    agent = made("softmax", "float32")
    batch = agent.trainer.estimator.batch(
        agent.trainer.check_episodes(record("softmax", "float32"))
    )
    update = train_step.TrainStep(
        agent.trainer.estimator, agent.optimizer, None, passes=1, microbatch_size=6
    )
    gradients, parts = update.step_gradients, []

    def record_part(batch, *part):
        parts.append(len(part))
        return gradients(batch, *part)

    monkeypatch.setattr(update, "step_gradients", record_part)
    update.gradients_by_microbatches(batch)
    assert set(parts) == {1}


def test_saved_and_loaded_agent_keeps_both_limits_of_the_ratios(tmp_path):
    options = dict(ratio_clip=(0.0, 0.5), max_kl=1e-9, passes=3, minibatch_size=4)
    agent = made(**options)
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    assert loaded.trainer.estimator.options.ratio_clip == (0.0, 0.5)
    assert loaded.max_kl == 1e-9
    for each in (agent, loaded):
        each.update(record(), 1)
    for x, y in zip(agent.policy_variables, loaded.policy_variables, strict=True):
        np.testing.assert_array_equal(x, y)
