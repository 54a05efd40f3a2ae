"""The update is the definition: every promise about the gradient, from loops."""

import itertools

import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
from definitions import DEFAULTS
from definitions import LENGTHS
from definitions import OBSERVED
from definitions import TERMINATED
from definitions import A
from definitions import B
from definitions import T
from definitions import columns
from definitions import gaussian
from definitions import loop_advantages
from definitions import loop_returns
from definitions import network
from definitions import padded
from definitions import record
from definitions import same_bits
from definitions import shared_network

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce import config
from tf_reinforce import heads
from tf_reinforce.algorithm import estimator
from tf_reinforce.policies import normalization


def gradients(policy, head, baseline, episodes, **settings):
    given = {**DEFAULTS, **settings}
    rule = estimator.PolicyGradientEstimator(
        policy, head, baselines.get(baseline), None, config.AgentOptions(**given)
    )
    estimate = rule.gradients(episodes)
    return [np.asarray(gradient) for gradient in estimate.gradients], estimate.metrics


def categorical_slopes(logits, action):
    """∂ log π(a)/∂z, ∂H/∂z, log π(a) and H of a softmax."""
    probs = np.exp(logits) / np.exp(logits).sum()
    entropy = -sum(p * np.log(p) for p in probs)
    slopes = [-p * (np.log(p) + entropy) for p in probs]
    return np.eye(A)[action] - probs, slopes, np.log(probs[action]), entropy


def gaussian_slopes(mean, log_scale, action):
    """The same of a normal distribution, by mean and by log σ, one after the other."""
    z = (action - mean) / np.exp(log_scale)
    score = np.concatenate([z / np.exp(log_scale), z * z - 1])
    half = 0.5 * np.log(2 * np.pi)
    log_prob = sum(-0.5 * z * z - log_scale - half)
    entropy = sum(log_scale + half + 0.5)
    return score, [0] * A + [1] * A, log_prob, entropy


def definition(weights, episodes, baseline, settings):
    """Gradient of the loss, step by step and layer by layer; and the loss."""
    first, shift, last, *_ = weights = [np.asarray(w, "float64") for w in weights]
    found, loss = [np.zeros_like(w) for w in weights], 0.0
    advantages = loop_advantages(episodes, baseline, settings)
    for e, given in enumerate(advantages):
        for t, advantage in enumerate(given):
            x = np.asarray(episodes.observations[t, e], "float64")
            y = np.tanh(x @ first + shift)
            outputs, action = y @ last + weights[3], episodes.actions[t, e]
            score, slope, log_prob, entropy = (
                categorical_slopes(outputs, action)
                if len(weights) == 4
                else gaussian_slopes(outputs, weights[4], action)
            )
            coef = settings["entropy_coef"]
            loss -= (log_prob * advantage + coef * entropy) / B
            down = -(score * advantage + coef * np.asarray(slope)) / B
            back = (last @ down[:A]) * (1 - y * y)
            parts = np.outer(x, back), back, np.outer(y, down[:A]), down[:A], down[A:]
            for total, part in zip(found, parts, strict=False):
                total += part
    return found, loss


def close(found, expected, tolerance):
    """Equal, measured by the largest number: the sums of small ones cancel."""
    scale = max(1.0, *(np.abs(x).max() for x in expected))
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0, atol=tolerance * scale)


PRECISIONS = pytest.mark.parametrize(
    "dtype, tolerance", [("float32", 1e-6), ("float64", 1e-12)]
)
KINDS = pytest.mark.parametrize("kind", [heads.Categorical, heads.Gaussian])


RETURNS = [
    dict(gamma=gamma, returns=returns, discount_states=discount_states)
    for returns in ("to_go", "whole")
    for gamma, discount_states in ((1.0, False), (0.9, False), (0.9, True))
]
EXTRAS = [
    dict(scale_advantages=None, entropy_coef=0.0),
    dict(scale_advantages="batch", entropy_coef=0.3),
]


