"""Draws the learning curve of the README, for CartPole-v1 with ten seeds.

    python benchmarks/cartpole_curve.py [--out docs/cartpole.png]

The ten agents have the default settings of `Reinforce.for_env`. The program prints the
numbers of the picture as a table. For each update, the table lists the median and the
quartiles over seeds of the mean return of 16 training episodes. In training episodes the
actions are sampled from the policy. The program also prints, for each seed, the greedy
return over 100 new episodes after the last update.
"""

import argparse
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import matplotlib
import numpy as np

import tf_reinforce as tfr

SEEDS, UPDATES = range(10), 25


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", default="docs/cartpole.png")
    arguments = parser.parse_args()
    returns, steps, greedy = [], [], []
    for seed in SEEDS:
        agent = tfr.Reinforce.for_env("CartPole-v1", seed=seed)
        history = agent.fit("CartPole-v1", epochs=UPDATES, seed=seed, verbose=0).history
        returns.append(history["episode_return"])
        steps.append(history["env_steps"])
        greedy.append(agent.evaluate("CartPole-v1", seed=seed)["episode_return"])
    low, median, high = np.percentile(returns, (25, 50, 75), axis=0)
    print("| update | median steps | lower quartile | median return | upper quartile |")
    print("|---|---|---|---|---|")
    for u in range(4, UPDATES, 5):
        env_steps = np.median(np.array(steps)[:, u])
        quartiles = f"{low[u]:.0f} | {median[u]:.0f} | {high[u]:.0f}"
        print(f"| {u + 1} | {env_steps:,.0f} | {quartiles} |")
    print("greedy return of 100 episodes, by seed:", [round(x, 1) for x in greedy])
    draw(arguments.out, returns, (low, median, high))


def draw(path, returns, quartiles):
    matplotlib.use("Agg")
    from matplotlib import pyplot

    updates = np.arange(1, UPDATES + 1)
    figure, axes = pyplot.subplots(figsize=(7, 3.6), dpi=110)
    for curve in returns:
        axes.plot(updates, curve, color="0.8", linewidth=0.8, zorder=1)
    low, median, high = quartiles
    axes.fill_between(updates, low, high, color="tab:blue", alpha=0.25, zorder=2)
    axes.plot(updates, median, color="tab:blue", linewidth=2, zorder=3)
    axes.axhline(475, color="black", linewidth=0.8, linestyle="--")
    axes.text(1, 481, "solved: 475", fontsize=8, va="bottom")
    axes.set_xlabel("update (16 episodes each)")
    axes.set_ylabel("return of training episodes")
    axes.set_title("CartPole-v1, 10 seeds: median, quartiles, each seed", fontsize=10)
    axes.set_ylim(0, 520)
    figure.tight_layout()
    figure.savefig(path)


if __name__ == "__main__":
    main()
