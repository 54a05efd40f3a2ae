"""Defines distributions over actions in NumPy, for one row of outputs at a time.

This module uses neither the package nor TensorFlow. The method `score` of each class
returns the log-probability of one action, the entropy, and the derivatives of both.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
MAX_LOG_SCALE = math.log(100.0)


class Score(NamedTuple):
    """Log-probability of an action and entropy, for one row of outputs."""

    log_prob: float
    entropy: float
    log_prob_grads: np.ndarray  # [P], d log_prob / d outputs
    entropy_grads: np.ndarray  # [P], d entropy / d outputs
    head_log_prob_grads: np.ndarray  # d log_prob / d weights of the head
    head_entropy_grads: np.ndarray


EMPTY = np.zeros(0)


def softmax(logits):
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def choice(logits, action, legal):
    """Returns the `Score` of one choice among the legal ones."""
    legal_indices = np.flatnonzero(legal)
    probs = softmax(logits[legal_indices])
    entropy = -sum(p * math.log(p) for p in probs if p > 0)
    log_prob_grads, entropy_grads = np.zeros(len(logits)), np.zeros(len(logits))
    for index, p in zip(legal_indices, probs):
        log_prob_grads[index] = float(index == action) - p
        entropy_grads[index] = -p * (math.log(p) + entropy) if p > 0 else 0.0
    position = legal_indices.tolist().index(int(action))
    return Score(
        math.log(probs[position]), entropy, log_prob_grads, entropy_grads, EMPTY, EMPTY
    )


def combine(scores):
    """Returns the `Score` of independent parts: sums, and concatenated derivatives."""
    return Score(
        sum(score.log_prob for score in scores),
        sum(score.entropy for score in scores),
        *(np.concatenate(parts) for parts in list(zip(*scores))[2:]),
    )


class Categorical:
    head_size = 0

    def __init__(self, size):
        self.outputs_size = self.mask_size = size

    def score(self, outputs, head_weights, action, mask):
        return choice(outputs, action, np.ones(len(outputs)) if mask is None else mask)

    def draw(self, rng, dtype):
        mask = (rng.random(self.mask_size) < 0.5).astype("int8")
        mask[rng.integers(self.mask_size)] = 1
        return int(rng.choice(np.flatnonzero(mask))), mask


class MultiCategorical:
    head_size = 0

    def __init__(self, sizes):
        self.parts = [Categorical(size) for size in sizes]
        self.ends = np.cumsum(sizes)[:-1]
        self.outputs_size = self.mask_size = sum(sizes)

    def score(self, outputs, head_weights, action, mask):
        masks = [None] * len(self.parts) if mask is None else np.split(mask, self.ends)
        parts = zip(self.parts, np.split(outputs, self.ends), action, masks)
        return combine([p.score(o, EMPTY, a, m) for p, o, a, m in parts])

    def draw(self, rng, dtype):
        actions, masks = zip(*(part.draw(rng, dtype) for part in self.parts))
        return np.array(actions), np.concatenate(masks)


class Bernoulli:
    head_size = 0

    def __init__(self, n):
        self.outputs_size = self.mask_size = n

    def score(self, outputs, head_weights, action, mask):
        log_prob, entropy = 0.0, 0.0
        log_prob_grads, entropy_grads = np.zeros(len(outputs)), np.zeros(len(outputs))
        for k, logit in enumerate(outputs):
            if mask is not None and mask[k] != 2:
                continue  # the bit is fixed, so that all derivatives are zero
            p = 1 / (1 + math.exp(-logit))
            log_prob += math.log(p if action[k] else 1 - p)
            entropy -= p * math.log(p) + (1 - p) * math.log(1 - p)
            log_prob_grads[k] = action[k] - p
            entropy_grads[k] = -logit * p * (1 - p)
        return Score(log_prob, entropy, log_prob_grads, entropy_grads, EMPTY, EMPTY)

    def draw(self, rng, dtype):
        mask = rng.integers(3, size=self.mask_size).astype("int8")
        random_bits = rng.integers(2, size=self.mask_size)
        return np.where(mask == 2, random_bits, mask).astype("int64"), mask


class Multinomial:
    head_size = 0

    def __init__(self, categories, trials):
        self.trials = trials
        self.outputs_size = self.mask_size = categories

    def score(self, outputs, head_weights, action, mask):
        """Computes the entropy as a sum over all possible counts."""
        legal = np.ones(len(outputs)) if mask is None else mask
        legal_indices = np.flatnonzero(legal)
        probs = softmax(outputs[legal_indices])
        entropy, legal_entropy_grads = 0.0, np.zeros(len(legal_indices))
        for counts in itertools.product(
            range(self.trials + 1), repeat=len(legal_indices)
        ):
            if sum(counts) == self.trials:
                log_prob = self._log_prob(probs, counts)
                entropy -= math.exp(log_prob) * log_prob
                log_prob_grads = np.array(counts) - self.trials * probs
                legal_entropy_grads -= math.exp(log_prob) * log_prob * log_prob_grads
        entropy_grads, log_prob_grads = np.zeros(len(outputs)), np.zeros(len(outputs))
        entropy_grads[legal_indices] = legal_entropy_grads
        log_prob_grads[legal_indices] = action[legal_indices] - self.trials * probs
        log_prob = self._log_prob(probs, action[legal_indices])
        return Score(log_prob, entropy, log_prob_grads, entropy_grads, EMPTY, EMPTY)

    def _log_prob(self, probs, counts):
        log_coefficient = math.lgamma(self.trials + 1) - sum(
            math.lgamma(n + 1) for n in counts
        )
        return log_coefficient + sum(n * math.log(p) for n, p in zip(counts, probs) if n)

    def draw(self, rng, dtype):
        mask = (rng.random(self.mask_size) < 0.6).astype("int8")
        mask[rng.integers(self.mask_size)] = 1
        return rng.multinomial(self.trials, mask / mask.sum()).astype("int64"), mask


class Normal:
    """The common part of all heads with a mean and a scale."""

    mask_size = 0

    def __init__(self, size, low, high, initial_scale, state_dependent_scale):
        self.size = size
        self.low, self.high = (np.broadcast_to(x, size).tolist() for x in (low, high))
        self.initial_scale = np.broadcast_to(initial_scale, size)
        self.state_dependent = state_dependent_scale
        self.outputs_size = size * (2 if state_dependent_scale else 1)
        self.head_size = 0 if state_dependent_scale else size

    def score(self, outputs, head_weights, action, mask):
        means, squashed = outputs[: self.size], None
        log_scales = head_weights
        if self.state_dependent:
            squashed = np.tanh(outputs[self.size :] / MAX_LOG_SCALE)
            log_scales = np.log(self.initial_scale) + MAX_LOG_SCALE * squashed
        elements = zip(means, np.exp(log_scales), action, self.low, self.high)
        results = np.array([self._one(*map(float, arguments)) for arguments in elements])
        log_probs, entropies, *gradients = results.T
        by_mean, by_scale, entropy_by_mean, entropy_by_scale = gradients
        parts = [by_mean, entropy_by_mean, by_scale, entropy_by_scale]
        if self.state_dependent:
            inner = 1 - squashed**2
            parts = [
                np.concatenate([by_mean, by_scale * inner]),
                np.concatenate([entropy_by_mean, entropy_by_scale * inner]),
                EMPTY,
                EMPTY,
            ]
        return Score(sum(log_probs), sum(entropies), *parts)

    def draw(self, rng, dtype):
        return rng.normal(size=self.size).astype(dtype), np.zeros(0, "int8")


class Gaussian(Normal):
    def _one(self, mean, scale, action, low, high):
        z = (action - mean) / scale
        log_prob = -z * z / 2 - math.log(scale) - HALF_LOG_TAU
        entropy = math.log(scale) + HALF_LOG_TAU + 0.5
        return log_prob, entropy, z / scale, z * z - 1, 0.0, 1.0


class TanhGaussian(Normal):
    """The density of tanh x at x; its entropy is a fine sum over the noise."""

    NOISE = np.linspace(-9.0, 9.0, 6001)
    WEIGHTS = np.exp(-(NOISE**2) / 2) * (NOISE[1] - NOISE[0]) / math.sqrt(2 * math.pi)

    def _one(self, mean, scale, action, low, high):
        z = (action - mean) / scale
        density = -z * z / 2 - math.log(scale) - HALF_LOG_TAU
        log_prob = density - 2 * (math.log(2) - action - np.log1p(np.exp(-2 * action)))
        x = mean + scale * self.NOISE
        log_cosh = np.logaddexp(x, -x) - math.log(2)
        entropy = math.log(scale) + HALF_LOG_TAU + 0.5 - 2 * self.WEIGHTS @ log_cosh
        by_mean = -2 * self.WEIGHTS @ np.tanh(x)
        by_scale = 1 - 2 * self.WEIGHTS @ (np.tanh(x) * scale * self.NOISE)
        return log_prob, entropy, z / scale, z * z - 1, by_mean, by_scale


class ClippedGaussian(Normal):
    """Probabilities at the two bounds, and a density between them."""

    def _one(self, mean, scale, action, low, high):
        a, b = (low - mean) / scale, (high - mean) / scale
        if action <= low:
            log_prob, by_mean, by_scale = log_tail(a, scale)
        elif action >= high:
            log_prob, by_mean, by_scale = log_tail(-b, scale)
            by_mean = -by_mean
        else:
            z = (action - mean) / scale
            log_prob = -z * z / 2 - math.log(scale) - HALF_LOG_TAU
            by_mean, by_scale = z / scale, z * z - 1
        entropy, by_a, by_b, direct = self._entropy(a, b, scale)
        finite_a, finite_b = (x if math.isfinite(x) else 0.0 for x in (a, b))
        entropy_by_mean = -(by_a + by_b) / scale
        entropy_by_scale = direct - finite_a * by_a - finite_b * by_b
        return log_prob, entropy, by_mean, by_scale, entropy_by_mean, entropy_by_scale

    def _entropy(self, a, b, scale):
        """Returns the entropy, and its derivatives by a, b, and log σ (a, b fixed)."""
        constant = math.log(scale) + HALF_LOG_TAU
        probability_within = normal_cdf(b) - normal_cdf(a)
        moment = (probability_within - times_pdf(b) + times_pdf(a)) / 2  # ∫ z²/2 φ(z) dz
        entropy, bound_grads = moment + constant * probability_within, []
        for x, probability, sign in ((a, normal_cdf(a), -1), (b, normal_cdf(-b), 1)):
            if not math.isfinite(x):
                bound_grads.append(0.0)
                continue
            log_probability = log_normal_cdf(-sign * x)
            entropy -= probability * log_probability
            inner = x * x / 2 + constant
            bound_grads.append(sign * normal_pdf(x) * (log_probability + 1 + inner))
        return entropy, *bound_grads, probability_within

    def draw(self, rng, dtype):
        action = 1.5 * rng.normal(size=self.size)
        return np.clip(action, self.low, self.high).astype(dtype), np.zeros(0, "int8")


def normal_pdf(x):
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def normal_cdf(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


def times_pdf(x):
    return x * normal_pdf(x) if math.isfinite(x) else 0.0


def log_normal_cdf(x):
    """Returns ln Φ(x), for x below -20 from an asymptotic series."""
    if x > -20:
        return math.log(normal_cdf(x))
    return -x * x / 2 - math.log(-x) - HALF_LOG_TAU + math.log(asymptotic_ratio(x))


def asymptotic_ratio(x):
    """Returns -x Φ(x) / φ(x) for x far below zero, from its asymptotic series."""
    series, term = 1.0, 1.0
    for k in range(1, 9):
        term *= -(2 * k - 1) / (x * x)
        series += term
    return series


def log_tail(x, scale):
    """Returns ln Φ(x) for x = (low - μ) / σ, and its derivatives by μ and log σ."""
    # φ / Φ as a difference of logarithms would have an error of 1e-4 at -1e6.
    ratio = normal_pdf(x) / normal_cdf(x) if x > -20 else -x / asymptotic_ratio(x)
    return log_normal_cdf(x), -ratio / scale, -ratio * x


class Beta:
    head_size = mask_size = 0

    def __init__(self, size):
        self.size = size
        self.outputs_size = 2 * size

    def score(self, outputs, head_weights, action, mask):
        total, entropy = 0.0, 0.0
        log_prob_grads, entropy_grads = np.zeros(len(outputs)), np.zeros(len(outputs))
        for k, y in enumerate(np.asarray(action, "float64")):
            pair = outputs[[k, self.size + k]]
            # α and β are 1 + softplus + 1e-6.
            alpha, beta = 1 + np.logaddexp(0, pair) + 1e-6
            both, sigmoids = alpha + beta, 1 / (1 + np.exp(-pair))
            log_b = math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(both)
            total += (alpha - 1) * math.log(y) + (beta - 1) * math.log1p(-y) - log_b
            entropy += log_b + (both - 2) * digamma(both)
            for index, x, log in ((k, alpha, math.log(y)),
                                  (self.size + k, beta, math.log1p(-y))):  # fmt: skip
                entropy -= (x - 1) * digamma(x)
                sigmoid = sigmoids[int(index != k)]
                log_prob_grads[index] = (log - digamma(x) + digamma(both)) * sigmoid
                entropy_grads[index] = (both - 2) * trigamma(both) - (x - 1) * trigamma(x)
                entropy_grads[index] *= sigmoid
        return Score(total, entropy, log_prob_grads, entropy_grads, EMPTY, EMPTY)

    def draw(self, rng, dtype):
        return rng.uniform(0.02, 0.98, self.size).astype(dtype), np.zeros(0, "int8")


def digamma(x):
    """Returns ψ(x), by its recursion to x above 20 and its asymptotic series there."""
    total = 0.0
    while x < 20:
        total, x = total - 1 / x, x + 1
    y = 1 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))
    return total + math.log(x) - 0.5 / x - series


def trigamma(x):
    """Returns ψ'(x), computed as `digamma` is."""
    total = 0.0
    while x < 20:
        total, x = total + 1 / (x * x), x + 1
    y = 1 / (x * x)
    series = y * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y * (1 / 30 - y * 5 / 66))))
    return total + 1 / x + 0.5 * y + series / x


