"""Heads: log-probabilities, samples and gradients against loops and closed forms."""

import math

import gymnasium as gym
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


def test_a_categorical_policy_is_the_softmax_of_its_logits():
    actions = heads.Categorical(3).distribution(tf.constant(LOGITS))
    probabilities = [actions.prob([a, a, a]).numpy() for a in range(3)]
    np.testing.assert_allclose(np.transpose(probabilities), softmax(LOGITS), rtol=1e-14)
    np.testing.assert_allclose(sum(probabilities), 1.0, rtol=1e-15)
    truth = -np.sum(softmax(LOGITS) * np.log(softmax(LOGITS)), axis=1)
    np.testing.assert_allclose(actions.entropy(), truth, rtol=1e-13)


def test_a_categorical_names_its_parameters():
    parameters = heads.Categorical(3).parameters(tf.constant(LOGITS))
    np.testing.assert_array_equal(parameters["logits"], LOGITS)
    np.testing.assert_allclose(parameters["probs"], softmax(LOGITS), rtol=1e-14)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_categorical_sample_is_the_arg_max_of_logits_plus_gumbel_noise(dtype):
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(50, 3)).astype(dtype)
    noise = rng.uniform(size=(50, 3)).astype(dtype)
    truth = [
        max(range(3), key=lambda k: row[k] - math.log(-math.log(u[k])))
        for row, u in zip(logits.tolist(), noise.tolist(), strict=True)
    ]
    actions = heads.Categorical(3).sample(tf.constant(logits), tf.constant(noise))
    assert actions.dtype == "int64" and actions.numpy().tolist() == truth


def test_categorical_samples_have_the_frequencies_of_the_policy():
    """Six standard errors of each share, 200 000 draws."""
    count, rng = 200_000, np.random.default_rng(0)
    noise = tf.constant(rng.uniform(size=(count, 3)))
    for row in LOGITS:
        outputs = tf.broadcast_to(row, [count, 3])
        actions = heads.Categorical(3).sample(outputs, noise).numpy()
        shares = np.bincount(actions, minlength=3) / count
        errors = np.sqrt(softmax(row) * (1 - softmax(row)) / count)
        assert (np.abs(shares - softmax(row)) < 6 * errors).all()


def test_noise_of_exactly_zero_picks_the_other_action():
    """Uniform noise lies in [0, 1): -log(-log 0) is minus infinity, never NaN."""
    noise = tf.constant([[0.0, 0.5], [0.5, 0.0]])
    actions = heads.Categorical(2).sample(tf.zeros([2, 2]), noise)
    assert actions.numpy().tolist() == [1, 0]


def test_the_mode_is_the_most_likely_action():
    assert heads.Categorical(3).mode(tf.constant(LOGITS)).numpy().tolist() == [2, 0, 0]


def test_the_expected_score_of_a_categorical_is_zero():
    """Σₐ π(a) ∇ log π(a) = 0, by enumeration: what any baseline rests on."""
    head, outputs = heads.Categorical(3), tf.Variable(LOGITS)
    score = np.zeros((3, 3))
    for action in range(3):
        with tf.GradientTape() as tape:
            log_prob = head.distribution(outputs).log_prob([action] * 3)
        score += softmax(LOGITS)[:, [action]] * tape.gradient(log_prob, outputs)
    np.testing.assert_allclose(score, 0.0, rtol=1e-13, atol=1e-16)


@pytest.mark.parametrize("gap", [0.0, 1.0, 30.0, 100.0, 1e4])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_score_is_one_hot_minus_probabilities_however_sure_the_policy(gap, dtype):
    """Through probabilities the gradient would be clipped or NaN from a gap of 100."""
    head, logits = heads.Categorical(3), np.array([gap, 0.0, -gap])
    for action in range(3):
        outputs = tf.Variable(logits[None], dtype=dtype)
        with tf.GradientTape() as tape:
            log_prob = head.distribution(outputs).log_prob([action])
        assert log_prob.dtype == dtype and np.isfinite(log_prob)
        truth = np.eye(3)[action] - softmax(logits)
        score = tape.gradient(log_prob, outputs)[0]
        np.testing.assert_allclose(score, truth, rtol=0, atol=2e-7)


