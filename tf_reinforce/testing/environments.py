"""Checks an environment by running episodes, and explains what to correct."""

import contextlib
import math
import os
import time
import warnings
from typing import Any, NamedTuple

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce import agent as agents
from tf_reinforce import envs as tensor_envs
from tf_reinforce.data import spaces
from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.engine.collect import host_loop
from tf_reinforce.engine.collect import make_envs
from tf_reinforce.settings import default_settings
from tf_reinforce.support import validation

_LARGE = 10.0  # larger observations should be normalized
_SHORT_STEP = 1e-4  # seconds, below which workers hardly pay


class Finding(NamedTuple):
    """One result of `check_env`."""

    severity: str  # "error": training stops; "warning": training suffers; or "note"
    text: str


class EnvReport(NamedTuple):
    """The findings of `check_env`, which `print` shows as text."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Returns the findings that would stop training."""
        return tuple(x for x in self.findings if x.severity == "error")

    def __str__(self) -> str:
        counts = [
            f"{severity}s: {sum(x.severity == severity for x in self.findings)}"
            for severity in ("error", "warning", "note")
        ]
        lines = [f"{severity}: {text}" for severity, text in self.findings]
        return "\n".join([*lines, f"{self.name}: {', '.join(counts)}"])


def check_env(
    env: Any,
    *,
    episodes: int = 5,
    seed: int = 0,
    env_kwargs: Any = None,
    max_episode_steps: int | None = None,
    action_mask: str | None = None,
    head: Any = None,
) -> EnvReport:
    """Checks an environment by running episodes of a random policy.

    The episodes are collected as in training, so the rules in `docs/environments.md`
    apply. They are then collected again with the same seed, which shows whether episodes
    can be repeated.

    The report also covers the default head and policy, the time limit and action masks.
    It says how long a step takes, and which `num_envs` and `workers` to use.

    Args:
        env: An environment id, an `EnvSpec`, a callable that makes an environment, a
            `gymnasium.Env`, a `VectorEnv` or a `TensorEnv`.
        episodes: Int, the number of episodes.
        seed: Int, the seed of the episodes.
        env_kwargs, max_episode_steps: As in `Reinforce.fit`.
        action_mask: As in `Reinforce`.
        head: As in `Reinforce.for_env`, for example for tables of masks.

    Returns:
        `EnvReport`.

    Example:

    >>> print(check_env("CartPole-v1"))
    note: The action space Discrete(2) gets the head Categorical, ...
    note: 5 episodes had 15 to 44 steps and returns from 15 to 44. ...
    note: A typical step of the environment takes ... µs.
    note: Take num_envs=8 and workers=1. ...
    CartPole-v1: errors: 0, warnings: 0, notes: 4
    """
    episodes = validation.positive_int("episodes", episodes)
    seed, findings = validation.check_seed(seed), []
    options = {"env_kwargs": env_kwargs, "max_episode_steps": max_episode_steps}
    try:
        for finding in _findings(env, options, seed, episodes, action_mask, head):
            if finding not in findings:
                findings.append(finding)
    except host_loop.EnvironmentFault as error:
        findings.append(Finding("error", f"{str(error).rstrip('.')}."))
    except Exception as error:
        text = f"The environment cannot be used. {type(error).__name__}: {error}"
        findings.append(Finding("error", text))
    name = env
    if not isinstance(env, str):
        spec = getattr(env, "spec", env)  # `env` may be an `EnvSpec`
        name = getattr(env, "__name__", type(env).__name__)
        name = getattr(spec, "id", None) or name
    return EnvReport(name, tuple(findings))


class _Timer(gym.Wrapper):
    """Measures how many seconds each step takes."""

    def __init__(self, env):
        super().__init__(env)
        self.seconds = []

    def step(self, action):
        start = time.perf_counter()
        outputs = self.env.step(action)
        self.seconds.append(time.perf_counter() - start)
        return outputs


