"""Tests the heads for a Box: bounds, precision at the bounds, densities and entropies."""

import itertools
import math

import gymnasium as gym
import numpy as np
import pytest
import sweeps
import tensorflow as tf
from toy_heads import built
from toy_heads import revived

from tf_reinforce import heads
from tf_reinforce.engine.collect import acting_program
from tf_reinforce.heads import base
from tf_reinforce.heads import beta as beta_module
from tf_reinforce.policies import actor as deciding

WIDEST = math.log(100.0)


def noise_of(head, count, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    draw = rng.random if head.noise.kind == "uniform" else rng.standard_normal
    return tf.constant(draw((count, *head.noise.shape), dtype))


def value_and_gradients(function, *at):
    """Returns a value and its gradient by each argument."""
    at = [tf.convert_to_tensor(x) for x in at]
    with tf.GradientTape() as tape:
        tape.watch(at)
        value = function(*at)
    return value.numpy(), [x.numpy() for x in tape.gradient(value, at)]


def normal(x, mean, scale):
    return -(((x - mean) / scale) ** 2) / 2 - math.log(scale) - math.log(math.tau) / 2


def log_tail(z):
    """Returns ln Φ(z) for z ≤ -1 by the continued fraction of Mills' ratio, and its
    derivative.
    """
    fraction = -z
    for k in range(2000, 0, -1):
        fraction = -z + k / fraction
    return -(z**2) / 2 - math.log(math.tau) / 2 - math.log(fraction), fraction


# Every head for a Box

KINDS = {
    "gaussian": lambda size, low, high, **k: heads.Gaussian(
        size, low=low, high=high, **k
    ),
    "clipped": heads.ClippedGaussian,
    "tanh": heads.TanhGaussian,
    "beta": heads.Beta,
}
KIND = pytest.mark.parametrize("kind", KINDS)


@KIND
@pytest.mark.parametrize(
    "options", [{}, {"integer": True}, {"shape": (2, 1), "name": "a"}]
)
def test_box_head_restored_from_config_samples_the_same_actions(kind, options):
    head = KINDS[kind](2, [-3.5, 0.0], 7.25, **options)
    restored = revived(head)
    assert restored.get_config() == head.get_config() and repr(restored) == repr(head)
    outputs = tf.ones([3, head.outputs_size])
    noise = noise_of(head, 3)
    np.testing.assert_array_equal(
        restored.sample(outputs, noise), built(head).sample(outputs, noise)
    )


@pytest.mark.parametrize("kind", ["gaussian", "clipped", "tanh"])
def test_head_with_state_dependent_scale_is_restored_from_config(kind):
    head = KINDS[kind](2, -1, 1, state_dependent_scale=True, initial_scale=[0.5, 2.0])
    assert revived(head).get_config() == head.get_config()
    assert head.outputs_size == 4 and not built(head).weights


@KIND
def test_parameters_of_box_head_have_names_and_one_value_per_dimension(kind):
    head = built(KINDS[kind](2, -1.0, 1.0))
    outputs = tf.zeros([3, head.outputs_size])
    parameters = head.parameters(outputs)
    names = {"beta": ["concentration1", "concentration0"]}.get(kind, ["mean", "scale"])
    assert list(parameters) == names
    assert {tuple(values.shape) for values in parameters.values()} == {(3, 2)}
    if kind == "beta":
        np.testing.assert_allclose(parameters[names[0]], 1 + math.log(2), rtol=2e-6)


@KIND
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_results_of_box_head_have_the_dtype_of_its_outputs(kind, dtype):
    head = built(KINDS[kind](2, -1.0, 1.0))
    outputs = tf.ones([3, head.outputs_size], dtype)
    raw = head.sample(outputs, noise_of(head, 3, dtype))
    results = [
        raw,
        head.mode(outputs),
        head.to_environment(raw),
        head.distribution(outputs).log_prob(raw),
        head.distribution(outputs).entropy(),
        head.eligibility(outputs, raw),
        *head.parameters(outputs).values(),
    ]
    assert {x.dtype.name for x in results} == {dtype}


BOUNDS = [(-0.1, 0.1), (-1 / 3, 0.7), (1e-3, 70000.0), (-1e300, 1e300)]


@KIND
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("low, high", BOUNDS)
def test_actions_stay_inside_the_bounds_in_every_dtype(kind, low, high, dtype):
    head = KINDS[kind](1, low, high)
    raw = [0.0, 1e-6, 0.3, 1 - 1e-4, 1.0] if kind == "beta" else [-50, -1, 0.0, 0.05, 50]
    actions_in_dtype = head.to_environment(tf.constant(raw, dtype)[:, None])
    actions = tf.cast(actions_in_dtype, tf.float64).numpy().ravel()
    assert (actions >= low).all() and (actions <= high).all()
    assert (np.diff(actions) >= 0).all()
    if kind in ("tanh", "beta"):
        widest = (
            min(high, float(actions_in_dtype.dtype.max)),
            max(low, float(actions_in_dtype.dtype.min)),
        )
        np.testing.assert_allclose([actions[-1], actions[0]], widest, rtol=2e-3)


WHOLE = [
    gym.spaces.Box(0, 255, (2,), np.uint8),
    gym.spaces.Box(-128, 127, (2,), np.int8),
    gym.spaces.Box(np.array([-3, 5]), np.array([4, 1000003]), dtype=np.int32),
    gym.spaces.Box(-(2**63), 2**63 - 1, (2,), np.int64),
    gym.spaces.Box(2**53 + 1, 2**63 - 1, (2,), np.int64),
    gym.spaces.Box(0, 2**64 - 1, (2,), np.uint64),
    gym.spaces.Box(0, 2**24 + 1, (2,), np.uint32),
]


IN_FLOATS = [
    (space, dtype)
    for space in WHOLE
    for dtype in ("float16", "float32", "float64")
    if space.low.max() < np.finfo(dtype).max  # no float16 lies above 65504
]


@KIND
@pytest.mark.parametrize("space, dtype", IN_FLOATS)
def test_actions_of_integer_head_are_whole_numbers_inside_the_bounds(kind, space, dtype):
    """No float type of this test can represent 2⁵³ + 1, 2⁶³ - 1 or 2⁶⁴ - 1."""
    head = KINDS[kind](2, space.low, space.high, integer=True)
    raw = tf.linspace([-9.0] * 2, [9.0] * 2, 33)
    raw = tf.cast(tf.sigmoid(raw) if kind == "beta" else raw, dtype)
    if kind in ("gaussian", "clipped"):
        most = raw.dtype.max
        raw = tf.concat([raw, [[-most, most], [most, -most]]], axis=0)
    actions = head.to_environment(raw).numpy()
    assert actions.dtype == dtype and (actions == np.round(actions)).all()
    for action in actions:
        exact = [int(number) for number in action]
        assert all(
            low <= x <= high
            for low, x, high in zip(
                space.low.tolist(), exact, space.high.tolist(), strict=True
            )
        )
        assert space.contains(action.astype(space.dtype))
    assert head.matches_space(space)


def test_integer_head_rounds_to_the_nearest_whole_number():
    head = heads.Gaussian(1, low=-2.5, high=7.9, integer=True)
    assert (head.low, head.high) == (-2, 7)
    raw = tf.constant([-9, -1.6, -0.4, 0.6, 3.2, 7.4, 7.9, 80.0])[:, None]
    actions = head.to_environment(raw).numpy().ravel()
    assert actions.tolist() == [-2, -2, 0, 1, 3, 7, 7, 7]


@KIND
def test_matches_space_requires_integer_head_for_integer_box_and_equal_bounds(kind):
    make = KINDS[kind]
    whole, real = gym.spaces.Box(0, 9, (2,), np.int32), gym.spaces.Box(0.0, 9.0, (2,))
    assert make(2, 0, 9, integer=True).matches_space(whole)
    assert not make(2, 0, 9).matches_space(whole)
    assert make(2, 0, 9).matches_space(real) and make(
        2, 0, 9, integer=True
    ).matches_space(real)
    assert not make(2, 0, 9.5).matches_space(real) and not make(
        2, -1, 9, integer=True
    ).matches_space(whole)
    assert not make(2, 0, 9, shape=(2, 1)).matches_space(real)
    assert not make(2, 0, 9, integer=True).matches_space(gym.spaces.Discrete(9))
    greatest = gym.spaces.Box(0, 2**63 - 2, (2,), np.int64)
    assert make(2, 0, 2**63 - 2, integer=True).matches_space(greatest)
    assert not make(2, 0, 2**63 - 1, integer=True).matches_space(greatest)


@pytest.mark.parametrize("kind", ["tanh", "beta"])
@pytest.mark.parametrize("low, high", [(-math.inf, 1.0), (0.0, math.inf)])
def test_infinite_bound_error_names_heads_that_accept_infinite_bounds(kind, low, high):
    with pytest.raises(ValueError, match="finite bounds.*inf.*ClippedGaussian or Gauss"):
        KINDS[kind](1, low, high)


@KIND
@pytest.mark.parametrize(
    "arguments, message",
    [
        ((0, 0.0, 1.0), "`size` must be a whole number"),
        ((2, [0.0] * 3, 1.0), "`low` must be one number or 2"),
        ((2, 1.0, 1.0), "`low` must be below `high`"),
        ((2, math.nan, 1.0), "`low` must be below `high`"),
    ],
)
def test_invalid_size_or_bounds_of_box_head_raise(kind, arguments, message):
    with pytest.raises(ValueError, match=message):
        KINDS[kind](*arguments)
    with pytest.raises(ValueError, match="`low` must be below `high`"):
        KINDS[kind](1, 0.2, 0.8, integer=True)  # no whole number lies between
    with pytest.raises(ValueError, match="`low` must be below `high`"):
        KINDS[kind](1, math.inf, 1.0, integer=True)


@pytest.mark.parametrize(
    "kind, wrong",
    [("gaussian", np.inf), ("clipped", 1.5), ("clipped", -1.1), ("clipped", np.nan)]
    + [("tanh", np.nan), ("beta", 0.0), ("beta", 1.0), ("beta", -0.5)],
)
def test_check_actions_error_names_step_of_impossible_box_action(kind, wrong):
    head = KINDS[kind](2, -1.0, 1.0)
    actions = np.full((2, 1, 2), 0.5, "float32")
    head.check_actions(actions, np.array([2]))
    actions[1, 0, 1] = wrong
    with pytest.raises(ValueError, match="at step 1 of episode 0"):
        head.check_actions(actions, np.array([2]))


@KIND
def test_eligibility_of_box_head_is_gradient_of_log_probability(kind):
    options = {} if kind == "beta" else {"state_dependent_scale": True}
    head = built(KINDS[kind](2, -1.0, [0.5, 1.0], **options))
    outputs = np.random.default_rng(0).normal(size=(200, 4))
    raw = head.sample(tf.constant(outputs), noise_of(head, 200, "float64"))

    def score(x):
        return tf.reduce_sum(head.distribution(x).log_prob(raw))

    _, [expected] = value_and_gradients(score, outputs)
    np.testing.assert_allclose(
        head.eligibility(outputs, raw), expected, rtol=1e-11, atol=1e-11
    )


# for_space


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "low, high", [(-1, 1), (0, np.inf), (-np.inf, 3), (-np.inf, np.inf)]
)
def test_for_space_returns_head_for_finite_and_infinite_bounds(low, high, dtype):
    space = gym.spaces.Box(
        np.array([low, -2], dtype), np.array([high, 5], dtype), dtype=dtype
    )
    head = built(heads.for_space(space, dtype="float64"))
    assert head.matches_space(space) and not head.integer
    scale = (high - low) / 4 if np.isfinite(high - low) else 1.0
    np.testing.assert_allclose(np.exp(head.log_scale), [scale, 7 / 4], rtol=1e-14)
    for action in head.to_environment(tf.constant([[-1e3, 1e3], [0.0, 0.0]])).numpy():
        assert space.contains(action.astype(dtype))


