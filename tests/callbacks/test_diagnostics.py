"""Tests the statistics of `Diagnostics` against definitions, and the advice in its
reports.
"""

import functools
import io
import itertools
import pathlib
import re

import definitions
import gymnasium as gym
import keras
import numpy as np
import oracle
import pytest
import sweeps
import tensorflow as tf
from toys import rewinding

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce.callbacks import advice
from tf_reinforce.callbacks import training_statistics
from tf_reinforce.engine.update import estimator
from tf_reinforce.engine.update import inspection
from tf_reinforce.settings import config

ROOT = pathlib.Path(__file__).parents[2]


def policy_gradient_estimator(baseline=None, head=None, policy=None, **settings):
    return estimator.PolicyGradientEstimator(
        policy or definitions.network(),
        head or heads.Categorical(definitions.A),
        baselines.get(baseline),
        None,
        config.AgentOptions(**{**definitions.DEFAULTS, **settings}),
    )


def flat(gradients):
    return np.concatenate([np.ravel(gradient) for gradient in gradients])


def flat_rows(gradients):
    """Returns `[E, P]` from a list of `[E, …]`."""
    return np.concatenate([np.reshape(g, (len(g), -1)) for g in gradients], axis=1)


# The gradient of each episode


@pytest.mark.parametrize(
    "settings",
    [
        {"baseline": "leave_one_out", "scale_advantages": "batch"},
        sweeps.rare({"returns": "whole", "mean_over": "steps"}),
        sweeps.rare({"baseline": "leave_one_out", "on_truncation": "drop"}),
        {"head": definitions.gaussian()},
    ],
    ids=str,
)
def test_mean_of_per_episode_gradients_is_the_gradient(settings):
    settings = dict(settings)
    record = definitions.record(type(settings.get("head", heads.Categorical(2))))
    estimator_ = policy_gradient_estimator(
        settings.pop("baseline", None), settings.pop("head", None), **settings
    )
    gradients = flat_rows(inspection.per_episode_gradients(estimator_, record))
    dropped = settings.get("on_truncation") == "drop"
    assert len(gradients) == (sum(definitions.TERMINATED) if dropped else definitions.B)
    whole = flat(estimator_.gradients(record)[0])
    np.testing.assert_allclose(gradients.mean(axis=0), whole, rtol=1e-12, atol=1e-12)


def test_per_episode_gradients_are_of_the_policy_loss_only():
    """Entropy bonus, regularizer and value loss are excluded.

    All of them have gradients in this test.
    """
    policy, record = definitions.shared_network(), definitions.record()
    settings = {"policy": policy, "gae_lambda": 0.7}
    alone = flat(
        policy_gradient_estimator(baselines.Value(loss_weight=0.0), **settings).gradients(
            record
        )[0]
    )
    policy.layers[1].kernel.regularizer = keras.regularizers.L2(0.1)
    estimator_ = policy_gradient_estimator(
        baselines.Value(), entropy_coef=0.1, **settings
    )
    assert np.abs(flat(estimator_.gradients(record)[0]) - alone).max() > 1e-2
    gradients = flat_rows(inspection.per_episode_gradients(estimator_, record))
    np.testing.assert_allclose(gradients.mean(axis=0), alone, rtol=1e-12, atol=1e-12)


# Signal and noise


def test_signal_and_noise_equal_their_definition():
    rng = np.random.default_rng(0)
    gradients = [rng.normal(size=(6, 2, 3)), rng.normal(1.0, size=(6, 4))]
    g = flat_rows(gradients)
    mean = sum(g) / 6
    trace = sum(sum((row - mean) ** 2) for row in g) / 5
    signal, noise = training_statistics.signal_and_noise(gradients)
    np.testing.assert_allclose(noise, trace / 6)
    np.testing.assert_allclose(signal, sum(mean**2) - trace / 6)
    pairs = [g[i] @ g[j] for i in range(6) for j in range(6) if i != j]
    np.testing.assert_allclose(signal, sum(pairs) / len(pairs))


def test_episodes_of_a_group_count_as_one_gradient():
    """Four pairs of equal gradients count as four gradients, not as eight."""
    four = np.random.default_rng(0).normal(size=(4, 3))
    eight = np.repeat(four, 2, axis=0)
    assert training_statistics.signal_and_noise(
        [eight], 2
    ) == training_statistics.signal_and_noise([four])
    assert np.isnan(training_statistics.signal_and_noise([eight], 8)).all()


