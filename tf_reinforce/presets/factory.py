"""Builds a head, a baseline and learning rates from the settings of a preset."""

import math

import gymnasium as gym
import keras

from tf_reinforce import baselines
from tf_reinforce import config
from tf_reinforce import heads
from tf_reinforce import validation
from tf_reinforce.data import seeding
from tf_reinforce.policies import default_policy
from tf_reinforce.presets import toml_files

VALUE_ARGUMENTS = ("passes", "minibatch_size", "scale")


VALUE_KEYS = {"kind", "hidden", "learning_rate", *VALUE_ARGUMENTS}


RATE_KEYS = {"first", "last"}


def build_parts(settings, observation_space, action_space, seed):
    """Builds the head, the baseline and the learning rates that settings describe.

    Args:
        settings: Dict of arguments of `Reinforce.for_env`. The values of `head`,
            `baseline` and `learning_rate` may be written as in a preset file.
        observation_space, action_space: `gymnasium.Space`.
        seed: Int, which determines the initial weights of a value network.

    Returns:
        A dict of the settings, in which `head`, `baseline` and `learning_rate` are values
        that the constructors of `Reinforce` and `Adam` accept; and a list with the tuple
        `(optimizer, first, last)` for each linear learning rate.

    Raises:
        ValueError, TypeError: If a setting is invalid.
    """
    settings = dict(settings)
    first, last = _learning_rates(settings["learning_rate"])
    baseline = settings["baseline"]
    baseline, baseline_rates = _baseline(baseline, observation_space, seed)
    head = settings.get("head")
    if not isinstance(head, heads.Head):
        head = _head(head, action_space)
    schedules = [("optimizer", first, last)]
    if baseline_rates:
        schedules.append(("baseline.optimizer", *baseline_rates))
    settings.update(head=head, baseline=baseline, learning_rate=first)
    return settings, [schedule for schedule in schedules if schedule[1] != schedule[2]]


def _learning_rates(setting):
    """Returns the first and the last learning rate that a setting describes."""
    if isinstance(setting, keras.optimizers.schedules.LearningRateSchedule):
        return setting, setting
    if not isinstance(setting, dict):
        setting = validation.within("learning_rate", setting, 0, math.inf)
        return setting, setting
    toml_files.expect_keys("A linear learning rate", setting, RATE_KEYS)
    if set(setting) != RATE_KEYS:
        raise ValueError(
            "A linear learning rate has the form {first = 0.01, last = 0.001}. "
            f"Received: {setting!r}"
        )
    return [
        validation.within(f"learning_rate.{name}", setting[name], 0, math.inf)
        for name in ("first", "last")
    ]


def _baseline(setting, observation_space, seed):
    """Returns the `baseline` for `Reinforce`, and the learning rates of its network.

    A value network has a first and a last learning rate. For any other baseline, the
    tuple of learning rates is empty.
    """
    if setting == "value":
        setting = {"kind": "value"}
    if not isinstance(setting, dict):
        return None if setting == "none" else setting, ()
    toml_files.expect_keys("A baseline with settings", setting, VALUE_KEYS)
    if setting.get("kind") != "value":
        raise ValueError(
            'A baseline with settings must have kind = "value". '
            f"Received: kind={setting.get('kind')!r}"
        )
    rates = _learning_rates(setting.get("learning_rate", 1e-2))
    # The same architecture as the policy, with other initial weights.
    value_seed = int(seeding.generator(seed, "weights", 1).integers(2**31))
    model = default_policy.default_policy(
        observation_space, setting.get("hidden", (64, 64)), 1, value_seed
    )
    optimizer = keras.optimizers.Adam(rates[0])
    options = {name: setting[name] for name in VALUE_ARGUMENTS if name in setting}
    return baselines.Value(model, optimizer, **options), rates


def _head(setting, action_space):
    """Returns the head that a setting describes, or the default head of the space."""
    default = heads.for_space(action_space)
    if setting is None:
        return default
    options = dict(setting) if isinstance(setting, dict) else {"kind": setting}
    kind = options.pop("kind", None)
    if not isinstance(action_space, gym.spaces.Box) or kind not in config.BOX_HEADS:
        raise ValueError(
            "`head` must be the name of a head for a Box, one of "
            f"{', '.join(config.BOX_HEADS)}. Received: head={setting!r} for "
            f"{action_space!r}"
        )
    head_class = getattr(heads, kind)
    toml_files.expect_keys(f"The head {kind}", options, head_class.setting_names)
    # The default head is a Gaussian, which has all these arguments as attributes.
    arguments = {name: getattr(default, name) for name in head_class.space_arguments}
    return head_class(**{**arguments, **options})
