"""Exact variances of the estimators of `tfr.ScoreFunction`, integrated over their noise.

    python benchmarks/estimator_variances.py

prints a table of tasks and estimators: the variance of the gradient of the logits, summed
over all logits, for one example and one draw. The cost of an estimate is the number of
evaluations of f, C. With K independent draws, the variance is 1 / K of it.
"""

import itertools
import math

import numpy as np
import tensorflow as tf

from tf_reinforce import estimators
from tf_reinforce.testing import sample_paths


def moments(estimator, logits, costs_of):
    """Returns mean and variance of the gradient of logits `[M, K]`, exactly.

    Args:
        estimator: `tfr.estimators.Estimator`.
        logits: `[M, K]` floats.
        costs_of: Function from vectors `[…, M, K]` to costs `[…]`.
    """
    logits = tf.constant(np.array(logits), tf.float64)
    requests = []

    def ask(shape, cuts, is_step):
        cells = 1 if cuts is None else cuts.shape[-1] + 1
        nodes = _nodes(cuts, is_step)
        requests.extend([cells * len(nodes[0])] * math.prod(shape))
        return tf.fill([1, *shape], tf.constant(0.5, tf.float64))

    estimator.draw(tf.nn.log_softmax(logits)[None], estimators.Noise(ask))
    paths = np.array(list(itertools.product(*map(range, requests))), int)
    paths = paths.reshape(math.prod(requests), len(requests))
    weights, used = np.ones(len(paths)), []

    def answer(shape, cuts, is_step):
        nonlocal weights
        nodes, each = _nodes(cuts, is_step)
        size = math.prod(shape)
        chosen = paths[:, len(used) : len(used) + size]
        used.extend([None] * size)
        cell, node = np.divmod(chosen, len(nodes))
        edges = np.zeros([len(paths), size, 0])
        if cuts is not None:
            edges = np.reshape(cuts, [len(paths), size, -1])
        edges = np.pad(edges, [(0, 0), (0, 0), (1, 0)])
        edges = np.pad(edges, [(0, 0), (0, 0), (0, 1)], constant_values=1.0)
        low, high = (
            np.take_along_axis(edges, (cell + i)[..., None], axis=2)[..., 0]
            for i in (0, 1)
        )
        weights = weights * np.prod((high - low) * each[node], axis=1)
        return tf.constant(np.reshape(low + (high - low) * nodes[node], [-1, *shape]))

    rows = tf.repeat(logits[None], len(paths), axis=0)
    with tf.GradientTape() as tape:
        tape.watch(rows)
        log_probs = tf.nn.log_softmax(rows)
        samples = estimator.draw(log_probs, estimators.Noise(answer))
        vectors = tf.stop_gradient(samples.vectors)
        with tape.stop_recording(), tf.GradientTape() as inner:
            inner.watch(vectors)
            costs = costs_of(vectors)
        with tape.stop_recording():
            slopes = inner.gradient(costs, vectors)
        result = estimator.surrogate(
            log_probs, samples._replace(costs=costs, slopes=slopes)
        )
        if samples.passes:
            result += costs_of(samples.vectors)[:, 0]
    gradients = tape.gradient(result, rows).numpy()
    mean = np.einsum("p,pmk->mk", weights, gradients)
    square = np.einsum("p,pmk->mk", weights, gradients**2)
    return mean, float(np.sum(square - mean**2))


def _nodes(cuts, is_step):
    if is_step:
        return sample_paths._STEP
    return sample_paths._SMOOTH if cuts is None else sample_paths._LINE


def leave_one_out(logits, costs_of, k):
    """Returns the same for the mean of k scores, each with the others' mean cost."""
    log_probs = tf.nn.log_softmax(tf.constant(np.array(logits), tf.float64))
    values, joint = estimators._all_values(log_probs[None])
    costs, probs = costs_of(values)[0].numpy(), np.exp(joint[0])
    scores = (values[0] - tf.exp(log_probs)).numpy()
    index = np.array(list(itertools.product(range(len(probs)), repeat=k)))
    f, weights = costs[index], probs[index].prod(axis=1)
    advantages = f - (f.sum(axis=1, keepdims=True) - f) / (k - 1)
    gradients = np.einsum("pk,pkms->pms", advantages, scores[index]) / k
    mean = np.einsum("p,pmk->mk", weights, gradients)
    square = np.einsum("p,pmk->mk", weights, gradients**2)
    return mean, float(np.sum(square - mean**2))


def squares(*numbers):
    """Returns Σ (b - number)² of bits b, times 1 + 0.3 Π b."""

    def costs(vectors):
        bits = vectors[..., 1]
        product = 1.0 + 0.3 * (tf.reduce_prod(bits, axis=-1) if len(numbers) > 1 else 0.0)
        return tf.reduce_sum((bits - numbers) ** 2, axis=-1) * product

    return costs


def table(*numbers):
    """Returns the cost of a category, one number each, as a smooth function."""

    def costs(vectors):
        return tf.tanh(tf.reduce_sum(vectors * numbers, axis=[-2, -1]))

    return costs


def bits(*logits):
    return [[0.0, x] for x in logits]


TASKS = {
    "(b - 0.499)², p = 0.5": (bits(0.0), squares(0.499)),
    "(b - 0.499)², p = 0.9": (bits(2.2), squares(0.499)),
    "(b - 0.3)², p = 0.5": (bits(0.0), squares(0.3)),
    "(b - 0.3)², p = 0.1": (bits(-2.2), squares(0.3)),
    "two bits, p = 0.5": (bits(0.0, 0.0), squares(0.45, 0.6)),
    "two bits, p = 0.2, 0.8": (bits(-1.4, 1.4), squares(0.45, 0.6)),
    "three bits": (bits(0.3, -0.2, 0.8), squares(0.45, 0.6, 0.2)),
    "three categories": ([[0.2, -0.4, 0.1]], table(0.1, 0.5, -0.3)),
    "four categories": ([[0.2, -0.4, 0.1, 0.6]], table(0.1, 0.5, -0.3, 0.8)),
    "four, one likely": ([[3.0, -0.4, 0.1, 0.6]], table(0.1, 0.5, -0.3, 0.8)),
}
ESTIMATORS = {
    "exact": estimators.Exact(),
    "score_function": estimators.Score(),
    "arm": estimators.Arm(),
    "disarm": estimators.DisArm(),
    "sum_and_sample": estimators.SumAndSample(),
    "without_replacement": estimators.WithoutReplacement(),
    "measure_valued": estimators.MeasureValued(),
    "muprop": estimators.MuProp(),
    "rebar": estimators.Rebar(),
}


def find(name, task):
    """Returns the variance of an estimator, or `None` if there are too many nodes."""
    logits, costs_of = TASKS[task]
    sites, size = np.shape(logits)
    if name == "leave_one_out":
        return leave_one_out(logits, costs_of, 2)[1]
    if sites * size > {"rebar": 2, "measure_valued": 4}.get(name, math.inf):
        return None
    return moments(ESTIMATORS[name], logits, costs_of)[1]


if __name__ == "__main__":
    print("| estimator | " + " | ".join(TASKS) + " |")
    print("|---" * (len(TASKS) + 1) + "|")
    for name in ("leave_one_out", *ESTIMATORS):
        values = [find(name, task) for task in TASKS]
        texts = ("" if x is None else f"{max(x, 0.0):.2g}" for x in values)
        print(f"| `{name}` | " + " | ".join(texts) + " |")
