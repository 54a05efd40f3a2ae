"""Characteristic eligibilities, d ln π / d parameter, in closed form.

The eligibility of a sampled action is the derivative of its log-probability ln π with
respect to a parameter of the distribution. REINFORCE multiplies the eligibility by the
return minus the baseline, and back-propagates the product. The guide
`docs/eligibility.md` derives every formula.

All functions take any leading axes, do not broadcast, and let gradients flow through.
They compute in the float type of their first argument, or in float64 if this argument has
none. Shapes are always checked, but values are checked in eager mode only.

Reference:
    Williams (1992), Simple statistical gradient-following algorithms for connectionist
    reinforcement learning, section 4 (the characteristic eligibility, Bernoulli units)
    and section 6 (several parameters, Gaussian units). doi:10.1007/BF00992696
"""

import math
import numbers
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf
import tensorflow_probability as tfp
from numpy.typing import ArrayLike

from tf_reinforce.functional import shapes

__all__ = [
    "BetaEligibility",
    "GaussianEligibility",
    "bernoulli_logits",
    "bernoulli_probs",
    "beta",
    "categorical_logits",
    "categorical_probs",
    "categorical_simplex",
    "clipped_gaussian",
    "gaussian",
    "multinomial_logits",
    "multinomial_probs",
    "multinomial_simplex",
    "tanh_gaussian",
]

__dir__ = __all__.copy  # what tab completion shows


_POSSIBLE = "must not have a probability of zero, or a probability too small for its type"


def bernoulli_probs(probs: ArrayLike, actions: ArrayLike) -> tf.Tensor:
    """Returns the eligibility of binary actions with respect to p, the probability of 1.

        d ln π / dp = (y - p) / (p (1 - p)):    1 / p for a one, -1 / (1 - p) for a zero

    Args:
        probs: `[...]` float in [0, 1], p.
        actions: `[...]` zeros and ones, y. None may have probability zero.

    Returns:
        `[...]` float, positive for a one and negative for a zero.

    Raises:
        ValueError: If a value is invalid, or the shapes differ.

    Example:

    >>> bernoulli_probs([0.69, 0.69], [1, 0]).numpy().round(4).tolist()
    [1.4493, -3.2258]

    Reference:
        Williams (1992), section 4.
    """
    probs = _floats(probs=probs)
    actions = _integers(actions)
    _same_shape(probs, actions)
    _raise_if((probs < 0) | (probs > 1), "Each of `probs` must lie in [0, 1]", probs)
    _raise_if((actions < 0) | (actions > 1), "`actions` must be 0 or 1", actions)
    action_probs = tf.where(actions > 0, probs, 1.0 - probs)
    _raise_if(action_probs <= 0, f"`actions` {_POSSIBLE}", actions)
    return tf.where(actions > 0, 1.0 / action_probs, -1.0 / action_probs)


def bernoulli_logits(logits: ArrayLike, actions: ArrayLike) -> tf.Tensor:
    """Returns the eligibility of binary actions with respect to z, the logit of 1.

        d ln π / dz = y - p,    with  p = 1 / (1 + exp(-z))

    Args:
        logits: `[...]` float, z.
        actions: `[...]` zeros and ones, y.

    Returns:
        `[...]` float, zero only if the action's probability rounds to one.

    Raises:
        ValueError: If a value is invalid, or the shapes differ.

    Example:

    >>> bernoulli_logits([0.0, 0.0], [1, 0]).numpy().tolist()
    [0.5, -0.5]

    Reference:
        Williams (1992), section 4, Bernoulli-logistic units.
    """
    logits = _floats(logits=logits)
    actions = _integers(actions)
    _same_shape(logits, actions)
    _raise_if((actions < 0) | (actions > 1), "`actions` must be 0 or 1", actions)
    return tf.where(actions > 0, tf.sigmoid(-logits), -tf.sigmoid(logits))


def categorical_logits(logits: ArrayLike, actions: ArrayLike) -> tf.Tensor:
    """Returns the eligibility of a categorical action with respect to logits z.

        d ln π / dzₖ = [k = a] - pₖ,    with  p = softmax(z)

    Args:
        logits: `[..., K]` float, the logits z of K categories.
        actions: `[...]` ints in 0 to K - 1, the sampled categories a.

    Returns:
        `[..., K]` float: one-hot action minus probabilities. The K numbers sum to zero.

    Raises:
        ValueError: If an action is out of range or no integer, or `actions` lacks the
            shape of `logits` without its last axis.

    Example:

    >>> logits = np.log([0.69, 0.1, 0.2, 0.01])
    >>> categorical_logits(logits, 0).numpy().round(4).tolist()
    [0.31, -0.1, -0.2, -0.01]
    """
    logits = _floats(logits=logits)
    return _one_hot(actions, logits) - tf.nn.softmax(logits)


