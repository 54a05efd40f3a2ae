"""Trains a discrete VAE on handwritten digits with each estimator, and compares them.

    python benchmarks/discrete_vae.py [--seeds 5] [--only NAME …] [--torch PYTHON]
    python benchmarks/discrete_vae.py --speed 5 [--torch PYTHON]
    python benchmarks/discrete_vae.py --variances

The first command appends to docs/discrete_vae.jsonl: for latents of 200 bits and of 20
categories among 10, each estimator and each seed, the negative evidence lower bounds, in
nats, of 500 digits of scikit-learn from training and of 297 others. `--torch` names the
Python of an environment with PyTorch and storchastic, in which discrete_vae_torch.py
trains the same network. The second command measures the seconds of a step in short
trainings, of all estimators in turn. The third one measures the variance of each
estimator along one training. The program estimator_pictures.py draws the results.
"""

import argparse
import collections
import functools
import json
import multiprocessing
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent import futures

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
# A second thread makes a network of this size no faster, and its times unsteady.
for _name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS"):
    os.environ.setdefault(_name, "1")

import keras
import numpy as np
import tensorflow as tf
from sklearn import datasets

import tf_reinforce as tfr
from tf_reinforce import estimators

HERE = pathlib.Path(__file__).parent
RESULTS = HERE.parent / "docs" / "discrete_vae.jsonl"
EPOCHS, BATCH, WIDTH, RATE = 100, 100, 128, 3e-3
CURVE = 4  # epochs per point of a curve
LATENTS = {"bits": (200, 2), "categories": (20, 10)}
layers = keras.layers


def relax(sites, size):
    """Returns RELAX with a hidden layer of 50."""
    return estimators.Relax(
        keras.Sequential(
            [
                keras.Input((sites, size)),
                layers.Flatten(),
                layers.Dense(50, "relu"),
                layers.Dense(1),
            ]
        )
    )


# Estimator (or a function of sites and size), samples, and baseline, if not the default.
METHODS = {
    "score_function": ("score_function", 1, tfr.baselines.MovingAverage),
    "leave_one_out": ("leave_one_out", 2),
    "leave_one_out_4": ("leave_one_out", 4),
    "double_control_variates": ("double_control_variates", 1),
    "muprop": ("muprop", 1),
    "rebar": ("rebar", 1),
    "relax": (relax, 1),
    "arm": ("arm", 1),
    "disarm": ("disarm", 1),
    "without_replacement": ("without_replacement", 1),
    "without_replacement_4": (lambda *_: estimators.WithoutReplacement(4), 1),
    "sum_and_sample": ("sum_and_sample", 1),
    "straight_through": ("straight_through", 1),
    "gumbel_softmax": ("gumbel_softmax", 1),
    "reinmax": ("reinmax", 1),
}

# What storchastic has, and runs on this model: its ARM, and its sampling without
# replacement for bits, end in errors.
TORCH = {
    "bits": ["leave_one_out", "leave_one_out_4", "disarm", "rebar", "gumbel_softmax"],
    "categories": [
        "leave_one_out",
        "leave_one_out_4",
        "rebar",
        "without_replacement",
        "without_replacement_4",
        "gumbel_softmax",
    ],
}


def digits():
    """Returns digits of 64 pixels, 0 or 1, for training and for a test."""
    pixels = (datasets.load_digits().data >= 8).astype("float32")
    pixels = pixels[np.random.default_rng(0).permutation(len(pixels))]
    return pixels[:1500], pixels[1500:]


def reconstruction(pixels, logits):
    """Returns -log p(x|z) of each example, in nats."""
    each = keras.ops.binary_crossentropy(pixels, logits, from_logits=True)
    return keras.ops.sum(each, axis=-1)


def make(latent, method, seed, model=None):
    """Returns a `ScoreFunction` for the negative bound, up to log 2²⁰⁰ or log 10²⁰.

    With a uniform prior, the KL divergence is that constant minus the entropy.
    """
    sites, size = LATENTS[latent]
    estimator, samples, *baseline = METHODS[method]
    if callable(estimator):
        estimator = estimator(sites, size)
    if model is None:
        keras.utils.set_random_seed(seed)
        is_bits = latent == "bits"
        head = tfr.heads.Bernoulli(sites)
        if not is_bits:
            head = tfr.heads.MultiCategorical([size] * sites)
        own = estimator if isinstance(estimator, estimators.Relax) else None
        pixels = keras.Input((64,))
        hidden = layers.Dense(WIDTH, "leaky_relu")(pixels)
        logits = layers.Dense(head.outputs_size, name="logits")(hidden)
        sample = tfr.layers.Sample(head, seed=seed, one_hot=True, estimator=own)
        code = layers.Flatten()(sample(logits))
        hidden = layers.Dense(WIDTH, "leaky_relu")(code)
        model = keras.Model(pixels, layers.Dense(64)(hidden))
    if isinstance(estimator, estimators.Relax):
        estimator = "score_function"
    options = {"baseline": baseline[0]()} if baseline else {}
    return tfr.ScoreFunction(
        model,
        loss=reconstruction,
        samples=samples,
        estimator=estimator,
        entropy_coef=1.0,
        **options,
    )


