"""Tests that random numbers depend only on their stream and that streams differ."""

import itertools

import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.data import tensor_noise

SEEDS = (0, 1, 2**32, 2**63 - 1)
PURPOSES = ("training", "validation", "evaluation")


def words(*address):
    return tuple(seeding.seed_sequence(*address).generate_state(4, np.uint64).tolist())


def test_seed_sequences_of_different_streams_share_no_word():
    counters = [(), (0,), (1,), (0, 0), (0, 1), (1, 0)]
    addresses = list(itertools.product(SEEDS, seeding.SUBSTREAMS, counters))
    drawn = [w for seed, stream, rest in addresses for w in words(seed, stream, *rest)]
    assert len(set(drawn)) == 4 * len(addresses)


def test_spawn_keys_of_streams_never_change():
    """The position in `SUBSTREAMS` is a part of each spawn key of NumPy."""
    place = {
        "weights": 0,
        "training/environment": 1,
        "training/action": 2,
        "engine_comparison": 7,
    }
    for stream, number in place.items():
        truth = np.random.default_rng(np.random.SeedSequence(5, spawn_key=(number, 9)))
        assert seeding.generator(5, stream, 9).random() == truth.random()


def test_environment_seeds_of_a_hundred_runs_are_distinct():
    runs = [seeding.EpisodeSeeds(seed, "training", update=0) for seed in range(100)]
    drawn = [run.reset_seed(episode) for run in runs for episode in range(64)]
    assert len(set(drawn)) == 6400
    assert all(type(seed) is int and 0 <= seed < 2**31 for seed in drawn)


def test_environment_seeds_differ_between_purposes_and_updates():
    drawn = [
        seeding.EpisodeSeeds(0, stream, update).reset_seed(episode)
        for stream, update, episode in itertools.product(PURPOSES, range(20), range(32))
    ]
    assert len(set(drawn)) == len(drawn)


def test_action_noise_differs_between_episodes():
    drawn = [
        seeding.EpisodeSeeds(seed, stream, update).action_generator(episode).random()
        for seed, stream, update, episode in itertools.product(
            SEEDS, PURPOSES, range(3), range(40)
        )
    ]
    assert len(set(drawn)) == len(drawn)


def test_episode_seeds_do_not_depend_on_the_order_of_calls():
    """Words are computed in blocks, so that the order of calls could influence them."""

    def fresh():
        return seeding.EpisodeSeeds(11, "evaluation", update=2)

    def noise(seeds, episode):
        return seeds.action_generator(episode).random(3).tolist()

    episodes = range(50)
    environments = [fresh().reset_seed(episode) for episode in episodes]
    noises = [noise(fresh(), episode) for episode in episodes]
    forward, backward = fresh(), fresh()
    assert noises[::-1] == [noise(backward, episode) for episode in episodes[::-1]]
    for _ in range(2):
        assert environments == [forward.reset_seed(episode) for episode in episodes]
        assert noises == [noise(forward, episode) for episode in episodes]


def test_environments_and_actions_use_different_streams(monkeypatch):
    asked, sequence = [], seeding.seed_sequence

    def recording(*address):
        asked.append(address)
        return sequence(*address)

    monkeypatch.setattr(seeding, "seed_sequence", recording)
    seeds = seeding.EpisodeSeeds(3, "validation", update=5)
    seeds.reset_seed(0), seeds.action_generator(0)
    kinds = "validation/environment", "validation/action"
    assert asked == [(3, kind, 5, 0) for kind in kinds]


def test_action_noise_shares_no_number_with_the_environment_generator():
    """Equal numbers in both would correlate the action with the state."""
    seeds = seeding.EpisodeSeeds(0, "training", update=0)
    for episode in range(32):
        # Gymnasium makes this generator from the seed of `reset`.
        environment = np.random.default_rng(seeds.reset_seed(episode)).random(8)
        assert not set(environment) & set(seeds.action_generator(episode).random(8))