def categorical_probs(probs: ArrayLike, actions: ArrayLike) -> tf.Tensor:
    """Returns a categorical action's eligibility with respect to relative probabilities.

        d ln π / dpₖ = [k = a] / pₐ - 1 / Σp,    with  π(a) = pₐ / Σp

    Because p is divided by its sum, only the ratios of p matter. Making one category
    likelier therefore makes all others less likely, so a category that was not sampled
    has the negative eligibility -1 / Σp.

    Args:
        probs: `[..., K]` float, relative probabilities p of K categories, not negative,
            with any positive sum.
        actions: `[...]` ints in 0 to K - 1, sampled categories a with pₐ > 0.

    Returns:
        `[..., K]` float, orthogonal to p.

    Raises:
        ValueError: If a value is invalid, or `actions` lacks the shape of `probs` without
            its last axis.

    Example:

    >>> p = [0.69, 0.1, 0.2, 0.01]
    >>> categorical_probs(p, 0).numpy().round(4).tolist()
    [0.4493, -1.0, -1.0, -1.0]
    """
    probs = _not_negative(probs)
    return multinomial_probs(probs, _one_hot(actions, probs), 1)


def categorical_simplex(probs: ArrayLike, actions: ArrayLike) -> tf.Tensor:
    """Returns a categorical action's eligibility with respect to probabilities of sum 1.

        d ln π / dpₖ = [k = a] / pₐ,    with  π(a) = pₐ

    This derivative is meant for changes of p that keep Σp = 1. Its expectation over
    random actions is a vector of ones, which points out of the simplex. If p comes from a
    softmax, the gradient of the softmax removes this component, so `categorical_simplex`
    and `categorical_probs` back-propagate the same gradient to the logits.

    Args:
        probs: `[..., K]` float, probabilities p of K categories, not negative, of sum
            one.
        actions: `[...]` ints in 0 to K - 1, sampled categories a with pₐ > 0.

    Returns:
        `[..., K]` float, zero for every category that was not sampled.

    Raises:
        ValueError: If a value is invalid, or `actions` lacks the shape of `probs` without
            its last axis.

    Example:

    >>> categorical_simplex([0.5, 0.25, 0.25], 1).numpy().tolist()
    [0.0, 4.0, 0.0]
    """
    probs = _not_negative(probs)
    return multinomial_simplex(probs, _one_hot(actions, probs), 1)


def multinomial_logits(
    logits: ArrayLike, counts: ArrayLike, trials: ArrayLike
) -> tf.Tensor:
    """Returns the eligibility of the counts of N choices with respect to logits z.

        d ln π / dzₖ = nₖ - N pₖ,    with  p = softmax(z)

    Args:
        logits: `[..., K]` float, the logits z of K categories.
        counts: `[..., K]` integers n, which sum to N.
        trials: Positive int, the number N of choices.

    Returns:
        `[..., K]` float: counts minus expected counts.

    Raises:
        ValueError: If counts are negative, no integers or do not sum to N, or the shapes
            differ.

    Example:

    >>> logits = np.log([0.69, 0.1, 0.2, 0.01])
    >>> multinomial_logits(logits, [4, 1, 0, 0], 5).numpy().round(4).tolist()
    [0.55, 0.5, -1.0, -0.05]
    """
    logits = _floats(logits=logits)
    counts = _counts(counts, trials, logits)
    return counts - trials * tf.nn.softmax(logits)


def multinomial_probs(
    probs: ArrayLike, counts: ArrayLike, trials: ArrayLike
) -> tf.Tensor:
    """Returns multinomial counts' eligibility with respect to relative probabilities p.

        d ln π / dpₖ = nₖ / pₖ - N / Σp

    The eligibility of the counts is the sum of `categorical_probs` over the N choices.

    Args:
        probs: `[..., K]` float, relative probabilities p of K categories, not negative,
            with any positive sum.
        counts: `[..., K]` integers n, which sum to N; zero where pₖ is zero.
        trials: Positive int, the number N of choices.

    Returns:
        `[..., K]` float, orthogonal to p.

    Raises:
        ValueError: If a value is invalid, or the shapes differ.

    Example:

    >>> p = [0.69, 0.1, 0.2, 0.01]
    >>> multinomial_probs(p, [4, 1, 0, 0], 5).numpy().round(4).tolist()
    [0.7971, 5.0, -5.0, -5.0]
    """
    probs = _not_negative(probs)
    counts = _counts(counts, trials, probs)
    total = tf.reduce_sum(probs, axis=-1, keepdims=True)
    _raise_if(total[..., 0] <= 0, "The `probs` of an action must not all be zero", probs)
    _raise_if(total[..., 0] > probs.dtype.max, "`probs` must have a finite sum", probs)
    return _counts_over_probs(counts, probs) - trials / total


