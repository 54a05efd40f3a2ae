"""Tests environments from tables against Gymnasium's tables, outcome by outcome."""

import gymnasium as gym
import numpy as np
import pytest
import tensorflow as tf

from tf_reinforce import envs

IDS = ("CliffWalking-v1", "FrozenLake-v1", "Taxi-v4")
FAIR = [[[(1.0, 0, 0.0, False)], [(0.25, 1, 2.0, False), (0.75, 0, -1.0, True)]]] * 2


def outcomes_at(env, state, action, noise):
    """Returns next state, reward and end for each number of the noise.

    State and action are numbers, or arrays with an entry for each number of the noise.
    """
    count = len(noise)
    states = {
        "cell": tf.constant(np.broadcast_to(state, count), tf.int64),
        "reward": tf.zeros([count], env.dtype),
        "terminal": tf.zeros([count], tf.bool),
    }
    actions = tf.constant(np.broadcast_to(action, count), tf.int64)
    noise = None if env.transition_noise is None else tf.constant(noise, env.dtype)
    after = env.transition(states, actions, noise)
    rewards = env.reward(states, actions, after).numpy()
    return list(zip(env.observation(after).numpy(), rewards, env.terminal(after).numpy()))


@pytest.mark.parametrize("id", IDS)
def test_every_outcome_of_every_action_is_that_of_gymnasium(id):
    """The noise lies in the middle of the interval of each outcome."""
    twin, table = envs.make(id, dtype="float64"), gym.make(id).unwrapped.P
    assert len(table) == twin.observation_space.n
    rows, expected = [], []  # (state, action, noise), (next state, reward, end)
    for state, actions in table.items():
        for action, outcomes in actions.items():
            probs = np.array([float(outcome[0]) for outcome in outcomes])
            for noise in np.cumsum(probs) - probs / 2:
                rows.append((state, action, noise))
            expected += [(int(s), float(r), bool(end)) for _, s, r, end in outcomes]
    states, actions, noise = map(np.array, zip(*rows, strict=True))
    assert outcomes_at(twin, states, actions, noise) == expected


@pytest.mark.parametrize("id", IDS)
def test_initial_states_have_the_probabilities_of_gymnasium(id):
    twin, probs = envs.make(id), gym.make(id).unwrapped.initial_state_distrib
    noise = (np.arange(30_000) + 0.5) / 30_000
    cells = twin.observation(twin.initial(tf.constant(noise, tf.float32))).numpy()
    shares = np.bincount(cells, minlength=len(probs)) / len(noise)
    np.testing.assert_allclose(shares, probs, rtol=0, atol=1e-3)
    assert not shares[np.asarray(probs) == 0].any()


def test_outcomes_are_drawn_with_their_probabilities():
    env = envs.Tabular(FAIR, [0.5, 0.5])
    noise = np.array([0.0, 0.2499, 0.2501, 0.999999])
    win, lose = (1, 2.0, False), (0, -1.0, True)
    assert outcomes_at(env, 0, 1, noise) == [win, win, lose, lose]
    assert outcomes_at(env, 0, 0, noise) == [(0, 0.0, False)] * 4


def test_outcome_of_probability_zero_is_never_drawn():
    """Also with the largest noise, and if probabilities add up to a little less."""
    outcomes = [(0.0, 2, 5.0, True), (1 - 5e-7, 1, 0.0, True), (0.0, 2, 5.0, True)]
    env = envs.Tabular([[outcomes]] * 3, [0.0, 1 - 5e-7, 0.0])
    largest = float(np.nextafter(np.float32(1), np.float32(0)))
    assert {x[0] for x in outcomes_at(env, 0, 0, np.array([0.0, 0.5, largest]))} == {1}
    noise = tf.constant([0.0, largest])
    assert env.observation(env.initial(noise)).numpy().tolist() == [1, 1]


def test_table_may_be_a_dict_and_uses_no_noise_if_outcomes_are_certain():
    env = envs.Tabular({0: {0: [(1.0, 0, 3.0, True)]}}, [1.0], max_episode_steps=4)
    assert env.transition_noise is None and env.max_episode_steps == 4
    assert outcomes_at(env, 0, 0, [0.5]) == [(0, 3.0, True)]


CERTAIN = (1.0, 0, 0.0, True)
OUTCOMES = "must be one or more outcomes .*Received"
REFUSED = [
    ([], [], OUTCOMES),
    ([[[CERTAIN]], []], [1.0, 0.0], OUTCOMES),
    ([[[]]], [1.0], OUTCOMES),
    ([[[(1.0, 1, 0.0, True)]]], [1.0], OUTCOMES),
    ([[[(1.0, 0.5, 0.0, True)]]], [1.0], OUTCOMES),
    ({1: {0: [CERTAIN]}}, [1.0], OUTCOMES),
    ([[[(1.0, 0, 0.0)]]], [1.0], OUTCOMES),
    ([[[(1.0, 0, np.nan, True)]]], [1.0], OUTCOMES),
    ([[[CERTAIN], []]], [1.0], "`transitions`.*sums of .0"),
    ([[[(0.5, 0, 0.0, True)]]], [1.0], "`transitions`.*sums of .0.5"),
    ([[[(1.5, 0, 0.0, True), (-0.5, 0, 0.0, True)]]], [1.0], "at least zero"),
    (FAIR, [1.0], r"shape .2,.*Received: shape .1,."),
    (FAIR, [0.7, 0.7], "`initial_probs`.*sums of .1.4"),
]


@pytest.mark.parametrize("transitions, probs, message", REFUSED)
def test_invalid_tables_and_probabilities_are_refused(transitions, probs, message):
    with pytest.raises(ValueError, match=message):
        envs.Tabular(transitions, probs)