@PRECISIONS
@KINDS
@pytest.mark.parametrize("baseline", [None, "leave_one_out", "mean"])
def test_the_gradient_is_its_definition(kind, baseline, dtype, tolerance):
    policy, episodes = network(dtype), record(kind, dtype)
    head = heads.Categorical(A) if kind is heads.Categorical else gaussian(dtype)
    weights = [*policy.trainable_variables, *head.trainable_variables]
    extras = EXTRAS if dtype == "float64" else EXTRAS[1:]
    for kind_of_return, more in itertools.product(RETURNS, extras):
        settings = {**kind_of_return, **more}
        found, logs = gradients(policy, head, baseline, episodes, **settings)
        expected, loss = definition(weights, episodes, baseline, settings)
        close([*found, logs["loss"]], [*expected, loss], tolerance)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_half_precision_ends_before_the_log_probabilities(dtype):
    """They are exact for the outputs as rounded; in half precision 1e-3 would be lost."""
    x = keras.Input((OBSERVED,))
    policy = keras.Model(x, keras.layers.Dense(A, dtype=dtype)(x))
    episodes = record(dtype="float32")
    _, logs = gradients(policy, heads.Categorical(A), None, episodes)
    advantages, loss = loop_advantages(episodes, None, DEFAULTS), 0.0
    for e, given in enumerate(advantages):
        outputs = policy(episodes.observations[: len(given), e])
        assert outputs.dtype.size == 2
        for t, logits in enumerate(np.asarray(tf.cast(outputs, tf.float64))):
            log_prob = categorical_slopes(logits, episodes.actions[t, e])[2]
            loss -= log_prob * given[t] / B
    np.testing.assert_allclose(logs["policy_loss"], loss, rtol=1e-5)


@pytest.mark.parametrize(
    "kind, dtype, tolerance",
    [
        (heads.Categorical, "float32", 1e-6),
        sweeps.rare(heads.Categorical, "float64", 1e-12),
        sweeps.rare(heads.Gaussian, "float32", 1e-6),
        (heads.Gaussian, "float64", 1e-12),
    ],
)
def test_a_step_of_plain_descent_is_the_gradient(kind, dtype, tolerance):
    """SGD with learning rate 1: what the weights lose is the gradient."""
    policy, episodes = network(dtype), record(kind, dtype)
    head = heads.Categorical(A) if kind is heads.Categorical else gaussian(dtype)
    agent = tfr.Reinforce(policy, head, gamma=0.9, entropy_coef=0.1)
    agent.compile(optimizer=keras.optimizers.SGD(1.0))
    agent.build((None, OBSERVED))
    before = [v.numpy() for v in agent.policy_variables]
    settings = {**DEFAULTS, "entropy_coef": 0.1}
    expected, loss = definition(before, episodes, "leave_one_out", settings)
    logs = agent.update(episodes)
    lost = [b - v.numpy() for b, v in zip(before, agent.policy_variables, strict=True)]
    close([*lost, logs["loss"]], [*expected, loss], tolerance)
    norm = np.sqrt(sum((x * x).sum() for x in expected))
    np.testing.assert_allclose(logs["gradient_norm"], norm, rtol=tolerance)


def test_a_mean_over_steps_divides_by_their_number():
    """The same sum: only its divisor is another, in every loss that is summed up."""
    episodes, settings = record(), {**DEFAULTS, "entropy_coef": 0.1}
    policy = network()
    answers = {
        over: estimator.PolicyGradientEstimator(
            policy,
            heads.Categorical(A),
            baselines.LeaveOneOut(),
            None,
            config.AgentOptions(**{**settings, "mean_over": over}),
        ).gradients(episodes)
        for over in ("episodes", "steps")
    }
    (whole, logs, *_), (shared, other, *_) = answers.values()
    factor = len(episodes.lengths) / np.sum(episodes.lengths)
    for ours, theirs in zip(shared, whole, strict=True):
        np.testing.assert_allclose(ours, factor * theirs.numpy(), rtol=1e-12)
    np.testing.assert_allclose(other["loss"], factor * logs["loss"], rtol=1e-12)


