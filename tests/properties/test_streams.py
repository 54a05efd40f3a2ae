"""Tests that streams of random numbers are disjoint, on the host and in tensors."""

import itertools

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce import callbacks
from tf_reinforce import envs
from tf_reinforce import heads
from tf_reinforce.data import seeding
from tf_reinforce.data import tensor_noise
from tf_reinforce.engine.update import program
from tf_reinforce.policies import actor as deciding

SEEDS = (0, 1, 7, 2**40, 2**63 - 1)
PURPOSES = ("training", "validation", "evaluation")
UPDATES = (0, 1, 2, 100)
EPISODES = (*range(5), 15, 16, 17, 31, 32, 33, 1000)  # words are computed 16 at a time
PARTS = range(4)
WORDS = 4


def host_addresses():
    """Yields `(address, first words)` of every stream of NumPy's generators."""
    for seed, stream, update in itertools.product(SEEDS, PURPOSES, UPDATES):
        for group_size in (1, 2):
            seeds = seeding.EpisodeSeeds(seed, stream, update, group_size)
            for episode, part in itertools.product(EPISODES, PARTS):
                address = seed, stream, update, "action", episode, part
                yield (
                    address,
                    seeds.action_generator(episode, part).bit_generator.random_raw(WORDS),
                )
            for episode in EPISODES:
                first = episode // group_size
                address = seed, stream, update, "environment", first
                yield address, seeds.seed_words("environment", first)
    for seed, update in itertools.product(SEEDS, UPDATES):
        for stream in ("training/minibatches", "weights", "engine_comparison"):
            bits = seeding.generator(seed, stream, update).bit_generator
            yield (seed, stream, update), bits.random_raw(WORDS)


def tensor_addresses():
    """Returns numbers of Threefry, a row for each key, step and episode."""
    uses = [
        key
        for seed, stream, update in itertools.product(
            SEEDS, (*PURPOSES, "vector"), UPDATES
        )
        for key in seeding.rollout_keys(seed, stream, update)
    ]
    keys, steps, episodes = zip(*itertools.product(uses, range(3), EPISODES))
    parts = [seeding.NoiseSpec("uniform", (2,)), seeding.NoiseSpec("uniform", (3,))]
    # In float64, each number has 53 bits of its own block.
    at = np.stack(keys), parts, tf.constant(episodes), tf.constant(steps), "float64"
    return np.concatenate(tensor_noise.counter_noise(*at), axis=1)


def test_streams_draw_different_numbers():
    """The test compares seeds, purposes, updates, episodes, parts, steps and engines."""
    found = {}
    for address, words in host_addresses():
        words = tuple(words.tolist())
        assert found.setdefault(address, words) == words  # groups do not change a stream
    drawn = [word for words in found.values() for word in words]
    assert len(set(drawn)) == len(drawn) == WORDS * len(found)
    tensors = tensor_addresses()
    blocks = set(tensors.ravel().tolist())
    assert len(blocks) == tensors.size
    # Compares the two engines by their numbers in [0, 1).
    shares = {(word >> 11) * 2.0**-53 for word in drawn}
    assert not shares & blocks
    streams = len(found) + len(tensors)
    assert streams * (streams - 1) // 2 == 117_957_120


def two_gaussians():
    """Returns an agent whose actions equal its noise, and its head.

    All outputs are zero.
    """
    head = heads.Composite((heads.Gaussian(2), heads.Gaussian(2)))
    policy = keras.Sequential(
        [keras.Input((1,)), keras.layers.Dense(4, kernel_initializer="zeros")]
    )
    return tfr.Reinforce(policy, head), head


def test_parts_of_a_sampled_composite_action_differ(tmp_path):
    """With equal noise the parts would be equal, but `log_prob` assumes independence."""
    agent, head = two_gaussians()
    agent.build((None, 1))
    observations = np.zeros((50, 1), "float32")
    agent.export(tmp_path / "policy")
    exported = tf.saved_model.load(str(tmp_path / "policy"))
    answer = exported.sample(tf.constant(observations), tf.constant(3, tf.int64))
    acted = agent.act(observations, seed=3)
    actor = deciding.ActorPolicy(None, head, tf.TensorSpec((1,)), "float32", [])
    noise = actor.sample_noise(tf.constant(3, tf.int64), 50)
    for first, second in (acted, noise, [answer["action_0"], answer["action_1"]]):
        assert len(np.unique([first, second])) == 200
    # Engines on the host draw the noise with NumPy.
    agent.build_for_spaces(Pairs.observation_space, Pairs.action_space)
    first, second = agent.collect(Pairs, episodes=50).actions
    assert len(np.unique([first, second])) == 200


