"""Tests `heads.Multinomial` against enumeration, and in environments that take counts."""

import itertools
import math

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import heads

K, N = 3, 4
LOGITS = np.array([[0.3, -1.2, 2.0], [0.0, 0.0, 0.0], [5.0, -5.0, 1.0], [80.0, 0.0, 0.0]])
COUNTS = np.array([n for n in itertools.product(range(N + 1), repeat=K) if sum(n) == N])


def head():
    return heads.Multinomial(K, trials=N)


def probabilities(logits):
    """Returns the probability of each row of `COUNTS`, by the definition."""
    p = np.exp(logits - logits.max())
    p /= p.sum()
    ways = [math.factorial(N) / math.prod(map(math.factorial, n)) for n in COUNTS]
    return np.array([w * np.prod(p**n) for w, n in zip(ways, COUNTS, strict=True)])


@pytest.mark.parametrize("row", range(len(LOGITS)))
def test_multinomial_probabilities_entropy_and_mode_equal_enumeration(row):
    truth = probabilities(LOGITS[row])
    outputs = tf.constant(np.repeat(LOGITS[row : row + 1], len(COUNTS), 0))
    actions = head().distribution(outputs)
    probs = tf.exp(actions.log_prob(COUNTS)).numpy()
    np.testing.assert_allclose(probs, truth, rtol=1e-11)
    assert probs.sum() == pytest.approx(1, abs=1e-12)
    entropy = -sum(p * math.log(p) for p in truth if p > 0)
    np.testing.assert_allclose(actions.entropy(), entropy, rtol=1e-9, atol=1e-12)
    mode = head().mode(outputs[:1]).numpy()[0]
    assert truth[(mode == COUNTS).all(1)][0] == pytest.approx(truth.max(), rel=1e-12)


def test_multinomial_entropy_gradient_equals_enumeration():
    x = tf.constant(LOGITS[:1])
    with tf.GradientTape() as tape:
        tape.watch(x)
        entropy = tf.reduce_sum(head().distribution(x).entropy())
    with tf.GradientTape() as definition:
        definition.watch(x)
        rows = tf.repeat(x, len(COUNTS), axis=0)
        log_probs = head().distribution(rows).log_prob(COUNTS)
        truth = -tf.reduce_sum(tf.exp(log_probs) * log_probs)
    np.testing.assert_allclose(
        tape.gradient(entropy, x), definition.gradient(truth, x), rtol=1e-12, atol=1e-12
    )