def long_record(kind, dtype):
    """97 rows, 23 episodes: sums over this draw show in which order they were made."""
    rng, episodes = np.random.default_rng(1), record(kind, dtype)
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
def test_padding_changes_no_bit_of_loss_and_gradient(kind, dtype):
    policy, episodes = network(dtype), long_record(kind, dtype)
    head = heads.Categorical(A) if kind is heads.Categorical else gaussian(dtype)
    for baseline, scale in (("leave_one_out", None), ("mean", "batch")):
        rest = dict(scale_advantages=scale, entropy_coef=0.1)
        found, logs = gradients(policy, head, baseline, episodes, **rest)
        for rows in (0, 1, 7, 64):
            more = padded(episodes, rows)
            again, relogs = gradients(policy, head, baseline, more, **rest)
            same_bits([*found, logs["loss"]], [*again, relogs["loss"]])


def critic(dtype=None):
    layer = keras.layers.Dense(5, "tanh", bias_initializer="normal", dtype=dtype)
    return keras.Sequential(
        [keras.Input((OBSERVED,)), layer, keras.layers.Dense(1, dtype=dtype)]
    )


def everything(agent):
    owners = [agent, agent.optimizer, getattr(agent.baseline, "optimizer", None)]
    found = [v for owner in owners if owner is not None for v in owner.variables]
    return list({id(v): v for v in found}.values())


@pytest.mark.parametrize("valued, normalize", [(False, False), (True, True)])
def test_padding_changes_no_bit_of_the_weights_after_an_update(valued, normalize):
    """Two updates, so that the second is made under a normalizer that has learned."""
    agent = tfr.Reinforce(
        network("float32"),
        heads.Categorical(A),
        baselines.Value(critic()) if valued else "leave_one_out",
        normalize_observations=normalize,
    )
    agent.compile(optimizer=keras.optimizers.Adam(0.1))
    episodes = record(dtype="float32")
    agent.build((None, OBSERVED))
    agent.optimizer.build(agent.policy_variables)
    variables = everything(agent)
    fresh, ends = [v.numpy() for v in variables], []
    for rows in (0, 1, 7, 64):
        for variable, value in zip(variables, fresh, strict=True):
            variable.assign(value)
        for _ in range(2):
            agent.update(padded(episodes, rows) if rows else episodes)
        ends.append([v.numpy() for v in variables])
    assert not np.array_equal(ends[0][0], fresh[0])
    for end in ends[1:]:
        same_bits(ends[0], end)


def constant_critic(value):
    layer = keras.layers.Dense(
        1,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(value),
        dtype="float64",
    )
    return keras.Sequential([keras.Input((OBSERVED,), dtype="float64"), layer])


def targets(baseline, episodes, policy=None, **settings):
    given = {**DEFAULTS, **settings}
    policy = policy or network()
    rule = estimator.PolicyGradientEstimator(
        policy, heads.Categorical(A), baseline, None, config.AgentOptions(**given)
    )
    batch = rule.batch(episodes)
    return [batch.steps.scatter(x).numpy() for x in (batch.returns, batch.advantages)]


@pytest.mark.parametrize("limit", [1, 2, 5, 13])
def test_a_cut_does_not_show_where_the_value_is_exact(limit):
    """Reward 1 for ever is worth V = 1/(1-γ), whatever the clock says."""
    value = 1 / (1 - 0.9)
    episodes = tfr.Episodes(
        np.ones((limit + 1, B, OBSERVED)),
        np.zeros((limit, B), "int32"),
        np.ones((limit, B)),
        np.full(B, limit, "int32"),
        np.zeros(B, bool),
    )
    baseline = baselines.Value(constant_critic(value))
    returns, advantages = targets(baseline, episodes)
    np.testing.assert_allclose(returns, value, rtol=1e-12)
    np.testing.assert_allclose(advantages, 0, rtol=1e-12, atol=1e-12)
    ended = episodes._replace(terminated=np.ones(B, bool))
    returns, _ = targets(baseline, ended)
    np.testing.assert_allclose(returns[0], value * (1 - 0.9**limit), rtol=1e-12)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
