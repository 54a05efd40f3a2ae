"""Writes RESULTS.md and its pictures from the answers of the races."""

import datetime
import os
import pathlib
import platform
import textwrap

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent.parent
OURS = "tf_reinforce"


def machine():
    """Describes the date, processor and Python version of a race."""
    cpu = "unknown processor"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":")[1].strip()
    cores = f"{len(os.sched_getaffinity(0))} cores of {cpu}"
    return f"{datetime.date.today()}, {cores}, Python {platform.python_version()}"


def write(results, path):
    """Writes a section for each race that was run, and the pictures beside the file."""
    parts = ["# Results", _wrap(INTRODUCTION.strip())]
    for name, section in SECTIONS.items():
        if name in results:
            title, *rest = section(results[name], path.parent)
            parts += [f"## {title}", *map(_wrap, rest), f"*{results[name]['machine']}*"]
    path.write_text("\n\n".join(parts) + "\n")


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


def parts(results, _):
    yield "Acting and learning"
    yield (
        "Microseconds from NumPy observations to sampled NumPy actions with CartPole's "
        "policy, for 1 to 256 observations at once:"
    )
    batches = list(results["act"])
    rows = [
        [name, *(f"{np.median(results['act'][b][name]):,.1f}" for b in batches)]
        for name in results["act"][batches[0]]
    ]
    yield table(["", *batches], rows)
    yield "One update from 16 episodes of 500 steps:"
    rows = [
        [name, f"{1e3 * np.median(s):.1f}", f"{8000 / np.median(s):,.0f}"]
        for name, s in sorted(
            results["learn"].items(), key=lambda item: np.median(item[1])
        )
    ]
    yield table(["", "ms", "steps learned from per second"], rows)


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


def cold(results, _):
    yield "Time to solve CartPole-v1 from a cold start"
    yield (
        "Three new processes each: the time until all modules are imported, the time of "
        "a first solution including tracing, conversion and compilation, and the peak "
        "memory."
    )
    rows = []
    for name, answers in results["answers"].items():
        columns = [[a[key] for a in answers] for key in ("imports", "seconds", "most")]
        rows.append([name, *(_spread(column) for column in columns)])
    yield table(["", "imports, s", "first solution, s", "memory, GiB"], rows)


def compiled_solve(results, _):
    yield "Time to solve CartPole-v1, compiled engine"
    answers = results["answers"]
    seconds, steps, returns = (
        _spread([a[key] for a in answers], digits)
        for key, digits in (("seconds", 2), ("steps", 0), ("return", 0))
    )
    yield (
        f"{len(answers)} seeds on the twin, after compilation, with 16 episodes per "
        "update, until the mean return of an update and of 100 episodes of Gymnasium's "
        f"environment is at least 475: **{seconds} s** of training, {steps} steps, and a "
        f"return of {returns} on Gymnasium's environment."
    )
    seconds_of_command, command_return = (
        _spread([run[key] for run in results["whole"]], digits)
        for key, digits in (("seconds", 1), ("return", 0))
    )
    yield (
        "The complete command `tf-reinforce train CartPole-v1`, in a new process "
        f"for each of {len(results['whole'])} seeds, with imports, compilation, "
        "evaluation on 100 episodes of Gymnasium's environment and a run directory: "
        f"**{seconds_of_command} s**, with a return of {command_return}."
    )


def stepping(results, _):
    yield "Stepping alone"
    yield (
        "CartPole-v1 with random actions, without a policy and without learning. "
        "Our twin collects whole episodes with an untrained policy, 22 steps on average, "
        "until the longest of them has ended, and records them."
    )
    names = {
        "one_by_one": "`gymnasium.make`, one by one",
        "vectorized": "`gymnasium.make_vec`",
        "played": "our twin, with policy and record",
    }
    rows = [
        [num_envs, *(f"{np.median(rates[n]):,.0f}" if n in rates else "" for n in names)]
        for num_envs, rates in results["rates"].items()
    ]
    yield table(["environments, steps/s", *names.values()], rows)