def test_signal_and_noise_are_unbiased_for_normal_gradients():
    """|μ|² = 0.5 and tr Σ / E = (1 + 4 + 9) / 7 = 2, within four standard errors."""
    rng, mean, scale = np.random.default_rng(0), [0.5, 0.5, 0.0], [1.0, 2.0, 3.0]
    samples = [
        training_statistics.signal_and_noise([rng.normal(mean, scale, (7, 3))])
        for _ in range(20_000)
    ]
    error = np.std(samples, axis=0) / np.sqrt(len(samples))
    assert (np.abs(np.mean(samples, axis=0) - [0.5, 2.0]) < 4 * error).all()
    assert (error < [0.03, 0.01]).all()


@pytest.mark.parametrize(
    "baseline, shrunk, more", [(None, 1, 0), ("leave_one_out", 1, 1), ("mean", 2 / 3, 1)]
)
def test_baseline_of_other_episodes_raises_signal_by_a_known_factor(
    baseline, shrunk, more
):
    """The factor is 1 + 1 / (E - 1)², by enumeration of a bandit with two arms.

    Without a baseline, the signal is unbiased. The mean baseline scales each gradient by
    (E - 1) / E relative to leave-one-out.
    """
    policy = keras.Sequential(
        [
            keras.Input((1,), dtype="float64"),
            keras.layers.Dense(2, use_bias=False, dtype="float64"),
        ]
    )
    policy.set_weights([np.array([[0.3, -0.4]])])
    arm_rewards, count = np.array([1.0, 3.0]), 3
    p = np.exp([0.3, -0.4]) / np.exp([0.3, -0.4]).sum()
    truth = np.sum((p * (arm_rewards - p @ arm_rewards)) ** 2)
    estimator_, expected, moments = (
        policy_gradient_estimator(baseline, policy=policy, gamma=1.0),
        0.0,
        0.0,
    )
    for arms in itertools.product([0, 1], repeat=count):
        record = tfr.Episodes(
            np.ones((2, count, 1)),
            np.array([arms]),
            arm_rewards[[arms]],
            np.ones(count, "int32"),
            np.ones(count, bool),
        )
        gradients = [
            g.numpy() for g in inspection.per_episode_gradients(estimator_, record)
        ]
        mean, probability = flat_rows(gradients).mean(axis=0), np.prod(p[list(arms)])
        expected += probability * np.array(
            training_statistics.signal_and_noise(gradients)
        )
        moments += probability * np.array([mean @ mean, *mean])
    signal, more = truth * shrunk**2, more / (count - 1) ** 2
    variance = moments[0] - moments[1:] @ moments[1:]  # of the mean, that is, its noise
    expected_statistics = [signal * (1 + more), variance - signal * more]
    np.testing.assert_allclose(expected, expected_statistics, rtol=1e-12)


def test_ratio_of_means_and_its_standard_error_equal_a_loop():
    """The error is that of the jackknife."""
    a, b = np.random.default_rng(0).gamma(4.0, 0.5, (2, 30))
    ratios = [np.delete(a, k).sum() / np.delete(b, k).sum() for k in range(30)]
    expected = a.sum() / b.sum(), np.sqrt(29 * np.var(ratios))
    found = training_statistics.ratio_of_means(a, b)
    np.testing.assert_allclose(found, expected, rtol=1e-12)


# Other statistics


def test_explained_variance_of_regression_is_squared_correlation():
    """The regression line explains r² of the variance, and a constant explains
    nothing.
    """
    rng = np.random.default_rng(0)
    x = rng.normal(size=1000)
    y = 2 * x + rng.normal(size=1000)
    slope = np.cov(x, y)[0, 1] / np.var(x, ddof=1)
    r = np.corrcoef(x, y)[0, 1]
    np.testing.assert_allclose(
        training_statistics.explained_variance(y, slope * x + 7.0), r**2
    )
    np.testing.assert_allclose(
        training_statistics.explained_variance(y, 0 * x), 0.0, rtol=1e-12, atol=1e-12
    )
    assert training_statistics.explained_variance(y, -y) == -3.0
    assert np.isnan(training_statistics.explained_variance(np.ones(3), np.arange(3.0)))