def test_targets_are_generalised_advantages_plus_values(gae_lambda):
    """Aₜ = Σₖ (γλ)ᵏ δₜ₊ₖ; past an ending the value is zero, past a cut it is v(s_T)."""
    episodes, model, gamma = record(), critic("float64"), 0.9
    settings = dict(gamma=gamma, gae_lambda=gae_lambda)
    returns, advantages = targets(baselines.Value(model), episodes, **settings)
    for e, length in enumerate(LENGTHS):
        values = model(episodes.observations[: length + 1, e]).numpy()[:, 0]
        states = list(values[:-1])
        values[-1] *= not TERMINATED[e]
        rewards = episodes.rewards[:length, e]
        deltas = [rewards[t] + gamma * values[t + 1] - values[t] for t in range(length)]
        expected = loop_returns(deltas, gamma * gae_lambda)
        np.testing.assert_allclose(
            advantages[:length, e], expected, rtol=1e-12, atol=1e-12
        )
        lambda_returns = np.add(expected, states)
        np.testing.assert_allclose(
            returns[:length, e], lambda_returns, rtol=1e-12, atol=1e-12
        )


def test_the_policy_loss_sends_no_gradient_to_a_critic():
    model = critic("float64")
    settings = {**DEFAULTS, "gae_lambda": 0.5, "scale_advantages": "batch"}
    rule = estimator.PolicyGradientEstimator(
        network(),
        heads.Categorical(A),
        baselines.Value(model),
        None,
        config.AgentOptions(**settings),
    )
    with tf.GradientTape() as tape:
        logs = rule.gradients(record()).metrics
    trained = model.trainable_variables
    assert tape.gradient(logs["policy_loss"], trained) == [None] * len(trained)


def test_the_policy_loss_sends_no_gradient_through_a_shared_trunk_s_values():
    """With the value loss weighted zero, the layer of the values learns nothing."""
    policy = shared_network()
    baseline = baselines.Value(loss_weight=0.0)
    found, _ = gradients(policy, heads.Categorical(A), baseline, record())
    by_name = dict(zip([v.path for v in policy.trainable_variables], found, strict=True))
    assert {name for name, x in by_name.items() if not x.any()} == {
        "values/kernel",
        "values/bias",
    }


def test_a_critic_descends_half_its_squared_error_per_episode():
    """∂/∂w of 1/E Σ (v - G)²/2 by central differences, with G held constant."""
    model, episodes = critic("float64"), record()
    baseline = baselines.Value(model)
    rule = estimator.PolicyGradientEstimator(
        network(), heads.Categorical(A), baseline, None, config.AgentOptions(**DEFAULTS)
    )
    batch = rule.batch(episodes)
    returns = batch.steps.scatter(batch.returns)

    def loss():
        total = 0.0
        for e, length in enumerate(LENGTHS):
            values = model(episodes.observations[:length, e]).numpy()[:, 0]
            total += sum((values - returns.numpy()[:length, e]) ** 2) / 2 / B
        return total

    estimate = rule.gradients(episodes)
    found, logs = estimate.baseline_step.gradients, estimate.metrics
    np.testing.assert_allclose(logs["value_loss"], loss(), rtol=1e-12)
    close(found, differences(loss, model.trainable_variables), 1e-7)


def differences(loss, variables, step=1e-5):
    """∂loss/∂w for every number of every variable, by central differences."""
    found = []
    for variable in variables:
        value, slopes = variable.numpy(), np.zeros(variable.shape)
        for index in np.ndindex(*value.shape):
            sides = []
            for sign in (1, -1):
                moved = value.copy()
                moved[index] += sign * step
                variable.assign(moved)
                sides.append(loss())
            slopes[index] = (sides[0] - sides[1]) / (2 * step)
        variable.assign(value)
        found.append(slopes)
    return found


