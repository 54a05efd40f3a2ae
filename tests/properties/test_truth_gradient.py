"""Tests that the expected update is the gradient, by enumeration of all episodes."""

import functools
import itertools

import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toy_heads
from proofs import bias_and_cosine
from proofs import critic
from proofs import documented
from proofs import settings_of

from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce import testing
from tf_reinforce.testing import expectations
from tf_reinforce.testing import gradients

UNBIASED = [
    dict(gamma=1.0, discount_states=False),
    dict(gamma=1.0, discount_states=True),
    dict(gamma=1.0, returns="whole"),
    dict(gamma=0.9, discount_states=True),
    dict(gamma=0.9, returns="whole"),
    dict(gamma=0.5, discount_states=True),
    dict(gamma=0.5, returns="whole", discount_states=False),
]
BASELINES = [None, "leave_one_out", "value"]


@functools.cache
def enumeration(baseline="leave_one_out", horizon=3, seed=0, **settings):
    """Returns one traced agent for every batch size."""
    baseline = critic() if baseline == "value" else baseline
    return gradients._Enumeration(None, baseline, seed, settings, horizon)


def named(settings):
    return "-".join(f"{key}={value}" for key, value in settings.items())


# Unbiased estimators


AGENTS = list(itertools.product(UNBIASED, BASELINES))
# The default suite runs every fourth agent.
OFTEN = [(*agent, size) for agent in AGENTS[::4] for size in (1, 2)]


@pytest.mark.parametrize(
    "settings, baseline, batch_size",
    sweeps.some(((*agent, size) for agent in AGENTS for size in (1, 2, 3)), OFTEN),
    ids=lambda value: named(value) if isinstance(value, dict) else None,
)
def test_expected_update_is_the_gradient(settings, baseline, batch_size):
    task = enumeration(baseline, **settings)
    report = task.check(batch_size, tolerance=None)
    assert report.error <= 1e-9
    assert report.cosine == pytest.approx(1, abs=1e-12)
    assert np.abs(report.exact).max() > 0.1


class Cautious(baselines.Baseline):
    """The baseline is the return of the previous episode of the batch."""

    def estimate(self, returns, valid, values):
        return tf.where(valid, tf.roll(returns, 1, axis=1), 0.0)


@pytest.mark.parametrize(
    "baseline, options",
    [
        sweeps.rare(baselines.Value, {}),
        sweeps.rare(baselines.Value, {"normalize_observations": True}),
        (Cautious, {}),
        sweeps.rare(Cautious, {"returns": "whole"}),
    ],
)
def test_baseline_independent_of_the_return_is_unbiased(baseline, options):
    """`Value()` is a second output without a trunk. `Cautious` depends on the order."""
    report = testing.check_gradient(baseline=baseline(), **options)
    assert report.batches == (66 if baseline is baselines.Value else 11**2)


@pytest.mark.parametrize(
    "head, count",
    [
        sweeps.rare(heads.Categorical(3, start=4, dtype="float64"), 18),
        sweeps.rare(toy_heads.Switches(2, dtype="float64"), 25),
        sweeps.rare(heads.Multinomial(2, trials=2, dtype="float64"), 18),
        sweeps.rare(heads.MultiCategorical([2, 2], start=3, dtype="float64"), 25),
        sweeps.rare(heads.Bernoulli(2, shape=(2, 1), dtype="float64"), 25),
        sweeps.rare(
            heads.Composite(
                {
                    "a b": toy_heads.Tempered(2, dtype="float64"),
                    "1": (heads.Categorical(2, dtype="float64"),),
                }
            ),
            25,
        ),
        (toy_heads.Tempered(2, dtype="float64"), 11),
    ],
    ids=lambda value: type(value).__name__,
)
def test_expected_update_is_the_gradient_for_other_heads(head, count):
    report = testing.check_gradient(head)
    assert report.trajectories == count
    weights = 3 * head.outputs_size + len(head.trainable_variables)
    assert report.exact.shape == report.expected.shape == (weights,)
    assert np.abs(report.exact).min() > 1e-3


# The exact gradient


