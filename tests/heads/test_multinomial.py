"""Counts: against enumeration, and in an environment that takes them."""

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


def chances(logits):
    """From the definition, in whole numbers where they are whole."""
    p = np.exp(logits - logits.max())
    p /= p.sum()
    ways = [math.factorial(N) / math.prod(map(math.factorial, n)) for n in COUNTS]
    return np.array([w * np.prod(p**n) for w, n in zip(ways, COUNTS, strict=True)])


@pytest.mark.parametrize("row", range(len(LOGITS)))
def test_probabilities_entropy_and_mode_are_those_of_the_definition(row):
    truth = chances(LOGITS[row])
    outputs = tf.constant(np.repeat(LOGITS[row : row + 1], len(COUNTS), 0))
    actions = head().distribution(outputs)
    ours = tf.exp(actions.log_prob(COUNTS)).numpy()
    np.testing.assert_allclose(ours, truth, rtol=1e-11)
    assert ours.sum() == pytest.approx(1, abs=1e-12)
    entropy = -sum(p * math.log(p) for p in truth if p > 0)
    np.testing.assert_allclose(actions.entropy(), entropy, rtol=1e-9, atol=1e-12)
    mode = head().mode(outputs[:1]).numpy()[0]
    assert truth[(mode == COUNTS).all(1)][0] == pytest.approx(truth.max(), rel=1e-12)


def test_the_gradient_of_the_entropy_is_that_of_the_definition():
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
def test_the_entropy_and_its_gradient_stay_finite_and_exact(trials, dtype):
    """Where a probability rounds to one, a careless derivative is no number."""
    many = heads.Multinomial(3, trials)
    x = tf.constant([*SURE, *LOGITS], dtype)
    with tf.GradientTape() as tape:
        tape.watch(x)
        entropy = many.distribution(x).entropy()
    slopes = tape.gradient(entropy, x)
    assert np.isfinite(entropy).all() and np.isfinite(slopes).all()
    x = tf.cast(x, tf.float64)
    with tf.GradientTape() as tape:
        tape.watch(x)
        truth = many.distribution(x).entropy()
    np.testing.assert_allclose(entropy, truth, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(slopes, tape.gradient(truth, x), rtol=1e-4, atol=1e-5)


def test_the_entropy_of_many_coins():
    """Exact enumeration: a thousand trials, two categories, also in float32."""
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


def test_one_category_leaves_no_choice():
    one, z = heads.Multinomial(1, trials=5), tf.constant([[3.0]])
    with tf.GradientTape() as tape:
        tape.watch(z)
        entropy = one.distribution(z).entropy()
    assert entropy == 0 and tape.gradient(entropy, z) == 0


def test_the_mode_does_not_see_a_common_offset():
    two = heads.Multinomial(2, trials=5)
    assert two.mode(tf.constant([[2e7, 2e7 - 2]])).numpy().tolist() == [[5, 0]]


@pytest.mark.parametrize("counts", [[1, 1, 1], [5, -1, 0], [4, 1, 0]])
def test_counts_that_do_not_add_up_cannot_happen(counts):
    log_prob = head().distribution(tf.zeros([1, 3])).log_prob(tf.constant([counts]))
    assert log_prob.numpy().tolist() == [-math.inf]


def test_one_trial_is_a_categorical():
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


def test_samples_follow_the_probabilities():
    rng, count = np.random.default_rng(0), 20_000
    noise = tf.constant(rng.random((count, N, K)))
    samples = head().sample(tf.constant(np.repeat(LOGITS[:1], count, 0)), noise).numpy()
    assert samples.dtype == "int64" and (samples.sum(1) == N).all()
    for counts, p in zip(COUNTS, chances(LOGITS[0]), strict=True):
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
def test_it_fits_spaces_that_hold_every_count(case):
    space, fits = SPACES[case]
    assert head().matches_space(space) is fits


def test_it_comes_back_from_its_config():
    config = keras.saving.serialize_keras_object(head())
    again = keras.saving.deserialize_keras_object(config)
    assert repr(again) == "Multinomial(3, trials=4)"


class Split(gym.Env):
    """Four units to share out: what goes to the middle is earned."""

    observation_space = gym.spaces.Box(-1, 1, (2,), np.float32)
    action_space = gym.spaces.Box(0, N, (K,), np.int32)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        assert self.action_space.contains(action) and action.sum() == N
        return np.zeros(2, np.float32), float(action[1]), True, False, {}


class Levels(Split):
    """The same with another space for the same counts."""

    action_space = gym.spaces.MultiDiscrete([5, 5, 5])


@pytest.mark.parametrize("env", [sweeps.rare(Split), Levels])
def test_an_agent_learns_how_to_share_out(env, tmp_path):
    policy = keras.Sequential([keras.Input((2,)), keras.layers.Dense(K)])
    agent = tfr.Reinforce(policy, head(), entropy_coef=1e-3)
    agent.compile(keras.optimizers.Adam(0.1))
    agent.fit(env, epochs=60, episodes_per_epoch=8, verbose=0)
    assert agent.trainer.collector.programs["acting", False].engine == "litert"
    assert agent.evaluate(env, 4)["episode_return"] == N
    agent.save(tmp_path / "agent.keras")
    agent.export(tmp_path / "policy")
    loaded = tfr.load(tmp_path / "agent.keras")
    assert loaded.act(np.zeros((1, 2), "f"), deterministic=True).tolist() == [[0, N, 0]]
    served = tf.saved_model.load(tmp_path / "policy")
    assert served.act(tf.zeros([1, 2]))["action"].numpy().tolist() == [[0, N, 0]]


def test_counts_that_do_not_add_up_are_refused():
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


def test_counts_below_zero_are_impossible_whatever_they_add_up_to():
    head, logits = heads.Multinomial(3, 3), tf.zeros([1, 3], tf.float64)
    assert head.distribution(logits).log_prob([[4, -1, 0]]).numpy() == [-math.inf]


def test_the_parameters_are_logits_and_their_softmax():
    logits = tf.math.log([[0.6, 0.3, 0.1]])
    named = heads.Multinomial(3, 5).parameters(logits + 2.0)
    np.testing.assert_allclose(named["probs"], [[0.6, 0.3, 0.1]], rtol=1e-6)
    np.testing.assert_allclose(named["logits"], logits + 2.0)


def test_counts_that_cannot_be_have_no_slope():
    """Of which one is below zero, although they add up."""
    logits = tf.constant([[0.5, -0.5]])
    with tf.GradientTape() as tape:
        tape.watch(logits)
        score = heads.Multinomial(2, trials=3).distribution(logits).log_prob([[4, -1]])
    assert score.numpy().tolist() == [-np.inf]
    assert tape.gradient(score, logits).numpy().tolist() == [[0.0, 0.0]]
