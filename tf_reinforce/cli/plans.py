"""Plans a training from the options of `train` or `tune`, and checks the plan.

Nothing here imports TensorFlow, so a mistake is reported within a second.
"""

import dataclasses
import re
from typing import Any

from tf_reinforce.cli import agent_files
from tf_reinforce.cli import options as cli_options
from tf_reinforce.experiments import run_config
from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings
from tf_reinforce.settings import toml_files

# Settings that `config.json` always contains; without a preset, these are their values.
DEFAULTS = {
    "gamma": config.AgentSettings.gamma,
    "learning_rate": config.AgentSettings.learning_rate,
    "hidden": list(config.AgentSettings.hidden),
    "baseline": config.AgentSettings.baseline,
    "entropy_coef": config.AgentSettings.entropy_coef,
    "normalize_observations": config.AgentSettings.normalize_observations,
}
# Options that `--resume` allows: they change no result, or confirm a number in the file
# above its limit.
_WITH_RESUME = (
    "env",
    "env_arg",
    "export",
    "jobs",
    "ray",
    "num_cpus_per_worker",
    "require_target",
    "grace",
    "checkpoint_every",
    "seeds",
    *config.TABLES["callbacks"],
    *config.FIT_LIMITS,
)


@dataclasses.dataclass
class Plan:
    """What `train` or `tune` is to do.

    Attributes:
        env: String, the environment id.
        settings: Dict of `preset`, `env_kwargs` and the tables of `config.TABLES`.
        engine: `"auto"`, `"host"` or `"compiled"`.
        task: `agent_files.Task`, or `None` before the module of `env` is imported.
        seed: Int, the first seed.
        num_seeds: Int, the number of seeds from `--seeds`, or `None`.
    """

    env: str
    settings: dict[str, Any]
    engine: str
    task: Any
    seed: int
    num_seeds: int | None

    def __post_init__(self):
        if self.engine == "compiled":
            refused = self._host_settings()
            if refused:
                received = ", ".join(
                    f"{cli_options.flag(x)} {refused[x]}" for x in refused
                )
                raise ValueError(
                    "`--engine compiled` takes no environment arguments, collects a "
                    "fixed number of episodes for each update in one process, and drops "
                    f"no episodes; `--engine host` does. Received: {received}"
                )
            config.check_twin(self.env)

    @property
    def target(self):
        """Returns the target return, or `None`."""
        threshold = self.task and self.task.reward_threshold
        return self.settings["evaluation"].get("target", threshold)

    @property
    def seeds(self):
        """Returns the range of all seeds."""
        return range(self.seed, self.seed + (self.num_seeds or 1))

    @property
    def in_one_program(self):
        """Returns whether one program may train all seeds of `--seeds`, in a twin.

        That needs `epochs`, and excludes callbacks, linear learning rates and options of
        the host engine.
        """
        agent, fit = self.settings["agent"], self.settings["fit"]
        value = default_settings.value_network(agent["baseline"]) or {}
        rates = agent["learning_rate"], value.get("learning_rate")
        return (
            self.num_seeds is not None
            and self.engine != "host"
            and self.env in config.TWINS
            and fit.get("epochs") is not None
            and not self._unsupported()
            and not self.settings["callbacks"]
            and not any(isinstance(rate, dict) for rate in rates)
            and not isinstance(fit.get("workers"), config.RayWorkers)
        )

    def twin(self):
        """Returns the `TensorEnv` to train on, or `None` to train on `env` itself.

        A twin equals a Gymnasium environment step by step, and has a time limit.
        """
        from tf_reinforce import envs

        if self.engine == "host" or self._host_settings():
            return None
        twin = envs.twin_of(self.env)
        if self.engine == "compiled":
            return twin or envs.make(self.env)
        limit = self.settings["fit"].get("max_episode_steps")
        return twin if twin is not None and (twin.max_episode_steps or limit) else None

    def _unsupported(self):
        """Maps options to settings that no compiled engine supports."""
        fit = self.settings["fit"]
        names = "steps_per_epoch", *config.FAULT_OPTIONS
        found = {x: fit[x] for x in names if fit.get(x, "raise") not in ("raise", None)}
        env_kwargs = self.settings["env_kwargs"]
        return {**found, **({"env_arg": env_kwargs} if env_kwargs else {})}

    def _host_settings(self):
        """Maps options to settings that need the host engine."""
        found, workers = self._unsupported(), self.settings["fit"].get("workers", 1)
        if workers != 1 and not self.in_one_program:
            found["workers"] = workers
        return found


def make(options):
    """Plans a new training, or the one that `--resume` continues.

    The module in `module:Id` is not imported here, because it may import TensorFlow.
    Until it is, the settings are checked as for any environment.

    Raises:
        ValueError, OSError: If an option or a setting is invalid.
    """
    return (
        _new(options) if getattr(options, "resume", None) is None else _resumed(options)
    )


