"""Measures what steps of an environment cost, and compares `num_envs` and `workers`."""

import contextlib
import math
import os
import pathlib
import time
from typing import Any, NamedTuple

import gymnasium as gym

from tf_reinforce import agent as agents
from tf_reinforce import env_arguments
from tf_reinforce import envs as tensor_envs
from tf_reinforce import validation
from tf_reinforce.callbacks import slow_env
from tf_reinforce.collect import make_envs
from tf_reinforce.collect import results
from tf_reinforce.data import action_masks

_SIZES = (1, 8, 16)  # `num_envs` in one process
_MAX_WORKERS = 64  # of an environment that waits
_WAITS = 0.5  # share of waiting from which more workers than cores are measured
_EQUAL = 0.95  # a smaller combination is recommended from this share of the best rate


class StepCosts(NamedTuple):
    """The time that one environment takes, with random actions."""

    step_seconds: float  # mean time of a step
    reset_seconds: float  # mean time of a reset
    waiting_share: float  # share of the time in which the process used no core


class Combination(NamedTuple):
    """The speed of collecting with one combination of `num_envs` and `workers`."""

    num_envs: int
    workers: int
    steps_per_second: float
    stepping_share: float  # share of the time in the environments
    worker_bytes: float | None  # memory that a worker does not share, if it is known


class EnvBenchmark(NamedTuple):
    """The result of `bench_env`, which `print` shows as text."""

    name: str
    cores: int
    costs: StepCosts | None  # `None` for a tensor environment
    mean_length: float  # steps of an episode of the untrained policy
    truncated_at: int | None  # the shorter time limit of the measurement, or `None`
    combinations: tuple[Combination, ...]  # empty for a tensor environment
    compiled_steps_per_second: float | None  # of the compiled engine, if it applies

    @property
    def recommended(self) -> Combination | None:
        """Returns the combination to take, or `None` for a tensor environment.

        The recommended combination has the fewest workers, then the fewest environments,
        among those with at least 95 % of the largest number of steps per second.
        """
        best = max((x.steps_per_second for x in self.combinations), default=0.0)
        equal = (x for x in self.combinations if x.steps_per_second >= _EQUAL * best)
        return min(equal, key=lambda x: (x.workers, x.num_envs), default=None)

    def __str__(self) -> str:
        lines = [f"{self.name}, {self.cores} cores", *_cost_lines(self)]
        if self.combinations:
            lines.append("num_envs  workers  steps/s  in environments  memory per worker")
            lines += map(_row, self.combinations)
        if self.recommended is not None:
            size, workers, rate, *_ = self.recommended
            text = f"{rate:,.0f} steps per second"
            lines.append(f"recommended: num_envs={size}, workers={workers} ({text})")
        if self.compiled_steps_per_second is not None:
            lines.append(
                f"The compiled engine makes {self.compiled_steps_per_second:,.0f} steps "
                "per second; num_envs and workers do not apply to it."
            )
        return "\n".join(lines)


def _cost_lines(benchmark):
    """Returns the lines of the text about steps, resets and episodes."""
    lines = []
    if benchmark.costs is not None:
        step, reset, waiting = benchmark.costs
        lines.append(
            f"step: {step * 1e6:,.1f} µs, reset: {reset * 1e6:,.1f} µs, of which the "
            f"process waits {waiting:.0%}"
        )
        if waiting > _WAITS:
            lines.append("The steps mostly wait. More workers than cores can help.")
    text = f"mean length of episodes: {benchmark.mean_length:,.1f} steps"
    if benchmark.truncated_at is not None:
        text += f", truncated after {benchmark.truncated_at:,} steps to save time"
    return [*lines, text]


def _row(combination):
    """Returns the line of one combination in the table."""
    size, workers, rate, share, size_in_bytes = combination
    megabytes = "" if size_in_bytes is None else f"{size_in_bytes / 1e6:,.0f} MB"
    return f"{size:8} {workers:8} {rate:8,.0f} {share:16.0%} {megabytes:>18}".rstrip()


