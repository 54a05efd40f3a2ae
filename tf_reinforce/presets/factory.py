"""Builds a head, a baseline and learning rates from the settings of a preset."""

import math

import keras

from tf_reinforce import baselines
from tf_reinforce import heads
from tf_reinforce import validation
from tf_reinforce.data import seeding
from tf_reinforce.policies import default_policy
from tf_reinforce.presets import toml_files

FOR_BOX = ("Gaussian", "ClippedGaussian", "TanhGaussian", "Beta")


BOUNDS = ("size", "low", "high", "shape", "whole")  # what an action space says of them


OF_VALUE = ("passes", "minibatch_size", "scale")


VALUE = {"kind", "hidden", "learning_rate", *OF_VALUE}


RATE = {"first", "last"}


def build_parts(chosen, observation_space, action_space, seed):
    """The keywords of `Reinforce.for_env` with objects in place of names.

    Args:
        chosen: Dict, of which `head`, `baseline` and `learning_rate` may be as in a
            preset.
        observation_space, action_space: `gymnasium.Space`.
        seed: Int; the initial weights of a value network are a function of it.

    Returns:
        The dict with a `Head`, a `Baseline` and a float; and a list with
        `(optimizer, first, last)` for each learning rate that changes.

    Raises:
        ValueError, TypeError: when a setting is not acceptable.
    """
    chosen = dict(chosen)
    first, last = _rate(chosen["learning_rate"])
    baseline = chosen.get("baseline", "leave_one_out")
    baseline, baseline_rates = _baseline(baseline, observation_space, seed)
    head = chosen.get("head")
    if not isinstance(head, heads.Head):
        head = _head(head, action_space)
    goals = [("optimizer", first, last)]
    if baseline_rates:
        goals.append(("baseline.optimizer", *baseline_rates))
    chosen.update(head=head, baseline=baseline, learning_rate=first)
    return chosen, [goal for goal in goals if goal[1] != goal[2]]


def _rate(setting):
    """The first and the last learning rate."""
    if isinstance(setting, keras.optimizers.schedules.LearningRateSchedule):
        return setting, setting
    if not isinstance(setting, dict):
        setting = validation.within("learning_rate", setting, 0, math.inf)
        return setting, setting
    toml_files.expect_keys("A learning rate that changes", setting, RATE)
    if set(setting) != RATE:
        raise ValueError(
            "A learning rate that changes is {first = 0.01, last = 0.001}. "
            f"Received: {setting!r}"
        )
    return [
        validation.within(f"learning_rate.{name}", setting[name], 0, math.inf)
        for name in ("first", "last")
    ]


def _baseline(setting, observation_space, seed):
    """What a baseline is called, or a value network with its two learning rates."""
    if setting == "value":
        setting = {"kind": "value"}
    if not isinstance(setting, dict):
        return None if setting == "none" else setting, ()
    toml_files.expect_keys("A baseline that learns", setting, VALUE)
    if setting.get("kind") != "value":
        raise ValueError(
            'A baseline that learns has kind = "value". '
            f"Received: kind={setting.get('kind')!r}"
        )
    rate = _rate(setting.get("learning_rate", 1e-2))
    # The same network as the policy's, from other draws.
    other = int(seeding.generator(seed, "weights", 1).integers(2**31))
    model = default_policy.default_policy(
        observation_space, setting.get("hidden", (64, 64)), 1, other
    )
    optimizer = keras.optimizers.Adam(rate[0])
    more = {name: setting[name] for name in OF_VALUE if name in setting}
    return baselines.Value(model, optimizer, **more), rate


def _head(setting, action_space):
    """The head of that name for a Box, or an error that lists those there are."""
    usual = heads.for_space(action_space)
    if setting is None:
        return usual
    options = dict(setting) if isinstance(setting, dict) else {"kind": setting}
    kind = options.pop("kind", None)
    if not isinstance(usual, heads.Gaussian) or kind not in FOR_BOX:
        raise ValueError(
            f"`head` names one for a Box, of {', '.join(FOR_BOX)}. "
            f"Received: head={setting!r} for {action_space!r}"
        )
    further = () if kind == "Beta" else ("initial_scale", "state_dependent_scale")
    toml_files.expect_keys(f"The head {kind}", options, further)
    told = BOUNDS
    if kind in ("Gaussian", "ClippedGaussian"):
        told = (*BOUNDS, "initial_scale")  # in units of the action, as the bounds are
    known = {name: getattr(usual, name) for name in told}
    return getattr(heads, kind)(**{**known, **options})