def scaling(results, _):
    yield "Scaling with the number of episodes at once"
    rows = []
    for num_envs, run in results["runs"].items():
        seconds_per_step = np.median(run["seconds"])
        memory = f"{run['gigabytes'] / int(num_envs) * 1024:.2f}"
        rows.append(
            [
                num_envs,
                f"{1 / seconds_per_step:,.0f}",
                f"{seconds_per_step * 1e9:.0f}",
                memory,
            ]
        )
    yield table(["episodes at once", "steps/s", "ns per step", "MiB per episode"], rows)
    memory_used = ", ".join(f"{gigabytes:.2f}" for gigabytes in results["long"]["used"])
    steps = results["long"]["steps"]
    yield f"GiB in use after each tenth of {steps:,} steps: {memory_used}."


def _rate_between(short, long):
    """Returns steps per second of the additional steps of the longer run."""
    return (long["steps"] - short["steps"]) / (long["seconds"] - short["seconds"])


def seeds(results, folder):
    yield "256 seeds at once"
    single_seconds = [run["seconds"] for run in results["alone"]]
    many_seeds = results["together"]
    updates, count = np.shape(many_seeds["returns"])
    single_rates, many_rates = (
        [_rate_between(*both[which]) for both in results["more"]]
        for which in ("alone", "together")
    )
    speedup = count * np.median(single_seconds) / many_seeds["seconds"]
    ratios = np.divide(many_rates, single_rates)
    yield (
        f"One seed in a process of its own takes {_spread(single_seconds, 1)} s from a "
        f"cold start, with {updates} updates of 16 episodes. {count} seeds in one "
        f"process take {many_seeds['seconds']:.1f} s, {many_seeds['gigabytes']:.1f} GiB: "
        f"**{speedup:.0f} times sooner** than {count} processes one after the other, and "
        f"{speedup / 2:.0f} times sooner than two processes at a time if these did not "
        f"slow each other. Later, with 64 episodes per update, the seeds make **"
        f"{_spread(many_rates, 0)} steps/s**; one seed with 1,024 episodes per update "
        f"makes {_spread(single_rates, 0)}: {_spread(ratios)} times as many in "
        f"{len(single_rates)} rounds."
    )
    draw_seeds(np.array(many_seeds["returns"]), folder / "seeds.png")
    yield "![256 learning curves, their median and quantiles](seeds.png)"


def draw_solve(answers, path):
    """Draws one dot for each seed."""
    pyplot = _pyplot()
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


def draw_seeds(returns, path):
    """Draws learning curves `[updates, seeds]`, their median and quantiles."""
    pyplot = _pyplot()
    updates = np.arange(1, len(returns) + 1)
    figure, axes = pyplot.subplots(figsize=(7, 3.5), layout="constrained")
    axes.plot(updates, returns, color="tab:gray", alpha=0.12, linewidth=0.7)
    for lower, shade in ((0.05, 0.2), (0.25, 0.35)):
        low, high = np.quantile(returns, [lower, 1 - lower], axis=1)
        name = f"{100 - 200 * lower:.0f} % of the seeds"
        axes.fill_between(updates, low, high, color="tab:blue", alpha=shade, label=name)
    axes.plot(updates, np.median(returns, axis=1), color="tab:blue", label="median")
    axes.set(xlabel="update, of 16 episodes", ylabel="return", ylim=(0, 510))
    axes.set_title(f"CartPole-v1, {returns.shape[1]} seeds in one program", fontsize=10)
    axes.legend(loc="lower right", fontsize=8)
    figure.savefig(path, dpi=100)


def _pyplot():
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


SECTIONS = {
    section.__name__: section
    for section in (
        host,
        solve,
        cold,
        mujoco,
        ppo,
        parts,
        compiled,
        compiled_solve,
        scaling,
        seeds,
        stepping,
    )
}
