"""Tests the line that `fit` logs if an environment is slow and cores are idle."""

import os

import gymnasium as gym
import pytest

import tf_reinforce as tfr
from tf_reinforce.callbacks import slow_env


def logged_lines(monkeypatch, caplog, stepping_seconds, updates=8):
    """Returns the lines after updates whose other work takes one second each."""
    clock = iter(range(1000))
    monkeypatch.setattr("time.perf_counter", lambda: next(clock))
    monkeypatch.setattr(slow_env, "num_cores", lambda: 4)
    line = slow_env.SlowEnvLine(workers=1)
    line.on_train_begin()
    caplog.clear()
    for _ in range(updates):
        seconds = {"stepping_seconds": stepping_seconds, "acting_seconds": 0.0}
        line.on_episodes_collected(None, seconds)
        line.on_train_batch_end(0)
    return [record.getMessage() for record in caplog.records]


def test_slow_environment_is_logged_once(monkeypatch, caplog):
    """An update takes nine seconds in the environment, and one second of other work."""
    (line,) = logged_lines(monkeypatch, caplog, 9.0)
    assert "takes 90 % of the time, and 1 of 4 cores" in line
    assert "pass workers=4, see `tf-reinforce check-env`" in line


def test_fast_environment_and_first_update_are_not_logged(monkeypatch, caplog):
    assert logged_lines(monkeypatch, caplog, 4.0) == []  # exactly 80 %
    assert logged_lines(monkeypatch, caplog, 9.0, updates=1) == []


def test_line_appears_only_if_more_workers_are_possible(monkeypatch):
    """The process may use four of the 64 cores of the machine."""
    cores = {0, 1, 2, 5}
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: cores, raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: 64)
    assert slow_env.has_idle_workers("CartPole-v1", 3)
    assert not slow_env.has_idle_workers("CartPole-v1", 4)
    assert slow_env.has_idle_workers(lambda: None, 1)
    assert slow_env.has_idle_workers(gym.spec("CartPole-v1"), 1)
    assert not slow_env.has_idle_workers(gym.make("CartPole-v1"), 1)


@pytest.mark.parametrize("workers", [1, 2])
def test_fit_logs_the_line_for_an_environment_id(workers, monkeypatch, caplog):
    monkeypatch.setattr(slow_env, "num_cores", lambda: 2)
    monkeypatch.setattr(slow_env, "SHARE", 0.0)
    monkeypatch.setattr(slow_env, "MIN_SECONDS", 0.0)
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=())
    agent.compile(optimizer="adam")
    agent.fit("CartPole-v1", epochs=2, episodes_per_epoch=2, workers=workers, verbose=0)
    lines = [x for x in caplog.records if "takes" in x.getMessage()]
    assert len(lines) == (workers == 1)