@pytest.mark.parametrize("horizon, count", [(1, 2), (2, 5), (3, 11)])
def test_enumeration_contains_all_trajectories(horizon, count):
    task = enumeration(horizon=horizon)
    likelihoods = task.likelihoods(task.probabilities()).numpy()
    assert likelihoods.shape == (count,)
    assert likelihoods.min() > 0
    assert likelihoods.sum() == pytest.approx(1, abs=1e-14)
    happened = {(len(s), *s.ravel().tolist()) for s in task.steps}
    assert len(happened) == count


# Biased estimators


@pytest.mark.parametrize(
    "baseline, gamma",
    [
        *(sweeps.rare(None, 0.9), sweeps.rare("leave_one_out", 0.5)),
        *(("value", 0.5), sweeps.rare(None, 0.0)),
    ],
)
def test_gradient_without_discounted_states_weights_all_steps_equally(baseline, gamma):
    """E[Δw] = Σₜ γ⁻ᵗ ∂J/∂w, where only the action at step t depends on w.

    The test cancels the powers of γ, because γ may be zero.
    """
    task = enumeration(baseline, gamma=gamma, discount_states=False)
    rewards = np.nan_to_num(task.record.rewards)
    total = 0.0
    for step in range(3):
        later = gamma ** np.arange(3 - step) @ rewards[step:]
        with tf.GradientTape() as tape:
            probs = task.probabilities()
            here = np.arange(3)[:, None, None] == step
            likelihoods = task.likelihoods(tf.where(here, probs, tf.stop_gradient(probs)))
            objective = tf.reduce_sum(likelihoods * later)
        total += expectations.flat(tape.gradient(objective, task.compared))
    report = task.check(2, None)
    np.testing.assert_allclose(report.expected, total, rtol=1e-13, atol=1e-13)
    assert report.error > 1e-2


@pytest.mark.parametrize("batch_size", [sweeps.rare(1), 2])
@pytest.mark.parametrize("coef", [0.1, sweeps.rare(1.0)])
def test_entropy_bonus_adds_gradient_of_entropies_of_visited_states(coef, batch_size):
    task = enumeration(entropy_coef=coef)
    likelihoods = task.likelihoods(task.probabilities()).numpy()
    visits = np.zeros(2)
    for likelihood, steps in zip(likelihoods, task.steps, strict=True):
        visits += likelihood * np.bincount(steps[:, 0], minlength=2)
    with tf.GradientTape() as tape:
        probs = task.probabilities()
        entropies = -tf.reduce_sum(probs * tf.math.log(probs), axis=1)
        bonus = tf.reduce_sum(visits * entropies)
    slopes = expectations.flat(tape.gradient(bonus, task.compared))
    report = task.check(batch_size, None)
    np.testing.assert_allclose(
        report.expected, report.exact + coef * slopes, rtol=1e-13, atol=1e-13
    )


def batches_of_steps(task, least):
    """Returns every list of episodes that `steps_per_epoch=least` may collect."""
    lengths = task.record.lengths

    def extended(batch, taken):
        if taken >= least:
            yield batch
            return
        for column, length in enumerate(lengths):
            yield from extended([*batch, column], taken + length)

    return list(extended([], 0))


def test_check_gradient_raises_if_biased_unless_tolerance_allows_it():
    with pytest.raises(AssertionError, match="Expected: .* within 1e-09. Received: "):
        testing.check_gradient(discount_states=False)
    report = testing.check_gradient(discount_states=False, tolerance=None)
    testing.check_gradient(discount_states=False, tolerance=report.error)


ROWS = documented("The estimator, exactly")


def first_of_each(rows):
    """Returns the first of the rows that contain the same options."""
    first = {}
    for row in rows:
        first.setdefault(tuple(sorted(settings_of(row[0]))), row)
    return list(first.values())