@pytest.mark.parametrize("space", WHOLE, ids=lambda space: space.dtype.name)
def test_for_space_returns_integer_head_for_integer_box(space):
    head = built(heads.for_space(space, dtype="float64"))
    assert head.integer and head.matches_space(space) and head.size == 2
    assert np.asarray(head.low + np.zeros(2, object)).tolist() == space.low.tolist()
    assert np.asarray(head.high + np.zeros(2, object)).tolist() == space.high.tolist()
    restored = revived(heads.for_space(space))
    assert (
        restored.low == head.low
        and restored.high == head.high
        and restored.matches_space(space)
    )


def test_initial_scale_for_integer_box_is_at_least_one_half():
    space = gym.spaces.Box(np.array([0, 0]), np.array([1, 100]), dtype=np.int64)
    assert heads.for_space(space).initial_scale == [0.5, 25.0]
    wide = gym.spaces.Box(0, 2**64 - 1, (1,), np.uint64)
    assert heads.for_space(wide).initial_scale == 1.0


# A scale that depends on the state


@pytest.mark.parametrize("kind", ["gaussian", "clipped", "tanh"])
def test_state_dependent_scale_starts_at_initial_scale_and_is_bounded(kind):
    head = KINDS[kind](2, -9.0, 9.0, state_dependent_scale=True, initial_scale=[0.5, 2.0])

    def scale(z):
        return head.parameters(tf.constant([[7.0, 8.0, *z]], tf.float64))["scale"]

    np.testing.assert_allclose(scale([0.0, 0.0]), [[0.5, 2.0]], rtol=1e-15)
    nearby = np.log(scale([1e-3, -1e-3]) / [0.5, 2.0])
    np.testing.assert_allclose(nearby, [[1e-3, -1e-3]], rtol=1e-7)
    truth = np.exp(WIDEST * np.tanh(np.array([3.0, -2.0]) / WIDEST)) * [0.5, 2.0]
    np.testing.assert_allclose(scale([3.0, -2.0])[0], truth, rtol=1e-14)
    np.testing.assert_allclose(scale([1e6, -1e6]), [[50.0, 0.02]], rtol=1e-12)
    assert head.mode(tf.constant([[7.0, 8.0, 1.0, 1.0]])).numpy().tolist() == [[7, 8]]


