"""Tests that the NumPy example computes the same updates as the agent."""

import pathlib
import re
import subprocess
import sys

import gymnasium as gym
import keras
import numpy as np
import pytest
import toys

import tf_reinforce as tfr

PATH = pathlib.Path(__file__).parents[2] / "examples" / "numpy_reinforce.py"
GAMMA = 0.9
RATE = 2.0**-7  # exact in float32, the type in which Keras stores the rate


@pytest.fixture(scope="module")
def example():
    return toys.example("numpy_reinforce")


def batch(example, sizes):
    """Returns weights with nonzero biases, and five episodes of their policy."""
    rng = np.random.default_rng(5)
    weights = example.initial_weights(sizes, rng)
    weights = [w + 0.1 * rng.normal(size=w.shape) for w in weights]
    env = gym.make("CartPole-v1")
    env.reset(seed=7)
    return weights, [example.collect_episode(weights, env, rng) for _ in range(5)]


def record(played):
    """Returns the lists of the example as a record, with NaN in the padding."""
    lengths = [len(episode["rewards"]) for episode in played]
    rows, count = max(lengths), len(played)
    observations = np.full((rows + 1, count, 4), np.nan, "float32")
    actions = np.zeros((rows, count), "int64")
    rewards = np.full((rows, count), np.nan)
    for e, (episode, length) in enumerate(zip(played, lengths)):
        observations[:length, e] = episode["observations"]
        observations[length, e] = 0.0  # the final observation has no influence
        actions[:length, e] = episode["actions"]
        rewards[:length, e] = episode["rewards"]
    terminated = np.ones(count, bool)
    return tfr.Episodes(observations, actions, rewards, np.array(lengths), terminated)


def agent_with(weights, sizes, optimizer="sgd"):
    """Returns an agent with the same network in float64 and the default baseline."""
    keras.config.set_dtype_policy("float64")
    layers = [keras.layers.Dense(size, "tanh") for size in sizes[1:-1]]
    last = keras.layers.Dense(sizes[-1])
    policy = keras.Sequential([keras.Input(sizes[:1], dtype="float64"), *layers, last])
    policy.set_weights(weights)
    agent = tfr.Reinforce(policy, head=tfr.heads.Categorical(2), gamma=GAMMA)
    agent.compile(optimizer=optimizer)
    return agent


@pytest.mark.parametrize("sizes", [[4, 2], [4, 8, 2], [4, 7, 5, 2]], ids=str)
def test_numpy_gradient_equals_that_of_the_agent(example, sizes):
    """The signs differ, because the agent minimizes a loss."""
    weights, played = batch(example, sizes)
    theirs, _, _ = agent_with(weights, sizes).gradients(record(played))
    ours = example.gradients(weights, played, GAMMA)
    assert len(ours) == len(theirs) == len(weights)
    for ascent, descent in zip(ours, theirs):
        np.testing.assert_allclose(ascent, -descent.numpy(), rtol=1e-12, atol=1e-12)


def test_three_numpy_adam_updates_equal_those_of_the_agent(example):
    """Keras rounds 0.999 to float32 for every type of the weights."""
    sizes = [4, 8, 2]
    weights, played = batch(example, sizes)
    before = [w.copy() for w in weights]
    agent = agent_with(weights, sizes, keras.optimizers.Adam(RATE))
    adam = example.Adam(weights, RATE)
    for _ in range(3):
        agent.update(record(played))
        adam.apply(example.gradients(weights, played, GAMMA), weights)
    for old, new, theirs in zip(before, weights, agent.policy.get_weights()):
        assert np.max(np.abs(new - old)) > RATE
        np.testing.assert_allclose(new, theirs, rtol=0, atol=1e-6)


def test_numpy_advantages_equal_their_definition(example):
    """The second step of episode 0 has no other episode at the same time.

    t          0            1
    returns    1 + γ 2      2          episode 0
               5                       episode 1
    """
    played = [{"rewards": [1.0, 2.0]}, {"rewards": [5.0]}]
    found = example.advantages(played, 0.5)
    assert found.tolist() == [2.0 - 5.0, 2.0 - 0.0, 5.0 - 2.0]


def test_action_frequencies_equal_the_probabilities(example):
    """The policy ignores its observation: its biases are log-probabilities."""
    probs = np.array([0.1, 0.6, 0.3])
    weights = [np.zeros((1, 3)), np.log(probs)]
    played = example.collect_episode(
        weights, toys.Clock(20_000), np.random.default_rng(0)
    )
    frequencies = np.bincount(played["actions"], minlength=3) / 20_000
    np.testing.assert_allclose(frequencies, probs, atol=0.015)  # four deviations
    greedy = example.collect_episode(weights, toys.Clock(3))
    assert greedy["actions"] == [1, 1, 1] and greedy["rewards"] == [1.0, 2.0, 3.0]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_numpy_example_solves_cartpole(seed):
    """The return over a hundred new episodes reaches the threshold of Gymnasium."""
    command = [sys.executable, str(PATH), "--seed", str(seed)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    last = ran.stdout.splitlines()[-1]
    assert float(re.search(r"100 new episodes: return ([\d.]+)", last)[1]) >= 475
