"""Computes characteristic eligibilities, d ln π / d parameter, in closed form.

The eligibility of a sample is the direction in which each parameter of its distribution
has to move to make that sample more likely. REINFORCE multiplies it by the return minus
the baseline and back-propagates the product. `docs/eligibility.md` derives every formula.

All functions compute in the type of the parameters (Python numbers count as float64), for
any number of rows, and do not broadcast. Shapes are always checked, except under XLA,
which drops assertions. Values are checked outside traced functions, where they are known.
Gradients flow through the formulas.

Reference:
    Williams (1992), Simple statistical gradient-following algorithms for connectionist
    reinforcement learning, section 4 (the characteristic eligibility, Bernoulli units)
    and section 6 (several parameters, Gaussian units). doi:10.1007/BF00992696
"""

import math
import numbers
from typing import NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp

_IMPOSSIBLE = (
    "must not have happened with a probability of zero, or of one too small for its type"
)


def bernoulli_probs(probs, actions):
    """Of a coin with the probability p of a one: what a change of p does.

        d ln π / dp = (y - p) / (p (1 - p)):    1 / p for a one, -1 / (1 - p) for a zero

    Args:
        probs: `[...]` float in [0, 1], p.
        actions: `[...]` zeros and ones, y; one of them that cannot happen is refused.

    Returns:
        `[...]` float. Never zero: each outcome pulls p towards itself.

    Raises:
        ValueError: when a number is none of these, or the shapes differ.

    Example:

    >>> bernoulli_probs([0.69, 0.69], [1, 0]).numpy().round(4).tolist()
    [1.4493, -3.2258]

    Reference:
        Williams (1992), section 4.
    """
    probs = _floats(probs=probs)
    actions = _whole(actions)
    _same_shape(probs=probs, actions=actions)
    _refuse((probs < 0) | (probs > 1), "`probs` must lie in [0, 1]", probs)
    _refuse((actions < 0) | (actions > 1), "`actions` must be 0 or 1", actions)
    chance = tf.where(actions > 0, probs, 1.0 - probs)
    wanted = f"`actions` {_IMPOSSIBLE}"
    _refuse(chance <= 0, wanted, actions)
    return tf.where(actions > 0, 1.0 / chance, -1.0 / chance)


def bernoulli_logits(logits, actions):
    """Of the same coin, p = 1 / (1 + exp(-z)): what a change of the logit z does.

        d ln π / dz = y - p

    Args:
        logits: `[...]` float, z.
        actions: `[...]` zeros and ones, y.

    Returns:
        `[...]` float, zero only where the outcome was certain to the last digit.

    Raises:
        ValueError: when a number is none of these, or the shapes differ.

    Example:

    >>> bernoulli_logits([0.0, 0.0], [1, 0]).numpy().tolist()
    [0.5, -0.5]

    Reference:
        Williams (1992), section 4, Bernoulli-logistic units.
    """
    logits = _floats(logits=logits)
    actions = _whole(actions)
    _same_shape(logits=logits, actions=actions)
    _refuse((actions < 0) | (actions > 1), "`actions` must be 0 or 1", actions)
    return tf.where(actions > 0, tf.sigmoid(-logits), -tf.sigmoid(logits))


def categorical_logits(logits, actions):
    """Of one choice among K with p = softmax(z): one-hot minus probabilities.

        d ln π / dzₖ = [k = a] - pₖ

    Args:
        logits: `[..., K]` float, z.
        actions: `[...]` ints in 0 to K - 1, a.

    Returns:
        `[..., K]` float; the numbers of each choice add up to zero.

    Raises:
        ValueError: when an action is out of range or not whole, or shapes do not fit.

    Example:

    >>> logits = np.log([0.69, 0.1, 0.2, 0.01])
    >>> categorical_logits(logits, 0).numpy().round(4).tolist()
    [0.31, -0.1, -0.2, -0.01]
    """
    logits = _floats(logits=logits)
    return _one_hot(actions, logits) - tf.nn.softmax(logits)


