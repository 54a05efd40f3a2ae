"""Computes statistics of one update with NumPy, in float64."""

import numpy as np


def signal_and_noise(gradients, group=1):
    """How large the gradient is beside its own error.

        signal = |ḡ|² - noise,    noise = tr S / E,    S = Σₑ (gₑ - ḡ)(gₑ - ḡ)ᵀ / (E - 1)

    |ḡ|² alone would take its own noise for a gradient. For independent gradients both
    are unbiased, so that the signal may come out below zero; average before dividing.
    Under the leave-one-out baseline an episode's gradient contains the returns of the
    others, and under the mean of the batch too: for one-step episodes the signal is then
    too large, and the noise too small, by exactly 1 / (E - 1)² of the true signal.

    Args:
        gradients: List of arrays `[E, …]`, one row for each episode.
        group: Int, how many episodes in a row are not independent of each other.

    Returns:
        Two floats, in the square of a gradient's unit; NaN below two groups.

    Example:

    >>> signal_and_noise([np.array([[3.0], [5.0]])])  # 4² - 1, and 2 / 2
    (15.0, 1.0)

    Reference:
        McCandlish et al. (2018), An empirical model of large-batch training, appendix
        A.1. arXiv:1812.06162
    """
    units = len(gradients[0]) // group
    if units < 2:
        return np.nan, np.nan
    square = noise = 0.0
    for leaf in gradients:
        rows = np.reshape(leaf, (units, group, -1)).mean(axis=1, dtype="float64")
        square += float(np.sum(rows.mean(axis=0) ** 2))
        noise += float(np.sum(rows.var(axis=0, ddof=1))) / units
    return square - noise, noise


def explained(targets, predictions):
    """The share of the variance of targets that predictions explain.

        1 - Var(G - v) / Var(G)

    One: exactly right, but for a constant. Zero: no better than a constant. Below zero:
    worse than that. NaN where targets do not vary.

    Args:
        targets, predictions: `[N]` float.

    Example:

    >>> explained(np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.0, 1.5]))
    0.75
    """
    return share_removed(np.var(targets - predictions), np.var(targets))


def share_removed(left, whole):
    """1 - left / whole; NaN where there is nothing to remove."""
    return float(1.0 - left / whole) if whole > 0 else np.nan


def divergence(before, after):
    """How far a policy has moved, from samples of the one before.

        KL ≈ 1/N Σₙ (ρₙ - 1 - ln ρₙ),    ESS = (Σ ρₙ)² / (N Σ ρₙ²),    ρₙ = π'(aₙ) / π(aₙ)

    The first is never below zero, and unbiased for KL(π ‖ π') where π' does not depend
    on these samples; the second is the share of the samples that would count as much, if
    they all counted alike.

    Args:
        before, after: `[N]` float, log-probabilities of the actions taken.

    Returns:
        Two floats: nats per step, and a share in (0, 1].

    Example:

    >>> kl, ess = divergence(np.log([0.5, 0.5]), np.log([0.75, 0.25]))
    >>> round(kl, 4), round(ess, 4)  # the KL of these two coins, exactly
    (0.1438, 0.8)

    Reference:
        Schulman (2020), Approximating KL divergence. http://joschu.net/blog/kl-approx.html
    """
    logs = np.asarray(after, "float64") - before
    ratios = np.exp(np.minimum(logs, 700.0))  # beyond, float64 has no number
    weights = np.exp(logs - logs.max())
    size = weights.sum() ** 2 / (weights**2).sum() / len(weights)
    return float(np.mean(ratios - 1.0 - logs)), float(size)


def ratio_of_means(above, below):
    """The mean of some numbers over that of others, and its error by the jackknife.

        r = Σₖ aₖ / Σₖ bₖ,    error² = (K - 1) / K Σₖ (r₋ₖ - r̄₋)²,    r₋ₖ without the k-th

    The mean of aₖ / bₖ would not do: where the aₖ have a mean of zero, it need not.

    Args:
        above, below: `[K]` float, K at least 2; those below are above zero.

    Returns:
        Two floats.

    Example:

    >>> ratio_of_means(np.array([1.0, 3.0]), np.array([1.0, 1.0]))  # means' error: s / √K
    (2.0, 1.0)

    Reference:
        Efron & Tibshirani (1993), An introduction to the bootstrap, chapter 11.
    """
    without = (above.sum() - above) / (below.sum() - below)
    error = np.sqrt((len(above) - 1) * np.var(without))
    return float(above.sum() / below.sum()), float(error)


def groups(columns, size):
    """How many groups there are, and whether all of them are complete.

    Args:
        columns: `[N]` int, the column of each step's episode: groups stand side by side.
        size: Int, how many episodes a group had when they began.

    Example:

    >>> groups(np.array([0, 0, 1, 4, 5]), 2), groups(np.array([0, 2]), 2)
    ((2, True), (2, False))
    """
    _, sizes = np.unique(np.unique(columns) // size, return_counts=True)
    return len(sizes), bool(np.all(sizes == size))


def of_batch(seen, gradients, plain, group):
    """What can be told before an update is made: a dict of floats.

    Args:
        seen: `inspection.StepStatistics` of NumPy arrays.
        gradients: List of `[E, …]`, the gradient from each episode.
        plain: The same without the baseline.
        group: Int, how many episodes in a row began alike.
    """
    units, complete = groups(seen.episodes, group)
    signal = noise = plain_noise = np.nan  # of groups of several sizes: no such formula
    if complete:
        signal, noise = signal_and_noise(gradients, group)
        _, plain_noise = signal_and_noise(plain, group)
    if noise <= 1e-20 * plain_noise:  # rounding: all episodes say the same
        signal, noise = signal + noise, 0.0
        signal = signal if signal > 1e-20 * plain_noise else 0.0  # that is, nothing
    baselines, even = seen.credited - seen.advantages, np.mean(seen.max_entropies)
    return {
        "episodes": float(len(gradients[0])),
        "signal": signal,
        "noise": noise,
        "signal_to_noise": signal / noise if noise > 0 else np.nan,
        "independent": float(units),
        "gradient_variance_removed": share_removed(noise, plain_noise),
        "return_variance_removed": explained(seen.credited, baselines),
        "explained_variance": explained(seen.returns, seen.values),
        "return_size": size(seen.returns),
        "advantage_size": size(seen.advantages),
        "entropy_share": float(np.mean(seen.entropies) / even) if even > 0 else np.nan,
        "spread": mean(seen.relative_scales),
        "at_bounds": mean(seen.at_bounds),
    }


def mean(values):
    """The mean of an array; NaN of an empty one."""
    return float(np.mean(values)) if np.size(values) else np.nan


def size(values):
    """The root mean square of `[N]` float."""
    return float(np.sqrt(np.mean(np.square(values, dtype="float64"))))
