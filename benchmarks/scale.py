"""Measures the cost model of `docs/scale.md`, and compares its predictions with workers.

    python benchmarks/scale.py [--repeats 5] [--report-only]

The program writes all measured numbers to `benchmarks/scale.json`. From these numbers,
it writes the tables and the picture of `docs/scale.md`. `--report-only` writes the
tables and the picture without measuring. Nothing else should run meanwhile.
"""

import argparse
import functools
import json
import os
import pathlib
import platform
import statistics
import time
from typing import NamedTuple

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import numpy as np
import scale_report
import sleeping_env

import tf_reinforce as tfr

ROOT = pathlib.Path(__file__).resolve().parents[1]
NUMBERS = ROOT / "benchmarks" / "scale.json"
PAGE = ROOT / "docs" / "scale.md"
PICTURE = ROOT / "docs" / "scale.png"

# Collections from which the costs are estimated: arguments of `Sleeping`, units of the
# two hidden layers, number of workers, and numbers of episodes.
TINY, LONG = dict(step_seconds=0, length=10), dict(step_seconds=0, length=2000)
WAITING = dict(step_seconds=0.01, length=20, spread=10)
DESIGN = [
    (TINY, 64, 2, (1, 2, 100)),
    (TINY, 64, 16, (16, 160)),
    (LONG, 64, 2, (2, 24)),
    (dict(LONG, size=1000), 64, 2, (2, 8)),
    (WAITING, 64, 16, (16, 64)),
    (WAITING, 64, 64, (64, 192)),
    (TINY, 1024, 4, (1, 4)),
]
# The same for workers that Ray holds, on a cluster of this machine.
RAY_DESIGN = [
    (TINY, 64, 2, (1, 2, 100)),
    (TINY, 64, 8, (8, 80)),
    (dict(LONG, size=1000), 64, 2, (2, 8)),
    (WAITING, 64, 16, (16, 64)),
    (TINY, 1024, 4, (1, 4)),
]
DRIVER = (
    "collection",
    "prepare_byte",
    "first_message",
    "weight_byte",
    "record",
    "record_step",
    "record_byte",
    "wait",
)
RAY = tuple(name for name in DRIVER if name != "record_step")
WORKER = "start", "start_byte", "episode", "acting", "acting_after_wait"


class Experiment(NamedTuple):
    """Collections that are predicted, in environments with steps of 10 ms."""

    spread: int  # the argument of `Sleeping`; episodes have 50 steps on average
    num_workers: tuple
    per_worker: int = 4  # episodes per update
    episodes: int | None = None  # per update, instead
    is_ray: bool = False


EXPERIMENTS = {
    "50 steps, 4 episodes per worker": Experiment(0, (1, 2, 4, 8, 16, 32, 64)),
    "1 to 99 steps, 4 episodes per worker": Experiment(49, (1, 2, 4, 8, 16, 32, 64)),
    "1 to 99 steps, 64 episodes": Experiment(49, (8, 16, 32, 64), episodes=64),
    "50 steps, 4 episodes per worker, with Ray": Experiment(
        0, (2, 4, 8, 16, 32, 64), is_ray=True
    ),
}


class WaitCounter:
    """Counts the workers among which the driver has waited.

    Args:
        launcher: The launcher of a `WorkerPool`.
    """

    def __init__(self, launcher):
        self.count, self._wait = 0, launcher.wait
        launcher.wait = self.wait

    def wait(self, workers, seconds):
        self.count += len(workers)
        return self._wait(workers, seconds)


def worker_seconds(pool):
    """Returns the processor time of all local workers of a pool, in seconds."""
    nanoseconds = 0
    for one in getattr(pool, "_workers", ()):  # one process has no workers
        if not hasattr(one, "pid"):  # a process on another machine, perhaps
            return 0.0
        for path in pathlib.Path(f"/proc/{one.pid}/task").glob("*/schedstat"):
            nanoseconds += int(path.read_text().split()[0])
    return nanoseconds / 1e9


def busy_seconds():
    """Returns the processor time of all processes of the machine since its start."""
    fields = pathlib.Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]
    user, nice, system, idle, waiting, *others = map(int, fields[:8])
    return (user + nice + system + sum(others)) / os.sysconf("SC_CLK_TCK")


def make_agent(env, units):
    """Returns an agent with two hidden layers."""
    return tfr.Reinforce.for_env(env, hidden=(units, units))


def weight_bytes(agent):
    """Returns the number of bytes of the weights of the policy."""
    return sum(4 * weight.shape.num_elements() for weight in agent.policy.weights)


