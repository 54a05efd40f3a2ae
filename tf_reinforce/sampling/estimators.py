"""Gradient estimators for `Sample` layers, from the score function to exact sums.

    ∇E[f(z)],    z ~ p(z|θ),    f the cost of an example

An estimator decides for which samples a model computes the cost of an example, and how
these costs become a gradient: `draw` returns C samples for each example, which may depend
on each other, and `surrogate` a number for each example, whose gradient is the estimate.

An example has M sites, which are drawn independently of each other: M categories, bits or
real numbers. A category among K is a one-hot vector, and a relaxed sample is a vector
between them. The parameters of categories and bits are log-probabilities `[G, M, K]`.
Those of real numbers are `[G, M, 2]`: mean and standard deviation of normal ones, α and β
of the others, which have a Beta distribution.
"""

import copy
import itertools
import math
from typing import Any, NamedTuple

import keras
import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

from tf_reinforce.functional import explanation
from tf_reinforce.heads import base
from tf_reinforce.support import compilation
from tf_reinforce.support import validation

__all__ = [
    "Arm",
    "DisArm",
    "DoubleControlVariates",
    "Estimator",
    "Exact",
    "GumbelSoftmax",
    "MeasureValued",
    "MuProp",
    "Noise",
    "Pathwise",
    "Rebar",
    "ReinMax",
    "Relax",
    "Samples",
    "Score",
    "StraightThrough",
    "SumAndSample",
    "Vimco",
    "WithoutReplacement",
    "explain",
    "get",
    "score",
    "unordered_set",
]

__dir__ = __all__.copy  # what tab completion shows


class Samples(NamedTuple):
    """C samples of each of G examples."""

    vectors: tf.Tensor  # [G, C, M, K] float; [G, C, M, 1] for real numbers
    weights: tf.Tensor  # [G, C] or [1, C] float; Σ weights · costs estimates E[f]
    relaxed: int = 0  # how many of the last samples are relaxed
    extra: Any = None  # what `surrogate` needs besides
    passes: bool = False  # whether the gradient of the cost passes the samples
    # The cost of each sample, minus a baseline that does not depend on the example's own
    # samples: `[G, C]` float, without a gradient.
    costs: Any = None
    slopes: Any = None  # [G, C, M, K] float, ∂cost / ∂vectors


class Noise:
    """Uniform random numbers for the samples of G examples.

    Args:
        draw: Function of a shape, `cuts` as for `uniform`, and whether the samples are
            constant between the cuts.
    """

    def __init__(self, draw: Any) -> None:
        self._draw = draw

    def uniform(self, shape: tuple, cuts: Any = None) -> tf.Tensor:
        """Returns new numbers in (0, 1), `[G, *shape]`.

        Args:
            shape: Tuple of ints.
            cuts: `[G, *shape, n]` float, increasing, the numbers at which the samples
                jump, or `None`. `check_score_function` takes the estimate as linear
                between them, and as smooth without cuts.
        """
        return self._draw(shape, cuts, False)

    def choose(self, probs: tf.Tensor) -> tf.Tensor:
        """Returns one-hot vectors, drawn with probabilities `[G, …, K]`."""
        sums = tf.cumsum(tf.stop_gradient(probs), axis=-1)
        # Exactly 1 before a last probability of zero, so it is never drawn.
        cuts = sums[..., :-1] / sums[..., -1:]
        number = self._draw(tuple(probs.shape[1:-1]), cuts, True)[..., None]
        index = tf.reduce_sum(tf.cast(number >= cuts, tf.int32), axis=-1)
        return tf.one_hot(index, probs.shape[-1], dtype=probs.dtype)


class Estimator(compilation.FixedArguments, keras.layers.Layer):
    """Base class of estimators.

    A subclass implements `draw` and `surrogate`, and `copies` unless C is 1. If a layer
    follows another one in a model, it draws for each sample of the earlier layer, but
    behind a relaxed sample, it returns its mean.

    Attributes:
        needs_slopes: Bool, whether the cost must be differentiable in the samples.
        family: String, the distribution of the sites, which must be that of the head:
            "categories", "normal" or "beta".
    """

    needs_slopes = False
    family = "categories"

    def for_head(self, head: Any) -> "Estimator":
        """Returns the variant of this estimator for the layer's head."""
        return self

    def copies(self, sites: int, size: int) -> int:
        """Returns C, for M = `sites` of `size` = K categories."""
        return 1

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        """Draws samples for parameters `[G, M, K]`."""
        raise NotImplementedError

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        """Returns `[G]` floats, whose gradient is the estimate.

        Args:
            parameters: `[G, M, K]` float, as in `draw`, differentiable.
            samples: What `draw` returned, with `costs`, and `slopes` if needed.
        """
        raise NotImplementedError

    def mean(self, parameters: tf.Tensor) -> tf.Tensor:
        """Returns the mean of the vectors, `[G, M, K]`."""
        if self.family == "categories":
            return tf.exp(parameters)
        first = parameters[..., :1]
        is_normal = self.family == "normal"
        return first if is_normal else first / (first + parameters[..., 1:])


def score(log_probs: tf.Tensor, vectors: tf.Tensor) -> tf.Tensor:
    """Returns log p of one-hot vectors `[G, C, M, K]`, `[G, C]`."""
    return tf.reduce_sum(tf.stop_gradient(vectors) * log_probs[:, None], axis=[2, 3])