def categorical_probs(probs, actions):
    """Of one choice among K whose probabilities are normalised inside: π(a) = pₐ / Σp.

        d ln π / dpₖ = [k = a] / pₐ - 1 / Σp

    Only the ratios of p count, so every category that was not chosen is pushed down by
    the same 1 / Σp: the more of the others, the less of this one. Multiplying p by c
    divides the eligibility by c and changes nothing else.

    Args:
        probs: `[..., K]` float, not negative, of any positive sum.
        actions: `[...]` ints in 0 to K - 1, of categories with pₐ > 0.

    Returns:
        `[..., K]` float, orthogonal to p.

    Raises:
        ValueError: when a number is none of these, or shapes do not fit.

    Example:

    >>> p = [0.69, 0.1, 0.2, 0.01]
    >>> categorical_probs(p, 0).numpy().round(4).tolist()
    [0.4493, -1.0, -1.0, -1.0]
    """
    probs = _not_negative(probs)
    return multinomial_probs(probs, _one_hot(actions, probs), 1)


def categorical_simplex(probs, actions):
    """Of one choice among K with π(a) = pₐ as it stands, nothing normalised.

        d ln π / dpₖ = [k = a] / pₐ

    The right derivative only along directions that keep Σp = 1: its expectation is one in
    every component, a vector that points out of the simplex. Behind a softmax that part
    vanishes, and this form and `categorical_probs` send back the same.

    Args:
        probs: `[..., K]` float, not negative, that add up to one.
        actions: `[...]` ints in 0 to K - 1, of categories with pₐ > 0.

    Returns:
        `[..., K]` float, zero for every category that was not chosen.

    Raises:
        ValueError: when a number is none of these, or shapes do not fit.

    Example:

    >>> categorical_simplex([0.5, 0.25, 0.25], 1).numpy().tolist()
    [0.0, 4.0, 0.0]
    """
    probs = _not_negative(probs)
    return multinomial_simplex(probs, _one_hot(actions, probs), 1)


def multinomial_logits(logits, counts, trials):
    """Of N choices among K with p = softmax(z), counted: counts minus expected counts.

        d ln π / dzₖ = nₖ - N pₖ

    Args:
        logits: `[..., K]` float, z.
        counts: `[..., K]` whole numbers, n, that add up to N.
        trials: Positive int, N.

    Returns:
        `[..., K]` float, zero where a count is what was expected.

    Raises:
        ValueError: when counts are negative, not whole or do not add up to N, or the
            shapes differ.

    Example:

    >>> logits = np.log([0.69, 0.1, 0.2, 0.01])
    >>> multinomial_logits(logits, [4, 1, 0, 0], 5).numpy().round(4).tolist()
    [0.55, 0.5, -1.0, -0.05]
    """
    logits = _floats(logits=logits)
    counts = _counts(counts, trials, logits)
    return counts - trials * tf.nn.softmax(logits)


def multinomial_probs(probs, counts, trials):
    """Of N choices whose probabilities are normalised inside: N times the categorical.

        d ln π / dpₖ = nₖ / pₖ - N / Σp

    Args:
        probs: `[..., K]` float, not negative, of any positive sum.
        counts: `[..., K]` whole numbers that add up to N, zero where pₖ is.
        trials: Positive int, N.

    Returns:
        `[..., K]` float, orthogonal to p.

    Raises:
        ValueError: when a number is none of these, or the shapes differ.

    Example:

    >>> p = [0.69, 0.1, 0.2, 0.01]
    >>> multinomial_probs(p, [4, 1, 0, 0], 5).numpy().round(4).tolist()
    [0.7971, 5.0, -5.0, -5.0]
    """
    probs = _not_negative(probs)
    counts = _counts(counts, trials, probs)
    total = tf.reduce_sum(probs, axis=-1, keepdims=True)
    _refuse(total[..., 0] <= 0, "`probs` must not all be zero", probs)
    _refuse(total[..., 0] > probs.dtype.max, "`probs` must have a finite sum", probs)
    return _per_probability(counts, probs) - trials / total