def _findings(env, options, seed, episodes, action_mask, head):
    """Yields all findings, or raises the environment's error."""
    with make_envs.open_envs(env, 1, **options) as envs:
        parts = keras.tree.flatten(spaces.to_nest(envs.observation_space))
    kwargs = options.pop("env_kwargs") or {}
    with contextlib.ExitStack() as stack:
        made = _make(env, kwargs)
        if made is not env and hasattr(made, "close"):
            stack.callback(made.close)
        if isinstance(made, gym.Env):
            made = _Timer(made)
        agent = agents.Reinforce.for_env(
            made,
            action_mask=action_mask,
            head=head,
            # keeps the digits of float64 observations
            normalize_observations=any(map(spaces.is_quantity, parts)),
        )
        weights = sum(math.prod(x.shape) for x in agent.policy.trainable_weights)
        critic_head = default_settings.for_task(agent.action_space, 1)[0].get("head")
        other = f" ({critic_head} with a value network)" if critic_head else ""
        yield Finding(
            "note",
            f"The action space {agent.action_space} gets the head "
            f"{type(agent.head).__name__}{other}, and the default policy has "
            f"{weights:,} weights.",
        )
        records = []
        for _ in range(2):
            with warnings.catch_warnings(record=True, action="always") as caught:
                arguments = dict(num_envs=1, seed=seed, **options)
                records.append(agent.collect(made, episodes, **arguments))
            yield from (Finding("warning", str(one.message)) for one in caught)
    yield from _record_findings(*records, parts)
    if isinstance(made, _Timer):
        # Other processes interrupt some steps, and the first step may compile.
        seconds = np.median(made.seconds)
        text = f"A typical step of the environment takes {seconds * 1e6:,.1f} µs."
        yield Finding("note", text)
        if not isinstance(env, gym.Env):  # which cannot be made several times
            yield Finding("note", _advice(seconds))


def _make(env, kwargs):
    if isinstance(env, (str, gym.envs.registration.EnvSpec)):
        with batched_envs.shown_once(env):
            return gym.make(env, disable_env_checker=True, **kwargs)
    made = gym.Env, gym.vector.VectorEnv, tensor_envs.TensorEnv
    return env if isinstance(env, made) else env(**kwargs)


def _advice(step_seconds):
    """Returns a sentence that recommends `num_envs` and `workers` for training."""
    if step_seconds < _SHORT_STEP:
        return (
            "Take num_envs=8 and workers=1. Steps are short, and one process is about as "
            "fast."
        )
    available = hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0))
    cores = available or os.cpu_count() or 1
    return (
        f"Take num_envs={max(16, cores)} and workers={cores}. The steps can use all "
        f"{cores} cores."
    )


def _record_findings(first, second, parts):
    """Yields findings on two collections with the same seed."""
    flat = keras.tree.flatten
    if not all(map(np.array_equal, flat(first), flat(second))):
        yield Finding(
            "warning",
            "Two collections with equal seeds gave different episodes, so that trainings "
            "are not repeatable. Take all random numbers from `self.np_random`, call "
            "`super().reset(seed=seed)` in `reset`, and let `reset` set the whole state "
            "of the environment.",
        )
    lengths, episode_returns = first.lengths, first.rewards.sum(axis=0)
    yield Finding(
        "note",
        f"{first.count} episodes had {lengths.min()} to {lengths.max()} steps and "
        f"returns from {episode_returns.min():.4g} to {episode_returns.max():.4g}. The "
        f"environment terminated {np.sum(first.terminated)} of them.",
    )
    if not first.rewards.any():
        yield Finding(
            "warning",
            "All rewards were zero. REINFORCE learns nothing until an episode of the "
            "random policy reaches a reward. Give a reward for partial success.",
        )
    named = flat(spaces.names(first.observations)), parts, flat(first.observations)
    for name, space, array in zip(*named, strict=True):
        largest = np.abs(array.astype("float64")).max()
        if spaces.is_quantity(space) and largest > _LARGE:
            yield Finding(
                "note",
                f"The largest absolute value of {name!r} was {largest:.4g}. The agent "
                "should normalize it: `normalize_observations=True`, which "
                '`baseline="value"` sets by itself.',
            )
