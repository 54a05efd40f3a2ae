"""Advice from the reports of `Diagnostics`: one sentence for each cause.

Each function reads all reports so far, and returns a sentence, or `None` if its cause
does not apply. The order of `CAUSES` matters, because only the first cause that applies
is printed. A cause therefore comes before those that follow from it.
"""

import functools
import math
from typing import NamedTuple

import numpy as np

from tf_reinforce.callbacks import training_statistics


class Finding(NamedTuple):
    """One cause that keeps the policy from learning, found in a `Diagnostics` report."""

    update: int  # number of the update, from 0 over all calls of `fit`
    cause: str  # a name in the table `CAUSES`
    advice: str  # sentence with the measured value and the change to make


# The limit of each statistic; docs/diagnostics.md gives the reasons.
THRESHOLDS = {
    "kl": 0.5,  # nats per step
    "return_size": 1e3,  # in units of the values of the baseline
    "bonus_share": 1e-5,  # `entropy_coef`, as a share of the size of an advantage
    "at_bounds": 0.9,
    "entropy_share": 0.01,
    "spread": 0.01,  # half widths of the bounds
    "value_baseline": 0.1,  # of the gradient's variance, and half as much of the returns'
    "signal_to_noise": 0.25,
}
GOOD_KL = 0.05  # nats per step, the KL divergence of the advised learning rate
WARMUP_UPDATES = 20  # updates after which a value baseline should reduce the variance
VALUE_BASELINE_REPORTS = 3  # number of reports whose median is compared
MIN_NOISE_REPORTS, MAX_NOISE_REPORTS = 10, 50  # number of averaged reports


def diagnose(reports):
    """Returns the list of `Finding` for the last report, the most important one first."""
    sentences = [(cause, function(reports)) for cause, function in CAUSES.items()]
    update = int(reports[-1]["update"])
    return [Finding(update, cause, advice) for cause, advice in sentences if advice]


def advise_on_rewards(reports):
    """Advice if rewards are too large for a value baseline or entropy bonus."""
    last, limit = reports[-1], THRESHOLDS["return_size"]
    change = "set scale_rewards=True; if set, subtract what all rewards have in common"
    size, unit = last["return_size"], last["value_scale"]
    is_useful = last["explained_variance"] >= THRESHOLDS["value_baseline"] / 2
    if size > limit * unit and not is_useful:
        return (
            f"Returns are about {short(size)}, and values begin at about {short(unit)}: "
            f"give Value(model) a scale={short(size)}, or {change}."
        )
    size, coefficient = last["advantage_size"], last["entropy_coef"]
    if not (size > limit and 0 < coefficient < THRESHOLDS["bonus_share"] * size):
        return None
    return (
        f"Advantages are about {short(size)}, so entropy_coef={coefficient:g} has no "
        f"effect: set entropy_coef={short(0.01 * size)}, or {change}."
    )


def advise_on_kl(reports, is_stale):
    """Advice if an update changes the policy too much.

    Args:
        reports: List of all reports.
        is_stale: Bool, whether the cause is the number of gradient steps on one batch. It
            is the learning rate if a single one of the steps would change too much.
    """
    last, limit = reports[-1], THRESHOLDS["kl"]
    kl, steps, rate = last["kl"], last["gradient_steps"], last["learning_rate"]
    # The KL divergence grows with the square of the number of steps, and of the rate.
    is_too_fast = kl / steps**2 > limit
    if not kl > limit or is_too_fast == is_stale:
        return None
    factor = math.sqrt(GOOD_KL / kl)
    change = f"use a learning rate of at most {short(rate * factor)} (now {rate:g})"
    if is_stale:
        change = (
            f"make at most {max(1, int(steps * factor))} steps on one batch (now "
            f"{steps:.0f}) by a smaller `max_kl`, fewer passes, or larger minibatches"
        )
    return (
        f"One update changed the policy by {short(kl)} nats per step, and {GOOD_KL} is "
        f"enough: {change}."
    )