def step_bytes(episodes):
    """Returns the bytes of one step in the record of episodes."""
    arrays = keras.tree.flatten(episodes._asdict())
    arrays = [array for array in arrays if np.ndim(array) > 1]
    rows = len(episodes.rewards)
    size = sum(array.nbytes / len(array) * rows for array in arrays)
    return size / episodes.rewards.size


def observe(agent, pool, counter, num_workers, num_episodes, seed):
    """Returns counts and times of one collection, a dict."""
    counter.count, before = 0, worker_seconds(pool)
    wall, driver = time.perf_counter(), time.process_time()
    episodes = agent.collect(pool, num_episodes, seed=seed)
    driver, wall = time.process_time() - driver, time.perf_counter() - wall
    worker = worker_seconds(pool) - before
    steps, used = int(episodes.lengths.sum()), min(num_workers, num_episodes)
    return {
        "workers": used,
        "weight_bytes": used * weight_bytes(agent),
        "episodes": num_episodes,
        "steps": steps,
        "record_bytes": steps * step_bytes(episodes),
        "waits": counter.count,
        "driver_seconds": driver,
        "worker_seconds": worker,
        "idle_seconds": wall - driver - worker,
    }


def observe_design(design, repeats, make_workers=int):
    """Returns rows of counts and median times for all collections of a design.

    Args:
        design: List of tuples like `DESIGN`.
        repeats: Int, the number of repetitions of each collection.
        make_workers: Function from a number of workers to the argument `workers`.
    """
    rows = []
    for options, units, num_workers, counts in design:
        env = functools.partial(sleeping_env.Sleeping, **options)
        agent, workers = make_agent(env, units), make_workers(num_workers)
        with tfr.collect.open_envs(env, num_workers, workers=workers) as pool:
            counter = WaitCounter(pool._launcher)
            agent.collect(pool, num_workers)  # starts processes and programs
            for count in counts:
                counted = [
                    observe(agent, pool, counter, num_workers, count, seed)
                    for seed in range(repeats)
                ]
                columns = {key: [one[key] for one in counted] for key in counted[0]}
                row = {key: statistics.median(x) for key, x in columns.items()}
                row["idle_seconds"] = min(columns["idle_seconds"])
                rows.append({**row, "is_waiting": options["step_seconds"] > 0})
    return rows


def fit_positive(columns, seconds):
    """Returns coefficients of at least zero with small relative errors of `seconds`."""
    matrix = np.array(columns, float).T / np.array(seconds)[:, None]
    scale = np.abs(matrix).max(axis=0)
    used = np.ones(len(scale), bool)
    while True:
        solution = np.zeros(len(scale))
        part = np.linalg.lstsq(matrix[:, used] / scale[used], np.ones(len(matrix)))[0]
        solution[used] = part / scale[used]
        if (part >= 0).all():
            return solution.tolist()
        used[np.argmin(solution)] = False


def fit_costs(rows):
    """Returns the costs of driver and worker from the rows of the design, a dict."""

    def column(key, keep=lambda row: True):
        return [row[key] if keep(row) else 0 for row in rows]

    num_rows, workers = [1] * len(rows), column("workers")
    weights, episodes, steps = map(column, ("weight_bytes", "episodes", "steps"))
    driver = [num_rows, weight_sizes(rows), workers, weights, episodes, steps]
    driver += [column("record_bytes"), column("waits")]
    waiting = column("steps", lambda row: row["is_waiting"])
    acting = column("steps", lambda row: not row["is_waiting"])
    worker = [workers, weights, episodes, acting, waiting]
    costs = dict(zip(DRIVER, fit_positive(driver, column("driver_seconds"))))
    costs.update(zip(WORKER, fit_positive(worker, column("worker_seconds"))))
    idle = rows[0]["idle_seconds"]  # one short episode: two messages, nothing else runs
    return {**costs, "latency": max(0.0, idle / 2)}


def weight_sizes(rows):
    """Returns the bytes of the weights for each row, a list."""
    return [row["weight_bytes"] / row["workers"] for row in rows]


def fit_ray_costs(rows, costs):
    """Returns the costs of a driver whose workers Ray holds, a dict.

    Args:
        rows: List of dicts, from `observe_design`.
        costs: Dict, the costs of local workers, from which the others are taken.
    """
    keys = "workers", "weight_bytes", "episodes", "record_bytes", "waits"
    columns = [[1] * len(rows), weight_sizes(rows)]
    columns += [[row[key] for row in rows] for key in keys]
    step = costs["record_step"]
    seconds = [row["driver_seconds"] - step * row["steps"] for row in rows]
    ray_costs = dict(zip(RAY, fit_positive(columns, seconds)))
    row = rows[0]
    playing = costs["start"] + costs["episode"] + row["steps"] * costs["acting"]
    return {**ray_costs, "latency": max(0.0, (row["idle_seconds"] - playing) / 2)}


