"""Plans a training from the options of `train` or `tune`, and checks the plan.

A mistake in the options should be reported within a second. The plan is therefore made
without importing TensorFlow, unless the environment needs a module that does.
"""

import dataclasses
from typing import Any

from tf_reinforce.cli import options as cli_options
from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings
from tf_reinforce.settings import run_config
from tf_reinforce.settings import toml_files
from tf_reinforce.support import own_code
from tf_reinforce.support import validation

# Settings that `config.json` always contains; without a preset, these are their values.
_NAMES = "gamma", "learning_rate", "baseline", "entropy_coef", "normalize_observations"
DEFAULTS = {name: getattr(config.AgentSettings, name) for name in _NAMES}
DEFAULTS["hidden"] = list(config.AgentSettings.hidden)
# Options that `--resume` excludes, because they change the result.
_NOT_WITH_RESUME = ["preset", "set", "engine", "seed", "seeds", "run_dir"]
_NOT_WITH_RESUME += [
    name for name, x in cli_options.SETTINGS.items() if x[0] in ("agent", "evaluation")
]
# The values of settings that the compiled engine needs.
_COMPILED: dict[str, Any] = {"steps_per_epoch": None, "workers": 1, "env_kwargs": {}}
_COMPILED |= {**dict.fromkeys(config.FAULT_OPTIONS, "raise"), "info_keys": ()}
_LIMIT = "max_episode_steps"


def find_env(env):
    """Imports an environment's module, and returns the id of the environment.

    In `module:Id`, the module may be a file in the current folder.

    Raises:
        ValueError: If there is no such module, it fails, or there is no such id.
    """
    module, _, name = env.rpartition(":")
    if module:
        own_code.import_module(module)
    import gymnasium

    try:
        gymnasium.spec(name)
    except gymnasium.error.Error as error:
        raise ValueError(
            f"{error} Expected: an environment id with its version, or MODULE:ID if a "
            f"module registers it. Received: {env}"
        ) from error
    return env


def action_space(env, env_kwargs):
    """Makes an environment once to read its action space.

    Raises:
        ValueError: If the constructor does not accept the arguments.
    """
    import gymnasium

    from tf_reinforce.engine.collect import batched_envs

    with batched_envs.explain_errors(env, env_kwargs):
        # As for training, the time limit is no argument of the environment.
        made = gymnasium.make(
            env, max_episode_steps=None, disable_env_checker=True, **env_kwargs
        )
    made.close()
    return made.action_space


@dataclasses.dataclass
class Plan:
    """What `train` or `tune` is to do.

    Attributes:
        env: String, the environment id.
        settings: Dict of `preset`, `env_kwargs` and the tables of `config.TABLES`.
        engine: `"auto"`, `"host"` or `"compiled"`.
        seed: Int, the first seed.
        num_seeds: Int, the number of seeds from `--seeds`, or `None`.
        own: Dict of the names `MODULE:FUNCTION` of the user, by their entries in
            `config.json`. With `make_agent`, the table `agent` of the settings contains
            its keyword arguments.
    """

    env: str
    settings: dict[str, Any]
    engine: str
    seed: int
    num_seeds: int | None
    own: dict[str, str] = dataclasses.field(default_factory=dict)

    def __post_init__(self):
        if self.engine == "compiled":
            config.check_twin(self.env)
            if settings := self._host_settings():
                raise ValueError(
                    "`--engine compiled` takes no environment arguments, collects a "
                    "fixed number of episodes for each update in one process, drops no "
                    "episodes and reads no info; `--engine host` does. Received: "
                    f"{settings}"
                )

    @property
    def target(self):
        """Returns the target return, or `None`."""
        import gymnasium  # not for `--help`

        spec = gymnasium.spec(toml_files.own_name(self.env))
        return self.settings["evaluation"].get("target", spec.reward_threshold)

    def add_budget(self, is_limit):
        """Ends a training without a budget at its target return, or after 300 updates.

        Args:
            is_limit: Bool, whether to end it at its target return in any case.
        """
        fit = self.settings["fit"]
        if fit.get("epochs") is None and fit.get("steps") is None:
            fit["epochs"], is_limit = run_config.MAX_UPDATES, True
        if is_limit and self.target is not None:
            self.settings["callbacks"]["stop_at_return"] = self.target

    @property
    def seeds(self):
        """Returns the range of all seeds."""
        return range(self.seed, self.seed + (self.num_seeds or 1))

    @property
    def in_one_program(self):
        """Returns whether one program may train all seeds of `--seeds`, in a twin.

        One program needs `epochs`. It cannot use callbacks, linear learning rates or
        options of the host engine.
        """
        agent = self.settings["agent"]
        if self.own or self.num_seeds is None:
            return False
        value = default_settings.value_network(agent["baseline"]) or {}
        rates = agent["learning_rate"], value.get("learning_rate")
        return (
            self.engine != "host"
            and self.env in config.TWINS
            and self.settings["fit"].get("epochs") is not None
            and not (self._host_settings() or self.settings["callbacks"])
            and not any(isinstance(rate, dict) for rate in rates)
        )

    def twin(self):
        """Returns the `TensorEnv` to train on, or `None` to train on `env` itself.

        A twin equals a Gymnasium environment step by step, and has a time limit.
        """
        from tf_reinforce import envs

        if self.engine == "compiled":
            return envs.make(self.env)
        is_own = self.engine == "auto" and "make_agent" in self.own
        if self.engine == "host" or is_own or self._host_settings():
            return None
        twin, limit = envs.twin_of(self.env), self.settings["fit"].get(_LIMIT)
        return twin if twin is not None and (twin.max_episode_steps or limit) else None

    def _host_settings(self):
        """Returns the settings that need the host engine."""
        given = {**_COMPILED, **self.settings["fit"], **self.settings}
        return {x: given[x] for x in _COMPILED if given[x] != _COMPILED[x]}


