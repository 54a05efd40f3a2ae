"""Writes the tables and the picture of `docs/scale.md` from measured numbers."""

import statistics

import learning_report
import numpy as np
import scale_model

# Assumptions about the cluster of the picture, which are not measured. The workers of one
# machine share a copy of the weights.
MACHINE_WORKERS = 8
LATENCY = 2e-4  # seconds, in addition to the measured one
BYTES_PER_SECOND = 1.25e9  # 10 Gbit/s
PER_WORKER = 4  # episodes of an update for each worker, with 1 to 99 steps
FIXED = 1024  # episodes of an update, in another curve
STEPS = {1e-5: "10 µs", 1e-3: "1 ms", 1e-2: "10 ms", 1e-1: "100 ms"}
SHORT_STEP = 1e-4  # seconds; steps below use a core, longer steps wait
COLORS = {1e-5: "tab:red", 1e-3: "tab:orange", 1e-2: "tab:blue", 1e-1: "tab:brown"}
PARTS = {
    "playing": ("in episodes", "tab:blue"),
    "slowest": ("waiting for the slowest episodes", "tab:orange"),
    "start": ("waiting for weights and first episodes", "tab:purple"),
    "between": ("waiting for the driver between episodes", "tab:red"),
    "records": ("receiving the last episodes, and merging", "tab:brown"),
    "update": ("update", "0.6"),
}
LOSSES = {
    "slowest": "slowest episodes",
    "start": "weights",
    "between": "driver",
    "records": "driver",
    "update": "update",
}
MEANINGS = {
    "collection": ("driver", "one collection"),
    "prepare_byte": ("driver", "one byte of the weights, once"),
    "first_message": ("driver", "one worker: its weights and its first episodes"),
    "weight_byte": ("driver", "one byte of the weights for one worker"),
    "record": ("driver", "one episode: receiving it, and handing out the next one"),
    "record_step": ("driver", "one step of an episode"),
    "record_byte": ("driver", "one byte of an episode"),
    "wait": ("driver", "one running worker, each time the driver waits for messages"),
    "update": ("learner", "one update"),
    "update_step": ("learner", "one step of an update"),
    "start": ("worker", "one collection"),
    "start_byte": ("worker", "one byte of the weights"),
    "episode": ("worker", "one episode: reset, and sending it"),
    "acting": ("worker", "one step, if the step of the environment does not wait"),
    "acting_after_wait": ("worker", "one step, after the environment has waited"),
    "latency": ("operating system", "one message"),
}


def format_seconds(value):
    """Returns a number of seconds with three digits and a unit."""
    for unit, size in {"s": 1, "ms": 1e-3, "µs": 1e-6, "ns": 1e-9}.items():
        if value >= size or unit == "ns":
            return f"{float(f'{value / size:.3g}'):g} {unit}"