def measure_updates(repeats):
    """Returns the fixed seconds of an update, and the seconds for each step."""
    env = functools.partial(sleeping_env.Sleeping, step_seconds=0)
    agent, points = make_agent(env, 64), []
    for count in (4, 256, 2048):
        episodes = agent.collect(env, count, num_envs=8)
        agent.update(episodes)  # traces the functions
        seconds = []
        for _ in range(2 * repeats):
            start = time.perf_counter()
            agent.update(episodes)
            seconds.append(time.perf_counter() - start)
        points.append((int(episodes.lengths.sum()), statistics.median(seconds)))
    steps, seconds = zip(*points)
    names = "update", "update_step"
    return dict(zip(names, fit_positive([[1] * len(steps), steps], seconds)))


def measure_wait(repeats):
    """Returns the seconds that a step of 10 ms waits, without its time on a core."""
    env, seconds = sleeping_env.Sleeping(), []
    env.reset(seed=0)
    for _ in range(20 * repeats):
        start, cpu = time.perf_counter(), time.process_time()
        env.step(0)
        cpu = time.process_time() - cpu
        seconds.append(time.perf_counter() - start - cpu)
    return statistics.median(seconds)


def measure_points(name, repeats):
    """Returns the measured seconds of updates for each number of workers."""
    experiment = EXPERIMENTS[name]
    env = functools.partial(sleeping_env.Sleeping, spread=experiment.spread)
    agent, points = make_agent(env, 64), []
    for num_workers in experiment.num_workers:
        count = experiment.episodes or experiment.per_worker * num_workers
        workers = make_ray_workers(num_workers) if experiment.is_ray else num_workers
        repetitions = []
        with tfr.collect.open_envs(env, num_workers, workers=workers) as pool:
            for _ in range(repeats + 1):  # the first one starts processes
                own = time.process_time() + worker_seconds(pool)
                start, busy = time.perf_counter(), busy_seconds()
                episodes = agent.collect(pool, count)  # other episodes after each update
                agent.update(episodes)
                seconds = time.perf_counter() - start
                own = time.process_time() + worker_seconds(pool) - own
                foreign = max(0.0, busy_seconds() - busy - own) / seconds
                repetitions.append([seconds, foreign, episodes.lengths.tolist()])
        point = {"workers": num_workers, "is_ray": experiment.is_ray}
        points.append({**point, "repetitions": repetitions[1:]})
        text = f"{seconds:.3f} s, other processes used {foreign:.2f} cores"
        print(f"{name}, {num_workers} workers: {text}", flush=True)
    return points


def make_ray_workers(num_workers):
    """Returns workers in a cluster of this machine, more than it has cores."""
    return tfr.collect.RayWorkers(num_workers, address="local", num_cpus_per_worker=0)


def measure(repeats):
    """Returns all measured numbers, a dict that can be written as JSON."""
    rows = observe_design(DESIGN, repeats)
    costs = {**fit_costs(rows), **measure_updates(repeats)}
    ray_rows = observe_design(RAY_DESIGN, repeats, make_ray_workers)
    ray_costs = fit_ray_costs(ray_rows, costs)
    for one in (costs, ray_costs):
        print({key: f"{value:.3g}" for key, value in one.items()}, flush=True)
    wait = measure_wait(repeats)
    env = sleeping_env.Sleeping
    agent = make_agent(env, 64)
    with tfr.collect.open_envs(env, 1, env_kwargs={"step_seconds": 0}) as envs:
        bytes_per_step = step_bytes(agent.collect(envs, 1))
    return {
        "machine": describe_machine(),
        "cores": len(os.sched_getaffinity(0)),
        "repeats": repeats,
        "costs": costs,
        "ray_costs": ray_costs,
        "wait_seconds": wait,
        "weight_bytes": weight_bytes(agent),
        "step_bytes": bytes_per_step,
        "rows": rows,
        "ray_rows": ray_rows,
        "points": {name: measure_points(name, repeats) for name in EXPERIMENTS},
    }


def describe_machine():
    """Returns a text with cores, processor and Python."""
    info = pathlib.Path("/proc/cpuinfo").read_text()
    models = [line for line in info.splitlines() if line.startswith("model name")]
    model = models[0].split(":")[1].strip() if models else "an unknown processor"
    cores = len(os.sched_getaffinity(0))
    return f"{cores} cores of {model}, Python {platform.python_version()}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--report-only", action="store_true")
    options = parser.parse_args()
    if not options.report_only:
        NUMBERS.write_text(json.dumps(measure(options.repeats)) + "\n")
    scale_report.write(json.loads(NUMBERS.read_text()), PAGE, PICTURE)


if __name__ == "__main__":
    main()