def test_gaussian_with_huge_outputs_has_finite_gradients():
    head = heads.Gaussian(1, state_dependent_scale=True)
    outputs = tf.constant([[0.0, 1e30], [0.0, -1e30], [5.0, 0.0]])

    def score(x):
        return tf.reduce_sum(head.distribution(x).log_prob(tf.ones([3, 1])))

    value, [gradient] = value_and_gradients(score, outputs)
    assert np.isfinite(value) and np.isfinite(gradient).all()


# ClippedGaussian


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("z", [-1.0, -5.0, -14.0, -50.0, -1000.0])
def test_log_probability_at_a_bound_is_exact_however_far_the_mean(z, dtype, tolerance):
    """The log-probability of a bound is ln Φ(z).

    In float32, Φ(z) underflows to zero from z = -14 on.
    """
    head = built(heads.ClippedGaussian(1, -1.0, 1.0, initial_scale=2.0, dtype=dtype))
    expected, derivative = log_tail(z)
    for bound, side in ((-1.0, 1.0), (1.0, -1.0)):
        outputs = tf.constant([[bound - side * 2 * z]], dtype)
        action = tf.constant([[bound]], dtype)

        def score(outputs, action=action):
            return head.distribution(outputs).log_prob(action)

        value, [gradient] = value_and_gradients(score, outputs)
        np.testing.assert_allclose(value, [expected], rtol=tolerance)
        np.testing.assert_allclose(gradient, [[-side * derivative / 2]], rtol=tolerance)
        eligibility = head.eligibility(outputs, action)
        np.testing.assert_allclose(
            eligibility, [[-side * derivative / 2]], rtol=tolerance
        )


