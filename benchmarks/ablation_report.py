"""Tables and a picture of the runs of `ablation.py`."""

import json
import math
import pathlib

import learning_report
import numpy as np

HEAD = ("variant", "seeds", "steps to {}", "final, greedy", "seconds", "variance of ∇")
ROWS = (0.55, 0.165)  # inches of the picture: for what is around them, and for each


def read(results, task):
    """The finished runs with the largest budget there is, and what was measured.

    Returns:
        Dict from variants to their records, the measurement or `None`, and how many runs
        have not finished.
    """
    folder = pathlib.Path(results, task)
    groups, unfinished = learning_report.read(folder)
    largest = max((steps for _, steps in groups), default=0)
    chosen = {name: runs for (name, steps), runs in groups.items() if steps == largest}
    path = folder / f"{largest}_gradients.json"
    return chosen, json.loads(path.read_text()) if path.exists() else None, unfinished


def label(variant):
    """A variant's name without what else had to change."""
    return variant.partition(", ")[0]


def steps_to(threshold, records):
    """The environment steps of each run when an evaluation first was that high.

    Infinite where none was.
    """
    firsts = []
    for record in records:
        points = (steps for steps, mean, *_ in record["curve"] if mean >= threshold)
        firsts.append(next(points, math.inf))
    return firsts


def reached(firsts, brief=False):
    """The median of `steps_to` as a text, and how many there are when not all."""
    median, count = np.median(firsts), np.isfinite(firsts).sum()
    if brief:
        return f"{median / 1000:,.0f}k" if np.isfinite(median) else "-"
    some = f" ({count} of {len(firsts)})" if 0 < count < len(firsts) else ""
    return (f"{median:,.0f}" if np.isfinite(median) else "-") + some


def finals(records):
    return [record["final"]["episode_return"] for record in records]


def row(variant, records, threshold, variances):
    """What the runs of one variant came to."""
    ends, variance = finals(records), ""
    if variant in variances:
        ratio, error = variances[variant]
        ratio, *error = learning_report.numbers(ratio, *([error] if error else []))
        variance = " ± ".join([ratio, *error]) if error else f"> {ratio}"
        variance = "not told" if ratio == "inf" else variance
    return [
        variant,
        str(len(records)),
        reached(steps_to(threshold, records)),
        learning_report.spread(np.mean(ends), np.std(ends)),
        f"{np.mean([record['training_seconds'] for record in records]):,.1f}",
        variance,
    ]


def part(name, task, groups, gradients):
    """The table of one task, and what it is of."""
    steps = next(iter(groups.values()))[0]["steps"]
    about = f"{steps:,} environment steps."
    variances = {}
    if gradients:
        variances = gradients["relative_variance"]
        about += (
            f" Gradients: {gradients['batches']} batches after "
            f"{gradients['env_steps']:,} steps."
        )
    head = [title.format(f"{task.threshold:g}") for title in HEAD]
    rows = [row(*item, task.threshold, variances) for item in groups.items()]
    return "\n\n".join([f"### {name}", about, learning_report.table(head, rows)])


def picture(path, found, tasks, labels):
    """A panel for each task: the final returns of each seed, and steps to a threshold.

    Args:
        path: Of the picture.
        found: Dict from tasks to dicts from variants to records.
        tasks: Dict from tasks to tuples `(steps, threshold)`.
        labels: List of the rows' names.
    """
    pyplot = learning_report.drawing()
    seen = {label(variant) for groups in found.values() for variant in groups}
    rows = {name: at for at, name in enumerate(n for n in labels if n in seen)}
    figure, grid = pyplot.subplots(
        1,
        len(found),
        figsize=(10, ROWS[0] + ROWS[1] * max(len(rows), 6)),
        dpi=100,
        sharey=True,
        squeeze=False,
    )
    for axes, (name, groups) in zip(grid.flat, found.items()):
        threshold = tasks[name].threshold
        for variant, records in groups.items():
            at, ends = rows[label(variant)], finals(records)
            color = "tab:blue" if variant == "preset" else "0.35"
            axes.plot(ends, [at] * len(ends), "o", color=color, alpha=0.45, markersize=4)
            axes.plot(
                np.mean(ends), at, "|", color=color, markersize=9, markeredgewidth=2
            )
            axes.text(
                1.02,
                at,
                reached(steps_to(threshold, records), brief=True),
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=8,
            )
        if "preset" in groups:
            mean = np.mean(finals(groups["preset"]))
            axes.axvline(mean, color="tab:blue", alpha=0.4, linewidth=1, zorder=0)
        axes.set_title(f"{name}, steps to {threshold:g}", fontsize=9, loc="right")
        axes.set_xlabel("final return, greedy", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    grid[0, 0].set_yticks(range(len(rows)), rows)
    grid[0, 0].set_ylim(len(rows) - 0.4, -0.6)
    figure.tight_layout(w_pad=1.5)
    learning_report.keep(figure, path)


def write(results, docs, tasks, labels):
    """Puts the tables and the picture into the folder of documents.

    Args:
        results: Path of the folder that `ablation.py` wrote to.
        docs: Path of the folder with `ablation.md`.
        tasks: Dict from tasks to tuples `(steps, threshold)`.
        labels: List of the variants in order, without what else had to change.

    Returns:
        The Markdown.
    """
    found, parts, records, waiting = {}, [], [], 0
    for name in tasks:
        groups, gradients, unfinished = read(results, name)
        waiting += unfinished
        if groups:
            order = sorted(groups, key=lambda variant: labels.index(label(variant)))
            found[name] = {variant: groups[variant] for variant in order}
            parts.append(part(name, tasks[name], found[name], gradients))
            records += [record for runs in groups.values() for record in runs]
    if found:
        picture(docs / "ablation.png", found, tasks, labels)
        parts.insert(0, "![Final returns of all variants](ablation.png)")
        parts += ["### How they were made", learning_report.spent(records)]
    if waiting:
        parts.append(f"Not counted because it has not finished: {waiting} runs.")
    page, text = docs / "ablation.md", "\n\n".join(parts or ["No run has finished yet."])
    page.write_text(learning_report.replaced(page.read_text(), text))
    return text