def multinomial_simplex(
    probs: ArrayLike, counts: ArrayLike, trials: ArrayLike
) -> tf.Tensor:
    """Returns multinomial counts' eligibility with respect to probabilities of sum 1.

        d ln π / dpₖ = nₖ / pₖ

    The eligibility of the counts is the sum of `categorical_simplex` over the N choices.

    Args:
        probs: `[..., K]` float, probabilities p of K categories, not negative, of sum
            one.
        counts: `[..., K]` integers n, which sum to N; zero where pₖ is zero.
        trials: Positive int, the number N of choices.

    Returns:
        `[..., K]` float, zero for a count of zero.

    Raises:
        ValueError: If a value is invalid, or the shapes differ.

    Example:

    >>> p = [0.69, 0.1, 0.2, 0.01]
    >>> multinomial_simplex(p, [3, 1, 1, 0], 5).numpy().round(4).tolist()
    [4.3478, 10.0, 5.0, 0.0]
    """
    probs = _not_negative(probs)
    counts = _counts(counts, trials, probs)
    total = tf.reduce_sum(probs, axis=-1)
    wrong_sum = tf.abs(total - 1.0) > (1e-9 if probs.dtype == tf.float64 else 1e-5)
    requirement = "`probs` must sum to one (only `…_probs` accepts any positive sum)"
    _raise_if(wrong_sum, requirement, probs)
    return _counts_over_probs(counts, probs)


class GaussianEligibility(NamedTuple):
    """`[...]` derivatives of the log-density with respect to mean μ, std σ and ln σ."""

    mean: tf.Tensor
    std: tf.Tensor
    log_std: tf.Tensor


def gaussian(mean: ArrayLike, std: ArrayLike, samples: ArrayLike) -> GaussianEligibility:
    """Returns the eligibility of samples of a Gaussian, component by component.

        d ln π / dμ = (y - μ) / σ²,    d ln π / dσ = ((y - μ)² - σ²) / σ³,
        d ln π / d ln σ = ((y - μ)² - σ²) / σ²

    The derivative with respect to the mean points towards the sample. The derivative with
    respect to σ is positive if the sample lies further than σ from the mean, and negative
    otherwise. Each component has an eligibility of its own, because the log-density of a
    diagonal Gaussian is a sum over the components.

    Args:
        mean: `[...]` float, μ.
        std: `[...]` float above zero, σ.
        samples: `[...]` float, the samples y before any clipping.

    Returns:
        `GaussianEligibility` with the three derivatives.

    Raises:
        ValueError: If a value is invalid, or the shapes differ.

    Example:

    >>> [float(x) for x in gaussian(0.0, 2.0, 1.0)]
    [0.25, -0.375, -0.75]

    Reference:
        Williams (1992), section 6.
    """
    mean, std, samples = _floats(mean=mean, std=std, samples=samples)
    _same_shape(mean, std, samples)
    _raise_if(std <= 0, "`std` must be above zero", std)
    z = (samples - mean) / std
    return GaussianEligibility(z / std, (z**2 - 1.0) / std, z**2 - 1.0)


