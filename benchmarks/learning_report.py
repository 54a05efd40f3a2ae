"""Writes tables and pictures that compare runs of `learning.py` with Tianshou."""

import json
import math
import pathlib

import numpy as np

from tf_reinforce.support import files

HERE = pathlib.Path(__file__).resolve().parent
BEGIN, END = "<!-- tables -->", "<!-- end of tables -->"
EVERY = 50_000  # environment steps between two evaluations
DEFAULT = "-default"  # the end of the names of runs without a preset
# The ends of the names of presets, and the titles and colors of their results.
KINDS = {
    "": ("", "tab:blue"),
    DEFAULT: (", settings without a preset", "tab:red"),
    "-one-pass": (", one pass", "tab:green"),
    "-critic-free": (", critic-free", "tab:orange"),
    "-critic-free-one-pass": (", critic-free, one pass", "tab:purple"),
}
# The published columns of `TIANSHOU`, after those from the learning curve.
PUBLISHED_AS = (
    *("REINFORCE 3M", "REINFORCE 10M"),
    *("PPO 1M", "TRPO 1M", "NPG 1M", "A2C 1M"),
)
MILLION = 1_013_760  # steps at Tianshou's evaluation nearest to a million steps
RESAMPLES = 10_000
PUBLISHED = "results.jsonl"


def read(results, published=None):
    """Returns the finished training runs, and the number of unfinished training runs.

    Args:
        results: Path of a folder with one folder per preset and one JSON file per run.
        published: Path of a JSON Lines file with further finished runs, or `None`.

    Returns:
        Dict `{(preset, steps): [record, …]}` of the finished runs, and the number of
        unfinished runs.
    """
    lines = published.read_text().splitlines() if published and published.exists() else []
    records = [json.loads(path.read_text()) for path in results.glob("*/*_seed*.json")]
    finished = {}
    for record in [*map(json.loads, lines), *records]:
        if not record["finished"]:
            continue
        key = record["preset"], record["steps"], record["seed"]
        record["curve"] = [[round(x, 3) for x in point] for point in record["curve"]]
        if finished.setdefault(key, record)["curve"] != record["curve"]:
            preset, steps, seed = key
            raise SystemExit(
                f"There are two different runs of {preset} over {steps} steps with seed "
                f"{seed}: one is in {published}, the other in {results}. Remove one run."
            )
    groups = {}
    for (preset, steps, _), record in sorted(finished.items()):
        groups.setdefault((preset, steps), []).append(record)
    for (preset, steps), group in groups.items():
        settings = [(record["settings"], record["every"]) for record in group]
        if any(other != settings[0] for other in settings):
            raise SystemExit(
                f"Some runs of {preset} over {steps} steps were made with other "
                f"settings. Remove the old runs from {published} or {results}."
            )
    return groups, sum(not record["finished"] for record in records)


def publish(path, groups):
    """Writes finished training runs as JSON Lines, atomically."""
    records = [record for group in groups.values() for record in group]
    with files.atomic_write(path) as temporary_path:
        lines = "".join(f"{json.dumps(record)}\n" for record in records)
        pathlib.Path(temporary_path).write_text(lines)


def reference():
    """Returns a dict from names of tasks, without version, to Tianshou's results."""
    return json.loads((HERE / "tianshou.json").read_text())["tasks"]


def task_of(records):
    """Returns the name of the task without version, for example `Ant` for `Ant-v5`."""
    return records[0]["settings"]["env"].rsplit("-v", 1)[0]


def align_curves(records):
    """Returns the learning curves of several seeds at the same environment steps.

    Evaluations of a training run are due at fixed environment steps. An evaluation is
    made at the end of the update that passes the due step. At a due step, the curve has
    the return of the first evaluation at or after this step.

    Returns:
        `[P]` int, the P due steps; and `[S, P]` float, the mean return of the evaluation
        of each of the S seeds at each due step.
    """
    steps, every = records[0]["steps"], records[0]["every"]
    due_steps = np.array([*range(0, steps, every), steps])
    curves = []
    for record in records:
        env_steps, means = np.array(record["curve"])[:, :2].T
        curves.append(means[np.searchsorted(env_steps, due_steps)])
    return due_steps, np.array(curves)


def best_of_mean(curves):
    """Returns the highest point of the mean curve, and the population std at this point.

    Args:
        curves: `[S, P]` float, the returns of S seeds at P environment steps.
    """
    means = curves.mean(axis=0)
    best = means.argmax()
    return means[best], curves[:, best].std()


