"""Tests real EnvPools. `make slow` installs EnvPool, and runs these tests."""

import numpy as np
import pytest

import tf_reinforce as tfr

pytestmark = [
    pytest.mark.slow,
    # EnvPool makes spaces of float32 from bounds in float64.
    pytest.mark.filterwarnings("ignore:.*precision lowered by casting:UserWarning"),
]
LIMIT = 30  # steps


def make(name, num_envs=3, seed=5):
    import envpool

    return envpool.make(
        name,
        env_type="gymnasium",
        num_envs=num_envs,
        seed=seed,
        max_episode_steps=LIMIT,
    )


def record_actions(env, monkeypatch):
    """Returns a list to which every step of `env` appends its actions."""
    actions, step = [], env.step

    def recorded(batch):
        actions.append(np.array(batch))
        return step(batch)

    monkeypatch.setattr(env, "step", recorded)
    return actions


def play(env, actions):
    """Returns all episodes of `env` as dicts, in the order of their first steps."""
    episodes, running = [], {}

    def start(index, observation):
        running[index] = {"observations": [observation], "actions": [], "rewards": []}
        episodes.append(running[index])

    for index, observation in enumerate(env.reset()[0]):
        start(index, observation)
    ended = np.zeros(env.num_envs, bool)
    for batch in actions:
        observations, rewards, terminated, truncated, _ = env.step(batch)
        for index in range(env.num_envs):
            if ended[index]:  # this step has reset the environment
                start(index, observations[index])
                continue
            one = running[index]
            one["observations"].append(observations[index])
            one["actions"].append(batch[index])
            one["rewards"].append(rewards[index])
            one["terminated"] = terminated[index]
        ended = (terminated | truncated) & ~ended
    return episodes


@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v5", "HalfCheetah-v5"])
def test_episodes_equal_those_of_another_envpool_with_the_same_actions(name, monkeypatch):
    """The other EnvPool has the same seed, and is stepped in a loop."""
    env = make(name)
    actions = record_actions(env, monkeypatch)
    agent = tfr.Reinforce.for_env(env, hidden=(8,))
    collected = agent.collect(env, 8)
    expected = play(make(name), actions)
    bounds = None if name == "CartPole-v1" else (-1, 1)
    for i, one in enumerate(expected[:8]):
        length = len(one["rewards"])
        assert collected.lengths[i] == length <= LIMIT
        assert collected.terminated[i] == one["terminated"]
        np.testing.assert_array_equal(collected.rewards[:length, i], one["rewards"])
        np.testing.assert_array_equal(
            collected.observations[: length + 1, i],
            np.array(one["observations"], collected.observations.dtype),
        )
        sampled = collected.actions[:length, i]
        sampled = sampled if bounds is None else np.clip(sampled, *bounds)
        np.testing.assert_array_equal(sampled, one["actions"])


def test_trainings_on_equal_envpools_give_equal_weights():
    agents = []
    for _ in range(2):
        agent = tfr.Reinforce.for_env(make("Hopper-v5"), hidden=(8,), seed=0)
        agent.fit(make("Hopper-v5"), epochs=3, episodes_per_epoch=4, seed=1, verbose=0)
        agents.append(agent)
    for one, other in zip(*(agent.policy.get_weights() for agent in agents), strict=True):
        np.testing.assert_array_equal(one, other)


def test_evaluation_of_an_envpool_ends_at_its_time_limit():
    env = make("HalfCheetah-v5", num_envs=2)  # never terminates
    agent = tfr.Reinforce.for_env(env, hidden=(8,))
    assert agent.evaluate(env, episodes=6)["episode_length"] == LIMIT


def test_asynchronous_envpool_is_refused():
    import envpool

    env = envpool.make("CartPole-v1", env_type="gymnasium", num_envs=4, batch_size=2)
    with pytest.raises(ValueError, match="batch_size=2"):
        tfr.Reinforce.for_env(env)