def clipped_gaussian(
    mean: ArrayLike, std: ArrayLike, low: ArrayLike, high: ArrayLike, actions: ArrayLike
) -> GaussianEligibility:
    """Returns the eligibility of a Gaussian sample that was clipped to bounds.

        y = min(max(x, low), high)   with a normal x

        ln π(y) = ln N(y; μ, σ)      between the bounds: the eligibility of `gaussian`
                = ln Φ(z)            at low,   z = (low - μ) / σ
                = ln Φ(z)            at high,  z = (μ - high) / σ

        d ln Φ(z) / dμ = ∓h(z) / σ,    d ln Φ(z) / d ln σ = -z h(z),    h = φ / Φ

    In these formulas, φ and Φ are the density and the distribution function of the
    standard normal distribution. An action at a bound tells only that x was at the bound
    or beyond it, so its eligibility is the expectation over all such x. The inverse Mills
    ratio h is exact even if reaching the bound is very unlikely.

    Args:
        mean: `[...]` float, the mean μ of x.
        std: `[...]` float above zero, the standard deviation σ of x.
        low: `[...]` float or -∞.
        high: `[...]` float or ∞, above `low`.
        actions: `[...]` float in [low, high], the clipped samples y.

    Returns:
        `GaussianEligibility` with the three derivatives.

    Raises:
        ValueError: If a value is invalid, or the shapes differ.

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
    _same_shape(mean, std, low, high, actions)
    _raise_if(~(low < high), "`low` must be below `high`", low)
    out_of_bounds = (actions < low) | (actions > high)
    _raise_if(out_of_bounds, "`actions` must lie between `low` and `high`", actions)
    between = gaussian(mean, std, actions)
    side = tf.where(actions <= low, -1.0, tf.where(actions >= high, 1.0, 0.0))
    side = tf.cast(side, mean.dtype)  # -1 at low, 1 at high, 0 between low and high
    z = side * (mean - actions) / std
    ratio = _inverse_mills_ratio(z)
    at_bound = (side * ratio / std, -z * ratio / std, -z * ratio)
    pairs = zip(between, at_bound, strict=True)
    return GaussianEligibility(*(tf.where(side == 0, a, b) for a, b in pairs))


def tanh_gaussian(
    mean: ArrayLike, std: ArrayLike, actions: ArrayLike
) -> GaussianEligibility:
    """Returns the eligibility of an action a = tanh(y) for a Gaussian sample y.

        ln π(a) = ln N(y; μ, σ) - ln(1 - a²),    y = artanh a

    The action a has the same eligibility as the sample y, because the term that tanh adds
    does not depend on μ and σ. If you know y, pass it to `gaussian` instead. Computing y
    from an action near ±1 is inexact because of rounding.

    Args:
        mean: `[...]` float, the mean μ of y.
        std: `[...]` float above zero, the standard deviation σ of y.
        actions: `[...]` float in (-1, 1), the squashed actions a.

    Returns:
        `GaussianEligibility` with the three derivatives.

    Raises:
        ValueError: If a value is invalid, or the shapes differ.

    Example:

    >>> [round(float(x), 4) for x in tanh_gaussian(0.0, 1.0, 0.5)]
    [0.5493, -0.6983, -0.6983]
    """
    mean, std, actions = _floats(mean=mean, std=std, actions=actions)
    _raise_if(tf.abs(actions) >= 1, "`actions` must lie in (-1, 1)", actions)
    return gaussian(mean, std, tf.atanh(actions))


class BetaEligibility(NamedTuple):
    """`[...]` derivatives of the log-density with respect to the parameters α and β."""

    concentration1: tf.Tensor
    concentration0: tf.Tensor


def beta(
    concentration1: ArrayLike, concentration0: ArrayLike, samples: ArrayLike
) -> BetaEligibility:
    """Returns the eligibility of samples of a Beta distribution.

        π(y) ∝ y^(α - 1) (1 - y)^(β - 1)

        d ln π / dα = ln y - ψ(α) + ψ(α + β),    d ln π / dβ = ln(1 - y) - ψ(β) + ψ(α + β)

    Here ψ is the digamma function, and ψ(α) - ψ(α + β) is the expectation of ln y.

    Args:
        concentration1: `[...]` float above zero, α.
        concentration0: `[...]` float above zero, β.
        samples: `[...]` float in (0, 1), y.

    Returns:
        `BetaEligibility` with both derivatives.

    Raises:
        ValueError: If a value is invalid, or the shapes differ.

    Example:

    >>> [round(float(x), 4) for x in beta(1.0, 1.0, 0.5)]
    [0.3069, 0.3069]
    """
    alpha, beta_, samples = _floats(
        concentration1=concentration1, concentration0=concentration0, samples=samples
    )
    _same_shape(alpha, beta_, samples)
    _raise_if(alpha <= 0, "`concentration1` must be above zero", alpha)
    _raise_if(beta_ <= 0, "`concentration0` must be above zero", beta_)
    _raise_if((samples <= 0) | (samples >= 1), "`samples` must lie in (0, 1)", samples)
    digamma_sum = tf.math.digamma(alpha + beta_)
    return BetaEligibility(
        tf.math.log(samples) - tf.math.digamma(alpha) + digamma_sum,
        tf.math.log1p(-samples) - tf.math.digamma(beta_) + digamma_sum,
    )


def _inverse_mills_ratio(z: tf.Tensor) -> tf.Tensor:
    """Returns φ(z) / Φ(z) of the standard normal, finite and exact for every z."""
    root = math.sqrt(2.0)
    negative, positive = tf.minimum(z, 0.0), tf.maximum(z, 0.0)
    for_positive = tf.exp(-(positive**2) / 2) / tf.math.erfc(-positive / root)
    for_negative = 1.0 / tfp.math.erfcx(-negative / root)
    return math.sqrt(2.0 / math.pi) * tf.where(z < 0, for_negative, for_positive)


def _counts_over_probs(counts: Any, probs: Any) -> tf.Tensor:
    """Returns n / p, and zero for a count of zero."""
    impossible = (counts > 0) & (probs <= 0)
    _raise_if(impossible, f"`actions` or `counts` {_POSSIBLE}", probs)
    return tf.math.divide_no_nan(counts, probs)


def _floats(**arguments: Any) -> Any:
    """Returns finite tensors in the first argument's float type, by default float64."""
    first = next(iter(arguments.values()))
    dtype = tf.as_dtype(getattr(first, "dtype", tf.float64))
    dtype = dtype if dtype.is_floating else tf.float64
    tensors = []
    for name, values in arguments.items():
        values = tf.cast(_numbers(f"`{name}`", values), dtype)
        _raise_if(~tf.math.is_finite(values), f"`{name}` must be finite", values)
        tensors.append(values)
    return tensors if len(tensors) > 1 else tensors[0]


