"""Draws the pictures of the pages docs/concept_*.md.

    python docs/draw_concepts.py [FOLDER]

The program needs Matplotlib, and writes to the folder docs by default. The background of
the pictures is transparent, and the colors are visible on light and on dark pages.
"""

import os
import pathlib
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gymnasium as gym
import numpy as np
import tensorflow as tf
from matplotlib import figure
from matplotlib import patches

import tf_reinforce as tfr

GRAY, BLUE, ORANGE, GREEN, PINK = "#7d8590", "#2f81f7", "#e8710a", "#1fa35c", "#d6409f"


def new_figure(width, height, columns=1, **kwargs):
    """Returns a figure with a transparent background, and its axes."""
    drawing = figure.Figure(figsize=(width, height), dpi=120, layout="constrained")
    drawing.patch.set_alpha(0.0)
    panels = np.atleast_1d(drawing.subplots(1, columns, **kwargs))
    for panel in panels:
        panel.patch.set_alpha(0.0)
        panel.tick_params(colors=GRAY)
        panel.grid(color=GRAY, alpha=0.25, linewidth=0.6)
        for spine in panel.spines.values():
            spine.set_color(GRAY)
    return drawing, panels


def label(panel, title, x, y):
    panel.set_title(title, color=GRAY, fontsize=10)
    panel.set_xlabel(x, color=GRAY)
    panel.set_ylabel(y, color=GRAY)


def draw_update():
    """Draws returns to go, advantages, and the probabilities after an update."""
    drawing, (first, second, third) = new_figure(9.0, 3.0, columns=3)
    rewards, steps = np.array([0.0, 1.0, 0.0, 0.0, 2.0, 0.0, 1.0]), np.arange(7)
    returns = tfr.returns.discounted_returns(
        tf.constant(rewards[:, None]), tf.fill([7, 1], tf.constant(0.9, tf.float64))
    ).numpy()[:, 0]
    first.bar(steps, rewards, color=GRAY, alpha=0.7, width=0.6, label="reward")
    first.plot(steps, returns, color=BLUE, marker="o", label="return to go")
    label(first, "1. returns of an episode, γ = 0.9", "step", "")
    baseline = np.linspace(2.9, 0.9, 7)
    second.plot(steps, returns, color=BLUE, marker="o", label="return to go")
    second.plot(steps, baseline, color=ORANGE, linestyle="--", label="baseline")
    for t, low, high in zip(steps, baseline, returns):
        color = GREEN if high > low else PINK
        arrow = dict(arrowstyle="-|>", color=color, linewidth=2)
        second.annotate("", (t, high), (t, low), arrowprops=arrow)
    label(second, "2. advantage = return − baseline", "step", "")
    probs = np.array([0.2, 0.5, 0.3])
    logits, width = np.log(probs), 0.26
    for offset, advantage, color in ((0, 0, GRAY), (1, 1, GREEN), (2, -1, PINK)):
        direction = tfr.eligibility.categorical_logits(logits, 0).numpy()
        changed = tf.nn.softmax(logits + advantage * direction).numpy()
        name = ["before", "advantage +1", "advantage −1"][offset]
        third.bar(
            np.arange(3) + width * (offset - 1), changed, width, color=color, label=name
        )
    third.set_ylim(0, 0.9)
    third.set_xticks(range(3), ["sampled", "other", "other"])
    label(third, "3. probabilities after a step", "action", "")
    for panel in (first, second, third):
        panel.legend(frameon=False, labelcolor=GRAY, fontsize=8)
    return drawing


def draw_baselines():
    """Draws many gradient estimates with and without a baseline."""
    drawing, (panel,) = new_figure(7.0, 3.0)
    values, probs = np.array([9.0, 10.0, 12.0]), np.array([0.3, 0.4, 0.3])
    rng = np.random.default_rng(0)
    actions = rng.choice(3, p=probs, size=(20_000, 16))
    returns = values[actions] + rng.normal(size=actions.shape)
    eligibility = (actions == 2) - probs[2]  # d ln π / d logit of the best action
    others = (returns.sum(axis=1, keepdims=True) - returns) / 15
    plain = (eligibility * returns).mean(axis=1)
    reduced = (eligibility * (returns - others)).mean(axis=1)
    exact = probs[2] * (values[2] - probs @ values)
    bins = np.linspace(-4, 5, 120)
    for samples, color, name in (
        (plain, ORANGE, f"no baseline: deviation {plain.std():.2f}"),
        (reduced, BLUE, f"leave-one-out: deviation {reduced.std():.2f}"),
    ):
        panel.hist(samples, bins, density=True, color=color, alpha=0.6, label=name)
    panel.axvline(
        exact, color=GREEN, linestyle="--", label=f"exact gradient: {exact:.2f}"
    )
    label(panel, "20,000 updates of 16 episodes", "gradient of one logit", "density")
    panel.legend(frameon=False, labelcolor=GRAY, fontsize=8)
    print(f"baselines: deviations {plain.std():.2f} {reduced.std():.2f}")
    return drawing