def bench_env(
    env: Any,
    *,
    seconds: float = 2.0,
    episodes: int = 16,
    workers: Any = None,
    env_kwargs: Any = None,
    max_episode_steps: int | None = None,
    action_mask: str | None = None,
) -> EnvBenchmark:
    """Measures an environment on this machine, and recommends `num_envs` and `workers`.

    The function first steps one environment with random actions. Then it collects
    episodes with the untrained default policy, as `fit` does, once for each combination
    of `num_envs` and `workers`. For an environment id with a twin in TensorFlow, and for
    a `TensorEnv`, it also measures the compiled engine.

    Args:
        env: An environment id, an `EnvSpec`, a callable that makes an environment, or a
            `TensorEnv`.
        seconds: Float from 0.01 to 3600, the approximate time of each measurement. If the
            episodes of a collection would take longer, they are truncated.
        episodes: Positive int, the number of episodes of a collection, as
            `episodes_per_epoch` of `fit`.
        workers: Positive ints, the numbers of processes to measure beside one. By
            default, powers of two up to the number of cores. If the environment mostly
            waits, for example for another process, up to 64, but not more than
            `episodes`.
        env_kwargs, max_episode_steps: As in `Reinforce.fit`.
        action_mask: As in `Reinforce`.

    Returns:
        `EnvBenchmark`.

    Raises:
        TypeError: If several environments cannot be made from `env`.
        ValueError: If an argument is invalid.
        EnvironmentFault: If the environment fails or returns an invalid value.
    """
    seconds = validation.within("seconds", seconds, 0.01, 3600)
    episodes = validation.positive_int("episodes", episodes)
    for count in workers or ():
        validation.positive_int("workers", count)
    if isinstance(env, (gym.Env, gym.vector.VectorEnv)):
        raise TypeError(
            "`env` must be an environment id, an EnvSpec, a callable that makes an "
            "environment or a TensorEnv, from which several environments can be made. "
            f"Received: env={env!r}"
        )
    options = {"env_kwargs": env_kwargs, "max_episode_steps": max_episode_steps}
    agent = agents.Reinforce.for_env(env, env_kwargs=env_kwargs, action_mask=action_mask)
    with make_envs.open_envs(env, 1, **options) as opened:
        if opened.in_graph:
            rate, _, length = _measure(agent, opened, episodes, seconds)
            return EnvBenchmark(
                _name(env), slow_env.num_cores(), None, length, None, (), rate
            )
    costs = _measure_steps(env, options, seconds, action_mask)
    limit = int(seconds / (costs.step_seconds * episodes)) + 1
    truncated_at = None
    if limit < opened.max_episode_steps:
        truncated_at = options["max_episode_steps"] = limit
    pairs = _combinations(costs, episodes, workers)
    measure = _Measurement(agent, env, options, episodes, seconds)
    combinations = tuple(measure(*pair) for pair in pairs)
    return EnvBenchmark(
        _name(env),
        slow_env.num_cores(),
        costs,
        measure.mean_length,
        truncated_at,
        combinations,
        _measure_twin(env, options, episodes, seconds, action_mask),
    )


def _name(env):
    spec = getattr(env, "spec", env)  # `env` may be an `EnvSpec`
    name = env if isinstance(env, str) else getattr(spec, "id", None)
    return name or getattr(env, "__name__", type(env).__name__)


def _combinations(costs, episodes, workers):
    """Returns the pairs `(num_envs, workers)` to measure."""
    if workers is None:
        last, workers = slow_env.num_cores(), []
        if costs.waiting_share > _WAITS:
            last = max(last, min(_MAX_WORKERS, episodes))
        while (count := 2 * (workers[-1] if workers else 1)) < last:
            workers.append(count)
        workers += [last] if last > 1 else []
    pairs = [(size, 1) for size in _SIZES]
    pairs += [(max(_SIZES[-1], count), count) for count in workers if count > 1]
    return list(dict.fromkeys(pairs))


def _measure_steps(env, options, seconds, action_mask):
    """Returns the `StepCosts` of one environment with random legal actions."""
    kwargs = options["env_kwargs"] or {}
    mask_path = action_masks.MaskPath(action_mask) if action_mask else None
    if isinstance(env, (str, gym.envs.registration.EnvSpec)):
        gym_env = gym.make(env, disable_env_checker=True, **kwargs)
    else:
        with env_arguments.explain_errors(env, kwargs):
            gym_env = env(**kwargs)
    with contextlib.closing(gym_env):
        try:
            return _time_steps(gym_env, seconds, mask_path)
        except Exception as error:
            raise results.EnvironmentFault(
                f"The environment raised {type(error).__name__}: {error}. To check the "
                "environment: tf-reinforce check-env"
            ) from error


