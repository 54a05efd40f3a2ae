"""Heads for a Box: never outside it, exact near its ends, and what they say they draw."""

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
from tf_reinforce.collect import acting_program
from tf_reinforce.heads import base
from tf_reinforce.heads import beta as beta_module
from tf_reinforce.policies import actor as deciding

WIDEST = math.log(100.0)


def noise_of(head, count, dtype="float32", seed=0):
    rng = np.random.default_rng(seed)
    draw = rng.random if head.noise.kind == "uniform" else rng.standard_normal
    return tf.constant(draw((count, *head.noise.shape), dtype))


def slope(function, *at):
    """A value and its gradients by each argument."""
    at = [tf.convert_to_tensor(x) for x in at]
    with tf.GradientTape() as tape:
        tape.watch(at)
        value = function(*at)
    return value.numpy(), [x.numpy() for x in tape.gradient(value, at)]


def normal(x, mean, scale):
    return -(((x - mean) / scale) ** 2) / 2 - math.log(scale) - math.log(math.tau) / 2


def log_tail(z):
    """ln Φ(z) for z ≤ -1 by the continued fraction of Mills' ratio, and its slope."""
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
def test_a_head_survives_its_config(kind, options):
    head = KINDS[kind](2, [-3.5, 0.0], 7.25, **options)
    again = revived(head)
    assert again.get_config() == head.get_config() and repr(again) == repr(head)
    outputs = tf.ones([3, head.outputs_size])
    noise = noise_of(head, 3)
    np.testing.assert_array_equal(
        again.sample(outputs, noise), built(head).sample(outputs, noise)
    )


@pytest.mark.parametrize("kind", ["gaussian", "clipped", "tanh"])
def test_a_scale_that_depends_on_the_state_survives_too(kind):
    head = KINDS[kind](2, -1, 1, state_dependent_scale=True, initial_scale=[0.5, 2.0])
    assert revived(head).get_config() == head.get_config()
    assert head.outputs_size == 4 and not built(head).weights


@KIND
def test_the_parameters_are_named(kind):
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
def test_a_head_works_in_the_type_of_its_outputs(kind, dtype):
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
def test_no_type_leaves_the_bounds(kind, low, high, dtype):
    head = KINDS[kind](1, low, high)
    raw = [0.0, 1e-6, 0.3, 1 - 1e-4, 1.0] if kind == "beta" else [-50, -1, 0.0, 0.05, 50]
    sent = head.to_environment(tf.constant(raw, dtype)[:, None])
    found = tf.cast(sent, tf.float64).numpy().ravel()
    assert (found >= low).all() and (found <= high).all()
    assert (np.diff(found) >= 0).all()
    if kind in ("tanh", "beta"):
        widest = min(high, float(sent.dtype.max)), max(low, float(sent.dtype.min))
        np.testing.assert_allclose([found[-1], found[0]], widest, rtol=2e-3)


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
def test_whole_numbers_are_sent_whole_and_inside(kind, space, dtype):
    """Neither 2⁵³ + 1 nor 2⁶³ - 1 nor 2⁶⁴ - 1 is a number of any float type here."""
    head = KINDS[kind](2, space.low, space.high, integer=True)
    raw = tf.linspace([-9.0] * 2, [9.0] * 2, 33)
    raw = tf.cast(tf.sigmoid(raw) if kind == "beta" else raw, dtype)
    if kind in ("gaussian", "clipped"):
        most = raw.dtype.max
        raw = tf.concat([raw, [[-most, most], [most, -most]]], axis=0)
    sent = head.to_environment(raw).numpy()
    assert sent.dtype == dtype and (sent == np.round(sent)).all()
    for action in sent:
        exact = [int(number) for number in action]
        assert all(
            low <= x <= high
            for low, x, high in zip(
                space.low.tolist(), exact, space.high.tolist(), strict=True
            )
        )
        assert space.contains(action.astype(space.dtype))
    assert head.matches_space(space)


