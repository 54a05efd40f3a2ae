"""Tests that gradients, losses and targets of the estimator equal loops over steps."""

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
from tf_reinforce import heads
from tf_reinforce.engine.update import estimator
from tf_reinforce.policies import normalization
from tf_reinforce.settings import config


def gradients(policy, head, baseline, episodes, **settings):
    options = {**DEFAULTS, **settings}
    estimator_ = estimator.PolicyGradientEstimator(
        policy, head, baselines.get(baseline), None, config.AgentOptions(**options)
    )
    estimate = estimator_.gradients(episodes)
    return [np.asarray(gradient) for gradient in estimate.gradients], estimate.metrics


def categorical_gradients(logits, action):
    """Returns ∂ log π(a)/∂z, ∂H/∂z, log π(a) and H of a softmax policy."""
    probs = np.exp(logits) / np.exp(logits).sum()
    entropy = -sum(p * np.log(p) for p in probs)
    entropy_gradients = [-p * (np.log(p) + entropy) for p in probs]
    return np.eye(A)[action] - probs, entropy_gradients, np.log(probs[action]), entropy


def gaussian_gradients(mean, log_scale, action):
    """Returns the gradients by mean and log σ, log π(a) and H of a normal
    distribution.
    """
    z = (action - mean) / np.exp(log_scale)
    score = np.concatenate([z / np.exp(log_scale), z * z - 1])
    half = 0.5 * np.log(2 * np.pi)
    log_prob = sum(-0.5 * z * z - log_scale - half)
    entropy = sum(log_scale + half + 0.5)
    return score, [0] * A + [1] * A, log_prob, entropy


def definition(weights, episodes, baseline, settings):
    """Returns the gradient of the loss, computed per step and per layer, and the loss."""
    first, shift, last, *_ = weights = [np.asarray(w, "float64") for w in weights]
    gradients, loss = [np.zeros_like(w) for w in weights], 0.0
    advantages = loop_advantages(episodes, baseline, settings)
    for e, episode_advantages in enumerate(advantages):
        for t, advantage in enumerate(episode_advantages):
            x = np.asarray(episodes.observations[t, e], "float64")
            y = np.tanh(x @ first + shift)
            outputs, action = y @ last + weights[3], episodes.actions[t, e]
            score, entropy_gradient, log_prob, entropy = (
                categorical_gradients(outputs, action)
                if len(weights) == 4
                else gaussian_gradients(outputs, weights[4], action)
            )
            coef = settings["entropy_coef"]
            loss -= (log_prob * advantage + coef * entropy) / B
            by_outputs = -(score * advantage + coef * np.asarray(entropy_gradient)) / B
            by_hidden = (last @ by_outputs[:A]) * (1 - y * y)
            parts = (
                np.outer(x, by_hidden),
                by_hidden,
                np.outer(y, by_outputs[:A]),
                by_outputs[:A],
                by_outputs[A:],
            )
            for total, part in zip(gradients, parts, strict=False):
                total += part
    return gradients, loss


def assert_close(actual, expected, tolerance):
    """Asserts equality relative to the largest number, because sums of small numbers
    cancel.
    """
    scale = max(1.0, *(np.abs(x).max() for x in expected))
    for a, b in zip(actual, expected, strict=True):
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
@pytest.mark.parametrize("baseline", [sweeps.rare(None), "leave_one_out", "mean"])
def test_gradient_and_loss_equal_a_loop_over_steps(kind, baseline, dtype, tolerance):
    policy, episodes = network(dtype), record(kind, dtype)
    head = heads.Categorical(A) if kind is heads.Categorical else gaussian(dtype)
    weights = [*policy.trainable_variables, *head.trainable_variables]
    extras = EXTRAS if dtype == "float64" else EXTRAS[1:]
    for kind_of_return, more in itertools.product(RETURNS, extras):
        settings = {**kind_of_return, **more}
        actual, logs = gradients(policy, head, baseline, episodes, **settings)
        expected, loss = definition(weights, episodes, baseline, settings)
        assert_close([*actual, logs["loss"]], [*expected, loss], tolerance)


