"""Draws the learning curves of the T-maze of 200 steps, with attention and with a GRU.

    python docs/draw_memory.py [FOLDER]
    python docs/draw_memory.py --run {attention | gru} SEED …

The first command draws docs/memory.json. The second one trains the agents of
examples/memory.py first, which takes up to two minutes per seed on two cores, and adds
their results to this file.
"""

import json
import pathlib
import sys
import time

import draw_concepts
import numpy as np

DOCS = pathlib.Path(__file__).parent
RESULTS = DOCS / "memory.json"
EVERY = 10  # updates per point of a curve


def run(memory_name, seed):
    """Trains one agent, and stores its result in docs/memory.json."""
    sys.path.insert(0, str(DOCS.parent / "examples"))
    import memory

    start = time.time()
    agent, env, history = memory.train("tmaze", memory_name, seed)
    seconds = round(time.time() - start)
    returns = agent.evaluate(env, 200, per_episode=True)["episode_return"]
    means = history.history["episode_return"]
    curve = [np.mean(means[i : i + EVERY]) for i in range(0, len(means), EVERY)]
    row = {
        "memory": memory_name,
        "seed": seed,
        "success": float(np.mean(returns == 1.0)),
        "updates": agent.updates,
        "seconds": seconds,
        "curve": np.round(curve, 2).tolist(),
    }
    rows = json.loads(RESULTS.read_text()) if RESULTS.exists() else []
    rows = [x for x in rows if (x["memory"], x["seed"]) != (memory_name, seed)] + [row]
    lines = ",\n".join(json.dumps(x) for x in rows)
    RESULTS.write_text(f"[\n{lines}\n]\n")


def draw(folder):
    """Draws median and range over the seeds of the training episodes' mean return."""
    rows = json.loads(RESULTS.read_text())
    longest = max(len(row["curve"]) for row in rows)
    drawing, (panel,) = draw_concepts.new_figure(6.0, 3.2)
    kinds = ("attention", draw_concepts.BLUE), ("gru", draw_concepts.ORANGE)
    for name, color in kinds:
        curves = [row["curve"] for row in rows if row["memory"] == name]
        # A run stops when it has solved the task.
        curves = [x + [x[-1]] * (longest - len(x)) for x in curves]
        low, median, high = np.percentile(curves, [0, 50, 100], axis=0)
        updates = EVERY * (np.arange(longest) + 1)
        panel.fill_between(updates, low, high, color=color, alpha=0.2, linewidth=0)
        shown = {"attention": "attention", "gru": "GRU"}[name]
        text = f"{shown}, {len(curves)} seeds"
        panel.plot(updates, median, color=color, label=text)
    panel.axhline(0.5, color=draw_concepts.GRAY, linewidth=0.8, linestyle="--")
    title = "T-maze of 200 steps: median and range"
    draw_concepts.label(panel, title, "updates of 128 episodes", "mean return")
    panel.legend(frameon=False, labelcolor=draw_concepts.GRAY, fontsize=8)
    drawing.savefig(pathlib.Path(folder) / "memory.png")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        for seed in sys.argv[3:]:
            run(sys.argv[2], int(seed))
    draw(sys.argv[1] if len(sys.argv) == 2 else DOCS)
