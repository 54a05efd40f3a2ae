"""RESULTS.md and its pictures, from the answers of the races."""

import datetime
import os
import pathlib
import platform
import textwrap

import numpy as np

HERE = pathlib.Path(__file__).resolve().parent.parent
OURS = "tf_reinforce"


def machine():
    """Where and when a race was run."""
    cpu = "unknown processor"
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            cpu = line.split(":")[1].strip()
    cores = f"{len(os.sched_getaffinity(0))} cores of {cpu}"
    return f"{datetime.date.today()}, {cores}, Python {platform.python_version()}"


def write(found, path):
    """Writes a section for each race that was run; draws into the same folder."""
    parts = ["# Results", _filled(INTRODUCTION.strip())]
    for name, section in SECTIONS.items():
        if name in found:
            title, *rest = section(found[name], path.parent)
            parts += [f"## {title}", *map(_filled, rest), f"*{found[name]['machine']}*"]
    path.write_text("\n\n".join(parts) + "\n")


def _filled(paragraph):
    """Prose in lines of 90; tables and pictures as they are."""
    return paragraph if paragraph[0] in "|!" else textwrap.fill(paragraph, 90)


INTRODUCTION = """
`make bench-setup` and `make bench` write this page; [README.md](README.md) says how the
races are run and what each implementation does. Each has a process of its own and is
asked in turn, in another order each round, nothing else running. Figures are medians; a
ratio is the median of ratios within a round, with a 95 % bootstrap interval. Brackets
behind other figures hold the least and the most.
"""


def ratio(ours, theirs):
    """The median of ratios over rounds, and its interval, as text."""
    each = np.array(ours) / np.array(theirs)
    rng = np.random.default_rng(0)
    drawn = np.median(rng.choice(each, (10_000, len(each))), axis=1)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return f"{np.median(each):.2f} ({low:.2f} to {high:.2f})"


def apart(theirs, ours):
    """The ratio of medians of runs that have no rounds in common, and its interval."""
    rng = np.random.default_rng(0)
    drawn = [np.median(rng.choice(x, (10_000, len(x))), axis=1) for x in (theirs, ours)]
    low, high = np.quantile(drawn[0] / drawn[1], [0.025, 0.975])
    return f"{np.median(theirs) / np.median(ours):.1f} ({low:.1f} to {high:.1f})"


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def raced(rates, head):
    """Steps per second of each, and how many times as fast our fastest is."""
    rows, order = [], sorted(rates, key=lambda name: -np.median(rates[name]))
    best = next(name for name in order if name.startswith(OURS))
    for name in order:
        theirs = rates[name]
        apart = "" if name == best else ratio(rates[best], theirs)
        rows.append([name, f"{np.median(theirs):,.0f}", apart])
    return table([head, "steps/s", "ours ÷ this"], rows)


def compiled(found, _):
    yield "One program: training on CartPole's twin"
    yield f"All give the same gradient, to {max(found['errors'].values()):.0e}."
    for envs, rates in found["rates"].items():
        yield raced(rates, f"{envs} episodes at once")


def host(found, _):
    yield "Host engine: training on CartPole-v1, 8 environments"
    yield (
        "All but A2C, which is not REINFORCE, give the same plain gradient, to "
        f"{max(found['errors'].values()):.0e}; each is raced with its own baseline. "
        "`workers`: a process for each core plays. What others have of the kind is "
        "slower than one process, or no faster."
    )
    yield raced(found["rates"], "16 episodes per update")


def mujoco(found, _):
    yield "Host engine: training on HalfCheetah-v5, 4 environments"
    yield raced(found["rates"], "about 4,000 steps per update")


def parts(found, _):
    yield "Acting and learning"
    yield (
        "Microseconds from NumPy observations to sampled NumPy actions, CartPole's "
        "policy, for some observations at once:"
    )
    batches = list(found["act"])
    rows = [
        [name, *(f"{np.median(found['act'][b][name]):,.1f}" for b in batches)]
        for name in found["act"][batches[0]]
    ]
    yield table(["", *batches], rows)
    yield "One update from 16 episodes of 500 steps:"
    rows = [
        [name, f"{1e3 * np.median(s):.1f}", f"{8000 / np.median(s):,.0f}"]
        for name, s in sorted(found["learn"].items(), key=lambda item: np.median(item[1]))
    ]
    yield table(["", "ms", "steps learned from per second"], rows)


def _spread(values, digits=2):
    low, middle, high = np.quantile(values, [0, 0.5, 1])
    return f"{middle:,.{digits}f} ({low:,.{digits}f} to {high:,.{digits}f})"


def solve(found, folder):
    yield "Time to solve CartPole-v1 on Gymnasium's own environment"
    answers = found["answers"]
    yield (
        "Warm: seconds of training until 100 episodes of the most likely action return "
        "475 on average, played after every update with the clock stopped; 8 "
        f"environments, {len(answers[OURS])} seeds. Last: ratios of medians."
    )
    times = {n: [a["seconds"] for a in all_] for n, all_ in answers.items()}
    rows = [
        [
            name,
            _spread(times[name]),
            f"{np.mean(times[name]):.2f}",
            _spread([a["steps"] for a in answers[name]], 0),
            sum(a["return"] >= 475 for a in answers[name]),
            "" if name == OURS else apart(times[name], times[OURS]),
        ]
        for name in sorted(times, key=lambda name: np.median(times[name]))
    ]
    head = ["", "seconds", "mean", "steps", "seeds solved", "this ÷ ours"]
    yield table(head, rows)
    draw_solve(answers, folder / "solve.png")
    yield "![Seconds to solve CartPole-v1, a dot for each seed](solve.png)"


