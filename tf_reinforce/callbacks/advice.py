"""Turns training statistics into advice: one sentence for each cause.

Each cause is a function of all reports so far; it returns a sentence or `None`. A cause
stands before those that it explains. Rewards of an unusual size make a critic useless, a
useless critic adds noise, and in units of a standard deviation near zero every step is
too large. The first sentence found is reported.
"""

import math
from typing import NamedTuple

import numpy as np

from tf_reinforce.callbacks import training_statistics


class Finding(NamedTuple):
    """What one report found."""

    update: int  # from 0 over the agent's life
    cause: str  # a name of `CAUSES`
    advice: str  # one sentence: what was measured, and what to change


class Threshold(NamedTuple):
    """Where a figure begins to mean trouble, and why there."""

    value: float
    reason: str


THRESHOLDS = {
    "kl": Threshold(
        0.5,
        "nats per step in one update. With default settings updates stayed below 0.14 "
        "in seven environments, most of them below 0.02; TRPO and PPO stop at 0.01 to "
        "0.05",
    ),
    "return_size": Threshold(
        1e3,
        "times the unit of the value. An optimizer that moves a weight by its learning "
        "rate needs thousands of steps to get so far",
    ),
    "bonus_share": Threshold(
        1e-5,
        "`entropy_coef` over the size of an advantage. Log-probability and entropy have "
        "slopes of one order, so that the bonus is the hundred thousandth part",
    ),
    "at_bounds": Threshold(
        0.9,
        "of the numbers sent. Nine of ten then teach nothing about the size of an "
        "action; two thirds may be right where full force is",
    ),
    "entropy_share": Threshold(
        0.01,
        "of the entropy of a uniform choice. Between two actions the other one then "
        "comes about once in 1,000 steps",
    ),
    "spread": Threshold(
        0.01,
        "half widths of the bounds, the deviation of an action",
    ),
    "critic": Threshold(
        0.1,
        "of the gradient's variance removed, and of the returns' explained less than "
        "half as much, from update 20 on: until then a critic may learn",
    ),
    "signal_to_noise": Threshold(
        0.25,
        "surely below, by two standard errors over 10 to 50 reports. An update then "
        "gets at most 1 / (1 + 4), a fifth, as far as without noise",
    ),
    "stepping_share": Threshold(
        0.95,
        "of the time. All else together could save a twentieth",
    ),
}
GOOD_KL = 0.05  # nats per step, what advice aims at
LEARNED = 20  # updates after which a critic should be of use
CRITICS = 3  # reports after that by which a critic is judged
REPORTS, LATEST = 10, 50  # how many reports the noise is judged by, at least and at most


def diagnose(reports):
    """The findings of the last report, the most important one first.

    Args:
        reports: List of dicts of floats, see `diagnostics.Diagnostics`.

    Returns:
        List of `Finding`.
    """
    told = [(cause, judge(reports)) for cause, judge in CAUSES.items()]
    update = int(reports[-1]["update"])
    return [Finding(update, cause, advice) for cause, advice in told if advice]


def unjudged(reports):
    """Of which causes nothing could be told in a whole training, and why.

    Args:
        reports: List of dicts of floats, as for `find`.

    Returns:
        List of strings, empty when all could be judged.
    """
    found = []
    if len(_noisy(reports)) < REPORTS:
        found.append(
            f"noise (it takes {REPORTS} reports that have it, two episodes per update, "
            "and complete groups)"
        )
    valued = any(math.isfinite(report["value_scale"]) for report in reports)
    if valued and len(_late(reports)) < CRITICS:
        found.append(f"critic (it takes {CRITICS} reports from update {LEARNED} on)")
    return found


def rewards(reports):
    """Rewards so large that what is measured in units of one is lost."""
    now = reports[-1]
    limit = THRESHOLDS["return_size"].value
    size = now["return_size"]
    useless = not now["explained_variance"] >= THRESHOLDS["critic"].value / 2
    # Rewards in units of a deviation are still large where they hardly vary.
    scaled, alike = now["rewards_scaled"], "subtract what all rewards have in common"
    if size > limit * now["value_scale"] and useless:
        own = [] if now["value_shared"] else [f"give Value(model) a scale={_short(size)}"]
        change = ", or ".join([*own, alike if scaled else "set scale_rewards=True"])
        return (
            f"Returns are about {_short(size)}, and the value baseline begins at numbers "
            f"of about {_short(now['value_scale'])}: {change}."
        )
    size, coefficient = now["advantage_size"], now["entropy_coef"]
    drowned = 0 < coefficient < THRESHOLDS["bonus_share"].value * size
    if drowned and size > limit:
        change = f"{alike}, or set entropy_coef={_short(0.01 * size)}"
        if not scaled:
            change = f"set scale_rewards=True, or divide the rewards by {_short(size)}"
        return (
            f"Advantages are about {_short(size)}, and entropy_coef={coefficient:g} has "
            f"no effect beside them: {change}."
        )
    return None


def learning_rate(reports):
    """One gradient step that makes another policy."""
    now = reports[-1]
    # KL grows with the square of the distance: was a single step too large already?
    each = now["kl"] / now["gradient_steps"] ** 2
    if not each > THRESHOLDS["kl"].value:
        return None
    rate = now["learning_rate"]
    return (
        f"One update changed the policy by {_short(now['kl'])} nats per step, and "
        f"{GOOD_KL} are plenty: use a learning rate of at most "
        f"{_short(rate * math.sqrt(GOOD_KL / now['kl']))} (now {rate:g})."
    )


