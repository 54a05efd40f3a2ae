"""Distributions over actions in NumPy, for one row of outputs at a time.

Nothing here uses the package or TensorFlow. Each class states `score`: the
log-probability of one action, the entropy, and the derivatives of both.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

HALF_LOG_TAU = 0.5 * math.log(2 * math.pi)
WIDEST = math.log(100.0)


class Score(NamedTuple):
    """What one row of outputs says about one action."""

    log_prob: float
    entropy: float
    slopes: np.ndarray  # [P] of the log-probability, by the outputs
    bends: np.ndarray  # [P] of the entropy, by the outputs
    own_slopes: np.ndarray  # the same two by the head's own weights
    own_bends: np.ndarray


NONE = np.zeros(0)


def softmax(logits):
    shares = np.exp(logits - logits.max())
    return shares / shares.sum()


def choice(logits, action, legal):
    """One choice among the legal ones: the others do not exist."""
    places = np.flatnonzero(legal)
    probs = softmax(logits[places])
    entropy = -sum(p * math.log(p) for p in probs if p > 0)
    slopes, bends = np.zeros(len(logits)), np.zeros(len(logits))
    for place, p in zip(places, probs):
        slopes[place] = float(place == action) - p
        bends[place] = -p * (math.log(p) + entropy) if p > 0 else 0.0
    chosen = places.tolist().index(int(action))
    return Score(math.log(probs[chosen]), entropy, slopes, bends, NONE, NONE)


def together(scores):
    """Independent parts: their logarithms add up, their slopes stand side by side."""
    return Score(
        sum(score.log_prob for score in scores),
        sum(score.entropy for score in scores),
        *(np.concatenate(parts) for parts in list(zip(*scores))[2:]),
    )


class Categorical:
    own_size = 0

    def __init__(self, size):
        self.outputs_size = self.mask_size = size

    def score(self, outputs, own, action, mask):
        return choice(outputs, action, np.ones(len(outputs)) if mask is None else mask)

    def draw(self, rng, dtype):
        mask = (rng.random(self.mask_size) < 0.5).astype("int8")
        mask[rng.integers(self.mask_size)] = 1
        return int(rng.choice(np.flatnonzero(mask))), mask


class MultiCategorical:
    own_size = 0

    def __init__(self, sizes):
        self.parts = [Categorical(size) for size in sizes]
        self.ends = np.cumsum(sizes)[:-1]
        self.outputs_size = self.mask_size = sum(sizes)

    def score(self, outputs, own, action, mask):
        masks = [None] * len(self.parts) if mask is None else np.split(mask, self.ends)
        parts = zip(self.parts, np.split(outputs, self.ends), action, masks)
        return together([p.score(o, NONE, a, m) for p, o, a, m in parts])

    def draw(self, rng, dtype):
        actions, masks = zip(*(part.draw(rng, dtype) for part in self.parts))
        return np.array(actions), np.concatenate(masks)


class Bernoulli:
    own_size = 0

    def __init__(self, n):
        self.outputs_size = self.mask_size = n

    def score(self, outputs, own, action, mask):
        log_prob, entropy = 0.0, 0.0
        slopes, bends = np.zeros(len(outputs)), np.zeros(len(outputs))
        for k, logit in enumerate(outputs):
            if mask is not None and mask[k] != 2:
                continue  # there is no choice, and nothing to learn
            p = 1 / (1 + math.exp(-logit))
            log_prob += math.log(p if action[k] else 1 - p)
            entropy -= p * math.log(p) + (1 - p) * math.log(1 - p)
            slopes[k] = action[k] - p
            bends[k] = -logit * p * (1 - p)
        return Score(log_prob, entropy, slopes, bends, NONE, NONE)

    def draw(self, rng, dtype):
        mask = rng.integers(3, size=self.mask_size).astype("int8")
        free = rng.integers(2, size=self.mask_size)
        return np.where(mask == 2, free, mask).astype("int64"), mask


class Multinomial:
    own_size = 0

    def __init__(self, categories, trials):
        self.trials = trials
        self.outputs_size = self.mask_size = categories

    def score(self, outputs, own, action, mask):
        """The entropy by going through all counts there are."""
        legal = np.ones(len(outputs)) if mask is None else mask
        places = np.flatnonzero(legal)
        probs = softmax(outputs[places])
        entropy, few = 0.0, np.zeros(len(places))
        for counts in itertools.product(range(self.trials + 1), repeat=len(places)):
            if sum(counts) == self.trials:
                log_prob = self._log_prob(probs, counts)
                entropy -= math.exp(log_prob) * log_prob
                slopes = np.array(counts) - self.trials * probs
                few -= math.exp(log_prob) * log_prob * slopes
        bends, slopes = np.zeros(len(outputs)), np.zeros(len(outputs))
        bends[places] = few
        slopes[places] = action[places] - self.trials * probs
        log_prob = self._log_prob(probs, action[places])
        return Score(log_prob, entropy, slopes, bends, NONE, NONE)

    def _log_prob(self, probs, counts):
        ways = math.lgamma(self.trials + 1) - sum(math.lgamma(n + 1) for n in counts)
        return ways + sum(n * math.log(p) for n, p in zip(counts, probs) if n)

    def draw(self, rng, dtype):
        mask = (rng.random(self.mask_size) < 0.6).astype("int8")
        mask[rng.integers(self.mask_size)] = 1
        return rng.multinomial(self.trials, mask / mask.sum()).astype("int64"), mask


class Normal:
    """What heads with a mean and a scale share."""

    mask_size = 0

    def __init__(self, size, low, high, initial_scale, state_dependent_scale):
        self.size = size
        self.low, self.high = (np.broadcast_to(x, size).tolist() for x in (low, high))
        self.initial_scale = np.broadcast_to(initial_scale, size)
        self.state_dependent = state_dependent_scale
        self.outputs_size = size * (2 if state_dependent_scale else 1)
        self.own_size = 0 if state_dependent_scale else size

    def score(self, outputs, own, action, mask):
        means, bent = outputs[: self.size], None
        log_scales = own
        if self.state_dependent:
            bent = np.tanh(outputs[self.size :] / WIDEST)
            log_scales = np.log(self.initial_scale) + WIDEST * bent
        numbers = zip(means, np.exp(log_scales), action, self.low, self.high)
        found = np.array([self._one(*map(float, given)) for given in numbers])
        log_probs, entropies, *slopes = found.T
        by_mean, by_scale, entropy_by_mean, entropy_by_scale = slopes
        parts = [by_mean, entropy_by_mean, by_scale, entropy_by_scale]
        if self.state_dependent:
            inner = 1 - bent**2
            parts = [
                np.concatenate([by_mean, by_scale * inner]),
                np.concatenate([entropy_by_mean, entropy_by_scale * inner]),
                NONE,
                NONE,
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
    """The density of tanh x, named by x; its entropy by a fine sum over the noise."""

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
    """Two probabilities at the bounds, and a density between them."""

    def _one(self, mean, scale, action, low, high):
        a, b = (low - mean) / scale, (high - mean) / scale
        if action <= low:
            log_prob, by_mean, by_scale = tail(a, scale)
        elif action >= high:
            log_prob, by_mean, by_scale = tail(-b, scale)
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
        """And its derivatives by both ends and, with these held, by log σ."""
        constant = math.log(scale) + HALF_LOG_TAU
        within = below(b) - below(a)
        moment = (within - end(b) + end(a)) / 2  # ∫ z²/2 φ(z) dz
        entropy, slopes = moment + constant * within, []
        for x, share, sign in ((a, below(a), -1), (b, below(-b), 1)):
            if not math.isfinite(x):
                slopes.append(0.0)
                continue
            log_share = log_below(-sign * x)
            entropy -= share * log_share
            inner = x * x / 2 + constant
            slopes.append(sign * phi(x) * (log_share + 1 + inner))
        return entropy, *slopes, within

    def draw(self, rng, dtype):
        action = 1.5 * rng.normal(size=self.size)
        return np.clip(action, self.low, self.high).astype(dtype), np.zeros(0, "int8")


def phi(x):
    return math.exp(-x * x / 2) / math.sqrt(2 * math.pi)


def below(x):
    return 0.5 * math.erfc(-x / math.sqrt(2))


def end(x):
    return x * phi(x) if math.isfinite(x) else 0.0


def log_below(x):
    """ln Φ(x); far out by its asymptotic series."""
    if x > -20:
        return math.log(below(x))
    return -x * x / 2 - math.log(-x) - HALF_LOG_TAU + math.log(far_out(x))


def far_out(x):
    """-x Φ(x) / φ(x) for x far below zero, by its asymptotic series."""
    series, term = 1.0, 1.0
    for k in range(1, 9):
        term *= -(2 * k - 1) / (x * x)
        series += term
    return series


def tail(x, scale):
    """ln Φ(x) for x = (low - μ) / σ, and its slopes by μ and log σ."""
    # φ / Φ as a difference of logarithms would be off by ten thousandths at -1e6.
    slope = phi(x) / below(x) if x > -20 else -x / far_out(x)
    return log_below(x), -slope / scale, -slope * x


class Beta:
    own_size = mask_size = 0

    def __init__(self, size):
        self.size = size
        self.outputs_size = 2 * size

    def score(self, outputs, own, action, mask):
        total, entropy = 0.0, 0.0
        slopes, bends = np.zeros(len(outputs)), np.zeros(len(outputs))
        for k, y in enumerate(np.asarray(action, "float64")):
            pair = outputs[[k, self.size + k]]
            # The least excess over one is 1e-6, which softplus comes on top of.
            alpha, beta = 1 + np.logaddexp(0, pair) + 1e-6
            both, bend = alpha + beta, 1 / (1 + np.exp(-pair))
            log_b = math.lgamma(alpha) + math.lgamma(beta) - math.lgamma(both)
            total += (alpha - 1) * math.log(y) + (beta - 1) * math.log1p(-y) - log_b
            entropy += log_b + (both - 2) * digamma(both)
            for place, x, log in ((k, alpha, math.log(y)),
                                  (self.size + k, beta, math.log1p(-y))):  # fmt: skip
                entropy -= (x - 1) * digamma(x)
                inner = bend[int(place != k)]
                slopes[place] = (log - digamma(x) + digamma(both)) * inner
                bends[place] = (both - 2) * trigamma(both) - (x - 1) * trigamma(x)
                bends[place] *= inner
        return Score(total, entropy, slopes, bends, NONE, NONE)

    def draw(self, rng, dtype):
        return rng.uniform(0.02, 0.98, self.size).astype(dtype), np.zeros(0, "int8")


def digamma(x):
    """ψ(x): by its recursion to large x, and its asymptotic series there."""
    total = 0.0
    while x < 20:
        total, x = total - 1 / x, x + 1
    y = 1 / (x * x)
    series = y * (1 / 12 - y * (1 / 120 - y * (1 / 252 - y * (1 / 240 - y / 132))))
    return total + math.log(x) - 0.5 / x - series


def trigamma(x):
    """ψ'(x), the same way."""
    total = 0.0
    while x < 20:
        total, x = total + 1 / (x * x), x + 1
    y = 1 / (x * x)
    series = y * (1 / 6 - y * (1 / 30 - y * (1 / 42 - y * (1 / 30 - y * 5 / 66))))
    return total + 1 / x + 0.5 * y + series / x