class Pairs(gym.Env):
    """Actions of two parts, `[2]` each; episodes have one step."""

    observation_space = gym.spaces.Box(0.0, 0.0, (1,), np.float32)
    action_space = gym.spaces.Tuple([gym.spaces.Box(-np.inf, np.inf, (2,))] * 2)

    def reset(self, *, seed=None, options=None):
        return np.zeros(1, "float32"), {}

    def step(self, action):
        return np.zeros(1, "float32"), 0.0, True, False, {}


def requested_streams(monkeypatch, run):
    """Returns the NumPy streams that a run requests, in their order."""
    asked, sequence = [], seeding.seed_sequence

    def recording(seed, stream, *counters):
        asked.append((seed, stream, *counters))
        return sequence(seed, stream, *counters)

    monkeypatch.setattr(seeding, "seed_sequence", recording)
    run()
    monkeypatch.setattr(seeding, "seed_sequence", sequence)
    return [address for address in asked if address[1] != "engine_comparison"]


class Permutations:
    """A NumPy generator that records its permutations."""

    def __init__(self, generator, drawn):
        self.generator, self.drawn = generator, drawn

    def permutation(self, count):
        self.drawn.append(self.generator.permutation(count))
        return self.drawn[-1]

    def __getattr__(self, name):
        return getattr(self.generator, name)


@pytest.fixture
def permutations(monkeypatch):
    """Records the permutations that are drawn from streams of minibatches."""
    drawn, generator = [], seeding.generator

    def recording(seed, substream, *counters):
        result = generator(seed, substream, *counters)
        is_order = substream == "training/minibatches"
        return Permutations(result, drawn) if is_order else result

    monkeypatch.setattr(seeding, "generator", recording)
    return drawn


def expect_distinct(drawn, count):
    assert len({tuple(x.tolist()) for x in drawn}) == len(drawn) == count
    assert all(sorted(x.tolist()) == list(range(len(x))) for x in drawn)


def test_fit_and_evaluate_request_each_of_their_streams_once(monkeypatch, permutations):
    """The run includes training, validation, minibatches and evaluation."""
    agent = tfr.Reinforce.for_env(toys.Corridor, hidden=(2,), minibatch_size=3, passes=2)
    budget = dict(epochs=3, episodes_per_epoch=2, max_episode_steps=9, verbose=0)
    options = dict(validation_env=toys.Corridor, validation_episodes=2, seed=4)

    def run():
        agent.fit(toys.Corridor, **budget, **options)
        limit = dict(max_episode_steps=9)
        agent.evaluate(toys.Corridor, 2, deterministic=False, seed=4, **limit)

    asked = requested_streams(monkeypatch, run)
    assert len(set(asked)) == len(asked)
    training = [("training/environment", u, 0) for u in range(3)]
    training += [("training/action", u, 0) for u in range(3)]
    training += [("training/minibatches", u) for u in range(3)]
    validation = [("validation/environment", u, 0) for u in (1, 2, 3)]
    evaluation = [("evaluation/environment", 0, 0), ("evaluation/action", 0, 0)]
    expected = {(4, *rest) for rest in (*training, *validation, *evaluation)}
    assert set(asked) == expected
    expect_distinct(permutations, 3 * 2)


def test_every_evaluation_of_a_run_plays_new_episodes(monkeypatch, tmp_path):
    """Two validations, and the evaluation of the best agent at the end."""
    agent = tfr.Reinforce.for_env(toys.Corridor, hidden=(2,))
    budget = dict(epochs=2, episodes_per_epoch=2, max_episode_steps=3, verbose=0)
    budget |= dict(validation_freq=1, validation_episodes=2, resume=tmp_path)
    asked = requested_streams(
        monkeypatch, lambda: agent.fit(toys.Corridor, seed=4, **budget)
    )
    assert len(set(asked)) == len(asked)
    resets = [x[1:3] for x in asked if x[1].endswith("n/environment")]
    validations = [("validation/environment", update) for update in (1, 2)]
    assert [x for x in resets if x in validations] == validations
    assert ("evaluation/environment", 0) in resets


