"""Chooses settings for an agent with a value baseline and no preset."""

import logging

import gymnasium as gym
import numpy as np

from tf_reinforce import config
from tf_reinforce.presets import toml_files

# The settings of a value network that is given by its name, "value".
VALUE = {"kind": "value", "learning_rate": 0.001, "passes": 10, "minibatch_size": 64}

# Each update makes many gradient steps with limited ratios, as in PPO (Schulman et al.
# 2017).
AGENT = {
    "gae_lambda": 0.95,
    "baseline": VALUE,
    "normalize_observations": True,
    "scale_rewards": True,
    "scale_advantages": "batch",
    "mean_over": "steps",
    "minibatch_size": 64,
    "passes": 10,
    "ratio_clip": (0.2, 0.2),
}
FIT = {"steps_per_epoch": 2048, "num_envs": 4}

_MIN_GAMMA, _MAX_GAMMA = 0.95, 0.995


def gamma(max_episode_steps):
    """Returns a discount whose horizon 1 / (1 - γ) is a fifth of the time limit.

    The discount is at least 0.95 and at most 0.995, a horizon of 20 to 200 steps.

    Example:

    >>> [gamma(limit) for limit in (50, 200, 500, 1000, 10_000)]
    [0.95, 0.975, 0.99, 0.995, 0.995]
    """
    return float(np.clip(1 - 5 / max_episode_steps, _MIN_GAMMA, _MAX_GAMMA))


def for_environments(envs):
    """Returns arguments of `Reinforce.for_env`, and arguments of `fit`.

    Args:
        envs: `collect.environments.Environments`, whose action space, time limit and kind
            determine the settings.
    """
    space = envs.action_space
    is_box = isinstance(space, gym.spaces.Box)
    rate = 3e-4 if is_box else 1e-3
    agent = {
        **AGENT,
        "gamma": gamma(envs.max_episode_steps),
        "learning_rate": {"first": rate, "last": 0},
    }
    if is_box and space.is_bounded():
        agent["head"] = "ClippedGaussian"
    # A tensor environment runs a fixed number of episodes at once.
    return agent, {} if envs.in_graph else FIT


def merge(preset, arguments, envs):
    """Returns all arguments for `factory.build_parts`, and the defaults of `fit`.

    The arguments of the user override the settings of the preset, and the preset
    overrides the defaults. Without a preset, `baseline="value"` stands for the settings
    of `for_environments`.

    Args:
        preset: Dict from `toml_files.read_for_env`.
        arguments: Dict of the arguments of `Reinforce.for_env`. The values of `hidden`
            and `learning_rate` may be `None`.
        envs: `collect.environments.Environments`.
    """
    optional = "hidden", "learning_rate"
    arguments = {
        name: value
        for name, value in arguments.items()
        if name not in optional or value is not None
    }
    agent, fit = preset["agent"], preset["fit"]
    if preset is toml_files.EMPTY_PRESET and arguments.get("baseline") == "value":
        agent, fit = for_environments(envs)
        logging.getLogger("tf_reinforce").info(
            "Without a preset, the settings for a value baseline with %s and a time "
            "limit of %d steps are used: gamma=%g, learning_rate=%s, %s. "
            "`Reinforce.for_env` overrides each of them.",
            f"{type(envs.action_space).__name__} actions",
            envs.max_episode_steps,
            agent["gamma"],
            agent["learning_rate"],
            fit,
        )
    return {**config.FOR_ENV_DEFAULTS, **agent, **arguments}, fit
