"""Tests the measurement of environments, and the recommendation."""

import gymnasium as gym
import pytest
import toys

from tf_reinforce import cli
from tf_reinforce import envs
from tf_reinforce.experiments import bench_env


def combination(num_envs, workers, rate):
    return bench_env.Combination(num_envs, workers, rate, 0.5, None)


def benchmark(*combinations, costs=None):
    return bench_env.EnvBenchmark("Toy", 2, costs, 3.0, None, combinations, None)


def test_smallest_combination_near_the_best_rate_is_recommended():
    slow, fast = combination(1, 1, 90.0), combination(8, 1, 96.0)
    workers = combination(16, 2, 100.0)
    assert benchmark(slow, workers, fast).recommended == fast
    assert benchmark(slow, workers).recommended == workers
    assert benchmark().recommended is None


@pytest.mark.parametrize(
    ("waiting_share", "expected"), [(0.1, [2, 3]), (0.9, [2, 4, 8, 16])]
)
def test_environment_that_waits_gets_more_workers_than_cores(
    waiting_share, expected, monkeypatch
):
    monkeypatch.setattr(bench_env.slow_env, "num_cores", lambda: 3)
    costs = bench_env.StepCosts(1e-2, 1e-2, waiting_share)
    pairs = bench_env._combinations(costs, 16, None)
    assert [workers for _, workers in pairs if workers > 1] == expected
    assert all(num_envs >= workers for num_envs, workers in pairs)
    assert "mostly wait" in str(benchmark(costs=costs)) or waiting_share < 0.5


@pytest.mark.slow
def test_host_environment_is_measured_with_one_process_and_with_workers():
    result = bench_env.bench_env(toys.Bandit, seconds=0.01, episodes=2, workers=[2])
    assert [x[:2] for x in result.combinations] == [(1, 1), (8, 1), (16, 1), (16, 2)]
    assert all(x.steps_per_second > 0 for x in result.combinations)
    assert result.costs.step_seconds > 0 and result.mean_length == 1.0
    assert result.combinations[0].worker_bytes is None
    assert "recommended: num_envs=" in str(result)


@pytest.mark.slow
def test_compiled_engine_of_a_tensor_environment_is_measured():
    result = bench_env.bench_env(envs.Bandit(), seconds=0.01, episodes=2)
    assert result.combinations == () and result.recommended is None
    assert "do not apply" in str(result)


@pytest.mark.slow
def test_compiled_engine_is_measured_with_action_masks():
    options = dict(seconds=0.01, episodes=2, workers=[1], max_episode_steps=9)
    mask = "info/action_mask"
    result = bench_env.bench_env("Taxi-v4", action_mask=mask, **options)
    assert result.compiled_steps_per_second > 0


def test_environment_instance_is_refused():
    with pytest.raises(TypeError, match="several environments can be made"):
        bench_env.bench_env(gym.make("CartPole-v1"))


class Broken(toys.Bandit):
    def step(self, action):
        raise KeyError("broken")


def test_error_of_the_environment_is_explained(monkeypatch, capsys):
    monkeypatch.setitem(
        gym.registry,
        "Broken-v0",
        gym.envs.registration.EnvSpec("Broken-v0", entry_point=Broken),
    )
    assert cli.main(["bench-env", "Broken-v0", "--seconds", "0.01"]) == 1
    assert "The environment raised KeyError: 'broken'" in capsys.readouterr().err