def test_the_environment_hears_its_own_names_of_the_actions():
    head = heads.for_space(gym.spaces.Discrete(3, start=-2))
    actions = head.to_environment(tf.constant([0, 1, 2], tf.int64)).numpy()
    assert actions.dtype == "int64" and actions.tolist() == [-2, -1, 0]
    space = gym.spaces.Discrete(3, start=-2)
    assert all(space.contains(action) for action in actions)


def test_a_categorical_survives_its_config():
    head = revived(heads.Categorical(3, start=5, name="mine"))
    assert (head.size, head.start, head.name) == (3, 5, "mine")
    assert repr(head) == "Categorical(3, start=5)"
    assert head.noise == heads.NoiseSpec("uniform", (3,))


# Every head


@pytest.mark.parametrize("shape", [(None, 2), (None, 4, 3), (3,)])
@pytest.mark.parametrize("head", [heads.Categorical(3), heads.Gaussian(3)])
def test_outputs_of_another_width_are_refused(head, shape):
    head.check_outputs((None, 3))
    with pytest.raises(ValueError, match="returns 3 numbers.*") as refused:
        head.check_outputs(shape)
    assert str(shape) in str(refused.value) and "Dense(3)" in str(refused.value)


@pytest.mark.parametrize("action", [-1, 3])
def test_an_action_no_categorical_can_have_sampled_is_named(action):
    """Padding is not looked at; the first wrong step is."""
    actions = np.array([[0, 2], [1, action], [2, action]], "int32")
    heads.Categorical(3).check_actions(actions, np.array([3, 1]))
    with pytest.raises(ValueError, match=f"Received: {action} at step 1 of episode 1"):
        heads.Categorical(3).check_actions(actions, np.array([3, 3]))


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_an_action_no_gaussian_can_have_sampled_is_named(wrong):
    actions = np.zeros((3, 2, 2), "float32")
    actions[2, 0, 1] = wrong
    head = heads.Gaussian(2, low=-1.0, high=1.0)
    head.check_actions(actions + 5.0, np.array([2, 3]))  # raw actions know no bounds
    with pytest.raises(ValueError, match="at step 2 of episode 0"):
        head.check_actions(actions, np.array([3, 3]))


@pytest.mark.parametrize("size", [0, -1, 1.5, True])
@pytest.mark.parametrize("head", [heads.Categorical, heads.Gaussian])
def test_a_size_that_is_no_positive_int_is_refused(head, size):
    with pytest.raises(ValueError, match="`size` must be a whole number of at least 1"):
        head(size)


def test_a_head_without_its_verbs_cannot_be_made():
    with pytest.raises(TypeError, match="abstract"):
        base.Head()


# Gaussian


def gaussian(**kwargs):
    return built(heads.Gaussian(2, dtype="float64", **kwargs))


def log_density(actions, means, scales):
    """log N(a; μ, σ²), summed over the dimensions of an action, as a loop."""
    return [
        sum(
            -((a - m) ** 2) / (2 * s**2) - math.log(s) - math.log(2 * math.pi) / 2
            for a, m, s in zip(action, mean, scales, strict=True)
        )
        for action, mean in zip(actions, means, strict=True)
    ]


def test_the_log_probability_of_a_gaussian_is_its_formula():
    actions, means = np.random.default_rng(0).normal(size=(2, 7, 2))
    head = gaussian(initial_scale=[0.5, 2.0])
    distribution = head.distribution(tf.constant(means))
    truth = log_density(actions, means, [0.5, 2.0])
    np.testing.assert_allclose(distribution.log_prob(actions), truth, rtol=1e-13)
    entropy = math.log(2 * math.pi * math.e) + math.log(0.5) + math.log(2.0)
    np.testing.assert_allclose(distribution.entropy(), [entropy] * 7, rtol=1e-14)