@pytest.mark.parametrize("kind", ["uniform", "normal"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_stateless_noise_depends_on_its_seed_only(kind, dtype):
    def draw(seed):
        return tensor_noise.stateless_noise(seed, kind, [4, 3], dtype)

    first = draw(tf.constant(3)).numpy()
    tf.random.normal([5])  # changes the state of the global generator
    np.testing.assert_array_equal(first, draw(tf.constant(3, tf.int64)))
    assert first.dtype == dtype and first.shape == (4, 3)
    assert not np.isin(first, draw(tf.constant(4))).any()


@pytest.mark.parametrize(
    "key, counter, words",
    [
        ((0, 0), (0, 0), (0x6B200159, 0x99BA4EFE)),
        ((0xFFFFFFFF,) * 2, (0xFFFFFFFF,) * 2, (0x1CB996FC, 0xBB002BE7)),
        ((0x13198A2E, 0x03707344), (0x243F6A88, 0x85A308D3), (0xC4923A9C, 0x483DF7A0)),
    ],
)
def test_threefry_equals_the_published_test_vectors(key, counter, words):
    """The three vectors of Threefry-2x32-20 are from `kat_vectors` of Random123."""
    key, counter = (np.array(x, "uint32") for x in (key, counter))
    drawn = tensor_noise.threefry(key, *(tf.constant(x[None, None]) for x in counter))
    assert tuple(int(x[0, 0]) for x in drawn) == words


PARTS = [
    seeding.NoiseSpec("uniform", (3,)),
    seeding.NoiseSpec("normal", (2, 2)),
    seeding.NoiseSpec("uniform", ()),
]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_counter_noise_depends_on_key_episode_and_step_only(dtype):
    key = seeding.rollout_keys(3, "training", 5)[1]

    def draw(episodes, step):
        return tensor_noise.counter_noise(key, PARTS, episodes, step, dtype)

    together, alone = draw(tf.range(6), 4), draw(tf.constant([5, 2]), 4)
    ways = [
        tf.function(draw, jit_compile=True)(tf.range(6), tf.constant(4)),
        tf.function(draw)(tf.range(6), tf.constant(4)),
        draw(tf.range(6), tf.fill([6], 4)),
        tensor_noise.counter_noise(np.tile(key, (6, 1)), PARTS, tf.range(6), 4, dtype),
    ]
    for place, part in enumerate(together):
        assert part.shape[1:] == PARTS[place].shape and part.dtype == dtype
        np.testing.assert_array_equal(tf.gather(part, [5, 2]), alone[place])
        for way in ways:  # XLA computes `erfinv` in another way
            error = 4 * np.finfo(dtype).eps if PARTS[place].kind == "normal" else 0
            np.testing.assert_allclose(way[place], part, rtol=8 * error, atol=error)


def test_counter_noise_differs_between_keys_steps_and_episodes():
    keys = [seeding.rollout_keys(0, "training", update) for update in (0, 1)]
    one = [seeding.NoiseSpec("uniform", (5,))]
    drawn = [
        tensor_noise.counter_noise(key, one, tf.range(4), step, "float64")[0]
        .numpy()
        .ravel()
        for pair in keys
        for key in pair
        for step in range(3)
    ]
    assert len(np.unique(drawn)) == 2 * 4 * 3 * 4 * 5


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_counter_noise_has_the_moments_of_its_distribution(dtype):
    """The tolerances are six standard errors of the moments of a million numbers."""
    key, count = seeding.rollout_keys(1, "evaluation", 0)[0], 1_000_000
    parts = [seeding.NoiseSpec(kind, (1000,)) for kind in ("uniform", "normal")]
    uniform, normal = (
        x.numpy().ravel().astype("float64")
        for x in tensor_noise.counter_noise(key, parts, tf.range(1000), 0, dtype)
    )
    assert uniform.min() >= 0 and uniform.max() < 1 and np.isfinite(normal).all()
    six = 6 / np.sqrt(count)
    assert abs(uniform.mean() - 1 / 2) < six * np.sqrt(1 / 12)
    assert abs((uniform**2).mean() - 1 / 3) < six * np.sqrt(4 / 45)
    for power, moment, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs((normal**power).mean() - moment) < six * np.sqrt(variance)
    assert abs(np.corrcoef(uniform[:-1], uniform[1:])[0, 1]) < six
    assert abs(np.corrcoef(uniform, normal)[0, 1]) < six


def test_noise_of_the_smallest_and_largest_words_is_finite():
    words = tf.constant([0, 2**32 - 1], tf.uint32)
    for dtype in (tf.float32, tf.float64):
        low = words if dtype == tf.float64 else None
        uniform = tensor_noise.uniform_from_words(words, low, dtype).numpy()
        normal = tensor_noise.normal_from_words(words, low, dtype).numpy()
        assert uniform[0] == 0 and 1 - 1e-7 < uniform[1] < 1
        assert np.isfinite(normal).all() and normal[0] == -normal[1] < -5
