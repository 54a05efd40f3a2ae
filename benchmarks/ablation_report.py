"""Writes tables and a picture of the training runs of `ablation.py`."""

import json
import math
import pathlib

import learning_report
import numpy as np

HEAD = ("variant", "seeds", "steps to {}", "final, greedy", "seconds", "variance of ∇")
MARGINS, ROW_HEIGHT = 0.55, 0.165  # sizes in the picture, in inches


def read(results, task):
    """Returns the finished runs of a task with the largest budget, and its gradients.

    Args:
        results: Path of the folder into which `ablation.py` wrote its results.
        task: Name of the task, for example `"CartPole-v1"`.

    Returns:
        Dict from names of variants to lists of run records; the gradient statistics of
        the task or `None`; and the number of unfinished runs.
    """
    folder = pathlib.Path(results, task)
    groups, unfinished = learning_report.read(folder)
    largest = max((steps for _, steps in groups), default=0)
    variants = {name: runs for (name, steps), runs in groups.items() if steps == largest}
    path = folder / f"{largest}_gradients.json"
    gradients = json.loads(path.read_text()) if path.exists() else None
    return variants, gradients, unfinished


def label(variant):
    """Returns the name of a variant, without the settings that change with its option."""
    return variant.partition(", ")[0]


def steps_to(threshold, records):
    """Returns for each run the steps at the first evaluation that reaches a threshold.

    The number of steps is infinite if no evaluation of a run reaches the threshold.
    """
    firsts = []
    for record in records:
        points = (steps for steps, mean, *_ in record["curve"] if mean >= threshold)
        firsts.append(next(points, math.inf))
    return firsts


def format_steps(steps, brief=False):
    """Returns the median of the steps to a threshold as text.

    If only some of the numbers in `steps` are finite, the count of finite numbers follows
    the median in parentheses. With `brief=True`, the text contains only the median, in
    thousands.
    """
    median, count = np.median(steps), np.isfinite(steps).sum()
    if brief:
        return f"{median / 1000:,.0f}k" if np.isfinite(median) else "-"
    suffix = f" ({count} of {len(steps)})" if 0 < count < len(steps) else ""
    return (f"{median:,.0f}" if np.isfinite(median) else "-") + suffix


def final_returns(records):
    return [record["final"]["episode_return"] for record in records]


def row(variant, records, threshold, variances):
    """Returns the cells of one variant in the table of a task."""
    returns, variance = final_returns(records), ""
    if variant in variances:
        ratio, error = variances[variant]
        ratio, *error = learning_report.format_numbers(ratio, *([error] if error else []))
        variance = " ± ".join([ratio, *error]) if error else f"> {ratio}"
        variance = "not measurable" if ratio == "inf" else variance
    return [
        variant,
        str(len(records)),
        format_steps(steps_to(threshold, records)),
        learning_report.format_mean_std(np.mean(returns), np.std(returns)),
        f"{np.mean([record['training_seconds'] for record in records]):,.1f}",
        variance,
    ]


def section(name, task, groups, gradients):
    """Returns the heading, a sentence about the runs, and the table of one task."""
    steps = next(iter(groups.values()))[0]["steps"]
    description = f"Each run on {name} has {steps:,} environment steps."
    variances = {}
    if gradients:
        variances = gradients["relative_variance"]
        description += (
            f" The variance of the gradient on {name} was measured on "
            f"{gradients['batches']} batches after {gradients['env_steps']:,} "
            "environment steps."
        )
    head = [title.format(f"{task.threshold:g}") for title in HEAD]
    rows = [row(*item, task.threshold, variances) for item in groups.items()]
    return "\n\n".join([f"### {name}", description, learning_report.table(head, rows)])


def picture(path, results, tasks, labels):
    """Draws a panel for each task, with final returns and steps to a threshold.

    Args:
        path: Path of the picture.
        results: Dict from tasks to dicts from variants to lists of run records.
        tasks: Dict from tasks to tuples `(steps, threshold)`.
        labels: List of the names of all variants, in the order of the rows.
    """
    pyplot = learning_report.import_pyplot()
    used = {label(variant) for groups in results.values() for variant in groups}
    rows = {name: y for y, name in enumerate(n for n in labels if n in used)}
    figure, grid = pyplot.subplots(
        1,
        len(results),
        figsize=(10, MARGINS + ROW_HEIGHT * max(len(rows), 6)),
        dpi=100,
        sharey=True,
        squeeze=False,
    )
    for axes, (name, groups) in zip(grid.flat, results.items()):
        threshold = tasks[name].threshold
        for variant, records in groups.items():
            y, returns = rows[label(variant)], final_returns(records)
            color = "tab:blue" if variant == "preset" else "0.35"
            axes.plot(
                returns, [y] * len(returns), "o", color=color, alpha=0.45, markersize=4
            )
            axes.plot(
                np.mean(returns), y, "|", color=color, markersize=9, markeredgewidth=2
            )
            axes.text(
                1.02,
                y,
                format_steps(steps_to(threshold, records), brief=True),
                transform=axes.get_yaxis_transform(),
                va="center",
                fontsize=8,
            )
        if "preset" in groups:
            mean = np.mean(final_returns(groups["preset"]))
            axes.axvline(mean, color="tab:blue", alpha=0.4, linewidth=1, zorder=0)
        axes.set_title(f"{name}, steps to {threshold:g}", fontsize=9, loc="right")
        axes.set_xlabel("final return, greedy", fontsize=8)
        axes.tick_params(labelsize=8)
        axes.grid(alpha=0.3)
    grid[0, 0].set_yticks(range(len(rows)), rows)
    grid[0, 0].set_ylim(len(rows) - 0.4, -0.6)
    figure.tight_layout(w_pad=1.5)
    learning_report.save_figure(figure, path)


def write(results, docs, tasks, labels):
    """Writes the tables and the picture to the folder of documents.

    Args:
        results: Path of the folder into which `ablation.py` wrote its results.
        docs: Path of the folder with `ablation.md`.
        tasks: Dict from tasks to tuples `(steps, threshold)`.
        labels: List of all variants in order, as `label` returns them.

    Returns:
        The Markdown.
    """
    variants, parts, records, unfinished = {}, [], [], 0
    for name in tasks:
        groups, gradients, count = read(results, name)
        unfinished += count
        if groups:
            names = sorted(groups, key=lambda variant: labels.index(label(variant)))
            variants[name] = {variant: groups[variant] for variant in names}
            parts.append(section(name, tasks[name], variants[name], gradients))
            records += [record for runs in groups.values() for record in runs]
    if variants:
        picture(docs / "ablation.png", variants, tasks, labels)
        parts.insert(0, "![Final returns of all variants](ablation.png)")
        parts += ["### Versions", learning_report.hours_and_versions(records)]
    if unfinished:
        parts.append(f"The tables omit {unfinished} unfinished runs.")
    page, text = docs / "ablation.md", "\n\n".join(parts or ["No run has finished yet."])
    page.write_text(learning_report.replace_tables(page.read_text(), text))
    return text