def test_kl_and_sample_size_of_two_normals_equal_closed_forms():
    """KL(N(0, 1) ‖ N(m, 1)) = m²/2 and ESS → exp(-m²)."""
    x, m = np.random.default_rng(0).normal(size=400_000), 0.5
    log_probs = -(x**2) / 2, -((x - m) ** 2) / 2
    kl, share = training_statistics.policy_change(*log_probs)
    assert abs(kl - m**2 / 2) < 4e-3
    assert abs(share - np.exp(-(m**2))) < 1e-2
    assert training_statistics.policy_change(log_probs[0], log_probs[0]) == (0.0, 1.0)


def test_step_statistics_equal_advantages_of_a_loop():
    record = definitions.record()
    rules = [policy_gradient_estimator(x) for x in ("leave_one_out", None)]
    statistics = inspection.step_statistics(rules[0], record)
    steps, plain = (oracle.Oracle(rule).steps(record)[0] for rule in rules)
    places = zip(statistics.episodes.numpy(), statistics.times.numpy(), strict=True)
    assert [*places] == [(step.episode, step.time) for step in steps]
    advantages = [[x.advantage for x in part] for part in (steps, plain)]
    np.testing.assert_allclose(statistics.advantages, advantages[0])
    np.testing.assert_allclose(statistics.unbaselined_advantages, advantages[1])
    assert len(statistics.returns) == sum(definitions.LENGTHS)
    np.testing.assert_allclose(statistics.returns, statistics.unbaselined_advantages)
    np.testing.assert_allclose(statistics.max_entropies, np.log(2))
    assert np.isnan(statistics.values).all()
    assert statistics.relative_scales.shape[1] == statistics.at_bounds.shape[1] == 0


@pytest.mark.parametrize("recurrent", [False, True])
def test_max_entropy_is_that_of_uniform_legal_actions(recurrent):
    """The maximum is ln of the number of legal actions, summed over the parts of an
    action.
    """
    head = heads.Composite({"gear": heads.Categorical(4), "lamps": heads.Bernoulli(2)})
    rng, (rows, count) = np.random.default_rng(0), (4, 3)
    legal_actions = rng.integers(0, 2, (rows, count, 4))
    legal_actions[..., 0] = 1
    free = rng.integers(
        0, 2, (rows, count, 2)
    )  # 1 + free is the mark: 2 is free, 1 must be on
    record = tfr.Episodes(
        rng.normal(size=(rows + 1, count, 2)).astype("float32"),
        {
            "gear": np.zeros((rows, count), "int32"),
            "lamps": np.ones((rows, count, 2), "int32"),
        },
        rng.normal(size=(rows, count)),
        np.array([4, 2, 3], "int32"),
        np.array([True, True, False]),
        np.concatenate([legal_actions, 1 + free], axis=-1).astype("int8"),
    )
    layers = [keras.layers.Dense(head.outputs_size)]
    shape = (2,)
    if recurrent:
        layers.insert(0, keras.layers.GRU(3, return_sequences=True))
        shape = (None, 2)
    policy = keras.Sequential([keras.Input(shape), *layers])
    agent = tfr.Reinforce(policy, head, action_mask="info/action_mask")
    statistics = agent.step_statistics(record)
    expected = np.log(legal_actions.sum(-1)) + np.log(2) * free.sum(-1)
    at = statistics.times, statistics.episodes
    np.testing.assert_allclose(
        statistics.max_entropies, expected[at], rtol=1e-5, atol=1e-6
    )
    assert np.all(statistics.entropies <= statistics.max_entropies + 1e-5)