def test_clipped_gaussian_has_the_normal_density_between_its_bounds():
    head = built(heads.ClippedGaussian(2, [-1.0, -math.inf], [1.0, 0.5], dtype="float64"))
    outputs = tf.constant([[0.3, -4.0]], tf.float64)
    log_prob = head.distribution(outputs).log_prob([[0.9, 0.5]]).numpy()
    expected = normal(0.9, 0.3, 1.0) + log_tail(-4.5)[0]
    np.testing.assert_allclose(log_prob, [expected], rtol=1e-13)


def test_action_at_a_bound_rounded_to_float32_counts_as_the_bound():
    """The bound 0.1 of a float64 environment becomes a number above 0.1 in a float32
    record.
    """
    head = built(heads.ClippedGaussian(1, -0.1, 0.1))
    means, recorded = tf.zeros([2, 1]), np.array([[-0.1], [0.1]], "float32")
    assert recorded[1, 0] > head.bounds(means)[1].numpy()
    head.check_actions(recorded[:, None], np.array([2]))
    drawn = head.sample(means, tf.constant([[-9.0], [9.0]]))
    for method in (head.eligibility, lambda o, a: head.distribution(o).log_prob(a)):
        np.testing.assert_allclose(method(means, recorded), method(means, drawn), 1e-6)
    beyond = np.nextafter(recorded, np.float32(np.inf) * recorded)
    assert not head.is_valid(beyond).any()


def test_clipped_gaussian_with_infinite_bounds_equals_gaussian():
    clipped = built(heads.ClippedGaussian(2, -math.inf, math.inf))
    plain, outputs = built(heads.Gaussian(2)), tf.constant([[0.3, -2.0], [1e3, 0.0]])
    noise = noise_of(clipped, 2)
    raw = plain.sample(outputs, noise)
    np.testing.assert_array_equal(clipped.sample(outputs, noise), raw)
    for a, b in [
        (
            clipped.distribution(outputs).log_prob(raw),
            plain.distribution(outputs).log_prob(raw),
        ),
        (clipped.distribution(outputs).entropy(), plain.distribution(outputs).entropy()),
        (clipped.eligibility(outputs, raw), plain.eligibility(outputs, raw)),
    ]:
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_clipped_gaussian_clips_samples_and_its_mode_is_the_clipped_mean():
    head = built(heads.ClippedGaussian(2, [-1.0, 0.0], [1.0, math.inf]))
    outputs, noise = tf.constant([[0.5, 3.0], [4.0, -2.0]]), [[9.0, 9.0], [-9.0, 1.0]]
    assert head.sample(outputs, noise).numpy().tolist() == [[1.0, 12.0], [-1.0, 0.0]]
    assert head.mode(outputs).numpy().tolist() == [[0.5, 3.0], [1.0, 0.0]]
    modes = head.distribution(outputs).mode()
    np.testing.assert_array_equal(modes, head.mode(outputs))


def test_clipped_gaussian_score_has_same_mean_and_smaller_variance():
    """Fujita and Maeda (2018), theorem 3.2: E[score · f(a)] does not change."""
    clipped = built(heads.ClippedGaussian(1, -1.0, 1.0, dtype="float64"))
    plain = built(heads.Gaussian(1, low=-1.0, high=1.0, dtype="float64"))
    nodes = np.linspace(-9, 9, 200_001)
    weights = np.exp(-(nodes**2) / 2) / math.sqrt(math.tau) * (nodes[1] - nodes[0])
    outputs = tf.fill([len(nodes), 1], tf.constant(0.7, tf.float64))
    raw = plain.sample(outputs, nodes[:, None])
    sent = plain.to_environment(raw)
    reward = np.cos(3 * sent.numpy().ravel()) * weights
    one = plain.eligibility(outputs, raw).numpy().ravel()
    other = clipped.eligibility(outputs, sent).numpy().ravel()
    np.testing.assert_allclose(np.sum(one * reward), np.sum(other * reward), atol=3e-5)
    assert np.sum(other**2 * weights) < 0.9 * np.sum(one**2 * weights)


MEANS = [-1e6, -60.0, -3.0, 0.2, 3.0, 60.0, 1e6]
ENDS = [(-1.0, 1.0), (-1.0, math.inf), (-math.inf, 1.0)]
BOUNDED = list(itertools.product(ENDS, MEANS))


