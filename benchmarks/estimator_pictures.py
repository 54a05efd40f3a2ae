"""Draws the pictures of docs/estimator_choice.md.

    python benchmarks/estimator_pictures.py [FOLDER]

The program draws the numbers in docs/discrete_vae.jsonl, which discrete_vae.py has
measured, and trains the single bit itself, in half a minute. It needs Matplotlib.
"""

import collections
import json
import pathlib
import sys

import discrete_vae
import estimator_variances
import keras
import learning_report
import numpy as np

import tf_reinforce as tfr

DOCS = pathlib.Path(__file__).parents[1] / "docs"
# The estimators of the pictures, with one color each.
SHOWN = {
    "score_function": ("score function", "tab:gray", "-"),
    "leave_one_out": ("leave-one-out, K = 2", "tab:blue", "-"),
    "leave_one_out_4": ("leave-one-out, K = 4", "tab:blue", "--"),
    "disarm": ("DisARM", "tab:orange", "-"),
    "rebar": ("REBAR", "tab:green", "-"),
    "without_replacement_4": ("without replacement, k = 4", "tab:green", "--"),
    "reinmax": ("ReinMax (biased)", "tab:pink", "-"),
}
NAMES = {
    "score_function": "score function, moving average",
    "leave_one_out": "leave-one-out, K = 2",
    "leave_one_out_4": "leave-one-out, K = 4",
    "double_control_variates": "double control variates, k = 2",
    "muprop": "MuProp",
    "rebar": "REBAR, temperature 0.5",
    "relax": "RELAX, hidden layer of 50",
    "arm": "ARM",
    "disarm": "DisARM",
    "without_replacement": "without replacement, k = 2",
    "without_replacement_4": "without replacement, k = 4",
    "sum_and_sample": "sum and sample, k = 1",
    "straight_through": "straight-through (biased)",
    "gumbel_softmax": "Gumbel-softmax, temperature 0.5 (biased)",
    "reinmax": "ReinMax (biased)",
}
TITLES = {"bits": "200 bits", "categories": "20 categories among 10"}


def rows_with(key, library="tf_reinforce"):
    """Returns the rows with a key, by latent and the name at this key."""
    groups = collections.defaultdict(list)
    for line in discrete_vae.RESULTS.read_text().splitlines():
        row = json.loads(line)
        if key in row and row.get("library", library) == library:
            groups[row["latent"], row[key]].append(row)
    return groups


