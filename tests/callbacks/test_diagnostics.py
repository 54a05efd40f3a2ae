"""Figures against loops and closed forms; and what is said when something is wrong."""

import contextlib
import functools
import io
import itertools
import pathlib
import re

import definitions as given
import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys
from toys import rewinding

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import config
from tf_reinforce import heads
from tf_reinforce.algorithm import estimator
from tf_reinforce.algorithm import inspection
from tf_reinforce.callbacks import advice
from tf_reinforce.callbacks import training_statistics

ROOT = pathlib.Path(__file__).parents[2]


def rule(baseline=None, head=None, policy=None, **settings):
    return estimator.PolicyGradientEstimator(
        policy or given.network(),
        head or heads.Categorical(given.A),
        baselines.get(baseline),
        None,
        config.AgentOptions(**{**given.DEFAULTS, **settings}),
    )


def flat(gradients):
    return np.concatenate([np.ravel(gradient) for gradient in gradients])


def rows(gradients):
    """`[E, P]` from a list of `[E, …]`."""
    return np.concatenate([np.reshape(g, (len(g), -1)) for g in gradients], axis=1)


def columns(episodes, chosen):
    return tfr.Episodes(
        episodes.observations[:, chosen],
        episodes.actions[:, chosen],
        episodes.rewards[:, chosen],
        episodes.lengths[chosen],
        episodes.terminated[chosen],
    )


# The gradient of each episode


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"baseline": "leave_one_out"},
        {"baseline": "leave_one_out", "scale_advantages": "batch"},
        {"baseline": "mean", "discount_states": True},
        {"returns": "whole", "mean_over": "steps"},
        {"baseline": "leave_one_out", "on_truncation": "drop"},
        {"head": given.gaussian()},
    ],
    ids=str,
)
def test_the_mean_over_the_episodes_is_the_gradient(settings):
    settings = dict(settings)
    record = given.record(type(settings.get("head", heads.Categorical(2))))
    ours = rule(settings.pop("baseline", None), settings.pop("head", None), **settings)
    found = rows(inspection.per_episode_gradients(ours, record))
    dropped = settings.get("on_truncation") == "drop"
    assert len(found) == (sum(given.TERMINATED) if dropped else given.B)
    whole = flat(ours.gradients(record)[0])
    np.testing.assert_allclose(found.mean(axis=0), whole, rtol=1e-12, atol=1e-12)


def test_it_is_of_the_policy_loss_alone():
    """Bonus, penalty and value loss are no signal: all of them have gradients here."""
    policy, record = given.shared_network(), given.record()
    settings = {"policy": policy, "gae_lambda": 0.7}
    alone = flat(rule(baselines.Value(loss_weight=0.0), **settings).gradients(record)[0])
    policy.layers[1].kernel.regularizer = keras.regularizers.L2(0.1)
    ours = rule(baselines.Value(), entropy_coef=0.1, **settings)
    assert np.abs(flat(ours.gradients(record)[0]) - alone).max() > 1e-2
    found = rows(inspection.per_episode_gradients(ours, record))
    np.testing.assert_allclose(found.mean(axis=0), alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "added", sweeps.some(["bonus", "penalty", "values"], always=["values"])
)
def test_a_reward_of_pure_noise_has_no_signal_whatever_is_added_to_the_loss(added):
    """Without a baseline the mean of the signal is zero, within four deviations."""
    rng, record = np.random.default_rng(0), given.record()
    policy = given.shared_network() if added == "values" else given.network()
    if added == "penalty":
        policy.layers[1].kernel.regularizer = keras.regularizers.L2(10.0)
    value = baselines.Value(loss_weight=5.0) if added == "values" else None
    coefficient = 10.0 if added == "bonus" else 0.0
    ours = rule(value, policy=policy, entropy_coef=coefficient)
    seen = record.observations[:-1].reshape(-1, given.OBSERVED)
    probs = tf.nn.softmax(ours.forward(seen)[0])[:, 1].numpy().reshape(given.T, given.B)
    of_episodes = tf.function(functools.partial(inspection.per_episode_gradients, ours))
    found = []
    for _ in range(40):
        drawn = record._replace(
            rewards=rng.normal(1.0, size=record.rewards.shape),
            actions=(rng.random(probs.shape) < probs).astype("int32"),
        )
        gradients = of_episodes(drawn)
        found.append(
            training_statistics.signal_and_noise([g.numpy() for g in gradients])[0]
        )
    assert abs(np.mean(found)) < 4 * np.std(found) / np.sqrt(len(found))


def test_it_is_of_a_policy_that_remembers():
    policy = keras.Sequential(
        [
            keras.Input((None, given.OBSERVED)),
            keras.layers.SimpleRNN(4, return_sequences=True),
            keras.layers.Dense(given.A),
        ]
    )
    agent = tfr.Reinforce(policy, heads.Categorical(given.A), gamma=0.9)
    record = given.record(dtype="float32")
    whole = flat(agent.gradients(record)[0])
    found = rows(agent.per_episode_gradients(record))
    np.testing.assert_allclose(found.mean(axis=0), whole, rtol=1e-4, atol=1e-5)


