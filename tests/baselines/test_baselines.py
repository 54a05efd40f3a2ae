"""Tests baselines: values, unbiasedness, groups, averages and the value model."""

import itertools

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import baselines
from tf_reinforce.settings import config

LENGTHS = [4, 2, 3, 1, 3, 3]  # the first episode is alone in the last step


def ragged(seed=0):
    """Returns six episodes' returns, with zeros in the padding, and the valid steps."""
    valid = np.arange(4)[:, None] < np.array(LENGTHS)
    returns = np.random.default_rng(seed).normal(size=valid.shape)
    return np.where(valid, returns, 0.0), valid


def estimate(baseline, returns, valid):
    zeros = tf.zeros_like(returns)
    return baseline.estimate(tf.constant(returns), tf.constant(valid), zeros).numpy()


def test_mean_baseline_is_mean_over_all_valid_steps():
    returns, valid = ragged()
    truth = np.where(valid, returns[valid].mean(), 0.0)
    values = estimate(baselines.Mean(), returns, valid)
    np.testing.assert_allclose(values, truth, rtol=1e-13, atol=1e-15)


def expected_gradient(baseline, probabilities, rewards, count):
    """Returns E[1/N Σᵢ ∇log π(aᵢ) (r(aᵢ) - bᵢ)] on a bandit, over all tuples of N
    actions.
    """
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
def test_expected_gradient_on_bandit_equals_closed_form(name, factor, count):
    """∂/∂θᵢ E[r] = πᵢ (rᵢ - Σⱼ πⱼ rⱼ), times (N - 1)/N for the mean baseline."""
    probabilities, rewards = np.array([0.2, 0.5, 0.3]), np.array([1.0, -2.0, 4.0])
    truth = probabilities * (rewards - probabilities @ rewards)
    gradient = expected_gradient(baselines.get(name), probabilities, rewards, count)
    np.testing.assert_allclose(gradient, factor(count) * truth, rtol=1e-13, atol=1e-14)


@pytest.mark.parametrize("name", [None, "leave_one_out", "mean"])
def test_baseline_without_weights_has_no_gradients(name):
    baseline = baselines.get(name)
    loss, gradients = baseline.gradients(baseline_batch())
    assert np.isnan(loss) and gradients == []
    baseline.apply_gradients(gradients, baseline_batch())
    assert not baseline.is_value_function and not baseline.weights


# Groups of episodes with equal resets


@pytest.mark.parametrize("size", [None, 2, 3, 6])
def test_leave_one_out_of_groups_is_mean_over_other_running_group_members(size):
    returns, valid = ragged()
    truth, count = np.zeros_like(returns), size or 6
    for t, i in zip(*np.nonzero(valid), strict=True):
        group = range(i // count * count, i // count * count + count)
        others = [returns[t, j] for j in group if j != i and valid[t, j]]
        truth[t, i] = np.mean(others) if others else 0.0
    values = estimate(baselines.LeaveOneOut(group_size=size), returns, valid)
    np.testing.assert_allclose(values, truth, rtol=1e-13, atol=1e-15)


def test_leave_one_out_is_unbiased_if_a_group_shares_randomness():
    """A seed changes the rewards of a whole group.

    The test enumerates all seeds and actions.
    """
    probabilities, rewards = np.array([0.2, 0.5, 0.3]), np.array([1.0, -2.0, 4.0])
    truth = probabilities * (rewards - probabilities @ rewards)
    baseline, total = baselines.LeaveOneOut(group_size=2), 0.0
    for probability, change in ((0.25, [0.0, 9.0, 0.0]), (0.75, [-5.0, 1.0, 2.0])):
        shared = rewards + np.array(change)
        total += probability * expected_gradient(baseline, probabilities, shared, 2)
    mean = rewards + 0.25 * np.array([0, 9, 0]) + 0.75 * np.array([-5, 1, 2])
    truth = probabilities * (mean - probabilities @ mean)
    np.testing.assert_allclose(total, truth, rtol=1e-13, atol=1e-14)


def test_batch_that_cannot_be_split_into_groups_raises():
    with pytest.raises(tf.errors.InvalidArgumentError, match="`group_size` 4"):
        estimate(baselines.LeaveOneOut(group_size=4), *ragged())


@pytest.mark.parametrize("num_envs", [1, sweeps.rare(4)])
def test_episodes_of_a_group_have_equal_resets_and_different_actions(num_envs):
    baseline = baselines.LeaveOneOut(group_size=3)
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,), baseline=baseline)
    episodes = agent.collect("CartPole-v1", 6, num_envs=num_envs)
    first, actions = episodes.observations[0].reshape(2, 3, 4), episodes.actions[:8]
    np.testing.assert_array_equal(first, np.repeat(first[:, :1], 3, axis=1))
    assert (first[0] != first[1]).all()
    assert len({tuple(column) for column in actions.T}) == 6
    agent.update(episodes)


