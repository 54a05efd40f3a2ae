"""Baselines change the variance and, where they promise it, not the expectation."""

import itertools

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import baselines

LENGTHS = [4, 2, 4, 1, 3]


def ragged(seed=0):
    """Returns of five episodes, zero in the padding; row 3 has two of them left."""
    valid = np.arange(4)[:, None] < np.array(LENGTHS)
    returns = np.random.default_rng(seed).normal(size=valid.shape)
    return np.where(valid, returns, 0.0), valid


def estimate(baseline, returns, valid):
    zeros = tf.zeros_like(returns)
    return baseline.estimate(tf.constant(returns), tf.constant(valid), zeros).numpy()


def test_leave_one_out_is_the_mean_of_the_others_still_running():
    returns, valid = ragged()
    truth = np.zeros_like(returns)
    for t, i in zip(*np.nonzero(valid), strict=True):
        others = [returns[t, j] for j in range(5) if j != i and valid[t, j]]
        truth[t, i] = np.mean(others) if others else 0.0
    found = estimate(baselines.LeaveOneOut(), returns, valid)
    np.testing.assert_allclose(found, truth, rtol=1e-13, atol=1e-15)


def test_leave_one_out_is_zero_for_an_episode_that_runs_alone():
    """
    step       0    1    2
    episode 0  x    x    x     alone from step 1 on
    episode 1  x    .    .
    """
    valid = np.array([[True, True], [True, False], [True, False]])
    returns = np.where(valid, 7.0, 0.0)
    found = estimate(baselines.LeaveOneOut(), returns, valid)
    assert found.tolist() == [[7, 7], [0, 0], [0, 0]]
    alone = estimate(baselines.LeaveOneOut(), returns[:, :1], valid[:, :1])
    assert alone.tolist() == [[0], [0], [0]]


def test_leave_one_out_never_sees_its_own_episode():
    """Whole numbers, so that not one bit may change."""
    rng = np.random.default_rng(0)
    returns, valid = ragged()
    returns = np.where(valid, rng.integers(-99, 99, returns.shape), 0.0)
    before = estimate(baselines.LeaveOneOut(), returns, valid)
    for i in range(5):
        changed = returns.copy()
        changed[:, i] += np.where(valid[:, i], rng.integers(1, 99, 4), 0.0)
        after = estimate(baselines.LeaveOneOut(), changed, valid)
        np.testing.assert_array_equal(after[:, i], before[:, i])
        assert (after[0] != before[0]).sum() == 4


def test_leave_one_out_does_not_depend_on_the_order_of_the_episodes():
    returns, valid = ragged()
    order = [3, 0, 4, 1, 2]
    whole = estimate(baselines.LeaveOneOut(), returns, valid)[:, order]
    found = estimate(baselines.LeaveOneOut(), returns[:, order], valid[:, order])
    np.testing.assert_allclose(found, whole, rtol=1e-13, atol=1e-15)


def test_mean_is_the_mean_over_all_valid_steps():
    returns, valid = ragged()
    truth = np.where(valid, returns[valid].mean(), 0.0)
    found = estimate(baselines.Mean(), returns, valid)
    np.testing.assert_allclose(found, truth, rtol=1e-13, atol=1e-15)


def test_nothing_is_zero():
    assert not estimate(baselines.Zero(), *ragged()).any()


def expected_gradient(baseline, probabilities, rewards, count):
    """E[1/N Σᵢ ∇log π(aᵢ) (r(aᵢ) - bᵢ)] on a bandit, over every tuple of N actions."""
    total = np.zeros_like(probabilities)
    valid = np.ones((1, count), bool)
    for arms in itertools.product(range(len(rewards)), repeat=count):
        returns = rewards[list(arms)][None]
        advantages = (returns - estimate(baseline, returns, valid))[0]
        scores = np.eye(len(rewards))[list(arms)] - probabilities
        total += np.prod(probabilities[list(arms)]) * advantages @ scores / count
    return total