@pytest.mark.parametrize("dtype", ["mixed_float16", "mixed_bfloat16"])
def test_log_probabilities_of_half_precision_outputs_are_in_float32(dtype):
    """In half precision, the log-probabilities would have a relative error of 1e-3."""
    x = keras.Input((OBSERVED,))
    policy = keras.Model(x, keras.layers.Dense(A, dtype=dtype)(x))
    episodes = record(dtype="float32")
    _, logs = gradients(policy, heads.Categorical(A), None, episodes)
    advantages, loss = loop_advantages(episodes, None, DEFAULTS), 0.0
    for e, episode_advantages in enumerate(advantages):
        outputs = policy(episodes.observations[: len(episode_advantages), e])
        assert outputs.dtype.size == 2
        for t, logits in enumerate(np.asarray(tf.cast(outputs, tf.float64))):
            log_prob = categorical_gradients(logits, episodes.actions[t, e])[2]
            loss -= log_prob * episode_advantages[t] / B
    np.testing.assert_allclose(logs["policy_loss"], loss, rtol=1e-5)


def test_mean_over_steps_divides_by_the_number_of_steps():
    """Both options sum the same terms. Only the divisor differs."""
    episodes, settings = record(), {**DEFAULTS, "entropy_coef": 0.1}
    policy = network()
    estimates = {
        over: estimator.PolicyGradientEstimator(
            policy,
            heads.Categorical(A),
            baselines.LeaveOneOut(),
            None,
            config.AgentOptions(**{**settings, "mean_over": over}),
        ).gradients(episodes)
        for over in ("episodes", "steps")
    }
    (by_episodes, logs, *_), (by_steps, other, *_) = estimates.values()
    factor = len(episodes.lengths) / np.sum(episodes.lengths)
    for actual, expected in zip(by_steps, by_episodes, strict=True):
        np.testing.assert_allclose(actual, factor * expected.numpy(), rtol=1e-12)
    np.testing.assert_allclose(other["loss"], factor * logs["loss"], rtol=1e-12)


def long_record(kind, dtype):
    """Returns 23 episodes with 97 rows, so that a different order of summation changes
    bits.
    """
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
def test_loss_and_gradient_do_not_depend_on_padding(kind, dtype):
    policy, episodes = network(dtype), long_record(kind, dtype)
    head = heads.Categorical(A) if kind is heads.Categorical else gaussian(dtype)
    for baseline, scale in (("leave_one_out", None), ("mean", "batch")):
        rest = dict(scale_advantages=scale, entropy_coef=0.1)
        actual, logs = gradients(policy, head, baseline, episodes, **rest)
        for rows in (0, 1, 7, 64):
            padded_episodes = padded(episodes, rows)
            repeated, repeated_logs = gradients(
                policy, head, baseline, padded_episodes, **rest
            )
            same_bits([*actual, logs["loss"]], [*repeated, repeated_logs["loss"]])


def value_model(dtype=None):
    layer = keras.layers.Dense(5, "tanh", bias_initializer="normal", dtype=dtype)
    return keras.Sequential(
        [keras.Input((OBSERVED,)), layer, keras.layers.Dense(1, dtype=dtype)]
    )


def constant_value_model(value):
    layer = keras.layers.Dense(
        1,
        kernel_initializer="zeros",
        bias_initializer=keras.initializers.Constant(value),
        dtype="float64",
    )
    return keras.Sequential([keras.Input((OBSERVED,), dtype="float64"), layer])


def targets(baseline, episodes, policy=None, **settings):
    options = {**DEFAULTS, **settings}
    policy = policy or network()
    estimator_ = estimator.PolicyGradientEstimator(
        policy, heads.Categorical(A), baseline, None, config.AgentOptions(**options)
    )
    batch = estimator_.batch(episodes)
    return [batch.steps.scatter(x).numpy() for x in (batch.returns, batch.advantages)]


@pytest.mark.parametrize("limit", [1, 2, 5, 13])
def test_advantage_of_truncated_episode_is_zero_if_the_value_is_exact(limit):
    """The return of an infinite episode with reward 1 is V = 1/(1-γ), for every time
    limit.
    """
    value = 1 / (1 - 0.9)
    episodes = tfr.Episodes(
        np.ones((limit + 1, B, OBSERVED)),
        np.zeros((limit, B), "int32"),
        np.ones((limit, B)),
        np.full(B, limit, "int32"),
        np.zeros(B, bool),
    )
    baseline = baselines.Value(constant_value_model(value))
    returns, advantages = targets(baseline, episodes)
    np.testing.assert_allclose(returns, value, rtol=1e-12)
    np.testing.assert_allclose(advantages, 0, rtol=1e-12, atol=1e-12)
    terminated = episodes._replace(terminated=np.ones(B, bool))
    returns, _ = targets(baseline, terminated)
    np.testing.assert_allclose(returns[0], value * (1 - 0.9**limit), rtol=1e-12)


