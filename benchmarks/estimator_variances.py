"""Exact variances of the estimators of `tfr.ScoreFunction`, integrated over their noise.

    python benchmarks/estimator_variances.py

prints a table of tasks and estimators: the variance of the gradient of the logits, summed
over all logits, for one example and one draw. The cost of an estimate is the number of
evaluations of f, C. With K independent draws, the variance is 1 / K of it.
"""

import itertools

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

    def estimate(noise):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            log_probs = tf.nn.log_softmax(logits)[None]
            samples = estimator.draw(log_probs, estimators.Noise(noise(1, tf.float64)))
            vectors = tf.stop_gradient(samples.vectors)
            with tape.stop_recording(), tf.GradientTape() as inner:
                inner.watch(vectors)
                costs = costs_of(vectors)
            with tape.stop_recording():
                slopes = inner.gradient(costs, vectors)
            known = samples._replace(costs=costs, slopes=slopes)
            result = estimator.surrogate(log_probs, known)[0]
            if samples.passes:
                result += costs_of(samples.vectors)[0, 0]
        gradient = tape.gradient(result, logits)
        return [gradient, gradient**2]

    mean, square = np.split(sample_paths.expected_over_noise(estimate)[0], 2)
    return mean.reshape(logits.shape), float(np.sum(square - mean**2))


def leave_one_out(logits, costs_of, k):
    """Returns the same for the mean of k scores, each with the others' mean cost."""
    log_probs = tf.nn.log_softmax(tf.constant(np.array(logits), tf.float64))
    values, probs = estimators.Exact().draw(log_probs[None], None)[:2]
    costs, probs = costs_of(values)[0].numpy(), probs[0].numpy()
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
    "score function": estimators.Score(),
    "leave-one-out, K = 2": None,
    "double control variates, K = 2": estimators.DoubleControlVariates(2),
    "ARM": estimators.Arm(),
    "DisARM": estimators.DisArm(),
    "without replacement, k = 2": estimators.WithoutReplacement(2),
    "sum and sample, k = 1": estimators.SumAndSample(1),
    "measure-valued": estimators.MeasureValued(),
    "MuProp": estimators.MuProp(),
    "REBAR, temperature 0.5": estimators.Rebar(0.5),
}


def find(name, task):
    """Returns the variance of an estimator, or `None` if there are too many nodes."""
    logits, costs_of = TASKS[task]
    if name == "leave-one-out, K = 2":
        return leave_one_out(logits, costs_of, 2)[1]
    try:
        return moments(ESTIMATORS[name], logits, costs_of)[1]
    except ValueError:
        return None


if __name__ == "__main__":
    print("| estimator | " + " | ".join(TASKS) + " |")
    print("|---" * (len(TASKS) + 1) + "|")
    for name in ESTIMATORS:
        values = [find(name, task) for task in TASKS]
        texts = ("" if x is None else f"{max(x, 0.0):.2g}" for x in values)
        print(f"| {name} | " + " | ".join(texts) + " |", flush=True)