def advise_on_actions_at_bounds(reports):
    """Advice if nearly all actions are at a bound of the action space."""
    share = reports[-1]["at_bounds"]
    if not share > THRESHOLDS["at_bounds"]:
        return None
    return (
        f"{_percent(share)} of the actions are at a bound, where their size makes no "
        "difference: use a smaller initial_scale of the head, smaller weights in the "
        "last layer, a smaller learning rate, or entropy_coef."
    )


def advise_on_collapsed_policy(reports):
    """Advice if the policy is nearly deterministic."""
    last = reports[-1]
    if last["entropy_share"] < THRESHOLDS["entropy_share"]:
        fact = f"The entropy is {_percent(last['entropy_share'])} of its maximum"
        change = "smaller weights in the last layer, a smaller learning rate"
    elif last["spread"] < THRESHOLDS["spread"]:
        fact = f"Actions deviate by {short(last['spread'])} half widths of their bounds"
        change = "a larger initial_scale"
    else:
        return None
    coefficient = short(max(0.01 * last["advantage_size"], 1e-3))
    return (
        f"{fact}, so the policy no longer explores: if the return should still increase, "
        f"restart with {change}, or entropy_coef={coefficient} "
        f"(now {last['entropy_coef']:g})."
    )


def advise_on_value_baseline(reports):
    """Advice if the value baseline does not reduce the gradient's variance."""
    late = [report for report in reports if report["update"] >= WARMUP_UPDATES]
    late, limit = late[-VALUE_BASELINE_REPORTS:], THRESHOLDS["value_baseline"]
    if len(late) < VALUE_BASELINE_REPORTS:
        return None
    names = "gradient_variance_removed", "explained_variance"
    removed, explained = (np.median([report[x] for report in late]) for x in names)
    if not (removed < limit and explained < limit / 2):
        return None
    return (
        f"The value baseline explains {_percent(explained)} of the returns' variance and "
        f"removes {_percent(removed)} of the gradient's variance: train the value model "
        "more, as Value(model, Adam(1e-2), passes=10, "
        f"scale={short(late[-1]['return_size'])}), give values that share the policy's "
        'layers a larger loss_weight, or use baseline="leave_one_out", gae_lambda=1.'
    )


def advise_on_noise(reports):
    """Advice if updates have too few episodes to estimate the gradient."""
    measured = [report for report in reports[-MAX_NOISE_REPORTS:] if report["noise"] > 0]
    if len(measured) < MIN_NOISE_REPORTS:
        return None
    last = measured[-1]
    # The noise of one episode, or of one group, does not depend on the size of the batch.
    pairs = [(r["signal"], r["noise"] * r["independent"]) for r in measured]
    ratio, error = training_statistics.ratio_of_means(*np.transpose(pairs))
    # The true signal, a squared length, is never negative.
    ratio = (max(ratio, 0.0) + 2 * error) * last["independent"]
    if not 0 < ratio < THRESHOLDS["signal_to_noise"]:
        return None
    baseline = ", or a baseline," if last["gradient_variance_removed"] == 0 else ""
    return (
        f"In the last {len(measured)} reports gradient noise is at least "
        f"{short(1 / ratio)} times the signal: use at least "
        f"{short(last['episodes'] / ratio)} episodes per update (now "
        f"{last['episodes']:.0f}){baseline} if the return should still increase."
    )


CAUSES = {
    "rewards": advise_on_rewards,
    "collapsed": advise_on_collapsed_policy,
    "learning_rate": functools.partial(advise_on_kl, is_stale=False),
    "stale": functools.partial(advise_on_kl, is_stale=True),
    "saturated": advise_on_actions_at_bounds,
    "value_baseline": advise_on_value_baseline,
    "noise": advise_on_noise,
}


def short(number):
    """Returns a number as text with two digits: 1234 as "1200"."""
    return f"{float(f'{number:.2g}'):g}"


def _percent(share):
    return f"{share:.1%}" if 0.0005 <= abs(share) < 0.1 else f"{share:.0%}"
