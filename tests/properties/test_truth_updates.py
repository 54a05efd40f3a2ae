"""Tests the expected steps of an update with minibatches and passes, by enumeration."""

import functools
import math

import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys
from proofs import bias_and_cosine
from proofs import critic
from proofs import documented
from proofs import settings_of

from tf_reinforce import testing
from tf_reinforce.engine.update import train_step
from tf_reinforce.testing import expectations
from tf_reinforce.testing import gradients


def enumeration(
    baseline="leave_one_out", horizon=3, kind=gradients._Enumeration, **given
):
    baseline = critic() if baseline == "value" else baseline
    return kind(None, baseline, 0, given, horizon)


# The first step


@pytest.mark.parametrize(
    "options",
    [
        sweeps.rare(dict(minibatch_size=2)),
        dict(minibatch_size=2, passes=2, batch_size=1, returns="whole"),
    ],
    ids=str,
)
def test_expected_first_step_of_an_update_is_the_gradient(options):
    """The expectation is over all batches, and all minibatches that can be the first."""
    report = testing.check_gradient(**options)
    assert report.error <= 1e-12
    assert np.abs(report.exact).max() > 0.1


@pytest.mark.parametrize(
    "option, scale",
    [
        sweeps.rare(
            {"scale_advantages": "running", "baseline": "leave_one_out"},
            "advantage_scale",
        ),
        ({"scale_rewards": True, "baseline": "value"}, "reward_scale"),
        sweeps.rare({"scale_rewards": True, "returns": "whole"}, "reward_scale"),
    ],
    ids=["advantages", "rewards", "whole"],
)
def test_scale_of_earlier_batches_divides_the_expected_gradient(option, scale):
    """E[Δw] = ∇J / scale for the scale of earlier batches; rewards use a deviation."""
    task, samples = enumeration(**option), np.array([3.0, -1.0, 2.5])
    getattr(task.agent, scale).update(tf.constant(samples))
    size = samples.std() if "rewards" in str(option) else np.sqrt(np.mean(samples**2))
    report = task.check(1, None)
    np.testing.assert_allclose(
        size * report.expected, report.exact, rtol=1e-12, atol=1e-12
    )


# Later steps


def perturbed_weights(task, seed=3, size=0.5):
    """Returns the weights plus random numbers."""
    rng = np.random.default_rng(seed)
    return [w.numpy() + size * rng.normal(size=w.shape) for w in task.compared]


def expected_at(task, weights, batch_size, bound):
    """Returns E[g] at other weights, over the batches of the current policy."""
    rule, total = task.agent.trainer.estimator, 0.0
    toys.set_options(rule, ratio_clip=bound)
    likelihoods = task.likelihoods(task.probabilities()).numpy()
    before = [w.numpy() for w in task.compared]
    for times, columns in task.batches(batch_size):
        episodes = gradients.select_columns(task.record, columns)
        batch = rule.batch(task.agent.trainer.check_episodes(episodes))
        acted = rule.distribution(batch).log_prob(batch.actions)
        for variable, value in zip(task.compared, weights, strict=True):
            variable.assign(value)
        found, _ = rule.policy_gradients(batch, None, acted)
        for variable, value in zip(task.compared, before, strict=True):
            variable.assign(value)
        total -= times * math.prod(likelihoods[columns]) * expectations.flat(found)
    return total


def local_improvement(task, weights):
    """Returns Σₜ γᵗ Σ_s dₜ(s) Σ_a ∇π(a|s) Q(s,a), with visits dₜ and Q of the old policy.

    The function differentiates Σ_τ P(τ) Σₜ γᵗ Gₜ π(aₜ|sₜ)/μ(aₜ|sₜ) by π only.
    """
    gamma, rewards = task.agent.gamma, np.nan_to_num(task.record.rewards)
    before = task.probabilities().numpy()
    likelihoods = task.likelihoods(before).numpy()
    for variable, value in zip(task.compared, weights, strict=True):
        variable.assign(value)
    with tf.GradientTape() as tape:
        ratios, total = task.probabilities() / before, 0.0
        for column, steps in enumerate(task.steps):
            for t, (state, action) in enumerate(steps):
                later = gamma ** np.arange(len(rewards))[t:] @ rewards[t:, column]
                total += likelihoods[column] * later * ratios[state, action]
    return expectations.flat(tape.gradient(total, [w.value for w in task.compared]))


def test_expected_step_at_other_weights_is_the_local_improvement():
    """The expected step is not ∇J, because visits and later actions do not change."""
    task = enumeration()
    weights = perturbed_weights(task)
    found = expected_at(task, weights, 2, bound=1e6)
    np.testing.assert_allclose(
        found, local_improvement(task, weights), rtol=1e-12, atol=1e-12
    )
    assert np.abs(found - task.exact()).max() > 1e-2