def test_whole_numbers_are_the_nearest_ones():
    head = heads.Gaussian(1, low=-2.5, high=7.9, integer=True)
    assert (head.low, head.high) == (-2, 7)
    raw = tf.constant([-9, -1.6, -0.4, 0.6, 3.2, 7.4, 7.9, 80.0])[:, None]
    sent = head.to_environment(raw).numpy().ravel()
    assert sent.tolist() == [-2, -2, 0, 1, 3, 7, 7, 7]


@KIND
def test_a_head_of_reals_does_not_fit_whole_numbers_nor_wider_bounds_a_space(kind):
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
def test_endless_bounds_are_refused_with_the_heads_that_take_them(kind, low, high):
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
def test_what_makes_no_sense_is_refused(kind, arguments, message):
    with pytest.raises(ValueError, match=message):
        KINDS[kind](*arguments)
    with pytest.raises(ValueError, match="`low` must be below `high`"):
        KINDS[kind](1, 0.2, 0.8, integer=True)  # no whole number lies between


@pytest.mark.parametrize(
    "kind, wrong",
    [("gaussian", np.inf), ("clipped", 1.5), ("clipped", -1.1), ("clipped", np.nan)]
    + [("tanh", np.nan), ("beta", 0.0), ("beta", 1.0), ("beta", -0.5)],
)
def test_an_action_that_cannot_have_been_sampled_is_named(kind, wrong):
    head = KINDS[kind](2, -1.0, 1.0)
    actions = np.full((2, 1, 2), 0.5, "float32")
    head.check_actions(actions, np.array([2]))
    actions[1, 0, 1] = wrong
    with pytest.raises(ValueError, match="at step 1 of episode 0"):
        head.check_actions(actions, np.array([2]))


@KIND
def test_the_eligibility_is_the_derivative_of_the_log_probability(kind):
    options = {} if kind == "beta" else {"state_dependent_scale": True}
    head = built(KINDS[kind](2, -1.0, [0.5, 1.0], **options))
    outputs = np.random.default_rng(0).normal(size=(200, 4))
    raw = head.sample(tf.constant(outputs), noise_of(head, 200, "float64"))

    def score(x):
        return tf.reduce_sum(head.distribution(x).log_prob(raw))

    _, [truth] = slope(score, outputs)
    np.testing.assert_allclose(
        head.eligibility(outputs, raw), truth, rtol=1e-11, atol=1e-11
    )


# for_space


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64"])
@pytest.mark.parametrize(
    "low, high", [(-1, 1), (0, np.inf), (-np.inf, 3), (-np.inf, np.inf)]
)
def test_any_mix_of_bounds_of_any_float_type_has_a_head(low, high, dtype):
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
def test_a_box_of_whole_numbers_has_a_head_that_rounds(space):
    head = built(heads.for_space(space, dtype="float64"))
    assert head.integer and head.matches_space(space) and head.size == 2
    assert np.asarray(head.low + np.zeros(2, object)).tolist() == space.low.tolist()
    assert np.asarray(head.high + np.zeros(2, object)).tolist() == space.high.tolist()
    again = revived(heads.for_space(space))
    assert (
        again.low == head.low and again.high == head.high and again.matches_space(space)
    )


def test_the_first_scale_of_whole_numbers_reaches_the_next_one():
    space = gym.spaces.Box(np.array([0, 0]), np.array([1, 100]), dtype=np.int64)
    assert heads.for_space(space).initial_scale == [0.5, 25.0]
    wide = gym.spaces.Box(0, 2**64 - 1, (1,), np.uint64)
    assert heads.for_space(wide).initial_scale == 1.0


# A scale that depends on the state


@pytest.mark.parametrize("kind", ["gaussian", "clipped", "tanh"])
def test_the_scale_starts_where_asked_follows_its_output_and_stays_in_bounds(kind):
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


def test_a_gaussian_of_any_outputs_has_finite_gradients():
    head = heads.Gaussian(1, state_dependent_scale=True)
    outputs = tf.constant([[0.0, 1e30], [0.0, -1e30], [5.0, 0.0]])

    def score(x):
        return tf.reduce_sum(head.distribution(x).log_prob(tf.ones([3, 1])))

    value, [gradient] = slope(score, outputs)
    assert np.isfinite(value) and np.isfinite(gradient).all()