@pytest.mark.parametrize("bounds, mean", sweeps.some(BOUNDED, always=BOUNDED[::3]))
def test_clipped_gaussian_entropy_is_exact_and_its_gradient_finite(mean, bounds):
    """The expected entropy is E[-ln π] over 200 000 noise quantiles, in float32."""
    head = built(heads.ClippedGaussian(1, *bounds, state_dependent_scale=True))
    outputs = tf.constant([[mean, 0.5]])

    def entropy(x):
        return head.distribution(x).entropy()

    value, [gradient] = value_and_gradients(entropy, outputs)
    assert np.isfinite(gradient).all()
    u = (np.arange(200_000) + 0.5) / 200_000
    noise = math.sqrt(2) * tf.math.erfinv(2 * u - 1).numpy()[:, None]
    many = tf.cast(tf.tile(outputs, [len(u), 1]), tf.float64)
    surprise = -head.distribution(many).log_prob(head.sample(many, noise)).numpy()
    np.testing.assert_allclose(value, surprise.mean(), atol=2e-4)


@pytest.mark.parametrize("largest", [1.0, 1e-2])
def test_clipped_gaussian_with_huge_bounds_has_entropy_of_gaussian(largest):
    """The bounds are near the largest float32 number, and the scale is below one."""
    bound = float(np.finfo("float32").max) * largest
    options = {"state_dependent_scale": True, "initial_scale": 0.1}
    results = [
        value_and_gradients(
            lambda x, head=head: head.distribution(x).entropy(), [[0.2, -0.5]]
        )
        for head in (
            built(heads.ClippedGaussian(1, -bound, bound, **options)),
            built(heads.Gaussian(1, **options)),
        )
    ]
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


def test_clipped_gaussian_with_a_large_scale_has_the_entropy_of_its_integral():
    """The entropy is -Σ P ln P of both bounds minus ∫ p ln p between the bounds."""
    mean, scale, bound = 0.5, 10.0, 5.0
    head = built(
        heads.ClippedGaussian(1, -bound, bound, initial_scale=scale, dtype="float64")
    )
    x = np.linspace(-bound, bound, 100_001)
    density = np.exp(normal(x, mean, scale))
    inside = -np.trapezoid(density * np.log(density), x)
    tails = [
        math.erfc((bound + side * mean) / scale / math.sqrt(2)) / 2 for side in (1, -1)
    ]
    expected = inside - sum(p * math.log(p) for p in tails)
    entropy = head.distribution(tf.constant([[mean]], tf.float64)).entropy()
    np.testing.assert_allclose(entropy, [expected], rtol=1e-9)


def test_clipped_gaussian_gradient_is_zero_if_the_mean_is_infinitely_many_scales_away():
    """The distance in scales overflows to infinity in float32."""
    head = built(heads.ClippedGaussian(1, -1.0, 1.0, initial_scale=1e-3))

    def log_prob(outputs):
        return head.distribution(outputs).log_prob(tf.constant([[1.0]]))

    value, [gradient] = value_and_gradients(log_prob, tf.constant([[1e37]]))
    assert value.tolist() == [0.0] and gradient.tolist() == [[0.0]]


# TanhGaussian


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-13)])
@pytest.mark.parametrize("x", [0.0, 0.3, -2.0, 8.0, -15.0, 30.0, -50.0, 50.0])
def test_tanh_gaussian_log_density_is_exact_for_large_raw_actions(x, dtype, tolerance):
    """1 - tanh² x = 4 e^(-2|x|) / (1 + e^(-2|x|))², and the gradient by μ is (x - μ) /
    σ².
    """
    head = built(heads.TanhGaussian(1, -3.0, 5.0, initial_scale=2.0, dtype=dtype))
    small = math.exp(-2 * abs(x))
    expected = normal(x, 0.5, 2.0) - (math.log(4) - 2 * abs(x) - 2 * math.log1p(small))
    raw, outputs = tf.constant([[x]], dtype), tf.constant([[0.5]], dtype)

    def score(mean, x):
        return head.distribution(mean).log_prob(x)

    value, [by_mean, by_action] = value_and_gradients(score, outputs, raw)
    np.testing.assert_allclose(value, [expected], rtol=tolerance)
    np.testing.assert_allclose(by_mean, [[(x - 0.5) / 4]], rtol=tolerance, atol=1e-7)
    slope_of_x = -(x - 0.5) / 4 + 2 * math.tanh(x)
    np.testing.assert_allclose(by_action, [[slope_of_x]], rtol=tolerance)
    eligibility = head.eligibility(outputs, raw)
    np.testing.assert_allclose(eligibility, [[(x - 0.5) / 4]], rtol=tolerance, atol=1e-7)


