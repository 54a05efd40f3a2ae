"""Writes RESULTS.md and its pictures from the answers of the races."""

import datetime
import os
import pathlib
import platform
import textwrap

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent.parent
OURS = "tf_reinforce"
EARLIER = "\n\n## Earlier measurements\n"


def machine():
    """Describes the date, processor and Python version of a race."""
    cpu = "unknown processor"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":")[1].strip()
    cores = f"{len(os.sched_getaffinity(0))} cores of {cpu}"
    return f"{datetime.date.today()}, {cores}, Python {platform.python_version()}"


def write(results, path):
    """Writes a section for each race that was run, and the pictures beside the file.

    The section `EARLIER` stays unchanged.
    """
    _, mark, earlier = path.read_text().partition(EARLIER) if path.exists() else [""] * 3
    parts = ["# Results", _wrap(INTRODUCTION.strip())]
    for name, section in SECTIONS.items():
        if name in results:
            title, *rest = section(results[name], path.parent)
            parts += [f"## {title}", *map(_wrap, rest), f"*{results[name]['machine']}*"]
    path.write_text("\n\n".join(parts) + (mark + earlier or "\n"))


def _wrap(paragraph):
    """Wraps prose to 90 characters; tables and pictures stay unchanged."""
    return paragraph if paragraph[0] in "|!" else textwrap.fill(paragraph, 90)


INTRODUCTION = """
`make bench-setup` and `make bench` write this page. [README.md](README.md) explains the
races and the implementations. Each implementation has a process of its own. In each
round, the processes work one after another in a new random order, and nothing else runs.
The figures are medians. A ratio is the median of ratios within a round, with a 95 %
bootstrap interval. Parentheses after other figures contain the minimum and the maximum.
"""


def ratio(ours, theirs):
    """Returns the median of ratios over rounds, and its interval, as text."""
    ratios = np.array(ours) / np.array(theirs)
    rng = np.random.default_rng(0)
    resampled = np.median(rng.choice(ratios, (10_000, len(ratios))), axis=1)
    low, high = np.quantile(resampled, [0.025, 0.975])
    return f"{np.median(ratios):.2f} ({low:.2f} to {high:.2f})"


def ratio_of_medians(theirs, ours):
    """Returns the ratio of medians of runs without common rounds, with its interval."""
    rng = np.random.default_rng(0)
    resampled = [
        np.median(rng.choice(x, (10_000, len(x))), axis=1) for x in (theirs, ours)
    ]
    low, high = np.quantile(resampled[0] / resampled[1], [0.025, 0.975])
    return f"{np.median(theirs) / np.median(ours):.1f} ({low:.1f} to {high:.1f})"


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def ranking(rates, head):
    """Returns a table of steps per second, and of the ratios to our fastest."""
    rows, names = [], sorted(rates, key=lambda name: -np.median(rates[name]))
    fastest = next(name for name in names if name.startswith(OURS))
    for name in names:
        steps_per_second = rates[name]
        times = "" if name == fastest else ratio(rates[fastest], steps_per_second)
        rows.append([name, f"{np.median(steps_per_second):,.0f}", times])
    return table([head, "steps/s", "ours ÷ this"], rows)


def compiled(results, _):
    yield "One program: training on CartPole's twin"
    yield f"All compute the same gradient, to {max(results['errors'].values()):.0e}."
    for num_envs, rates in results["rates"].items():
        yield ranking(rates, f"{num_envs} episodes at once")


def host(results, _):
    yield "Host engine: training on CartPole-v1, 8 environments"
    yield (
        "All except A2C, which is not REINFORCE, compute the same plain gradient, to "
        f"{max(results['errors'].values()):.0e}. In the race, each has its own baseline. "
        "With `workers`, one process for each core collects episodes. In the other "
        "libraries, several processes are slower than one process, or no faster."
    )
    yield ranking(results["rates"], "16 episodes per update")


def mujoco(results, _):
    yield "Host engine: training on HalfCheetah-v5, 4 environments"
    yield ranking(results["rates"], "about 4,000 steps per update")


def ppo(results, _):
    yield "Presets and PPO: training on MuJoCo tasks"
    yield (
        "Training with the preset of each task, and with PPO of Stable-Baselines3 with "
        "its default settings, both from untrained networks. The presets of Ant, "
        "HalfCheetah, Hopper, Humanoid, Walker2d and Reacher make as many gradient steps "
        "of the policy as PPO, or fewer with `max_kl`: "
        "ten passes over each batch, in minibatches of 64 steps. Ours has four "
        "environments, PPO has one, its default. A ratio of 2 means that our training "
        "takes half the time for the same steps."
    )
    rows = []
    for task, rates in results["rates"].items():
        ours, theirs = rates[OURS], rates["Stable-Baselines3 PPO"]
        speeds = [f"{np.median(x):,.0f}" for x in (ours, theirs)]
        rows.append([task, *speeds, ratio(ours, theirs)])
    yield table(["task", f"{OURS}, steps/s", "PPO, steps/s", "ours ÷ PPO"], rows)


def _spread(values, digits=2):
    low, middle, high = np.quantile(values, [0, 0.5, 1])
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def solve(results, folder):
    yield "Time to solve CartPole-v1 on Gymnasium's environment"
    answers = results["answers"]
    yield (
        "Seconds of training, after a warm-up, until the mean return of 100 greedy "
        "episodes is at least 475. This evaluation follows every update and is not "
        f"timed. 8 environments, {len(answers[OURS])} seeds. The last column contains "
        "ratios of medians."
    )
    times = {n: [a["seconds"] for a in all_] for n, all_ in answers.items()}
    rows = [
        [
            name,
            _spread(times[name]),
            f"{np.mean(times[name]):.2f}",
            _spread([a["steps"] for a in answers[name]], 0),
            sum(a["return"] >= 475 for a in answers[name]),
            "" if name == OURS else ratio_of_medians(times[name], times[OURS]),
        ]
        for name in sorted(times, key=lambda name: np.median(times[name]))
    ]
    head = ["", "seconds", "mean", "steps", "seeds solved", "this ÷ ours"]
    yield table(head, rows)
    draw_solve(answers, folder / "solve.png")
    yield "![Seconds to solve CartPole-v1, a dot for each seed](solve.png)"


def draw_solve(answers, path):
    """Draws one dot for each seed."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    names = sorted(answers, key=lambda n: -np.median([a["seconds"] for a in answers[n]]))
    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    for row, name in enumerate(names):
        times = [a["seconds"] for a in answers[name]]
        solved = [a["return"] >= 475 for a in answers[name]]
        color = "tab:blue" if name.startswith(OURS) else "tab:gray"
        for time, is_solved in zip(times, solved):
            axes.plot(time, row, "o" if is_solved else "x", color=color, alpha=0.6)
        axes.plot(np.median(times), row, "|", color="black", markersize=16)
    axes.set_yticks(range(len(names)), names)
    axes.set(xscale="log", xlabel="seconds of training until CartPole-v1 is solved")
    axes.grid(axis="x", which="both", alpha=0.3)
    figure.savefig(path, dpi=100)


SECTIONS = {x.__name__: x for x in (host, solve, mujoco, ppo, compiled)}