# ClippedGaussian


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-12)])
@pytest.mark.parametrize("z", [-1.0, -5.0, -14.0, -50.0, -1000.0])
def test_a_bound_however_far_away_is_scored_exactly(z, dtype, tolerance):
    """ln Φ(z) and its slope; from z = -14 on Φ(z) itself is zero in float32."""
    head = built(heads.ClippedGaussian(1, -1.0, 1.0, initial_scale=2.0, dtype=dtype))
    truth, pull = log_tail(z)
    for bound, side in ((-1.0, 1.0), (1.0, -1.0)):
        outputs = tf.constant([[bound - side * 2 * z]], dtype)
        action = tf.constant([[bound]], dtype)

        def score(outputs, action=action):
            return head.distribution(outputs).log_prob(action)

        value, [gradient] = slope(score, outputs)
        np.testing.assert_allclose(value, [truth], rtol=tolerance)
        np.testing.assert_allclose(gradient, [[-side * pull / 2]], rtol=tolerance)
        ours = head.eligibility(outputs, action)
        np.testing.assert_allclose(ours, [[-side * pull / 2]], rtol=tolerance)


def test_between_the_bounds_it_is_the_normal_density():
    head = built(heads.ClippedGaussian(2, [-1.0, -math.inf], [1.0, 0.5], dtype="float64"))
    outputs = tf.constant([[0.3, -4.0]], tf.float64)
    found = head.distribution(outputs).log_prob([[0.9, 0.5]]).numpy()
    truth = normal(0.9, 0.3, 1.0) + log_tail(-4.5)[0]
    np.testing.assert_allclose(found, [truth], rtol=1e-13)


def test_a_bound_that_the_type_cannot_hold_is_the_bound_all_the_same():
    """0.1 of an environment in float64, in a record of float32, is more than 0.1."""
    head = built(heads.ClippedGaussian(1, -0.1, 0.1))
    means, recorded = tf.zeros([2, 1]), np.array([[-0.1], [0.1]], "float32")
    assert recorded[1, 0] > head.bounds(means)[1].numpy()
    head.check_actions(recorded[:, None], np.array([2]))
    drawn = head.sample(means, tf.constant([[-9.0], [9.0]]))
    for method in (head.eligibility, lambda o, a: head.distribution(o).log_prob(a)):
        np.testing.assert_allclose(method(means, recorded), method(means, drawn), 1e-6)
    beyond = np.nextafter(recorded, np.float32(np.inf) * recorded)
    assert not head.is_valid(beyond).any()


def test_without_bounds_it_is_a_gaussian():
    ours = built(heads.ClippedGaussian(2, -math.inf, math.inf))
    plain, outputs = built(heads.Gaussian(2)), tf.constant([[0.3, -2.0], [1e3, 0.0]])
    noise = noise_of(ours, 2)
    raw = plain.sample(outputs, noise)
    np.testing.assert_array_equal(ours.sample(outputs, noise), raw)
    for a, b in [
        (
            ours.distribution(outputs).log_prob(raw),
            plain.distribution(outputs).log_prob(raw),
        ),
        (ours.distribution(outputs).entropy(), plain.distribution(outputs).entropy()),
        (ours.eligibility(outputs, raw), plain.eligibility(outputs, raw)),
    ]:
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_what_is_sampled_is_clipped_and_its_mode_is_the_median():
    head = built(heads.ClippedGaussian(2, [-1.0, 0.0], [1.0, math.inf]))
    outputs, noise = tf.constant([[0.5, 3.0], [4.0, -2.0]]), [[9.0, 9.0], [-9.0, 1.0]]
    assert head.sample(outputs, noise).numpy().tolist() == [[1.0, 12.0], [-1.0, 0.0]]
    assert head.mode(outputs).numpy().tolist() == [[0.5, 3.0], [1.0, 0.0]]
    modes = head.distribution(outputs).mode()
    np.testing.assert_array_equal(modes, head.mode(outputs))