def mean_of_curve(due_steps, curves):
    """Returns the area under each curve, divided by the steps: mean and std over seeds.

    Args:
        due_steps: `[P]` int, the environment steps of the evaluations.
        curves: `[S, P]` float.
    """
    areas = np.trapezoid(curves, due_steps, axis=1) / due_steps[-1]
    return areas.mean(), areas.std()


def interquartile_mean(values):
    """Returns the mean of `values` without the lowest and the highest quarter.

    The number of values in a quarter is rounded down.

    Args:
        values: `[..., N]` float, the N values of each mean.
    """
    values = np.sort(values, axis=-1)
    quarter = values.shape[-1] // 4
    return values[..., quarter : values.shape[-1] - quarter].mean(axis=-1)


def interval(values, share=0.95):
    """Returns the percentile bootstrap interval of the interquartile mean.

    Args:
        values: `[N]` float, the final return of each of N seeds.
        share: Float, the nominal coverage of the interval.
    """
    rng = np.random.default_rng(0)
    means = interquartile_mean(rng.choice(values, (RESAMPLES, len(values))))
    return np.quantile(means, [(1 - share) / 2, (1 + share) / 2])


def format_numbers(first, *others):
    """Returns numbers as strings, with as many decimals as suit the first number."""
    size = abs(first)
    decimals = 1 if size >= 10 else 2 if size >= 1 else 4
    return [f"{x:,.{decimals}f}" for x in (first, *others)]


def format_mean_std(mean, std):
    return " ± ".join(format_numbers(mean, std))


def row(preset, steps, records):
    """Returns the cells of one preset in the table with the columns `ROW`."""
    due_steps, curves = align_curves(records)
    finals = [record["final"]["episode_return"] for record in records]
    seconds = [r["training_seconds"] + r["evaluation_seconds"] for r in records]
    middle, low, high = format_numbers(interquartile_mean(finals), *interval(finals))
    return [
        preset,
        f"{steps:,}",
        str(len(records)),
        format_mean_std(*best_of_mean(curves)),
        format_mean_std(*mean_of_curve(due_steps, curves)),
        format_mean_std(np.mean(finals), np.std(finals)),
        f"{middle} [{low}, {high}]",
        f"{np.mean([r['steps_per_second'] for r in records]):,.0f}",
        f"{np.mean(seconds) / 60:,.1f}",
    ]


def published_row(task, results):
    """Returns the cells of a task in the table of Tianshou's results."""
    million = [point[1:] for point in results["curve"] if point[0] <= MILLION]
    found = max(million), million[-1], *(results["published"][x] for x in PUBLISHED_AS)
    return [task, *(format_mean_std(*x) for x in found)]


ROW = (
    "preset",
    "steps",
    "seeds",
    "best of the mean curve",
    "mean of the curve",
    "final, greedy",
    "IQM of final [95 %]",
    "steps/s",
    "minutes",
)
TIANSHOU = (
    "task",
    "REINFORCE, best to 1M",
    "at 1M",
    "best to 3M",
    "best to 10M",
    "PPO, best to 1M",
    "TRPO",
    "NPG",
    "A2C",
)


def table(head, rows):
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def split_groups(groups, tasks):
    """Returns the runs on Tianshou's tasks, in Tianshou's order, and all other runs."""
    order = list(tasks)
    shared = {k: runs for k, runs in groups.items() if task_of(runs) in tasks}
    others = {k: runs for k, runs in groups.items() if k not in shared}
    keys = sorted(shared, key=lambda k: (order.index(task_of(shared[k])), k))
    return {k: shared[k] for k in keys}, dict(sorted(others.items()))


def tables(groups, unfinished, tasks, is_default):
    """Returns all tables, the commands and the software versions as Markdown.

    The arguments are those of `write`, and the results of `read` and `reference`.
    """
    if not groups:
        return "No run has finished yet."
    parts = []
    titles = ("MuJoCo", "Other environments")
    for title, part in zip(titles, split_groups(groups, tasks)):
        for kind, (suffix, _) in KINDS.items():
            runs = runs_of(part, kind, is_default)
            if not runs:
                continue
            rows = [row(*k, r) for k, r in runs.items()]
            parts += [f"### {title}{suffix}", table(ROW, rows)]
    rows = [published_row(*item) for item in tasks.items()]
    parts += ["### Tianshou's results", table(TIANSHOU, rows)]
    parts += ["### Commands and versions", commands_and_versions(groups)]
    if unfinished:
        parts.append(f"The tables omit {unfinished} unfinished runs.")
    return "\n\n".join(parts)


def runs_of(part, kind, is_default):
    """Returns the runs of one of `KINDS`, in the form of `part`.

    A preset whose settings are those of its environment without a preset belongs to two
    kinds: to its own, and to `DEFAULT`.
    """

    def belongs(key, records):
        own = kind_of(key)
        is_both = kind == DEFAULT and not own and is_default(records[0]["settings"])
        return own == kind or is_both

    return {k: r for k, r in part.items() if belongs(k, r)}


