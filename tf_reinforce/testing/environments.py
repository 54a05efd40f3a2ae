"""Checks an environment with episodes, and explains what to correct."""

import contextlib
import os
import time
import warnings
from typing import Any, NamedTuple

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce import agent as agents
from tf_reinforce import envs as tensor_envs
from tf_reinforce.data import action_masks
from tf_reinforce.data import spaces
from tf_reinforce.engine.collect import env_outputs
from tf_reinforce.engine.collect import environments
from tf_reinforce.engine.collect import make_envs
from tf_reinforce.engine.collect import results
from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings
from tf_reinforce.support import validation

_LARGE = 10.0  # larger observations should be normalized
_SUCCESS_KEYS = ("success", "is_solved")
_SHORT_STEP = 1e-4  # seconds, below which workers hardly pay
_WAITS = 0.5  # share of a step without a core, from which more workers than cores help


class Finding(NamedTuple):
    """One result of `check_env`."""

    severity: str  # "error": training stops; "warning": training suffers; or "note"
    text: str


class EnvReport(NamedTuple):
    """The results of `check_env`, which `print` shows as text."""

    name: str
    findings: tuple[Finding, ...]

    @property
    def errors(self) -> tuple[Finding, ...]:
        """Returns the findings that would stop a training."""
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
) -> EnvReport:
    """Checks an environment with episodes of a random policy, and explains the results.

    The episodes are collected as in training, so that the rules of
    `docs/environments.md` apply. The function also compares two collections with equal
    seeds, and reports the head, the policy, the time limit, action masks, success, what
    a step costs, and which `num_envs` and `workers` to take.

    Args:
        env: An environment id, an `EnvSpec`, a callable that makes an environment, a
            `gymnasium.Env`, a `VectorEnv` or a `TensorEnv`.
        episodes: Int, the number of episodes.
        seed: Int, the seed of the episodes.
        env_kwargs, max_episode_steps: As in `Reinforce.fit`.
        action_mask: As in `Reinforce`, by default a mask in the info or observation of
            a reset, under the key "action_mask", "legal_actions" or "avail_actions".

    Returns:
        `EnvReport`.

    Raises:
        TypeError: If `env` is the result of `open_envs`.

    Example:

    >>> print(check_env("CartPole-v1"))
    note: The action space Discrete(2) gets the head Categorical, ...
    note: 5 episodes had 15 to 44 steps and returns from 15 to 44. ...
    note: A typical step of the environment takes ... µs.
    note: Take num_envs=8 and workers=1. ...
    CartPole-v1: errors: 0, warnings: 0, notes: 4
    """
    if isinstance(env, environments.Environments):
        raise TypeError(
            "`env` must be an environment id, an EnvSpec, a callable that makes an "
            "environment, a gymnasium.Env, a gymnasium.vector.VectorEnv or a "
            "tfr.envs.TensorEnv, and not the result of `open_envs`. Received: "
            f"env={env!r}. Pass the environment that `open_envs` has opened."
        )
    episodes = validation.positive_int("episodes", episodes)
    options = {"env_kwargs": env_kwargs, "max_episode_steps": max_episode_steps}
    check = _Check(env, options, validation.check_seed(seed), episodes)
    with contextlib.suppress(_Stop):
        check.run(action_mask)
    return EnvReport(_name(env), tuple(check.findings))


def _name(env):
    if isinstance(env, str):
        return env
    spec = getattr(env, "spec", env)  # `env` may be an `EnvSpec`
    return getattr(spec, "id", None) or getattr(env, "__name__", type(env).__name__)


class _Stop(Exception):
    """Ends a check after a finding that makes further checks impossible."""


def advice(step_seconds: float, waiting_share: float, cores: int) -> str:
    """Returns a sentence that names the `num_envs` and `workers` to train with.

    Args:
        step_seconds: Float, the time of a step.
        waiting_share: Float from 0 to 1, the share of this time without a core.
        cores: Int, the number of cores of the machine.

    Example:

    >>> advice(1e-5, 0.0, cores=4)
    'Take num_envs=8 and workers=1. Steps are short, and one process is about as fast.'
    """
    if step_seconds < _SHORT_STEP:
        workers, reason = 1, "Steps are short, and one process is about as fast."
    elif waiting_share > _WAITS:
        workers = max(cores, config.EPISODES_PER_EPOCH)
        reason = "A step mostly waits, so more workers than cores can help."
    else:
        workers, reason = cores, f"The steps can use all {cores} cores."
    num_envs = 8 if workers == 1 else max(16, workers)
    return f"Take num_envs={num_envs} and workers={workers}. {reason}"


