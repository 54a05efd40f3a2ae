"""Measures collecting with EnvPool, environments in one process, and workers.

    python benchmarks/envpool_speed.py [HalfCheetah-v5 Ant-v5] [--rounds 7]

In each round, each way collects 16 whole episodes with the weights of the same untrained
policy, one way after another. The first round is not counted. The program prints a table
of medians over the rounds, with minima and maxima. Ratios compare ways of the same round.
"""

import argparse
import contextlib
import os
import statistics
import time
import warnings

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import envpool

import tf_reinforce as tfr

EPISODES = 16
WAYS = {  # EnvPool or not, num_envs, workers
    "`num_envs=8`": (False, 8, 1),
    "`num_envs=8, workers=2`": (False, 8, 2),
    "EnvPool, `num_envs=8`": (True, 8, 1),
    "EnvPool, `num_envs=16`": (True, 16, 1),
}


def open_way(stack, name, is_envpool, num_envs, workers):
    """Returns open environments, which the stack closes."""
    if is_envpool:
        env = envpool.make(name, env_type="gymnasium", num_envs=num_envs, seed=0)
        stack.callback(env.close)
        return stack.enter_context(tfr.collect.open_envs(env, num_envs))
    return stack.enter_context(tfr.collect.open_envs(name, num_envs, workers=workers))


def measure(name, rounds):
    """Returns the steps per second of each way, a list with a value per round."""
    with contextlib.ExitStack() as stack:
        ways = {way: open_way(stack, name, *options) for way, options in WAYS.items()}
        # EnvPool's spaces have other number types than Gymnasium's. Therefore each way
        # has an agent of its own. All agents have equal weights.
        agents = {way: tfr.Reinforce.for_env(envs, seed=0) for way, envs in ways.items()}
        rates = {way: [] for way in ways}
        for index in range(rounds + 1):
            for way, envs in ways.items():
                start = time.perf_counter()
                episodes = agents[way].collect(envs, EPISODES, seed=index)
                rate = float(episodes.lengths.sum() / (time.perf_counter() - start))
                if index:  # the first round starts processes and compiles programs
                    rates[way].append(rate)
    return rates


def spread(values, digits):
    """Returns a text with median, minimum and maximum."""
    low, high = (f"{x:,.{digits}f}" for x in (min(values), max(values)))
    return f"{statistics.median(values):,.{digits}f} ({low} to {high})"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("envs", nargs="*", default=["HalfCheetah-v5", "Ant-v5"])
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", ".*precision lowered by casting")
    print("| environment | environments and workers | steps/s | ratio |")
    print("|---|---|---|---|")
    for name in options.envs:
        rates = measure(name, options.rounds)
        base = next(iter(rates.values()))
        for way, values in rates.items():
            ratios = [value / one for value, one in zip(values, base)]
            print(f"| {name} | {way} | {spread(values, 0)} | {spread(ratios, 2)} |")


if __name__ == "__main__":
    main()