def kind_of(key):
    """Returns the key of `KINDS` that fits the preset of a key (preset, steps)."""
    return max((kind for kind in KINDS if key[0].endswith(kind)), key=len)


def commands_and_versions(groups):
    """Returns the commands, the hours and the software versions of the runs."""
    presets_of = {}
    for (preset, steps), records in groups.items():
        seeds = tuple(record["seed"] for record in records)
        presets_of.setdefault((steps, records[0]["every"], seeds), []).append(preset)
    commands = []
    for (steps, every, seeds), presets in sorted(presets_of.items()):
        options = f"--steps {steps}" + f" --every {every}" * (every != EVERY)
        is_range = len(seeds) > 1 and seeds == tuple(range(seeds[0], seeds[-1] + 1))
        for span in [f"{seeds[0]}-{seeds[-1]}"] if is_range else seeds:
            arguments = f"{' '.join(presets)} --seeds {span} {options}"
            commands.append(f"    python benchmarks/learning.py run {arguments}")
    commands += ["    python benchmarks/learning.py report", ""]
    records = [record for group in groups.values() for record in group]
    return "\n".join([*commands, hours_and_versions(records)])


def hours_and_versions(records):
    """Returns the hours and the software versions of the runs as text."""
    versions, seconds = {}, 0.0
    for record in records:
        seconds += record["training_seconds"] + record["evaluation_seconds"]
        for name, version in record["versions"].items():
            versions.setdefault(name, set()).add(str(version).partition(", sources")[0])
    versions.pop("platform", None)
    texts = [f"{name} {' and '.join(sorted(v))}" for name, v in versions.items()]
    return (
        f"The tables contain {len(records)} runs on one thread each, "
        f"{seconds / 3600:.1f} hours in all, with {', '.join(texts)}."
    )


def picture(path, groups, tasks):
    """Draws a panel per preset: the mean ± std over seeds, and Tianshou's grey curve."""
    pyplot = import_pyplot()
    from matplotlib import ticker

    panels = {}
    for key in groups:  # the largest budget is the last key, and replaces the others
        kind = kind_of(key)
        panels.setdefault(key[0].removesuffix(kind), {})[kind] = groups[key]
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

    for axes, (name, panel) in zip(grid.flat, panels.items()):
        budget = max(records[0]["steps"] for records in panel.values())
        task = task_of(next(iter(panel.values())))
        if task in tasks:
            curve = [point for point in tasks[task]["curve"] if point[0] <= budget]
            draw(axes, *zip(*curve), "0.5", "Tianshou REINFORCE")
        for kind, records in sorted(panel.items(), reverse=True):
            steps, curves = align_curves(records)
            suffix, color = KINDS[kind]
            label = f"tf_reinforce{suffix}"
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
    save_figure(figure, path)


def import_pyplot():
    """Returns `matplotlib.pyplot` for pictures without a display."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def save_figure(figure, path):
    """Writes a figure as a PNG file with 256 colors, and closes the figure."""
    from PIL import Image

    figure.savefig(path)
    import_pyplot().close(figure)
    with Image.open(path) as image:
        quantized = image.convert("RGB").quantize(256, Image.Quantize.FASTOCTREE)
    quantized.save(path, optimize=True)


def replace_tables(text, part):
    """Returns `text` with `part` between the marks `BEGIN` and `END`."""
    before, begin, rest = text.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"The text must contain {BEGIN} and, after it, {END}.")
    return f"{before}{BEGIN}\n\n{part}\n\n{END}{after}"


def write(results, docs, is_default):
    """Writes tables, pictures and runs to the documents, and returns the Markdown.

    Args:
        results: Path of the folder with a JSON file for each run.
        docs: Path of the folder with `results.md` and `results.jsonl`. The runs in
            `results.jsonl` are kept.
        is_default: Function from settings to a bool, whether the settings are those of
            an environment without a preset. Presets with such settings are also rows of
            the table of these settings.
    """
    published = docs / PUBLISHED
    groups, unfinished = read(results, published)
    publish(published, groups)
    tasks = reference()
    parts = [tables(groups, unfinished, tasks, is_default)]
    for name, part in zip(("mujoco", "classic"), split_groups(groups, tasks)):
        if part:
            picture(docs / f"results_{name}.png", part, tasks)
            parts.append(f"![Learning curves, {name}](results_{name}.png)")
    page, text = docs / "results.md", "\n\n".join(parts)
    page.write_text(replace_tables(page.read_text(), text))
    return text