@pytest.mark.parametrize("gae_lambda", [0.0, 0.7, 1.0])
def test_advantages_equal_gae_and_targets_add_the_values(gae_lambda):
    """Aₜ = Σₖ (γλ)ᵏ δₜ₊ₖ.

    After termination the value is zero, after truncation it is v(s_T).
    """
    episodes, model, gamma = record(), value_model("float64"), 0.9
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


def central_differences(loss, variables, step=1e-5):
    """Returns ∂loss/∂w for every entry of every variable, by central differences."""
    results = []
    for variable in variables:
        value, gradient = variable.numpy(), np.zeros(variable.shape)
        for index in np.ndindex(*value.shape):
            losses = []
            for sign in (1, -1):
                shifted = value.copy()
                shifted[index] += sign * step
                variable.assign(shifted)
                losses.append(loss())
            gradient[index] = (losses[0] - losses[1]) / (2 * step)
        variable.assign(value)
        results.append(gradient)
    return results


def test_gradient_of_shared_layers_is_that_of_the_total_loss():
    """The loss sums policy, entropy and value terms.

    Advantages and targets are constants.
    """
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
                _, _, log_prob, entropy = categorical_gradients(
                    outputs[n], episodes.actions[t, e]
                )
                total -= log_prob * advantages[t, e] + 0.2 * entropy
                total += 0.7 * (values[n, 0] - returns[t, e]) ** 2 / 2
        return total / B

    actual, logs = gradients(policy, heads.Categorical(A), baseline, episodes, **settings)
    np.testing.assert_allclose(logs["loss"], loss(), rtol=1e-12)
    assert_close(actual, central_differences(loss, policy.trainable_variables), 1e-8)


@pytest.mark.parametrize("scale", [None, "batch"])
@pytest.mark.parametrize("baseline", [None, "leave_one_out", "mean"])
def test_gradient_is_zero_if_all_rewards_are_zero(baseline, scale):
    episodes = record()._replace(rewards=np.zeros((T, B)))
    actual, _ = gradients(
        network(), heads.Categorical(A), baseline, episodes, scale_advantages=scale
    )
    assert not any(x.any() for x in actual)


# Batches of an update, compared with loops


def make_estimator(baseline=None, policy=None, normalizer=None, **settings):
    """Returns an estimator for two actions, with other settings than the defaults."""
    parts = {k: settings.pop(k) for k in ("scales", "num_updates") if k in settings}
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


def by_row(episodes):
    """Returns the steps of all episodes in the order of a batch, row by row."""
    return [x[t] for t in range(T) for x in episodes if t < len(x)]


@pytest.mark.parametrize("returns", ["to_go", "whole"])
@pytest.mark.parametrize("scale", [None, "batch"])
@pytest.mark.parametrize("discounted", [False, True])
def test_batch_returns_and_advantages_equal_loops(returns, scale, discounted):
    settings = {**DEFAULTS, "returns": returns, "scale_advantages": scale}
    settings["discount_states"] = discounted
    episodes = record()
    batch = make_estimator("mean", **settings).batch(padded(episodes, 3))
    expected = loop_advantages(episodes, "mean", settings)
    np.testing.assert_allclose(batch.advantages, by_row(expected), rtol=1e-11)
    plain = loop_advantages(episodes, "mean", {**settings, "scale_advantages": None})
    share = np.divide(by_row(expected), by_row(plain))
    unbaselined = loop_advantages(episodes, None, {**settings, "scale_advantages": None})
    np.testing.assert_allclose(
        batch.unbaselined_advantages, share * by_row(unbaselined), rtol=1e-11
    )
    columns = [episodes.rewards[:n, e] for e, n in enumerate(LENGTHS)]
    targets = [loop_returns(rewards, settings["gamma"]) for rewards in columns]
    np.testing.assert_allclose(batch.returns, by_row(targets), rtol=1e-11)
    assert batch.episodes.rewards.shape == (T, B) and batch.scale_samples == {}
    assert int(batch.num_episodes) == B and float(batch.divisor) == B


