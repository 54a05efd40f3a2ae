"""Tests `Categorical`, `Gaussian` and `for_space` against loops and closed forms."""

import math

import gymnasium as gym
import keras
import numpy as np
import pytest
import tensorflow as tf
from toy_heads import built
from toy_heads import revived

from tf_reinforce import heads
from tf_reinforce.heads import base


def softmax(logits):
    odds = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


LOGITS = np.array([[0.3, -1.2, 2.0], [0.0, 0.0, 0.0], [5.0, -5.0, 1.0]])


# Categorical


def test_categorical_probabilities_are_softmax_of_logits():
    actions = heads.Categorical(3).distribution(tf.constant(LOGITS))
    probabilities = [actions.prob([a, a, a]).numpy() for a in range(3)]
    np.testing.assert_allclose(np.transpose(probabilities), softmax(LOGITS), rtol=1e-14)
    np.testing.assert_allclose(sum(probabilities), 1.0, rtol=1e-15)
    expected = -np.sum(softmax(LOGITS) * np.log(softmax(LOGITS)), axis=1)
    np.testing.assert_allclose(actions.entropy(), expected, rtol=1e-13)


def test_categorical_parameters_are_logits_and_probs():
    parameters = heads.Categorical(3).parameters(tf.constant(LOGITS))
    np.testing.assert_array_equal(parameters["logits"], LOGITS)
    np.testing.assert_allclose(parameters["probs"], softmax(LOGITS), rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_categorical_sample_is_argmax_of_logits_plus_gumbel_noise(dtype):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 3)).astype(dtype)
    noise = rng.uniform(size=(50, 3)).astype(dtype)
    expected = [
        max(range(3), key=lambda k: row[k] - math.log(-math.log(u[k])))
        for row, u in zip(logits.tolist(), noise.tolist(), strict=True)
    ]
    actions = heads.Categorical(3).sample(tf.constant(logits), tf.constant(noise))
    assert actions.dtype == "int64" and actions.numpy().tolist() == expected


def test_categorical_sample_frequencies_equal_probabilities():
    """The tolerance is six standard errors of each frequency, for 200 000 samples."""
    count, rng = 200_000, np.random.default_rng(0)
    noise = tf.constant(rng.uniform(size=(count, 3)))
    for row in LOGITS:
        outputs = tf.broadcast_to(row, [count, 3])
        actions = heads.Categorical(3).sample(outputs, noise).numpy()
        shares = np.bincount(actions, minlength=3) / count
        errors = np.sqrt(softmax(row) * (1 - softmax(row)) / count)
        assert (np.abs(shares - softmax(row)) < 6 * errors).all()


def test_categorical_sample_avoids_the_action_with_zero_noise():
    """Uniform noise lies in [0, 1), and -log(-log 0) must be minus infinity instead of
    NaN.
    """
    noise = tf.constant([[0.0, 0.5], [0.5, 0.0]])
    actions = heads.Categorical(2).sample(tf.zeros([2, 2]), noise)
    assert actions.numpy().tolist() == [1, 0]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_categorical_sample_with_noise_of_one_is_legal(dtype):
    """The float64 number before one, from a caller of an export, is one in float32."""
    head = heads.Categorical(2)
    logits = head.mask_outputs(tf.zeros([1, 2], dtype), tf.constant([[0, 1]]))
    actions = head.sample(logits, tf.constant([[1.0, 0.5]], dtype))
    assert actions.numpy().tolist() == [1]


def test_categorical_mode_is_the_most_likely_action():
    assert heads.Categorical(3).mode(tf.constant(LOGITS)).numpy().tolist() == [2, 0, 0]


def test_expected_score_of_categorical_is_zero():
    """Σₐ π(a) ∇ log π(a) = 0, by enumeration. Every baseline relies on this equation."""
    head, outputs = heads.Categorical(3), tf.Variable(LOGITS)
    score = np.zeros((3, 3))
    for action in range(3):
        with tf.GradientTape() as tape:
            log_prob = head.distribution(outputs).log_prob([action] * 3)
        score += softmax(LOGITS)[:, [action]] * tape.gradient(log_prob, outputs)
    np.testing.assert_allclose(score, 0.0, rtol=1e-13, atol=1e-16)