def test_without_a_baseline_each_is_the_gradient_of_its_episode_alone():
    ours = rule()
    found = rows(inspection.per_episode_gradients(ours, given.record()))
    for e in range(given.B):
        alone = flat(ours.gradients(columns(given.record(), [e]))[0])
        np.testing.assert_allclose(found[e], alone, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("baseline", ["leave_one_out", "mean"])
@pytest.mark.parametrize("settings", [{}, {"discount_states": True}], ids=str)
def test_the_baseline_can_be_left_out_and_nothing_else(baseline, settings):
    found = inspection.per_episode_gradients(
        rule(baseline, **settings), given.record(), baseline=False
    )
    plain = inspection.per_episode_gradients(rule(None, **settings), given.record())
    np.testing.assert_allclose(rows(found), rows(plain), rtol=1e-12, atol=1e-12)


def test_scales_are_the_same_with_and_without_the_baseline():
    """Else a smaller unit would pass for less noise."""
    record = given.record()
    scaled = rule("leave_one_out", scale_advantages="batch")
    plain = rule("leave_one_out")
    size = flat(scaled.gradients(record)[0])[0] / flat(plain.gradients(record)[0])[0]
    found = rows(inspection.per_episode_gradients(scaled, record, baseline=False))
    wanted = rows(inspection.per_episode_gradients(plain, record, baseline=False)) * size
    np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-12)


def test_the_agent_traces_both_once_and_changes_nothing():
    agent = tfr.Reinforce(given.network("float32"), heads.Categorical(given.A))
    agent.compile(keras.optimizers.Adam())
    agent.build((None, given.OBSERVED))
    before = [v.numpy() for v in agent.variables]
    graphs = []
    for chosen in ([0, 1, 2], [3, 4], [0, 1, 2, 3, 4]):
        record = columns(given.record(dtype="float32"), chosen)
        agent.per_episode_gradients(record)
        agent.per_episode_gradients(record, baseline=False)
        agent.step_statistics(record)
        graphs.append(dict(agent.trainer.learner._graphs))
    assert set(graphs[0]) == {"per_episode_gradients", "step_statistics"}
    assert graphs[0] == graphs[1] == graphs[2]
    for variable, value in zip(agent.variables, before, strict=True):
        np.testing.assert_array_equal(variable.numpy(), value)


# Signal and noise


def test_signal_and_noise_are_their_definition():
    rng = np.random.default_rng(0)
    gradients = [rng.normal(size=(6, 2, 3)), rng.normal(1.0, size=(6, 4))]
    g = rows(gradients)
    mean = sum(g) / 6
    trace = sum(sum((row - mean) ** 2) for row in g) / 5
    signal, noise = training_statistics.signal_and_noise(gradients)
    np.testing.assert_allclose(noise, trace / 6)
    np.testing.assert_allclose(signal, sum(mean**2) - trace / 6)
    pairs = [g[i] @ g[j] for i in range(6) for j in range(6) if i != j]
    np.testing.assert_allclose(signal, sum(pairs) / len(pairs))


def test_a_ratio_of_means_and_its_error_are_those_of_many():
    """E[a] / E[b] = 0.5 / 2; its error is the deviation that many such ratios have."""
    rng = np.random.default_rng(0)
    above, below = rng.normal(0.5, 2.0, (4000, 30)), rng.gamma(4.0, 0.5, (4000, 30))
    found = np.array(
        [training_statistics.ratio_of_means(a, b) for a, b in zip(above, below)]
    )
    ratio, error = found.mean(axis=0)
    assert abs(ratio - 0.25) < 0.01
    np.testing.assert_allclose(error, found[:, 0].std(), rtol=0.05)


def test_two_episodes_without_a_signal_have_none_on_average():
    """g = 3 once in four times, else -1: the mean of what two have in common was 0.4."""
    pairs = list(itertools.product([3.0, -1.0, -1.0, -1.0], repeat=2))
    found = [
        training_statistics.signal_and_noise([np.array([[a], [b]])]) for a, b in pairs
    ]
    signal, noise = np.transpose(found)
    common = signal / (signal + 2 * noise)
    np.testing.assert_allclose(common.mean(), 0.4)
    assert training_statistics.ratio_of_means(signal, noise)[0] == 0.0


def test_siblings_count_as_one():
    """Four pairs of the same gradients are four gradients, not eight."""
    four = np.random.default_rng(0).normal(size=(4, 3))
    eight = np.repeat(four, 2, axis=0)
    assert training_statistics.signal_and_noise(
        [eight], 2
    ) == training_statistics.signal_and_noise([four])
    assert np.isnan(training_statistics.signal_and_noise([eight], 8)).all()


def test_a_planted_signal_comes_out():
    """|μ|² = 0.5 and tr Σ / E = (1 + 4 + 9) / 7 = 2: on average, within 4 deviations."""
    rng, mean, scale = np.random.default_rng(0), [0.5, 0.5, 0.0], [1.0, 2.0, 3.0]
    drawn = [
        training_statistics.signal_and_noise([rng.normal(mean, scale, (7, 3))])
        for _ in range(20_000)
    ]
    error = np.std(drawn, axis=0) / np.sqrt(len(drawn))
    assert (np.abs(np.mean(drawn, axis=0) - [0.5, 2.0]) < 4 * error).all()
    assert (error < [0.03, 0.01]).all()