def test_the_clipped_score_has_a_smaller_variance_and_the_same_mean():
    """Fujita & Maeda (2018), theorem 3.2: E[score · f(a)] does not change."""
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
def test_the_entropy_and_its_gradients_are_finite_wherever_the_mean_is(mean, bounds):
    """Against E[-ln π] over 200 000 quantiles of the noise; float32."""
    head = built(heads.ClippedGaussian(1, *bounds, state_dependent_scale=True))
    outputs = tf.constant([[mean, 0.5]])

    def entropy(x):
        return head.distribution(x).entropy()

    value, [gradient] = slope(entropy, outputs)
    assert np.isfinite(gradient).all()
    u = (np.arange(200_000) + 0.5) / 200_000
    noise = math.sqrt(2) * tf.math.erfinv(2 * u - 1).numpy()[:, None]
    many = tf.cast(tf.tile(outputs, [len(u), 1]), tf.float64)
    surprise = -head.distribution(many).log_prob(head.sample(many, noise)).numpy()
    np.testing.assert_allclose(value, surprise.mean(), atol=2e-4)


@pytest.mark.parametrize("largest", [1.0, 1e-2])
def test_bounds_as_far_as_numbers_go_are_none(largest):
    """Entropy and slopes are those of a normal number, whose scale is below one."""
    far = float(np.finfo("float32").max) * largest
    made = {"state_dependent_scale": True, "initial_scale": 0.1}
    found = [
        slope(lambda x, head=head: head.distribution(x).entropy(), [[0.2, -0.5]])
        for head in (
            built(heads.ClippedGaussian(1, -far, far, **made)),
            built(heads.Gaussian(1, **made)),
        )
    ]
    for ours, theirs in zip(*found, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6)


# TanhGaussian


@pytest.mark.parametrize("dtype, tolerance", [("float32", 1e-5), ("float64", 1e-13)])
@pytest.mark.parametrize("x", [0.0, 0.3, -2.0, 8.0, -15.0, 30.0, -50.0, 50.0])
def test_the_density_of_a_squashed_action_is_exact_wherever_it_is(x, dtype, tolerance):
    """1 - tanh² x = 4 e^(-2|x|) / (1 + e^(-2|x|))²; the slope by μ is (x - μ) / σ²."""
    head = built(heads.TanhGaussian(1, -3.0, 5.0, initial_scale=2.0, dtype=dtype))
    small = math.exp(-2 * abs(x))
    truth = normal(x, 0.5, 2.0) - (math.log(4) - 2 * abs(x) - 2 * math.log1p(small))
    raw, outputs = tf.constant([[x]], dtype), tf.constant([[0.5]], dtype)

    def score(mean, x):
        return head.distribution(mean).log_prob(x)

    value, [by_mean, by_action] = slope(score, outputs, raw)
    np.testing.assert_allclose(value, [truth], rtol=tolerance)
    np.testing.assert_allclose(by_mean, [[(x - 0.5) / 4]], rtol=tolerance, atol=1e-7)
    slope_of_x = -(x - 0.5) / 4 + 2 * math.tanh(x)
    np.testing.assert_allclose(by_action, [[slope_of_x]], rtol=tolerance)
    ours = head.eligibility(outputs, raw)
    np.testing.assert_allclose(ours, [[(x - 0.5) / 4]], rtol=tolerance, atol=1e-7)


def test_the_environment_receives_the_squashed_action_in_its_own_units():
    head = heads.TanhGaussian(2, [-3.0, 0.0], [5.0, 1.0])
    raw = np.random.default_rng(0).normal(size=(50, 2))
    truth = [-3.0, 0.0] + (np.tanh(raw) + 1) / 2 * [8.0, 1.0]
    np.testing.assert_allclose(head.to_environment(raw), truth, rtol=1e-13, atol=1e-15)
    np.testing.assert_array_equal(head.mode(raw), raw)


