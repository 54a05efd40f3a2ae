"""Prints and draws how one update changes a policy.

    python examples/eligibility.py [eligibility.png]

This example needs Matplotlib. docs/eligibility.md explains every printed number.
"""

import sys

import numpy as np
import tensorflow as tf
from matplotlib.figure import Figure

from tf_reinforce.functional import eligibility

CORNERS = np.array([[0.0, 0.0], [1.0, 0.0], [0.5, 0.75**0.5]])
VALUES = np.array([0.0, 1.0, 0.5])  # rewards of the categories in panel 3
LEARNING_RATE = 0.6


def tables():
    probs = np.array([0.69, 0.1, 0.2, 0.01])
    print(f"probabilities {probs.tolist()}, category 0 was sampled")
    show("logits", eligibility.categorical_logits(np.log(probs), 0))
    show("probs, normalized", eligibility.categorical_probs(probs, 0))
    show("100 times these probs", eligibility.categorical_probs(100 * probs, 0))
    show("probs, not normalized", eligibility.categorical_simplex(probs, 0))
    print("\nprobabilities [0.6, 0.4], action 0: gradients of the two logits")
    for advantage in (1.0, 10.0, -1.0):
        gradient = advantage * eligibility.categorical_logits(np.log([0.6, 0.4]), 0)
        show(f"advantage {advantage:.0f}", gradient)


def show(name, numbers):
    print(f"{name:>22}", "".join(f"{x:9.4f}" for x in numbers.numpy()))


def initial_policies():
    """Returns a grid of N policies, `[N, 3]` probabilities of three categories."""
    grid = np.array([[i, j, 5 - i - j] for i in range(6) for j in range(6 - i)]) + 0.4
    return grid / grid.sum(axis=-1, keepdims=True)


def sampled_update(probs, category, advantage):
    """Returns N policies, `[N, 3]`, after an update of their logits from one sample."""
    logits = np.log(probs)
    step = advantage * eligibility.categorical_logits(logits, [category] * len(probs))
    return tf.nn.softmax(logits + LEARNING_RATE * step).numpy()


def expected_update(probs):
    """Returns N policies, `[N, 3]`, after the mean update with the rewards `VALUES`."""
    logits, step = np.log(probs), 0.0
    for k, value in enumerate(VALUES):
        e = eligibility.categorical_logits(logits, [k] * len(probs)).numpy()
        step += probs[:, [k]] * value * e
    return tf.nn.softmax(logits + 3 * LEARNING_RATE * step).numpy()  # visible arrows


def draw_panel(axes, title, names, probs, step, color):
    axes.set(title=title, aspect="equal", xlim=(-0.17, 1.17), ylim=(-0.12, 0.98))
    axes.axis("off")
    axes.fill(*CORNERS.T, facecolor="0.97", edgecolor="0.4")
    for name, (x, y) in zip(names, CORNERS):
        axes.text(x, 1.1 * y - 0.05, name, ha="center", va="center")
    start, arrow = probs @ CORNERS, step @ CORNERS
    axes.scatter(*start.T, s=14, color="0.25", zorder=3)
    style = {"color": color, "width": 0.011, "headwidth": 3.6, "headlength": 3.8}
    axes.quiver(*start.T, *arrow.T, angles="xy", scale_units="xy", scale=1, **style)


def main():
    tables()
    probs = initial_policies()
    names, rewards = [f"category {k}" for k in range(3)], [f"reward {x}" for x in VALUES]
    panels = [
        ("1 was sampled, advantage +1", names, sampled_update(probs, 1, 1.0), "tab:blue"),
        ("1 was sampled, advantage −1", names, sampled_update(probs, 1, -1.0), "tab:red"),
        ("mean update over all samples", rewards, expected_update(probs), "tab:green"),
    ]
    figure = Figure(figsize=(10.5, 3.3), dpi=110, layout="constrained")
    for axes, (title, corners, updated, color) in zip(figure.subplots(1, 3), panels):
        draw_panel(axes, title, corners, probs, updated - probs, color)
    path = sys.argv[1] if len(sys.argv) > 1 else "eligibility.png"
    figure.savefig(path)
    print(f"\npicture in {path}")


if __name__ == "__main__":
    main()