def multinomial_simplex(probs, counts, trials):
    """Of N choices with probabilities as they stand; see `categorical_simplex`.

        d ln π / dpₖ = nₖ / pₖ

    Args:
        probs: `[..., K]` float, not negative, that add up to one.
        counts: `[..., K]` whole numbers that add up to N, zero where pₖ is.
        trials: Positive int, N.

    Returns:
        `[..., K]` float, zero for a category that never came.

    Raises:
        ValueError: when a number is none of these, or the shapes differ.

    Example:

    >>> p = [0.69, 0.1, 0.2, 0.01]
    >>> multinomial_simplex(p, [3, 1, 1, 0], 5).numpy().round(4).tolist()
    [4.3478, 10.0, 5.0, 0.0]
    """
    probs = _not_negative(probs)
    counts = _counts(counts, trials, probs)
    total = tf.reduce_sum(probs, axis=-1)
    off = tf.abs(total - 1.0) > (1e-9 if probs.dtype == tf.float64 else 1e-5)
    wanted = "`probs` must add up to one; `…_probs` takes any that are not negative"
    _refuse(off, wanted, probs)
    return _per_probability(counts, probs)


class GaussianEligibility(NamedTuple):
    """`[...]` float each: with respect to μ, to σ and to ln σ."""

    mean: tf.Tensor
    std: tf.Tensor
    log_std: tf.Tensor


def gaussian(mean, std, samples):
    """Of a normal number, or of each component of a diagonal Gaussian.

        d ln π / dμ = (y - μ) / σ²,    d ln π / dσ = ((y - μ)² - σ²) / σ³,
        d ln π / d ln σ = ((y - μ)² - σ²) / σ²

    A sample pulls the mean towards itself. It widens the distribution when it lies
    further than σ from the mean, and narrows it otherwise. The components of a diagonal
    Gaussian are independent: its log-density is a sum, its eligibility this, component
    by component.

    Args:
        mean: `[...]` float, μ.
        std: `[...]` float above zero, σ.
        samples: `[...]` float, y, as drawn: not clipped.

    Returns:
        `GaussianEligibility`.

    Raises:
        ValueError: when a number is none of these, or the shapes differ.

    Example:

    >>> [float(x) for x in gaussian(0.0, 2.0, 1.0)]
    [0.25, -0.375, -0.75]

    Reference:
        Williams (1992), section 6.
    """
    mean, std, samples = _floats(mean=mean, std=std, samples=samples)
    _same_shape(mean=mean, std=std, samples=samples)
    _refuse(std <= 0, "`std` must be above zero", std)
    away = (samples - mean) / std
    return GaussianEligibility(away / std, (away**2 - 1.0) / std, away**2 - 1.0)


def clipped_gaussian(mean, std, low, high, actions):
    """Of y = min(max(x, low), high) with a normal x, scored as what it then is.

        ln π(y) = ln N(y; μ, σ)      between the bounds: the eligibility of `gaussian`
                = ln Φ(z)            at low,   z = (low - μ) / σ
                = ln Φ(z)            at high,  z = (μ - high) / σ

        d ln Φ(z) / dμ = ∓h(z) / σ,    d ln Φ(z) / d ln σ = -z h(z),    h = φ / Φ

    An action at a bound says no more than that x lay there or beyond: it pulls the mean
    outwards by the mean of what all those samples would have pulled. h is one over the
    ratio of Mills, exact however unlikely the bound was.

    Args:
        mean: `[...]` float, μ of x.
        std: `[...]` float above zero, σ of x.
        low: `[...]` float or -∞.
        high: `[...]` float or ∞, above `low`.
        actions: `[...]` float in [low, high], y.

    Returns:
        `GaussianEligibility`.

    Raises:
        ValueError: when a number is none of these, or the shapes differ.

    Example:

    >>> [round(float(x), 4) for x in clipped_gaussian(0.0, 2.0, -9.0, 2.0, 2.0)]
    [0.7626, 0.7626, 1.5251]

    Reference:
        Fujita & Maeda (2018), Clipped action policy gradient. arXiv:1802.07564
    """
    mean, std, actions = _floats(mean=mean, std=std, actions=actions)
    low, high = (
        tf.cast(_numbers(f"`{name}`", bound), mean.dtype)
        for name, bound in (("low", low), ("high", high))
    )
    _same_shape(mean=mean, std=std, low=low, high=high, actions=actions)
    _refuse(~(low < high), "`low` must be below `high`", low)
    outside = (actions < low) | (actions > high)
    _refuse(outside, "`actions` must lie between `low` and `high`", actions)
    inner = gaussian(mean, std, actions)
    side = tf.where(actions <= low, -1.0, tf.where(actions >= high, 1.0, 0.0))
    side = tf.cast(side, mean.dtype)
    z = side * (mean - actions) / std
    pull = _inverse_mills(z)
    outer = (side * pull / std, -z * pull / std, -z * pull)
    pairs = zip(inner, outer, strict=True)
    return GaussianEligibility(*(tf.where(side == 0, a, b) for a, b in pairs))


