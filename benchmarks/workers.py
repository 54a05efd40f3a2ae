"""Measures worker processes: their start, their memory, and the steps per second.

python benchmarks/workers.py [--repeats 5] [--only start,sleep,ray,CartPole-v1,…]

Every repeat measures one process and the workers in turns. The printed ratios are medians
over the repeats, with the smallest and the largest in parentheses. `ray` measures 64
workers on a Ray cluster of two nodes, which are on this machine.
"""

import argparse
import functools
import os
import pathlib
import statistics
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests" / "support"))
import ray_cluster
import sleeping_env

import tf_reinforce as tfr

NAMES = "start", "sleep", "ray", "CartPole-v1", "HalfCheetah-v5"


def spread(values, digits=2):
    """Returns a text with median, minimum and maximum."""
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f}-{max(values):.{digits}f})"


def timed(agent, envs, update, **counts):
    """Returns the steps per second of one collection."""
    start = time.perf_counter()
    episodes = agent.collect(envs, seed=update, **counts)
    return episodes.lengths.sum() / (time.perf_counter() - start)


def compare(name, agent, env, counts, sizes, others, repeats):
    """Prints the speed with workers as a multiple of the speed of one process.

    Args:
        name: String, the name of the environment.
        agent: `Reinforce`.
        env: Environment id or callable.
        counts: For one process and for workers, the arguments of `collect`.
        sizes: Pair, the numbers of environments.
        others: Int, the number of workers, or `RayWorkers`.
        repeats: Int, the number of measurements of each kind.
    """
    with (
        tfr.collect.open_envs(env, sizes[0]) as one,
        tfr.collect.open_envs(env, sizes[1], workers=others) as pool,
    ):
        rates = []
        for repeat in range(repeats + 1):  # the first one starts processes and programs
            pairs = zip((one, pool), counts)
            rates.append([timed(agent, x, repeat, **count) for x, count in pairs])
    singles, pools = zip(*rates[1:])
    ratios = [b / a for a, b in zip(singles, pools)]
    count = getattr(others, "num_workers", others)
    print(
        f"{name}, {count} workers: {spread(ratios)} times one process; "
        f"{statistics.median(singles):,.0f} and {statistics.median(pools):,.0f} steps/s"
    )


def measure_start(env, repeats):
    """Prints the seconds until one worker is ready, and its memory."""
    agent = tfr.Reinforce.for_env(env)
    agent.collect(env, 1, num_envs=1)
    seconds, resident, own = [], [], []
    for _ in range(repeats):
        with tfr.collect.open_envs(env, 2, workers=2) as pool:
            pool._sizes = [1]  # one worker alone
            start = time.perf_counter()
            pool._start()
            seconds.append(time.perf_counter() - start)
            pool._busy = False
            agent.collect(pool, 1)
            text = pathlib.Path(f"/proc/{pool._workers[0].pid}/smaps_rollup").read_text()
        sizes = {line.split(":")[0]: line.split() for line in text.splitlines()[1:]}
        resident.append(int(sizes["Rss"][1]) / 1024)
        own.append(int(sizes["Pss"][1]) / 1024)
    print(
        f"{env}: a worker is ready after {spread(seconds)} s; resident memory "
        f"{spread(resident, 0)} MiB, of which its share {spread(own, 0)} MiB"
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--only", default=",".join(NAMES))
    options = parser.parse_args()
    only, repeats = options.only.split(","), options.repeats
    if "start" in only:
        for env in ("CartPole-v1", "HalfCheetah-v5"):
            measure_start(env, repeats)
    if "sleep" in only:
        agent = tfr.Reinforce.for_env(sleeping_env.Sleeping)
        counts = dict(episodes=1), dict(episodes=64)
        name = "10 ms, episodes of 50 steps"
        compare(name, agent, sleeping_env.Sleeping, counts, (1, 64), 64, repeats)
    if "ray" in only:
        agent = tfr.Reinforce.for_env(sleeping_env.Sleeping)
        counts = dict(episodes=1), dict(episodes=64)
        with ray_cluster.running(nodes=2, cores=32) as cluster:
            workers = tfr.collect.RayWorkers(64, cluster.address)
            for length in (50, 200):
                env = functools.partial(sleeping_env.Sleeping, length=length)
                name = f"10 ms, Ray, episodes of {length} steps"
                compare(name, agent, env, counts, (1, 64), workers, repeats)
    if "CartPole-v1" in only:
        agent = tfr.Reinforce.for_env("CartPole-v1")
        counts = (dict(episodes=1_000),) * 2
        for size in (8, 16, 32):
            text = f"CartPole-v1, untrained, {size} environments in each process"
            sizes = size, 2 * size
            compare(text, agent, "CartPole-v1", counts, sizes, 2, repeats)
        agent.fit("CartPole-v1", epochs=40, seed=1, verbose=0)
        counts = (dict(episodes=128),) * 2
        for size in (8, 16, 32):
            text = f"CartPole-v1, trained, {size} environments in each process"
            sizes = size, 2 * size
            compare(text, agent, "CartPole-v1", counts, sizes, 2, repeats)
    if "HalfCheetah-v5" in only:
        agent = tfr.Reinforce.for_env("HalfCheetah-v5", hidden=(64, 64))
        counts = (dict(episodes=8),) * 2
        compare("HalfCheetah-v5", agent, "HalfCheetah-v5", counts, (8, 8), 2, repeats)


if __name__ == "__main__":
    main()
