"""Tables and pictures of the runs of `learning.py`, beside Tianshou's REINFORCE."""

import json
import math
import pathlib

import numpy as np

from tf_reinforce import files

HERE = pathlib.Path(__file__).resolve().parent
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
EVERY = 50_000  # environment steps from one evaluation to the next
CRITIC_FREE = "-critic-free"
MILLION = 1_013_760  # the evaluation of Tianshou's next to a million steps
RESAMPLES = 10_000
PUBLISHED = "results.jsonl"


def read(results, published=None):
    """The finished runs: `{(preset, steps): [record, …]}`, and how many are not.

    Args:
        results: Path of the folder with a JSON for each run, in folders of their own.
        published: Path of a file with finished runs, a line each, that are wanted too.
    """
    lines = published.read_text().splitlines() if published and published.exists() else []
    found = [json.loads(path.read_text()) for path in results.glob("*/*_seed*.json")]
    finished = {}
    for record in [*map(json.loads, lines), *found]:
        if not record["finished"]:
            continue
        key = record["preset"], record["steps"], record["seed"]
        record["curve"] = [[round(x, 3) for x in point] for point in record["curve"]]
        if finished.setdefault(key, record)["curve"] != record["curve"]:
            preset, steps, seed = key
            raise SystemExit(
                f"Of {preset} over {steps} steps seed {seed} is in {published}, and "
                f"another run of it in {results}. Remove one."
            )
    groups = {}
    for (preset, steps, _), record in sorted(finished.items()):
        groups.setdefault((preset, steps), []).append(record)
    for (preset, steps), records in groups.items():
        kinds = [(record["settings"], record["every"]) for record in records]
        if any(kind != kinds[0] for kind in kinds):
            raise SystemExit(
                f"Of {preset} over {steps} steps there are runs with other settings. "
                f"Remove the old ones from {published} or {results}."
            )
    return groups, sum(not record["finished"] for record in found)


def publish(path, groups):
    """Writes finished runs as JSON, a line each, all of them or none."""
    records = [record for records in groups.values() for record in records]
    with files.atomic_write(path) as aside:
        lines = "".join(f"{json.dumps(record)}\n" for record in records)
        pathlib.Path(aside).write_text(lines)


def reference():
    """Tianshou's figures, by the name of the task without its version."""
    return json.loads((HERE / "tianshou_reinforce.json").read_text())["tasks"]


def task_of(records):
    """`Ant`, of the runs on `Ant-v5`."""
    return records[0]["settings"]["env"].rsplit("-v", 1)[0]


def aligned(records):
    """The curves of several seeds over the same steps.

    Whole episodes pass a step a little later in one run than in another: at each step
    that asked for an evaluation stands the first one made since.

    Returns:
        `[P]` environment steps and `[seeds, P]` mean returns.
    """
    steps, every = records[0]["steps"], records[0]["every"]
    marks = np.array([*range(0, steps, every), steps])
    curves = []
    for record in records:
        taken, means = np.array(record["curve"])[:, :2].T
        curves.append(means[np.searchsorted(taken, marks)])
    return marks, np.array(curves)


def best_of_mean(curves):
    """Where the mean over seeds is highest: that mean, and the population std there."""
    means = curves.mean(axis=0)
    at = means.argmax()
    return means[at], curves[:, at].std()


def best_of_each(curves):
    """Mean and population std over seeds of each seed's own highest evaluation."""
    return curves.max(axis=1).mean(), curves.max(axis=1).std()


def interquartile_mean(values):
    """The mean of what is left without a quarter, rounded down, at either end.

    Args:
        values: `[..., N]` floats.
    """
    values = np.sort(values, axis=-1)
    cut = values.shape[-1] // 4
    return values[..., cut : values.shape[-1] - cut].mean(axis=-1)


def interval(values, share=0.95):
    """The percentile bootstrap interval of the interquartile mean of `[N]` values."""
    rng = np.random.default_rng(0)
    means = interquartile_mean(rng.choice(values, (RESAMPLES, len(values))))
    return np.quantile(means, [(1 - share) / 2, (1 + share) / 2])


def numbers(first, *others):
    """As texts, all with as many places as the first one needs."""
    size = abs(first)
    places = 1 if size >= 10 else 2 if size >= 1 else 4
    return [f"{x:,.{places}f}" for x in (first, *others)]


def spread(mean, std):
    return " ± ".join(numbers(mean, std))