@pytest.mark.parametrize("count", [1, 2, 3, 4])
@pytest.mark.parametrize(
    "name, factor",
    [
        (None, lambda n: 1.0),
        ("leave_one_out", lambda n: 1.0),
        ("mean", lambda n: (n - 1) / n),
    ],
    ids=["nothing", "leave_one_out", "mean"],
)
def test_the_expected_gradient_on_a_bandit_is_the_analytic_one(name, factor, count):
    """∂/∂θᵢ E[r] = πᵢ (rᵢ - Σⱼ πⱼ rⱼ), times (N - 1)/N with the batch mean."""
    probabilities, rewards = np.array([0.2, 0.5, 0.3]), np.array([1.0, -2.0, 4.0])
    truth = probabilities * (rewards - probabilities @ rewards)
    found = expected_gradient(baselines.get(name), probabilities, rewards, count)
    np.testing.assert_allclose(found, factor(count) * truth, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", [None, "leave_one_out", "mean"])
def test_a_baseline_without_weights_has_nothing_to_learn(name):
    baseline = baselines.get(name)
    loss, gradients = baseline.gradients(baseline_batch())
    assert np.isnan(loss) and gradients == []
    baseline.apply_gradients(gradients, baseline_batch())
    assert not baseline.values_states and not baseline.weights


# Groups that begin alike


@pytest.mark.parametrize("size", [2, 3, 6])
def test_in_groups_the_others_are_the_siblings_still_running(size):
    rng = np.random.default_rng(1)
    lengths = np.array([4, 2, 4, 1, 3, 3])
    valid = np.arange(4)[:, None] < lengths
    returns = np.where(valid, rng.normal(size=valid.shape), 0.0)
    truth = np.zeros_like(returns)
    for t, i in zip(*np.nonzero(valid), strict=True):
        group = range(i // size * size, i // size * size + size)
        others = [returns[t, j] for j in group if j != i and valid[t, j]]
        truth[t, i] = np.mean(others) if others else 0.0
    found = estimate(baselines.LeaveOneOut(group_size=size), returns, valid)
    np.testing.assert_allclose(found, truth, rtol=1e-13, atol=1e-15)


def test_chance_that_siblings_share_biases_nothing():
    """What a seed adds to every reward of a group; all seeds, all actions."""
    probabilities, rewards = np.array([0.2, 0.5, 0.3]), np.array([1.0, -2.0, 4.0])
    truth = probabilities * (rewards - probabilities @ rewards)
    baseline, total = baselines.LeaveOneOut(group_size=2), 0.0
    for chance, change in ((0.25, [0.0, 9.0, 0.0]), (0.75, [-5.0, 1.0, 2.0])):
        shared = rewards + np.array(change)
        total += chance * expected_gradient(baseline, probabilities, shared, 2)
    mean = rewards + 0.25 * np.array([0, 9, 0]) + 0.75 * np.array([-5, 1, 2])
    truth = probabilities * (mean - probabilities @ mean)
    np.testing.assert_allclose(total, truth, rtol=1e-13, atol=1e-14)


def test_a_batch_that_is_no_groups_is_refused():
    with pytest.raises(tf.errors.InvalidArgumentError, match="in groups of 2"):
        estimate(baselines.LeaveOneOut(group_size=2), *ragged())


@pytest.mark.parametrize("group_size", [0, 1, -2, 1.5, True])
def test_a_group_has_at_least_two(group_size):
    with pytest.raises(ValueError, match="`group_size` must be"):
        baselines.LeaveOneOut(group_size=group_size)


@pytest.mark.parametrize("num_envs", [1, sweeps.rare(4)])
def test_siblings_begin_alike_and_act_apart(num_envs):
    baseline = baselines.LeaveOneOut(group_size=3)
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,), baseline=baseline)
    episodes = agent.collect("CartPole-v1", 6, num_envs=num_envs)
    first, actions = episodes.observations[0].reshape(2, 3, 4), episodes.actions[:8]
    np.testing.assert_array_equal(first, np.repeat(first[:, :1], 3, axis=1))
    assert (first[0] != first[1]).all()
    assert len({tuple(column) for column in actions.T}) == 6
    agent.update(episodes)


def test_groups_need_batches_that_can_be_grouped():
    baseline = baselines.LeaveOneOut(group_size=4)
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,), baseline=baseline)
    side_by_side = gym.make_vec("CartPole-v1", num_envs=2)
    for env, size in (
        ("CartPole-v1", {"episodes_per_epoch": 6}),
        ("CartPole-v1", {"steps_per_epoch": 100}),
        (side_by_side, {"episodes_per_epoch": 8}),
    ):
        with pytest.raises(ValueError, match="groups of 4 episodes with the same"):
            agent.fit(env, epochs=1, verbose=0, **size)
    side_by_side.close()


