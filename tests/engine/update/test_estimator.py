"""Tests that the estimator follows the definition, and closed forms of its parts."""

import itertools

import definitions
import keras
import numpy as np
import oracle
import pytest
import sweeps
import tensorflow as tf
from definitions import DEFAULTS
from definitions import OBSERVED
from definitions import A
from definitions import B
from definitions import T
from definitions import padded
from definitions import same_bits
from update_agents import close

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.engine.update import estimator
from tf_reinforce.settings import config


def rule_of(baseline=None, policy=None, head=None, **options):
    """Returns an estimator for two actions, with other options than the defaults."""
    return estimator.PolicyGradientEstimator(
        policy or definitions.network(),
        head or heads.Categorical(A),
        baselines.get(baseline),
        None,
        config.AgentOptions(**{**DEFAULTS, **options}),
    )


def value_model(dtype="float64", **options):
    layer = keras.layers.Dense(1, dtype=dtype, **options)
    return keras.Sequential([keras.Input((OBSERVED,), dtype=dtype), layer])


def constant(value):
    """Returns the baseline of a value model that predicts one number."""
    bias = keras.initializers.Constant(value)
    return baselines.Value(value_model(kernel_initializer="zeros", bias_initializer=bias))


RETURNS = [
    dict(gamma=gamma, returns=returns, discount_states=discount_states)
    for returns in ("to_go", "whole")
    for gamma, discount_states in ((1.0, False), (0.9, False), (0.9, True))
]
EXTRAS = [
    dict(scale_advantages="batch", entropy_coef=0.3),
    dict(mean_over="steps", on_truncation="drop"),
]
LAMBDAS = [
    dict(gae_lambda=gae_lambda, on_truncation=on_truncation, entropy_coef=0.2)
    for gae_lambda, on_truncation in (
        (0.0, "terminal"),
        (0.7, "bootstrap"),
        (1.0, "drop"),
        (1.0, "bootstrap"),
    )
]


def check(rule, episodes, tolerance, **options):
    """Asserts that the gradients, the loss and the batch equal a loop over steps."""
    rule.options = config.AgentOptions(**{**DEFAULTS, **options})
    truth = oracle.Oracle(rule)
    estimate = rule.gradients(episodes)
    expected, expected_critic = truth.gradients(episodes)
    found = [*estimate.gradients, estimate.metrics["loss"]]
    close(found, [*expected, truth.loss], tolerance)
    if expected_critic:
        close(estimate.baseline_step.gradients, expected_critic, tolerance)
    steps, count, _ = truth.steps(episodes)
    batch = estimate.batch
    places = [(step.time, step.episode) for step in steps]
    np.testing.assert_array_equal(batch.steps.indices, places)
    for name, attribute in (("returns", "return_"), ("advantages", "advantage")):
        numbers = np.array([getattr(step, attribute) for step in steps])
        close([getattr(batch, name)], [numbers], tolerance)
    divisor = len(steps) if rule.options.mean_over == "steps" else count
    assert int(batch.num_episodes) == count and float(batch.divisor) == divisor


@pytest.mark.parametrize(
    "dtype, tolerance", [sweeps.rare("float32", 1e-6), ("float64", 1e-12)]
)
@pytest.mark.parametrize("kind", [heads.Categorical, heads.Gaussian])
@pytest.mark.parametrize(
    "baseline", sweeps.some([None, "leave_one_out", "mean"], ["mean"])
)
def test_gradient_and_loss_equal_a_loop_over_steps(kind, baseline, dtype, tolerance):
    head = heads.Categorical(A) if kind is heads.Categorical else None
    head = head or definitions.gaussian(dtype)
    rule = rule_of(baseline, definitions.network(dtype), head)
    episodes = definitions.record(kind, dtype)
    returns = RETURNS if dtype == "float64" else RETURNS[::3]
    for kind_of_return, more in zip(returns, itertools.cycle(EXTRAS)):
        check(rule, episodes, tolerance, **kind_of_return, **more)


@pytest.mark.parametrize(
    "shared", [sweeps.rare(False), True], ids=["own model", "shared layers"]
)
def test_gradients_with_values_equal_a_loop_over_steps(shared):
    """GAE mixes returns and values; after a truncation, the last value follows."""
    policy = definitions.shared_network() if shared else definitions.network()
    model = None if shared else value_model()
    rule = rule_of(baselines.Value(model, loss_weight=0.7), policy)
    for options in LAMBDAS:
        check(rule, definitions.record(), 1e-12, **options)


