"""Draws the picture of docs/howto_structured_actions.md.

    python docs/draw_structured_actions.py [--train]

The program needs Matplotlib. With `--train`, it first trains the agents of
examples/structured_actions.py with ten seeds, and writes structured_actions.json.
"""

import json
import os
import pathlib
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
sys.path.append(os.path.join(os.path.dirname(__file__), "..", "examples"))

import draw_concepts
import numpy as np
import structured_actions as tasks

import tf_reinforce as tfr

DOCS = pathlib.Path(__file__).parent
DATA = DOCS / "structured_actions.json"
SEEDS, UPDATES, BLOCK = range(10), 500, 10
JOB_UPDATES = [*range(0, 20, 2), *range(20, 81, 5)]


def train_units(head):
    """Returns the mean returns of each seed in blocks of updates, and the final J."""
    results = tfr.train_seeds(
        lambda seed: tasks.make_units_agent(head, seed),
        tasks.Units(),
        SEEDS,
        epochs=UPDATES,
        episodes_per_epoch=128,
    )
    returns = results.history["episode_return"].reshape(-1, BLOCK, len(SEEDS)).mean(1)
    final = [tasks.expected_return(results.agent(seed)) for seed in SEEDS]
    return {"returns": returns.T.round(3).tolist(), "final": np.round(final, 3).tolist()}


def train_jobs(seed):
    """Returns the gaps with 5 to 8 jobs, and with 12, after some numbers of updates."""
    agent = tasks.make_jobs_agent(seed)
    few, many = tasks.Jobs(5, 8), tasks.Jobs(tasks.MAX_JOBS, tasks.MAX_JOBS)
    rows = []
    for start, end in zip([0, *JOB_UPDATES], JOB_UPDATES):
        options = dict(epochs=end, initial_epoch=start, seed=seed, verbose=0)
        if end > start:
            agent.fit(few, episodes_per_epoch=64, **options)
        rows.append([round(tasks.gap(agent, env), 5) for env in (few, many)])
    return rows


def train():
    data, start = {}, time.perf_counter()
    for head in ("autoregressive", "composite"):
        data[head] = train_units(head)
        final, seconds = np.array(data[head]["final"]), time.perf_counter() - start
        print(f"{head}: {final.mean():.2f}, {final.min():.2f} to {final.max():.2f}")
        print(f"{seconds:.0f} s", flush=True)
    data["jobs"] = [train_jobs(seed) for seed in SEEDS]
    last = np.array(data["jobs"])[:, -1]
    print("gaps of each seed:", last.T.tolist())
    print(f"means {last.mean(0)}, {time.perf_counter() - start:.0f} s")
    DATA.write_text(json.dumps(data))


def draw_band(panel, x, rows, color, name):
    """Draws the median and the range of `[seeds, x]` numbers."""
    panel.fill_between(x, rows.min(0), rows.max(0), color=color, alpha=0.25, linewidth=0)
    panel.plot(x, np.median(rows, axis=0), color=color, linewidth=1.6, label=name)


def draw(data):
    drawing, (left, right) = draw_concepts.new_figure(8.6, 3.0, columns=2)
    gray, blue = draw_concepts.GRAY, draw_concepts.BLUE
    orange, green = draw_concepts.ORANGE, draw_concepts.GREEN
    updates = np.arange(BLOCK / 2, UPDATES, BLOCK)
    for head, color in (("autoregressive", blue), ("composite", orange)):
        rows = np.array(data[head]["returns"])
        draw_band(left, updates, rows, color, head.capitalize())
    left.axhline(tasks.BOUND, color=gray, linestyle="--", linewidth=1)
    left.text(
        500, tasks.BOUND + 0.06, "bound of independent parts", color=gray, ha="right"
    )
    left.axhline(tasks.OPTIMUM, color=gray, linestyle=":", linewidth=1)
    left.text(10, tasks.OPTIMUM - 0.22, "optimum", color=gray)
    left.set_ylim(0.5, 4.2)
    draw_concepts.label(left, "units: two dependent choices", "update", "return")
    jobs = np.maximum(data["jobs"], 1e-4)  # shown on a log scale
    for k, color, name in ((0, blue, "5 to 8 jobs"), (1, green, "12 jobs")):
        draw_band(right, JOB_UPDATES, 100 * jobs[..., k], color, name)
    for env, color in ((tasks.Jobs(12, 12), green), (tasks.Jobs(5, 8), blue)):
        gap = 100 * tasks.random_gap(env)
        right.axhline(gap, color=color, linestyle="--", linewidth=1)
    right.text(80, 1.25 * gap, "random order", color=gray, ha="right")
    right.set_yscale("log")
    right.set_ylim(0.008, 120)
    right.set_yticks([0.01, 0.1, 1, 10, 100], ["≤ 0.01", "0.1", "1", "10", "100"])
    draw_concepts.label(
        right,
        "job shop: Pointer, trained with 5 to 8",
        "update",
        "gap to the optimum [%]",
    )
    for panel in (left, right):
        panel.legend(frameon=False, labelcolor=gray, fontsize=8, loc="center right")
    return drawing


if __name__ == "__main__":
    if "--train" in sys.argv[1:]:
        train()
    draw(json.loads(DATA.read_text())).savefig(DOCS / "structured_actions.png", dpi=100)