def tanh_gaussian(mean, std, actions):
    """Of a = tanh(y) with a normal y: that of y.

        ln π(a) = ln N(y; μ, σ) - ln(1 - a²),    y = artanh a

    The squashing adds a term in which no parameter occurs. Near ±1 a rounded action no
    longer says which y it was: where y itself is at hand, pass it to `gaussian`.

    Args:
        mean: `[...]` float, μ of y.
        std: `[...]` float above zero, σ of y.
        actions: `[...]` float in (-1, 1), a.

    Returns:
        `GaussianEligibility`.

    Raises:
        ValueError: when a number is none of these, or the shapes differ.

    Example:

    >>> [round(float(x), 4) for x in tanh_gaussian(0.0, 1.0, 0.5)]
    [0.5493, -0.6983, -0.6983]
    """
    mean, std, actions = _floats(mean=mean, std=std, actions=actions)
    _refuse(tf.abs(actions) >= 1, "`actions` must lie in (-1, 1)", actions)
    return gaussian(mean, std, tf.atanh(actions))


class BetaEligibility(NamedTuple):
    """`[...]` float each: with respect to α and to β."""

    concentration1: tf.Tensor
    concentration0: tf.Tensor


def beta(concentration1, concentration0, samples):
    """Of a number in (0, 1) with a density proportional to y^(α - 1) (1 - y)^(β - 1).

        d ln π / dα = ln y - ψ(α) + ψ(α + β),    d ln π / dβ = ln(1 - y) - ψ(β) + ψ(α + β)

    ψ is the digamma function; ψ(α) - ψ(α + β) is the expectation of ln y.

    Args:
        concentration1: `[...]` float above zero, α.
        concentration0: `[...]` float above zero, β.
        samples: `[...]` float in (0, 1), y.

    Returns:
        `BetaEligibility`.

    Raises:
        ValueError: when a number is none of these, or the shapes differ.

    Example:

    >>> [round(float(x), 4) for x in beta(1.0, 1.0, 0.5)]
    [0.3069, 0.3069]
    """
    alpha, other, samples = _floats(
        concentration1=concentration1, concentration0=concentration0, samples=samples
    )
    _same_shape(concentration1=alpha, concentration0=other, samples=samples)
    _refuse(alpha <= 0, "`concentration1` must be above zero", alpha)
    _refuse(other <= 0, "`concentration0` must be above zero", other)
    _refuse((samples <= 0) | (samples >= 1), "`samples` must lie in (0, 1)", samples)
    both = tf.math.digamma(alpha + other)
    return BetaEligibility(
        tf.math.log(samples) - tf.math.digamma(alpha) + both,
        tf.math.log1p(-samples) - tf.math.digamma(other) + both,
    )


def _inverse_mills(z):
    """φ(z) / Φ(z), finite and exact on either side."""
    root = math.sqrt(2.0)
    lower, upper = tf.minimum(z, 0.0), tf.maximum(z, 0.0)
    within = tf.exp(-(upper**2) / 2) / tf.math.erfc(-upper / root)
    beyond = 1.0 / tfp.math.erfcx(-lower / root)
    return math.sqrt(2.0 / math.pi) * tf.where(z < 0, beyond, within)


def _per_probability(counts, probs):
    """n / p, and zero where nothing was counted, even where p is zero."""
    impossible = (counts > 0) & (probs <= 0)
    _refuse(impossible, f"`actions` or `counts` {_IMPOSSIBLE}", probs)
    return tf.math.divide_no_nan(counts, probs)