def _numbers(name: str, values: Any) -> tf.Tensor:
    """Returns an array or tensor of a float or integer type, or raises an error."""
    values = values if tf.is_tensor(values) else np.asarray(values)
    dtype = tf.as_dtype(values.dtype)
    if not (dtype.is_floating or dtype.is_integer):
        raise ValueError(f"{name} must be numbers. Received: {values!r}")
    return values


def _not_negative(probs: Any) -> tf.Tensor:
    probs = _floats(probs=probs)
    _raise_if(probs < 0, "`probs` must not be negative", probs)
    return probs


def _integers(actions: Any) -> tf.Tensor:
    """Returns whole numbers as int64, or raises an error if a number has a fraction."""
    actions = tf.convert_to_tensor(_numbers("Actions and counts", actions))
    if actions.dtype.is_floating:
        fraction = ~tf.math.is_finite(actions) | (actions != tf.round(actions))
        _raise_if(fraction, "`actions` and `counts` must be whole numbers", actions)
    return tf.cast(actions, tf.int64)


def _one_hot(actions: Any, parameters: tf.Tensor) -> tf.Tensor:
    actions = _integers(actions)
    _check_categories(parameters)
    _same_shape(actions, parameters[..., 0])
    size = tf.shape(parameters, tf.int64)[-1]
    out_of_range = (actions < 0) | (actions >= size)
    _raise_if(out_of_range, "`actions` must lie in 0 to K - 1", actions)
    size = parameters.shape[-1] or tf.cast(size, tf.int32)
    return tf.one_hot(actions, size, dtype=parameters.dtype)


def _counts(counts: Any, trials: Any, parameters: tf.Tensor) -> tf.Tensor:
    """Returns counts in the type of `parameters`. Raises an error for invalid counts."""
    counts = _integers(counts)
    if not isinstance(trials, numbers.Integral) or trials < 1 or trials is True:
        raise ValueError(f"`trials` must be a positive int. Received: {trials!r}")
    _check_categories(parameters)
    _same_shape(parameters, counts)
    _raise_if(counts < 0, "`counts` must not be negative", counts)
    wrong_sum = tf.reduce_sum(counts, axis=-1) != int(trials)
    _raise_if(wrong_sum, f"`counts` must sum to {trials}, the number of `trials`", counts)
    return tf.cast(counts, parameters.dtype)


def _check_categories(parameters: tf.Tensor) -> None:
    if parameters.shape.rank == 0 or 0 in parameters.shape[-1:]:
        raise ValueError(
            "The last axis of `probs` or `logits` must have one number per category. "
            f"Received: shape {parameters.shape}"
        )


def _same_shape(*arrays: Any) -> None:
    shapes.expect([(array, None) for array in arrays])


def _raise_if(invalid: tf.Tensor, requirement: str, values: Any) -> None:
    """Raises a `ValueError` if a value is invalid, but not in a traced function.

    Args:
        invalid: Bool tensor with the shape of `values`, or of its first axes.
        requirement: String, the message.
        values: Tensor, of which the message shows five.
    """
    if not tf.is_symbolic_tensor(invalid) and np.any(invalid):
        received = np.asarray(values)[np.asarray(invalid)].tolist()
        raise ValueError(
            f"{requirement}. Received: {received[:5]} ({len(received)} in all)"
        )
