"""Turns training statistics into advice: one sentence for each cause.

For each cause of failed learning, one function reads all reports of `Diagnostics` so far,
and returns a sentence or `None`. The dict `CAUSES` lists each cause before the causes
that follow from it. For example, rewards of an unusual size make a value baseline
useless, and a useless value baseline adds noise to the gradient. In `CAUSES`, `collapsed`
comes before `learning_rate`: if the standard deviation of the actions is near zero, each
update changes the policy too much. If several causes apply, `Diagnostics` prints only the
advice for the first one in `CAUSES`.
"""

import itertools
import math
from typing import NamedTuple

import numpy as np

from tf_reinforce.callbacks import training_statistics


class Finding(NamedTuple):
    """One cause that keeps the policy from learning, found in a `Diagnostics` report."""

    update: int  # number of the update, from 0 over all calls of `fit`
    cause: str  # a name in the table `CAUSES`
    advice: str  # sentence with the measured value and the change to make


class Threshold(NamedTuple):
    """The limit beyond which a metric indicates a cause, and the reason for the limit."""

    value: float
    reason: str


THRESHOLDS = {
    "kl": Threshold(
        0.5,
        "nats per step, the KL divergence of one update. With default settings, "
        "updates in seven environments stayed below 0.14 nats per step, and most "
        "updates below 0.02. TRPO and PPO stop at 0.01 to 0.05 nats per step",
    ),
    "return_size": Threshold(
        1e3,
        "times the size of the initial values of the baseline. An optimizer that "
        "changes a weight by its learning rate in each step needs thousands of steps "
        "to reach values in the thousands",
    ),
    "bonus_share": Threshold(
        1e-5,
        "is the smallest useful ratio of `entropy_coef` to the size of an advantage. "
        "Log-probability and entropy have slopes of the same order. At this ratio, the "
        "entropy bonus is therefore a hundred thousandth of the gradient",
    ),
    "at_bounds": Threshold(
        0.9,
        "of the numbers that the environment receives are at a bound. Actions at a "
        "bound carry no information about the best size of an action. If full force is "
        "optimal, two thirds of the actions may be at a bound",
    ),
    "bounded_logits": Threshold(
        0.95,
        "of [0, 1] is covered by logits and no logit is outside, in three reports over "
        "20 updates. Logits from a linear layer leave [0, 1] during training",
    ),
    "entropy_share": Threshold(
        0.01,
        "of the entropy of a uniform choice. At 0.01 of this entropy, the less "
        "probable of two actions is sampled about once in 1,000 steps",
    ),
    "spread": Threshold(
        0.01,
        "half widths of the bounds is the standard deviation of an action",
    ),
    "value_baseline": Threshold(
        0.1,
        "of the gradient's variance is removed by the baseline, and less than half as "
        "much of the variance of the returns is explained, from update 20 on. Before "
        "update 20, a value baseline may still be learning",
    ),
    "signal_to_noise": Threshold(
        0.25,
        "is the limit of the signal-to-noise ratio, which is below by at least two "
        "standard errors over 10 to 50 reports. At a signal-to-noise ratio of 0.25, an "
        "update achieves at most 1 / (1 + 4), a fifth, of the improvement without noise",
    ),
    "stepping_share": Threshold(
        0.95,
        "of the time is spent in environments. A speedup of all other work could save "
        "at most a twentieth of the time",
    ),
}
GOOD_KL = 0.05  # nats per step, the KL divergence of the advised learning rate
WARMUP_UPDATES = 20  # updates after which a value baseline should reduce the variance
VALUE_BASELINE_REPORTS = 3  # number of reports whose median is compared
BOUNDED_REPORTS, BOUNDED_UPDATES = 3, 20  # least number for advice on bounded logits
MIN_NOISE_REPORTS, MAX_NOISE_REPORTS = 10, 50  # number of averaged reports


def diagnose(reports):
    """Returns the findings of the last report, the most important one first.

    Args:
        reports: List of dicts of floats, the reports of `diagnostics.Diagnostics`.

    Returns:
        List of `Finding`, sorted by importance.
    """
    sentences = [(cause, function(reports)) for cause, function in CAUSES.items()]
    update = int(reports[-1]["update"])
    return [Finding(update, cause, advice) for cause, advice in sentences if advice]


def undetermined_causes(reports):
    """Returns the causes that cannot be judged yet, and the reports each requires.

    Args:
        reports: List of dicts of floats, the reports of `diagnostics.Diagnostics`.

    Returns:
        List of strings, which is empty if there are enough reports for every cause.
    """
    causes = []
    if len(_with_noise(reports)) < MIN_NOISE_REPORTS:
        causes.append(
            f"noise (requires {MIN_NOISE_REPORTS} reports with an estimate of the "
            "gradient noise, at least two episodes per update, and complete groups of "
            "episodes)"
        )
    has_value = any(math.isfinite(report["value_scale"]) for report in reports)
    if has_value and len(_after_warmup(reports)) < VALUE_BASELINE_REPORTS:
        causes.append(
            f"value_baseline (requires {VALUE_BASELINE_REPORTS} reports from update "
            f"{WARMUP_UPDATES} on)"
        )
    return causes