@pytest.mark.parametrize(
    "baseline, shrunk, more", [(None, 1, 0), ("leave_one_out", 1, 1), ("mean", 2 / 3, 1)]
)
def test_where_the_others_are_in_the_baseline_signal_passes_for_less_noise(
    baseline, shrunk, more
):
    """By 1 / (E - 1)², over all outcomes of a bandit with two arms; none: exactly right.

    The mean shrinks each gradient to (E - 1) / E, and is leave-one-out otherwise.
    """
    policy = keras.Sequential(
        [
            keras.Input((1,), dtype="float64"),
            keras.layers.Dense(2, use_bias=False, dtype="float64"),
        ]
    )
    policy.set_weights([np.array([[0.3, -0.4]])])
    worth, count = np.array([1.0, 3.0]), 3
    p = np.exp([0.3, -0.4]) / np.exp([0.3, -0.4]).sum()
    truth = np.sum((p * (worth - p @ worth)) ** 2)
    ours, expected, moments = rule(baseline, policy=policy, gamma=1.0), 0.0, 0.0
    for arms in itertools.product([0, 1], repeat=count):
        record = tfr.Episodes(
            np.ones((2, count, 1)),
            np.array([arms]),
            worth[[arms]],
            np.ones(count, "int32"),
            np.ones(count, bool),
        )
        gradients = [g.numpy() for g in inspection.per_episode_gradients(ours, record)]
        mean, chance = rows(gradients).mean(axis=0), np.prod(p[list(arms)])
        expected += chance * np.array(training_statistics.signal_and_noise(gradients))
        moments += chance * np.array([mean @ mean, *mean])
    signal, more = truth * shrunk**2, more / (count - 1) ** 2
    variance = moments[0] - moments[1:] @ moments[1:]  # of the mean, that is, its noise
    right = [signal * (1 + more), variance - signal * more]
    np.testing.assert_allclose(expected, right, rtol=1e-12)


# The other figures


def test_explained_variance_is_a_square_of_a_correlation():
    """The best line through the data explains r² of it; a constant nothing."""
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


def test_the_divergence_is_that_of_two_normal_distributions():
    """KL(N(0, 1) ‖ N(m, 1)) = m²/2 and ESS → exp(-m²), within 4 deviations."""
    x, m = np.random.default_rng(0).normal(size=400_000), 0.5
    log_probs = -(x**2) / 2, -((x - m) ** 2) / 2
    kl, share = training_statistics.policy_change(*log_probs)
    assert abs(kl - m**2 / 2) < 4e-3
    assert abs(share - np.exp(-(m**2))) < 1e-2
    assert training_statistics.policy_change(log_probs[0], log_probs[0]) == (0.0, 1.0)


def test_ratios_beyond_all_numbers_are_still_a_large_divergence():
    kl, share = training_statistics.policy_change(
        np.zeros(2), np.array([-5000.0, 5000.0])
    )
    assert np.isfinite(kl) and kl > 1e3 and share == 0.5


def test_what_an_update_knows_of_each_step():
    record = given.record()
    seen = inspection.step_statistics(rule("leave_one_out"), record)
    wanted = [
        given.loop_advantages(record, baseline, {**given.DEFAULTS})
        for baseline in ("leave_one_out", None)
    ]
    for n, (e, t) in enumerate(zip(seen.episodes.numpy(), seen.times.numpy())):
        np.testing.assert_allclose(seen.advantages[n], wanted[0][e][t])
        np.testing.assert_allclose(seen.unbaselined_advantages[n], wanted[1][e][t])
    assert len(seen.returns) == sum(given.LENGTHS)
    np.testing.assert_allclose(seen.returns, seen.unbaselined_advantages)
    np.testing.assert_allclose(seen.max_entropies, np.log(2))
    assert np.isnan(seen.values).all()
    assert seen.relative_scales.shape[1] == seen.at_bounds.shape[1] == 0


@pytest.mark.parametrize("recurrent", [False, True])
def test_the_entropy_of_a_uniform_choice_is_among_the_legal_actions(recurrent):
    """ln 2, ln 3 and so on for each part of a nested action, under each step's mask."""
    head = heads.Composite({"gear": heads.Categorical(4), "lamps": heads.Bernoulli(2)})
    rng, (rows, count) = np.random.default_rng(0), (4, 3)
    legal = rng.integers(0, 2, (rows, count, 4))
    legal[..., 0] = 1
    free = rng.integers(0, 2, (rows, count, 2))  # 2 is free, 1 must be on
    record = tfr.Episodes(
        rng.normal(size=(rows + 1, count, 2)).astype("float32"),
        {
            "gear": np.zeros((rows, count), "int32"),
            "lamps": np.ones((rows, count, 2), "int32"),
        },
        rng.normal(size=(rows, count)),
        np.array([4, 2, 3], "int32"),
        np.array([True, True, False]),
        np.concatenate([legal, 1 + free], axis=-1).astype("int8"),
    )
    layers = [keras.layers.Dense(head.outputs_size)]
    shape = (2,)
    if recurrent:
        layers.insert(0, keras.layers.GRU(3, return_sequences=True))
        shape = (None, 2)
    policy = keras.Sequential([keras.Input(shape), *layers])
    agent = tfr.Reinforce(policy, head, action_mask="info/action_mask")
    seen = agent.step_statistics(record)
    expected = np.log(legal.sum(-1)) + np.log(2) * free.sum(-1)
    at = seen.times, seen.episodes
    np.testing.assert_allclose(seen.max_entropies, expected[at], rtol=1e-5, atol=1e-6)
    assert np.all(seen.entropies <= seen.max_entropies + 1e-5)
    assert seen.logits.shape == (9, 6) and np.abs(seen.logits).max() < 100  # no mask


def test_what_a_value_expects_is_told_beside_the_returns():
    ours = rule(baselines.Value(), policy=given.shared_network())
    seen = inspection.step_statistics(ours, given.record())
    np.testing.assert_allclose(seen.unbaselined_advantages - seen.advantages, seen.values)
    assert np.isfinite(seen.values).all()