def _floats(**named):
    """Finite tensors of one float type: that of the first, float64 for plain numbers."""
    first = next(iter(named.values()))
    dtype = tf.as_dtype(getattr(first, "dtype", tf.float64))
    dtype = dtype if dtype.is_floating else tf.float64
    tensors = []
    for name, values in named.items():
        values = tf.cast(_numbers(f"`{name}`", values), dtype)
        _refuse(~tf.math.is_finite(values), f"`{name}` must be finite", values)
        tensors.append(values)
    return tensors if len(tensors) > 1 else tensors[0]


def _numbers(name, values):
    """An array or tensor of whole or real numbers, or an error."""
    values = values if tf.is_tensor(values) else np.asarray(values)
    kind = tf.as_dtype(values.dtype)
    if not (kind.is_floating or kind.is_integer):
        raise ValueError(f"{name} must be numbers. Received: {values!r}")
    return values


def _not_negative(probs):
    probs = _floats(probs=probs)
    _refuse(probs < 0, "`probs` must not be negative", probs)
    return probs


def _whole(actions):
    """Whole numbers as int64, from which no fraction was cut."""
    actions = tf.convert_to_tensor(_numbers("Actions and counts", actions))
    if actions.dtype.is_floating:
        fraction = ~tf.math.is_finite(actions) | (actions != tf.round(actions))
        _refuse(fraction, "actions and counts must be whole numbers", actions)
    return tf.cast(actions, tf.int64)


def _one_hot(actions, parameters):
    actions = _whole(actions)
    _require_categories(parameters)
    _same_shape(actions=actions, **{"rows of parameters": parameters[..., 0]})
    count = parameters.shape[-1] or tf.shape(parameters)[-1]
    outside = (actions < 0) | (actions >= tf.cast(count, tf.int64))
    last = count - 1 if isinstance(count, int) else "K - 1"
    _refuse(outside, f"`actions` must lie in 0 to {last}", actions)
    return tf.one_hot(actions, count, dtype=parameters.dtype)


def _counts(counts, trials, parameters):
    """Counts in the type of the parameters; they are added up as whole numbers."""
    counts = _whole(counts)
    _require_categories(parameters)
    _same_shape(parameters=parameters, counts=counts)
    _refuse(counts < 0, "`counts` must not be negative", counts)
    whole = isinstance(trials, numbers.Integral) and not isinstance(trials, bool)
    if not whole or trials < 1:
        raise ValueError(f"`trials` must be a positive int. Received: {trials!r}")
    off = tf.reduce_sum(counts, axis=-1) != int(trials)
    _refuse(off, f"`counts` must add up to the {trials} trials", counts)
    return tf.cast(counts, parameters.dtype)


def _require_categories(parameters):
    if parameters.shape.rank == 0 or 0 in parameters.shape[-1:]:
        raise ValueError(
            "One number per category is needed, in the last axis. "
            f"Received: shape {parameters.shape}"
        )


def _same_shape(**named):
    """Refuses different shapes: at once where they are known, else in the graph."""
    (_, first), *others = named.items()
    if not all(first.shape.is_compatible_with(other.shape) for _, other in others):
        received = ", ".join(f"{name} {tensor.shape}" for name, tensor in named.items())
        raise ValueError(
            f"All shapes must be the same; nothing is broadcast. Received: {received}"
        )
    for name, other in others:
        if not (first.shape.is_fully_defined() and other.shape.is_fully_defined()):
            message = f"All shapes must be the same; that of {name} is not."
            tf.debugging.assert_equal(tf.shape(first), tf.shape(other), message=message)


def _refuse(wrong, wanted, values):
    """Raises where a condition holds; in a traced function values are not known.

    Args:
        wrong: Bool, of the shape of `values` or of its first axes.
        wanted: What was expected, as a sentence.
        values: Of which the first few wrong ones are shown.
    """
    if not tf.is_symbolic_tensor(wrong) and np.any(wrong):
        found = np.asarray(values)[np.asarray(wrong)].tolist()
        shown = found[0] if len(found) == 1 else f"{found[:5]}, {len(found)} of them"
        raise ValueError(f"{wanted[0].upper()}{wanted[1:]}. Received: {shown}")