def table():
    """Returns the bounds of the test digits and the times of all methods, in Markdown."""
    lines = []
    for name, text in NAMES.items():
        cells = [text]
        for latent in TITLES:
            for library in ("tf_reinforce", "storchastic"):
                bounds = [x["test"] for x in rows_with("method", library)[latent, name]]
                if not bounds:
                    cells += ["", ""]
                    continue
                speed = rows_with("speed", library)[latent, name][-1]["ms"]
                spread = np.std(bounds, ddof=1)
                cells += [f"{np.mean(bounds):.2f} ± {spread:.2f}", f"{speed:.2g}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def draw_variances():
    """Draws the variance of each estimator along one training."""
    drawing, panels = new_figure()
    groups = rows_with("variance")
    for panel, (latent, title) in zip(panels, TITLES.items()):
        for name, (text, color, style) in SHOWN.items():
            rows = groups[latent, name]
            xs, ys = zip(*((row["epoch"], row["value"]) for row in rows))
            panel.plot(xs, ys, style, marker=".", color=color, label=text)
        panel.set_xscale("symlog", linthresh=1)
        panel.set_yscale("log")
        label(panel, title, "epochs of training", "variance of a gradient")
    return legend(drawing, panels)


def draw_bounds():
    """Draws the median bound over the seconds of training, without the compilation."""
    drawing, panels = new_figure()
    groups, speeds = rows_with("method"), rows_with("speed")
    steps = len(discrete_vae.digits()[0]) // discrete_vae.BATCH
    for panel, (latent, title) in zip(panels, TITLES.items()):
        for name, (text, color, style) in SHOWN.items():
            curves = [row["curve"] for row in groups[latent, name]]
            epochs = discrete_vae.CURVE * np.arange(len(curves[0])) + 1
            seconds = epochs * steps * speeds[latent, name][-1]["ms"] / 1000
            ys = np.median(curves, axis=0)
            panel.plot(seconds, ys, style, color=color, label=text)
        panel.set_xscale("log")
        panel.set_ylim(None, 27)
        label(panel, title, "seconds of training", "negative bound (nats)")
    return legend(drawing, panels)


def new_figure():
    """Returns a figure, and its two panels."""
    pyplot = learning_report.import_pyplot()
    return pyplot.subplots(1, 2, figsize=(9.5, 3.4), dpi=100, layout="constrained")


def label(panel, title, x, y):
    panel.set(title=title, xlabel=x, ylabel=y)
    panel.grid(alpha=0.3)


def legend(drawing, panels):
    lines = panels[0].get_legend_handles_labels()
    drawing.legend(*lines, loc="outside right center", frameon=False)
    return drawing


def train_bit(name, steps=4000, every=100):
    """Minimizes E[(b - 0.499)²] over one logit, and returns p(b = 1) along the way."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((1,))
    logit = keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros")(inputs)
    sample = tfr.layers.Sample(tfr.heads.Bernoulli(1), seed=0, one_hot=True)
    model = keras.Model(inputs, sample(logit))
    samples = 2 if name == "leave_one_out" else 1
    options = {"baseline": None} if name == "score_function" else {}
    function = tfr.ScoreFunction(
        model, loss="mse", samples=samples, estimator=name, **options
    )
    function.compile(keras.optimizers.Adam(0.01), steps_per_execution=every)
    probs = [0.5]

    def log(batch, logs):
        kernel = model.trainable_variables[0].numpy()
        probs.append(float(1 / (1 + np.exp(-kernel[0, 0]))))

    ones = np.ones((steps, 1), "float32")
    callback = keras.callbacks.LambdaCallback(on_train_batch_end=log)
    function.fit(ones, 0.499 * ones, batch_size=1, verbose=0, callbacks=[callback])
    return np.array(probs)


def exact_variance(name, p):
    """Returns the variance of the logit's gradient of E[(b - 0.499)²] at p(b = 1)."""
    logits = estimator_variances.bits(np.log(p / (1 - p)))
    costs = estimator_variances.squares(0.499)
    if name == "leave_one_out":
        return estimator_variances.leave_one_out(logits, costs, 2)[1]
    estimator = tfr.estimators.get(name)
    return estimator_variances.moments(estimator, logits, costs)[1]


def draw_bit():
    """Draws the training of one bit, and the exact variance over its probability."""
    drawing, panels = new_figure()
    every, p = 100, np.linspace(0.02, 0.98, 25)
    for name in ("score_function", "leave_one_out", "disarm", "rebar", "reinmax"):
        text, color, style = SHOWN[name]
        probs = train_bit(name, every=every)
        steps = every * np.arange(len(probs))
        panels[0].plot(steps, probs, style, color=color, label=text)
        if name != "reinmax":
            variances = [exact_variance(name, x) for x in p]
            panels[1].plot(p, variances, style, color=color, label=text)
    panels[1].set_yscale("log")
    title = "minimizing E[(b − 0.499)²]"
    label(panels[0], title, "steps", "p(b = 1)")
    label(panels[1], "exactly", "p(b = 1)", "variance of a gradient")
    return legend(drawing, panels)


def main(folder):
    draws = {"variances": draw_variances, "bounds": draw_bounds, "bit": draw_bit}
    for name, draw in draws.items():
        path = pathlib.Path(folder) / f"estimator_{name}.png"
        learning_report.save_figure(draw(), path)


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else DOCS)