def test_a_shared_trunk_descends_the_stated_total_loss():
    """Policy, entropy and weighted value loss; advantages and targets held constant."""
    policy, episodes = shared_network(), record()
    baseline = baselines.Value(loss_weight=0.7)
    settings = dict(entropy_coef=0.2, gae_lambda=0.8)
    returns, advantages = targets(baseline, episodes, policy, **settings)

    def loss():
        total, ends = 0.0, policy(episodes.observations[:-1].reshape(-1, OBSERVED))
        outputs, values = (np.asarray(ends[k]) for k in ("outputs", "values"))
        for e, length in enumerate(LENGTHS):
            for t in range(length):
                n = t * B + e
                _, _, log_prob, entropy = categorical_slopes(
                    outputs[n], episodes.actions[t, e]
                )
                total -= log_prob * advantages[t, e] + 0.2 * entropy
                total += 0.7 * (values[n, 0] - returns[t, e]) ** 2 / 2
        return total / B

    found, logs = gradients(policy, heads.Categorical(A), baseline, episodes, **settings)
    np.testing.assert_allclose(logs["loss"], loss(), rtol=1e-12)
    close(found, differences(loss, policy.trainable_variables), 1e-8)


@pytest.mark.parametrize("baseline", [None, "leave_one_out", "mean"])
def test_the_order_of_the_episodes_does_not_matter(baseline):
    policy, head, episodes = network(), heads.Categorical(A), record()
    found, _ = gradients(policy, head, baseline, episodes)
    other = columns(episodes, [3, 0, 4, 2, 1])
    close(gradients(policy, head, baseline, other)[0], found, 1e-13)


def test_a_batch_taken_twice_has_the_same_gradient():
    policy, head, episodes = network(), heads.Categorical(A), record()
    twice = columns(episodes, [*range(B), *range(B)])
    found, _ = gradients(policy, head, None, episodes, entropy_coef=0.1)
    close(gradients(policy, head, None, twice, entropy_coef=0.1)[0], found, 1e-13)


@pytest.mark.parametrize("baseline", [None, "leave_one_out", "mean"])
def test_the_gradient_is_linear_in_the_rewards(baseline):
    """To the bit, for a power of two."""
    policy, head, episodes = network(), heads.Categorical(A), record()
    found, _ = gradients(policy, head, baseline, episodes)
    quarter = episodes._replace(rewards=episodes.rewards / 4)
    again, _ = gradients(policy, head, baseline, quarter)
    same_bits([x / 4 for x in found], again)


@pytest.mark.parametrize("scale", [None, "batch"])
@pytest.mark.parametrize("baseline", [None, "leave_one_out", "mean"])
def test_no_reward_teaches_nothing(baseline, scale):
    episodes = record()._replace(rewards=np.zeros((T, B)))
    found, _ = gradients(
        network(), heads.Categorical(A), baseline, episodes, scale_advantages=scale
    )
    assert not any(x.any() for x in found)


def test_one_episode_alone_has_no_others_to_leave_it_out_of():
    policy, head = network(), heads.Categorical(A)
    alone = columns(record(), [3])
    found, _ = gradients(policy, head, "leave_one_out", alone)
    expected, _ = gradients(policy, head, None, alone)
    assert found[0].any()
    same_bits(found, expected)


# What one update learns from, as loops


def ruled(baseline=None, policy=None, normalizer=None, **settings):
    """An estimator for two choices, with other settings than the defaults."""
    parts = {k: settings.pop(k) for k in ("scales", "updates") if k in settings}
    return estimator.PolicyGradientEstimator(
        policy or network(),
        heads.Categorical(A),
        baselines.get(baseline),
        normalizer,
        config.AgentOptions(**{**DEFAULTS, **settings}),
        **parts,
    )


def running_scale(*samples):
    scale = normalization.RunningScale()
    scale.build(())
    for sample in samples:
        scale.update(sample)
    return scale