def _time_steps(gym_env, seconds, mask_path):
    """Returns the `StepCosts` of an open environment, after at least one step."""
    gym_env.action_space.seed(0)
    clock, step_seconds, reset_seconds, steps, resets = time.perf_counter, 0.0, 0.0, 0, 0
    begin, cpu_begin, seed, ended = clock(), time.process_time(), 0, True
    while not steps or clock() - begin < seconds:
        if ended:
            start = clock()
            observation, info = gym_env.reset(seed=seed)
            reset_seconds += clock() - start
            resets, seed = resets + 1, None
        mask = mask_path.lookup(observation, info) if mask_path else None
        action = gym_env.action_space.sample(mask)
        start = clock()
        observation, _, terminated, truncated, info = gym_env.step(action)
        step_seconds += clock() - start
        steps, ended = steps + 1, terminated or truncated
    cpu_seconds, elapsed = time.process_time() - cpu_begin, clock() - begin
    waiting_share = min(max(1.0 - cpu_seconds / elapsed, 0.0), 1.0)
    return StepCosts(step_seconds / steps, reset_seconds / resets, waiting_share)


class _Measurement:
    """Measures the speed of collecting for combinations of `num_envs` and `workers`."""

    def __init__(self, agent, env, options, episodes, seconds):
        self.agent, self.env, self.options = agent, env, options
        self.episodes, self.seconds = episodes, seconds
        self.mean_length = math.nan

    def __call__(self, num_envs, workers):
        """Returns the `Combination` of the two numbers, with its speed."""
        before = set(_descendants())
        opened = make_envs.open_envs(self.env, num_envs, workers=workers, **self.options)
        with opened as envs:
            result = _measure(self.agent, envs, self.episodes, self.seconds)
            rate, stepping_share, self.mean_length = result
            sizes = [_private_bytes(x) for x in set(_descendants()) - before]
        sizes = [size for size in sizes if size is not None] if workers > 1 else []
        worker_bytes = sum(sizes) / workers if sizes else None
        return Combination(num_envs, workers, rate, stepping_share, worker_bytes)


def _measure(agent, envs, episodes, seconds):
    """Collects episodes until the time is over, after a first collection.

    Returns:
        The steps per second, the share of the time in environments, and the mean length
        of the episodes.
    """
    agent.collect(envs, episodes)  # compiles the programs, and starts the workers
    steps, num_episodes, stepping, start = 0, 0, 0.0, time.perf_counter()
    while not steps or time.perf_counter() - start < seconds:
        collected = agent.trainer.collect(envs, 0, episodes, None)
        steps += int(collected.episodes.lengths.sum())
        num_episodes += len(collected.episodes.lengths)
        stepping += collected.seconds["stepping"]
    elapsed = time.perf_counter() - start
    return steps / elapsed, stepping / elapsed, steps / num_episodes


def _measure_twin(env, options, episodes, seconds, action_mask):
    """Returns the steps per second of the compiled engine, or `None` without a twin."""
    twin = tensor_envs.twin_of(env) if isinstance(env, str) else None
    if twin is None or options["env_kwargs"]:
        return None
    limit = options["max_episode_steps"] or twin.max_episode_steps
    if limit is None:
        return None
    agent = agents.Reinforce.for_env(twin, action_mask=action_mask)
    with make_envs.open_envs(twin, 1, max_episode_steps=limit) as envs:
        return _measure(agent, envs, episodes, seconds)[0]


def _descendants():
    """Returns the numbers of all processes that this process has started, on Linux."""
    parents = {}
    for path in pathlib.Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            # The name of the program is in parentheses, and may contain spaces.
            parents[int(path.parent.name)] = int(
                path.read_text().rpartition(")")[2].split()[1]
            )
    found, own = [], [os.getpid()]
    while own:
        own = [process for process, parent in parents.items() if parent in own]
        found += own
    return found


def _private_bytes(process):
    """Returns the memory that a process shares with no other, or `None` if unknown."""
    try:
        text = pathlib.Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return None
    rows = [line.split() for line in text.splitlines() if line.startswith("Private_")]
    return 1024 * sum(int(row[1]) for row in rows)