def advise_on_rewards(reports):
    """Returns advice if rewards are too large for a value baseline or entropy bonus."""
    last = reports[-1]
    limit = THRESHOLDS["return_size"].value
    size = last["return_size"]
    is_useless = not last["explained_variance"] >= THRESHOLDS["value_baseline"].value / 2
    # Rewards divided by their standard deviation are still large if the rewards hardly
    # vary.
    is_scaled = last["rewards_scaled"]
    subtract = "subtract what all rewards have in common"
    if size > limit * last["value_scale"] and is_useless:
        changes = (
            [] if last["value_shared"] else [f"give Value(model) a scale={short(size)}"]
        )
        changes.append(subtract if is_scaled else "set scale_rewards=True")
        return (
            f"Returns are about {short(size)}, and the initial values of the baseline "
            f"are about {short(last['value_scale'])}: {', or '.join(changes)}."
        )
    size, coefficient = last["advantage_size"], last["entropy_coef"]
    is_ineffective = 0 < coefficient < THRESHOLDS["bonus_share"].value * size
    if is_ineffective and size > limit:
        change = f"{subtract}, or set entropy_coef={short(0.01 * size)}"
        if not is_scaled:
            change = f"set scale_rewards=True, or divide the rewards by {short(size)}"
        return (
            f"Advantages are about {short(size)}, so entropy_coef={coefficient:g} has "
            f"no effect: {change}."
        )
    return None


def advise_on_learning_rate(reports):
    """Returns advice if a single gradient step changes the policy too much."""
    last = reports[-1]
    # KL grows with the square of the distance, so that the KL of a single step is the KL
    # of the update divided by the squared number of steps.
    kl_per_step = last["kl"] / last["gradient_steps"] ** 2
    if not kl_per_step > THRESHOLDS["kl"].value:
        return None
    rate = last["learning_rate"]
    return (
        f"One update changed the policy by {short(last['kl'])} nats per step, and "
        f"{GOOD_KL} is enough: use a learning rate of at most "
        f"{short(rate * math.sqrt(GOOD_KL / last['kl']))} (now {rate:g})."
    )


def advise_on_stale_batches(reports):
    """Returns advice if many gradient steps on one batch change the policy too much."""
    last = reports[-1]
    steps = last["gradient_steps"]
    if (
        steps <= 1
        or not last["kl"] > THRESHOLDS["kl"].value
        or advise_on_learning_rate(reports)
    ):
        return None
    return (
        f"{steps:.0f} gradient steps on one batch changed the policy by "
        f"{short(last['kl'])} nats per step, so the episodes of the batch no longer "
        "represent the policy: make at most "
        f"{max(1, int(steps * math.sqrt(GOOD_KL / last['kl'])))} steps (a smaller "
        "`max_kl`, fewer passes, or larger minibatches)."
    )


def advise_on_bounded_logits(reports):
    """Returns advice if softmax or sigmoid at the end of the policy bounds its logits."""
    last, limit = reports[-1], THRESHOLDS["bounded_logits"].value
    late = list(
        itertools.takewhile(lambda r: r["bounded_logits"] > limit, reversed(reports))
    )
    if (
        len(late) < BOUNDED_REPORTS
        or last["update"] - late[-1]["update"] < BOUNDED_UPDATES
    ):
        return None
    return (
        "All logits are between 0 and 1, so the policy cannot become sure of an "
        f"action (entropy: {_percent(last['entropy_share'])} of its maximum): if the "
        "policy ends in softmax or sigmoid, end the policy with a linear layer, "
        "activation=None."
    )


def advise_on_actions_at_bounds(reports):
    """Returns advice if nearly all actions are at a bound of the action space."""
    last = reports[-1]
    if not last["at_bounds"] > THRESHOLDS["at_bounds"].value:
        return None
    change = (
        f"the standard deviation is {short(last['spread'])} half widths of the bounds; "
        "give the head a smaller initial_scale."
        if last["spread"] > 2
        else "start with smaller weights in the last layer of the policy, a smaller "
        "learning rate, or an entropy_coef."
    )
    return (
        f"{_percent(last['at_bounds'])} of the actions are at a bound, where the size "
        f"of an action makes no difference: {change}"
    )