def test_samples_of_a_model_have_a_key_of_their_own(monkeypatch):
    """Two layers with equal seeds, in two updates of one epoch and two of another."""
    keys, counter_noise = [], tensor_noise.counter_noise

    def recording(key, specs, rows, call, dtype):
        keys.append((*np.array(key).tolist(), int(call)))
        assert len(rows) == len(set(np.array(rows).tolist()))
        return counter_noise(key, specs, rows, call, dtype)

    monkeypatch.setattr(tensor_noise, "counter_noise", recording)
    inputs = keras.Input((3,))
    first = tfr.layers.Sample(heads.Gaussian(3), seed=7)(inputs)
    second = tfr.layers.Sample(heads.Gaussian(3), seed=7)(first)
    model = tfr.ScoreFunction(keras.Model(inputs, second), loss="mse", samples=2)
    model.compile("sgd", run_eagerly=True)
    data = np.ones([4, 3]), np.zeros([4, 3])
    model.fit(*data, batch_size=2, epochs=2, validation_data=data, verbose=0)
    assert len(set(keys)) == len(keys) == 2 * 4


def test_language_model_requests_each_of_its_streams_once(monkeypatch, permutations):
    """Two epochs of an update with two passes; validations draw nothing."""
    language_models = pytest.importorskip("language_models", exc_type=ImportError)
    model = tfr.sequences.SequenceReinforce(
        language_models.gpt2(dtype="float32"),
        lambda completion_ids: [float(sum(ids)) for ids in completion_ids],
        stop_token_ids=[1],
        max_completion_length=2,
        group_size=8,
        passes=2,
        kl_coef=0.0,
        seed=4,
    )
    model.compile("sgd", run_eagerly=True)
    model.updates.assign(5)
    prompts, options = [[2], [2, 0], [2, 2]], dict(batch_size=3, epochs=2, verbose=0)

    def run():
        model.fit(prompts, validation_data=prompts, **options)

    asked = requested_streams(monkeypatch, run)
    expected = [("training/prompts", epoch) for epoch in range(2)]
    names = "training/tensors", "training/minibatches"
    expected += [(name, update) for name in names for update in (5, 6)]
    assert sorted(asked) == sorted((4, *x) for x in expected)
    expect_distinct(permutations, 2 * 2)


class TrainStep:
    """The attributes of a training step that `program` reads, with two passes."""

    num_permutations = 2

    class estimator:
        learned_lengths = staticmethod(lambda episodes: episodes.lengths)


def test_compiled_engine_draws_a_new_permutation_for_every_pass():
    """The permutations of 24 steps differ between passes, updates and seeds."""
    episodes = tfr.Episodes(None, None, None, tf.constant([9, 15]), tf.ones(2, tf.bool))
    permutations = [
        program.permutations_in_graph(
            seeding.rollout_keys(seed, "training", u)[3], TrainStep, episodes
        )
        for seed, u in itertools.product(range(3), range(4))
    ]
    rows = np.concatenate(permutations)
    assert rows.shape == (3 * 4 * 2, 24)
    np.testing.assert_array_equal(np.sort(rows, axis=1), [range(24)] * len(rows))
    assert len({tuple(row) for row in rows.tolist()}) == len(rows)


class Numbers(callbacks.EpisodeCallback):
    """Records the number of every episode and of its update."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def on_episode_end(self, episode, logs):
        self.seen.append((episode, logs["update"]))


@pytest.mark.parametrize("updates", [sweeps.rare(1), 3])
def test_episode_numbers_continue_over_updates_and_calls_of_fit(updates):
    agent, world = tfr.Reinforce.for_env(envs.Bandit(), hidden=(2,)), envs.Bandit()
    agent.compile("sgd", steps_per_execution=updates)
    numbers = Numbers()
    for _ in range(2):
        budget = dict(epochs=4, episodes_per_epoch=2, verbose=0)
        agent.fit(world, callbacks=[numbers], **budget)
    assert numbers.seen == [(e, e // 2) for e in range(16)]
