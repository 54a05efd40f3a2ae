"""Tests that acting and training of a recurrent policy use the same recurrent states."""

import itertools

import gymnasium as gym
import keras
import numpy as np
import pytest
import sweeps
import tensorflow as tf
import toy_envs
import toys
from recurrent_agents import policy
from recurrent_agents import ready

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.data import episodes as records


def assert_same_records(one, other):
    for a, b in zip(tuple(one)[:5], tuple(other)[:5], strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("layer", [sweeps.rare(keras.layers.LSTM), keras.layers.GRU])
def test_recurrent_acting_by_steps_equals_the_policy_on_whole_episodes(layer):
    """Each action is the argmax of the policy evaluated on the whole episode."""
    agent = ready(policy(layer), normalize_observations=True)
    agent.normalizer.update(np.random.default_rng(0).uniform(0, 12, (50, 2)))
    with tfr.collect.open_envs(toys.Lengths, 3) as envs:
        request = toys.request(episodes=30, stream="evaluation", deterministic=True)
        played = agent.trainer.play(envs, request)
    assert agent.trainer.programs["acting", True].runtime == "litert"
    episodes = played.episodes
    likely = np.argmax(agent(episodes.observations.swapaxes(0, 1)), -1)
    for b, length in enumerate(episodes.lengths):
        np.testing.assert_array_equal(episodes.actions[:length, b], likely[b, :length])
    assert len(set(episodes.lengths)) > 5


def test_recurrent_collection_does_not_depend_on_the_number_of_envs():
    """Each environment slot has its own state, which is reset when an episode begins."""
    agent = ready()
    one = agent.collect(toys.Lengths, 30, num_envs=1)
    for num_envs in (2, 7, 40):
        assert_same_records(one, agent.collect(toys.Lengths, 30, num_envs=num_envs))


def test_recurrent_states_are_reset_in_a_vector_env():
    """A `Clock` is deterministic, so that actions depend only on noise and state."""
    agent = ready(policy(inputs=1, outputs=2), toys.Clock)
    one = agent.collect(toys.Clock, 60, num_envs=1)
    for mode in gym.vector.AutoresetMode:
        env = gym.vector.SyncVectorEnv([toys.Clock] * 3, autoreset_mode=mode)
        assert_same_records(one, agent.collect(env, 60))


# The whole of a small task that requires memory: the reward of the second action depends
# on the first observation. The expected update is a sum over all batches.

FIRST, SECOND, ENDS = (0.3, 0.7), (0.6, 0.4), (0.2, 0.5)  # by observation; by action
EARNED = np.array([[[1.0, -2.0], [0.5, 3.0]], [[-1.0, 4.0], [2.0, -0.5]]])
FREE, RULED = np.ones((2, 2)), np.array([[1.0, 1.0], [0.0, 1.0]])  # by observation


def trajectories(legal):
    """Yields `(probability of the transitions, [(observation, action, reward), …])`."""
    for first, act in np.argwhere(legal):
        begun = first, act, first + 2.0 * act
        yield FIRST[first] * ENDS[act], [begun]
        for second, last in np.argwhere(legal):
            chance = FIRST[first] * (1 - ENDS[act]) * SECOND[second]
            yield chance, [begun, (second, last, EARNED[first, second, last])]


def column(paths, legal):
    """Returns the record of some trajectories, with NaN in the padding."""
    observations = np.full((3, len(paths), 2), np.nan)
    rewards = np.full((2, len(paths)), np.nan)
    actions = np.zeros((2, len(paths)), "int64")
    masks = np.zeros((2, len(paths), 2), "int8")
    for b, path in enumerate(paths):
        for t, (seen, act, earned) in enumerate(path):
            observations[t, b], masks[t, b] = np.eye(2)[seen], legal[seen]
            actions[t, b], rewards[t, b] = act, earned
        observations[len(path), b] = 5.0
    lengths = np.array([len(path) for path in paths])
    ended = np.ones(len(paths), bool)
    return records.Episodes(observations, actions, rewards, lengths, ended, masks)


def flat(arrays):
    return np.concatenate([np.ravel(array) for array in arrays])


def gru_step(weights, legal):
    """Returns a function that makes one GRU step and returns legal probabilities."""
    kernel, recurrent, bias, last, offset = weights

    def step(seen, state):
        ours, theirs = kernel[seen] + bias[0], tf.linalg.matvec(recurrent, state, True)
        (z, r, h), (u, s, g) = (tf.split(x, 3) for x in (ours, theirs + bias[1]))
        z, r = tf.sigmoid(z + u), tf.sigmoid(r + s)
        state = z * state + (1 - z) * tf.tanh(h + r * g)
        powers = tf.exp(tf.linalg.matvec(last, state, True) + offset) * legal[seen]
        return powers / tf.reduce_sum(powers), state

    return step


def objective(weights, legal, gamma):
    """Returns the expected return J as a sum over all trajectories."""
    step, total = gru_step(weights, legal), 0.0
    for first in range(2):
        chances, state = step(first, tf.zeros([5], tf.float64))
        later = sum(
            SECOND[second] * tf.reduce_sum(step(second, state)[0] * EARNED[first, second])
            for second in range(2)
        )
        earned = first + 2.0 * np.arange(2) + gamma * (1 - np.array(ENDS)) * later
        total += FIRST[first] * tf.reduce_sum(chances * earned)
    return total


@pytest.mark.parametrize(
    "baseline, size, legal",
    [sweeps.rare(None, 1, FREE), ("leave_one_out", 2, RULED)],
    ids=["alone", "masked_pairs"],
)
def test_expected_recurrent_update_is_the_gradient(baseline, size, legal):
    """The test enumerates all batches to show E[Δw] = ∇J for every weight.

    The order of the episodes of a batch has no influence.
    """
    agent = tfr.Reinforce(
        policy(outputs=2, dtype="float64"),
        tfr.heads.Categorical(2),
        baseline,
        gamma=0.9,
        discount_states=True,
        action_mask="info/action_mask",
    )
    agent.compile(keras.optimizers.SGD(1.0))
    agent.build((None, None, 2))
    rng = np.random.default_rng(0)
    before = [rng.normal(size=w.shape) for w in agent.policy.weights]
    weights = [tf.constant(w) for w in before]
    with tf.GradientTape() as tape:
        tape.watch(weights)
        value = objective(weights, legal, 0.9)
    step, expected, total = gru_step(weights, legal), 0.0, 0.0
    chances, paths = zip(*trajectories(legal))
    chances = list(chances)
    for i, path in enumerate(paths):
        state = tf.zeros([5], tf.float64)
        for seen, act, _ in path:
            probs, state = step(seen, state)
            chances[i] *= float(probs[act])
    for batch in itertools.combinations_with_replacement(range(len(paths)), size):
        agent.policy.set_weights(before)
        agent.update(column([paths[i] for i in batch], legal))
        chance = len(set(batch)) * np.prod([chances[i] for i in batch])
        total += chance
        expected += chance * (flat(agent.policy.get_weights()) - flat(before))
    exact = flat(tape.gradient(value, weights))
    assert total == pytest.approx(1, abs=1e-12) and np.abs(exact).max() > 0.01
    np.testing.assert_allclose(expected, exact, rtol=0, atol=1e-12)


# act, files and exports


def test_act_of_recurrent_agent_export_and_loaded_agent_agree(tmp_path):
    agent = ready(policy(keras.layers.LSTM))
    agent.save(tmp_path / "agent.keras")
    loaded = tfr.load(tmp_path / "agent.keras")
    agent.export(tmp_path / "policy")
    exported = tf.saved_model.load(tmp_path / "policy")
    rng = np.random.default_rng(0)
    column = rng.normal(size=(9, 4, 2)).astype("float32")
    state, theirs = None, exported.initial_state(tf.constant(4))
    whole = np.argmax(agent(column.swapaxes(0, 1)), -1) + 5
    for t, row in enumerate(column):
        actions, state = loaded.act(row, deterministic=True, state=state)
        answer = exported.act(tf.constant(row), theirs)
        theirs = {name: answer[name] for name in theirs}
        np.testing.assert_array_equal(actions, whole[:, t])
        np.testing.assert_array_equal(answer["action"], whole[:, t])
    drawn, _ = agent.act(column[0], seed=4)
    begin, seed = exported.initial_state(tf.constant(4)), tf.constant(4, tf.int64)
    answer = exported.sample(tf.constant(column[0]), seed, begin)
    np.testing.assert_array_equal(drawn, answer["action"])


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("batch, steps", [(4, 9), sweeps.rare(9, 4), sweeps.rare(2, 1)])
def test_time_distributed_layer_works_with_unknown_number_of_steps(batch, steps, nested):
    """The output of Keras' TimeDistributed is wrong if the number of steps is unknown."""
    by_step = keras.layers.TimeDistributed(keras.layers.Dense(3, "tanh"))
    inputs = keras.Input((None, 1))
    parts = [
        keras.Model(inputs, by_step(inputs)) if nested else by_step,
        keras.layers.LSTM(4, return_sequences=True),
        keras.layers.Dense(2),
    ]
    policy = keras.Sequential([keras.Input((None, 1)), *parts])
    agent = tfr.Reinforce(policy, heads.Categorical(2))
    agent.build((None, 1))
    x = np.random.default_rng(0).normal(size=(batch, steps, 1)).astype("float32")
    shape = tf.TensorSpec((None, None, 1))
    traced = tf.function(lambda x: agent(x), input_signature=[shape])(tf.constant(x))
    np.testing.assert_allclose(traced, policy(x), rtol=1e-5, atol=1e-6)


def test_update_with_time_distributed_layer_equals_that_without():
    """An update is traced for an unknown number of steps."""
    rng, agents = np.random.default_rng(0), []
    record = tfr.Episodes(
        rng.normal(size=(6, 3, 2)).astype("float32"),
        rng.integers(0, 2, (5, 3)),
        rng.normal(size=(5, 3)),
        np.array([5, 2, 4]),
        np.ones(3, bool),
    )
    for wrap in (keras.layers.TimeDistributed, lambda layer: layer):
        keras.utils.set_random_seed(0)
        gru = keras.layers.GRU(3, return_sequences=True)
        layers = [wrap(keras.layers.Dense(4, "tanh")), gru]
        policy = [keras.Input((None, 2)), *layers, keras.layers.Dense(2)]
        agents.append(tfr.Reinforce(keras.Sequential(policy), tfr.heads.Categorical(2)))
        agents[-1].compile(keras.optimizers.SGD(1.0))
        agents[-1].update(record)
    for x, y in zip(*(agent.policy.get_weights() for agent in agents), strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6)


def test_fit_raises_if_the_critic_is_bidirectional():
    layers = [keras.layers.Bidirectional(keras.layers.LSTM(4, return_sequences=True))]
    critic = keras.Sequential([keras.Input((None, 1)), *layers, keras.layers.Dense(1)])
    agent = tfr.Reinforce.for_env(toys.Clock, hidden=(3,))
    agent = tfr.Reinforce(agent.policy, baseline=tfr.baselines.Value(critic))
    agent.compile()
    with pytest.raises(ValueError, match="is Bidirectional"):
        agent.fit(toys.Clock, epochs=1, verbose=0)


def test_collected_episodes_begin_with_the_learned_initial_state():
    agent = tfr.Reinforce(toys.with_learned_start(2, 1))
    agent.compile()
    agent.build_for_env(toy_envs.Recall())
    with tfr.collect.open_envs(toy_envs.Recall, 2) as envs:
        request = toys.request(6, stream="evaluation", deterministic=True)
        episodes = agent.trainer.play(envs, request).episodes
    for b, length in enumerate(episodes.lengths):
        expected = agent.policy(episodes.observations[None, :length, b])[0]
        np.testing.assert_allclose(episodes.actions[:length, b], expected, atol=1e-5)


def test_act_uses_the_current_learned_initial_state():
    agent = tfr.Reinforce(toys.with_learned_start(3, 1))
    agent.compile(keras.optimizers.SGD(0.1))
    agent.build_for_env(gym.make("Pendulum-v1"))
    start, seen = agent.policy.layers[0].cell.start, np.ones((2, 3), "float32")
    before, _ = agent.act(seen, deterministic=True)
    start.assign(-start)
    assert not np.array_equal(before, agent.act(seen, deterministic=True)[0])
