"""Tests every head by the table of parts, `Categorical`, `Gaussian`, and `for_space`."""

import math

import gymnasium as gym
import keras
import numpy as np
import parts
import pytest
import tensorflow as tf
from toy_heads import built

from tf_reinforce import heads
from tf_reinforce.heads import base


def softmax(logits):
    odds = np.exp(logits - np.max(logits, axis=-1, keepdims=True))
    return odds / odds.sum(axis=-1, keepdims=True)


LOGITS = np.array([[0.3, -1.2, 2.0], [0.0, 0.0, 0.0], [5.0, -5.0, 1.0]])
CASES = pytest.mark.parametrize("name, case", parts.HEAD_CASES)
EACH = pytest.mark.parametrize("name", parts.HEADS)


def drawn(head, count=5, dtype="float64", far=1.0):
    """Returns random outputs, and the raw actions that the head samples from them."""
    outputs = np.random.default_rng(1).normal(size=(count, head.outputs_size))
    outputs = tf.constant(far * outputs, dtype)
    noise = keras.tree.map_structure(
        lambda spec, x: far * x if spec.kind == "normal" else x,
        head.noise,
        parts.noise_of(head, count, dtype),
    )
    return outputs, head.sample(outputs, noise)


def rows(space, actions):
    """Returns the actions of a batch, one by one, in the types of the space."""
    arrays = keras.tree.map_structure(np.asarray, actions)
    count = len(keras.tree.flatten(arrays)[0])

    def row(space, part, i):
        if isinstance(space, gym.spaces.Dict):
            return {key: row(x, part[key], i) for key, x in space.items()}
        if isinstance(space, gym.spaces.Tuple):
            return tuple(row(x, y, i) for x, y in zip(space, part, strict=True))
        return part[i].astype(space.dtype)

    return [row(space, arrays, i) for i in range(count)]


# Every head


@CASES
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_all_results_of_a_head_have_the_dtype_of_its_outputs(name, case, dtype):
    head = parts.head(name, case)
    outputs, raw = drawn(head, dtype=dtype)
    spec = head.action_spec(dtype)
    for actions in (raw, head.mode(outputs)):
        keras.tree.map_structure(lambda x, y: y.shape[1:] == x.shape, spec, actions)
        assert [x.dtype.name for x in keras.tree.flatten(actions)] == [
            x.dtype.name for x in keras.tree.flatten(spec)
        ]
    law = head.distribution(outputs)
    log_probs, entropies = head.log_prob_and_entropy(outputs, raw)
    results = [log_probs, entropies, head.eligibility(outputs, raw)]
    results += [head.relative_scale(outputs), *head.parameters(outputs).values()]
    assert {x.dtype.name for x in results} == {dtype}
    assert {len(x) for x in results} == {5}
    assert law.log_prob(raw).shape == log_probs.shape == entropies.shape == (5,)


@CASES
def test_eligibility_is_the_gradient_of_the_log_probability(name, case):
    head = parts.head(name, case)
    outputs, raw = drawn(head, count=200)
    expected = base.Head.eligibility(head, outputs, raw)
    eligibility = head.eligibility(outputs, raw)
    np.testing.assert_allclose(eligibility, expected, rtol=1e-11, atol=1e-11)


@EACH
def test_actions_of_a_head_are_members_of_its_space_alone(name):
    head, space = parts.head(name), parts.HEADS[name].space
    for far in (1.0, 30.0):
        outputs, raw = drawn(head, count=200, dtype="float32", far=far)
        for actions in (raw, head.mode(outputs)):
            sent = rows(space, head.to_environment(actions))
            assert all(space.contains(action) for action in sent)
    assert head.matches_space(space)
    others = {k for k, x in parts.HEADS.items() if head.matches_space(x.space)}
    assert {repr(parts.HEADS[other].space) for other in others} == {repr(space)}


NAN = math.nan
IMPOSSIBLE = [
    *[("Categorical", x) for x in (-1, 3)],
    *[("MultiCategorical", x) for x in ([-1, 0], [2, 0], [0, 3])],
    *[("Bernoulli", x) for x in ([0, 2, 0], [-1, 0, 0])],
    *[("Multinomial", x) for x in ([1, 1, 1], [3, -1, 0])],
    *[("Gaussian", [NAN, 0.0]), ("TanhGaussian", [math.inf, 0.0])],
    *[("ClippedGaussian", x) for x in ([1.5, 0.0], [0.0, -2.1], [NAN, 0.0])],
    *[("Beta", x) for x in ([0.0, 0.5], [0.5, 1.0], [0.5, -0.5])],
]


@pytest.mark.parametrize("name, wrong", IMPOSSIBLE)
def test_check_actions_error_names_step_of_an_impossible_action(name, wrong):
    """Padding is not checked. The error names the first invalid step."""
    head = parts.head(name)
    possible = drawn(head, count=6)[1].numpy()
    actions = possible.reshape(3, 2, *possible.shape[1:])
    actions[1:, 1] = wrong
    head.check_actions(actions, np.array([3, 1]))
    with pytest.raises(ValueError, match=f"raw actions of {name}.*step 1 of episode 1"):
        head.check_actions(actions, np.array([3, 3]))