def test_fit_raises_if_episodes_cannot_be_grouped():
    baseline = baselines.LeaveOneOut(group_size=4)
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,), baseline=baseline)
    vector_env = gym.make_vec("CartPole-v1", num_envs=2)
    for env, size in (
        ("CartPole-v1", {"episodes_per_epoch": 6}),
        ("CartPole-v1", {"steps_per_epoch": 100}),
        (vector_env, {"episodes_per_epoch": 8}),
    ):
        with pytest.raises(ValueError, match="groups of 4 episodes with the same"):
            agent.fit(env, epochs=1, verbose=0, **size)
    vector_env.close()


NAMES = [None, *config.BASELINES]


@pytest.mark.parametrize("name", NAMES)
def test_every_baseline_is_zero_in_the_padding(name):
    baseline = baselines.get(name)
    baseline.build((None, 3))
    if hasattr(baseline, "sums"):
        baseline.apply_gradients([], baseline_batch())
    returns, valid = ragged()
    values = estimate(baseline, returns, valid)
    np.testing.assert_array_equal(values[~valid], 0.0)
    assert values.any() == (name is not None)


# Averages of earlier batches


def batches():
    """Yields four batches. The second and the last batch are short."""
    rng = np.random.default_rng(2)
    for count in (6, 2, 5, 1):
        times = np.arange(count) % 4
        yield baseline_batch(rng.normal(size=count), times)


@pytest.mark.parametrize("decay", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("num_steps", [None, 1, 3, 9])
def test_average_baseline_is_weighted_mean_of_earlier_batches(num_steps, decay):
    """Batch i of k has the weight dᵏ⁻ⁱ, if the batch has a return for the time step."""
    if num_steps is None:
        baseline = baselines.MovingAverage(decay)
    else:
        baseline = baselines.TimeStep(num_steps, decay)
    baseline.build((None, 3))
    batch_means = [[] for _ in range(num_steps or 1)]
    valid = np.ones((5, 2), bool)
    for batch in batches():
        expected = []
        for t in range(5):
            means = batch_means[min(t, len(batch_means) - 1)]
            weights = decay ** np.arange(len(means))[::-1]
            expected.append(weights @ means / weights.sum() if means else 0.0)
        values = estimate(baseline, np.zeros((5, 2)), valid)
        np.testing.assert_allclose(
            values, np.transpose([expected] * 2), rtol=1e-13, atol=1e-14
        )
        baseline.apply_gradients([], batch)
        for time_step, means in enumerate(batch_means):
            selected = np.minimum(batch.time_steps, len(batch_means) - 1) == time_step
            if selected.any():
                means.append(batch.returns[selected].mean())


@pytest.mark.parametrize("name", [sweeps.rare("moving_average"), "time_step"])
def test_average_baseline_is_updated_after_fit_and_saved(name, tmp_path):
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,), baseline=name)
    agent.fit("CartPole-v1", epochs=1, episodes_per_epoch=3, verbose=0)
    valid = np.ones((3, 1), bool)
    zeros = np.zeros((3, 1))
    values = estimate(agent.baseline, zeros, valid)
    assert values.all() and not agent.baseline.trainable_weights
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    np.testing.assert_array_equal(estimate(loaded.baseline, zeros, valid), values)


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
    """Returns the data of `steps` as a batch of four episodes."""
    observations, returns = steps()
    targets = returns if targets is None else targets
    times = np.arange(len(targets)) % 3 if times is None else times
    order = np.arange(len(targets), dtype="int32")
    return baselines.BaselineBatch(
        observations, targets, np.int32(times), np.int32(4), order
    )


