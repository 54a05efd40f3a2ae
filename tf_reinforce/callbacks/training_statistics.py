"""Statistics of one update, computed with NumPy in float64."""

import numpy as np


def signal_and_noise(gradients, group_size=1):
    """Estimates the squared length of a gradient, and the variance of its estimate.

        signal = |ḡ|² - noise,    noise = tr S / E,    S = Σₑ (gₑ - ḡ)(gₑ - ḡ)ᵀ / (E - 1)

    Here gₑ is the gradient of episode e, ḡ is the mean of these gradients over E
    episodes, and S is their covariance. The expected |ḡ|² exceeds the true squared length
    by the noise, which is therefore subtracted.

    If the gradients of the episodes are independent, both estimates are unbiased, and the
    signal may be negative. To compute a signal-to-noise ratio, average the signal and the
    noise over several batches before you divide them.

    With a leave-one-out or mean baseline, the gradients are not independent, because an
    episode's gradient contains the returns of the other episodes. Both estimates are then
    biased. In a batch of E one-step episodes, for example, the signal is too large and
    the noise too small by exactly 1 / (E - 1)² of the true signal.

    Args:
        gradients: List of arrays `[E, …]`, one for each weight, with a row for each
            episode.
        group_size: Int, the number of consecutive episodes that share a reset seed and so
            depend on each other. Above 1, the mean gradient of each group takes the place
            of its episodes.

    Returns:
        Two floats, signal and noise, in the squared unit of a gradient. Both are NaN with
        fewer than two groups.

    Example:

    >>> signal_and_noise([np.array([[3.0], [5.0]])])  # 4² - 1, and 2 / 2
    (15.0, 1.0)

    Reference:
        McCandlish et al. (2018), An empirical model of large-batch training, appendix
        A.1. arXiv:1812.06162
    """
    num_groups = len(gradients[0]) // group_size
    if num_groups < 2:
        return np.nan, np.nan
    squared_norm = noise = 0.0
    for gradient in gradients:
        rows = np.reshape(gradient, (num_groups, group_size, -1))
        rows = rows.mean(axis=1, dtype="float64")
        squared_norm += float(np.sum(rows.mean(axis=0) ** 2))
        noise += float(np.sum(rows.var(axis=0, ddof=1))) / num_groups
    return squared_norm - noise, noise


def explained_variance(targets, predictions):
    """Returns the share of the variance of targets that predictions explain.

        1 - Var(G - v) / Var(G)

    The share is one if the predictions are exact up to a constant, and zero if they are
    no better than a constant. Predictions that are worse than a constant have a negative
    share. If all targets are equal, the result is NaN.

    Args:
        targets, predictions: `[N]` float arrays, the targets G and the predictions v of N
            steps.

    Example:

    >>> explained_variance(np.array([1.0, 2.0, 3.0]), np.array([0.5, 1.0, 1.5]))
    0.75
    """
    return _removed_share(np.var(targets - predictions), np.var(targets))


def _removed_share(remaining, total):
    return float(1.0 - remaining / total) if total > 0 else np.nan


def policy_change(before, after):
    """Returns the KL divergence and the effective sample size of a change of policy.

        KL ≈ 1/N Σₙ (ρₙ - 1 - ln ρₙ),    ESS = (Σ ρₙ)² / (N Σ ρₙ²),    ρₙ = π'(aₙ) / π(aₙ)

    Here π is the policy before an update, from which the N actions aₙ were sampled, and
    π' is the policy after it. The estimate of the KL divergence from π to π' is never
    negative, and it is unbiased if π' does not depend on these actions. The effective
    sample size is one if all ratios ρₙ are equal.

    Args:
        before, after: `[N]` float, the log-probabilities of the actions under both
            policies.

    Returns:
        The KL divergence in nats per step, and the effective sample size as a share in
        (0, 1].

    Example:

    >>> kl, ess = policy_change(np.log([0.5, 0.5]), np.log([0.75, 0.25]))
    >>> round(kl, 4), round(ess, 4)  # the KL of these two coins, exactly
    (0.1438, 0.8)

    Reference:
        Schulman (2020), Approximating KL divergence.
        http://joschu.net/blog/kl-approx.html
    """
    log_ratios = np.asarray(after, "float64") - before
    ratios = np.exp(np.minimum(log_ratios, 700.0))  # a larger exponent overflows float64
    weights = np.exp(log_ratios - log_ratios.max())
    sample_size = weights.sum() ** 2 / (weights**2).sum() / len(weights)
    return float(np.mean(ratios - 1.0 - log_ratios)), float(sample_size)


