"""Tests the settings that `baseline="value"` chooses by the environment."""

import gymnasium as gym
import numpy as np
import pytest

import tf_reinforce as tfr
from tf_reinforce import presets
from tf_reinforce.settings import default_settings


def box(limit):
    return gym.spaces.Box(-limit, limit, (1,))


@pytest.mark.parametrize(
    "space, limit, gamma, gae_lambda, max_kl, rate, head",
    [
        (gym.spaces.Discrete(2), 500, 0.99, 0.95, None, 1e-3, None),
        (gym.spaces.MultiDiscrete([2, 3]), 10_000, 0.995, 0.95, None, 1e-3, None),
        (box(2.0), 200, 0.975, 0.8, 0.05, 3e-4, "ClippedGaussian"),
        (box(np.inf), 200, 0.975, 0.8, 0.05, 3e-4, None),
    ],
    ids=["Discrete", "MultiDiscrete", "Box", "unbounded"],
)
def test_settings_depend_on_time_limit_and_action_space(
    space, limit, gamma, gae_lambda, max_kl, rate, head
):
    """A tensor environment runs a fixed number of episodes."""
    agent, fit = default_settings.for_task(space, limit)
    assert agent.get("head") == head and agent["gamma"] == pytest.approx(gamma)
    assert agent["learning_rate"] == {"first": rate, "last": 0}
    assert agent["gae_lambda"] == gae_lambda and agent.get("max_kl") == max_kl
    assert fit == {"steps_per_epoch": 2048, "num_envs": 4}
    assert default_settings.for_task(space, limit, in_graph=True) == (agent, {})


@pytest.mark.parametrize("steps", [1, 20, 50, 99, 101, 400, 999, 1000, 10**9])
def test_horizon_of_the_discount_is_a_fifth_of_the_time_limit(steps):
    horizon = 1 / (1 - default_settings.gamma(steps))
    assert horizon == pytest.approx(np.clip(steps / 5, 20, 200))


SIMILAR = {
    "HalfCheetah-v5": 0.9,
    "Hopper-v5": 0.9,
    "Walker2d-v5": 0.95,
    "Reacher-v5": 0.95,
}


@pytest.mark.parametrize("name", ["Ant-v5", "Humanoid-v5", *SIMILAR])
def test_preset_differs_from_the_default_settings_as_documented(name):
    pytest.importorskip("mujoco")
    env = gym.make(name)
    limit = env.spec.max_episode_steps
    preset, (agent, fit) = (
        presets.read(name),
        default_settings.for_task(env.action_space, limit),
    )
    agent["ratio_clip"] = [0.2, 0.2]
    if name in SIMILAR:
        assert agent.pop("max_kl") == 0.05
        agent["gae_lambda"] = SIMILAR[name]
    assert preset["agent"] == agent
    assert preset["fit"] == {**fit, "steps": 1_000_000}


def test_baseline_value_chooses_all_settings():
    """A saved agent keeps the defaults of `fit`."""
    agent = tfr.Reinforce.for_env("Pendulum-v1", baseline="value", gamma=0.9)
    copy = tfr.Reinforce.from_config(agent.get_config())
    defaults = {"steps_per_epoch": 2048, "num_envs": 4, "env_kwargs": {}}
    assert copy._fit_defaults == agent._fit_defaults == defaults
    assert agent.gamma == 0.9 and agent.gae_lambda == 0.8 and agent.passes == 10
    assert agent.max_kl == 0.05
    assert type(agent.head).__name__ == "ClippedGaussian"
    assert agent.ratio_clip == (0.2, 0.2) and agent.minibatch_size == 64
    assert agent.baseline.passes == 10 and agent.baseline.minibatch_size == 64
    assert float(agent.optimizer.learning_rate) == pytest.approx(3e-4)
    assert float(agent.baseline.optimizer.learning_rate) == pytest.approx(1e-3)


@pytest.mark.parametrize(
    "options, value",
    [
        ({}, None),
        ({"baseline": {"kind": "value"}}, (1e-2, 1, None, 64)),
        ({"baseline": {"kind": "value", "hidden": [8]}}, (1e-2, 1, None, 8)),
        ({"baseline": "value", "preset": "CartPole-v1"}, (1e-3, 10, 64, 64)),
    ],
)
def test_other_baselines_and_presets_keep_their_own_settings(options, value):
    """A value network has a learning rate, passes, a size of minibatches, and units."""
    agent = tfr.Reinforce.for_env("CartPole-v1", **options)
    assert agent.passes == 1 and agent.gae_lambda == 1 and agent.ratio_clip == 2
    assert agent.minibatch_size is None and not agent.scale_rewards
    if value is not None:
        rate, *expected = value
        baseline = agent.baseline
        units = baseline.model.weights[0].shape[1]
        assert [baseline.passes, baseline.minibatch_size, units] == expected
        assert float(baseline.optimizer.learning_rate) == pytest.approx(rate)


@pytest.mark.parametrize("kind", ["id", "vector", "tensor"])
def test_time_limit_is_that_of_the_environment(kind):
    """A `VectorEnv` states its limit in its spec; without a limit, γ is the largest.

    Whole returns have no λ.
    """
    env = {
        "id": "Pendulum-v1",
        "vector": gym.make_vec("Pendulum-v1", 2, vectorization_mode="sync"),
        "tensor": tfr.envs.CliffWalking(),
    }[kind]
    options = dict(baseline="value", hidden=(4,), returns="whole")
    agent = tfr.Reinforce.for_env(env, **options)
    assert agent.gamma == (0.995 if kind == "tensor" else 0.975)
    assert agent.gae_lambda == 1 and agent.returns == "whole"
    if kind == "vector":
        env.close()