@pytest.mark.slow
@pytest.mark.parametrize(
    "options, bias, cosine", sweeps.some(ROWS, always=first_of_each(ROWS))
)
def test_documented_biases_are_the_computed_ones(options, bias, cosine):
    options = settings_of(options)
    batch_size, least = options.pop("batch_size", 2), options.pop("steps_per_epoch", 0)
    task = enumeration(**options)
    if least:
        likelihoods = task.likelihoods(task.probabilities()).numpy()
        batches = batches_of_steps(task, least)
        expected = sum(np.prod(likelihoods[x]) * task.change(x) for x in batches)
    else:
        expected, _ = task.expected(batch_size)
    assert bias_and_cosine(expected, task.exact()) == (bias, cosine)
    assert float(bias) > 0


# Errors of check_gradient


def updated_baseline(baseline):
    """Builds the baseline and updates it with earlier returns."""
    baseline.build((None, 2))
    times = np.arange(6) % 3
    baseline.apply_gradients([], baselines.BaselineBatch(None, 3.0 + times**2, times, 2))
    return baseline


EARLIER = {
    "moving_average": (lambda: updated_baseline(baselines.MovingAverage()), 2),
    "time_step": (lambda: updated_baseline(baselines.TimeStep(horizon=2)), 2),
    "pairs": (lambda: baselines.LeaveOneOut(group_size=2), 2),
    "threes": (lambda: baselines.LeaveOneOut(group_size=3), 3),
}
FIRST, LAST = UNBIASED[0], UNBIASED[-1]


@pytest.mark.parametrize(
    "settings, kind",
    sweeps.some(
        itertools.product([FIRST, LAST], EARLIER),
        always=[(FIRST, "moving_average"), (LAST, "pairs")],
    ),
    ids=lambda value: named(value) if isinstance(value, dict) else value,
)
def test_averages_and_groups_are_unbiased(settings, kind):
    baseline, batch_size = EARLIER[kind]
    report = testing.check_gradient(
        baseline=baseline(), batch_size=batch_size, **settings
    )
    assert report.error <= 1e-9


@pytest.mark.parametrize(
    "head, message",
    [(toy_heads.Half, "must sum to 1"), (toy_heads.Stopped, "complete gradient")],
)
def test_check_gradient_raises_if_log_prob_is_wrong(head, message):
    with pytest.raises(AssertionError, match=message):
        testing.check_gradient(head(2, dtype="float64"))


@pytest.mark.parametrize(
    "head, options, message",
    [
        (None, {"batch_size": 0}, "Received: batch_size=0"),
        (None, {"batch_size": 9}, "At most 20000 batches"),
        (None, {"gamma": 2.0}, "Received: gamma=2.0"),
        (None, {"baseline": "median"}, "Received: baseline='median'"),
        (heads.Gaussian(1, dtype="float64"), {}, "must have integer actions"),
        (toy_heads.Tempered(2), {}, "must be float64"),
    ],
)
def test_check_gradient_raises_on_invalid_arguments(head, options, message):
    with pytest.raises(ValueError, match=message):
        testing.check_gradient(head, **options)
    with pytest.raises(TypeError, match="lambda_"):
        testing.check_gradient(lambda_=0.9)


@pytest.mark.parametrize("gamma", [1.0, 0.9, 0.5])
def test_exact_gradient_equals_finite_differences_of_the_return(gamma):
    """The expected return is a recursion over states in NumPy."""
    policy = enumeration(gamma=gamma, discount_states=True).agent.policy
    weights = np.concatenate([w.ravel() for w in policy.get_weights()])

    def value(probs, state, steps):
        total = 0.0
        for action in (0, 1):
            worth = (-1) ** action * (1 + state + action / 2)
            moves = gradients._TRANSITIONS.get((state, action), gradients._TERMINATION)
            for chance, following in moves:
                if following is not None and steps > 1:
                    worth += gamma * chance * value(probs, following, steps - 1)
            total += probs[state, action] * worth
        return total

    def objective(weights):
        odds = np.exp(weights[:4].reshape(2, 2) + weights[4:])
        return value(odds / odds.sum(axis=1, keepdims=True), 0, 3)

    steps = 1e-5 * np.eye(6)
    slopes = [(objective(weights + s) - objective(weights - s)) / 2e-5 for s in steps]
    exact = enumeration(gamma=gamma, discount_states=True).exact()
    np.testing.assert_allclose(exact, slopes, rtol=1e-9, atol=1e-9)