NAMES = [None, "leave_one_out", "mean", "moving_average", "time_step"]


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_subtracted_in_the_padding(name):
    baseline = baselines.get(name)
    baseline.build((None, 3))
    if hasattr(baseline, "sums"):
        baseline.apply_gradients([], baseline_batch())
    returns, valid = ragged()
    found = estimate(baseline, returns, valid)
    np.testing.assert_array_equal(found[~valid], 0.0)
    assert found.any() == (name is not None)


def test_only_groups_ask_for_episodes_that_begin_alike():
    assert {baselines.get(name).reset_group_size for name in NAMES} == {1}
    assert baselines.LeaveOneOut(group_size=3).reset_group_size == 3


# Averages of earlier batches


def batches():
    """Four lessons; the second and the last are short."""
    rng = np.random.default_rng(2)
    for count in (6, 2, 5, 1):
        times = np.arange(count) % 4
        yield baseline_batch(rng.normal(size=count), times)


@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("told_apart", [None, 1, 3, 9])
def test_an_average_is_the_weighted_mean_of_earlier_batches(told_apart, decay):
    """The definition: batch i of k counts dᵏ⁻ⁱ, if it says anything at all."""
    if told_apart is None:
        baseline = baselines.MovingAverage(decay)
    else:
        baseline = baselines.TimeStep(told_apart, decay)
    baseline.build((None, 3))
    seen = [[] for _ in range(told_apart or 1)]
    valid = np.ones((5, 2), bool)
    for taught in batches():
        expected = []
        for t in range(5):
            means = seen[min(t, len(seen) - 1)]
            weights = decay ** np.arange(len(means))[::-1]
            expected.append(weights @ means / weights.sum() if means else 0.0)
        found = estimate(baseline, np.zeros((5, 2)), valid)
        np.testing.assert_allclose(
            found, np.transpose([expected] * 2), rtol=1e-13, atol=1e-14
        )
        baseline.apply_gradients([], taught)
        for place, means in enumerate(seen):
            mine = np.minimum(taught.time_steps, len(seen) - 1) == place
            if mine.any():
                means.append(taught.returns[mine].mean())


@pytest.mark.parametrize("name", [sweeps.rare("moving_average"), "time_step"])
def test_an_average_is_taken_after_the_update_and_kept_in_the_file(name, tmp_path):
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,), baseline=name)
    agent.fit("CartPole-v1", epochs=1, episodes_per_epoch=3, verbose=0)
    valid = np.ones((3, 1), bool)
    zeros = np.zeros((3, 1))
    found = estimate(agent.baseline, zeros, valid)
    assert found.all() and not agent.baseline.trainable_weights
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    np.testing.assert_array_equal(estimate(loaded.baseline, zeros, valid), found)
    again = type(agent.baseline).from_config(agent.baseline.get_config())
    assert again.get_config() == agent.baseline.get_config()


# Value


def critic(**kwargs):
    layer = keras.layers.Dense(1, **kwargs)
    return keras.Sequential([keras.Input((3,)), layer])


def value(model=None, rate=0.5, **kwargs):
    model = model or critic()
    baseline = baselines.Value(model, keras.optimizers.SGD(rate), **kwargs)
    baseline.build((None, 3))
    return baseline


def steps(seed=0, count=6):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(count, 3)).astype("float32"),
        rng.normal(size=count).astype("float32"),
    )


def baseline_batch(targets=None, times=None):
    """What `steps` teach, four episodes together."""
    observations, returns = steps()
    targets = returns if targets is None else targets
    times = np.arange(len(targets)) % 3 if times is None else times
    order = np.arange(len(targets), dtype="int32")
    return baselines.BaselineBatch(
        observations, targets, np.int32(times), np.int32(4), order
    )


def test_values_are_the_model_s_one_number_per_observation():
    baseline, (observations, _) = value(), steps()
    kernel, bias = baseline.model.get_weights()
    truth = (observations @ kernel + bias)[:, 0]
    np.testing.assert_allclose(baseline.values(observations), truth, atol=1e-6)
    assert baseline.values_states


def test_the_gradient_of_a_value_baseline_is_the_error_per_episode():
    """∂/∂w 1/E Σₙ (w·xₙ + b - Gₙ)² / 2 as a loop."""
    baseline, (observations, returns) = value(), steps()
    kernel, bias = baseline.model.get_weights()
    loss, by_kernel, by_bias = 0.0, np.zeros((3, 1)), np.zeros(1)
    for x, target in zip(observations, returns, strict=True):
        error = x @ kernel + bias - target
        loss += error[0] ** 2 / 2 / 4
        by_kernel, by_bias = by_kernel + np.outer(x, error) / 4, by_bias + error / 4
    found, gradients = baseline.gradients(baseline_batch())
    np.testing.assert_allclose(found, loss, rtol=1e-6)
    np.testing.assert_allclose(gradients[0], by_kernel, atol=1e-6)
    np.testing.assert_allclose(gradients[1], by_bias, atol=1e-6)