def test_value_baseline_gradient_equals_a_loop():
    """The loss is 1/E Σₙ (w·xₙ + b - Gₙ)² / 2."""
    baseline, (observations, returns) = value(), steps()
    kernel, bias = baseline.model.get_weights()
    loss, by_kernel, by_bias = 0.0, np.zeros((3, 1)), np.zeros(1)
    for x, target in zip(observations, returns, strict=True):
        error = x @ kernel + bias - target
        loss += error[0] ** 2 / 2 / 4
        by_kernel, by_bias = by_kernel + np.outer(x, error) / 4, by_bias + error / 4
    baseline_loss, gradients = baseline.gradients(baseline_batch())
    np.testing.assert_allclose(baseline_loss, loss, rtol=1e-6)
    np.testing.assert_allclose(gradients[0], by_kernel, atol=1e-6)
    np.testing.assert_allclose(gradients[1], by_bias, atol=1e-6)


def test_regularizer_of_value_model_is_in_the_gradient_but_not_in_the_loss():
    plain, regularized = (
        value(),
        value(critic(kernel_regularizer=keras.regularizers.L2(0.1))),
    )
    regularized.model.set_weights(plain.model.get_weights())
    (loss, gradients), (other_loss, other_gradients) = (
        x.gradients(baseline_batch()) for x in (plain, regularized)
    )
    assert float(loss) == float(other_loss)
    truth = gradients[0] + 0.2 * plain.model.get_weights()[0]
    np.testing.assert_allclose(other_gradients[0], truth, atol=1e-6)


@pytest.mark.parametrize("traced", [False, True])
def test_passes_are_further_gradient_steps_to_the_same_targets(traced):
    """The expected weights come from seven steps of gradient descent in NumPy."""
    baseline, (observations, returns) = value(rate=0.5, passes=7), steps()
    kernel, bias = baseline.model.get_weights()
    for _ in range(7):
        errors = (observations @ kernel + bias)[:, 0] - returns
        kernel = kernel - 0.5 * (observations * errors[:, None]).sum(0)[:, None] / 4
        bias = bias - 0.5 * errors.sum() / 4

    def apply(baseline_batch):
        baseline.apply_gradients(baseline.gradients(baseline_batch)[1], baseline_batch)

    batch = baseline_batch()
    batch = batch._replace(returns=tf.constant(batch.returns))
    (tf.function(apply) if traced else apply)(batch)
    for weights, truth in zip(baseline.model.get_weights(), (kernel, bias), strict=True):
        np.testing.assert_allclose(weights, truth, rtol=1e-4, atol=1e-6)
    assert int(baseline.optimizer.iterations) == 7


def test_every_pass_uses_all_minibatches():
    """The expected weights come from three passes over three minibatches, in NumPy."""
    order = np.array([2, 0, 5, 4, 3, 1], "int32")
    baseline = value(rate=0.5, passes=3, minibatch_size=2)
    observations, returns = steps()
    kernel, bias = baseline.model.get_weights()
    for part in [order[:2], order[2:4], order[4:]] * 3:
        inputs, errors = (
            observations[part],
            (observations @ kernel + bias)[:, 0] - returns,
        )
        errors = errors[part]
        episodes = 4 / 3  # a third of the steps of four episodes
        kernel = kernel - 0.5 * (inputs * errors[:, None]).sum(0)[:, None] / episodes
        bias = bias - 0.5 * errors.sum() / episodes
    batch = baseline_batch()._replace(permutation=tf.constant(order))
    baseline.apply_gradients(baseline.gradients(batch)[1], batch)
    for weights, truth in zip(baseline.model.get_weights(), (kernel, bias), strict=True):
        np.testing.assert_allclose(weights, truth, rtol=1e-4, atol=1e-6)
    assert int(baseline.optimizer.iterations) == 9