def test_relative_scale_is_in_half_widths_of_the_bounds():
    outputs = tf.zeros([1, 2])

    def spread(head, width=2):
        head.build((None, width))
        relative_scale = head.relative_scale(tf.zeros([1, width])).numpy()[0]
        return relative_scale.astype("float64").round(6).tolist()

    bounds = dict(low=[-2.0, 0.0], high=[2.0, 20.0])
    assert spread(heads.Gaussian(2, **bounds, initial_scale=[1.0, 1.0])) == [0.5, 0.1]
    assert spread(heads.TanhGaussian(1, -9.0, 9.0, initial_scale=0.5), 1) == [0.5]
    unbounded = heads.Gaussian(2, initial_scale=[5.0, 0.1])
    assert spread(unbounded) == [1.0, 1.0]
    unbounded.log_scale.assign(np.log([0.5, 0.1]))
    np.testing.assert_allclose(unbounded.relative_scale(outputs), [[0.1, 1.0]], rtol=1e-6)
    beta = heads.Beta(1, 0.0, 10.0)
    a, b = (x.numpy()[0, 0] for x in beta.parameters(outputs).values())
    deviation = np.sqrt(a * b / (a + b + 1)) / (a + b)
    np.testing.assert_allclose(beta.relative_scale(outputs), [[2 * deviation]], rtol=1e-6)
    both = heads.Composite((heads.Categorical(3), heads.Gaussian(1, low=-1.0, high=1.0)))
    assert spread(both, 4) == [1.0]
    assert spread(heads.Categorical(2)) == []


# Advice from statistics

HEALTHY = {
    "update": 0,
    "episodes": 16.0,
    "independent": 16.0,
    "signal": 1.5,
    "noise": 1.0,
    "signal_to_noise": 1.5,
    "gradient_variance_removed": 0.6,
    "return_variance_removed": 0.2,
    "explained_variance": 0.5,
    "return_size": 20.0,
    "advantage_size": 10.0,
    "entropy_share": 0.9,
    "spread": float("nan"),
    "at_bounds": float("nan"),
    "kl": 0.01,
    "effective_sample_size": 0.98,
    "learning_rate": 0.01,
    "gradient_steps": 1.0,
    "entropy_coef": 0.01,
    "value_scale": 1.0,
}
UNHEALTHY = {
    "rewards": [
        {"return_size": 1001.0, "explained_variance": 0.0},
        {"return_size": 1001.0, "explained_variance": np.nan},  # equal returns
        {"advantage_size": 2e5, "entropy_coef": 1e-3, "value_scale": np.nan},
    ],
    "learning_rate": [{"kl": 0.6}, {"kl": 60.0, "gradient_steps": 10.0}],
    "stale": [{"kl": 0.6, "gradient_steps": 2.0}, {"kl": 1.9, "gradient_steps": 2.0}],
    "saturated": [{"at_bounds": 0.91}],
    "collapsed": [{"entropy_share": 0.009}, {"spread": 0.009}],
    "value_baseline": [
        {"gradient_variance_removed": 0.09, "explained_variance": 0.01, "update": 20}
    ],
    "noise": [{"signal": 0.01}],
}


def diagnose(change, count=20):
    """Returns the findings for `HEALTHY` with changes, in `count` reports."""
    changed = {**HEALTHY, **change}
    noise = 1e-3 * (-1.0) ** np.arange(count)
    reports = [{**changed, "signal": changed["signal"] + x} for x in noise]
    reports[0]["update"] = changed["update"] - 20
    return advice.diagnose(reports)


@pytest.mark.parametrize("cause", list(advice.CAUSES))
def test_each_cause_is_found_alone(cause):
    for change in UNHEALTHY[cause]:
        assert [finding.cause for finding in diagnose(change)] == [cause], change
        assert diagnose(change)[0].advice.endswith(".")


def test_no_finding_at_the_thresholds():
    assert diagnose({}) == []
    close = {
        "kl": 0.5,
        "entropy_share": 0.01,
        "at_bounds": 0.9,
        "spread": 0.01,
        "return_size": 1000.0,
        "explained_variance": 0.0,
    }
    for name, value in close.items():
        assert diagnose({name: value}) == [], name
    assert diagnose({name: float("nan") for name in close}) == []


def test_findings_need_enough_reports():
    """Noise needs ten, and a value baseline three from update 20 on."""
    assert diagnose({"signal": 0.0}, count=9) == []
    early = {"gradient_variance_removed": 0.0, "explained_variance": 0.0, "update": 19}
    assert diagnose(early) == []


def test_advice_contains_learning_rate_steps_and_episodes():
    """KL is proportional to the square of the learning rate: 5 nats are 100 times
    0.05.
    """
    assert "at most 0.001 (now 0.01)" in diagnose({"kl": 5.0})[0].advice
    assert "at most 3 steps" in diagnose({"kl": 5.0, "gradient_steps": 30.0})[0].advice
    text = diagnose({"signal": 0.0})[
        0
    ].advice  # two standard errors: 2 · 1e-3 / √20 · √(20/19)
    most = 2e-3 / np.sqrt(19)
    assert f"at least {advice.short(16 / most)} episodes" in text
    assert "or a baseline" not in text
    no_reduction = diagnose({"signal": 0.0, "gradient_variance_removed": 0.0})[0].advice
    assert "or a baseline" in no_reduction


