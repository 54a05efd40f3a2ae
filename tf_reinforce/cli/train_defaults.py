"""Chooses the settings of `tf-reinforce train` without a preset."""

from tf_reinforce import config
from tf_reinforce import startup
from tf_reinforce.cli import env_ids

DEFAULT_LIMIT = 10_000  # steps of an episode, if the environment states no time limit


def choose(options):
    """Returns settings like those of a preset, or `None` for plain REINFORCE.

    The settings of a value baseline are chosen by `presets.default_settings`. Tabular
    tasks and CartPole, Acrobot and MountainCar have a compiled twin and discrete actions:
    without `--baseline`, plain REINFORCE is trained on their twins, because it makes many
    updates per second.

    The function makes the environment. The module of an id `module:Id` is imported.

    Raises:
        ValueError, OSError: If the environment cannot be made.
    """
    if options.preset or options.baseline not in (None, "value"):
        return None
    space, limit = _space_and_limit(options)
    import gymnasium

    is_discrete = isinstance(space, gymnasium.spaces.Discrete)
    if options.baseline is None and options.env in config.TWINS and is_discrete:
        return None
    from tf_reinforce.presets import default_settings

    in_graph = options.engine == "compiled"
    agent, fit = default_settings.for_task(space, limit, in_graph)
    chosen = default_settings.text(space, limit, agent, fit)
    print(f"no preset: {chosen}; options override them", flush=True)
    # The evaluations take at most about as many environment steps as the training.
    every = min(max(round(100 * limit / 2048), 10), 50)
    return {
        "env": options.env,
        "env_kwargs": {},
        "agent": agent,
        "fit": fit,
        "evaluation": {"every": every},
    }


def _space_and_limit(options):
    """Returns the action space and the time limit of the environment."""
    env, env_kwargs = options.env, dict(options.env_arg or ())
    if ":" in env:
        startup.import_tensorflow()  # the module may import TensorFlow
        env = env_ids.find_env(env)
    import gymnasium

    from tf_reinforce import env_arguments

    with env_arguments.explain_errors_of_make(env, env_kwargs):
        gym_env = gymnasium.make(env, disable_env_checker=True, **env_kwargs)
    gym_env.close()
    spec = gym_env.spec
    limit = options.max_episode_steps or (spec and spec.max_episode_steps)
    return gym_env.action_space, limit or DEFAULT_LIMIT