def stale(reports):
    """Many gradient steps on episodes of a policy that is no more."""
    now = reports[-1]
    steps = now["gradient_steps"]
    if steps <= 1 or not now["kl"] > THRESHOLDS["kl"].value or learning_rate(reports):
        return None
    return (
        f"{steps:.0f} gradient steps on one batch changed the policy by "
        f"{_short(now['kl'])} nats per step, and its episodes are no longer this "
        "policy's: make at most "
        f"{max(1, int(steps * math.sqrt(GOOD_KL / now['kl'])))} steps (fewer passes, or "
        "larger minibatches)."
    )


def saturated(reports):
    """Actions that reach the environment as a bound, whatever they are."""
    now = reports[-1]
    if not now["at_bounds"] > THRESHOLDS["at_bounds"].value:
        return None
    change = (
        f"the deviation is {_short(now['spread'])} half widths of the bounds, give the "
        "head a smaller initial_scale."
        if now["spread"] > 2
        else "begin with a smaller last layer of the policy, a smaller learning rate, or "
        "an entropy_coef."
    )
    return (
        f"{_percent(now['at_bounds'])} of the actions are at a bound, where their size "
        f"makes no difference: {change}"
    )


def collapsed(reports):
    """A policy that always does the same."""
    now = reports[-1]
    bonus = f"entropy_coef={_short(max(0.01 * now['advantage_size'], 1e-3))}"
    bonus += f" (now {now['entropy_coef']:g})"
    if now["entropy_share"] < THRESHOLDS["entropy_share"].value:
        return (
            f"The entropy is {_percent(now['entropy_share'])} of its maximum, so that "
            "nothing new is tried: if the return is not good enough, begin anew with a "
            f"smaller last layer of the policy, a smaller learning rate, or {bonus}."
        )
    if now["spread"] < THRESHOLDS["spread"].value:
        return (
            f"The deviation of the actions is {_short(now['spread'])} half widths of "
            "their bounds, so that nothing new is tried: if the return is not good "
            f"enough, begin anew with a larger initial_scale, or {bonus}."
        )
    return None


def critic(reports):
    """A value baseline that takes no noise away."""
    limit = THRESHOLDS["critic"].value
    late = _late(reports)[-CRITICS:]
    removed = _median(late, "gradient_variance_removed")
    explained = _median(late, "explained_variance")
    if len(late) < CRITICS or not (removed < limit and explained < limit / 2):
        return None
    own = f"Value(model, Adam(1e-2), passes=10, scale={_short(late[-1]['return_size'])})"
    none = 'baseline="leave_one_out", gae_lambda=1'
    return (
        f"The value baseline explains {_percent(explained)} of the returns' variance and "
        f"removes {_percent(removed)} of the gradient's: "
    ) + (
        "give Value() a larger loss_weight, or make a policy that puts out no values, "
        f"and take {own}, or {none}."
        if late[-1]["value_shared"]
        else f"train it more, as {own}, or take {none}."
    )


def noise(reports):
    """Too few episodes to tell a direction."""
    known = _noisy(reports[-LATEST:])
    if len(known) < REPORTS:
        return None
    now = known[-1]
    # Batches may differ in size: the noise of one episode, or group, is common to them.
    pairs = [(r["signal"], r["noise"] * r["independent"]) for r in known]
    ratio, error = training_statistics.ratio_of_means(*np.transpose(pairs))
    # A signal is never below zero.
    ratio = (max(ratio, 0.0) + 2 * error) * now["independent"]
    if not 0 < ratio < THRESHOLDS["signal_to_noise"].value:
        return None
    episodes = now["episodes"]
    baseline = now["gradient_variance_removed"] == 0
    return (
        f"In the last {len(known)} reports gradient noise is at least "
        f"{_short(1 / ratio)} times the signal: use at least "
        f"{_short(episodes / ratio)} episodes per update (now {episodes:.0f})"
        f"{', or a baseline,' if baseline else ''} if the return still has to rise."
    )


def environment(reports):
    """Nearly all of the time goes by in the environment."""
    now = reports[-1]
    if not now["stepping_share"] > THRESHOLDS["stepping_share"].value:
        return None
    change = (
        "only more processes behind the VectorEnv or a faster simulator would."
        if now["vector_env"]
        else "num_envs does not change that, as environments step one after the other; "
        "more `workers`, up to one for each core, or a faster simulator would."
    )
    return f"Stepping takes {_percent(now['stepping_share'])} of the time: {change}"


CAUSES = {
    judge.__name__: judge
    for judge in (
        rewards,
        collapsed,
        learning_rate,
        stale,
        saturated,
        critic,
        noise,
        environment,
    )
}


def _late(reports):
    """The reports from which a critic should be of use."""
    return [report for report in reports if report["update"] >= LEARNED]


def _noisy(reports):
    """The reports that know how large the noise is."""
    return [report for report in reports if report["noise"] > 0]


def _median(reports, name):
    return float(np.median([r[name] for r in reports])) if reports else math.nan


def _short(number):
    """Two digits, without an exponent where it can be read without."""
    if number >= 1e5:
        return f"{number:.0e}".replace("e+0", "e").replace("e+", "e")
    return f"{float(f'{number:.2g}'):.6g}"


def _percent(share):
    return f"{share:.1%}" if 0.0005 <= abs(share) < 0.1 else f"{share:.0%}"