def test_the_spread_is_in_half_widths_of_the_bounds():
    outputs = tf.zeros([1, 2])

    def spread(head, width=2):
        head.build((None, width))
        found = head.relative_scale(tf.zeros([1, width])).numpy()[0]
        return found.astype("float64").round(6).tolist()

    bounds = dict(low=[-2.0, 0.0], high=[2.0, 20.0])
    assert spread(heads.Gaussian(2, **bounds, initial_scale=[1.0, 1.0])) == [0.5, 0.1]
    assert spread(heads.ClippedGaussian(1, -2.0, 2.0, initial_scale=3.0), 1) == [1.5]
    assert spread(heads.TanhGaussian(1, -9.0, 9.0, initial_scale=0.5), 1) == [0.5]
    endless = heads.Gaussian(2, initial_scale=[5.0, 0.1])
    assert spread(endless) == [1.0, 1.0]
    endless.log_scale.assign(np.log([0.5, 0.1]))
    np.testing.assert_allclose(endless.relative_scale(outputs), [[0.1, 1.0]], rtol=1e-6)
    beta = heads.Beta(1, 0.0, 10.0)
    a, b = (x.numpy()[0, 0] for x in beta.parameters(outputs).values())
    deviation = np.sqrt(a * b / (a + b + 1)) / (a + b)
    np.testing.assert_allclose(beta.relative_scale(outputs), [[2 * deviation]], rtol=1e-6)
    both = heads.Composite((heads.Categorical(3), heads.Gaussian(1, low=-1.0, high=1.0)))
    assert spread(both, 4) == [1.0]
    assert spread(heads.Categorical(2)) == []


def test_at_a_bound_is_what_the_environment_receives_there():
    head = heads.Gaussian(1, low=-2.0, high=2.0)
    raw = tf.constant([[-5.0], [-2.0], [-1.99], [0.0], [1.99], [1.999], [2.0], [9.0]])
    assert head.at_bounds(raw)[:, 0].numpy().tolist() == [1, 1, 0, 0, 0, 1, 1, 1]
    squashed = heads.TanhGaussian(1, -2.0, 2.0)
    assert squashed.at_bounds(tf.constant([[-4.0], [0.0], [3.0], [4.0]]))[
        :, 0
    ].numpy().tolist() == [1, 0, 0, 1]
    for head in (heads.Gaussian(1), heads.Gaussian(1, low=-3e38, high=3e38)):
        assert not head.at_bounds(raw).numpy().any()
    whole = heads.Gaussian(1, low=0, high=2, integer=True)
    assert whole.at_bounds(raw).shape == (8, 0)
    both = heads.Composite((heads.Categorical(3), heads.Gaussian(1, low=-1.0, high=1.0)))
    actions = tf.constant([0, 1]), tf.constant([[7.0], [0.0]])
    assert both.at_bounds(actions).numpy().tolist() == [[True], [False]]


# From figures to a sentence

WELL = {
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
    "bounded_logits": 0.0,
    "kl": 0.01,
    "effective_sample_size": 0.98,
    "learning_rate": 0.01,
    "gradient_steps": 1.0,
    "entropy_coef": 0.01,
    "value_scale": 1.0,
    "value_shared": 0.0,
    "rewards_scaled": 0.0,
    "vector_env": 0.0,
    "stepping_share": 0.6,
    "acting_share": 0.2,
    "learning_share": 0.2,
}
ILL = {
    "rewards": [
        {"return_size": 1001.0, "explained_variance": 0.0},
        {"advantage_size": 2e5, "entropy_coef": 1e-3, "value_scale": np.nan},
    ],
    "learning_rate": [{"kl": 0.6}, {"kl": 60.0, "gradient_steps": 10.0}],
    "stale": [{"kl": 0.6, "gradient_steps": 2.0}],
    "bounded": [{"bounded_logits": 0.96}],
    "saturated": [{"at_bounds": 0.91, "spread": 3.0}, {"at_bounds": 0.91}],
    "collapsed": [{"entropy_share": 0.009}, {"spread": 0.009}],
    "value_baseline": [
        {"gradient_variance_removed": 0.09, "explained_variance": 0.01, "update": 20}
    ],
    "noise": [{"signal": 0.01}],
    "environment": [{"stepping_share": 0.96}, {"stepping_share": 0.96, "vector_env": 1}],
}


def said(change, count=20):
    changed = {**WELL, **change}
    steady = 1e-3 * (-1.0) ** np.arange(count)
    reports = [{**changed, "signal": changed["signal"] + x} for x in steady]
    reports[0]["update"] = changed["update"] - 20
    return advice.diagnose(reports)


@pytest.mark.parametrize("cause", list(advice.CAUSES))
def test_each_cause_speaks_for_itself_and_no_other_does(cause):
    for change in ILL[cause]:
        assert [finding.cause for finding in said(change)] == [cause], change
        assert said(change)[0].advice.endswith(".")


def test_all_is_well_up_to_the_limits():
    assert said({}) == []
    close = {
        "kl": 0.5,
        "entropy_share": 0.01,
        "at_bounds": 0.9,
        "bounded_logits": 0.95,
        "stepping_share": 0.95,
        "spread": 0.01,
        "return_size": 1000.0,
        "explained_variance": 0.0,
    }
    for name, value in close.items():
        assert said({name: value}) == [], name
    assert said({name: float("nan") for name in close}) == []


def test_what_is_not_sure_is_not_said():
    """Noise: fewer than ten reports, or reports that contradict each other."""
    assert said({"signal": 0.0}, count=9) == []
    rng = np.random.default_rng(0)
    reports = [{**WELL, "signal": x} for x in rng.normal(0.0, 1.0, 20)]
    assert advice.diagnose(reports) == []
    early = {"gradient_variance_removed": 0.0, "explained_variance": 0.0, "update": 19}
    assert said(early) == []


def test_the_numbers_of_the_advice():
    """KL goes with the square of the rate: 5 nats are 100 times 0.05."""
    assert "at most 0.001 (now 0.01)" in said({"kl": 5.0})[0].advice
    assert "at most 3 steps" in said({"kl": 5.0, "gradient_steps": 30.0})[0].advice
    text = said({"signal": 0.0})[0].advice  # 2 errors: 2 · 1e-3 / √20 · √(20/19)
    most = 2e-3 / np.sqrt(19)
    assert f"at least {advice._short(16 / most)} episodes" in text
    assert "or a baseline" not in text
    none = said({"signal": 0.0, "gradient_variance_removed": 0.0})[0].advice
    assert "or a baseline" in none