SQUASHED = list(
    itertools.product([0.0, 0.7, -4.0, 30.0], [0.01, 0.3, 0.999, 1.0, 3.0, 10.0, 100.0])
)


@pytest.mark.parametrize("mean, scale", sweeps.some(SQUASHED, always=SQUASHED[::4]))
def test_the_entropy_of_a_squashed_action_is_its_integral(mean, scale):
    """ln σ + ln √(2πe) - 2 E[ln cosh x], by 800 001 points; with its gradients."""
    head = heads.TanhGaussian(1, -1, 1, initial_scale=scale, state_dependent_scale=True)

    def entropy(x):
        return head.distribution(x).entropy()

    value, [gradient] = slope(entropy, np.array([[mean, 0.0]]))
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


def drawn(excess, count, dtype, seed=0):
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
def test_beta_samples_follow_their_distribution_function(excess, dtype):
    """Kolmogorov and Smirnov, 100 000 draws: 2.3 / √n is exceeded once in 20 000."""
    count = 100_000
    y = np.sort(drawn(excess, count, dtype)).astype("float64")
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
def test_single_precision_accepts_the_attempts_that_double_precision_does(excess):
    """The terms of the rule are (α + β) times as large as what they add up to."""
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
def test_a_million_draws_are_inside_the_interval_and_can_be_scored(excess):
    """Beta(0.01, 0.01) of TFP draws 0 or 1 in float32, which have no log-density."""
    y = np.concatenate([drawn(excess, 100_000, "float32", seed) for seed in range(10)])
    assert ((y > 0) & (y < 1)).all()
    alpha, beta = (tf.fill([len(y)], np.float32(1 + x)) for x in excess)
    law = beta_module._Float64Beta(alpha, beta)
    assert np.isfinite(law.log_prob(y)).all() and np.isfinite(law.entropy()[:1]).all()


@pytest.mark.parametrize("excess", [*EXTREMES, (0.3, 7.0), (100.0, 100.0), (1e6, 30.0)])
def test_the_rejection_hardly_ever_fails(excess):
    """An attempt is accepted with a probability of e / 4 at least: see the sum."""
    a, b = (1 + x for x in excess)
    attempts = beta_module._PROPOSALS
    assert (1 - math.e / 4) ** attempts < 1e-15
    # Acceptance of one attempt: ∫ of exp(-cost) / 4 over the logistic's own measure.
    rate = math.sqrt(sum(excess) / (sum(excess) + 2 * excess[0] * excess[1]))
    x = np.linspace(-60, 60, 400_001)
    p = a / (a + b)
    cost = (a + b) * (np.log1p(p * np.expm1(rate * x)) - p * rate * x)
    accepted = np.sum(np.exp(-cost)) * (x[1] - x[0]) / 4
    assert accepted >= math.e / 4 - 1e-3


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_noise_of_zero_and_of_almost_one_draws_a_number_too(dtype):
    ends = np.array([0.0, np.nextafter(np.ones([], dtype), 0)], dtype)
    noise = np.stack(np.meshgrid(ends, ends), axis=-1).reshape(4, 1, 2)
    noise = np.tile(noise, (1, beta_module._PROPOSALS, 1))
    for excess in EXTREMES:
        a, b = (np.full(4, x, dtype) for x in excess)
        y = beta_module.sample_beta(a, b, tf.constant(noise)).numpy()
        assert ((y > 0) & (y < 1)).all()


def test_concentrations_stay_above_one_and_finite():
    head = heads.Beta(1, 0.0, 1.0)
    outputs = tf.constant([[-1e30, -1e30], [1e30, -1e30], [1e30, 1e30], [0.0, 40.0]])
    alpha, beta = head.parameters(tf.cast(outputs, tf.float64)).values()
    truth = [1 + 1e-6, 1 + 1e6, 1 + 1e6, 1 + 1e-6 + math.log(2)]
    np.testing.assert_allclose(alpha[:, 0], truth, rtol=1e-14)
    np.testing.assert_allclose(beta[3], [41 + 1e-6], rtol=1e-14)
    raw = head.sample(outputs, noise_of(head, 4))
    law = head.distribution(outputs)
    for values in (law.log_prob(raw), law.entropy(), head.eligibility(outputs, raw)):
        assert np.isfinite(values).all()
    modes = head.mode(outputs).numpy().ravel()
    np.testing.assert_allclose(modes[[0, 2]], 0.5, rtol=1e-6)
    assert ((modes > 0) & (modes < 1)).all()