@pytest.mark.parametrize("late, is_noisy", [(4.0, True), (8000.0, False)])
def test_noise_advice_depends_on_the_current_batch_size(late, is_noisy):
    """A thousand episodes give a ratio of one, for any batch sizes in the reports."""
    sizes = [100.0] * 49 + [late]
    reports = [{**HEALTHY, "episodes": e, "independent": e, "signal": 1.0} for e in sizes]
    reports = [{**r, "noise": 1000 / r["episodes"]} for r in reports]
    findings = advice.diagnose(reports)
    assert bool(findings) is is_noisy
    if is_noisy:
        assert "at least 1000 episodes per update (now 4)" in findings[0].advice


def test_thresholds_and_statistics_are_documented():
    document = (ROOT / "docs" / "diagnostics.md").read_text()
    for name, limit in advice.THRESHOLDS.items():
        value = f"{limit:g}".replace("1e-05", "1e-5")
        assert re.search(rf"^\| `{name}` \| [<>] {value} \|", document, re.M), name
    for name in HEALTHY:
        assert f"`{name}`" in document, name


# Eight faults on real environments, and a training without a fault


def agent_for(env, **options):
    options = {"hidden": (16,), "learning_rate": 1e-2, **options}
    return tfr.Reinforce.for_env(env, **options)


@functools.cache
def cartpole():
    """Returns an agent for CartPole, and a function that restores it.

    The agent is traced once.
    """
    agent = agent_for("CartPole-v1")
    return agent, rewinding(agent, gym.make("CartPole-v1"))


def new_agent(learning_rate=1e-2):
    agent, rewind = cartpole()
    rewind()
    agent.optimizer.learning_rate = learning_rate
    return agent


def critic(rate):
    layers = [keras.Input((4,)), keras.layers.Dense(16, "tanh"), keras.layers.Dense(1)]
    return tfr.baselines.Value(keras.Sequential(layers), keras.optimizers.Adam(rate))


# The callback


@pytest.mark.slow
def test_diagnostics_do_not_change_the_training():
    weights = []
    agent = agent_for("CartPole-v1", baseline=critic(1e-3), passes=2)
    rewind = rewinding(agent, gym.make("CartPole-v1"))
    for callbacks in ([], [tfr.callbacks.Diagnostics(verbose=0)]):
        rewind()
        agent.fit("CartPole-v1", epochs=2, callbacks=callbacks, verbose=0)
        weights.append([variable.numpy() for variable in agent.variables])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_diagnostics_print_findings_and_a_summary():
    out = io.StringIO()
    diagnostics = tfr.callbacks.Diagnostics(2, stream=out)
    agent = new_agent(learning_rate=1.0)
    agent.fit("CartPole-v1", epochs=3, callbacks=[diagnostics], verbose=0)
    lines = out.getvalue().splitlines()
    assert lines[0] == f"Update 0: {diagnostics.findings[0].advice}"
    assert lines[-1].startswith("Diagnostics: 2 of 2 reports found something; the first")
    assert [report["update"] for report in diagnostics.history] == [0, 2]


def test_signal_and_noise_of_one_episode_are_nan():
    diagnostics = tfr.callbacks.Diagnostics(stream=io.StringIO())
    agent = new_agent(learning_rate=1e-4)
    options = dict(epochs=1, episodes_per_epoch=1, verbose=0)
    agent.fit("CartPole-v1", callbacks=[diagnostics], **options)
    (report,) = diagnostics.history
    assert np.isnan([report["signal_to_noise"], report["noise"]]).all()
    assert np.isfinite(report["kl"])
    output = diagnostics.stream.getvalue()
    assert output == "Diagnostics: found nothing in 1 reports.\n"
    types = {name: type(x) for name, x in report.items()}
    assert types == {**dict.fromkeys(HEALTHY, float), "update": int}


# Reports of a second `fit`, and later reports


