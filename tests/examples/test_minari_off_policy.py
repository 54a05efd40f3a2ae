"""Tests the off-policy estimates against their definitions, and a Minari dataset."""

import numpy as np
import pytest
import toys

import tf_reinforce as tfr

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def example(tmp_path_factory):
    pytest.importorskip("minari")
    patch = pytest.MonkeyPatch()
    patch.setenv("MINARI_DATASETS_PATH", str(tmp_path_factory.mktemp("datasets")))
    yield toys.example("minari_off_policy")
    patch.undo()


def batch(seed=0):
    """Returns a record of four episodes, and log-ratios that are zero in the padding."""
    rng, lengths = np.random.default_rng(seed), np.array([3, 1, 4, 2])
    valid = np.arange(4)[:, None] < lengths
    rewards = np.where(valid, rng.normal(size=(4, 4)), 0.0)
    record = tfr.Episodes(None, None, rewards, lengths, np.ones(4, bool))
    return record, np.where(valid, rng.normal(size=(4, 4)), 0.0)


def test_estimates_equal_their_definitions_as_loops(example):
    record, log_ratios = batch()
    per_decision, weighted = 0.0, 0.0
    for t in range(4):
        numerator = denominator = 0.0
        for i in range(4):
            ratio = np.prod([np.exp(log_ratios[k, i]) for k in range(t + 1)])
            per_decision += ratio * record.rewards[t, i] / 4
            numerator += ratio * record.rewards[t, i]
            denominator += ratio
        weighted += numerator / denominator
    found = example.off_policy_returns(record, log_ratios)
    np.testing.assert_allclose(found, (per_decision, weighted), rtol=1e-12)


def test_dataset_contains_the_collected_episodes(example):
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,))
    dataset = example.record(agent, "test/cartpole-v0", episodes=6)
    collected = agent.collect("CartPole-v1", 6, max_episode_steps=example.MAX_STEPS)
    stored = example.to_episodes(dataset)
    np.testing.assert_array_equal(stored.lengths, collected.lengths)
    np.testing.assert_array_equal(stored.terminated, collected.terminated)
    for index, length in enumerate(stored.lengths):
        rows = slice(length + 1), index
        np.testing.assert_array_equal(
            stored.observations[rows], collected.observations[rows]
        )
        steps = slice(length), index
        np.testing.assert_array_equal(stored.actions[steps], collected.actions[steps])


def test_off_policy_estimates_agree_with_new_episodes(example):
    """Within six standard errors, for a target policy that differs from the behavior."""
    agent = tfr.Reinforce.for_env("CartPole-v1", learning_rate=3e-3)
    agent.fit("CartPole-v1", epochs=2, verbose=0)
    episodes = example.to_episodes(example.record(agent, "test/behavior-v0", 400))
    behavior = example.log_probs(agent, episodes)
    agent.fit("CartPole-v1", epochs=2, verbose=0)
    log_ratios = example.log_probs(agent, episodes) - behavior
    found = example.off_policy_returns(episodes, log_ratios)
    options = dict(deterministic=False, max_episode_steps=example.MAX_STEPS)
    target = agent.evaluate("CartPole-v1", episodes=1000, **options)
    ratios = np.exp(np.cumsum(log_ratios, axis=0))
    errors = [
        (ratios * episodes.rewards).sum(axis=0).std() / np.sqrt(400),
        target["episode_return_std"] / np.sqrt(1000),
    ]
    behavior_return = episodes.rewards.sum(axis=0).mean()
    assert target["episode_return"] > behavior_return + 1
    for estimate in found:
        assert abs(estimate - target["episode_return"]) < 6 * np.hypot(*errors)