def ratio_of_means(numerators, denominators):
    """Returns the ratio of two means, and its standard error by the jackknife.

        r = Σₖ aₖ / Σₖ bₖ,    error² = (K - 1) / K Σₖ (r₋ₖ - r̄₋)²,    r₋ₖ without the k-th

    Here r₋ₖ is the ratio without the k-th of K pairs (aₖ, bₖ), and r̄₋ is the mean of all
    r₋ₖ. It would be wrong to average the quotients aₖ / bₖ instead, because their mean
    may differ from zero even if the mean of all aₖ is zero.

    Args:
        numerators: `[K]` float, the aₖ, with K at least 2.
        denominators: `[K]` float, the bₖ, all positive.

    Returns:
        Two floats, r and its standard error.

    Example:

    >>> ratio_of_means(np.array([1.0, 3.0]), np.array([1.0, 1.0]))  # error: s / √K
    (2.0, 1.0)

    Reference:
        Efron & Tibshirani (1993), An introduction to the bootstrap, chapter 11.
    """
    remaining_numerators = numerators.sum() - numerators
    leave_one_out = remaining_numerators / (denominators.sum() - denominators)
    error = np.sqrt((len(numerators) - 1) * np.var(leave_one_out))
    return float(numerators.sum() / denominators.sum()), float(error)


def batch_statistics(steps, gradients, unbaselined_gradients, group_size):
    """Returns the statistics of a batch before its update, as a dict of floats.

    Args:
        steps: `inspection.StepStatistics` of NumPy arrays.
        gradients: List of `[E, …]` arrays, the gradients of E episodes.
        unbaselined_gradients: The same without the baseline.
        group_size: Int, the number of consecutive episodes that share a reset seed.
    """
    groups = np.unique(steps.episodes) // group_size
    _, sizes = np.unique(groups, return_counts=True)
    signal = noise = unbaselined_noise = np.nan
    if np.all(sizes == group_size):  # the formula requires groups of equal size
        signal, noise = signal_and_noise(gradients, group_size)
        _, unbaselined_noise = signal_and_noise(unbaselined_gradients, group_size)
    baselines = steps.unbaselined_advantages - steps.advantages
    max_entropy = np.mean(steps.max_entropies)
    return {
        "episodes": float(len(gradients[0])),
        "signal": signal,
        "noise": noise,
        "signal_to_noise": signal / noise if noise > 0 else np.nan,
        "independent": float(len(sizes)),
        "gradient_variance_removed": _removed_share(noise, unbaselined_noise),
        "return_variance_removed": explained_variance(
            steps.unbaselined_advantages, baselines
        ),
        "explained_variance": explained_variance(steps.returns, steps.values),
        "return_size": _root_mean_square(steps.returns),
        "advantage_size": _root_mean_square(steps.advantages),
        "entropy_share": float(np.mean(steps.entropies) / max_entropy)
        if max_entropy > 0
        else np.nan,
        "spread": _mean(steps.relative_scales),
        "at_bounds": _mean(steps.at_bounds),
    }


def _mean(values):
    return float(np.mean(values)) if np.size(values) else np.nan


def _root_mean_square(values):
    return float(np.sqrt(np.mean(np.square(values, dtype="float64"))))
