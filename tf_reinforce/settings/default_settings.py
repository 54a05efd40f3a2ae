"""Settings for an agent with a value baseline and no preset."""

import math

from tf_reinforce.settings import config
from tf_reinforce.settings import toml_files

# Each update makes many gradient steps with limited ratios, as in PPO (Schulman et al.
# 2017).
AGENT = {
    "baseline": config.VALUE_NETWORK,
    "normalize_observations": True,
    "scale_rewards": True,
    "scale_advantages": "batch",
    "mean_over": "steps",
    "minibatch_size": 64,
    "passes": 10,
    "ratio_clip": (0.2, 0.2),
}
WHOLE_BATCH = {"passes": 4, "minibatch_size": None}  # for memories of sequences
FIT = {"steps_per_epoch": 2048, "num_envs": 4}

_MIN_GAMMA, _MAX_GAMMA = 0.95, 0.995


def value_network(setting):
    """Fills in the defaults of a value network's settings.

    Args:
        setting: Argument `baseline` of an agent. Anything but `"value"` or a dict gives
            `None`.
    """
    setting = config.VALUE_NETWORK if setting == "value" else setting
    if not isinstance(setting, dict):
        return None
    config.check_option("agent", "baseline", setting)
    return {"hidden": (64, 64), "learning_rate": 1e-2, **setting}


def head_settings(setting, action_space):
    """Returns the class name and the arguments of a head that a setting names.

    Args:
        setting: The name, or a dict of the name `kind` and the arguments.
        action_space: `gymnasium.Space` of the environment.

    Raises:
        ValueError: If the name is unknown, or the action space is no `Box`, or for
            `"autoregressive"`, no space of several parts.
    """
    config.check_option("agent", "head", setting)
    options = dict(setting) if isinstance(setting, dict) else {"kind": setting}
    kind = options.pop("kind")
    has_parts = kind in config.PARTS_HEADS
    kinds = ("Tuple", "Dict", "MultiDiscrete") if has_parts else ("Box",)
    if type(action_space).__name__ not in kinds:
        raise ValueError(
            "`head` must be the name of a head for a Box, or 'autoregressive' for an "
            f"action of several parts. Received: head={setting!r} for {action_space!r}"
        )
    return "Autoregressive" if has_parts else kind, options


def gamma(max_episode_steps):
    """Returns a discount whose horizon 1 / (1 - γ) is a fifth of the time limit.

    The discount is clipped to [0.95, 0.995], which is a horizon of 20 to 200 steps.

    Example:

    >>> [gamma(limit) for limit in (50, 200, 500, 1000, 10_000)]
    [0.95, 0.975, 0.99, 0.995, 0.995]
    """
    return min(max(1 - 5 / max_episode_steps, _MIN_GAMMA), _MAX_GAMMA)


def for_task(space, max_episode_steps, in_graph=False):
    """Chooses arguments for `Reinforce.for_env` and for `fit`.

    Args:
        space: `gymnasium.Space` of the actions.
        max_episode_steps: Number, the environment's time limit.
        in_graph: Bool, whether it is a tensor environment.
    """
    import gymnasium

    is_box = isinstance(space, gymnasium.spaces.Box)
    rate, gae_lambda = (3e-4, 0.8) if is_box else (1e-3, 0.95)
    agent = {
        **AGENT,
        "gamma": gamma(max_episode_steps),
        "gae_lambda": gae_lambda,
        "learning_rate": {"first": rate, "last": 0},
    }
    if is_box:
        # If the standard deviation of the actions is small, a few gradient steps change
        # the policy completely (docs/estimators.md).
        agent["max_kl"] = 0.05
    if is_box and space.is_bounded():
        agent["head"] = "ClippedGaussian"
    # A tensor environment runs a fixed number of episodes at once.
    return agent, {} if in_graph else FIT


def merge(preset, arguments, envs, has_quantities):
    """Returns all arguments of `Reinforce.for_env`, and the defaults of `fit`.

    The arguments of the user take precedence over the preset, and the preset takes
    precedence over the defaults. If there is no preset, `baseline="value"` replaces it by
    the settings of `for_task`.

    Args:
        preset: Dict from `toml_files.read_for_env`.
        arguments: Dict from the user; `None` for `hidden` or `learning_rate` means not
            passed.
        envs: `collect.environments.Environments`.
        has_quantities: Bool, whether observations can be normalized.
    """
    unset = {x for x in ("hidden", "learning_rate") if arguments.get(x) is None}
    arguments = {name: x for name, x in arguments.items() if name not in unset}
    agent, fit = preset["agent"], preset["fit"]
    if preset is toml_files.EMPTY_PRESET and arguments.get("baseline") == "value":
        limits = envs.max_episode_steps, envs.spec and envs.spec.max_episode_steps
        limits = [x for x in limits if x and x < math.inf]
        limit = [*limits, config.DEFAULT_MAX_EPISODE_STEPS][0]
        agent, fit = for_task(envs.action_space, limit, envs.in_graph)
        agent["normalize_observations"] = has_quantities
        if arguments.get("returns") == "whole":
            agent["gae_lambda"] = 1  # the only value that whole returns allow
        if isinstance(arguments.get("memory"), str):
            # A step of a small minibatch takes as long as its longest episode.
            agent |= WHOLE_BATCH
            arguments["baseline"] = config.VALUE_NETWORK | WHOLE_BATCH
    elif preset is toml_files.EMPTY_PRESET and arguments.get("memory") == "attention":
        own = {"learning_rate": 3e-3, "normalize_observations": has_quantities}
        agent = {**agent, **own}
    return {**config.FOR_ENV_DEFAULTS, **agent, **arguments}, fit
