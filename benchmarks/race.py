"""The race: implementations side by side, each in a process of its own.

    python benchmarks/race.py compiled [--rounds 7] [--jax .venv-race/jax/bin/python]
    python benchmarks/race.py host [--torch .venv-race/torch/bin/python]
    python benchmarks/race.py solve
    python benchmarks/race.py scaling
    python benchmarks/race.py seeds [--count 256] [--picture docs/seeds.png]

Workers are warm (compiled, and asked once) before the first round; in each round they
are asked one after the other, in an order drawn anew, and only one works at a time.
Beforehand all must say the same gradient from the same episodes at the same weights.
Figures are medians over rounds of ratios within a round, with a bootstrap interval.
"""

import argparse
import json
import os
import pathlib
import platform
import subprocess
import sys
import time

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE / "race"))
import protocol

LENGTHS = (5, 17, 30, 1)
UPDATES = 30


def equal_gradients(workers):
    """Refuses to race unless all give one gradient, to 1e-5 of its largest number."""
    rng = np.random.default_rng(0)
    shapes = (4, 64), (64,), (64, 64), (64,), (64, 2), (2,)
    rows, count = max(LENGTHS), len(LENGTHS)
    question = {
        "weights": [(0.3 * rng.normal(size=shape)).tolist() for shape in shapes],
        "observations": rng.normal(size=(rows + 1, count, 4)).tolist(),
        "actions": rng.integers(2, size=(rows, count)).tolist(),
        "lengths": LENGTHS,
    }
    answers = [worker.ask("gradient", **question)["gradients"] for worker in workers]
    for worker, answer in zip(workers[1:], answers[1:], strict=True):
        for ours, theirs in zip(answers[0], answer, strict=True):
            error = np.abs(np.subtract(ours, theirs)).max() / np.abs(ours).max()
            if error > 1e-5:
                raise SystemExit(f"{worker.name} has another gradient: {error:.1e}")


def ratios(first, second):
    """The median of ratios over rounds, and a bootstrap interval of 95 %."""
    each = np.array(first) / np.array(second)
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(each, (10_000, len(each))), axis=1)
    return np.median(each), *np.quantile(drawn, [0.025, 0.975])


def compiled(options):
    """Training on CartPole's twin, from scratch: ours beside the same program in JAX."""
    workers = [
        protocol.Worker("ours", sys.executable, HERE / "race/compiled_ours.py", None),
        protocol.Worker("jax", options.jax, HERE / "race/compiled_jax.py", None),
    ]
    equal_gradients(workers)
    rng, found = np.random.default_rng(0), {}
    for envs in options.envs:
        rates = {worker.name: [] for worker in workers}
        for number in range(-1, options.rounds):  # the first compiles
            for worker in rng.permutation(workers):
                asked = dict(envs=envs, updates=UPDATES, seed=number + 1)
                answer = worker.ask("train", **asked)
                if number >= 0:
                    rates[worker.name].append(answer["steps"] / answer["seconds"])
                else:
                    print(f"{worker.name}, {envs}: first call {answer['seconds']:.1f} s")
        median, low, high = ratios(rates["ours"], rates["jax"])
        found[envs] = rates
        ours, theirs = (np.median(rates[worker.name]) for worker in workers)
        interval = f"{median:.2f} ({low:.2f} to {high:.2f})"
        print(f"| {envs} | {ours:,.0f} | {theirs:,.0f} | {interval} |", flush=True)
    for worker in workers:
        worker.close()
    return found


def host(options):
    """Training on Gymnasium's own CartPole-v1, from scratch, with 8 environments."""
    workers = [
        protocol.Worker("ours", sys.executable, HERE / "race/host_ours.py", None),
        *(
            protocol.Worker(name, options.torch, HERE / f"race/host_{name}.py", None)
            for name in ("torch", "sb3", "tianshou")
        ),
    ]
    rng, rates = np.random.default_rng(0), {worker.name: [] for worker in workers}
    asked = dict(env="CartPole-v1", envs=8, steps=options.steps)
    for number in range(-1, options.rounds):
        for worker in rng.permutation(workers):
            answer = worker.ask("train", seed=number + 1, **asked)
            if number >= 0:
                rates[worker.name].append(answer["steps"] / answer["seconds"])
    for worker in workers:
        median, low, high = ratios(rates["ours"], rates[worker.name])
        rate = np.median(rates[worker.name])
        print(f"| {worker.name} | {rate:,.0f} | {median:.1f} ({low:.1f} to {high:.1f}) |")
        worker.close()
    return rates


def solve(options):
    """CartPole-v1 solved on its twin, verified on 100 episodes of Gymnasium's own."""
    worker = protocol.Worker("ours", sys.executable, HERE / "race/compiled_ours.py", None)
    asked = dict(envs=options.episodes, updates=options.updates)
    worker.ask("solve", seed=options.seeds, **asked)  # compiles
    found = [worker.ask("solve", seed=seed, **asked) for seed in range(options.seeds)]
    worker.close()
    for name in ("seconds", "steps", "return"):
        values = [one[name] for one in found]
        low, middle, high = np.quantile(values, [0, 0.5, 1])
        print(f"{name}: median {middle:,.3g} ({low:,.3g} to {high:,.3g})")
    return found