def test_equal_outputs_far_below_zero_are_a_uniform_choice():
    head = heads.Beta(1, -1.0, 1.0)
    law = head.distribution(tf.constant([[-50.0, -50.0]], tf.float64))
    np.testing.assert_allclose(law.log_prob([[0.01]]), 0.0, atol=1e-4)
    np.testing.assert_allclose(law.entropy(), 0.0, rtol=1e-11, atol=1e-11)


@pytest.mark.parametrize("outputs", [(1e4, 1e4), (1e6, 30.0), (-30.0, 5.0)])
def test_the_entropy_of_a_beta_keeps_its_digits_in_float32(outputs):
    head = heads.Beta(1, 0.0, 1.0)
    single, double = (
        head.distribution(tf.constant([outputs], dtype)).entropy().numpy()
        for dtype in ("float32", "float64")
    )
    np.testing.assert_allclose(single, double, rtol=1e-5, atol=1e-6)


# Acting


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("greedy", [False, True], ids=["sampled", "greedy"])
def test_litert_acts_on_huge_outputs_as_keras_does(kind, greedy):
    """A softplus that is worked out as ln(1 + eˣ) would be infinite from 89 on."""
    head = built(KINDS[kind](1, -1.0, 2.0))
    scales = np.array([[-1e4], [-90.0], [-1.0], [0.0], [1.0], [90.0], [1e4], [2e7]], "f")
    kernel = np.array([[1.0, -1.0]], "f")[:, : head.outputs_size]
    noise = noise_of(head, 8).numpy()

    def step(observations, states):
        return tf.matmul(observations, kernel), states

    one = tf.TensorSpec((1,), tf.float32)
    actor = deciding.ActorPolicy(step, head, one, "float32", head.variables)
    made = acting_program.ActingProgram(actor, [scales], [noise], greedy)
    assert made.engine == "litert"
    (raw,), (sent,), _, finite = made.for_batch(8)([scales, noise])
    assert np.isfinite(raw).all() and (sent >= -1).all() and (sent <= 2).all() and finite


def test_whole_numbers_have_a_unit_each_the_ends_as_well():
    """With equal outputs far below zero the shares are uniform, and so is the choice."""
    head = built(heads.Beta(1, 0, 3, integer=True))
    shares = tf.constant((np.arange(4000)[:, None] + 0.5) / 4000, tf.float32)
    sent = head.to_environment(shares).numpy().astype(int).ravel()
    assert np.bincount(sent).tolist() == [1000] * 4
    tanh = built(heads.TanhGaussian(1, 0, 3, integer=True))
    sent = tanh.to_environment(np.arctanh(2 * shares - 1)).numpy().astype(int).ravel()
    assert np.bincount(sent).tolist() == [1000] * 4


def test_the_support_says_where_raw_actions_lie_and_whether_ends_have_a_probability():
    """The conformance kit adds the probabilities of the ends to the area between them."""
    assert heads.Beta(1, -3.0, 5.0).support == base.Support(0.0, 1.0, atoms=False)
    clipped = heads.ClippedGaussian(2, [-3.0, -math.inf], 5.0).support
    assert clipped == base.Support([-3.0, -math.inf], 5.0, atoms=True)
    assert heads.Gaussian(1, low=-3.0, high=5.0).support is None
    assert heads.TanhGaussian(1, -3.0, 5.0).support is None