def test_noise_is_that_of_the_last_reports():
    """Fifty at most: a signal of long ago is none now."""
    long_ago, now = [{**WELL, "signal": 3.0}] * 100, {**WELL, "signal": 0.0}
    late = [{**now, "signal": x} for x in 1e-3 * (-1.0) ** np.arange(50)]
    (finding,) = advice.diagnose(long_ago + late)
    assert finding.advice.startswith("In the last 50 reports gradient noise is")


@pytest.mark.parametrize("late, asked", [(4.0, True), (8000.0, False)])
def test_noise_is_compared_at_the_size_of_the_batch_there_is(late, asked):
    """A thousand episodes make a ratio of one, whatever batches they were learned in."""
    sizes = [100.0] * 49 + [late]
    reports = [{**WELL, "episodes": e, "independent": e, "signal": 1.0} for e in sizes]
    reports = [{**r, "noise": 1000 / r["episodes"]} for r in reports]
    found = advice.diagnose(reports)
    assert bool(found) is asked
    if asked:
        assert "at least 1000 episodes per update (now 4)" in found[0].advice


@pytest.mark.parametrize("steps", [1, 3, 10])
def test_the_advised_rate_leaves_a_good_update(steps):
    """Where KL goes with the square of rate and steps: 0.05 in all, and not stale."""

    def report(rate):
        kl = 100.0 * (rate * steps) ** 2
        return {**WELL, "learning_rate": rate, "kl": kl, "gradient_steps": float(steps)}

    (finding,) = advice.diagnose([report(1.0)])
    assert finding.cause == "learning_rate"
    rate = float(re.search(r"at most (\S+) \(", finding.advice)[1])
    np.testing.assert_allclose(report(rate)["kl"], advice.GOOD_KL, rtol=0.1)
    assert advice.diagnose([report(rate)]) == []


def test_a_shared_value_is_told_what_it_can_do():
    """Without a model it has no scale and no epochs, and its policy puts out values."""
    useless = {**ILL["value_baseline"][0], "value_shared": 1.0}
    text = said(useless)[0].advice
    assert "loss_weight" in text and "a policy that outputs no values" in text
    assert "loss_weight" not in said({**useless, "value_shared": 0.0})[0].advice
    large = said({**ILL["rewards"][0], "value_shared": 1.0})[0].advice
    assert large.endswith(": set scale_rewards=True.")


def test_what_is_done_is_not_advised():
    """Scaled rewards that hardly vary are still large."""
    for change in ILL["rewards"]:
        advice = said({**change, "rewards_scaled": 1.0})[0].advice
        assert "scale_rewards" not in advice and "in common" in advice


def test_equal_gradients_are_all_signal():
    """Two equal episodes without a baseline: nothing differs, and all of it is ḡ."""
    seen = inspection.StepStatistics(*np.ones([11, 4]), logits=np.ones([4, 2]))
    for size in (3.0, 0.0):
        gradients = [np.full((2, 3), size)]
        found = training_statistics.batch_statistics(seen, gradients, gradients, 1)
        assert (found["signal"], found["noise"]) == (3 * size**2, 0.0)


@pytest.mark.parametrize("shared", [0.0, 1.0])
def test_leave_one_out_is_advised_with_the_lambda_that_it_takes(shared):
    """Below one it is refused."""
    text = said({**ILL["value_baseline"][0], "value_shared": shared})[0].advice
    assert text.endswith(' baseline="leave_one_out", gae_lambda=1.')
    with pytest.raises(ValueError, match="gae_lambda"):
        agent_for("CartPole-v1", baseline="leave_one_out", gae_lambda=0.9)
    agent_for("CartPole-v1", baseline="leave_one_out", gae_lambda=1)


def test_what_could_not_be_judged_is_named():
    nothing = float("nan")
    plain, valued = {**WELL, "value_scale": nothing}, {**WELL, "update": 20}

    def named(reports):
        return [words.split()[0] for words in advice.undetermined_causes(reports)]

    assert named([plain] * 9) == named([{**plain, "noise": nothing}] * 20) == ["noise"]
    assert named([plain] * 10) == named([valued] * 10) == []
    assert named([WELL] * 20 + [valued] * 2) == ["value_baseline"]
    assert named([WELL]) == ["noise", "value_baseline"]


def test_the_limits_and_their_reasons_are_documented():
    document = (ROOT / "docs" / "diagnostics.md").read_text()
    for name, limit in advice.THRESHOLDS.items():
        value = f"{limit.value:g}".replace("1e-05", "1e-5")
        assert re.search(rf"^\| `{name}` \| [<>] {value} \|", document, re.M), name
    for name in WELL:
        assert f"`{name}`" in document, name


# Eight situations on real environments, and a healthy one


def agent_for(env, **options):
    options = {"hidden": (16,), "learning_rate": 1e-2, **options}
    return tfr.Reinforce.for_env(env, **options)


@functools.cache
def cartpole():
    """An agent for CartPole, and what makes it new again; it is traced once."""
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


def millions():
    return gym.wrappers.TransformReward(gym.make("CartPole-v1"), lambda r: 1e6 * r)


def train(agent, env, epochs, every=1, **options):
    """The causes that come first in each report that has any, in order."""
    diagnostics = tfr.callbacks.Diagnostics(every, verbose=0)
    agent.fit(env, epochs=epochs, callbacks=[diagnostics], verbose=0, **options)
    first = {}
    for finding in diagnostics.findings:
        first.setdefault(finding.update, finding.cause)
    return list(first.values()), diagnostics


