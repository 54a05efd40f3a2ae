"""Tests the heads for a Box: bounds, precision at the bounds, densities and entropies."""

import functools
import itertools
import math

import gymnasium as gym
import numpy as np
import parts
import pytest
import sweeps
import tensorflow as tf
from toy_heads import built
from toy_heads import revived

from tf_reinforce import heads
from tf_reinforce.engine.collect import environments
from tf_reinforce.heads import beta as beta_module
from tf_reinforce.heads import gaussian
from tf_reinforce.policies import actor as deciding

WIDEST = math.log(100.0)


noise_of = functools.partial(parts.noise_of, dtype="float32")


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

KIND = pytest.mark.parametrize("kind", parts.BOX_HEADS)
GAUSSIAN = [
    x for x in parts.BOX_HEADS if issubclass(parts.HEADS[x].kind, gaussian.GaussianHead)
]


def make(kind, size, low, high, **options):
    """Returns a built head of a kind of `parts.BOX_HEADS`."""
    return built(parts.HEADS[kind].kind(size, low=low, high=high, **options))


def raw_range(head, like):
    """Returns the smallest and the largest raw action of any head for a `Box`."""
    is_unit = head.support is not None and (head.support.low, head.support.high) == (0, 1)
    if is_unit:
        return 0.0, 1.0
    return (-50.0, 50.0) if head.needs_finite_bounds else (like.min, like.max)


BOUNDS = [(-0.1, 0.1), (-1 / 3, 0.7), (1e-3, 70000.0), (-1e300, 1e300)]


@KIND
@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize("low, high", BOUNDS)
def test_actions_stay_inside_the_bounds_in_every_dtype(kind, low, high, dtype):
    head = make(kind, 1, low, high)
    ends = [max(-50.0, min(x, 50.0)) for x in raw_range(head, tf.as_dtype(dtype))]
    share = tf.constant([0.0, 1e-6, 0.3, 0.5, 1 - 1e-4, 1.0], dtype)[:, None]
    sent = head.to_environment((1 - share) * ends[0] + share * ends[1])
    actions = tf.cast(sent, tf.float64).numpy().ravel()
    assert (actions >= low).all() and (actions <= high).all()
    assert (np.diff(actions) >= 0).all()
    if head.needs_finite_bounds:
        widest = min(high, float(sent.dtype.max)), max(low, float(sent.dtype.min))
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
    head = make(kind, 2, space.low, space.high, integer=True)
    least, most = raw_range(head, tf.as_dtype(dtype))
    share = tf.cast(tf.sigmoid(tf.linspace([-9.0] * 2, [9.0] * 2, 33)), dtype)
    ends = tf.constant([[least, most], [most, least]], dtype)
    raw = tf.concat([(1 - share) * max(least, -9.0) + share * min(most, 9.0), ends], 0)
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


@pytest.mark.parametrize("kind", GAUSSIAN)
def test_state_dependent_scale_starts_at_initial_scale_and_is_bounded(kind):
    head = make(kind, 2, -9.0, 9.0, state_dependent_scale=True, initial_scale=[0.5, 2.0])

    def scale(z):
        return head.parameters(tf.constant([[7.0, 8.0, *z]], tf.float64))["scale"]

    np.testing.assert_allclose(scale([0.0, 0.0]), [[0.5, 2.0]], rtol=1e-15)
    nearby = np.log(scale([1e-3, -1e-3]) / [0.5, 2.0])
    np.testing.assert_allclose(nearby, [[1e-3, -1e-3]], rtol=1e-7)
    truth = np.exp(WIDEST * np.tanh(np.array([3.0, -2.0]) / WIDEST)) * [0.5, 2.0]
    np.testing.assert_allclose(scale([3.0, -2.0])[0], truth, rtol=1e-14)
    np.testing.assert_allclose(scale([1e6, -1e6]), [[50.0, 0.02]], rtol=1e-12)
    assert head.mode(tf.constant([[7.0, 8.0, 1.0, 1.0]])).numpy().tolist() == [[7, 8]]


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


def test_clipped_gaussian_clips_samples_and_its_mode_is_the_clipped_mean():
    head = built(heads.ClippedGaussian(2, [-1.0, 0.0], [1.0, math.inf]))
    outputs, noise = tf.constant([[0.5, 3.0], [4.0, -2.0]]), [[9.0, 9.0], [-9.0, 1.0]]
    assert head.sample(outputs, noise).numpy().tolist() == [[1.0, 12.0], [-1.0, 0.0]]
    assert head.mode(outputs).numpy().tolist() == [[0.5, 3.0], [1.0, 0.0]]
    modes = head.distribution(outputs).mode()
    np.testing.assert_array_equal(modes, head.mode(outputs))


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
    noise = noise_of(head, 124, dtype=dtype).numpy()
    noise.reshape(124, -1)[np.arange(124), np.arange(124) % 62] = 1.0
    samples = head.sample(tf.zeros([124, 2], dtype), tf.constant(noise))
    assert head.is_valid(samples.numpy()).all()


@pytest.mark.parametrize("outputs", [(1e4, 1e4), (1e6, 30.0), (-30.0, 5.0)])
def test_beta_entropy_in_float32_equals_entropy_in_float64(outputs):
    head = heads.Beta(1, 0.0, 1.0)
    single, double = (
        head.distribution(tf.constant([outputs], dtype)).entropy().numpy()
        for dtype in ("float32", "float64")
    )
    np.testing.assert_allclose(single, double, rtol=1e-5, atol=1e-6)


# Acting


@KIND
@pytest.mark.parametrize("greedy", [False, True], ids=["sampled", "greedy"])
def test_litert_actions_for_huge_outputs_are_finite_and_inside_the_bounds(kind, greedy):
    """A softplus that is computed as ln(1 + eˣ) is infinite in float32 from x = 89 on."""
    head = make(kind, 1, -1.0, 2.0)
    scales = np.array([-1e4, -90.0, -1.0, 0.0, 1.0, 90.0, 1e4, 2e7], "f")
    scales = np.repeat(scales, 16)[:, None]
    kernel = np.array([[1.0, -1.0]], "f")[:, : head.outputs_size]
    noise = noise_of(head, len(scales)).numpy()

    def step(observations, states):
        return tf.matmul(observations, kernel), states

    one = tf.TensorSpec((1,), tf.float32)
    actor = deciding.ActorPolicy(step, head, one, "float32", head.variables)
    examples = [scales] if greedy else [scales, noise]
    program = environments.ActingProgram(actor, examples, greedy)
    assert program.runtime == "litert"
    act = program.for_batch(len(scales), environments.finite_weights(head.variables))
    (raw,), (actions,), _, finite = act([scales, noise])
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


@pytest.mark.parametrize("kind", ["Gaussian", "ClippedGaussian"])
def test_at_bounds_is_true_within_a_thousandth_of_the_width_of_a_bound(kind):
    head = make(kind, 1, 0.0, 1000.0)
    actions = [[-5.0], [0.0], [1.0], [1.01], [500.0], [998.99], [999.0], [1000.0], [2e3]]
    at_bounds = head.at_bounds(tf.constant(actions, tf.float64))[:, 0].numpy()
    assert at_bounds.tolist() == [1, 1, 1, 0, 0, 0, 1, 1, 1]