def scaling(options):
    """Training with ever more episodes at once: time per step, and memory."""
    found = {}
    for envs in options.envs:
        worker = protocol.Worker(
            "ours", sys.executable, HERE / "race/compiled_ours.py", None
        )
        asked = dict(envs=envs, updates=UPDATES)
        first = worker.ask("train", envs=16, updates=1, seed=0) and worker.ask("memory")
        worker.ask("train", seed=0, **asked)
        runs = [worker.ask("train", seed=seed, **asked) for seed in range(options.rounds)]
        each = np.median([run["seconds"] / run["steps"] for run in runs])
        most = worker.ask("memory")["most"] - first["most"]
        found[envs] = {"nanoseconds": each * 1e9, "gigabytes": most}
        print(
            f"| {envs} | {1 / each:,.0f} | {each * 1e9:.0f} | {most:.2f} | "
            f"{most / envs * 1024:.2f} |",
            flush=True,
        )
        worker.close()
    worker = protocol.Worker("ours", sys.executable, HERE / "race/compiled_ours.py", None)
    found["long"] = worker.ask("long", envs=256, updates=5, steps=10_000_000)
    worker.close()
    used = ", ".join(f"{gigabytes:.3f}" for gigabytes in found["long"]["used"])
    print(f"GiB after each tenth of {found['long']['steps']:,} steps: {used}")
    return found


def seeds(options):
    """Many seeds at once beside as many processes, all from a cold start."""

    def cold(*given):
        began = time.perf_counter()
        script = [sys.executable, str(HERE / "race/seeds.py"), *map(str, given)]
        quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
        ran = subprocess.run(script, capture_output=True, check=True, env=quiet)
        answer = json.loads(ran.stdout.splitlines()[-1])
        return {**answer, "seconds": time.perf_counter() - began}

    alone = [cold("one", seed) for seed in range(options.rounds)]
    together = cold("many", options.count)
    each = np.median([one["seconds"] for one in alone])
    print(f"one seed, a process: {each:.1f} s, {alone[0]['gigabytes']:.2f} GiB")
    print(
        f"{options.count} seeds at once: {together['seconds']:.1f} s, "
        f"{together['steps'] / together['seconds']:,.0f} steps/s from a cold start, "
        f"{together['gigabytes']:.2f} GiB; "
        f"{options.count * each / together['seconds']:.1f} times sooner"
    )
    if options.picture:
        draw(np.array(together["returns"]), options.picture)
    return {"alone": alone, "together": together}


def draw(returns, path):
    """Learning curves `[updates, seeds]`, their median and quantiles."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    updates = np.arange(1, len(returns) + 1)
    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    axes.plot(updates, returns, color="tab:gray", alpha=0.12, linewidth=0.7)
    for least, shade in ((0.05, 0.2), (0.25, 0.35)):
        low, high = np.quantile(returns, [least, 1 - least], axis=1)
        name = f"{100 - 200 * least:.0f} % of the seeds"
        axes.fill_between(updates, low, high, color="tab:blue", alpha=shade, label=name)
    axes.plot(updates, np.median(returns, axis=1), color="tab:blue", label="median")
    axes.set(xlabel="update, of 16 episodes", ylabel="return", ylim=(0, 510))
    axes.set_title(f"CartPole-v1, {returns.shape[1]} seeds in one program", fontsize=10)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=100)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    races = parser.add_subparsers(required=True)
    race = races.add_parser("compiled", help=compiled.__doc__)
    race.set_defaults(race=compiled)
    race.add_argument("--envs", type=int, nargs="+", default=[64, 256, 1024])
    race.add_argument("--jax", default=".venv-race/jax/bin/python")
    race.add_argument("--rounds", type=int, default=7)
    race = races.add_parser("host", help=host.__doc__)
    race.set_defaults(race=host)
    race.add_argument("--torch", default=".venv-race/torch/bin/python")
    race.add_argument("--steps", type=int, default=50_000)
    race.add_argument("--rounds", type=int, default=7)
    race = races.add_parser("solve", help=solve.__doc__)
    race.set_defaults(race=solve)
    race.add_argument("--seeds", type=int, default=10)
    race.add_argument("--episodes", type=int, default=16)
    race.add_argument("--updates", type=int, default=5, help="in one call")
    race = races.add_parser("scaling", help=scaling.__doc__)
    race.set_defaults(race=scaling)
    race.add_argument("--envs", type=int, nargs="+", default=[64, 256, 1024, 4096])
    race.add_argument("--rounds", type=int, default=3)
    race = races.add_parser("seeds", help=seeds.__doc__)
    race.set_defaults(race=seeds)
    race.add_argument("--count", type=int, default=256)
    race.add_argument("--rounds", type=int, default=7)
    race.add_argument("--picture", help="PNG of the learning curves")
    for race in races.choices.values():
        race.add_argument("--out", help="JSON of all rounds")
    options = parser.parse_args()
    print(f"{platform.processor() or platform.machine()}, load {os.getloadavg()[0]:.1f}")
    found = options.race(options)
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