def test_a_healthy_training_has_nothing_to_change():
    agent, out = tfr.Reinforce.for_env("CartPole-v1"), io.StringIO()
    diagnostics = tfr.callbacks.Diagnostics(2, stream=out)
    history = agent.fit("CartPole-v1", epochs=24, callbacks=[diagnostics], verbose=0)
    assert max(history.history["episode_return"]) > 300
    assert diagnostics.findings == [] and len(diagnostics.history) == 12
    assert out.getvalue() == "Diagnostics: found nothing in 12 reports.\n"


def test_a_learning_rate_a_hundred_times_too_high():
    causes, seen = train(new_agent(learning_rate=1.0), "CartPole-v1", 2)
    assert causes == ["learning_rate"] * 2
    assert "(now 1)" in seen.findings[0].advice


def test_too_few_episodes():
    options = dict(learning_rate=1e-3, baseline=None, returns="whole", gamma=1.0)
    agent = agent_for("CartPole-v1", **options)
    causes, seen = train(agent, "CartPole-v1", 150, episodes_per_epoch=2)
    assert set(causes) == {"noise"}
    assert "episodes per update (now 2), or a baseline" in seen.findings[0].advice


@pytest.mark.parametrize("drowned", ["value_baseline", "entropy"])
def test_rewards_in_millions(drowned):
    part = (
        {"baseline": critic(1e-3)}
        if drowned == "value_baseline"
        else {"entropy_coef": 0.01}
    )
    causes, _ = train(agent_for("CartPole-v1", **part), millions, 3)
    assert causes == ["rewards"] * 3


def test_rewards_in_millions_that_are_scaled_are_no_trouble():
    """The advice is true."""
    agent = agent_for("CartPole-v1", entropy_coef=0.01, scale_rewards=True)
    assert train(agent, millions, 3)[0] == []


def test_a_collapsed_choice():
    agent = new_agent()
    agent.policy.layers[-1].bias.assign([9.0, 0.0])
    assert train(agent, "CartPole-v1", 2)[0] == ["collapsed"] * 2


def ending_in(activation):
    """An agent whose policy ends in an activation, with the seed of all weights."""
    keras.utils.set_random_seed(0)
    layers = [keras.Input((4,)), keras.layers.Dense(64, "tanh")]
    policy = keras.Sequential([*layers, keras.layers.Dense(2, activation=activation)])
    agent = tfr.Reinforce(policy, heads.Categorical(2))
    agent.compile(optimizer=keras.optimizers.Adam(1e-2))
    return agent


@pytest.mark.parametrize("activation", ["softmax", "sigmoid", None])
def test_logits_between_zero_and_one_cannot_become_sure(activation):
    """Linear ones of a policy that learns are not confused with them."""
    agent = ending_in(activation)
    warned = pytest.warns(UserWarning, match=f"activation=None.*ends in {activation}")
    with warned if activation else contextlib.nullcontext():
        agent.build((None, 4))
    causes, seen = train(agent, "CartPole-v1", 121, every=10, episodes_per_epoch=8)
    assert set(causes) == ({"bounded"} if activation else set())
    if activation:
        report = seen.history[seen.findings[0].update // 10]
        assert report["entropy_share"] > 0.84 and seen.findings[0].update >= 20


@pytest.mark.parametrize("end", ["small", "zero", "positive"])
def test_small_logits_of_a_new_policy_are_not_bounded(end):
    """Not if all of them are between 0 and 1, and none ever changes."""
    agent = agent_for("CartPole-v1", learning_rate=0.0)
    if end == "zero":
        agent.policy.layers[-1].kernel.assign(np.zeros([16, 2]))
    if end == "positive":
        agent.policy.layers[-1].bias.assign([0.5, 0.6])
    causes, seen = train(agent, "CartPole-v1", 23, episodes_per_epoch=2)
    assert "bounded" not in causes
    assert all(report["bounded_logits"] < 0.5 for report in seen.history)


def test_logits_are_bounded_in_three_reports_and_twenty_updates():
    reports = [{**WELL, "update": u, "bounded_logits": 1.0} for u in range(41)]
    assert advice.advise_on_bounded_logits(reports[:20]) is None
    assert advice.advise_on_bounded_logits(reports[:21]) is not None
    assert advice.advise_on_bounded_logits([reports[0], reports[20]]) is None
    outside = [{**reports[10], "bounded_logits": 0.0}]
    assert (
        advice.advise_on_bounded_logits(reports[:10] + outside + reports[11:31]) is None
    )
    assert (
        advice.advise_on_bounded_logits(reports[:10] + outside + reports[11:32])
        is not None
    )


def test_only_the_logits_of_a_composite_are_logits():
    head = heads.Composite({"a": heads.Categorical(2), "b": given.gaussian()})
    assert head.is_logit().tolist() == [True, True] + [False] * given.A


def test_a_collapsed_scale():
    head = heads.Gaussian(1, low=-2.0, high=2.0, initial_scale=1e-3)
    agent = agent_for("Pendulum-v1", head=head, learning_rate=1e-4)
    causes, _ = train(agent, "Pendulum-v1", 2, episodes_per_epoch=4)
    assert causes == ["collapsed"] * 2


def test_actions_at_a_bound():
    head = heads.Gaussian(1, low=-2.0, high=2.0, initial_scale=200.0)
    agent = agent_for("Pendulum-v1", head=head)
    causes, seen = train(agent, "Pendulum-v1", 2, episodes_per_epoch=4)
    assert causes == ["saturated"] * 2
    assert "smaller initial_scale" in seen.findings[0].advice


def test_a_critic_that_learns_nothing():
    agent = agent_for("CartPole-v1", learning_rate=1e-3, baseline=critic(1e-7))
    causes, _ = train(agent, "CartPole-v1", 25)
    assert (
        causes == ["value_baseline"] * 3
    )  # reports 22 to 24: three are asked for, from 20 on


def test_too_many_passes():
    causes, seen = train(agent_for("CartPole-v1", passes=60), "CartPole-v1", 2)
    assert causes == ["stale"] * 2
    assert seen.findings[0].advice.startswith("60 gradient steps")


class Slow(gym.Wrapper):
    """Each step takes a second of a clock that nothing else moves much."""

    now = 0.0

    def step(self, action):
        Slow.now += 1.0
        return super().step(action)


def look():
    Slow.now += 1e-3
    return Slow.now


@pytest.mark.parametrize("count", [1, 8])
def test_an_environment_that_takes_all_the_time(monkeypatch, count):
    """With eight side by side in one process a step takes as long as with one."""
    monkeypatch.setattr("time.perf_counter", look)
    told = []

    class Listener(tfr.callbacks.EpisodeCallback):
        def on_episodes_collected(self, episodes, logs=None):
            told.append(logs["stepping_seconds"] / episodes.lengths.sum())

    agent, diagnostics = new_agent(), tfr.callbacks.Diagnostics(verbose=0)
    agent.fit(
        lambda: Slow(gym.make("CartPole-v1")),
        epochs=2,
        num_envs=count,
        callbacks=[diagnostics, Listener()],
        verbose=0,
    )
    assert [f.cause for f in diagnostics.findings] == ["environment"]
    assert "num_envs does not change that" in diagnostics.findings[0].advice
    np.testing.assert_allclose(told, 1.0, rtol=0.01)


# The callback


def test_the_time_is_divided_among_three(monkeypatch):
    """A step takes 1, everything else a thousandth for each look at the clock."""
    monkeypatch.setattr("time.perf_counter", look)
    _, seen = train(new_agent(), lambda: Slow(gym.make("CartPole-v1")), 1)
    (report,) = seen.history
    shares = [report[f"{name}_share"] for name in ("stepping", "acting", "learning")]
    np.testing.assert_allclose(sum(shares), 1.0)
    assert 0.99 < shares[0] < 1 and 0 < shares[2] < shares[1]


def test_a_vector_env_is_told_apart():
    env = gym.make_vec("CartPole-v1", 2, "sync")
    _, seen = train(new_agent(), env, 1, episodes_per_epoch=4)
    env.close()
    assert seen.history[0]["vector_env"] == 1.0


def test_a_training_is_the_same_with_and_without():
    weights = []
    agent = agent_for("CartPole-v1", baseline=critic(1e-3), passes=2)
    rewind = rewinding(agent, gym.make("CartPole-v1"))
    for callbacks in ([], [tfr.callbacks.Diagnostics(verbose=0)]):
        rewind()
        agent.fit("CartPole-v1", epochs=2, callbacks=callbacks, verbose=0)
        weights.append([variable.numpy() for variable in agent.variables])
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)


