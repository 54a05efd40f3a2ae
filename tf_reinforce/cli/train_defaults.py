"""Chooses the settings of `tf-reinforce train` without a preset."""

from typing import Any, NamedTuple

from tf_reinforce.settings import config


class Task(NamedTuple):
    """What the settings of a value baseline depend on."""

    action_space: Any  # `gymnasium.Space`
    max_episode_steps: int

    def like_preset(self, env, in_graph):
        """Returns settings in the form of a preset.

        Args:
            env: String, the environment id.
            in_graph: Bool, whether a tensor environment is trained on.
        """
        from tf_reinforce.settings import default_settings

        agent, fit = default_settings.for_task(*self, in_graph)
        # With a limit of up to 1,000 steps, the evaluations of 100 episodes take at most
        # about as many environment steps as the training.
        every = min(max(round(100 * self.max_episode_steps / 2048), 10), 50)
        tables = {"agent": agent, "fit": fit, "evaluation": {"every": every}}
        return {"env": env, "env_kwargs": {}, **tables}


def task_of(options, is_imported):
    """Returns the `Task` for a value baseline, or `None` for plain REINFORCE.

    Without `--baseline`, plain REINFORCE is trained in environments with discrete actions
    and a compiled twin, because a compiled twin makes many updates per second.

    Args:
        options: The options of the command, without a preset.
        is_imported: Bool, whether the module of an id `module:Id` has been imported. If
            it is not imported, its environment is unknown, and the result is any `Task`.

    Raises:
        ValueError, OSError: If the environment cannot be made.
    """
    baseline = _explicit(options, "agent", "baseline")
    if baseline not in (None, "value"):
        return None
    import gymnasium

    if ":" in options.env and not is_imported:
        return Task(gymnasium.spaces.Discrete(2), 1000)
    space, limit = _space_and_limit(options)
    limit = _explicit(options, "fit", "max_episode_steps") or limit
    is_discrete = isinstance(space, gymnasium.spaces.Discrete)
    if baseline is None and options.env in config.TWINS and is_discrete:
        return None
    return Task(space, limit or config.DEFAULT_MAX_EPISODE_STEPS)


def _explicit(options, table, name):
    """Returns the value of a setting that the user passed, or `None`."""
    values = [value for path, value in options.set or () if path == (table, name)]
    return values[-1] if values else getattr(options, name)


def _space_and_limit(options):
    """Returns the action space and the time limit, or `None`, of the environment."""
    import gymnasium

    from tf_reinforce.engine.collect import env_arguments

    env_kwargs = dict(options.env_arg or ())
    with env_arguments.explain_errors_of_make(options.env, env_kwargs):
        env = gymnasium.make(options.env, disable_env_checker=True, **env_kwargs)
    env.close()
    return env.action_space, env.spec.max_episode_steps