@functools.cache
def two_passes(**options):
    """Returns the task, updates with 1 and 2 passes, and ∇J."""
    task = enumeration()
    agent = task.agent
    toys.set_options(agent.trainer.estimator, **options)
    agent.compile(optimizer=keras.optimizers.SGD(1.0))
    agent.optimizer.build(agent.policy_variables)

    def traced(passes):
        rule = agent.trainer.estimator
        toys.set_options(rule, passes=passes)
        update = train_step.TrainStep(rule, agent.optimizer, agent.counters)
        options = dict(reduce_retracing=True, autograph=False)
        return tf.function(lambda *given: update(*given), **options)

    @tf.function(autograph=False)
    def exact():
        with tf.GradientTape() as tape:
            total = tf.reduce_sum(task.likelihoods(task.probabilities()) * task.returns)
        return tape.gradient(total, [w.value for w in task.compared])

    return task, traced(1), traced(2), exact


def second_step(learning_rate, ratio_clip, max_kl=None):
    """Returns the expected second step, and the expected ∇J after the first step."""
    task, one, two, exact = two_passes(ratio_clip=ratio_clip, max_kl=max_kl)
    task.agent.optimizer.learning_rate.assign(learning_rate)
    likelihoods = task.likelihoods(task.probabilities()).numpy()
    before, found, truth = [w.numpy() for w in task.compared], 0.0, 0.0
    for times, columns in task.batches(2):
        episodes = task.agent.trainer.check_episodes(
            gradients.select_columns(task.record, columns)
        )
        episodes = keras.tree.map_structure(tf.constant, episodes)
        share = times * math.prod(likelihoods[columns])
        order = np.tile(np.arange(episodes.lengths.numpy().sum(), dtype="int32"), (2, 1))
        for update, sign in ((one, -1), (two, 1)):
            assert update(episodes, tf.constant(order))[0] == 1
            found += sign * share * expectations.flat(task.compared) / learning_rate
            truth += share * expectations.flat(exact()) if sign < 0 else 0.0
            for variable, value in zip(task.compared, before, strict=True):
                variable.assign(value)
    return found, truth


LATER = documented("The second step of an update, exactly")


@pytest.mark.slow
def test_documented_biases_of_a_second_step_are_the_computed_ones():
    """One test has all rows, because TensorFlow drops programs between tests."""
    assert len(LATER) >= 5
    found = [
        bias_and_cosine(*second_step(**settings_of(options))) for options, _, _ in LATER
    ]
    assert found == [row[1:] for row in LATER]
    # Without clipped ratios, the bias is proportional to the learning rate.
    slow = [second_step(rate, 2.0) for rate in (2.0**-8, 2.0**-9)]
    norms = [np.linalg.norm(found - truth) for found, truth in slow]
    assert norms[0] / norms[1] == pytest.approx(2, rel=0.05)


# Truncated episodes


class Clocked(gradients._Enumeration):
    """The same task, in which a time limit truncates episodes after the third step."""

    def __init__(self, *given):
        super().__init__(*given)
        horizon, kept, cut, chances = given[-1], [], [], []
        for column, steps in enumerate(self.steps):
            moves = gradients._TRANSITIONS.get(tuple(steps[-1]), gradients._TERMINATION)
            ended = sum(chance for chance, following in moves if following is None)
            parts = [(1.0, False)]
            if len(steps) == horizon:
                parts = [(ended, False), (1 - ended, True)]
            for chance, is_cut in parts:
                if chance:
                    kept.append(column)
                    cut.append(is_cut)
                    chances.append(chance * self.transition_probs[column])
        self.cut, self.transition_probs = np.array(cut), np.array(chances)
        self.steps, self.returns = [self.steps[k] for k in kept], self.returns[kept]
        record = gradients.select_columns(self.record, kept)
        self.record = record._replace(terminated=~self.cut)


def clocked(**given):
    return enumeration(kind=Clocked, **given)


@pytest.mark.parametrize(
    "truncation, baseline",
    [sweeps.rare("bootstrap", "leave_one_out"), ("terminal", "value")],
)
def test_truncation_as_termination_gives_gradient_of_return_until_limit(
    truncation, baseline
):
    report = clocked(on_truncation=truncation, baseline=baseline).check(2, None)
    assert report.error <= 1e-12


def test_dropped_episodes_count_as_return_zero():
    """E[Δw] = ∇ E[G₀ if the episode terminates, else 0], for whole returns."""
    task = clocked(on_truncation="drop", returns="whole", baseline=None)
    expected, _ = task.expected(1)
    task.returns = np.where(task.cut, 0.0, task.returns)
    np.testing.assert_allclose(expected, task.exact(), rtol=1e-13, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("row", documented("Truncated episodes, exactly"), ids=str)
def test_documented_biases_of_truncation_are_the_computed_ones(row):
    options = settings_of(row[0])
    batch_size = options.pop("batch_size", 2)
    report = clocked(**options).check(batch_size, None)
    assert bias_and_cosine(report.expected, report.exact) == row[1:]
    assert report.error > 1e-3