def table(header, rows):
    """Returns a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def predict(numbers, lengths, num_workers, is_ray):
    """Returns the predicted seconds of a measured update."""
    ray_costs = numbers["ray_costs"] if is_ray else {}
    costs = scale_model.Costs(**{**numbers["costs"], **ray_costs})
    sizes = numbers["weight_bytes"], numbers["step_bytes"]
    task = scale_model.Task(lengths, numbers["wait_seconds"], 0.0, *sizes)
    if num_workers == 1:
        return scale_model.simulate_one_process(costs, task)
    cores = numbers["cores"]
    return scale_model.simulate(costs, task, num_workers, cores=cores).total


def compare(numbers):
    """Returns a row for each measured experiment and number of workers.

    Returns:
        List of dicts with the keys `name`, `workers`, `episodes`, `measured` and
        `predicted` (steps per second, medians), and `ratios`, the predicted seconds
        divided by the measured seconds of each repetition.
    """
    rows = []
    for name, points in numbers["points"].items():
        for point in points:
            row = {"name": name, "workers": point["workers"]}
            measured, predicted, ratios = [], [], []
            for seconds, _, lengths in point["repetitions"]:
                prediction = predict(numbers, lengths, point["workers"], point["is_ray"])
                measured.append(sum(lengths) / seconds)
                predicted.append(sum(lengths) / prediction)
                ratios.append(predicted[-1] / measured[-1])
            row["episodes"], row["ratios"] = len(lengths), ratios
            row["measured"] = statistics.median(measured)
            row["predicted"] = statistics.median(predicted)
            rows.append(row)
    return rows


def cluster_task(num_workers, step_seconds, numbers, count=None, mean_length=50):
    """Returns the `Task` of a predicted update, with lengths that a fixed seed draws."""
    count = count or PER_WORKER * num_workers
    lengths = np.random.default_rng(0).integers(1, 2 * mean_length, count).tolist()
    seconds = (0.0, step_seconds) if step_seconds < SHORT_STEP else (step_seconds, 0.0)
    sizes = numbers["weight_bytes"], numbers["step_bytes"]
    return scale_model.Task(lengths, *seconds, *sizes, 1 / MACHINE_WORKERS)


def cluster_costs(numbers):
    """Returns the measured costs of Ray's workers, with the assumed network."""
    costs = {**numbers["costs"], **numbers["ray_costs"]}
    costs["latency"] += LATENCY
    return scale_model.Costs(**costs, network_byte=1 / BYTES_PER_SECOND)


def speed_up(numbers, num_workers, step_seconds, **options):
    """Returns the predicted speed as a multiple of one process, and the `Result`."""
    costs = cluster_costs(numbers)
    task = cluster_task(num_workers, step_seconds, numbers, **options)
    result = scale_model.simulate(costs, task, num_workers)
    return scale_model.simulate_one_process(costs, task) / result.total, result


def comparison_table(numbers):
    """Returns the table of predicted and measured speeds."""
    lines = []
    for row in compare(numbers):
        errors = [100 * (ratio - 1) for ratio in row["ratios"]]
        error = f"{statistics.median(errors):+.1f} %"
        error += f" ({min(errors):+.1f} to {max(errors):+.1f})"
        speeds = f"{row['measured']:,.0f}", f"{row['predicted']:,.0f}"
        lines.append([row["name"], row["workers"], row["episodes"], *speeds, error])
    header = "episodes", "workers", "episodes per update"
    return table((*header, "measured steps/s", "predicted steps/s", "error"), lines)


def costs_table(numbers):
    """Returns the table of the measured costs."""
    lines = []
    for name, (process, meaning) in MEANINGS.items():
        local = format_seconds(numbers["costs"][name])
        ray = numbers["ray_costs"].get(name)
        ray = "" if ray is None else format_seconds(ray)
        lines.append([f"`{name}`", process, meaning, local, ray])
    header = "name", "process", "time on a core for", "`workers=N`", "`RayWorkers`"
    return table(header, lines)


def cluster_table(numbers):
    """Returns the table of predicted speed-ups for numbers of machines."""
    kinds = [(1e-3, 50), (1e-3, 1000), (1e-2, 50), (1e-2, 1000), (1e-1, 50)]
    lines = []
    for step_seconds, mean_length in kinds:
        line = [f"{STEPS[step_seconds]}, {mean_length:,} steps"]
        for num_machines in (1, 10, 100, 1000):
            ratio, result = speed_up(
                numbers,
                MACHINE_WORKERS * num_machines,
                step_seconds,
                mean_length=mean_length,
            )
            parts = {name: getattr(result, name) for name in LOSSES}
            largest = max(parts, key=parts.get)
            share = 100 * parts[largest] / result.total
            line.append(f"{ratio:,.0f} ({LOSSES[largest]} {share:.0f} %)")
        lines.append(line)
    header = "step, mean length", "1 machine", "10 machines", "100 machines"
    return table((*header, "1,000 machines"), lines)