def test_further_pass_with_nonfinite_loss_is_skipped():
    """The update has checked the first step.

    The targets of the later passes are infinite.
    """
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


def test_value_model_is_called_in_inference_mode():
    layers = [keras.Input((3,)), keras.layers.Dropout(0.9), keras.layers.Dense(1)]
    baseline, (observations, _) = value(keras.Sequential(layers)), steps()
    kernel, bias = baseline.model.get_weights()
    truth = (observations @ kernel + bias)[:, 0]
    np.testing.assert_allclose(baseline.values(observations), truth, atol=1e-6)


def test_scale_of_value_baseline_divides_targets_and_multiplies_values():
    """The result is that of rewards divided by the scale.

    The loss has the units of the rewards.
    """
    plain, scaled = value(), value(scale=50.0)
    scaled.model.set_weights(plain.model.get_weights())
    observations, returns = steps()
    loss, expected_gradients = plain.gradients(baseline_batch())
    scaled_loss, gradients = scaled.gradients(baseline_batch(50 * returns))
    np.testing.assert_allclose(scaled_loss, 2500 * loss, rtol=1e-5)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_allclose(gradient, expected, rtol=1e-5, atol=1e-6)
    values = scaled.values(observations)
    np.testing.assert_allclose(values, 50 * plain.values(observations), rtol=1e-6)


@pytest.mark.parametrize("kind", ["around", "inside"])
def test_value_optimizer_with_loss_scaling_raises(kind):
    """Such an optimizer divides the gradients by a factor, but the loss was not
    multiplied.
    """
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    if kind == "inside":
        optimizer = keras.optimizers.SGD(loss_scale_factor=128.0)
    with pytest.raises(ValueError, match="must have no loss scale.*Received"):
        baselines.Value(critic(), optimizer)


@pytest.mark.parametrize(
    "model",
    [
        keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]),
        keras.Sequential([keras.Input((3,)), keras.layers.Reshape((3, 1))]),
        keras.Sequential([keras.Input((1,)), keras.layers.Reshape(())]),
    ],
    ids=["two_numbers", "a_matrix", "no_axis"],
)
def test_value_model_with_wrong_output_shape_raises(model):
    """Values of shape [N] minus outputs of shape [N, 1] would broadcast to [N, N]."""
    observations = tf.zeros((2, *model.input_shape[1:]))
    with pytest.raises(ValueError, match=r"one number per obs.*Dense\(1\).*windows"):
        baselines.Value(model).values(observations)


def test_value_baseline_without_model_has_no_gradients_or_optimizer():
    baseline = baselines.Value(loss_weight=0.25)
    baseline.build((None, 3))
    loss, gradients = baseline.gradients(baseline_batch())
    baseline.apply_gradients(gradients, baseline_batch())
    assert np.isnan(loss) and gradients == []
    assert baseline.loss_weight == 0.25 and baseline.optimizer is None


class WrongShape(baselines.Baseline):
    """Returns zeros of a wrong shape or dtype, which would broadcast or fail."""

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
def test_baseline_of_wrong_shape_or_dtype_raises(shape, dtype, error):
    """The record has as many steps as episodes, so each wrong shape would broadcast
    silently.
    """
    policy = keras.Sequential([keras.Input((1,)), keras.layers.Dense(2)])
    agent = tfr.Reinforce(policy, tfr.heads.Categorical(2), WrongShape(shape, dtype))
    agent.compile("sgd")
    record = tfr.Episodes(
        np.zeros((4, 3, 1)), np.zeros((3, 3), int), np.ones((3, 3)),
        np.full(3, 3), np.ones(3, bool),
    )  # fmt: skip
    with pytest.raises(
        error, match="WrongShape.estimate.*must return .* one baseline per return"
    ):
        agent.update(record)