@keras.saving.register_keras_serializable("tf_reinforce")
class Score(Estimator):
    """One sample, and its score function (Williams, 1992).

        f(z) ∇ log p(z)

    The cost needs no gradient.
    """

    def for_head(self, head: Any) -> Estimator:
        kinds = {"normal": _NormalScore, "beta": _BetaScore}
        return kinds.get(head.family, lambda: self)() if type(self) is Score else self

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        return _single(noise.choose(tf.exp(parameters)))

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        return (samples.costs * score(parameters, samples.vectors))[:, 0]


@keras.saving.register_keras_serializable("tf_reinforce")
class Vimco(Score):
    """For the objective log 1/K Σ exp(-f(z_k)) of K samples (Mnih & Rezende, 2016).

        Σ_k (L - L₋ₖ) ∇ log p(z_k)

    L₋ₖ is the objective with the mean of the other -f(z) in place of -f(z_k).
    """

    def objective(self, costs: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns L, `[N]`, and the factors of the scores for costs `[N, K]`."""
        count = costs.shape[1]
        objective = _log_mean_exp(-costs)
        others = (tf.reduce_sum(-costs, axis=1, keepdims=True) + costs) / (count - 1)
        is_own = tf.eye(count, dtype=tf.bool)
        replaced = tf.where(is_own, others[..., None], -costs[:, None])
        return objective, objective[:, None] - _log_mean_exp(replaced)


def _log_mean_exp(x):
    return tf.reduce_logsumexp(x, axis=-1) - math.log(x.shape[-1])


class _Weighted(Estimator):
    """Several values, with weights that do not depend on their costs."""

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        weighted = samples.weights * samples.costs * score(parameters, samples.vectors)
        return tf.reduce_sum(weighted, axis=1)


@keras.saving.register_keras_serializable("tf_reinforce")
class Exact(_Weighted):
    """All values of all sites, without variance.

        Σ_z f(z) ∇p(z)

    Args:
        limit: Int, how many values there may be.
    """

    argument_names: tuple[str, ...] = ("limit",)

    def __init__(self, limit: int = 256, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.limit = validation.size("limit", limit)

    def copies(self, sites: int, size: int) -> int:
        count = size**sites
        if count > self.limit:
            raise ValueError(
                f"{type(self).__name__} enumerates at most limit={self.limit} values. "
                f"Received: {size}**{sites} values, of {sites} sites. Pass a larger "
                "`limit`, or take another estimator, such as 'disarm'."
            )
        return count

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        sites, size = parameters.shape[1:]
        values = np.array(list(itertools.product(range(size), repeat=sites)))
        vectors = tf.one_hot(values, size, dtype=parameters.dtype)[None]
        vectors = tf.repeat(vectors, tf.shape(parameters)[0], axis=0)
        return Samples(vectors, tf.stop_gradient(tf.exp(score(parameters, vectors))))


@keras.saving.register_keras_serializable("tf_reinforce")
class SumAndSample(_Weighted):
    """The k most likely values, and one of the rest (Liang et al., 2018).

        Σ_{z ∈ top} f(z) ∇p(z) + (1 - p(top)) f(z') ∇ log p(z'),    z' ~ p(z | not top)

    Args:
        k: Int, how many values are summed.
    """

    argument_names = ("k",)

    def __init__(self, k: int = 1, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.k = validation.size("k", k)

    def copies(self, sites: int, size: int) -> int:
        return min(self.k + 1, size**sites)

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        log_probs = tf.stop_gradient(parameters)
        best = tf.one_hot(tf.argmax(log_probs, -1), log_probs.shape[-1])
        best = tf.cast(best, log_probs.dtype)
        later = tf.reduce_max(log_probs, axis=-1)
        later = tf.cumsum(later, axis=-1, exclusive=True, reverse=True)[:, None, :, None]
        values = best[:, None]
        for _ in range(min(self.k, log_probs.shape[-1] ** log_probs.shape[1]) - 1):
            is_part, log_mass = _complement(log_probs, values)
            logits = tf.where(is_part, log_mass + later, -math.inf)
            logits = tf.reshape(logits, [-1, math.prod(logits.shape[1:])])
            part = tf.one_hot(tf.argmax(logits, -1), logits.shape[-1])
            values = _joined(values, tf.cast(part, values.dtype), best)
        weights = tf.exp(score(log_probs, values))
        if values.shape[1] < self.copies(*log_probs.shape[1:]):
            weights = tf.concat([weights, _mass(log_probs, values)[:, None]], axis=1)
            values = _joined_by_another(log_probs, values, noise)
        return Samples(values, weights)


@keras.saving.register_keras_serializable("tf_reinforce")
class WithoutReplacement(_Weighted):
    """k different values, the unordered-set estimator (Kool, van Hoof & Welling, 2020).

        Σ_{s ∈ S} p(s) R(S, s) (f(s) - Σ_{r ∈ S} p(r) R(S, s, r) f(r)) ∇ log p(s)

    p(s) R(S, s) is the probability that s was drawn first, given the set S, and
    R(S, s, r) is the same ratio after s was removed, or 1 for r = s.

    Args:
        k: Int, how many values are drawn.
    """

    argument_names = ("k",)

    def __init__(self, k: int = 2, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.k = validation.whole_number("k", k, 1, 8)

    def copies(self, sites: int, size: int) -> int:
        return min(self.k, size**sites)

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        log_probs = tf.stop_gradient(parameters)
        values = noise.choose(tf.exp(log_probs))[:, None]
        for _ in range(self.copies(*log_probs.shape[1:]) - 1):
            values = _joined_by_another(log_probs, values, noise)
        each = tf.reduce_sum(values * tf.exp(log_probs)[:, None], axis=-1)
        outside = _mass(log_probs, values)
        weights, shares = unordered_set(tf.reduce_prod(each, axis=-1), outside)
        weights = tf.where(tf.reduce_all(each > 0, axis=-1), weights, 0.0)
        return Samples(values, weights, extra=shares)

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        baselines = tf.einsum("gsr,gr->gs", samples.extra, samples.costs)
        samples = samples._replace(costs=samples.costs - baselines)
        return super().surrogate(parameters, samples)


def _complement(log_probs, values):
    """Returns all but the given values `[G, J, M, K]`, in disjoint parts.

    Part (j, m, k) has the sites of value j before site m, and k at site m.

    Returns:
        Whether there is such a part, and its log-probability, both `[G, J, M, K]`.
    """
    agree = tf.reduce_sum(values[:, :, None] * values[:, None], axis=-1)
    agree = tf.math.cumprod(agree, axis=-1, exclusive=True)  # [G, J, J, M], before site m
    is_taken = tf.einsum("gijm,gjmk->gimk", agree, values) > 0
    earlier = np.tri(values.shape[1], k=-1)[..., None]
    is_again = tf.reduce_any(agree * earlier > 0, axis=2)
    path = tf.reduce_sum(values * log_probs[:, None], axis=-1)
    path = tf.cumsum(path, axis=-1, exclusive=True)
    is_part = ~is_taken & ~is_again[..., None]
    return is_part, path[..., None] + log_probs[:, None]


def _mass(log_probs, values):
    is_part, log_mass = _complement(log_probs, values)
    return tf.reduce_sum(tf.where(is_part, tf.exp(log_mass), 0.0), axis=[1, 2, 3])


def _joined_by_another(log_probs, values, noise):
    """Returns the values and one more, drawn from all others."""
    is_part, log_mass = _complement(log_probs, values)
    shape = [-1, math.prod(is_part.shape[1:])]
    is_part = tf.reshape(tf.cast(is_part, log_probs.dtype), shape)
    mass = is_part * tf.exp(tf.reshape(log_mass, shape))
    part = noise.choose(_possible(mass, is_part))
    return _joined(values, part, noise.choose(tf.exp(log_probs)))


def _joined(values, part, later):
    """Returns the values and one of a part, with the given sites after the part's own."""
    part = tf.reshape(part, tf.shape(values))
    at = tf.reduce_sum(part, axis=[1, 3])[..., None]  # [G, M, 1]
    before = tf.cumsum(at, axis=1, exclusive=True, reverse=True)
    path = tf.einsum("gj,gjmk->gmk", tf.reduce_sum(part, axis=[2, 3]), values)
    other = before * path + tf.reduce_sum(part, axis=1) + (1.0 - before - at) * later
    return tf.concat([values, other[:, None]], axis=1)


def _possible(weights, alternative):
    """Returns weights `[G, K]`, or the alternative ones if all are zero."""
    is_zero = tf.reduce_sum(weights, axis=-1, keepdims=True) <= 0
    return tf.where(is_zero, alternative, weights)


def unordered_set(p: tf.Tensor, outside: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns p(s) R(S, s), `[G, k]`, and p(r) R(S, s, r), `[G, k, k]`.

    These are the weights of `WithoutReplacement`, for a set S of k different values that
    were drawn without replacement, by whatever means.

    Args:
        p: `[G, k]` float, the probabilities of the members of S.
        outside: `[G]` float, the probability of all other values.
    """
    every, dtype = tuple(range(p.shape[1])), p.dtype
    p, outside = (tf.cast(x, tf.float64) for x in (p, outside))
    # The limit of small probabilities, whose products are not zero.
    p = tf.maximum(p, np.finfo("float64").tiny ** (1.0 / (len(every) + 1)))
    whole, first, shares = _set_probability(p, outside, every), [], []
    for s in every:
        others = tuple(i for i in every if i != s)
        without, row = _set_probability(p, outside, others), []
        for r in every:
            rest = tuple(i for i in others if i != r)
            ratio = 1.0 if r == s else _set_probability(p, outside, rest) / without
            row.append(p[:, r] * ratio)
        first.append(p[:, s] * without / whole)
        shares.append(tf.stack(row, axis=1))
    results = tf.stack(first, axis=1), tf.stack(shares, axis=1)
    return tuple(tf.cast(x, dtype) for x in results)


def _set_probability(p, outside, members):
    """Returns the probability that the first draws are `members`, in any order, `[G]`.

    The domain consists of the members and of what is outside the set. By recursion over
    the last draw, P(T) = Σ_{t ∈ T} P(T without t) p(t) / (mass without T, plus p(t)).
    """
    table = {(): tf.ones_like(outside)}
    for size in range(1, len(members) + 1):
        for subset in itertools.combinations(members, size):
            terms = []
            for last in subset:
                rest = tuple(i for i in subset if i != last)
                left = outside + tf.add_n([p[:, i] for i in members if i not in rest])
                terms.append(table[rest] * p[:, last] / left)
            table[subset] = tf.add_n(terms)
    return table[members]


@keras.saving.register_keras_serializable("tf_reinforce")
class Arm(Estimator):
    """Two antithetic samples (Yin & Zhou, 2019, augment-REINFORCE-merge).

        ∂/∂φ = (f(b) - f(b̃)) (1/2 - u),    b = 1[u < σ(φ)],  b̃ = 1[1 - u < σ(φ)]

    A category is the first of K - 1 bits that is one, or else the last category.
    """

    def copies(self, sites: int, size: int) -> int:
        return 2

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        logits = tf.stop_gradient(_stick_logits(parameters))
        probs = tf.sigmoid(logits)
        cuts = tf.sort(tf.stack([probs, 1.0 - probs], axis=-1), axis=-1)
        u = noise.uniform(tuple(logits.shape[1:]), cuts)
        bits = [tf.cast(x < probs, probs.dtype) for x in (u, 1.0 - u)]
        vectors = tf.stack([_from_bits(x) for x in bits], axis=1)
        # A bit that follows the first one of both samples affects neither of them.
        before = [tf.math.cumprod(1.0 - x, axis=-1, exclusive=True) for x in bits]
        factors = tf.maximum(*before) * self.factors(logits, u, *bits)
        weights = 0.5 * tf.ones_like(vectors[:1, :, 0, 0])
        return Samples(vectors, weights, extra=factors)

    def factors(
        self, logits: tf.Tensor, u: tf.Tensor, bits: tf.Tensor, others: tf.Tensor
    ) -> tf.Tensor:
        """Returns what multiplies f(b) - f(b̃), for each bit."""
        return 0.5 - u

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        change = tf.reduce_sum(samples.extra * _stick_logits(parameters), axis=[1, 2])
        return (samples.costs[:, 0] - samples.costs[:, 1]) * change


@keras.saving.register_keras_serializable("tf_reinforce")
class DisArm(Arm):
    """ARM with its noise integrated out (Dong, Mnih & Tucker, 2020; Yin et al., 2020).

        ∂/∂φ = (f(b) - f(b̃)) (b - b̃) σ(|φ|) / 2

    This is the expectation of the estimate of ARM, given both samples.
    """

    def factors(
        self, logits: tf.Tensor, u: tf.Tensor, bits: tf.Tensor, others: tf.Tensor
    ) -> tf.Tensor:
        return 0.5 * (bits - others) * tf.sigmoid(tf.abs(logits))


def _stick_logits(log_probs):
    """Returns the logits of K - 1 bits, of which the first one is the category."""
    tails = tf.cumsum(tf.exp(log_probs), axis=-1, exclusive=True, reverse=True)
    tiny = np.finfo(log_probs.dtype.as_numpy_dtype).tiny
    return (log_probs - tf.math.log(tf.maximum(tails, tiny)))[..., :-1]


def _from_bits(bits):
    left = tf.math.cumprod(1.0 - bits, axis=-1)
    one = tf.ones_like(bits[..., :1])
    return tf.concat([one, left], axis=-1) * tf.concat([bits, one], axis=-1)


@keras.saving.register_keras_serializable("tf_reinforce")
class MeasureValued(Estimator):
    """The difference of two samples for each parameter (Pflug, 1989).

        ∂/∂θ_k = p_k (1 - p_k) (f(z, z_m = k) - f(z, z_m ~ p(z_m | not k)))

    All other sites have the same values in both.
    """

    def for_head(self, head: Any) -> Estimator:
        kinds = {"normal": _NormalMeasureValued, "beta": _BetaMeasureValued}
        return kinds.get(head.family, lambda: self)()

    def copies(self, sites: int, size: int) -> int:
        return 1 + 2 * sites * (size if size > 2 else 1)  # both bits have one difference

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        probs = tf.stop_gradient(tf.exp(parameters))
        sites, size = probs.shape[1:]
        sample = noise.choose(probs)
        vectors = [sample]
        for site, k in itertools.product(range(sites), range(size if size > 2 else 1)):
            one = tf.one_hot(k, size, dtype=probs.dtype) + 0.0 * probs[:, site]
            other = noise.choose(_possible(probs[:, site] * (1.0 - one), 1.0 - one))
            vectors += [_replace(sample, site, x) for x in (one, other)]
        return _first_counts(vectors)

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        size = parameters.shape[2]
        probs = tf.stop_gradient(tf.exp(parameters))
        factors, logits = probs * (1.0 - probs), parameters
        if size == 2:
            factors, logits = factors[..., :1], _stick_logits(parameters)
        differences = tf.reshape(
            samples.costs[:, 1::2] - samples.costs[:, 2::2], tf.shape(logits)
        )
        return tf.reduce_sum(factors * differences * logits, axis=[1, 2])


def _replace(sample, site, vector):
    sites = tf.unstack(sample, axis=1)
    return tf.stack([*sites[:site], vector, *sites[site + 1 :]], axis=1)


def _first_counts(vectors):
    weights = tf.one_hot([0], len(vectors), dtype=vectors[0].dtype)
    return Samples(tf.stack(vectors, axis=1), weights)


class _NormalMeasureValued(MeasureValued):
    """`MeasureValued` for the mean μ and the standard deviation σ of normal numbers.

        ∂/∂μ = (f(μ + σ w) - f(μ - σ w)) / (σ √(2π)),    p(w) = w exp(-w² / 2)
        ∂/∂σ = (f(μ + σ m) - f(μ + σ n)) / σ,    p(m) ∝ m² exp(-m² / 2), n = m u normal

    Reference:
        Mohamed et al. (2020), Monte Carlo gradient estimation in machine learning.
        arXiv:1906.10652
    """

    family = "normal"

    def copies(self, sites: int, size: int) -> int:
        return 1 + 4 * sites

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        mean, scale = tf.unstack(tf.stop_gradient(parameters), axis=-1)
        sites = mean.shape[1]
        sample = mean + scale * _normal(noise.uniform((sites,)))
        vectors = [sample[..., None]]
        for site in range(sites):
            u, v, first, second = tf.unstack(noise.uniform((4,)), axis=1)
            rayleigh = tf.sqrt(-2.0 * tf.math.log(u))
            # The sum of an exponential and half a squared normal is Gamma(3/2).
            maxwell = tf.sqrt(-2.0 * tf.math.log(v) + _normal(first) ** 2)
            maxwell *= tf.sign(second - 0.5)
            spread = maxwell * tf.abs(2.0 * second - 1.0)
            for x in (rayleigh, -rayleigh, maxwell, spread):
                value = mean[:, site] + scale[:, site] * x
                vectors.append(_replace(sample, site, value)[..., None])
        return _first_counts(vectors)

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        shape = tf.shape(parameters)
        differences = tf.reshape(samples.costs[:, 1::2] - samples.costs[:, 2::2], shape)
        factors = [1.0 / math.sqrt(2.0 * math.pi), 1.0] / parameters[..., 1:]
        factors = tf.stop_gradient(factors)
        return tf.reduce_sum(factors * differences * parameters, axis=[1, 2])


class _BetaMeasureValued(MeasureValued):
    """`MeasureValued` for α and β of Beta distributed numbers.

        ∂/∂α = E[-ln z] (f(z) - f(y)),    p(y) ∝ -p(z = y) ln y

    Both numbers are quantiles of one uniform number. For β, z becomes 1 - z.
    """

    family = "beta"

    def copies(self, sites: int, size: int) -> int:
        return 1 + 2 * sites

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        parameters = tf.stop_gradient(parameters)
        uniform = noise.uniform((parameters.shape[1],))
        sample = _beta_quantile(parameters, uniform)
        first = _log_weighted_quantile(parameters, uniform)
        second = 1.0 - _log_weighted_quantile(parameters[..., ::-1], 1.0 - uniform)
        vectors = [sample[..., None]]
        for site in range(parameters.shape[1]):
            for other in (first, second):
                vectors.append(_replace(sample, site, other[:, site])[..., None])
        return _first_counts(vectors)

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        total = tf.reduce_sum(parameters, axis=-1, keepdims=True)
        factors = tf.stop_gradient(tf.math.digamma(total) - tf.math.digamma(parameters))
        others = tf.reshape(samples.costs[:, 1:], tf.shape(parameters))
        differences = samples.costs[:, :1, None] - others
        return tf.reduce_sum(factors * differences * parameters, axis=[1, 2])


def _beta_quantile(parameters, uniform):
    """Returns quantiles of Beta distributions, differentiable in the parameters.

    The gradient is that of implicit reparameterization (Figurnov et al., 2018): the
    distribution function F(z) does not change, so ∂z/∂θ = -∂F/∂θ / p(z).
    """
    a, b, u = (
        tf.cast(x, tf.float64) for x in (*tf.unstack(parameters, axis=-1), uniform)
    )
    near = _bisect(lambda z: tfp.math.betainc(a, b, z), u)
    density = tf.stop_gradient(tfp.distributions.Beta(a, b).prob(near))
    z = near - (tfp.math.betainc(a, b, near) - u) / density  # also a step of Newton
    return base.clip_to_open(tf.cast(z, parameters.dtype))


def _log_weighted_quantile(parameters, uniform):
    """Returns quantiles of the density proportional to -p(z) ln z.

    Its distribution function is F(z) - ∂F/∂α / E[-ln z].
    """
    a, b, u = (
        tf.cast(x, tf.float64) for x in (*tf.unstack(parameters, axis=-1), uniform)
    )
    mean = tf.math.digamma(a + b) - tf.math.digamma(a)

    def below(z):
        with tf.GradientTape() as tape:
            tape.watch(a)
            lower = tfp.math.betainc(a, b, z)
        return lower - tape.gradient(lower, a) / mean

    return base.clip_to_open(tf.cast(_bisect(below, u), parameters.dtype))


def _bisect(function, values):
    """Returns where an increasing function on (0, 1) takes some float64 values."""

    def halve(low, high):
        middle = (low + high) / 2.0
        is_left = function(middle) > values
        return tf.where(is_left, low, middle), tf.where(is_left, middle, high)

    bounds = tf.zeros_like(values), tf.ones_like(values)
    low, high = tf.while_loop(lambda *_: True, halve, bounds, maximum_iterations=52)
    return tf.stop_gradient((low + high) / 2.0)


def _normal(uniform):
    limits = np.finfo(uniform.dtype.as_numpy_dtype)  # finite also for the least number
    uniform = tf.clip_by_value(uniform, limits.eps / 4, 1.0 - limits.epsneg)
    return math.sqrt(2.0) * tf.math.erfinv(2.0 * uniform - 1.0)


class _NormalScore(Score):
    """The score function of normal numbers."""

    family = "normal"

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        return _single(Pathwise().sample(tf.stop_gradient(parameters), noise))

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        mean, scale = tf.unstack(parameters, axis=-1)
        z = tf.stop_gradient(samples.vectors[:, 0, :, 0])
        each = -0.5 * ((z - mean) / scale) ** 2 - tf.math.log(scale)
        return samples.costs[:, 0] * tf.reduce_sum(each, axis=1)


class _BetaScore(_NormalScore):
    """The score function of Beta distributed numbers."""

    family = "beta"

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        return _single(_BetaPathwise().sample(tf.stop_gradient(parameters), noise))

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        law = tfp.distributions.Beta(*tf.unstack(parameters, axis=-1))
        each = law.log_prob(tf.stop_gradient(samples.vectors[:, 0, :, 0]))
        return samples.costs[:, 0] * tf.reduce_sum(each, axis=1)


class _Passing(Estimator):
    """One sample, which the gradient of the cost passes."""

    needs_slopes = True

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        return _single(self.sample(parameters, noise), passes=True)

    def sample(self, parameters: tf.Tensor, noise: Noise) -> tf.Tensor:
        """Returns a differentiable sample, `[G, M, K]`."""
        raise NotImplementedError

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        return tf.zeros_like(samples.costs[:, 0])


def _single(sample, **options):
    return Samples(sample[:, None], tf.ones_like(sample[:1, :1, 0]), **options)


@keras.saving.register_keras_serializable("tf_reinforce")
class Pathwise(_Passing):
    """A reparameterized real number (Kingma & Welling, 2014).

        z = μ + σ ε,    ∂z/∂μ = 1, ∂z/∂σ = ε

    A number with a Beta distribution is a quantile, with the gradient of implicit
    reparameterization (Figurnov et al., 2018). The gradient of f must exist almost
    everywhere.
    """

    family = "normal"

    def for_head(self, head: Any) -> Estimator:
        return _BetaPathwise() if head.family == "beta" else self

    def sample(self, parameters: tf.Tensor, noise: Noise) -> tf.Tensor:
        mean, scale = tf.unstack(parameters, axis=-1)
        return (mean + scale * _normal(noise.uniform((mean.shape[1],))))[..., None]


class _BetaPathwise(Pathwise):
    family = "beta"

    def sample(self, parameters: tf.Tensor, noise: Noise) -> tf.Tensor:
        return _beta_quantile(parameters, noise.uniform((parameters.shape[1],)))[
            ..., None
        ]


@keras.saving.register_keras_serializable("tf_reinforce")
class StraightThrough(_Passing):
    """Biased: backwards, a sample is its probabilities (Bengio et al., 2013)."""

    def sample(self, parameters: tf.Tensor, noise: Noise) -> tf.Tensor:
        probs = tf.exp(parameters)
        sample = noise.choose(probs)
        passed = self.passed(parameters, probs, sample)
        return sample + passed - tf.stop_gradient(passed)

    def passed(
        self, parameters: tf.Tensor, probs: tf.Tensor, sample: tf.Tensor
    ) -> tf.Tensor:
        """Returns what the sample is for the gradient."""
        return probs


@keras.saving.register_keras_serializable("tf_reinforce")
class ReinMax(StraightThrough):
    """Biased unless the cost is linear or quadratic (Liu et al., 2023).

    Backwards, a sample z is 2 softmax(log p') - p / 2 with p' = (z + p) / 2.
    """

    def passed(
        self, parameters: tf.Tensor, probs: tf.Tensor, sample: tf.Tensor
    ) -> tf.Tensor:
        middle = tf.math.log((sample + probs) / 2.0)
        logits = tf.stop_gradient(middle - parameters) + parameters
        return 2.0 * tf.nn.softmax(logits) - 0.5 * probs


@keras.saving.register_keras_serializable("tf_reinforce")
class GumbelSoftmax(_Passing):
    """Biased: a relaxed sample in place of a sample (Jang et al.; Maddison et al., 2017).

        z = softmax((log p + g) / temperature)

    Args:
        temperature: Positive float.
    """

    argument_names = ("temperature",)

    def __init__(self, temperature: float = 0.5, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.temperature = validation.number("temperature", temperature, float, 1e-6)

    def sample(self, parameters: tf.Tensor, noise: Noise) -> tf.Tensor:
        exponential = -tf.math.log(noise.uniform(tuple(parameters.shape[1:])))
        return tf.nn.softmax((parameters - tf.math.log(exponential)) / self.temperature)


@keras.saving.register_keras_serializable("tf_reinforce")
class MuProp(Estimator):
    """A Taylor expansion of f at the mean μ as control variate (Gu et al., 2016).

        (f(z) - f(μ) - f'(μ)·(z - μ)) ∇ log p(z) + f'(μ)·∇μ

    It evaluates f twice, at z and at μ.
    """

    needs_slopes = True

    def copies(self, sites: int, size: int) -> int:
        return 2

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        probs = tf.exp(parameters)
        return _with_relaxed(noise.choose(probs), probs)

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        slope, mean = samples.slopes[:, 1], tf.exp(parameters)
        distance = samples.vectors[:, 0] - tf.stop_gradient(mean)
        rest = (
            samples.costs[:, 0]
            - samples.costs[:, 1]
            - tf.reduce_sum(slope * distance, axis=[1, 2])
        )
        scores = score(parameters, samples.vectors[:, :1])[:, 0]
        return rest * scores + tf.reduce_sum(slope * mean, axis=[1, 2])


@keras.saving.register_keras_serializable("tf_reinforce")
class DoubleControlVariates(Estimator):
    """Leave-one-out with Taylor expansions at the mean μ (after Titsias & Shi, 2022).

        1/k Σᵢ (f(zᵢ) - s̄ᵢ·(zᵢ - μ) - c̄ᵢ) ∇ log p(zᵢ) + s̄ᵢ·∇μ

    s̄ᵢ is the mean of the slopes sⱼ = η f'(zⱼ) of the other k - 1 samples, and c̄ᵢ that of
    f(zⱼ) - sⱼ·(zⱼ - μ).

    Args:
        k: Int, how many samples are drawn, at least 2.
        scale: Float η. With 0, the estimate is that of leave-one-out.
    """

    needs_slopes = True
    argument_names = ("k", "scale")

    def __init__(self, k: int = 2, scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.k = validation.whole_number("k", k, 2)
        self.scale = validation.number("scale", scale, float)

    def copies(self, sites: int, size: int) -> int:
        return self.k

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        probs = tf.exp(parameters)
        vectors = tf.stack([noise.choose(probs) for _ in range(self.k)], axis=1)
        return Samples(vectors, tf.ones_like(vectors[:1, :, 0, 0]) / self.k)

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        mean = tf.exp(parameters)[:, None]
        distance = samples.vectors - tf.stop_gradient(mean)
        slopes = self.scale * samples.slopes
        slope = self._of_others(slopes)
        level = samples.costs - tf.reduce_sum(slopes * distance, axis=[2, 3])
        rest = samples.costs - tf.reduce_sum(slope * distance, axis=[2, 3])
        rest = (rest - self._of_others(level)) * score(parameters, samples.vectors)
        return tf.reduce_mean(rest + tf.reduce_sum(slope * mean, axis=[2, 3]), axis=1)

    def _of_others(self, x):
        return (tf.reduce_sum(x, axis=1, keepdims=True) - x) / (self.k - 1)


def _with_relaxed(sample, relaxed, extra=None):
    vectors = tf.stack([sample, relaxed], axis=1)
    return Samples(vectors, tf.constant([[1.0, 0.0]], sample.dtype), 1, extra)


@keras.saving.register_keras_serializable("tf_reinforce")
class Rebar(Estimator):
    """The cost of a relaxed sample as control variate (Tucker et al., 2017).

        (f(b) - η f(s)) ∇ log p(b) + η (∇f(s(z)) - ∇f(s(z̃)))

    The relaxed sample is s = softmax(z / temperature). z = log p + g has the arg max b,
    and z̃ is the same number, as a function of b and of the noise of p(z | b). So f(s)
    needs one evaluation only.

    Args:
        temperature: Positive float.
        scale: Float η. With 0, the estimate is that of the score function.
    """

    needs_slopes = True
    argument_names = ("temperature", "scale")

    def __init__(
        self, temperature: float = 0.5, scale: float = 1.0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.temperature = validation.number("temperature", temperature, float, 1e-6)
        self.scale = validation.number("scale", scale, float)

    def copies(self, sites: int, size: int) -> int:
        return 2

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        sample = noise.choose(tf.exp(parameters))
        numbers = _gumbels(parameters, sample, noise.uniform(tuple(parameters.shape[1:])))
        free, given = (tf.nn.softmax(z / self.temperature) for z in numbers)
        return _with_relaxed(sample, free, free - given)

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        rest = samples.costs[:, 0] - self.scale * samples.costs[:, 1]
        change = tf.reduce_sum(samples.slopes[:, 1] * samples.extra, axis=[1, 2])
        scores = score(parameters, samples.vectors[:, :1])[:, 0]
        return rest * scores + self.scale * change


def _gumbels(log_probs, sample, u):
    """Returns z = log p + g with the arg max `sample`, and z as a function of both.

    The values are equal, but for the gradient, the noise of the first is g, and that of
    the second is u, from which z | sample is made.
    """
    exponential = -tf.math.log(u)
    top = tf.math.log(tf.reduce_sum(exponential * sample, axis=-1, keepdims=True))
    # log(e^top + exponential / p), from logarithms, since p may be tiny.
    rest = tf.math.softplus(tf.math.log(exponential) - log_probs - top)
    given = -(top + (1.0 - sample) * rest)
    return tf.stop_gradient(given - log_probs) + log_probs, given


@keras.saving.register_keras_serializable("tf_reinforce")
class Relax(Estimator):
    """A learned function c as control variate (Grathwohl et al., 2018).

        (f(b) - c(z̃)) ∇ log p(b) + ∇c(z) - ∇c(z̃),    z and z̃ as for `Rebar`

    The optimizer of the `ScoreFunction` also trains c, to make the squared gradient of
    the logits small.

    Args:
        model: Keras model from z, `[N, M, K]`, to one number, `[N, 1]`.
    """

    def __init__(self, model: keras.Model, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.model = validation.instance("model", model, keras.Model)

    def draw(self, parameters: tf.Tensor, noise: Noise) -> Samples:
        sample = noise.choose(tf.exp(parameters))
        return _single(sample, extra=noise.uniform(tuple(parameters.shape[1:])))

    def surrogate(self, parameters: tf.Tensor, samples: Samples) -> tf.Tensor:
        logits = tf.stop_gradient(parameters)
        with tf.GradientTape() as tape:
            tape.watch(logits)
            estimate = self._estimate(tf.nn.log_softmax(logits), samples, tf.identity)
        square = tf.reduce_sum(tape.gradient(estimate, logits) ** 2, axis=[1, 2])
        estimate = self._estimate(parameters, samples, tf.stop_gradient)
        return estimate + square - tf.stop_gradient(square)

    def _estimate(self, parameters, samples, hold):
        free, given = _gumbels(parameters, samples.vectors[:, 0], samples.extra)
        rest = hold(samples.costs - self._values(tf.stop_gradient(given)))
        change = self._values(free) - self._values(given)  # zero, but not its gradient
        return (rest * score(parameters, samples.vectors) + change)[:, 0]

    def _values(self, z):
        values = self.model(z)
        if values.shape[1:] != (1,):
            raise ValueError(
                "The model of `Relax` must return one number per example, (batch, 1). "
                f"Received: shape {values.shape}. End it with keras.layers.Dense(1)."
            )
        return values

    def get_config(self) -> dict[str, Any]:
        model = keras.saving.serialize_keras_object(self.model)
        return {**super().get_config(), "model": model}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "Relax":
        config = copy.deepcopy(config)  # Keras removes entries of the model's config
        model = keras.saving.deserialize_keras_object(config.pop("model"))
        return cls(model, **config)


NAMES = {
    "arm": Arm,
    "disarm": DisArm,
    "double_control_variates": DoubleControlVariates,
    "exact": Exact,
    "gumbel_softmax": GumbelSoftmax,
    "measure_valued": MeasureValued,
    "muprop": MuProp,
    "pathwise": Pathwise,
    "rebar": Rebar,
    "reinmax": ReinMax,
    "score_function": Score,
    "straight_through": StraightThrough,
    "sum_and_sample": SumAndSample,
    "vimco": Vimco,
    "without_replacement": WithoutReplacement,
}


def explain(name: str, logits: Any, costs: Any, seed: int = 0) -> str:
    """Returns the text of `tf-reinforce explain --estimator`: one estimate in numbers.

    Args:
        name: Name of an estimator of categories.
        logits: K floats.
        costs: K floats, the cost of each category, linear between them.
        seed: Int, for the noise.
    """
    estimator, rng = get(name), np.random.default_rng(validation.check_seed(seed))
    logits, costs = (np.atleast_1d(np.asarray(x, "float64")) for x in (logits, costs))
    is_other = estimator.family == "normal" or isinstance(estimator, Vimco)
    if logits.shape != costs.shape or logits.ndim != 1 or is_other:
        raise ValueError(
            "`estimator` must be one of categories, with as many `costs` as `logits`. "
            f"Received: {name!r}, {costs.size} costs and {logits.size} logits"
        )
    noise = Noise(lambda shape, cuts, is_step: tf.constant(rng.random((1, *shape))))
    x = tf.constant(logits)
    with tf.GradientTape() as tape:
        tape.watch(x)
        log_probs = tf.nn.log_softmax(x)[None, None]
        samples = estimator.draw(log_probs, noise)
        each = tf.reduce_sum(samples.vectors * costs, axis=[2, 3])
        known = samples._replace(costs=tf.stop_gradient(each))
        known = known._replace(slopes=tf.zeros_like(samples.vectors) + costs)
        surrogate = (
            each[:, 0] if samples.passes else estimator.surrogate(log_probs, known)
        )
    probs = np.exp(log_probs[0, 0])
    columns = {"logits": logits, "probs": probs, "costs": costs}
    vectors = samples.vectors[0, :, 0].numpy()
    columns |= {f"sample {i + 1}": vector for i, vector in enumerate(vectors)}
    columns["estimate"] = tape.gradient(surrogate, x)
    columns["exact"] = probs * (costs - probs @ costs)
    weights = ", ".join(f"{x:.4f}" for x in np.ravel(samples.weights))
    title = f"{name}: gradient of the expected cost with respect to logits"
    table = explanation.table(range(len(logits)), columns)
    return f"{title}; weights of the samples {weights}\n\n{table}"


def get(identifier: str | Estimator) -> Estimator:
    """Returns the estimator of a name, or an `Estimator` as it is.

    Example:

    >>> get("disarm").copies(200, 2)
    2
    """
    if isinstance(identifier, Estimator):
        return identifier
    return NAMES[validation.one_of("estimator", identifier, NAMES)]()
