"""The policy written in NumPy by hand learns exactly what the agent learns."""

import ast
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
RATE = 2.0**-7  # the same number in float32, in which Keras keeps it


@pytest.fixture(scope="module")
def example():
    return toys.example("numpy_reinforce")


def batch(example, sizes):
    """Weights with biases that are not zero, and five episodes played with them."""
    rng = np.random.default_rng(5)
    weights = example.initial_weights(sizes, rng)
    weights = [w + 0.1 * rng.normal(size=w.shape) for w in weights]
    env = gym.make("CartPole-v1")
    env.reset(seed=7)
    return weights, [example.collect_episode(weights, env, rng) for _ in range(5)]


def record(played):
    """The example's lists as the agent's columns; NaN in the padding."""
    lengths = [len(episode["rewards"]) for episode in played]
    rows, count = max(lengths), len(played)
    observations = np.full((rows + 1, count, 4), np.nan, "float32")
    actions = np.zeros((rows, count), "int64")
    rewards = np.full((rows, count), np.nan)
    for e, (episode, length) in enumerate(zip(played, lengths)):
        observations[:length, e] = episode["observations"]
        observations[length, e] = 0.0  # after the last action: not looked at
        actions[:length, e] = episode["actions"]
        rewards[:length, e] = episode["rewards"]
    terminated = np.ones(count, bool)
    return tfr.Episodes(observations, actions, rewards, np.array(lengths), terminated)


def agent_with(weights, sizes, optimizer="sgd"):
    """The same network in Keras, in float64, with the agent's default baseline."""
    keras.config.set_dtype_policy("float64")
    layers = [keras.layers.Dense(size, "tanh") for size in sizes[1:-1]]
    last = keras.layers.Dense(sizes[-1])
    policy = keras.Sequential([keras.Input(sizes[:1], dtype="float64"), *layers, last])
    policy.set_weights(weights)
    agent = tfr.Reinforce(policy, head=tfr.heads.Categorical(2), gamma=GAMMA)
    agent.compile(optimizer=optimizer)
    return agent


@pytest.mark.parametrize("sizes", [[4, 2], [4, 8, 2], [4, 7, 5, 2]], ids=str)
def test_the_gradient_by_hand_is_that_of_the_agent(example, sizes):
    """The agent's is that of a loss: downhill there is uphill here."""
    weights, played = batch(example, sizes)
    theirs, _, _ = agent_with(weights, sizes).gradients(record(played))
    ours = example.gradients(weights, played, GAMMA)
    assert len(ours) == len(theirs) == len(weights)
    for ascent, descent in zip(ours, theirs):
        np.testing.assert_allclose(ascent, -descent.numpy(), rtol=1e-12, atol=1e-12)


def test_one_step_by_hand_is_that_of_the_agent(example):
    sizes = [4, 8, 2]
    weights, played = batch(example, sizes)
    agent = agent_with(weights, sizes, keras.optimizers.SGD(RATE))
    agent.update(record(played))
    found = example.gradients(weights, played, GAMMA)
    for w, g, theirs in zip(weights, found, agent.policy.get_weights()):
        np.testing.assert_allclose(w + RATE * g, theirs, rtol=1e-12, atol=1e-12)


def test_three_updates_by_hand_are_those_of_the_agent(example):
    """Adam included; Keras' rounds 0.999 to float32 whatever the type of the weights."""
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


def test_the_advantages_are_the_definition(example):
    """Two episodes of two steps and one: the second step has nobody beside it.

    t          0            1
    returns    1 + γ 2      2          episode 0
               5                       episode 1
    """
    played = [{"rewards": [1.0, 2.0]}, {"rewards": [5.0]}]
    found = example.advantages(played, 0.5)
    assert found.tolist() == [2.0 - 5.0, 2.0 - 0.0, 5.0 - 2.0]


def test_actions_are_played_as_often_as_their_probability_says(example):
    """A policy that looks at nothing: its biases are log-probabilities."""
    probs = np.array([0.1, 0.6, 0.3])
    weights = [np.zeros((1, 3)), np.log(probs)]
    played = example.collect_episode(
        weights, toys.Clock(20_000), np.random.default_rng(0)
    )
    frequencies = np.bincount(played["actions"], minlength=3) / 20_000
    np.testing.assert_allclose(frequencies, probs, atol=0.015)  # four deviations
    greedy = example.collect_episode(weights, toys.Clock(3))
    assert greedy["actions"] == [1, 1, 1] and greedy["rewards"] == [1.0, 2.0, 3.0]


def test_it_needs_numpy_and_gymnasium_only():
    imported = set()
    for node in ast.walk(ast.parse(PATH.read_text())):
        assert not isinstance(node, ast.ImportFrom)
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
    assert imported == {"argparse", "gymnasium", "numpy"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(5))
def test_it_solves_cart_pole(seed):
    """Gymnasium's threshold over a hundred fresh episodes."""
    command = [sys.executable, str(PATH), "--seed", str(seed)]
    ran = subprocess.run(command, capture_output=True, text=True, check=True)
    last = ran.stdout.splitlines()[-1]
    assert float(re.search(r"100 new episodes: return ([\d.]+)", last)[1]) >= 475