SURE = [[0.0, 20.0, 0.0], [0.0, 1e4, -1e4], [-200.0, 0.0, 0.0], [2e7, 2e7 - 2, 0.0]]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("trials", [1, 5, 200])
def test_multinomial_entropy_and_gradient_are_finite_for_extreme_logits(trials, dtype):
    """A naive derivative is NaN where a probability rounds to one."""
    many = heads.Multinomial(3, trials)
    x = tf.constant([*SURE, *LOGITS], dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        entropy = many.distribution(x).entropy()
    gradients = tape.gradient(entropy, x)
    assert np.isfinite(entropy).all() and np.isfinite(gradients).all()
    x = tf.cast(x, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        truth = many.distribution(x).entropy()
    np.testing.assert_allclose(entropy, truth, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(gradients, tape.gradient(truth, x), rtol=1e-4, atol=1e-5)


def test_multinomial_entropy_of_1000_trials_equals_enumeration():
    """The expected entropy enumerates all counts of a thousand trials with two
    categories.
    """
    z = np.array([[0.7, -0.2]])
    p = 1 / (1 + math.exp(z[0, 1] - z[0, 0]))
    logs = [
        math.lgamma(1001) - math.lgamma(n + 1) - math.lgamma(1001 - n)
        + n * math.log(p) + (1000 - n) * math.log1p(-p)
        for n in range(1001)
    ]  # fmt: skip
    truth = -sum(math.exp(x) * x for x in logs)
    coins = heads.Multinomial(2, trials=1000)
    for dtype, tolerance in (("float64", 1e-9), ("float32", 1e-5)):
        entropy = coins.distribution(tf.constant(z, dtype)).entropy()
        np.testing.assert_allclose(entropy, [truth], rtol=tolerance)


def test_multinomial_with_one_category_has_zero_entropy_and_gradient():
    one, z = heads.Multinomial(1, trials=5), tf.constant([[3.0]])
    with tf.GradientTape() as tape:
        tape.watch(z)
        entropy = one.distribution(z).entropy()
    assert entropy == 0 and tape.gradient(entropy, z) == 0


def test_multinomial_mode_is_exact_when_logits_have_a_large_offset():
    two = heads.Multinomial(2, trials=5)
    assert two.mode(tf.constant([[2e7, 2e7 - 2]])).numpy().tolist() == [[5, 0]]


@pytest.mark.parametrize("counts", [[1, 1, 1], [5, -1, 0], [4, 1, 0]])
def test_log_probability_is_minus_infinity_for_invalid_counts(counts):
    log_prob = head().distribution(tf.zeros([1, 3])).log_prob(tf.constant([counts]))
    assert log_prob.numpy().tolist() == [-math.inf]


def test_multinomial_with_one_trial_equals_categorical():
    logits, one = tf.constant(LOGITS[:3]), heads.Multinomial(K, trials=1)
    hot = np.eye(K, dtype="int64")
    choice = heads.Categorical(K)
    np.testing.assert_allclose(
        one.distribution(logits).log_prob(hot),
        choice.distribution(logits).log_prob(np.arange(K)),
        rtol=1e-14,
    )
    noise = tf.constant(np.random.default_rng(0).random((3, K)))
    sampled = one.sample(logits, noise[:, None])
    np.testing.assert_array_equal(tf.argmax(sampled, -1), choice.sample(logits, noise))


def test_multinomial_sample_frequencies_equal_probabilities():
    rng, count = np.random.default_rng(0), 20_000
    noise = tf.constant(rng.random((count, N, K)))
    samples = head().sample(tf.constant(np.repeat(LOGITS[:1], count, 0)), noise).numpy()
    assert samples.dtype == "int64" and (samples.sum(1) == N).all()
    for counts, p in zip(COUNTS, probabilities(LOGITS[0]), strict=True):
        share = (samples == counts).all(1).mean()
        assert abs(share - p) <= 6 * math.sqrt(p * (1 - p) / count)


SPACES = {
    "discrete": (gym.spaces.MultiDiscrete([5, 5, 6]), True),
    "too_few": (gym.spaces.MultiDiscrete([5, 4, 5]), False),
    "from_one": (gym.spaces.MultiDiscrete([5, 5, 5], start=[1, 0, 0]), False),
    "box": (gym.spaces.Box(0, 4, (3,), np.int32), True),
    "narrow": (gym.spaces.Box(0, 3, (3,), np.int32), False),
    "real": (gym.spaces.Box(0, 4, (3,)), False),
    "two": (gym.spaces.Box(0, 4, (2,), np.int64), False),
}


@pytest.mark.parametrize("case", SPACES)
def test_multinomial_matches_spaces_that_contain_every_count(case):
    space, fits = SPACES[case]
    assert head().matches_space(space) is fits


def test_multinomial_is_restored_from_its_config():
    config = keras.saving.serialize_keras_object(head())
    restored = keras.saving.deserialize_keras_object(config)
    assert repr(restored) == "Multinomial(3, trials=4)"


class Split(gym.Env):
    """Distributes four units over three categories.

    The reward is the count of the second one.
    """

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(0, N, (K,), np.int32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action) and action.sum() == N
        return np.zeros(2, np.float32), float(action[1]), True, False, {}


class Levels(Split):
    """`Split` with a `MultiDiscrete` action space for the counts."""

    action_space = gym.spaces.MultiDiscrete([5, 5, 5])


@pytest.mark.slow
@pytest.mark.parametrize("env", [sweeps.rare(Split), Levels])
def test_agent_with_multinomial_head_learns_is_saved_and_exported(env, tmp_path):
    policy = keras.Sequential([keras.Input((2,)), keras.layers.Dense(K)])
    agent = tfr.Reinforce(policy, head(), entropy_coef=1e-3)
    agent.compile(keras.optimizers.Adam(0.1))
    agent.fit(env, epochs=60, episodes_per_epoch=8, verbose=0)
    assert agent.trainer.collector.programs["acting", False].runtime == "litert"
    assert agent.evaluate(env, 4)["episode_return"] == N
    agent.save(tmp_path / "agent.keras")
    agent.export(tmp_path / "policy")
    loaded = tfr.load(tmp_path / "agent.keras")
    assert loaded.act(np.zeros((1, 2), "f"), deterministic=True).tolist() == [[0, N, 0]]
    served = tf.saved_model.load(tmp_path / "policy")
    assert served.act(tf.zeros([1, 2]))["action"].numpy().tolist() == [[0, N, 0]]


def test_update_raises_for_counts_with_wrong_sum():
    policy = keras.Sequential([keras.Input((2,)), keras.layers.Dense(K)])
    agent = tfr.Reinforce(policy, head())
    agent.compile("sgd")
    with pytest.raises(ValueError, match="raw actions of Multinomial"):
        agent.update(
            tfr.Episodes(
                np.zeros((2, 1, 2)),
                np.array([[[1, 1, 1]]]),
                np.ones((1, 1)),
                np.array([1]),
                np.array([True]),
            )
        )


def test_log_probability_is_minus_infinity_for_negative_counts():
    head, logits = heads.Multinomial(3, 3), tf.zeros([1, 3], tf.float64)
    assert head.distribution(logits).log_prob([[4, -1, 0]]).numpy() == [-math.inf]


def test_multinomial_parameters_are_logits_and_softmax_probabilities():
    logits = tf.math.log([[0.6, 0.3, 0.1]])
    named = heads.Multinomial(3, 5).parameters(logits + 2.0)
    np.testing.assert_allclose(named["probs"], [[0.6, 0.3, 0.1]], rtol=1e-6)
    np.testing.assert_allclose(named["logits"], logits + 2.0)


def test_gradient_of_log_probability_is_zero_for_negative_counts():
    """The sum of the counts is correct, but one count is negative."""
    logits = tf.constant([[0.5, -0.5]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        score = heads.Multinomial(2, trials=3).distribution(logits).log_prob([[4, -1]])
    assert score.numpy().tolist() == [-np.inf]
    assert tape.gradient(score, logits).numpy().tolist() == [[0.0, 0.0]]