def _num_cores():
    """Returns the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _Recorder(gym.Wrapper):
    """Records the keys of infos, and the time of steps."""

    def __init__(self, env):
        super().__init__(env)
        self.keys = set()
        self.step_times = []  # pairs of seconds: of the clock, and of this process

    def reset(self, **kwargs):
        return self._recorded(self.env.reset(**kwargs))

    def step(self, action):
        start, cpu_start = time.perf_counter(), time.process_time()
        outputs = self.env.step(action)
        seconds, cpu_seconds = time.perf_counter(), time.process_time()
        self.step_times.append((seconds - start, cpu_seconds - cpu_start))
        return self._recorded(outputs)

    def _recorded(self, outputs):
        if isinstance(outputs, tuple) and outputs and isinstance(outputs[-1], dict):
            self.keys |= outputs[-1].keys()
        return outputs


class _Check:
    """Runs the checks of `check_env`."""

    def __init__(self, env, options, seed, episodes):
        self.env, self.options = env, options
        self.seed, self.episodes = seed, episodes
        self.findings = []

    def add(self, severity, text):
        """Adds a finding."""
        self.findings.append(Finding(severity, text))

    def run(self, action_mask):
        """Makes all checks; raises `_Stop` if no further check is possible."""
        with self._explained("The environment cannot be used"):
            with make_envs.open_envs(self.env, 1, **self.options) as envs:
                is_vector_env = envs.is_vector_env
            if is_vector_env:
                self._check_vector_env()
        with contextlib.ExitStack() as stack:
            with self._explained("The environment cannot be made again"):
                env, recorder = self._recorded(stack)
            if action_mask is None:
                action_mask = self._find_mask(recorder)
            agent = self._make_agent(env, action_mask)
            first, second = self._collect(agent, env), self._collect(agent, env)
            self._compare(first, second)
            self._summarize(first, self._parts(env))
        if recorder is not None:
            self._check_recorder(recorder)
            self._advise(recorder)

    @contextlib.contextmanager
    def _explained(self, text):
        """Turns an exception into an error of the report, and ends the check."""
        try:
            yield
        except results.EnvironmentFault as error:
            self.add("error", f"{str(error).rstrip('.')}.")
            raise _Stop from error
        except Exception as error:
            place = env_outputs.place(error)
            self.add("error", f"{text}. {type(error).__name__}: {error}{place}")
            raise _Stop from error

    def _check_vector_env(self):
        mode = self.env.metadata["autoreset_mode"].name
        self.add(
            "note",
            f"The VectorEnv resets its environments itself, in the mode {mode}. The "
            "result of training may depend on the number of environments. To avoid "
            "this dependence, pass an environment id or a callable with `num_envs=N`.",
        )

    def _recorded(self, stack):
        """Returns the environment to collect in, and its `_Recorder` or `None`."""
        env = self.env
        kinds = (gym.Env, gym.vector.VectorEnv, tensor_envs.TensorEnv)
        if not isinstance(env, kinds):
            kwargs = self.options["env_kwargs"] or {}
            if isinstance(env, (str, gym.envs.registration.EnvSpec)):
                env = gym.make(env, disable_env_checker=True, **kwargs)
            else:
                env = env(**kwargs)
            if hasattr(env, "close"):
                stack.callback(env.close)
        self.options["env_kwargs"] = None
        if isinstance(env, gym.Env):
            env = _Recorder(env)
            return env, env
        return env, None

    def _find_mask(self, recorder):
        """Returns the path of a mask in the info or observation of a reset, or `None`."""
        if recorder is None:
            return None
        try:
            outputs = recorder.reset(seed=self.seed)
        except Exception:
            return None  # the first collection explains the error
        pair = isinstance(outputs, tuple) and len(outputs) == 2
        path = action_masks.find(*outputs) if pair else None
        if path is not None:
            self.add(
                "note",
                f"There is a mask of legal actions. Pass action_mask={path!r} "
                "to the agent, so that the agent selects legal actions only; on "
                f"the command line, --set action_mask={path}. The check uses "
                "this mask.",
            )
        return path

    def _make_agent(self, env, action_mask):
        with self._explained("There is no default agent for the environment"):
            agent = agents.Reinforce.for_env(
                env,
                action_mask=action_mask,
                # keeps the digits of float64 observations
                normalize_observations=any(map(spaces.is_quantity, self._parts(env))),
            )
        weights = sum(int(np.prod(x.shape)) for x in agent.policy.trainable_weights)
        space = getattr(env, "single_action_space", env.action_space)
        head = type(agent.head).__name__
        other = default_settings.for_task(space, 1000)[0].get("head", head)
        other = "" if other == head else f" ({other} with the baseline `value`)"
        self.add(
            "note",
            f"The action space {space} gets the head {head}{other}, and the default "
            f"policy has {weights:,} weights.",
        )
        return agent

    @staticmethod
    def _parts(env):
        """Returns the parts of the space of one observation."""
        space = getattr(env, "single_observation_space", env.observation_space)
        return keras.tree.flatten(spaces.to_nest(space))

    def _collect(self, agent, env):
        """Collects the episodes; turns warnings into findings."""
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with self._explained("An episode failed"):
                episodes = agent.collect(
                    env, self.episodes, num_envs=1, seed=self.seed, **self.options
                )
        for one in caught:
            finding = Finding("warning", str(one.message))
            if finding not in self.findings:
                self.findings.append(finding)
        return episodes

    def _compare(self, first, second):
        parts = zip(keras.tree.flatten(first), keras.tree.flatten(second), strict=True)
        if not all(np.array_equal(one, other) for one, other in parts):
            self.add(
                "warning",
                "Two collections with equal seeds gave different episodes, so that "
                "trainings are not repeatable. Take all random numbers from "
                "`self.np_random`, call `super().reset(seed=seed)` in `reset`, and let "
                "`reset` set the whole state of the environment.",
            )
        starts = keras.tree.map_structure(lambda x: x[0], first.observations)
        if self.episodes > 1 and all(
            (part == part[:1]).all() for part in keras.tree.flatten(starts)
        ):
            self.add(
                "note",
                "All episodes start with the same observation. This is correct if the "
                "environment has one initial state.",
            )

    def _summarize(self, episodes, parts):
        """Reports lengths, ends, returns and large observations."""
        lengths, rewards = episodes.lengths, episodes.rewards
        episode_returns = rewards.sum(axis=0)
        ended = int(np.sum(episodes.terminated))
        self.add(
            "note",
            f"{self.episodes} episodes had {lengths.min()} to {lengths.max()} steps and "
            f"returns from {episode_returns.min():.4g} to {episode_returns.max():.4g}. "
            f"The environment terminated {ended} of them.",
        )
        if not rewards.any():
            self.add(
                "warning",
                "All rewards were zero. REINFORCE learns nothing until an episode of the "
                "random policy reaches a reward. Give a reward for partial success.",
            )
        names = keras.tree.flatten(spaces.names(episodes.observations))
        arrays = keras.tree.flatten(episodes.observations)
        for name, space, array in zip(names, parts, arrays, strict=True):
            largest = np.abs(array.astype("float64")).max()
            if spaces.is_quantity(space) and largest > _LARGE:
                self.add(
                    "note",
                    f"The largest absolute value of {name!r} was {largest:.4g}. The "
                    "agent should normalize it: `normalize_observations=True`, which "
                    '`baseline="value"` sets by itself.',
                )

    def _check_recorder(self, recorder):
        if "is_success" in recorder.keys:
            self.add("note", "`is_success` in the info is logged as `success`.")
        elif found := [key for key in _SUCCESS_KEYS if key in recorder.keys]:
            self.add(
                "note",
                f"The info contains {found[0]!r}. Rename the key to 'is_success', so "
                "that the share of successful episodes is logged.",
            )

    def _advise(self, recorder):
        """Reports what a step costs, and which `num_envs` and `workers` to take.

        Medians, because other processes interrupt some steps, and the first may compile.
        """
        step_seconds, cpu_seconds = np.median(recorder.step_times, axis=0).tolist()
        waiting_share = max(1.0 - cpu_seconds / step_seconds, 0.0)
        text = f"A typical step of the environment takes {step_seconds * 1e6:,.1f} µs"
        if waiting_share > _WAITS:
            text += f", of which {waiting_share:.0%} without using a core"
        self.add("note", f"{text}.")
        if isinstance(self.env, gym.Env):
            return  # one environment cannot be made several times
        text = advice(step_seconds, waiting_share, _num_cores())
        if isinstance(self.env, str) and tensor_envs.twin_of(self.env) is not None:
            text += " They do not apply to its twin in TensorFlow, the compiled engine."
        self.add("note", text)