def row(preset, steps, records):
    """What the runs of one preset came to."""
    _, curves = aligned(records)
    finals = [record["final"]["episode_return"] for record in records]
    seconds = [r["training_seconds"] + r["evaluation_seconds"] for r in records]
    middle, low, high = numbers(interquartile_mean(finals), *interval(finals))
    return [
        preset,
        f"{steps:,}",
        str(len(records)),
        spread(*best_of_mean(curves)),
        spread(*best_of_each(curves)),
        spread(np.mean(finals), np.std(finals)),
        f"{middle} [{low}, {high}]",
        f"{np.mean([r['steps_per_second'] for r in records]):,.0f}",
        f"{np.mean(seconds) / 60:,.1f}",
    ]


def comparison(preset, steps, records, known):
    """The same beside Tianshou's, each with a mark: whether ours is at least as high.

    What stands beside a figure to so many steps is ours to as many.
    """

    def cell(ours, theirs):
        return f"{spread(*theirs)} {'✔' if ours[0] >= theirs[0] else '✘'}"

    def best(most):
        return best_of_mean(curves[:, marks <= most])

    marks, curves = aligned(records)
    last = curves[:, -1].mean(), curves[:, -1].std()
    million = [point[1:] for point in known["curve"] if point[0] <= MILLION]
    published = known["published"]
    return [
        preset,
        f"{steps:,}",
        spread(*best(steps)),
        cell(best(MILLION), max(million)),
        *(cell(best(budget_of(name)), theirs) for name, theirs in published.items()),
        spread(*last),
        cell(last, million[-1]) if steps <= MILLION else spread(*million[-1]),
    ]


def budget_of(name):
    """The environment steps in the name of a figure, `REINFORCE 3M`; a little more."""
    return int(name.rpartition(" ")[2].removesuffix("M")) * MILLION


ROW = (
    "preset",
    "steps",
    "seeds",
    "best of the mean curve",
    "best of each seed",
    "final, greedy",
    "its IQM [95 %]",
    "steps/s",
    "minutes",
)
COMPARISON = (
    "preset",
    "steps",
    "ours, best",
    "REINFORCE, best to 1M",
    "best to 3M",
    "best to 10M",
    "A2C, best to 1M",
    "ours, last",
    "REINFORCE at 1M",
)


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def divided(groups, known):
    """The runs on tasks that Tianshou has, in its order, and the others by name."""
    order = list(known)
    theirs = {k: runs for k, runs in groups.items() if task_of(runs) in known}
    others = {k: runs for k, runs in groups.items() if k not in theirs}
    place = sorted(theirs, key=lambda k: (order.index(task_of(theirs[k])), k))
    return {k: theirs[k] for k in place}, dict(sorted(others.items()))


def tables(groups, unfinished, known):
    """All of them, as Markdown, and how they were made."""
    if not groups:
        return "No run has finished yet."
    parts = []
    kinds = zip(("MuJoCo", "Other environments"), divided(groups, known), (True, False))
    for title, chosen, compared in kinds:
        for without, more in ((False, ""), (True, ", critic-free")):
            mine = {k: r for k, r in chosen.items() if is_critic_free(k) == without}
            if not mine:
                continue
            parts += [f"### {title}{more}", table(ROW, [row(*k, mine[k]) for k in mine])]
            if compared:
                beside = [comparison(*k, r, known[task_of(r)]) for k, r in mine.items()]
                parts += ["Beside Tianshou:", table(COMPARISON, beside)]
    parts += ["### How they were made", made(groups)]
    if unfinished:
        parts.append(f"Not counted because it has not finished: {unfinished} runs.")
    return "\n\n".join(parts)


def is_critic_free(key):
    return key[0].endswith(CRITIC_FREE)


def made(groups):
    """The commands, the versions and the hours of the runs."""
    alike = {}
    for (preset, steps), records in groups.items():
        seeds = tuple(record["seed"] for record in records)
        alike.setdefault((steps, records[0]["every"], seeds), []).append(preset)
    commands = []
    for (steps, every, seeds), presets in sorted(alike.items()):
        options = f"--steps {steps}" + f" --every {every}" * (every != EVERY)
        whole = len(seeds) > 1 and seeds == tuple(range(seeds[0], seeds[-1] + 1))
        for span in [f"{seeds[0]}-{seeds[-1]}"] if whole else seeds:
            chosen = f"{' '.join(presets)} --seeds {span} {options}"
            commands.append(f"    python benchmarks/learning.py run {chosen}")
    commands += ["    python benchmarks/learning.py report", ""]
    return "\n".join([*commands, spent([r for runs in groups.values() for r in runs])])