@pytest.mark.parametrize(("factor", "printed"), [(0.01, True), (100.0, False)])
def test_finding_is_printed_unless_the_return_rises(factor, printed, tmp_path):
    """The rewards of an update are `factor` times those of the update before; the first
    report, before which there is no return, prints in any case.
    """
    updates = itertools.count()

    def make():
        scale = factor ** next(updates)
        env = gym.make("CartPole-v1").unwrapped
        return gym.wrappers.TransformReward(env, lambda reward: scale * reward)

    out = io.StringIO()
    for epochs in (1, 2, 3):  # each call of `fit` continues the training
        diagnostics = tfr.callbacks.Diagnostics(1, stream=out)
        options = dict(episodes_per_epoch=4, num_envs=1, callbacks=[diagnostics])
        options.update(verbose=0, max_episode_steps=20, resume=tmp_path)
        new_agent(learning_rate=10.0).fit(make, epochs=epochs, **options)
    lines = [x for x in out.getvalue().splitlines() if x.startswith("Update")]
    expected, last, cause = [], None, None
    for finding in diagnostics.findings:
        if finding.update != last and (printed or finding.update == 0):
            if finding.cause != cause:
                expected.append(f"Update {finding.update}: {finding.advice}")
            cause = finding.cause
        last = finding.update
    assert lines == expected


def test_finding_is_printed_once_until_its_cause_changes(monkeypatch):
    """A report without a finding does not count as another cause.

    No pole falls within five steps, so the return does not rise.
    """
    causes, out = iter(["a", "a", "b", "b", None, "b", "a"]), io.StringIO()

    def diagnose(reports):
        cause = next(causes)
        return [advice.Finding(len(reports), cause, f"{cause}.")] if cause else []

    monkeypatch.setattr(advice, "diagnose", diagnose)
    diagnostics = tfr.callbacks.Diagnostics(1, stream=out)
    options = dict(epochs=7, episodes_per_epoch=2, verbose=0, max_episode_steps=5)
    new_agent().fit("CartPole-v1", callbacks=[diagnostics], **options)
    lines = out.getvalue().splitlines()[:-1]
    assert lines == ["Update 1: a.", "Update 3: b.", "Update 7: a."]


@pytest.mark.slow
def test_report_interval_counts_from_the_start_of_fit():
    """The entropy coefficient is that of the agent's total number of updates."""
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 4, 0.0)
    options = dict(hidden=(2,), entropy_coef=schedule)
    options.update(baseline=baselines.LeaveOneOut(group_size=2))
    agent = tfr.Reinforce.for_env("CartPole-v1", **options)
    options = dict(episodes_per_epoch=4, verbose=0)
    agent.fit("CartPole-v1", epochs=1, **options)
    diagnostics = tfr.callbacks.Diagnostics(every=2, verbose=0)
    agent.fit("CartPole-v1", epochs=3, callbacks=[diagnostics], **options)
    assert [report["update"] for report in diagnostics.history] == [1, 3]
    assert [report["entropy_coef"] for report in diagnostics.history] == [0.75, 0.25]
    # Episodes with one reset seed count once.
    assert [report["independent"] for report in diagnostics.history] == [2.0, 2.0]


def test_value_baseline_finding_uses_the_last_three_reports():
    ineffective, effective = (
        {**HEALTHY, **UNHEALTHY["value_baseline"][0]},
        {**HEALTHY, "update": 30},
    )
    assert advice.diagnose([ineffective] * 20 + [effective] * 3) == []
    findings = advice.diagnose([effective] * 20 + [ineffective] * 3)
    assert [finding.cause for finding in findings] == ["value_baseline"]


def test_per_episode_gradients_have_equal_scale_with_and_without_baseline():
    """With a smaller scale, gradients without the baseline would appear to have less
    noise.
    """
    record = definitions.record()
    scaled = policy_gradient_estimator("leave_one_out", scale_advantages="batch")
    plain = policy_gradient_estimator("leave_one_out")
    size = flat(scaled.gradients(record)[0])[0] / flat(plain.gradients(record)[0])[0]
    gradients = flat_rows(
        inspection.per_episode_gradients(scaled, record, baseline=False)
    )
    expected = (
        flat_rows(inspection.per_episode_gradients(plain, record, baseline=False)) * size
    )
    np.testing.assert_allclose(gradients, expected, rtol=1e-9, atol=1e-12)