def test_a_gaussian_sample_is_mean_plus_scale_times_noise():
    means, noise = np.random.default_rng(0).normal(size=(2, 7, 2))
    head = gaussian(initial_scale=[0.5, 2.0])
    actions = head.sample(tf.constant(means), tf.constant(noise))
    np.testing.assert_allclose(actions, means + [0.5, 2.0] * noise, rtol=1e-14)
    np.testing.assert_array_equal(head.mode(tf.constant(means)), means)
    assert head.noise == heads.NoiseSpec("normal", (2,))


def test_a_gaussian_names_its_parameters():
    parameters = gaussian(initial_scale=0.5).parameters(tf.zeros([3, 2], tf.float64))
    np.testing.assert_array_equal(parameters["mean"], np.zeros((3, 2)))
    np.testing.assert_allclose(parameters["scale"], np.full((3, 2), 0.5), rtol=1e-15)


@pytest.mark.parametrize("scale", [0.25, 3.0, [0.25, 3.0]])
def test_the_first_scale_is_the_one_asked_for(scale):
    head = built(heads.Gaussian(2, initial_scale=scale))
    truth = np.log(np.broadcast_to(scale, 2))
    np.testing.assert_allclose(head.log_scale, truth, rtol=1e-6)
    assert head.trainable_variables == [head.log_scale]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_gaussian_works_in_the_type_of_its_outputs(dtype):
    head, outputs = built(heads.Gaussian(2)), tf.ones([3, 2], dtype)
    results = [
        head.sample(outputs, outputs),
        head.mode(outputs),
        head.to_environment(outputs),
        head.distribution(outputs).log_prob(outputs),
        *head.parameters(outputs).values(),
    ]
    assert {x.dtype.name for x in results} == {dtype}