def make(options):
    """Plans a new training, or the one that `--resume` continues.

    Raises:
        ValueError, OSError: If an option or a setting is invalid.
    """
    is_new = getattr(options, "resume", None) is None
    return _new(options) if is_new else _resumed(options)


def _new(options):
    if options.env is None:
        raise ValueError(
            "The command needs an environment id, for example `tf-reinforce train "
            "CartPole-v1`, or `train --resume DIR` to continue a training."
        )
    own = own_names(options)
    env, name = find_env(options.env), toml_files.own_name(options.env)
    explicit = cli_options.explicit_settings(options)
    options.preset = name if options.preset == "" else options.preset
    reason = None
    if _takes_preset(options, name, explicit):
        options.preset = name
        try:
            plan = _planned(options, env, explicit, own)
        except ValueError as error:
            reason, options.preset = validation.one_line(error), None
        else:
            plan.add_budget(not _has_budget(options, explicit))
            result = toml_files.read(name)["result"]
            result = result and f", which reached {result}"
            print(
                f"training with the preset {name}{result} (--no-preset: default settings)"
            )
            return plan
    options.preset = options.preset or None
    plan = _planned(options, env, explicit, own)
    if not _is_search(options):
        plan.add_budget(False)
    if options.preset is None and options.agent is None and name in toml_files.names():
        is_tuned = toml_files.suits(name, dict(options.env_arg))
        settings = "tuned settings" if is_tuned else "settings for another task"
        note = f"{env} has a preset with {settings}: add --preset to use it"
        if reason is not None:
            note = f"training without the preset {name}, which does not fit: {reason}"
        print(note)
    return plan


def _planned(options, env, explicit, own):
    """Returns the `Plan` of a new training with a preset or without."""
    preset = toml_files.read_for_env(options.preset, env, options.agent is not None)
    env_kwargs = {**preset["env_kwargs"], **dict(options.env_arg)}
    if options.agent is None:
        preset = _with_defaults(options, preset, env, env_kwargs, explicit)
        agent = {**DEFAULTS, **preset["agent"], **explicit["agent"]}
    else:
        _expect_no_agent_settings(options, explicit)
        agent = {**preset["agent"], **dict(options.agent_arg)}
    fit = config.merge_options(preset["fit"], explicit["fit"])
    settings = {
        "preset": options.preset,
        "env_kwargs": env_kwargs,
        "agent": agent,
        "fit": {"num_envs": config.FitOptions.num_envs, **fit},
        "evaluation": {**preset["evaluation"], **explicit["evaluation"]},
        "checkpoint": explicit["checkpoint"],
        "callbacks": explicit["callbacks"],
    }
    for path, value in options.set:
        settings = toml_files.override(settings, path, value)
    if settings["agent"].get("baseline") == "value" and options.agent is None:
        # `Reinforce.for_env` would choose other settings by the environment.
        settings["agent"]["baseline"] = dict(config.VALUE_NETWORK)
    run_config.check_settings(settings, own_agent=options.agent is not None)
    num_seeds = getattr(options, "seeds", None)
    return Plan(env, settings, options.engine, options.seed or 0, num_seeds, own)


def _has_budget(options, explicit):
    """Returns whether the user has set the budget of a training."""
    names = explicit["fit"].keys() | {path[-1] for path, _ in options.set}
    return not names.isdisjoint(("epochs", "steps"))


def _takes_preset(options, name, explicit):
    """Returns whether a training takes the preset of its environment by itself.

    Seeds that one program can train without the preset do not, because it may prevent
    that. Neither do other arguments of the environment, which make another task.
    """
    in_one_program = (
        getattr(options, "seeds", None) is not None
        and explicit["fit"].get("epochs") is not None
        and options.engine != "host"
        and name in config.TWINS
    )
    is_free = options.preset is None and options.agent is None and not in_one_program
    is_free = is_free and not _is_search(options) and name in toml_files.names()
    return is_free and toml_files.suits(name, dict(options.env_arg))