def by_row(given):
    """Lists of steps, one for each episode, in the order of a batch: rows first."""
    return [x[t] for t in range(T) for x in given if t < len(x)]


@pytest.mark.parametrize("returns", ["to_go", "whole"])
@pytest.mark.parametrize("scale", [None, "batch"])
@pytest.mark.parametrize("discounted", [False, True])
def test_a_batch_is_its_definition(returns, scale, discounted):
    settings = {**DEFAULTS, "returns": returns, "scale_advantages": scale}
    settings["discount_states"] = discounted
    episodes = record()
    batch = ruled("mean", **settings).batch(padded(episodes, 3))
    expected = loop_advantages(episodes, "mean", settings)
    np.testing.assert_allclose(batch.advantages, by_row(expected), rtol=1e-11)
    plain = loop_advantages(episodes, "mean", {**settings, "scale_advantages": None})
    share = np.divide(by_row(expected), by_row(plain))
    credited = loop_advantages(episodes, None, {**settings, "scale_advantages": None})
    np.testing.assert_allclose(
        batch.unbaselined_advantages, share * by_row(credited), rtol=1e-11
    )
    columns = [episodes.rewards[:n, e] for e, n in enumerate(LENGTHS)]
    targets = [loop_returns(rewards, settings["gamma"]) for rewards in columns]
    np.testing.assert_allclose(batch.returns, by_row(targets), rtol=1e-11)
    assert batch.episodes.rewards.shape == (T, B) and batch.scale_samples == {}
    assert int(batch.num_episodes) == B and float(batch.divisor) == B


@pytest.mark.parametrize("rewards", [1.0, -1e5])
def test_equal_returns_are_divided_by_more_than_their_rounding(rewards):
    """The divisor is 1e-8 and a 1e-12th of the largest return, where nothing differs."""
    rule = ruled("mean", gamma=0.0, scale_advantages="batch")
    alike = record()._replace(rewards=np.full((T, B), rewards))
    batch = rule.batch(alike)
    np.testing.assert_array_equal(batch.advantages, 0.0)
    size = 1e-8 + 1e-12 * abs(rewards)
    np.testing.assert_allclose(batch.unbaselined_advantages, rewards / size, rtol=1e-12)


def test_a_truncated_episode_is_bootstrapped_ended_or_dropped():
    episodes, value = record(), 5.0
    for truncation in ("bootstrap", "terminal", "drop"):
        rule = ruled(baselines.Value(constant_critic(value)), on_truncation=truncation)
        batch = rule.batch(episodes)
        expected = []
        for e, length in enumerate(LENGTHS):
            kept = TERMINATED[e] or truncation != "drop"
            rewards = list(episodes.rewards[:length, e]) if kept else []
            if kept and truncation == "bootstrap" and not TERMINATED[e]:
                rewards[-1] += DEFAULTS["gamma"] * value
            expected.append(loop_returns(rewards, DEFAULTS["gamma"]))
        np.testing.assert_allclose(batch.returns, by_row(expected), rtol=1e-11)
        shifted = np.subtract(by_row(expected), value)
        np.testing.assert_allclose(batch.advantages, shifted, rtol=1e-11)
        count = sum(map(bool, expected))
        assert int(batch.num_episodes) == float(batch.divisor) == count
    nobody = ruled(on_truncation="drop", mean_over="steps").batch(
        episodes._replace(terminated=np.zeros(B, bool))
    )
    assert int(nobody.num_episodes) == float(nobody.divisor) == 1.0
    assert nobody.returns.shape == (0,)