def test_a_batch_without_steps_divides_by_one():
    episodes = definitions.record()._replace(terminated=np.zeros(B, bool))
    batch = rule_of(on_truncation="drop", mean_over="steps").batch(episodes)
    assert int(batch.num_episodes) == float(batch.divisor) == 1.0
    assert batch.returns.shape == (0,)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_log_probabilities_of_half_precision_outputs_are_in_float32(dtype):
    """In half precision, the log-probabilities would have a relative error of 1e-3."""
    x = keras.Input((OBSERVED,))
    policy = keras.Model(x, keras.layers.Dense(A, dtype=dtype)(x))
    rule, episodes = rule_of(policy=policy), definitions.record(dtype="float32")
    steps, _, _ = oracle.Oracle(rule).steps(episodes)
    loss = 0.0
    for e, t, _, advantage in steps:
        outputs = policy(episodes.observations[t, e][None])
        assert outputs.dtype.size == 2
        logits = np.asarray(tf.cast(outputs, tf.float64))[0]
        log_prob = logits[episodes.actions[t, e]] - np.log(np.exp(logits).sum())
        loss -= log_prob * advantage / B
    found = rule.gradients(episodes).metrics["policy_loss"]
    np.testing.assert_allclose(found, loss, rtol=1e-5)


def long_record(kind, dtype):
    """Returns 23 episodes with 97 rows: another order of summation changes bits."""
    rng, episodes = np.random.default_rng(1), definitions.record(kind, dtype)
    rows, columns = (rng.integers(n, size=m) for n, m in ((T, 98), (B, 23)))
    return episodes._replace(
        observations=episodes.observations[rows][:, columns],
        actions=episodes.actions[rows[:-1]][:, columns],
        rewards=rng.normal(size=(97, 23)),
        lengths=np.append(rng.integers(1, 97, size=22), 97).astype("int32"),
        terminated=rng.random(23) < 0.5,
    )


@pytest.mark.parametrize(
    "kind, dtype",
    [
        (heads.Categorical, "float32"),
        sweeps.rare(heads.Categorical, "float64"),
        sweeps.rare(heads.Gaussian, "float32"),
        (heads.Gaussian, "float64"),
    ],
)
def test_loss_and_gradient_do_not_depend_on_padding(kind, dtype):
    policy, episodes = definitions.network(dtype), long_record(kind, dtype)
    head = heads.Categorical(A) if kind is heads.Categorical else None
    head = head or definitions.gaussian(dtype)
    for baseline, scale in (("leave_one_out", None), ("mean", "batch")):
        options = dict(scale_advantages=scale, entropy_coef=0.1)
        rule = rule_of(baseline, policy, head, **options)
        results = [
            rule.gradients(padded(episodes, rows) if rows else episodes)
            for rows in (0, 1, 7, 64)
        ]
        arrays = [[*x.gradients, x.metrics["loss"]] for x in results]
        for other in arrays[1:]:
            same_bits(arrays[0], other)


@pytest.mark.parametrize("limit", [1, 5, 13])
def test_advantage_of_truncated_episode_is_zero_if_the_value_is_exact(limit):
    """An infinite episode with reward 1 has V = 1/(1-γ), for every time limit."""
    value = 1 / (1 - 0.9)
    episodes = tfr.Episodes(
        np.ones((limit + 1, B, OBSERVED)),
        np.zeros((limit, B), "int32"),
        np.ones((limit, B)),
        np.full(B, limit, "int32"),
        np.zeros(B, bool),
    )
    rule = rule_of(constant(value))
    batch = rule.batch(episodes)
    np.testing.assert_allclose(batch.returns, value, rtol=1e-12)
    np.testing.assert_allclose(batch.advantages, 0, rtol=1e-12, atol=1e-12)
    terminated = rule.batch(episodes._replace(terminated=np.ones(B, bool)))
    first = value * (1 - 0.9**limit)
    np.testing.assert_allclose(terminated.returns[:B], first, rtol=1e-12)


@pytest.mark.parametrize("scale", [None, "batch"])
@pytest.mark.parametrize("baseline", [None, "leave_one_out", "mean"])
def test_gradient_is_zero_if_all_rewards_are_zero(baseline, scale):
    episodes = definitions.record()._replace(rewards=np.zeros((T, B)))
    estimate = rule_of(baseline, scale_advantages=scale).gradients(episodes)
    assert not any(x.numpy().any() for x in estimate.gradients)


def test_logged_entropy_and_effective_sample_size_equal_definitions():
    """The size is (Σρ)² / (n Σρ²) of the probability ratios before clipping."""
    rule = rule_of("mean", ratio_clip=1.5)
    batch = rule.batch(definitions.record())
    actions = rule.distribution(batch)
    now, changes = actions.log_prob(batch.actions).numpy(), np.linspace(-3, 2, 20)

    def logs(log_probs):
        return rule.policy_gradients(batch, behavior_log_probs=log_probs)[1]

    np.testing.assert_allclose(logs(None)["entropy"], np.mean(actions.entropy()))
    ratios = np.exp(changes)
    size = ratios.sum() ** 2 / (20 * np.sum(ratios**2))
    found = logs(tf.constant(now - changes))["effective_sample_size"]
    np.testing.assert_allclose(found, size, rtol=1e-12)
    assert logs(None)["effective_sample_size"] == 1.0
    far = tf.constant(now - np.repeat([1000.0, 0.0], [5, 15]))
    np.testing.assert_allclose(logs(far)["effective_sample_size"], 5 / 20, rtol=1e-12)