class Composite:
    """Several heads, nested in tuples and dicts, in the order of the keys."""

    def __init__(self, nested):
        self.nested = nested
        self.leaves = list(leaves(nested))
        self.outputs_size = sum(leaf.outputs_size for leaf in self.leaves)
        self.mask_size = sum(leaf.mask_size for leaf in self.leaves)
        self.head_size = sum(leaf.head_size for leaf in self.leaves)

    def score(self, outputs, head_weights, action, mask):
        arrays = [("outputs_size", outputs), ("head_size", head_weights)]
        arrays.append(("mask_size", np.zeros(self.mask_size) if mask is None else mask))
        rows = zip(*(self._split(name, array) for name, array in arrays))
        return combine(
            [
                leaf.score(o, w, a, m if leaf.mask_size and mask is not None else None)
                for leaf, (o, w, m), a in zip(self.leaves, rows, leaves(action))
            ]
        )

    def _split(self, name, array):
        ends = np.cumsum([getattr(leaf, name) for leaf in self.leaves])[:-1]
        return np.split(array, ends)

    def nested_mask(self, mask):
        """Returns a mask nested as the action, with `None` for parts without a mask."""
        masks = np.split(mask, np.cumsum([leaf.mask_size for leaf in self.leaves])[:-1])
        return pack(self.nested, iter([part if part.size else None for part in masks]))

    def draw(self, rng, dtype):
        actions, masks = zip(*(leaf.draw(rng, dtype) for leaf in self.leaves))
        return pack(self.nested, iter(actions)), np.concatenate(masks)


def leaves(nested):
    """Yields the leaves of tuples and dicts, with keys in alphabetical order."""
    if isinstance(nested, dict):
        for key in sorted(nested):
            yield from leaves(nested[key])
    elif isinstance(nested, tuple):
        for part in nested:
            yield from leaves(part)
    else:
        yield nested


def pack(nested, parts):
    """Returns the structure of `nested` with `parts` as its leaves."""
    if isinstance(nested, dict):
        result = {key: pack(nested[key], parts) for key in sorted(nested)}
        return {key: result[key] for key in nested}
    if isinstance(nested, tuple):
        return tuple(pack(part, parts) for part in nested)
    return next(parts)