@pytest.mark.parametrize("seen", [(), (np.array([3.0, -4.0, 5.0]),)], ids=["new", "old"])
def test_running_scales_divide_rewards_and_advantages_and_learn_last(seen):
    """By the size of earlier samples; the first batch is divided by its own size."""
    episodes = record()
    columns = [episodes.rewards[:n, e] for e, n in enumerate(LENGTHS)]
    returns = [loop_returns(rewards, DEFAULTS["gamma"]) for rewards in columns]

    def size(own):
        return np.sqrt(np.mean(np.square(seen[0] if seen else own)))

    scaled = episodes._replace(rewards=episodes.rewards / size(by_row(returns)))
    advantages = by_row(loop_advantages(scaled, "mean", DEFAULTS))
    credited = by_row(loop_advantages(scaled, None, DEFAULTS))
    scales = {name: running_scale(*seen) for name in ("rewards", "advantages")}
    rule = ruled("mean", scales=scales)
    batch = rule.batch(episodes)
    np.testing.assert_allclose(
        batch.scale_samples["rewards"], by_row(returns), rtol=1e-11
    )
    np.testing.assert_allclose(batch.scale_samples["advantages"], advantages, rtol=1e-11)
    divisor = size(advantages)
    np.testing.assert_allclose(batch.advantages, advantages / divisor, rtol=1e-11)
    np.testing.assert_allclose(
        batch.unbaselined_advantages, np.divide(credited, divisor), rtol=1e-11
    )
    rule.update_statistics(batch, rule.baseline_step(batch))
    for name, samples in (("rewards", by_row(returns)), ("advantages", advantages)):
        together = np.concatenate([*seen, samples])
        assert int(scales[name].count) == len(together)
        found = scales[name](tf.constant(1.0, tf.float64), None)
        np.testing.assert_allclose(1 / found, np.sqrt(np.mean(together**2)), rtol=1e-11)


def test_squares_are_those_of_what_the_statistics_take_in():
    """Whole numbers of an observation are not normalised and are left out."""
    episodes = record()
    inside = np.arange(T)[:, None] < LENGTHS
    nested = {"a": episodes.observations, "b": np.full((T + 1, B, 2), 7)}
    layer = normalization.RunningNormalization()
    seen = episodes._replace(observations=nested)
    rule = ruled(scales={"rewards": running_scale()}, normalizer=layer)
    batch = rule.batch(episodes)
    truth = [
        np.sum(np.square(batch.scale_samples["rewards"])),
        np.sum(np.square(episodes.observations[:T][inside])),
    ]
    np.testing.assert_allclose(rule.sums_of_squares(seen, batch), truth, rtol=1e-12)
    plain = ruled(scales={"rewards": running_scale()})
    np.testing.assert_allclose(plain.sums_of_squares(seen, batch), truth[:1], rtol=1e-12)


