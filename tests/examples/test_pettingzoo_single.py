"""Tests the single-agent view of a PettingZoo game."""

import numpy as np
import pytest
import toys

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def example():
    pytest.importorskip("pettingzoo")
    return toys.example("pettingzoo_single")


def play(env, seed, choose):
    """Returns the return of one episode."""
    observation, _ = env.reset(seed=seed)
    total, ended = 0.0, False
    while not ended:
        legal = np.flatnonzero(observation["action_mask"])
        observation, reward, ended, truncated, _ = env.step(choose(legal))
        total += reward
        assert env.observation_space.contains(observation) and not truncated
    return total


def test_player_wins_loses_and_draws_against_a_random_opponent(example):
    """The player who begins wins with probability 0.585; the mean is zero by symmetry."""
    env, rng = example.SinglePlayer(), np.random.default_rng(0)
    returns = np.array([play(env, seed, rng.choice) for seed in range(400)])
    assert set(returns) == {-1.0, 0.0, 1.0}
    assert abs(returns.mean()) < 6 * returns.std() / 20


def test_equal_seeds_give_equal_games(example):
    first = [play(example.SinglePlayer(), seed, min) for seed in range(20)]
    again = [play(example.SinglePlayer(), seed, min) for seed in range(20)]
    assert first == again and len(set(first)) > 1


def test_agent_learns_to_beat_the_random_opponent(example):
    _, result = example.train(example.SinglePlayer, epochs=300)
    assert result["episode_return"] > 0.6