def spent(records):
    """The hours of the runs, and the versions they were made with."""
    versions, seconds = {}, 0.0
    for record in records:
        seconds += record["training_seconds"] + record["evaluation_seconds"]
        for name, version in record["versions"].items():
            versions.setdefault(name, set()).add(str(version))
    named = [f"{name} {' and '.join(sorted(v))}" for name, v in versions.items()]
    return (
        f"{len(records)} runs on one thread each, {seconds / 3600:.1f} hours in all, "
        f"with {', '.join(named)}."
    )


def picture(path, groups, known):
    """A panel for each preset: mean over seeds and one std, Tianshou's in grey."""
    pyplot = drawing()
    from matplotlib import ticker

    panels = {}
    for key in groups:  # the longest budget comes last
        chosen = panels.setdefault(key[0].removesuffix(CRITIC_FREE), {})
        chosen[is_critic_free(key)] = groups[key]
    rows = math.ceil(len(panels) / 3)
    figure, grid = pyplot.subplots(
        rows, 3, figsize=(10, 0.7 + 2.6 * rows), dpi=100, squeeze=False
    )
    for axes in grid.flat[len(panels) :]:
        axes.set_visible(False)

    def draw(axes, steps, mean, std, color, label):
        low, high = np.subtract(mean, std), np.add(mean, std)
        axes.fill_between(steps, low, high, color=color, alpha=0.2, linewidth=0)
        axes.plot(steps, mean, color=color, linewidth=1.5, label=label)

    for axes, (name, chosen) in zip(grid.flat, panels.items()):
        budget = max(records[0]["steps"] for records in chosen.values())
        task = task_of(next(iter(chosen.values())))
        if task in known:
            theirs = [point for point in known[task]["curve"] if point[0] <= budget]
            draw(axes, *zip(*theirs), "0.5", "Tianshou REINFORCE")
        for without, records in sorted(chosen.items()):
            steps, curves = aligned(records)
            color = "tab:orange" if without else "tab:blue"
            label = "tf_reinforce" + ", critic-free" * without
            draw(axes, steps, curves.mean(axis=0), curves.std(axis=0), color, label)
        axes.set_title(name, fontsize=11)
        axes.set_xlim(0, budget)
        axes.xaxis.set_major_locator(ticker.MaxNLocator(4))
        axes.xaxis.set_major_formatter(ticker.EngFormatter(sep=""))
        axes.set_xlabel("environment steps", fontsize=9)
        axes.set_ylabel("return", fontsize=9)
        axes.tick_params(labelsize=9)
        axes.grid(alpha=0.3)
    labels = {}
    for axes in grid.flat:
        for line, label in zip(*axes.get_legend_handles_labels()):
            labels.setdefault(label, line)
    figure.tight_layout(rect=(0, 0, 1, 1 - 0.4 / figure.get_figheight()))
    figure.legend(labels.values(), labels, loc="upper center", ncols=3, frameon=False)
    keep(figure, path)


def drawing():
    """`matplotlib.pyplot`, without a screen; only who draws needs it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def keep(figure, path):
    """Writes a figure, small, and closes it."""
    from PIL import Image

    figure.savefig(path)
    drawing().close(figure)
    with Image.open(path) as drawn:
        small = drawn.convert("RGB").quantize(64)
    small.save(path, optimize=True)


def replaced(text, part):
    """The text with another part between its two marks."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"The text must hold {BEGIN} and, after it, {END}.")
    return f"{before}{BEGIN}\n\n{part}\n\n{END}{after}"


def write(results, docs):
    """Puts tables, pictures and runs into the folder of documents; returns the Markdown.

    Args:
        results: Path of the folder with a JSON for each run.
        docs: Path of the folder. Runs that it has already are kept.
    """
    published = docs / PUBLISHED
    groups, unfinished = read(results, published)
    publish(published, groups)
    known = reference()
    parts = [tables(groups, unfinished, known)]
    for name, chosen in zip(("mujoco", "classic"), divided(groups, known)):
        if chosen:
            picture(docs / f"results_{name}.png", chosen, known)
            parts.append(f"![Learning curves, {name}](results_{name}.png)")
    page, text = docs / "results.md", "\n\n".join(parts)
    page.write_text(replaced(page.read_text(), text))
    return text