def test_a_scaled_loss_has_the_same_gradients_and_is_logged_as_it_is():
    rule = ruled("mean")
    batch = rule.batch(record())
    plain, logs = rule.policy_gradients(batch)
    scaled, same = rule.policy_gradients(batch, scale_loss=lambda loss: 64.0 * loss)
    for ours, theirs in zip(scaled, plain, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    for name in ("loss", "policy_loss", "entropy", "gradient_norm"):
        np.testing.assert_allclose(same[name], logs[name], rtol=1e-12)


def test_the_logs_are_the_mean_entropy_and_the_effective_sample_size():
    """(Σρ)² / (n Σρ²) of the ratios of probabilities, before their bound."""
    rule = ruled("mean", ratio_clip=1.5)
    batch = rule.batch(record())
    actions = rule.distribution(batch)
    now, changes = actions.log_prob(batch.actions).numpy(), np.linspace(-3, 2, 20)
    _, logs = rule.policy_gradients(batch, acting_log_probs=tf.constant(now - changes))
    np.testing.assert_allclose(logs["entropy"], np.mean(actions.entropy()), rtol=1e-12)
    ratios = np.exp(changes)
    size = ratios.sum() ** 2 / (20 * np.sum(ratios**2))
    np.testing.assert_allclose(logs["effective_sample_size"], size, rtol=1e-12)
    assert rule.policy_gradients(batch)[1]["effective_sample_size"] == 1.0
    far = tf.constant(now - np.repeat([1000.0, 0.0], [5, 15]))
    _, logs = rule.policy_gradients(batch, acting_log_probs=far)
    np.testing.assert_allclose(logs["effective_sample_size"], 5 / 20, rtol=1e-12)


def test_no_gradient_flows_from_returns_and_advantages_to_a_critic():
    model = critic("float64")
    rule = ruled(baselines.Value(model), gae_lambda=0.5)
    with tf.GradientTape(persistent=True) as tape:
        batch = rule.batch(record())
    trained = model.trainable_variables
    for numbers in (batch.returns, batch.advantages):
        assert tape.gradient(numbers, trained) == [None] * len(trained)


class Eighths(keras.optimizers.schedules.LearningRateSchedule):
    """An eighth for each update."""

    def __call__(self, step):
        return 0.125 * tf.cast(step, tf.float64)

    def get_config(self):
        return {}


def test_the_coefficient_of_the_entropy_may_depend_on_the_updates():
    fixed, scheduled, started = (
        ruled("mean", **options).gradients(record())[0]
        for options in (
            dict(entropy_coef=0.375),
            dict(entropy_coef=Eighths(), updates=lambda: 3),
            dict(entropy_coef=Eighths(), updates=lambda: tf.constant(3)),
        )
    )
    for first, second, third in zip(fixed, scheduled, started, strict=True):
        np.testing.assert_allclose(first, second, rtol=1e-12)
        np.testing.assert_allclose(first, third, rtol=1e-12)


def test_the_loss_of_a_critic_is_logged_and_that_of_a_shared_trunk_is_in_the_loss():
    episodes = record()
    apart = ruled(baselines.Value(critic("float64")))
    estimate = apart.gradients(episodes)
    loss, slopes = apart.baseline.gradients(estimate.baseline_step.batch)
    np.testing.assert_allclose(estimate.metrics["value_loss"], loss, rtol=1e-12)
    assert estimate.metrics["loss"] == estimate.metrics["policy_loss"]
    for ours, theirs in zip(estimate.baseline_step.gradients, slopes, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)
    shared = baselines.Value(loss_weight=0.25)
    estimate = ruled(shared, policy=shared_network()).gradients(episodes)
    assert estimate.baseline_step.gradients == []
    logs = estimate.metrics
    total = logs["policy_loss"] + 0.25 * logs["value_loss"]
    np.testing.assert_allclose(logs["loss"], total, rtol=1e-12)


class Careless(baselines.Baseline):
    """Returns what it is made with."""

    def __init__(self, answer):
        super().__init__()
        self.answer = answer

    def estimate(self, returns, valid, values):
        return self.answer


def test_a_baseline_must_return_one_number_for_each_return():
    right = tf.zeros((T, B), tf.float64)
    ruled(Careless(right)).batch(record())
    for wrong in (right[..., None], right[0], tf.cast(right, tf.float32)):
        with pytest.raises(ValueError, match="a baseline for each return"):
            ruled(Careless(wrong)).batch(record())
    for wrong in (right[:-1], right[:, :1], tf.transpose(right)):
        with pytest.raises(tf.errors.InvalidArgumentError, match="baseline for each"):
            ruled(Careless(wrong)).batch(record())


def test_layers_are_in_inference_mode_and_what_they_add_is_in_the_loss():
    x = keras.Input((OBSERVED,), dtype="float64")
    y = keras.layers.Dropout(0.5, dtype="float64")(x)
    penalty = keras.regularizers.L2(0.125)
    y = keras.layers.Dense(A, dtype="float64", kernel_regularizer=penalty)(y)
    rule = ruled("mean", policy=keras.Model(x, y))
    batch = rule.batch(record())
    weights = rule.policy.get_weights()
    rows = batch.steps.gather(batch.episodes.observations).numpy()
    np.testing.assert_allclose(
        rule.outputs(batch)[0], rows @ weights[0] + weights[1], rtol=1e-12
    )
    _, logs = rule.policy_gradients(batch)
    np.testing.assert_allclose(
        logs["loss"] - logs["policy_loss"], 0.125 * np.sum(weights[0] ** 2), rtol=1e-12
    )