class Composite:
    """Several heads at once, nested in tuples and dicts; dicts in the order of keys."""

    def __init__(self, nested):
        self.nested = nested
        self.leaves = list(leaves(nested))
        self.outputs_size = sum(leaf.outputs_size for leaf in self.leaves)
        self.mask_size = sum(leaf.mask_size for leaf in self.leaves)
        self.own_size = sum(leaf.own_size for leaf in self.leaves)

    def score(self, outputs, own, action, mask):
        cut = [("outputs_size", outputs), ("own_size", own)]
        cut.append(("mask_size", np.zeros(self.mask_size) if mask is None else mask))
        rows = zip(*(self._split(name, array) for name, array in cut))
        return together(
            [
                leaf.score(o, w, a, m if leaf.mask_size and mask is not None else None)
                for leaf, (o, w, m), a in zip(self.leaves, rows, leaves(action))
            ]
        )

    def _split(self, name, array):
        ends = np.cumsum([getattr(leaf, name) for leaf in self.leaves])[:-1]
        return np.split(array, ends)

    def nested_mask(self, mask):
        """A mask in the structure of the action; `None` where a part takes none."""
        cuts = np.split(mask, np.cumsum([leaf.mask_size for leaf in self.leaves])[:-1])
        return packed(self.nested, iter([part if part.size else None for part in cuts]))

    def draw(self, rng, dtype):
        actions, masks = zip(*(leaf.draw(rng, dtype) for leaf in self.leaves))
        return packed(self.nested, iter(actions)), np.concatenate(masks)


def leaves(nested):
    """The parts of tuples and dicts, keys in alphabetical order."""
    if isinstance(nested, dict):
        for key in sorted(nested):
            yield from leaves(nested[key])
    elif isinstance(nested, tuple):
        for part in nested:
            yield from leaves(part)
    else:
        yield nested


def packed(nested, parts):
    """The parts in the place of the leaves."""
    if isinstance(nested, dict):
        found = {key: packed(nested[key], parts) for key in sorted(nested)}
        return {key: found[key] for key in nested}
    if isinstance(nested, tuple):
        return tuple(packed(part, parts) for part in nested)
    return next(parts)