def test_tanh_gaussian_sends_tanh_of_raw_action_scaled_to_the_bounds():
    head = heads.TanhGaussian(2, [-3.0, 0.0], [5.0, 1.0])
    raw = np.random.default_rng(0).normal(size=(50, 2))
    expected = [-3.0, 0.0] + (np.tanh(raw) + 1) / 2 * [8.0, 1.0]
    np.testing.assert_allclose(head.to_environment(raw), expected, rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(head.mode(raw), raw)


SQUASHED = list(
    itertools.product([0.0, 0.7, -4.0, 30.0], [0.01, 0.3, 0.999, 1.0, 3.0, 10.0, 100.0])
)


@pytest.mark.parametrize("mean, scale", sweeps.some(SQUASHED, always=SQUASHED[::4]))
def test_tanh_gaussian_entropy_and_gradient_equal_numerical_integral(mean, scale):
    """The entropy is ln σ + ln √(2πe) - 2 E[ln cosh x].

    The integral uses 800 001 points.
    """
    head = heads.TanhGaussian(1, -1, 1, initial_scale=scale, state_dependent_scale=True)

    def entropy(x):
        return head.distribution(x).entropy()

    value, [gradient] = value_and_gradients(entropy, np.array([[mean, 0.0]]))
    z = np.linspace(-12, 12, 800_001)
    weights = np.exp(-(z**2) / 2) / math.sqrt(math.tau) * (24 / 800_000)
    x = np.abs(mean + scale * z)
    log_cosh = np.sum(weights * (x + np.log1p(np.exp(-2 * x)) - math.log(2)))
    truth = math.log(scale) + math.log(math.tau * math.e) / 2 - 2 * log_cosh
    np.testing.assert_allclose(value, [truth], rtol=1e-12, atol=1e-12)
    tanh = weights * np.tanh(mean + scale * z)
    truth = [-2 * tanh.sum(), 1 - 2 * scale * np.sum(tanh * z)]
    np.testing.assert_allclose(gradient, [truth], rtol=1e-9, atol=1e-11)


# Beta

LEAST, MOST = 1e-7, 1e6
EXTREMES = [(LEAST, LEAST), (LEAST, MOST), (MOST, LEAST), (MOST, MOST), (LEAST, 1.0)]


def beta_samples(excess, count, dtype, seed=0):
    """Draws `count` numbers from Beta(1 + excess[0], 1 + excess[1])."""
    rng = np.random.default_rng(seed)
    a, b = (np.full(count, x, dtype) for x in excess)
    noise = rng.random((count, beta_module._PROPOSALS, 2), dtype)
    return beta_module.sample_beta(a, b, tf.constant(noise)).numpy()


EXCESSES = [(LEAST, LEAST), (0.1, 0.1), (1e-3, 2.0), (1.5, 0.7), (30.0, 1e-6)]
EXCESSES += [(5.0, 5.0), (400.0, 3.0), (1e4, 1e4), (1e6, 1e6), (1e6, 20.0)]
DRAWS = [
    pytest.param(
        dtype,
        excess,
        id=f"{dtype}-excess{place}",
        # In single precision the odd ones, and in double precision three of them.
        marks=()
        if place in {"float32": (1, 3, 7, 9), "float64": (0, 4, 5)}[dtype]
        else pytest.mark.slow,
    )
    for dtype in ("float32", "float64")
    for place, excess in enumerate(EXCESSES)
]


@pytest.mark.parametrize("dtype, excess", DRAWS)
def test_beta_samples_pass_the_kolmogorov_smirnov_test(excess, dtype):
    """With 100 000 draws, the distance exceeds 2.3 / √n once in 20 000 tests."""
    count = 100_000
    y = np.sort(beta_samples(excess, count, dtype)).astype("float64")
    a, b = (tf.constant(1 + x, tf.float64) for x in excess)
    rounded = 2 * np.finfo(dtype).eps * y  # Beta(1e6, 20) has few numbers of float32
    below, above = (
        tf.math.betainc(a, b, tf.constant(np.clip(x, 0, 1))).numpy()
        for x in (y - rounded, y + rounded)
    )
    steps = np.arange(count + 1) / count
    far = max(np.max(steps[1:] - above), np.max(below - steps[:-1]))
    assert far < 2.3 / math.sqrt(count)


@pytest.mark.parametrize("excess", [(1e6, 1e6), (1e5, 2e6), (1e6, 1e-6), (1e-6, 1e-6)])
def test_beta_rejection_accepts_the_same_proposals_in_float32_and_float64(excess):
    """The terms of the acceptance rule are (α + β) times as large as their sum."""
    noise = np.random.default_rng(0).random((20_000, 31, 2), "float32")
    single, double = (
        beta_module.sample_beta(
            *(np.full(20_000, x, dtype) for x in excess), tf.cast(noise, dtype)
        ).numpy()
        for dtype in ("float32", "float64")
    )
    assert np.mean(np.abs(single - double) > 1e-6) < 1e-3


@pytest.mark.parametrize(
    "excess", sweeps.some(((pair,) for pair in EXTREMES), always=[(EXTREMES[2],)])
)
def test_beta_samples_lie_in_the_open_interval_with_finite_log_density(excess):
    """In float32, Beta(0.01, 0.01) of TFP draws 0 and 1, where the log-density is
    infinite.
    """
    y = np.concatenate(
        [beta_samples(excess, 100_000, "float32", seed) for seed in range(10)]
    )
    assert ((y > 0) & (y < 1)).all()
    alpha, beta = (tf.fill([len(y)], np.float32(1 + x)) for x in excess)
    law = beta_module._Float64Beta(alpha, beta)
    assert np.isfinite(law.log_prob(y)).all() and np.isfinite(law.entropy()[:1]).all()


@pytest.mark.parametrize("excess", [*EXTREMES, (0.3, 7.0), (100.0, 100.0), (1e6, 30.0)])
def test_all_beta_proposals_are_rejected_with_probability_below_1e_15(excess):
    """A proposal is accepted with a probability of at least e / 4.

    The test computes the integral.
    """
    a, b = (1 + x for x in excess)
    attempts = beta_module._PROPOSALS
    assert (1 - math.e / 4) ** attempts < 1e-15
    # Acceptance of one attempt: ∫ of exp(-cost) / 4 over the logistic density.
    rate = math.sqrt(sum(excess) / (sum(excess) + 2 * excess[0] * excess[1]))
    x = np.linspace(-60, 60, 400_001)
    p = a / (a + b)
    cost = (a + b) * (np.log1p(p * np.expm1(rate * x)) - p * rate * x)
    accepted = np.sum(np.exp(-cost)) * (x[1] - x[0]) / 4
    assert accepted >= math.e / 4 - 1e-3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_beta_sample_lies_in_the_open_interval_for_extreme_noise(dtype):
    ends = np.array([0.0, np.nextafter(np.ones([], dtype), 0)], dtype)
    noise = np.stack(np.meshgrid(ends, ends), axis=-1).reshape(4, 1, 2)
    noise = np.tile(noise, (1, beta_module._PROPOSALS, 1))
    for excess in EXTREMES:
        a, b = (np.full(4, x, dtype) for x in excess)
        y = beta_module.sample_beta(a, b, tf.constant(noise)).numpy()
        assert ((y > 0) & (y < 1)).all()


def test_beta_concentrations_are_above_one_and_finite_for_huge_outputs():
    head = heads.Beta(1, 0.0, 1.0)
    outputs = tf.constant([[-1e30, -1e30], [1e30, -1e30], [1e30, 1e30], [0.0, 40.0]])
    alpha, beta = head.parameters(tf.cast(outputs, tf.float64)).values()
    expected = [1 + 1e-6, 1 + 1e6, 1 + 1e6, 1 + 1e-6 + math.log(2)]
    np.testing.assert_allclose(alpha[:, 0], expected, rtol=1e-14)
    np.testing.assert_allclose(beta[3], [41 + 1e-6], rtol=1e-14)
    raw = head.sample(outputs, noise_of(head, 4))
    law = head.distribution(outputs)
    for values in (law.log_prob(raw), law.entropy(), head.eligibility(outputs, raw)):
        assert np.isfinite(values).all()
    modes = head.mode(outputs).numpy().ravel()
    np.testing.assert_allclose(modes[[0, 2]], 0.5, rtol=1e-6)
    assert ((modes > 0) & (modes < 1)).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_beta_sample_with_noise_of_one_is_valid(dtype):
    """The float64 number before one, from a caller of an export, is one in float32."""
    head = heads.Beta(1, 0.0, 1.0)
    noise = noise_of(head, 124, dtype).numpy()
    noise.reshape(124, -1)[np.arange(124), np.arange(124) % 62] = 1.0
    samples = head.sample(tf.zeros([124, 2], dtype), tf.constant(noise))
    assert head.is_valid(samples.numpy()).all()


def test_beta_with_equal_very_negative_outputs_is_uniform():
    head = heads.Beta(1, -1.0, 1.0)
    law = head.distribution(tf.constant([[-50.0, -50.0]], tf.float64))
    np.testing.assert_allclose(law.log_prob([[0.01]]), 0.0, atol=1e-4)
    np.testing.assert_allclose(law.entropy(), 0.0, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("outputs", [(1e4, 1e4), (1e6, 30.0), (-30.0, 5.0)])
def test_beta_entropy_in_float32_equals_entropy_in_float64(outputs):
    head = heads.Beta(1, 0.0, 1.0)
    single, double = (
        head.distribution(tf.constant([outputs], dtype)).entropy().numpy()
        for dtype in ("float32", "float64")
    )
    np.testing.assert_allclose(single, double, rtol=1e-5, atol=1e-6)


# Acting


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("greedy", [False, True], ids=["sampled", "greedy"])
def test_litert_actions_for_huge_outputs_are_finite_and_inside_the_bounds(kind, greedy):
    """A softplus that is computed as ln(1 + eˣ) is infinite in float32 from x = 89 on."""
    head = built(KINDS[kind](1, -1.0, 2.0))
    scales = np.array([[-1e4], [-90.0], [-1.0], [0.0], [1.0], [90.0], [1e4], [2e7]], "f")
    kernel = np.array([[1.0, -1.0]], "f")[:, : head.outputs_size]
    noise = noise_of(head, 8).numpy()

    def step(observations, states):
        return tf.matmul(observations, kernel), states

    one = tf.TensorSpec((1,), tf.float32)
    actor = deciding.ActorPolicy(step, head, one, "float32", head.variables)
    program = acting_program.ActingProgram(actor, [scales], [noise], greedy)
    assert program.runtime == "litert"
    (raw,), (actions,), _, finite = program.for_batch(8)([scales, noise])
    assert (
        np.isfinite(raw).all()
        and (actions >= -1).all()
        and (actions <= 2).all()
        and finite
    )


def test_integer_head_gives_each_whole_number_an_equal_share():
    """With equal outputs far below zero, the raw action of the Beta head is uniform.

    Each integer, also the lowest and the highest, then has the same probability.
    """
    head = built(heads.Beta(1, 0, 3, integer=True))
    shares = tf.constant((np.arange(4000)[:, None] + 0.5) / 4000, tf.float32)
    actions = head.to_environment(shares).numpy().astype(int).ravel()
    assert np.bincount(actions).tolist() == [1000] * 4
    tanh = built(heads.TanhGaussian(1, 0, 3, integer=True))
    actions = tanh.to_environment(np.arctanh(2 * shares - 1)).numpy().astype(int).ravel()
    assert np.bincount(actions).tolist() == [1000] * 4


def test_support_gives_interval_of_raw_actions_and_atoms_at_the_bounds():
    """`check_head` adds the probabilities of the atoms to the integral between the
    bounds.
    """
    assert heads.Beta(1, -3.0, 5.0).support == base.Support(0.0, 1.0, atoms=False)
    clipped = heads.ClippedGaussian(2, [-3.0, -math.inf], 5.0).support
    assert clipped == base.Support([-3.0, -math.inf], 5.0, atoms=True)
    assert heads.Gaussian(1, low=-3.0, high=5.0).support is None
    assert heads.TanhGaussian(1, -3.0, 5.0).support is None


def test_relative_scale_of_beta_is_its_standard_deviation_per_half_width():
    head = heads.Beta(2, -3.0, 5.0)
    outputs = tf.constant([[0.3, -1.0, 2.0, 0.5]], tf.float64)
    deviation = head.distribution(outputs).distribution.stddev()
    np.testing.assert_allclose(head.relative_scale(outputs), deviation / 0.5, rtol=1e-12)


def test_for_space_error_for_equal_bounds_names_the_remedy():
    space = gym.spaces.Box(np.float32([0, 1]), np.float32([1, 1]))
    with pytest.raises(ValueError, match="no room between its bounds. Remove dimensions"):
        heads.for_space(space)


def test_beta_sample_of_uniform_distribution_equals_small_noise_values():
    """With α = β = 1 the logistic proposal is uniform, and the sample equals u."""
    for u in (2.0**-24, 2.0**-23, 2.0**-10, 0.25, 0.75):
        noise = tf.constant([[u, 2.0**-24]], tf.float32)
        sample = beta_module.sample_beta(tf.constant(1e-6), tf.constant(1e-6), noise)
        np.testing.assert_allclose(sample, u, rtol=1e-4)


@pytest.mark.parametrize("kind", ["clipped", "tanh"])
def test_copy_of_box_distribution_has_the_same_log_probabilities(kind):
    """TensorFlow Probability builds a copy or a slice of a distribution from its
    parameters.
    """
    head = built(KINDS[kind](2, -1.0, 3.0))
    one = head.distribution(tf.constant([[0.5, -2.0]])).distribution
    actions = tf.constant([[-1.0, 0.25]])
    np.testing.assert_array_equal(one.copy().log_prob(actions), one.log_prob(actions))
    assert one.event_shape_tensor().shape == (0,) and one.batch_shape == (1, 2)


def test_density_variable_of_tanh_gaussian_is_tanh_of_raw_action():
    raw = tf.constant([[-1.5, 0.0, 2.0]])
    np.testing.assert_array_equal(
        heads.TanhGaussian(3, -1, 1).density_variable(raw), tf.tanh(raw)
    )
    assert heads.Gaussian(3).density_variable(raw) is raw


@pytest.mark.parametrize("kind", ["gaussian", "clipped"])
def test_at_bounds_is_true_within_a_thousandth_of_the_width_of_a_bound(kind):
    head = built(KINDS[kind](1, 0.0, 1000.0))
    actions = [[-5.0], [0.0], [1.0], [1.01], [500.0], [998.99], [999.0], [1000.0], [2e3]]
    at_bounds = head.at_bounds(tf.constant(actions, tf.float64))[:, 0].numpy()
    assert at_bounds.tolist() == [1, 1, 1, 0, 0, 0, 1, 1, 1]


def test_beta_concentration_is_one_plus_softplus_of_its_output():
    outputs = np.array([-60.0, 0.0, 20.0, 39.0, 40.0, 41.0, 60.0, 79.0, 81.0, 1e5])
    head = built(heads.Beta(5, 0.0, 1.0, dtype="float64"))
    parameters = head.parameters(tf.constant(outputs[None]))
    expected = 1 + np.logaddexp(0, outputs) + 1e-6
    pair = np.concatenate([part.numpy()[0] for part in parameters.values()])
    np.testing.assert_allclose(pair, expected, rtol=1e-12)


@pytest.mark.parametrize("mean", [-0.4, -0.25, 0.0, 0.25, 0.4, 1.5])
def test_clipped_gaussian_entropy_with_asymmetric_bounds_equals_integral(mean):
    head = built(heads.ClippedGaussian(1, -2.0, 2.5, dtype="float64"))
    below, above = (math.erfc(x / math.sqrt(2)) / 2 for x in (2.0 + mean, 2.5 - mean))
    x = np.linspace(-2.0, 2.5, 200_001)
    density = np.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi)
    expected = -np.trapezoid(density * np.log(density), x)
    expected -= below * math.log(below) + above * math.log(above)
    law = head.distribution(tf.constant([[mean]], tf.float64))
    np.testing.assert_allclose(law.entropy(), [expected], rtol=1e-9)