def test_a_regularizer_of_the_critic_is_followed_and_not_reported():
    plain, held = value(), value(critic(kernel_regularizer=keras.regularizers.L2(0.1)))
    held.model.set_weights(plain.model.get_weights())
    (loss, gradients), (same, more) = (
        x.gradients(baseline_batch()) for x in (plain, held)
    )
    assert float(loss) == float(same)
    truth = gradients[0] + 0.2 * plain.model.get_weights()[0]
    np.testing.assert_allclose(more[0], truth, atol=1e-6)


def test_learning_is_one_step_of_its_own_optimizer():
    baseline = value(rate=0.5)
    _, gradients = baseline.gradients(baseline_batch())
    before = baseline.model.get_weights()
    baseline.apply_gradients(gradients, baseline_batch())
    for old, new, gradient in zip(
        before, baseline.model.get_weights(), gradients, strict=True
    ):
        np.testing.assert_allclose(
            new, old - 0.5 * gradient.numpy(), rtol=1e-7, atol=1e-7
        )
    assert int(baseline.optimizer.iterations) == 1


@pytest.mark.parametrize("traced", [False, True])
def test_further_epochs_are_further_steps_towards_the_same_targets(traced):
    """Seven steps of descent, as a loop in NumPy."""
    baseline, (observations, returns) = value(rate=0.5, passes=7), steps()
    kernel, bias = baseline.model.get_weights()
    for _ in range(7):
        errors = (observations @ kernel + bias)[:, 0] - returns
        kernel = kernel - 0.5 * (observations * errors[:, None]).sum(0)[:, None] / 4
        bias = bias - 0.5 * errors.sum() / 4

    def taught(baseline_batch):
        baseline.apply_gradients(baseline.gradients(baseline_batch)[1], baseline_batch)

    given = keras.tree.map_structure(tf.constant, baseline_batch())
    (tf.function(taught) if traced else taught)(given)
    for found, truth in zip(baseline.model.get_weights(), (kernel, bias), strict=True):
        np.testing.assert_allclose(found, truth, rtol=1e-4, atol=1e-6)
    assert int(baseline.optimizer.iterations) == 7


def test_every_epoch_goes_through_all_minibatches():
    """Three epochs of three parts of a given order, as a loop in NumPy."""
    order = np.array([2, 0, 5, 4, 3, 1], "int32")
    baseline = value(rate=0.5, passes=3, minibatch_size=2)
    observations, returns = steps()
    kernel, bias = baseline.model.get_weights()
    for part in [order[:2], order[2:4], order[4:]] * 3:
        seen, errors = observations[part], (observations @ kernel + bias)[:, 0] - returns
        errors = errors[part]
        episodes = 4 / 3  # a third of the steps of four episodes
        kernel = kernel - 0.5 * (seen * errors[:, None]).sum(0)[:, None] / episodes
        bias = bias - 0.5 * errors.sum() / episodes
    given = baseline_batch()._replace(permutation=tf.constant(order))
    baseline.apply_gradients(baseline.gradients(given)[1], given)
    for found, truth in zip(baseline.model.get_weights(), (kernel, bias), strict=True):
        np.testing.assert_allclose(found, truth, rtol=1e-4, atol=1e-6)
    assert int(baseline.optimizer.iterations) == 9


def test_a_further_step_that_is_not_finite_is_not_taken():
    """The first step is what the update has checked; targets overflow after it."""
    baseline, (_, returns) = value(passes=4), steps()
    kernel, bias = baseline.model.get_weights()
    _, first = baseline.gradients(baseline_batch())
    baseline.apply_gradients(first, baseline_batch(np.inf * returns))
    after = baseline.model.get_weights()
    np.testing.assert_allclose(
        after[0], kernel - 0.5 * first[0].numpy(), rtol=1e-7, atol=1e-7
    )
    np.testing.assert_allclose(
        after[1], bias - 0.5 * first[1].numpy(), rtol=1e-7, atol=1e-7
    )


