"""Checks the settings of head, baseline and learning rates, without TensorFlow."""

import math

import gymnasium as gym

from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings
from tf_reinforce.settings import toml_files
from tf_reinforce.support import validation

VALUE_ARGUMENTS = ("passes", "minibatch_size", "scale")

_VALUE_KEYS = {"kind", "hidden", "learning_rate", *VALUE_ARGUMENTS}

_RATE_KEYS = {"first", "last"}


def check(settings):
    """Raises an error if a preset or the command line sets an invalid value.

    The function does not know the spaces of the environment, and does not check the
    arguments of a head.

    Args:
        settings: Dict of arguments of `Reinforce.for_env`, from a preset or options, with
            the keys `hidden`, `learning_rate` and `baseline`.

    Raises:
        ValueError, TypeError: If a setting is invalid.
    """
    options = config.AgentOptions(
        **{name: settings[name] for name in config.AGENT_OPTIONS if name in settings}
    )
    _check_repeats("passes", options.passes)
    updates = settings.get("steps_per_execution", 1)
    validation.positive_int("steps_per_execution", updates)
    _check_repeats("steps_per_execution", updates)
    jit_compile = settings.get("jit_compile", "auto")
    validation.one_of("jit_compile", jit_compile, config.JIT_COMPILE)
    validation.layer_sizes("hidden", settings["hidden"])
    learning_rates("learning_rate", settings["learning_rate"])
    baseline = settings["baseline"]
    value_options = value_settings(baseline)
    is_value_function = value_options is not None
    if is_value_function:
        _check_repeats("baseline.passes", value_options.get("passes") or 1)
    else:
        validation.one_of("baseline", baseline, config.PRESET_BASELINES)
    options.check_baseline(baseline, is_value_function)
    if settings.get("head") is not None:
        head_settings(settings["head"])


def _check_repeats(name, repeats):
    """Raises `ValueError` if an agent of these settings could not be loaded again."""
    if repeats > validation.MAX_REPEATS:
        raise ValueError(
            f"`{name}` must be at most {validation.MAX_REPEATS:,} in a file, because one "
            f"call would take very long. Received: {name}={repeats!r}"
        )


def learning_rates(name, setting):
    """Returns the first and the last learning rate that a setting describes."""
    if not isinstance(setting, dict):
        setting = validation.within(name, setting, 0, math.inf)
        return setting, setting
    toml_files.expect_keys(f"The linear `{name}`", setting, _RATE_KEYS)
    if set(setting) != _RATE_KEYS:
        raise ValueError(
            f"A linear `{name}` has the form {{first = 0.01, last = 0.001}}. "
            f"Received: {setting!r}"
        )
    return tuple(
        validation.within(f"{name}.{key}", setting[key], 0, math.inf)
        for key in ("first", "last")
    )


def value_settings(setting):
    """Returns the settings of a value network, with defaults, or `None`.

    Args:
        setting: `"value"`, a dict of settings, or any other value of `baseline`, for
            which the function returns `None`.
    """
    if setting == "value":
        setting = default_settings.VALUE
    if not isinstance(setting, dict):
        return None
    toml_files.expect_keys("A baseline with settings", setting, _VALUE_KEYS)
    if setting.get("kind") != "value":
        raise ValueError(
            'A baseline with settings must have kind = "value". '
            f"Received: kind={setting.get('kind')!r}"
        )
    setting = {"hidden": (64, 64), "learning_rate": 1e-2, **setting}
    validation.layer_sizes("baseline.hidden", setting["hidden"])
    learning_rates("baseline.learning_rate", setting["learning_rate"])
    for name in VALUE_ARGUMENTS[:2]:
        validation.positive_int_or_none(f"baseline.{name}", setting.get(name))
    return setting


def head_settings(setting, action_space=None):
    """Returns the name of the class and the arguments of a head for a `Box`.

    Args:
        setting: The name of a head, or a dict of its name `kind` and its arguments.
        action_space: `gymnasium.Space` of the environment, or `None` if the action space
            is unknown.

    Raises:
        ValueError: If the name is unknown, or the action space is not a `Box`.
    """
    options = dict(setting) if isinstance(setting, dict) else {"kind": setting}
    kind = options.pop("kind", None)
    is_other_space = action_space is not None and not isinstance(
        action_space, gym.spaces.Box
    )
    if is_other_space or kind not in config.BOX_HEADS:
        place = "" if action_space is None else f" for {action_space!r}"
        raise ValueError(
            "`head` must be the name of a head for a Box, one of "
            f"{', '.join(config.BOX_HEADS)}. Received: head={setting!r}{place}"
        )
    return kind, options