def _is_search(options):
    return hasattr(options, "trials")


def own_names(options):
    """Returns the names `MODULE:FUNCTION` in options, by their entries in `config.json`.

    Raises:
        ValueError: If a module does not exist, or an option has no effect.
    """
    if options.agent is None:
        cli_options.expect_none("without --agent", agent_arg=options.agent_arg)
    result = {}
    for entry, option in {**run_config.OWN_CODE, "suggest": "--space"}.items():
        name = getattr(options, option.removeprefix("--"), None)
        if name is not None:
            own_code.expect_name(option, name)
            result[entry] = name
    return result


def _expect_no_agent_settings(options, explicit):
    """Raises `ValueError` for settings of agents beside `--agent`."""
    settings = dict(explicit["agent"])
    settings |= {path[1]: value for path, value in options.set if path[0] == "agent"}
    if settings:
        raise ValueError(
            f"The function of `--agent` makes the agent, and {', '.join(settings)} would "
            "have no effect. Set it there, or pass an argument of the function: "
            "--agent-arg NAME=VALUE."
        )


def _with_defaults(options, preset, env, env_kwargs, explicit):
    """Returns a preset with the settings that follow from an environment without one."""
    space, given = action_space(env, env_kwargs), dict(options.set)
    baseline = given.get(("agent", "baseline"), explicit["agent"].get("baseline"))
    # A compiled twin makes many updates per second, so plain REINFORCE trains well.
    is_plain = env in config.TWINS and type(space).__name__ == "Discrete"
    is_value = baseline == "value" or (baseline is None and not is_plain)
    if options.preset is not None or not is_value:
        return preset
    limit = given.get(("fit", _LIMIT), explicit["fit"].get(_LIMIT))
    name = toml_files.own_name(env)
    return {**preset, **_default_preset(name, space, limit, options.engine == "compiled")}


def _default_preset(name, space, limit, is_compiled):
    """Chooses settings by the environment, and tells which."""
    import gymnasium

    limit = limit or gymnasium.spec(name).max_episode_steps
    limits = f"episodes of at most {limit:,} steps" if limit else "no time limit"
    limit = limit or config.DEFAULT_MAX_EPISODE_STEPS
    agent, fit = default_settings.for_task(space, limit, is_compiled)
    print(
        f"without a preset, the settings follow from {type(space).__name__} actions and "
        f"{limits} (docs/presets.md):\na value network, and {agent['passes']} passes over"
        " each update's steps. Plain REINFORCE: --baseline leave_one_out"
    )
    # With a limit of up to 1,000 steps, the evaluations of 100 episodes take at most
    # about as many environment steps as the training.
    evaluation = {"every": min(max(round(100 * limit / 2048), 10), 50)}
    return {"agent": agent, "fit": fit, "evaluation": evaluation}


def _resumed(options):
    """Makes the plan that a run's `config.json` describes.

    For safety, an id in the form `module:Id` is not taken from the file, so the user must
    pass it as ENV.
    """
    check_resume_options(options)
    explicit = cli_options.explicit_settings(options)
    env_kwargs = dict(options.env_arg)
    own, agent_kwargs = own_names(options), dict(options.agent_arg)
    content = run_config.read_training(
        options.resume, env_kwargs, explicit["fit"], agent_kwargs, own
    )
    env = content["env"]
    if options.env is None and ":" in env:
        raise unknown_module(env, run_config.resume_command(options.resume, content))
    if options.env is not None and toml_files.own_name(options.env) == env:
        find_env(options.env)  # its module registers what the program of the run did
    elif options.env not in (None, env):
        raise ValueError(
            f"The run in {options.resume} uses another environment. Expected: {env}. "
            f"Received: {options.env}"
        )
    settings = {x: content.get(x) for x in ("preset", "env_kwargs", *config.TABLES)}
    if content.get("target_return") is not None:
        settings["evaluation"]["target"] = content["target_return"]
    for table in ("checkpoint", "callbacks"):
        settings[table] |= explicit[table]
    seeds = content.get("seeds")
    if seeds is None:
        seed, count = content["seed"], None
    else:
        seed, count = seeds[0], len(seeds)
        settings["fit"].pop("workers", None)  # of an earlier version
    return Plan(find_env(env), settings, content["engine"], seed, count, own)


def unknown_module(env, command):
    """Returns the error for a run whose module the user has not named."""
    return ValueError(
        f"The run uses the environment {env}. For safety, `--resume` imports no module "
        f"that a run directory names. Give the id: {command}"
    )


def check_resume_options(options):
    """Raises `ValueError` for an option that `--resume` does not allow."""
    given = {name: getattr(options, name) for name in _NOT_WITH_RESUME}
    cli_options.expect_none("with --resume, which keeps the settings", **given)