def limits_text(numbers):
    """Returns a text with the limits of driver and learner."""
    costs = cluster_costs(numbers)
    episodes = 1 / (costs.record + costs.wait)
    steps = 1 / (costs.update_step + costs.record_step)
    return (
        f"With `RayWorkers`, the driver handles at most {two_digits(episodes):,} "
        f"episodes per second, and the learner at most {two_digits(steps):,} steps per "
        "second, for any number of workers."
    )


def foreign_text(numbers):
    """Returns a sentence about the other processes during the measurements."""
    points = [point for points in numbers["points"].values() for point in points]
    points = [point for point in points if not point["is_ray"]]
    cores = [one[1] for point in points for one in point["repetitions"]]
    median, most = statistics.median(cores), max(cores)
    return (
        f"Meanwhile, other processes of the machine used {median:.2f} of its "
        f"{numbers['cores']} cores (median; at most {most:.2f})."
    )


def two_digits(value):
    """Returns a number with two digits, an int."""
    return int(float(f"{value:.2g}"))


def draw(numbers, path):
    """Draws the predicted speed-up, and the parts of the time of a worker."""
    pyplot = learning_report.import_pyplot()
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(11, 4.4), dpi=100)
    counts = np.unique(np.geomspace(1, 10_000, 21).round().astype(int)).tolist()
    left.plot(counts, counts, color="0.7", linestyle=":", label="number of workers")
    results = {}
    for step_seconds in reversed(STEPS):
        curve = [speed_up(numbers, count, step_seconds) for count in counts]
        ratios, results[step_seconds] = zip(*curve)
        label, color = f"{STEPS[step_seconds]} per step", COLORS[step_seconds]
        left.plot(counts, ratios, color=color, label=label)
    fixed = [speed_up(numbers, count, 1e-2, count=FIXED)[0] for count in counts]
    label = f"10 ms, {FIXED:,} episodes per update"
    left.plot(counts, fixed, color=COLORS[1e-2], linestyle="--", label=label)
    rows = [row for row in compare(numbers) if "1 to 99" in row["name"]]
    rows = [row for row in rows if "per worker" in row["name"]]
    measured = [row["measured"] / rows[0]["measured"] for row in rows]
    workers = [row["workers"] for row in rows]
    left.plot(workers, measured, "ko", markersize=4, label="measured, 10 ms")
    left.set(xscale="log", yscale="log", xlabel="workers")
    left.set_ylabel("speed, as a multiple of one process")
    title = f"predicted: 1 to 99 steps, {PER_WORKER} episodes per worker"
    left.set_title(title, fontsize=10)
    left.legend(fontsize=8)
    left.grid(alpha=0.3)
    shares = [
        [getattr(result, name) / result.total for result in results[1e-2]]
        for name in PARTS
    ]
    labels, colors = zip(*PARTS.values())
    right.stackplot(counts, np.clip(shares, 0, 1), labels=labels, colors=colors)
    right.set(xscale="log", xlim=(1, 10_000), ylim=(0, 1), xlabel="workers")
    right.set_ylabel("share of the time of an update")
    right.set_title("predicted: the time of a worker, 10 ms per step", fontsize=10)
    right.legend(fontsize=8, loc="lower left")
    figure.tight_layout()
    learning_report.save_figure(figure, path)


def write(numbers, page, picture):
    """Writes the tables into the page, and the picture."""
    draw(numbers, picture)
    parts = [
        f"Measured on {numbers['machine']}, with medians of {numbers['repeats']} "
        "repetitions:",
        costs_table(numbers),
        "Predicted and measured speed of the environment that sleeps, with the median "
        f"error and its range. {foreign_text(numbers)}",
        comparison_table(numbers),
        "Predicted speed as a multiple of one process, for a Ray cluster of machines "
        f"with {MACHINE_WORKERS} workers each, and {PER_WORKER} episodes per worker. "
        "Parentheses contain the largest loss, with its share of the time of an update:",
        cluster_table(numbers),
        limits_text(numbers),
        f"![Predicted speed for 1 to 10,000 workers]({picture.name})",
    ]
    text = learning_report.replace_tables(page.read_text(), "\n\n".join(parts))
    page.write_text(text)