def cold(found, _):
    yield "The same from a cold start"
    yield (
        "Three new processes each: from the start until all is imported, a first "
        "solution with whatever is traced, converted or compiled meanwhile, and "
        "the most memory."
    )
    rows = []
    for name, answers in found["answers"].items():
        columns = [[a[key] for a in answers] for key in ("imports", "seconds", "most")]
        rows.append([name, *(_spread(column) for column in columns)])
    yield table(["", "imports, s", "first solution, s", "memory, GiB"], rows)


def compiled_solve(found, _):
    yield "Time to solve CartPole-v1, compiled engine"
    answers = found["answers"]
    seconds, steps, returns = (
        _spread([a[key] for a in answers], digits)
        for key, digits in (("seconds", 2), ("steps", 0), ("return", 0))
    )
    yield (
        f"{len(answers)} seeds on the twin, after compilation, 16 episodes an update, "
        "until an update's mean is 475 and 100 episodes of Gymnasium's own environment "
        f"confirm it: **{seconds} s** of training, {steps} steps, confirmed "
        f"with {returns}."
    )
    whole, reached = (
        _spread([one[key] for one in found["whole"]], digits)
        for key, digits in (("seconds", 1), ("return", 0))
    )
    yield (
        "The whole of `tf-reinforce train CartPole-v1`, a new process for each of "
        f"{len(found['whole'])} seeds, with imports, compilation, evaluation on "
        "100 episodes of Gymnasium's own environment and a run directory: "
        f"**{whole} s**, confirmed with {reached}."
    )


def stepping(found, _):
    yield "Stepping alone"
    yield (
        "CartPole-v1 with actions drawn at random, no policy, no learning. Our twin "
        "plays whole episodes with a policy that has learned nothing, 22 steps on "
        "average, until the longest of them has ended, and records them."
    )
    names = {
        "one_by_one": "`gymnasium.make`, in turn",
        "vectorized": "`gymnasium.make_vec`",
        "played": "our twin, with policy and record",
    }
    rows = [
        [envs, *(f"{np.median(rates[n]):,.0f}" if n in rates else "" for n in names)]
        for envs, rates in found["rates"].items()
    ]
    yield table(["environments, steps/s", *names.values()], rows)


def scaling(found, _):
    yield "Scaling: ever more episodes at once"
    rows = []
    for envs, run in found["runs"].items():
        each = np.median(run["seconds"])
        more = f"{run['gigabytes'] / int(envs) * 1024:.2f}"
        rows.append([envs, f"{1 / each:,.0f}", f"{each * 1e9:.0f}", more])
    yield table(["episodes at once", "steps/s", "ns per step", "MiB per episode"], rows)
    used = ", ".join(f"{gigabytes:.2f}" for gigabytes in found["long"]["used"])
    yield f"GiB in use after each tenth of {found['long']['steps']:,} steps: {used}."


def _rate_between(short, long):
    """Steps per second of what the longer of two runs did more."""
    return (long["steps"] - short["steps"]) / (long["seconds"] - short["seconds"])


def seeds(found, folder):
    yield "256 seeds at once"
    alone = [one["seconds"] for one in found["alone"]]
    together = found["together"]
    updates, count = np.shape(together["returns"])
    one, many = (
        [_rate_between(*both[which]) for both in found["more"]]
        for which in ("alone", "together")
    )
    sooner = count * np.median(alone) / together["seconds"]
    yield (
        f"One seed in a process of its own: {_spread(alone, 1)} s from a cold start, "
        f"{updates} updates of 16 episodes. {count} seeds in one process: "
        f"{together['seconds']:.1f} s, {together['gigabytes']:.1f} GiB: "
        f"**{sooner:.0f} times sooner** than {count} processes one after the other, "
        f"{sooner / 2:.0f} times than two at a time if these did not slow each other. "
        f"Once they have learned, with 64 episodes per update, they make **"
        f"{_spread(many, 0)} steps/s**; one seed with 1,024 episodes per update makes "
        f"{_spread(one, 0)}: {_spread(np.divide(many, one))} times as many in "
        f"{len(one)} rounds."
    )
    draw_seeds(np.array(together["returns"]), folder / "seeds.png")
    yield "![256 learning curves, their median and quantiles](seeds.png)"


def draw_solve(answers, path):
    """A dot for each seed."""
    pyplot = _pyplot()
    names = sorted(answers, key=lambda n: -np.median([a["seconds"] for a in answers[n]]))
    figure, axes = pyplot.subplots(figsize=(7, 3), layout="constrained")
    for row, name in enumerate(names):
        times = [a["seconds"] for a in answers[name]]
        solved = [a["return"] >= 475 for a in answers[name]]
        color = "tab:blue" if name.startswith(OURS) else "tab:gray"
        for time, done in zip(times, solved):
            axes.plot(time, row, "o" if done else "x", color=color, alpha=0.6)
        axes.plot(np.median(times), row, "|", color="black", markersize=16)
    axes.set_yticks(range(len(names)), names)
    axes.set(xscale="log", xlabel="seconds of training until CartPole-v1 is solved")
    axes.grid(axis="x", which="both", alpha=0.3)
    figure.savefig(path, dpi=100)


def draw_seeds(returns, path):
    """Learning curves `[updates, seeds]`, their median and quantiles."""
    pyplot = _pyplot()
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
        parts,
        compiled,
        compiled_solve,
        scaling,
        seeds,
        stepping,
    )
}