def test_a_further_step_is_not_taken_if_only_one_gradient_is_not_finite():
    """The error is finite, and so is the bias's gradient: error times x overflows."""
    baseline, (observations, _) = value(passes=2), steps()
    kernel, bias = baseline.model.get_weights()
    _, first = baseline.gradients(baseline_batch())
    huge = baseline_batch()._replace(observations=np.full_like(observations, 1e38))
    _, further = baseline.gradients(huge)
    assert np.isinf(further[0]).any() and np.isfinite(further[1]).all()
    baseline.apply_gradients(first, huge)
    after = baseline.model.get_weights()
    np.testing.assert_allclose(
        after[0], kernel - 0.5 * first[0].numpy(), rtol=1e-7, atol=1e-7
    )
    np.testing.assert_allclose(
        after[1], bias - 0.5 * first[1].numpy(), rtol=1e-7, atol=1e-7
    )


def test_a_critic_is_in_inference_mode():
    layers = [keras.Input((3,)), keras.layers.Dropout(0.9), keras.layers.Dense(1)]
    baseline, (observations, _) = value(keras.Sequential(layers)), steps()
    kernel, bias = baseline.model.get_weights()
    truth = (observations @ kernel + bias)[:, 0]
    np.testing.assert_allclose(baseline.values(observations), truth, atol=1e-6)


def test_a_critic_that_is_not_built_is_built_with_its_optimizer():
    """Nothing may be left to make when the first update is traced."""
    baseline = value(keras.Sequential([keras.layers.Dense(1)]))
    assert [tuple(w.shape) for w in baseline.model.weights] == [(3, 1), (1,)]
    assert baseline.optimizer.built


def test_a_scale_is_the_unit_of_the_model():
    """As if rewards had been divided by it; the loss is told in the units of rewards."""
    plain, scaled = value(), value(scale=50.0)
    scaled.model.set_weights(plain.model.get_weights())
    observations, returns = steps()
    loss, expected = plain.gradients(baseline_batch())
    told, gradients = scaled.gradients(baseline_batch(50 * returns))
    np.testing.assert_allclose(told, 2500 * loss, rtol=1e-5)
    for ours, theirs in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-6)
    values = scaled.values(observations)
    np.testing.assert_allclose(values, 50 * plain.values(observations), rtol=1e-6)


def test_epochs_and_scale_are_kept_in_the_config():
    again = baselines.Value.from_config(value(passes=3, scale=2.0).get_config())
    assert (again.passes, again.scale) == (3, 2.0)


@pytest.mark.parametrize("scale", [0, -1.0, float("inf"), float("nan")])
def test_a_scale_that_is_no_size_is_refused(scale):
    with pytest.raises(ValueError, match="`scale` must be a finite number in"):
        baselines.Value(critic(), scale=scale)