def test_episodes_are_told_before_the_update_and_only_to_who_listens():
    heard = []

    class Listener(tfr.callbacks.EpisodeCallback):
        def on_episodes_collected(self, episodes, logs=None):
            heard.append((self.model.updates, logs["update"], episodes.count))

    agent = new_agent()
    deaf = keras.callbacks.LambdaCallback()
    options = dict(epochs=2, episodes_per_epoch=3, verbose=0)
    agent.fit("CartPole-v1", callbacks=[deaf, Listener()], **options)
    assert heard == [(0, 0, 3), (1, 1, 3)]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_lines_are_written_for_reports_that_find_something(stream):
    out = stream()
    diagnostics = tfr.callbacks.Diagnostics(2, verbose=2, stream=out)
    agent = new_agent(learning_rate=1.0)
    agent.fit("CartPole-v1", epochs=3, callbacks=[diagnostics], verbose=0)
    live = stream is Terminal
    lines = out.getvalue().removesuffix("\n").split("\n")
    clean = [line.strip("\r").removesuffix("\x1b[K") for line in lines]
    assert (clean != lines) is live
    assert clean[0].startswith("Update 0: signal / noise ") and " · KL " in clean[0]
    assert clean[1] == f"Update 0: {diagnostics.findings[0].advice}"
    assert clean[2].startswith("Update 2: ")
    assert clean[-1].startswith("Diagnostics: 2 of 2 reports found something; the first")
    assert [report["update"] for report in diagnostics.history] == [0, 2]


def test_reports_are_plain_floats():
    _, seen = train(new_agent(), "CartPole-v1", 1)
    assert set(seen.history[0]) == set(WELL)
    kinds = {name: type(x) for name, x in seen.history[0].items()}
    assert kinds == {**dict.fromkeys(WELL, float), "update": int}


def test_a_batch_that_teaches_nothing_has_no_report():
    agent = agent_for(lambda: toys.Clock(60), on_truncation="drop")
    env, options = lambda: toys.Clock(60), dict(max_episode_steps=3)
    _, seen = train(agent, env, 1, episodes_per_epoch=2, **options)
    assert seen.history == [] and seen.findings == []


def test_one_episode_has_no_noise_to_be_measured():
    diagnostics = tfr.callbacks.Diagnostics(stream=io.StringIO())
    agent = new_agent(learning_rate=1e-4)
    options = dict(epochs=1, episodes_per_epoch=1, verbose=0)
    agent.fit("CartPole-v1", callbacks=[diagnostics], **options)
    (report,) = diagnostics.history
    assert np.isnan([report["signal_to_noise"], report["noise"]]).all()
    assert np.isfinite(report["kl"])
    said = diagnostics._out.getvalue()
    assert said.startswith("Diagnostics: found nothing in 1 reports. Not judged: noise (")