def advise_on_collapsed_policy(reports):
    """Returns advice if the policy is nearly deterministic."""
    last = reports[-1]
    bonus = f"entropy_coef={short(max(0.01 * last['advantage_size'], 1e-3))}"
    bonus += f" (now {last['entropy_coef']:g})"
    if last["entropy_share"] < THRESHOLDS["entropy_share"].value:
        return (
            f"The entropy is {_percent(last['entropy_share'])} of its maximum, so the "
            "policy no longer explores: if the return is not good enough, restart with "
            "smaller weights in the last layer of the policy, a smaller learning rate, "
            f"or {bonus}."
        )
    if last["spread"] < THRESHOLDS["spread"].value:
        return (
            f"The standard deviation of the actions is {short(last['spread'])} half "
            "widths of their bounds, so the policy no longer explores: if the return is "
            f"not good enough, restart with a larger initial_scale, or {bonus}."
        )
    return None


def advise_on_value_baseline(reports):
    """Returns advice if the value baseline does not reduce the gradient's variance."""
    limit = THRESHOLDS["value_baseline"].value
    late = _after_warmup(reports)[-VALUE_BASELINE_REPORTS:]
    removed = _median(late, "gradient_variance_removed")
    explained = _median(late, "explained_variance")
    if len(late) < VALUE_BASELINE_REPORTS or not (
        removed < limit and explained < limit / 2
    ):
        return None
    scale = short(late[-1]["return_size"])
    value = f"Value(model, Adam(1e-2), passes=10, scale={scale})"
    leave_one_out = 'baseline="leave_one_out", gae_lambda=1'
    return (
        f"The value baseline explains {_percent(explained)} of the returns' variance and "
        f"removes {_percent(removed)} of the gradient's variance: "
    ) + (
        "give Value() a larger loss_weight, or make a policy that outputs no values, and "
        f"use {value}, or {leave_one_out}."
        if late[-1]["value_shared"]
        else f"train the value model more, as {value}, or use {leave_one_out}."
    )


def advise_on_noise(reports):
    """Returns advice if updates have too few episodes to estimate the gradient."""
    measured = _with_noise(reports[-MAX_NOISE_REPORTS:])
    if len(measured) < MIN_NOISE_REPORTS:
        return None
    last = measured[-1]
    # The noise of one episode, or of one group, does not depend on the size of the batch.
    pairs = [(r["signal"], r["noise"] * r["independent"]) for r in measured]
    ratio, error = training_statistics.ratio_of_means(*np.transpose(pairs))
    # The true signal, a squared length, is never negative.
    ratio = (max(ratio, 0.0) + 2 * error) * last["independent"]
    if not 0 < ratio < THRESHOLDS["signal_to_noise"].value:
        return None
    episodes = last["episodes"]
    has_no_baseline = last["gradient_variance_removed"] == 0
    return (
        f"In the last {len(measured)} reports gradient noise is at least "
        f"{short(1 / ratio)} times the signal: use at least "
        f"{short(episodes / ratio)} episodes per update (now {episodes:.0f})"
        f"{', or a baseline,' if has_no_baseline else ''} if the return should still "
        "increase."
    )


def advise_on_environment(reports):
    """Returns advice if stepping environments takes nearly all of the training time."""
    last = reports[-1]
    if not last["stepping_share"] > THRESHOLDS["stepping_share"].value:
        return None
    change = (
        "use more processes behind the VectorEnv, or a faster simulator."
        if last["vector_env"]
        else "num_envs does not change the time of stepping, because environments step "
        "one after the other; use more `workers`, up to one for each core, or a "
        "faster simulator."
    )
    return (
        f"The environment takes {_percent(last['stepping_share'])} of the time: {change}"
    )


CAUSES = {
    "rewards": advise_on_rewards,
    "bounded": advise_on_bounded_logits,
    "collapsed": advise_on_collapsed_policy,
    "learning_rate": advise_on_learning_rate,
    "stale": advise_on_stale_batches,
    "saturated": advise_on_actions_at_bounds,
    "value_baseline": advise_on_value_baseline,
    "noise": advise_on_noise,
    "environment": advise_on_environment,
}


def _after_warmup(reports):
    """Returns the reports of update `WARMUP_UPDATES` and of later updates."""
    return [report for report in reports if report["update"] >= WARMUP_UPDATES]


def _with_noise(reports):
    """Returns the reports whose estimate of the gradient noise is above zero."""
    return [report for report in reports if report["noise"] > 0]


def _median(reports, name):
    return float(np.median([r[name] for r in reports])) if reports else math.nan


def short(number):
    """Returns a number as text: 1234 as "1200", and numbers from 1e5 on as "2e5"."""
    if number >= 1e5:
        return f"{number:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{float(f'{number:.2g}'):.6g}"


def _percent(share):
    return f"{share:.1%}" if 0.0005 <= abs(share) < 0.1 else f"{share:.0%}"
