"""Tests that `check_env` finds the faults of environments, and finds no others."""

import re
import types

import gymnasium as gym
import numpy as np
import pytest
import toys

import tf_reinforce as tfr
from tf_reinforce.testing import environments


def texts(env, severity, **options):
    report = tfr.check_env(env, **options)
    return [finding.text for finding in report.findings if finding.severity == severity]


@pytest.mark.parametrize("env", ["CartPole-v1", toys.Lengths, tfr.envs.CartPole])
def test_environment_without_fault_has_no_errors_and_no_warnings(env):
    report = tfr.check_env(env)
    assert {finding.severity for finding in report.findings} == {"note"}
    assert "gets the head Categorical" in str(report)
    assert str(report).endswith(f"errors: 0, warnings: 0, notes: {len(report.findings)}")


def test_environment_object_is_not_closed():
    env = toys.Lengths()
    env.close = lambda: pytest.fail("closed")
    assert tfr.check_env(env).errors == ()


def refusing(*_):
    raise RuntimeError("no licence")


ERRORS = [
    (refusing, "The environment cannot be used. RuntimeError: no licence"),
    ("Missing-v0", "cannot be used. NameNotFound"),
    (3, "cannot be used. TypeError: `env` must be an environment id"),
    (
        lambda: toys.Misbehaving(2, lambda o, r, *rest: (o, None, *rest)),
        "Environment 0, episode 0, step 1: the reward is a NoneType",
    ),
    (
        lambda: toys.Observing(gym.spaces.Text(3)),
        r"cannot be used. ValueError: Observation space Text\(.* is not supported",
    ),
    (
        gym.vector.SyncVectorEnv([lambda: toys.Misbehaving(1, refusing)]),
        "no licence",
    ),
]


class Random(toys.Clock):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, np.random.random(), *rest


class Endless(toys.Clock):
    def __init__(self):
        super().__init__(10**9)


class Worthless(toys.Clock):
    def step(self, action):
        observation, _, *rest = super().step(action)
        return observation, 0.0, *rest


WARNINGS = [
    (Random, "Two collections with equal seeds gave different episodes"),
    (Endless, "truncated after 10,000 steps"),
    (Worthless, "All rewards were zero"),
]


class Masked(toys.Clock):
    info = types.MappingProxyType({"action_mask": np.array([1, 0], np.int8)})

    def step(self, action):
        assert action == 0  # the only legal action
        return *super().step(action)[:-1], dict(self.info)

    def reset(self, **kwargs):
        return super().reset(**kwargs)[0], dict(self.info)


class Large(toys.Clock):
    def _observation(self):
        return super()._observation() * 1000


NOTES = [(Large, "largest absolute value of 'observation' was 3000")]


def test_named_mask_is_used():
    assert tfr.check_env(Masked, action_mask="info/action_mask").errors == ()


FINDINGS = dict(error=ERRORS, warning=WARNINGS, note=NOTES)
CASES = [(severity, *case) for severity, cases in FINDINGS.items() for case in cases]


@pytest.mark.parametrize("severity, env, message", CASES, ids=[x[2] for x in CASES])
def test_finding_explains_what_to_correct(severity, env, message):
    found = texts(env, severity, episodes=2)
    assert any(re.search(message, text, re.DOTALL) for text in found), found
    assert severity == "note" or len(found) == 1


@pytest.mark.parametrize(
    "seconds, advice", [(9e-5, "num_envs=8 and workers=1."), (2e-4, "The steps can use")]
)
def test_advice_follows_from_the_time_of_a_step(seconds, advice, monkeypatch):
    """Each reading of the clock is `seconds` after the one before."""
    clock = iter(range(10**6))
    fake = types.SimpleNamespace(perf_counter=lambda: seconds * next(clock))
    monkeypatch.setattr(environments, "time", fake)
    notes = texts(toys.Clock, "note", episodes=1)
    assert notes[-2].endswith(f"takes {seconds * 1e6:.1f} µs.") and advice in notes[-1]
    assert texts(toys.Clock(), "note", episodes=1)[-1] == notes[-2]  # an object