@pytest.mark.parametrize("gap", [0.0, 1.0, 30.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_categorical_score_is_one_hot_minus_probs_for_large_logit_gaps(gap, dtype):
    """Computed from probabilities, the gradient would be clipped or NaN from a gap of
    100 on.
    """
    head, logits = heads.Categorical(3), np.array([gap, 0.0, -gap])
    for action in range(3):
        outputs = tf.Variable(logits[None], dtype=dtype)
        with tf.GradientTape() as tape:
            log_prob = head.distribution(outputs).log_prob([action])
        assert log_prob.dtype == dtype and np.isfinite(log_prob)
        expected = np.eye(3)[action] - softmax(logits)
        score = tape.gradient(log_prob, outputs)[0]
        np.testing.assert_allclose(score, expected, rtol=0, atol=2e-7)


def test_categorical_actions_start_at_the_start_of_the_space():
    head = heads.for_space(gym.spaces.Discrete(3, start=-2))
    actions = head.to_environment(tf.constant([0, 1, 2], tf.int64)).numpy()
    assert actions.dtype == "int64" and actions.tolist() == [-2, -1, 0]
    space = gym.spaces.Discrete(3, start=-2)
    assert all(space.contains(action) for action in actions)


def test_categorical_is_restored_from_its_config():
    head = revived(heads.Categorical(3, start=5, name="mine"))
    assert (head.size, head.start, head.name) == (3, 5, "mine")
    assert repr(head) == "Categorical(3, start=5)"
    assert head.noise == heads.NoiseSpec("uniform", (3,))


# Every head


@pytest.mark.parametrize("shape", [(None, 2), (None, 4, 3), (3,)])
@pytest.mark.parametrize("head", [heads.Categorical(3), heads.Gaussian(3)])
def test_check_outputs_error_names_the_shape_and_the_expected_width(head, shape):
    head.check_outputs((None, 3))
    with pytest.raises(ValueError, match="returns 3 numbers.*") as error:
        head.check_outputs(shape)
    assert str(shape) in str(error.value) and "Dense(3)" in str(error.value)


@pytest.mark.parametrize("action", [-1, 3])
def test_check_actions_error_names_step_of_impossible_categorical_action(action):
    """Padding is not checked. The error names the first invalid step."""
    actions = np.array([[0, 2], [1, action], [2, action]], "int32")
    heads.Categorical(3).check_actions(actions, np.array([3, 1]))
    with pytest.raises(ValueError, match=f"Received: {action} at step 1 of episode 1"):
        heads.Categorical(3).check_actions(actions, np.array([3, 3]))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_check_actions_error_names_step_of_nonfinite_gaussian_action(wrong):
    actions = np.zeros((3, 2, 2), "float32")
    actions[2, 0, 1] = wrong
    head = heads.Gaussian(2, low=-1.0, high=1.0)
    head.check_actions(actions + 5.0, np.array([2, 3]))  # raw actions are not bounded
    with pytest.raises(ValueError, match="at step 2 of episode 0"):
        head.check_actions(actions, np.array([3, 3]))


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
@pytest.mark.parametrize("head", [heads.Categorical, heads.Gaussian])
def test_head_size_that_is_not_a_positive_int_raises(head, size):
    with pytest.raises(ValueError, match="`size` must be a whole number of at least 1"):
        head(size)


def test_call_of_a_head_names_its_method_distribution():
    for outputs in (np.zeros((1, 3)), keras.Input((3,))):
        with pytest.raises(TypeError, match=r"`head.distribution\(outputs\)`"):
            heads.Categorical(3)(outputs)


def test_abstract_head_cannot_be_instantiated():
    with pytest.raises(TypeError, match="abstract"):
        base.Head()


# Gaussian


def gaussian(**kwargs):
    return built(heads.Gaussian(2, dtype="float64", **kwargs))


def log_density(actions, means, scales):
    """Returns log N(a; μ, σ²), summed over the dimensions of an action, computed in a
    loop.
    """
    return [
        sum(
            -((a - m) ** 2) / (2 * s**2) - math.log(s) - math.log(2 * math.pi) / 2
            for a, m, s in zip(action, mean, scales, strict=True)
        )
        for action, mean in zip(actions, means, strict=True)
    ]


def test_gaussian_log_probability_and_entropy_equal_closed_forms():
    actions, means = np.random.default_rng(0).normal(size=(2, 7, 2))
    head = gaussian(initial_scale=[0.5, 2.0])
    distribution = head.distribution(tf.constant(means))
    expected = log_density(actions, means, [0.5, 2.0])
    np.testing.assert_allclose(distribution.log_prob(actions), expected, rtol=1e-13)
    entropy = math.log(2 * math.pi * math.e) + math.log(0.5) + math.log(2.0)
    np.testing.assert_allclose(distribution.entropy(), [entropy] * 7, rtol=1e-14)


def test_gaussian_sample_is_mean_plus_scale_times_noise():
    means, noise = np.random.default_rng(0).normal(size=(2, 7, 2))
    head = gaussian(initial_scale=[0.5, 2.0])
    actions = head.sample(tf.constant(means), tf.constant(noise))
    np.testing.assert_allclose(actions, means + [0.5, 2.0] * noise, rtol=1e-14)
    np.testing.assert_array_equal(head.mode(tf.constant(means)), means)
    assert head.noise == heads.NoiseSpec("normal", (2,))


def test_gaussian_parameters_are_mean_and_scale():
    parameters = gaussian(initial_scale=0.5).parameters(tf.zeros([3, 2], tf.float64))
    np.testing.assert_array_equal(parameters["mean"], np.zeros((3, 2)))
    np.testing.assert_allclose(parameters["scale"], np.full((3, 2), 0.5), rtol=1e-15)


@pytest.mark.parametrize("scale", [0.25, 3.0, [0.25, 3.0]])
def test_gaussian_log_scale_starts_at_log_of_initial_scale(scale):
    head = built(heads.Gaussian(2, initial_scale=scale))
    expected = np.log(np.broadcast_to(scale, 2))
    np.testing.assert_allclose(head.log_scale, expected, rtol=1e-6)
    assert head.trainable_variables == [head.log_scale]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_results_of_gaussian_have_the_dtype_of_its_outputs(dtype):
    head, outputs = built(heads.Gaussian(2)), tf.ones([3, 2], dtype)
    results = [
        head.sample(outputs, outputs),
        head.mode(outputs),
        head.to_environment(outputs),
        head.distribution(outputs).log_prob(outputs),
        *head.parameters(outputs).values(),
    ]
    assert {x.dtype.name for x in results} == {dtype}


def test_expected_score_of_gaussian_is_zero_and_fisher_information_exact():
    """Gauss-Hermite quadrature is exact for polynomials, and E[∇ log π] = 0.

    The second moments are the Fisher information, 1/σ² for μ and 2 for log σ.
    """
    scale, head = 0.7, built(heads.Gaussian(1, dtype="float64", initial_scale=0.7))
    nodes, weights = np.polynomial.hermite_e.hermegauss(20)
    weights /= weights.sum()
    moments = np.zeros((2, 2))
    for node, weight in zip(nodes, weights, strict=True):
        mean = tf.Variable([[0.4]], dtype=tf.float64)
        with tf.GradientTape() as tape:
            log_prob = head.distribution(mean).log_prob([[0.4 + scale * node]])
        score = tape.gradient(log_prob, [mean, head.log_scale.value])
        score = np.array([float(tf.squeeze(x)) for x in score])
        moments += weight * np.stack([score, score**2])
    np.testing.assert_allclose(
        moments, [[0, 0], [1 / scale**2, 2]], rtol=1e-12, atol=1e-12
    )


def test_gaussian_gradient_equals_finite_differences():
    head = gaussian(initial_scale=[0.5, 2.0])
    actions = np.random.default_rng(0).normal(size=(3, 2))

    def log_prob(means):
        return head.distribution(means).log_prob(actions)

    theory, numeric = tf.test.compute_gradient(log_prob, [np.ones((3, 2))])
    np.testing.assert_allclose(theory[0], numeric[0], rtol=1e-7, atol=1e-7)


BOUNDS = [(-0.1, 0.1), (-1 / 3, 0.7), (1e-3, math.inf), (-math.inf, 1 / 3)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("low, high", BOUNDS)
def test_gaussian_actions_stay_inside_the_bounds_in_every_dtype(low, high, dtype):
    """float32(0.1) is larger than 0.1, so an environment in float64 would reject the
    action.
    """
    head = heads.Gaussian(1, low=low, high=high)
    raw = np.array([-1e4, -0.2, 0.0, 0.05, 0.2, 1e4])
    actions = head.to_environment(tf.cast(raw[:, None], dtype))
    sent = tf.cast(actions, tf.float64).numpy()
    assert (sent >= low).all() and (sent <= high).all()
    tolerance = 0.01 if "16" in dtype else 1e-7
    expected = np.clip(raw, low, high)
    np.testing.assert_allclose(
        sent[:, 0], expected, rtol=tolerance, atol=1e-3 * tolerance
    )


@pytest.mark.parametrize("low, high", [(-math.inf, math.inf), (-1e300, 1e300)])
def test_bounds_wider_than_float32_neither_clip_nor_warn(low, high):
    """Warnings are errors in this test suite.

    A user would see the warning at the first action.
    """
    head = heads.Gaussian(1, low=low, high=high)
    actions = head.to_environment(tf.constant([[-3e38], [0.0], [3e38]]))
    np.testing.assert_array_equal(actions, np.float32([[-3e38], [0.0], [3e38]]))


def test_gaussian_clips_each_dimension_to_its_bound_and_reshapes_actions():
    head = heads.Gaussian(6, low=np.arange(6) - 3.0, high=4.0, shape=(2, 3))
    actions = head.to_environment(tf.fill([5, 6], -9.0))
    expected = np.broadcast_to([[-3, -2, -1], [0, 1, 2]], (5, 2, 3))
    np.testing.assert_array_equal(actions, expected)


REFUSED = {
    "shape": (dict(shape=(2, 3)), r"shape \(2, 3\) does not hold 2 numbers"),
    "three_lows": (dict(low=[0, 0, 0]), "`low` must be one number or 2"),
    "three_highs": (dict(high=[1, 1, 1]), "`high` must be one number or 2"),
    "three_scales": (dict(initial_scale=[1, 1, 1]), "`initial_scale` must be one number"),
    "no_scale": (dict(initial_scale=0.0), "must be positive"),
    "one_negative_scale": (dict(initial_scale=[1.0, -1.0]), "must be positive"),
    "endless_scale": (dict(initial_scale=math.inf), "must be positive"),
    "nan_scale": (dict(initial_scale=math.nan), "must be positive"),
    "crossed": (dict(low=1.0, high=-1.0), "`low` must be below `high`"),
    "equal": (dict(low=[0.0, 1.0], high=1.0), "`low` must be below `high`"),
    "nan_bound": (dict(low=math.nan), "`low` must be below `high`"),
}


@pytest.mark.parametrize("kwargs, message", REFUSED.values(), ids=REFUSED.keys())
def test_invalid_arguments_of_gaussian_raise(kwargs, message):
    with pytest.raises(ValueError, match=message):
        heads.Gaussian(2, **kwargs)


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(),
        dict(low=-0.1, high=[0.1, math.inf], shape=(2, 1), initial_scale=[0.5, 2.0]),
    ],
)
def test_gaussian_restored_from_config_is_equal(kwargs):
    head = heads.Gaussian(2, name="mine", **kwargs)
    restored = revived(head)
    assert restored.get_config() == head.get_config()
    np.testing.assert_array_equal(restored.log_scale, built(head).log_scale)


# for_space

SPACES = {
    "bounded": gym.spaces.Box(-2.0, 2.0, (1,), np.float32),
    "half_infinite": gym.spaces.Box(
        np.zeros(2), np.array([1.0, np.inf]), dtype="float64"
    ),
    "unbounded": gym.spaces.Box(-np.inf, np.inf, (3,), np.float32),
    "matrix": gym.spaces.Box(
        np.zeros((2, 3)), 0.1 + np.arange(6.0).reshape(2, 3), dtype="float64"
    ),
    "scalar": gym.spaces.Box(-1.0, 1.0, (), np.float32),
}


@pytest.mark.parametrize(
    "name, scale",
    [
        ("bounded", [1.0]),
        ("half_infinite", [0.25, 1.0]),
        ("unbounded", [1.0] * 3),
        ("matrix", (0.1 + np.arange(6)) / 4),
        ("scalar", [0.5]),
    ],
)
def test_initial_scale_for_box_is_a_quarter_of_the_width_of_finite_bounds(name, scale):
    head = built(heads.for_space(SPACES[name], dtype="float64"))
    np.testing.assert_allclose(np.exp(head.log_scale), scale, rtol=1e-14)


@pytest.mark.parametrize("name", SPACES)
def test_actions_of_head_for_box_are_members_of_the_box(name):
    space = SPACES[name]
    head = heads.for_space(space)
    raw = tf.constant([[-1e3], [0.0], [1e3]]) * tf.ones([3, head.size])
    for action in head.to_environment(raw).numpy().astype(space.dtype):
        assert space.contains(np.asarray(action))


@pytest.mark.parametrize("space", [gym.spaces.Text(2), gym.spaces.Box(0.0, 1.0, (0,))])
def test_for_space_error_names_the_unsupported_space(space):
    with pytest.raises(ValueError, match="is not supported") as error:
        heads.for_space(space)
    assert f"Action space {space!r}" in str(error.value)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_categorical_sample_with_large_logit_gap_ignores_zero_noise(dtype):
    """Random generators can return zero. Zero noise must not exclude an action."""
    logits = tf.constant([[1000.0, 0.0], [0.0, -1e9]], dtype)
    noise = tf.constant([[0.0, 0.5], [0.0, 0.9]], dtype)
    np.testing.assert_array_equal(heads.Categorical(2).sample(logits, noise), [0, 0])


def test_large_offset_of_logits_does_not_change_categorical_samples():
    """In float32, the noise would be lost if it were added to an offset of 1e8."""
    noise = np.random.default_rng(0).random((1000, 2), "float32")
    head = heads.Categorical(2)
    plain = head.sample(tf.zeros((1000, 2)), noise)
    np.testing.assert_array_equal(head.sample(tf.fill((1000, 2), 1e8), noise), plain)


# Eligibility


@pytest.mark.parametrize("start", [0, 4])
def test_categorical_eligibility_is_one_hot_minus_probabilities(start):
    eligibility = heads.Categorical(3, start=start).eligibility(
        tf.constant(LOGITS), [2, 0, 1]
    )
    expected = np.eye(3)[[2, 0, 1]] - softmax(LOGITS)
    np.testing.assert_allclose(eligibility, expected, rtol=1e-13, atol=1e-15)


def test_gaussian_eligibility_is_distance_from_mean_over_variance():
    head = built(heads.Gaussian(2, initial_scale=[0.5, 2.0], dtype="float64"))
    mean, y = tf.constant([[0.0, 1.0]], tf.float64), tf.constant([[1.0, 0.0]], tf.float64)
    np.testing.assert_allclose(head.eligibility(mean, y), [[4.0, -0.25]], rtol=1e-14)


class CategoricalWithoutEligibility(heads.Categorical):
    """A custom head without a closed form of the eligibility."""

    eligibility = base.Head.eligibility


def test_default_eligibility_is_the_gradient_of_the_log_probability():
    outputs, actions = tf.constant(LOGITS), tf.constant([2, 0, 1])
    np.testing.assert_allclose(
        CategoricalWithoutEligibility(3).eligibility(outputs, actions),
        heads.Categorical(3).eligibility(outputs, actions),
        rtol=1e-13,
        atol=1e-15,
    )