@EACH
@pytest.mark.parametrize("shape", [(None, 99), (None, 4, 3), (3,)])
def test_check_outputs_error_names_the_shape_and_the_expected_width(name, shape):
    head = parts.head(name)
    head.check_outputs((None, head.outputs_size))
    layer = (
        f"Dense.{head.outputs_size}." if name != "Pointer" else "Concatenate of a query"
    )
    with pytest.raises(ValueError, match=layer) as error:
        head.check_outputs(shape)
    assert str(shape) in str(error.value)


@pytest.mark.parametrize("name", parts.BOX_HEADS)
def test_actions_of_a_default_policy_grow_with_the_bounds_of_the_space(name):
    """`from_space` and `output_scaling` agree on the units of means and scales."""
    sent = []
    for width in (1.0, 8.0):
        space = gym.spaces.Box(-width, width, (2,), np.float32)
        head = built(parts.HEADS[name].kind.from_space(space))
        assert head.matches_space(space)
        offsets, scales = head.output_scaling()
        outputs, noise = np.full((3, head.outputs_size), 0.125), parts.noise_of(head, 3)
        raw = head.sample(tf.constant(offsets + scales * outputs), noise)
        sent.append(head.to_environment(raw).numpy() / width)
    np.testing.assert_allclose(*sent, rtol=1e-6)


@pytest.mark.parametrize("name", parts.INTEGER_HEADS)
def test_integer_heads_have_no_scale_and_no_bounds(name):
    head = parts.head(name)
    outputs, raw = drawn(head)
    assert head.at_bounds(raw).shape == head.relative_scale(outputs).shape == (5, 0)
    offsets, scales = head.output_scaling()
    assert not offsets.any() and (scales == 1.0).all()


# Categorical


def test_categorical_probabilities_are_softmax_of_logits():
    head, logits = heads.Categorical(3), tf.constant(LOGITS)
    actions = head.distribution(logits)
    probabilities = [actions.prob([a, a, a]).numpy() for a in range(3)]
    np.testing.assert_allclose(np.transpose(probabilities), softmax(LOGITS), rtol=1e-14)
    np.testing.assert_allclose(
        head.parameters(logits)["probs"], softmax(LOGITS), rtol=1e-14
    )
    expected = -np.sum(softmax(LOGITS) * np.log(softmax(LOGITS)), axis=1)
    np.testing.assert_allclose(actions.entropy(), expected, rtol=1e-13)
    assert head.mode(logits).numpy().tolist() == [2, 0, 0]


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


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_categorical_sample_with_extreme_noise_is_the_likely_action(dtype):
    """Generators can return zero, and the float64 number before one is one in float32.
    A masked action has a logit of half the most negative number.
    """
    least = float(np.finfo(dtype).min) / 2
    logits = tf.constant([[1e3, 0.0], [0.0, -1e9], [0.0, least], [0.0, 0.0]], dtype)
    noise = tf.constant([[0.0, 0.5], [0.0, 0.9], [0.5, 1.0], [0.0, 0.5]], dtype)
    drawn = heads.Categorical(2).sample(logits, noise)
    assert drawn.numpy().tolist() == [0, 0, 0, 1]


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


# Gaussian


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
    head = built(heads.Gaussian(2, initial_scale=[0.5, 2.0], dtype="float64"))
    distribution = head.distribution(tf.constant(means))
    expected = log_density(actions, means, [0.5, 2.0])
    np.testing.assert_allclose(distribution.log_prob(actions), expected, rtol=1e-13)
    entropy = math.log(2 * math.pi * math.e) + math.log(0.5) + math.log(2.0)
    np.testing.assert_allclose(distribution.entropy(), [entropy] * 7, rtol=1e-14)
    assert head.trainable_variables == [head.log_scale]


def test_gaussian_sample_is_mean_plus_scale_times_noise():
    means, noise = np.random.default_rng(0).normal(size=(2, 7, 2))
    head = built(heads.Gaussian(2, initial_scale=[0.5, 2.0], dtype="float64"))
    actions = head.sample(tf.constant(means), tf.constant(noise))
    np.testing.assert_allclose(actions, means + [0.5, 2.0] * noise, rtol=1e-14)
    np.testing.assert_array_equal(head.mode(tf.constant(means)), means)


def test_gaussian_clips_each_dimension_to_its_bound_and_reshapes_actions():
    head = heads.Gaussian(6, low=np.arange(6) - 3.0, high=4.0, shape=(2, 3))
    actions = head.to_environment(tf.fill([5, 6], -9.0))
    expected = np.broadcast_to([[-3, -2, -1], [0, 1, 2]], (5, 2, 3))
    np.testing.assert_array_equal(actions, expected)


# for_space


@pytest.mark.parametrize("space", [gym.spaces.Text(2), gym.spaces.Box(0.0, 1.0, (0,))])
def test_for_space_error_names_the_unsupported_space(space):
    with pytest.raises(ValueError, match="is not supported") as error:
        heads.for_space(space)
    assert f"Action space {space!r}" in str(error.value)


def test_for_space_error_for_equal_bounds_names_the_remedy():
    space = gym.spaces.Box(np.float32([0, 1]), np.float32([1, 1]))
    with pytest.raises(ValueError, match="must be below `high`.*Remove dimensions"):
        heads.for_space(space)