def test_on_truncation_bootstraps_terminates_or_drops_the_episode():
    episodes, value = record(), 5.0
    for truncation in ("bootstrap", "terminal", "drop"):
        estimator_ = make_estimator(
            baselines.Value(constant_value_model(value)), on_truncation=truncation
        )
        batch = estimator_.batch(episodes)
        expected = []
        for e, length in enumerate(LENGTHS):
            is_kept = TERMINATED[e] or truncation != "drop"
            rewards = list(episodes.rewards[:length, e]) if is_kept else []
            if is_kept and truncation == "bootstrap" and not TERMINATED[e]:
                rewards[-1] += DEFAULTS["gamma"] * value
            expected.append(loop_returns(rewards, DEFAULTS["gamma"]))
        np.testing.assert_allclose(batch.returns, by_row(expected), rtol=1e-11)
        shifted = np.subtract(by_row(expected), value)
        np.testing.assert_allclose(batch.advantages, shifted, rtol=1e-11)
        count = sum(map(bool, expected))
        assert int(batch.num_episodes) == float(batch.divisor) == count
    empty = make_estimator(on_truncation="drop", mean_over="steps").batch(
        episodes._replace(terminated=np.zeros(B, bool))
    )
    assert int(empty.num_episodes) == float(empty.divisor) == 1.0
    assert empty.returns.shape == (0,)


@pytest.mark.parametrize(
    "earlier", [(), (np.array([3.0, -4.0, 5.0]),)], ids=["new", "old"]
)
def test_running_scales_divide_by_earlier_samples_and_update_afterwards(earlier):
    """The first batch is divided by its own root mean square."""
    episodes = record()
    columns = [episodes.rewards[:n, e] for e, n in enumerate(LENGTHS)]
    returns = [loop_returns(rewards, DEFAULTS["gamma"]) for rewards in columns]

    def size(own):
        return np.sqrt(np.mean(np.square(earlier[0] if earlier else own)))

    scaled = episodes._replace(rewards=episodes.rewards / size(by_row(returns)))
    advantages = by_row(loop_advantages(scaled, "mean", DEFAULTS))
    unbaselined = by_row(loop_advantages(scaled, None, DEFAULTS))
    scales = {name: running_scale(*earlier) for name in ("rewards", "advantages")}
    estimator_ = make_estimator("mean", scales=scales)
    batch = estimator_.batch(episodes)
    np.testing.assert_allclose(
        batch.scale_samples["rewards"], by_row(returns), rtol=1e-11
    )
    np.testing.assert_allclose(batch.scale_samples["advantages"], advantages, rtol=1e-11)
    divisor = size(advantages)
    np.testing.assert_allclose(batch.advantages, advantages / divisor, rtol=1e-11)
    np.testing.assert_allclose(
        batch.unbaselined_advantages, np.divide(unbaselined, divisor), rtol=1e-11
    )
    estimator_.update_statistics(batch, estimator_.baseline_step(batch))
    for name, samples in (("rewards", by_row(returns)), ("advantages", advantages)):
        all_samples = np.concatenate([*earlier, samples])
        assert int(scales[name].count) == len(all_samples)
        scale = scales[name](tf.constant(1.0, tf.float64), None)
        np.testing.assert_allclose(
            1 / scale, np.sqrt(np.mean(all_samples**2)), rtol=1e-11
        )


def test_logged_entropy_and_effective_sample_size_equal_definitions():
    """The effective sample size is (Σρ)² / (n Σρ²) of the probability ratios before
    clipping.
    """
    estimator_ = make_estimator("mean", ratio_clip=1.5)
    batch = estimator_.batch(record())
    actions = estimator_.distribution(batch)
    now, changes = actions.log_prob(batch.actions).numpy(), np.linspace(-3, 2, 20)
    _, logs = estimator_.policy_gradients(
        batch, behavior_log_probs=tf.constant(now - changes)
    )
    np.testing.assert_allclose(logs["entropy"], np.mean(actions.entropy()), rtol=1e-12)
    ratios = np.exp(changes)
    size = ratios.sum() ** 2 / (20 * np.sum(ratios**2))
    np.testing.assert_allclose(logs["effective_sample_size"], size, rtol=1e-12)
    assert estimator_.policy_gradients(batch)[1]["effective_sample_size"] == 1.0
    far = tf.constant(now - np.repeat([1000.0, 0.0], [5, 15]))
    _, logs = estimator_.policy_gradients(batch, behavior_log_probs=far)
    np.testing.assert_allclose(logs["effective_sample_size"], 5 / 20, rtol=1e-12)