def negative_bound(model, latent, pixels, draws=50):
    """Returns the mean negative evidence lower bound of some digits, in nats."""
    sites, size = LATENTS[latent]
    logits = keras.Model(model.input, model.get_layer("logits").output)(pixels)
    if latent == "bits":
        logits = tf.stack([tf.zeros_like(logits), logits], axis=-1)
    log_probs = tf.nn.log_softmax(tf.reshape(logits, [-1, sites, size]))
    entropy = -tf.reduce_sum(tf.exp(log_probs) * log_probs, axis=[1, 2])
    draw = tf.function(lambda: reconstruction(pixels, model(pixels, training=True)))
    costs = np.mean([draw() for _ in range(draws)], axis=0)
    return float(np.mean(costs - entropy + sites * np.log(size)))


def run(latent, method, seed, epochs=EPOCHS):
    """Trains one model, and returns its results."""
    training, test = digits()
    function = make(latent, method, seed)
    steps = len(training) // BATCH
    optimizer = keras.optimizers.Adam(RATE)
    function.compile(optimizer, jit_compile=True, steps_per_execution=steps)
    constant = np.log(LATENTS[latent][1]) * LATENTS[latent][0]
    bounds, times = [], []

    def log(epoch, logs):
        bounds.append(round(float(logs["loss"] - logs["entropy"] + constant), 2))
        times.append(time.perf_counter())

    function.fit(
        training,
        training,
        batch_size=BATCH,
        epochs=epochs,
        verbose=0,
        callbacks=[keras.callbacks.LambdaCallback(on_epoch_end=log)],
    )
    seconds = np.median(np.diff(times))  # without the first epoch, which compiles
    return {
        "library": "tf_reinforce",
        "latent": latent,
        "method": method,
        "seed": seed,
        "ms_per_step": 1000 * seconds / steps,
        "training": negative_bound(function.model, latent, training[:500]),
        "test": negative_bound(function.model, latent, test),
        "curve": bounds[::CURVE],
    }


def run_in_new_process(*arguments):
    """Does the same in a process of its own, which compiled nothing before."""
    context = multiprocessing.get_context("spawn")
    with futures.ProcessPoolExecutor(1, context) as pool:
        return pool.submit(run, *arguments).result()


def run_torch(python, latent, method, seed, epochs=EPOCHS):
    """Does the same with storchastic."""
    with tempfile.TemporaryDirectory() as folder:
        file = pathlib.Path(folder) / "digits.npz"
        np.savez(file, *digits())
        script = HERE / "discrete_vae_torch.py"
        command = [python, script, latent, method, str(seed), str(epochs), file]
        done = subprocess.run(command, check=True, capture_output=True)
        return json.loads(done.stdout)


def append(row):
    row = {k: round(v, 4) if isinstance(v, float) else v for k, v in row.items()}
    with RESULTS.open("a") as file:
        file.write(json.dumps(row) + "\n")
    print(*row.values(), flush=True)


def all_runs(names, latents, python):
    """Yields `(latent, method, function)` of both libraries."""
    for latent in latents:
        for name in names:
            yield latent, name, run_in_new_process
            if python is not None and name in TORCH[latent]:
                yield latent, name, functools.partial(run_torch, python)


def speed(runs, repeats, epochs=12):
    """Appends the median seconds of a step in short trainings, all methods in turn."""
    found = collections.defaultdict(list)
    for seed in range(repeats):
        for latent, name, function in runs:
            row = function(latent, name, seed, epochs)
            found[row["library"], latent, name].append(row["ms_per_step"])
    for (library, latent, name), times in found.items():
        values = {"ms": statistics.median(times), "low": min(times), "high": max(times)}
        append({"library": library, "latent": latent, "speed": name, **values})


def variances(latent, names, epochs=(0, 1, 3, 10, 30, 100), draws=200):
    """Appends variances of the gradient of the logits' weights along one training.

    The model is trained with DisARM. The variance of one example's gradient is summed
    over the weights of the last layer of the encoder, and averaged over a batch.
    """
    training, _ = digits()
    batch = tf.constant(training[:BATCH])
    path = make(latent, "disarm", 0)
    path.compile(keras.optimizers.Adam(RATE))
    trained = 0
    functions = {x: make(latent, x, 0, path.model) for x in names if x != "relax"}
    index = [x.path for x in path.model.trainable_variables].index("logits/kernel")
    compiled = {
        name: tf.function(lambda f=f: f.gradients(batch, batch).gradients[index])
        for name, f in functions.items()
    }
    for epoch in epochs:
        options = dict(epochs=epoch, initial_epoch=trained, batch_size=BATCH, verbose=0)
        path.fit(training, training, **options)
        trained = epoch
        for name, gradient in compiled.items():
            found = np.stack([gradient() for _ in range(draws)])
            variance = float(np.sum(np.var(found, axis=0, ddof=1)) * BATCH)
            append(
                {"latent": latent, "variance": name, "epoch": epoch, "value": variance}
            )


def main(arguments):
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--latents", nargs="*", default=list(LATENTS))
    parser.add_argument("--only", nargs="*", default=list(METHODS))
    parser.add_argument("--torch")
    parser.add_argument("--speed", type=int)
    parser.add_argument("--variances", action="store_true")
    options = parser.parse_args(arguments)
    if options.variances:
        for latent in options.latents:
            variances(latent, options.only)
        return
    runs = list(all_runs(options.only, options.latents, options.torch))
    if options.speed:
        speed(runs, options.speed)
        return
    for seed in range(options.seeds):
        for latent, name, function in runs:
            append(function(latent, name, seed))


if __name__ == "__main__":
    main(sys.argv[1:])