def test_groups_of_which_some_episodes_are_left_out_are_not_judged():
    """
    column        0      1      2      3      4      5
    group         0      0      1      1      2      2
    kept          X      X      .      .      X      X      whole groups: judged
    kept          X      X      .      X      X      X      NaN
    """
    agent = tfr.Reinforce(
        given.network("float32"),
        heads.Categorical(given.A),
        baselines.LeaveOneOut(group_size=2),
        on_truncation="drop",
    )
    record = columns(given.record(dtype="float32"), [0, 1, 2, 3, 4, 0])
    for kept in ([0, 1, 4, 5], [0, 1, 3, 4, 5], [0, 3]):
        told = record._replace(terminated=np.isin(np.arange(6), kept))
        gradients = [g.numpy() for g in agent.per_episode_gradients(told)]
        plain = [g.numpy() for g in agent.per_episode_gradients(told, baseline=False)]
        report = training_statistics.batch_statistics(
            agent.step_statistics(told), gradients, plain, group_size=2
        )
        whole = len(kept) == 4
        assert report["independent"] == (2.0 if len(kept) != 5 else 3.0)
        assert report["episodes"] == len(kept)
        assert np.isfinite(report["signal"]) == np.isfinite(report["noise"]) == whole
        assert np.isfinite(report["gradient_variance_removed"]) == whole


class Pushed(gym.Env):
    """Observations N(5, 3) and rewards N(0, 1), ten times, whatever is done."""

    observation_space = gym.spaces.Box(-np.inf, np.inf, (4,))
    action_space = gym.spaces.Box(-1.0, 1.0, (1,))

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 10
        return self._seen(), {}

    def step(self, action):
        self.left -= 1
        return self._seen(), float(self.np_random.normal()), self.left == 0, False, {}

    def _seen(self):
        return self.np_random.normal(5.0, 3.0, 4).astype("float32")


def test_the_divergence_is_of_the_gradient_steps_alone():
    """The normalizer has learned meanwhile; a step of nearly zero moves no policy."""
    policy = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    agent = tfr.Reinforce(
        policy, heads.Gaussian(1, low=-1.0, high=1.0), normalize_observations=True
    )
    agent.compile(keras.optimizers.Adam(1e-9))
    _, seen = train(agent, Pushed, 2)
    for report in seen.history:
        assert report["kl"] < 1e-6 and report["effective_sample_size"] > 0.999
    assert float(agent.normalizer.bound) == 10.0  # what it has learned is there again


@pytest.mark.parametrize("passes", [sweeps.rare(1), 3])
def test_gradient_steps_are_counted_as_they_are_made(passes):
    """Half a part more makes one more: 50 steps in parts of 20 are three."""
    agent = agent_for(lambda: toys.Clock(5), minibatch_size=20, passes=passes)
    _, seen = train(agent, lambda: toys.Clock(5), 1, episodes_per_epoch=10)
    assert agent.env_steps == 50
    assert seen.history[0]["gradient_steps"] == int(agent.optimizer.iterations)
    assert seen.history[0]["gradient_steps"] == 3 * passes


# A second `fit`, and later reports


def test_reports_count_updates_from_the_beginning_of_a_fit():
    """And take the entropy coefficient of the update by the agent's own number."""
    schedule = keras.optimizers.schedules.PolynomialDecay(1.0, 4, 0.0)
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(2,), entropy_coef=schedule)
    options = dict(episodes_per_epoch=2, verbose=0)
    agent.fit("CartPole-v1", epochs=1, **options)
    diagnostics = tfr.callbacks.Diagnostics(every=2, verbose=0)
    agent.fit("CartPole-v1", epochs=3, callbacks=[diagnostics], **options)
    assert [report["update"] for report in diagnostics.history] == [1, 3]
    assert [report["entropy_coef"] for report in diagnostics.history] == [0.75, 0.25]


def test_shares_of_time_are_those_since_the_last_report(monkeypatch):
    monkeypatch.setattr("time.perf_counter", lambda: 0.0)
    agent = tfr.Reinforce.for_env(toys.Bandit, hidden=())
    record = agent.collect(toys.Bandit, 2)
    diagnostics = tfr.callbacks.Diagnostics(every=1, verbose=0)
    diagnostics.set_model(agent)
    diagnostics.on_train_begin()
    for update, seconds in enumerate((9.0, 1.0)):
        times = dict(stepping_seconds=seconds, acting_seconds=1.0)
        logs = dict(update=update, vector_env=False, **times)
        diagnostics.on_episodes_collected(record, logs)
        diagnostics.on_train_batch_end(0, {"learning_rate": 0.1})
    shares = [report["stepping_share"] for report in diagnostics.history]
    assert shares == [0.9, 0.5]


def test_episodes_of_a_group_are_not_independent():
    baseline = baselines.LeaveOneOut(group_size=2)
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(2,), baseline=baseline)
    diagnostics = tfr.callbacks.Diagnostics(every=1, verbose=0)
    options = dict(epochs=1, episodes_per_epoch=8, callbacks=[diagnostics], verbose=0)
    agent.fit("CartPole-v1", **options)
    assert diagnostics.history[0]["independent"] == 4.0


def test_a_critic_is_judged_by_its_last_reports():
    useless, useful = {**WELL, **ILL["value_baseline"][0]}, {**WELL, "update": 30}
    assert advice.diagnose([useless] * 20 + [useful] * 3) == []
    found = advice.diagnose([useful] * 20 + [useless] * 3)
    assert [finding.cause for finding in found] == ["value_baseline"]