@pytest.mark.parametrize("kind", ["around", "inside"])
def test_an_optimizer_that_scales_a_loss_is_refused(kind):
    """It would divide gradients that nobody has multiplied."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    if kind == "inside":
        optimizer = keras.optimizers.SGD(loss_scale_factor=128.0)
    with pytest.raises(ValueError, match="not scaled, and .*without `loss_scale_factor`"):
        baselines.Value(critic(), optimizer)


@pytest.mark.parametrize("passes", [0, -1, 1.5, True, None])
def test_epochs_that_are_not_a_number_of_steps_are_refused(passes):
    with pytest.raises(ValueError, match="`passes` must be a whole number"):
        baselines.Value(critic(), passes=passes)


def test_a_shared_trunk_has_no_epochs_of_its_own():
    for further in ({"passes": 2}, {"scale": 3.0}):
        with pytest.raises(ValueError, match="in one step with the policy.*Received"):
            baselines.Value(**further)


def test_a_value_baseline_subtracts_the_values_where_steps_happened():
    returns, valid = ragged()
    values = np.where(valid, 3.0, np.nan)
    found = baselines.Value(critic()).estimate(returns, valid, tf.constant(values))
    np.testing.assert_array_equal(found, np.where(valid, 3.0, 0.0))


@pytest.mark.parametrize(
    "model",
    [
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]),
        keras.Sequential([keras.Input((3,)), keras.layers.Reshape((3, 1))]),
        keras.Sequential([keras.Input((1,)), keras.layers.Reshape(())]),
    ],
    ids=["two_numbers", "a_matrix", "no_axis"],
)
def test_a_critic_of_the_wrong_width_is_refused(model):
    """[N] values minus [N, 1] would be [N, N]."""
    observations = tf.zeros((2, *model.input_shape[1:]))
    with pytest.raises(ValueError, match=r"one number per observation.*Dense\(1\)"):
        baselines.Value(model).values(observations)


def test_without_a_model_the_policy_s_trunk_is_shared():
    baseline = baselines.Value(loss_weight=0.25)
    baseline.build((None, 3))
    loss, gradients = baseline.gradients(baseline_batch())
    baseline.apply_gradients(gradients, baseline_batch())
    assert np.isnan(loss) and gradients == []
    assert baseline.loss_weight == 0.25 and baseline.optimizer is None


def test_an_optimizer_without_a_model_is_refused():
    with pytest.raises(ValueError, match="shares the policy's layers.*'sgd'"):
        baselines.Value(optimizer="sgd")


@pytest.mark.parametrize("weight", [-0.1, np.inf, np.nan])
def test_a_loss_weight_that_makes_no_sense_is_refused(weight):
    with pytest.raises(ValueError, match="`loss_weight` must be finite"):
        baselines.Value(loss_weight=weight)


def test_adam_is_the_optimizer_of_a_critic_that_names_none():
    assert isinstance(baselines.Value(critic()).optimizer, keras.optimizers.Adam)


def revive(baseline):
    config = keras.saving.serialize_keras_object(baseline)
    return keras.saving.deserialize_keras_object(config)


def test_a_value_baseline_survives_its_config():
    baseline = value(rate=0.125, loss_weight=2.0, name="mine")
    again = revive(baseline)
    assert again.get_config() == baseline.get_config()
    assert isinstance(again.optimizer, keras.optimizers.SGD)
    assert float(again.optimizer.learning_rate) == 0.125
    again.model.set_weights(baseline.model.get_weights())
    observations = steps()[0]
    truth = baseline.values(observations)
    np.testing.assert_array_equal(again.values(observations), truth)


def test_a_config_is_not_used_up_by_reading_it():
    config = value().get_config()
    first, second = (baselines.Value.from_config(config) for _ in range(2))
    assert first.model is not second.model


@pytest.mark.parametrize("kind", ["LeaveOneOut", "Mean", "Zero", "Value"])
def test_every_baseline_survives_its_config(kind):
    baseline = getattr(baselines, kind)(name="mine")
    again = revive(baseline)
    assert type(again) is type(baseline) and again.name == "mine"


def test_names_mean_baselines():
    kinds = {name: type(baselines.get(name)) for name in ("leave_one_out", "mean", None)}
    assert kinds == {
        "leave_one_out": baselines.LeaveOneOut,
        "mean": baselines.Mean,
        None: baselines.Zero,
    }
    baseline = baselines.Value(critic())
    assert baselines.get(baseline) is baseline


@pytest.mark.parametrize("identifier", ["value", 3, ["mean"], {"mean": 1}])
def test_an_unknown_baseline_is_refused_with_the_names_there_are(identifier):
    with pytest.raises(ValueError, match="'leave_one_out', 'mean', .*None") as refused:
        baselines.get(identifier)
    assert f"baseline={identifier!r}" in str(refused.value)


class Shaped(baselines.Baseline):
    """Zeros of a shape or type that would broadcast, or not fit at all."""

    def __init__(self, shape, dtype="float64"):
        super().__init__()
        self.wanted = shape, dtype

    def estimate(self, returns, valid, values):
        shape, dtype = self.wanted
        rows, count = tf.shape(returns)[0], tf.shape(returns)[1]
        sizes = {"T": rows, "B": count, "1": 1}
        return tf.zeros([sizes[axis] for axis in shape], dtype)


@pytest.mark.parametrize(
    "shape, dtype, error",
    [
        ("B", "float64", ValueError),
        ("T", "float64", ValueError),
        ("", "float64", ValueError),
        ("1B", "float64", tf.errors.InvalidArgumentError),
        ("T1", "float64", tf.errors.InvalidArgumentError),
        ("TB", "float32", ValueError),
    ],
    ids=["per_episode", "per_step", "one", "row", "column", "float32"],
)
def test_a_baseline_of_another_shape_is_refused(shape, dtype, error):
    """As many steps as episodes: each of these would broadcast in silence."""
    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    agent = tfr.Reinforce(policy, tfr.heads.Categorical(2), Shaped(shape, dtype))
    agent.compile("sgd")
    record = tfr.Episodes(
        np.zeros((4, 3, 1)), np.zeros((3, 3), int), np.ones((3, 3)),
        np.full(3, 3), np.ones(3, bool),
    )  # fmt: skip
    with pytest.raises(error, match="Shaped.estimate.*must return a baseline for each"):
        agent.update(record)
