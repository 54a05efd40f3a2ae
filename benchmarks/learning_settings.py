"""Reads the settings of the training runs of `learning.py`."""

import json
import pathlib

import gymnasium
from learning_report import DEFAULT

from tf_reinforce import presets
from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings


def read(preset):
    """Returns the settings of a preset that a training run and its evaluations use.

    Args:
        preset: String, the name of a preset, the path of a TOML file, or the id of an
            environment and then `-default`. For example, `Ant-v5-default` stands for the
            settings of `for_env("Ant-v5", baseline="value")` without a preset.
    """
    if str(preset).endswith(DEFAULT):
        settings = settings_without_preset(str(preset).removesuffix(DEFAULT))
    else:
        settings = presets.read(preset)
    evaluation = {
        name: value
        for name, value in settings["evaluation"].items()
        if name == "max_episode_steps"
    }
    tables = {name: settings[name] for name in ("env", "env_kwargs", "agent", "fit")}
    return {**tables, "evaluation": evaluation}


def settings_without_preset(env):
    """Returns the settings of `tf-reinforce train ENV --baseline value`.

    Args:
        env: String, the id of an environment of Gymnasium.
    """
    made = gymnasium.make(env)
    made.close()
    limit = made.spec.max_episode_steps or config.DEFAULT_MAX_EPISODE_STEPS
    agent, fit = default_settings.for_task(made.action_space, limit)
    settings = {"env": env, "env_kwargs": {}, "agent": agent, "fit": fit}
    settings["evaluation"] = {}
    return json.loads(json.dumps(settings))  # lists instead of tuples, as in a preset


def is_default(settings):
    """Returns whether settings of a run are those of its environment without a preset.

    The number of environment steps does not count, because it is the end of a run. The
    result is False for an environment that Gymnasium cannot make without arguments.
    """
    fit = {name: value for name, value in settings["fit"].items() if name != "steps"}
    try:
        default = read(f"{settings['env']}{DEFAULT}")
    except gymnasium.error.Error:
        return False
    return {**settings, "fit": fit} == default


def preset_name(preset):
    """Returns the name of a preset, which for the path `/my/own.toml` is `own`."""
    return pathlib.Path(preset).name.removesuffix(".toml")


def steps_of(preset, steps):
    """Returns `steps`, or the environment steps of the preset if `steps` is `None`."""
    steps = steps or read(preset)["fit"].get("steps")
    if steps is None:
        raise SystemExit(
            f"The settings of {preset} contain no number of steps. Pass --steps."
        )
    return steps