def draw_spaces():
    """Draws histograms of the actions of the four heads for a bounded `Box`."""
    drawing, panels = new_figure(8.6, 2.5, columns=4, sharey=True)
    space, count = gym.spaces.Box(-1, 1, (1,), np.float32), 20_000
    heads = (
        (
            "Gaussian",
            tfr.heads.Gaussian(1, low=-1, high=1, initial_scale=0.6),
            [0.5],
            BLUE,
        ),
        (
            "ClippedGaussian",
            tfr.heads.ClippedGaussian(1, -1, 1, initial_scale=0.6),
            [0.5],
            ORANGE,
        ),
        (
            "TanhGaussian",
            tfr.heads.TanhGaussian(1, -1, 1, initial_scale=0.6),
            [0.55],
            GREEN,
        ),
        ("Beta", tfr.heads.Beta(1, -1, 1), [3.0, 0.5], PINK),
    )
    for panel, (name, head, outputs, color) in zip(panels, heads):
        outputs = tf.constant([outputs] * count, tf.float32)
        head.build(outputs.shape)
        noise = head_noise(head, count)
        raw = head.sample(outputs, noise)
        actions = np.asarray(head.to_environment(raw)).reshape(-1)
        assert space.contains(actions[:1])
        panel.hist(actions, np.linspace(-1.7, 1.7, 69), color=color, alpha=0.75)
        if name == "Gaussian":
            samples = np.asarray(raw).reshape(-1)
            panel.hist(samples, np.linspace(-1.7, 1.7, 69), histtype="step", color=GRAY)
        for bound in (-1, 1):
            panel.axvline(bound, color=GRAY, linestyle=":", linewidth=1)
        label(panel, name, "action", "")
        panel.set_yticks([])
        panel.set_ylim(0, 2600)
    return drawing


def head_noise(head, count):
    """Returns noise for `count` samples of a head."""
    rng = np.random.default_rng(0)
    shape = (count, *head.noise.shape)
    draws = rng.random(shape) if head.noise.kind == "uniform" else rng.normal(size=shape)
    return tf.constant(draws, tf.float32)


def box(panel, x, y, width, height, text, color):
    style = "round,pad=0.02,rounding_size=0.08"
    panel.add_patch(
        patches.FancyBboxPatch(
            (x, y), width, height, style, facecolor=color, alpha=0.2, linewidth=0
        )
    )
    panel.add_patch(
        patches.FancyBboxPatch(
            (x, y), width, height, style, fill=False, edgecolor=color, linewidth=1.4
        )
    )
    panel.text(
        x + width / 2,
        y + height / 2,
        text,
        color=GRAY,
        ha="center",
        va="center",
        fontsize=8,
    )


def arrow(panel, start, end):
    style = dict(arrowstyle="-|>", color=GRAY, linewidth=1.2)
    panel.annotate("", end, start, arrowprops=style)


def draw_engines():
    """Draws which process plays the episodes of an update, for the three engines."""
    drawing, panels = new_figure(8.2, 2.6, columns=3)
    for panel, title in zip(panels, ("one process", "workers=3", "tensor environment")):
        panel.axis("off")
        panel.set(xlim=(0, 6), ylim=(0, 4))
        panel.set_title(title, color=GRAY, fontsize=11)
    one, many, compiled = panels
    box(one, 0.4, 0.4, 5.2, 3.2, "", GRAY)
    box(one, 0.8, 2.2, 2.0, 1.0, "8 Gymnasium\nenvironments", BLUE)
    box(one, 3.3, 2.2, 1.9, 1.0, "policy in\nLiteRT", ORANGE)
    box(one, 0.8, 0.7, 4.4, 0.9, "update in TensorFlow", GREEN)
    arrow(one, (2.85, 2.9), (3.25, 2.9))
    arrow(one, (3.25, 2.5), (2.85, 2.5))
    arrow(one, (1.8, 2.15), (1.8, 1.65))
    for k in range(3):
        box(many, 0.1 + 2.0 * k, 2.2, 1.7, 1.3, "Gymnasium\n+ LiteRT", BLUE)
        arrow(many, (0.95 + 2.0 * k, 2.15), (2.0 + 1.0 * k, 1.4))
    box(many, 0.8, 0.4, 4.4, 0.9, "update in TensorFlow", GREEN)
    box(compiled, 0.4, 0.4, 5.2, 3.2, "", PINK)
    box(
        compiled,
        0.8,
        2.2,
        4.4,
        1.0,
        "all episodes at once:\nenvironment + policy in XLA",
        BLUE,
    )
    box(compiled, 0.8, 0.7, 4.4, 0.9, "update in TensorFlow", GREEN)
    arrow(compiled, (3.0, 2.15), (3.0, 1.65))
    return drawing


def draw_seeds():
    """Draws how the seeds of all episodes follow from the seed of a training."""
    drawing, (panel,) = new_figure(8.2, 3.4)
    panel.axis("off")
    panel.set(xlim=(0, 12), ylim=(0, 5))
    box(panel, 5.0, 4.1, 2.0, 0.7, "seed", BLUE)
    for x, name in ((1.4, "training"), (5.0, "validation"), (8.6, "evaluation")):
        box(panel, x, 2.9, 2.0, 0.7, f"stream\n{name}", ORANGE)
        arrow(panel, (6.0, 4.05), (x + 1.0, 3.65))
    for k, x in enumerate((0.1, 2.7)):
        box(panel, x, 1.6, 2.0, 0.7, f"update {k}" if k == 0 else "update 1, …", GREEN)
        arrow(panel, (2.4, 2.85), (x + 1.0, 2.35))
    for x, name in ((0.1, "episode 0"), (2.7, "episode 1, …")):
        box(panel, x, 0.2, 2.0, 0.8, f"{name}\nreset seed, noise", PINK)
        arrow(panel, (1.1, 1.55), (x + 1.0, 1.05))
    panel.text(
        5.6,
        1.1,
        "The numbers of update and episode determine the random numbers.\n"
        "The number of environments and of workers does not.",
        color=GRAY,
        fontsize=10,
        va="center",
    )
    return drawing


def main():
    folder = pathlib.Path(
        sys.argv[1] if len(sys.argv) > 1 else pathlib.Path(__file__).parent
    )
    for draw in (draw_update, draw_baselines, draw_spaces, draw_engines, draw_seeds):
        name = draw.__name__.replace("draw_", "concept_")
        draw().savefig(folder / f"{name}.png")


if __name__ == "__main__":
    main()