def test_the_spread_of_a_beta_is_its_deviation_in_half_widths():
    head = heads.Beta(2, -3.0, 5.0)
    outputs = tf.constant([[0.3, -1.0, 2.0, 0.5]], tf.float64)
    deviation = head.distribution(outputs).distribution.stddev()
    np.testing.assert_allclose(head.relative_scale(outputs), deviation / 0.5, rtol=1e-12)


def test_a_box_without_room_is_refused_with_the_remedy():
    space = gym.spaces.Box(np.float32([0, 1]), np.float32([1, 1]))
    with pytest.raises(ValueError, match="no room between its bounds. Remove the fixed"):
        heads.for_space(space)


def test_a_small_number_of_the_generator_is_not_taken_for_a_larger_one():
    """With α = β = 1 the logistic proposal is uniform, and a Beta number is u itself."""
    for u in (2.0**-24, 2.0**-23, 2.0**-10, 0.25, 0.75):
        noise = tf.constant([[u, 2.0**-24]], tf.float32)
        found = beta_module.sample_beta(tf.constant(1e-6), tf.constant(1e-6), noise)
        np.testing.assert_allclose(found, u, rtol=1e-4)


@pytest.mark.parametrize("kind", ["clipped", "tanh"])
def test_a_distribution_can_be_copied_with_its_parameters(kind):
    """TensorFlow Probability makes one anew from its parameters, to slice or to copy."""
    head = built(KINDS[kind](2, -1.0, 3.0))
    one = head.distribution(tf.constant([[0.5, -2.0]])).distribution
    actions = tf.constant([[-1.0, 0.25]])
    np.testing.assert_array_equal(one.copy().log_prob(actions), one.log_prob(actions))
    assert one.event_shape_tensor().shape == (0,) and one.batch_shape == (1, 2)


def test_what_is_scored_under_tanh_is_the_squashed_number():
    raw = tf.constant([[-1.5, 0.0, 2.0]])
    np.testing.assert_array_equal(
        heads.TanhGaussian(3, -1, 1).density_variable(raw), tf.tanh(raw)
    )
    assert heads.Gaussian(3).density_variable(raw) is raw


@pytest.mark.parametrize("kind", ["gaussian", "clipped"])
def test_a_thousandth_of_the_width_from_a_bound_counts_as_being_there(kind):
    head = built(KINDS[kind](1, 0.0, 1000.0))
    actions = [[-5.0], [0.0], [1.0], [1.01], [500.0], [998.99], [999.0], [1000.0], [2e3]]
    found = head.at_bounds(tf.constant(actions, tf.float64))[:, 0].numpy()
    assert found.tolist() == [1, 1, 1, 0, 0, 0, 1, 1, 1]


def test_a_concentration_is_one_more_than_softplus_however_large():
    outputs = np.array([-60.0, 0.0, 20.0, 39.0, 40.0, 41.0, 60.0, 79.0, 81.0, 1e5])
    head = built(heads.Beta(5, 0.0, 1.0, dtype="float64"))
    found = head.parameters(tf.constant(outputs[None]))
    expected = 1 + np.logaddexp(0, outputs) + 1e-6
    pair = np.concatenate([part.numpy()[0] for part in found.values()])
    np.testing.assert_allclose(pair, expected, rtol=1e-12)


@pytest.mark.parametrize("mean", [-0.4, -0.25, 0.0, 0.25, 0.4, 1.5])
def test_the_entropy_between_bounds_that_are_not_as_far_is_an_integral(mean):
    head = built(heads.ClippedGaussian(1, -2.0, 2.5, dtype="float64"))
    below, above = (math.erfc(x / math.sqrt(2)) / 2 for x in (2.0 + mean, 2.5 - mean))
    x = np.linspace(-2.0, 2.5, 200_001)
    density = np.exp(-((x - mean) ** 2) / 2) / math.sqrt(2 * math.pi)
    expected = -np.trapezoid(density * np.log(density), x)
    expected -= below * math.log(below) + above * math.log(above)
    law = head.distribution(tf.constant([[mean]], tf.float64))
    np.testing.assert_allclose(law.entropy(), [expected], rtol=1e-9)