def _new(options):
    import gymnasium  # not for `--help`

    if options.env is None:
        raise ValueError(
            "The command needs an environment id, for example `tf-reinforce train "
            "CartPole-v1`, or `train --resume DIR` to continue a training."
        )
    env = options.env = agent_files.resolve_env(options.env)
    if options.preset == cli_options.OWN_PRESET:
        options.preset = toml_files.own_name(env)
    preset = toml_files.read_for_env(options.preset, env)
    env_kwargs = {**preset["env_kwargs"], **dict(options.env_arg)}
    task = agent_files.make_task(env, env_kwargs)
    space, limit = (task or (gymnasium.spaces.Discrete(2), 1000))[:2]
    tables = cli_options.explicit_settings(options)
    explicit = {(table, x): tables[table][x] for table in tables for x in tables[table]}
    explicit |= dict(options.set)
    limit = explicit.get(("fit", "max_episode_steps")) or limit
    limit = limit or config.DEFAULT_MAX_EPISODE_STEPS
    baseline = explicit.get(("agent", "baseline"))
    # A compiled twin makes many updates per second, so plain REINFORCE trains well.
    is_plain = env in config.TWINS and type(space).__name__ == "Discrete"
    is_default = options.preset is None and (
        baseline == "value" or (baseline is None and not is_plain)
    )
    if is_default:
        agent, fit = default_settings.for_task(space, limit, options.engine == "compiled")
        # With a limit of up to 1,000 steps, the evaluations of 100 episodes take at most
        # about as many environment steps as the training.
        evaluation = {"every": min(max(round(100 * limit / 2048), 10), 50)}
        preset = {**preset, "agent": agent, "fit": fit, "evaluation": evaluation}
    settings = _merge(options, preset, tables)
    settings["env_kwargs"] = env_kwargs
    run_config.check_settings(settings)
    if task and settings["agent"].get("head") is not None:
        default_settings.head_settings(settings["agent"]["head"], space)
    if task and is_default:
        parts = settings["agent"], settings["fit"]
        print(f"without a preset, {default_settings.describe(space, limit, *parts)}")
    if task and (names := [] if options.preset else toml_files.names_for(env)):
        name = "" if names[0] == toml_files.own_name(env) else f" {names[0]}"
        print(f"{env} has a preset with tuned settings: add --preset{name} to use it")
    num_seeds = getattr(options, "seeds", None)
    return Plan(env, settings, options.engine, task, options.seed or 0, num_seeds)


def _merge(options, preset, explicit):
    """Merges settings: `--set` before other options, these before preset and defaults."""
    fit = config.merge_options(preset["fit"], explicit["fit"])
    settings = {
        "preset": options.preset,
        "env_kwargs": {},
        "agent": {**DEFAULTS, **preset["agent"], **explicit["agent"]},
        "fit": {"num_envs": config.FitOptions.num_envs, **fit},
        "evaluation": {**preset["evaluation"], **explicit["evaluation"]},
        "checkpoint": explicit["checkpoint"],
        "callbacks": explicit["callbacks"],
    }
    for path, value in options.set:
        settings = toml_files.override(settings, path, value)
    if settings["agent"]["baseline"] == "value":
        # `Reinforce.for_env` would choose other settings by the environment.
        settings["agent"]["baseline"] = dict(config.VALUE_NETWORK)
    return settings


def _resumed(options):
    """Makes the plan that a run's `config.json` describes.

    For safety, `module:Id` is not taken from the file; the user must pass it as ENV.
    """
    check_resume_options(options)
    explicit = cli_options.explicit_settings(options)
    env_kwargs = dict(options.env_arg)
    content = run_config.read_training(
        options.resume, env_kwargs, explicit["fit"], options.seeds
    )
    env = content["env"]
    if options.env is None and ":" in env:
        raise unknown_module(env, run_config.resume_command(options.resume, content))
    if options.env not in (None, env, re.sub(r"-v\d+$", "", env)):
        raise ValueError(
            f"The run in {options.resume} uses another environment. Expected: {env}. "
            f"Received: {options.env}"
        )
    settings = {name: content[name] for name in ("env_kwargs", *config.TABLES)}
    if content.get("target_return") is not None:
        settings["evaluation"]["target"] = content["target_return"]
    for table in ("checkpoint", "callbacks"):
        settings[table] = {**settings[table], **explicit[table]}
    env = env if ":" in env else agent_files.find_env(env)
    task = agent_files.make_task(env, settings["env_kwargs"])
    settings["preset"] = content.get("preset")
    seeds = content.get("seeds")
    seed, count = (content["seed"], None) if seeds is None else (seeds[0], len(seeds))
    return Plan(env, settings, content["engine"], task, seed, count)


def unknown_module(env, command):
    """Returns the error for a run whose module the user has not named."""
    return ValueError(
        f"The run uses the environment {env}. For safety, `--resume` imports no module "
        f"that a run directory names. Give the id: {command}"
    )


def check_resume_options(options):
    """Raises `ValueError` for an option that `--resume` does not allow."""
    allowed = *_WITH_RESUME, "resume", "command", "command_line"
    others = [
        cli_options.flag(name)
        for name, value in vars(options).items()
        if name not in allowed and value not in (None, [], "auto")
    ]
    if others:
        raise ValueError(
            "`--resume` continues a training with its own settings. Expected: no other "
            f"options, except ENV, {', '.join(map(cli_options.flag, _WITH_RESUME[1:]))}. "
            f"Received: {', '.join(others)}"
        )