def test_the_expected_score_of_a_gaussian_is_zero():
    """Gauss-Hermite quadrature is exact for polynomials: E[∇ log π] = 0, E[∇²] known.

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


def test_gaussian_gradients_are_those_of_finite_differences():
    head = gaussian(initial_scale=[0.5, 2.0])
    actions = np.random.default_rng(0).normal(size=(3, 2))

    def log_prob(means):
        return head.distribution(means).log_prob(actions)

    theory, numeric = tf.test.compute_gradient(log_prob, [np.ones((3, 2))])
    np.testing.assert_allclose(theory[0], numeric[0], rtol=1e-7, atol=1e-7)


BOUNDS = [(-0.1, 0.1), (-1 / 3, 0.7), (1e-3, math.inf), (-math.inf, 1 / 3)]


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("low, high", BOUNDS)
def test_no_type_leaves_the_bounds_of_the_environment(low, high, dtype):
    """float32(0.1) is above 0.1: an environment in float64 would refuse it."""
    head = heads.Gaussian(1, low=low, high=high)
    raw = np.array([-1e4, -0.2, 0.0, 0.05, 0.2, 1e4])
    actions = head.to_environment(tf.cast(raw[:, None], dtype))
    found = tf.cast(actions, tf.float64).numpy()
    assert (found >= low).all() and (found <= high).all()
    tolerance = 0.01 if "16" in dtype else 1e-7
    truth = np.clip(raw, low, high)
    np.testing.assert_allclose(found[:, 0], truth, rtol=tolerance, atol=1e-3 * tolerance)


@pytest.mark.parametrize("low, high", [(-math.inf, math.inf), (-1e300, 1e300)])
def test_wide_bounds_neither_clip_nor_warn(low, high):
    """Warnings are errors here: a user would see one for each first action."""
    head = heads.Gaussian(1, low=low, high=high)
    actions = head.to_environment(tf.constant([[-3e38], [0.0], [3e38]]))
    np.testing.assert_array_equal(actions, np.float32([[-3e38], [0.0], [3e38]]))


def test_bounds_may_differ_by_dimension_and_actions_get_their_shape_back():
    head = heads.Gaussian(6, low=np.arange(6) - 3.0, high=4.0, shape=(2, 3))
    actions = head.to_environment(tf.fill([5, 6], -9.0))
    truth = np.broadcast_to([[-3, -2, -1], [0, 1, 2]], (5, 2, 3))
    np.testing.assert_array_equal(actions, truth)


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
def test_a_gaussian_that_makes_no_sense_is_refused(kwargs, message):
    with pytest.raises(ValueError, match=message):
        heads.Gaussian(2, **kwargs)


@pytest.mark.parametrize(
    "kwargs",
    [
        dict(),
        dict(low=-0.1, high=[0.1, math.inf], shape=(2, 1), initial_scale=[0.5, 2.0]),
    ],
)
def test_a_gaussian_survives_its_config(kwargs):
    head = heads.Gaussian(2, name="mine", **kwargs)
    again = revived(head)
    assert again.get_config() == head.get_config()
    np.testing.assert_array_equal(again.log_scale, built(head).log_scale)


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
def test_the_first_scale_is_half_the_half_width_of_finite_bounds(name, scale):
    head = built(heads.for_space(SPACES[name], dtype="float64"))
    np.testing.assert_allclose(np.exp(head.log_scale), scale, rtol=1e-14)


@pytest.mark.parametrize("name", SPACES)
def test_the_head_of_a_box_speaks_its_language(name):
    space = SPACES[name]
    head = heads.for_space(space)
    raw = tf.constant([[-1e3], [0.0], [1e3]]) * tf.ones([3, head.size])
    for action in head.to_environment(raw).numpy().astype(space.dtype):
        assert space.contains(np.asarray(action))


@pytest.mark.parametrize("space", [gym.spaces.Text(2), gym.spaces.Box(0.0, 1.0, (0,))])
def test_a_space_without_a_head_is_refused_by_name(space):
    with pytest.raises(ValueError, match="is not supported") as refused:
        heads.for_space(space)
    assert f"Action space {space!r}" in str(refused.value)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_sampler_takes_the_sure_action_whatever_the_noise(dtype):
    """Zero is a number that generators draw; it must not rule an action out."""
    logits = tf.constant([[1000.0, 0.0], [0.0, -1e9]], dtype)
    noise = tf.constant([[0.0, 0.5], [0.0, 0.9]], dtype)
    np.testing.assert_array_equal(heads.Categorical(2).sample(logits, noise), [0, 0])


def test_the_sampler_does_not_see_a_common_offset():
    """In float32 an offset of 1e8 would swallow the noise."""
    noise = np.random.default_rng(0).random((1000, 2), "float32")
    head = heads.Categorical(2)
    plain = head.sample(tf.zeros((1000, 2)), noise)
    np.testing.assert_array_equal(head.sample(tf.fill((1000, 2), 1e8), noise), plain)


# Eligibility


@pytest.mark.parametrize("start", [0, 4])
def test_the_eligibility_of_a_categorical_is_one_hot_minus_probabilities(start):
    ours = heads.Categorical(3, start=start).eligibility(tf.constant(LOGITS), [2, 0, 1])
    truth = np.eye(3)[[2, 0, 1]] - softmax(LOGITS)
    np.testing.assert_allclose(ours, truth, rtol=1e-13, atol=1e-15)


def test_the_eligibility_of_a_gaussian_is_the_distance_in_variances():
    head = built(heads.Gaussian(2, initial_scale=[0.5, 2.0], dtype="float64"))
    mean, y = tf.constant([[0.0, 1.0]], tf.float64), tf.constant([[1.0, 0.0]], tf.float64)
    np.testing.assert_allclose(head.eligibility(mean, y), [[4.0, -0.25]], rtol=1e-14)


class Unstated(heads.Categorical):
    """A head of somebody's own, without a closed form."""

    eligibility = base.Head.eligibility


def test_a_head_without_a_closed_form_is_differentiated():
    outputs, actions = tf.constant(LOGITS), tf.constant([2, 0, 1])
    np.testing.assert_allclose(
        Unstated(3).eligibility(outputs, actions),
        heads.Categorical(3).eligibility(outputs, actions),
        rtol=1e-13,
        atol=1e-15,
    )
