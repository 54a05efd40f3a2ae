"""Checks the options of `tf-reinforce train`, and returns the settings of a training.

The checks do not import TensorFlow, so that a mistake is reported within a second.
"""

import os
import pathlib
import re

from tf_reinforce.cli import agent_files
from tf_reinforce.cli import options as cli_options
from tf_reinforce.cli import train_messages
from tf_reinforce.experiments import run_config
from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings
from tf_reinforce.settings import overrides
from tf_reinforce.settings import toml_files
from tf_reinforce.support import files

# Settings that `config.json` always contains; without a preset, these are their values.
DEFAULTS = {
    name: getattr(config.AgentSettings, name)
    for name in (
        "gamma",
        "learning_rate",
        "hidden",
        "baseline",
        "entropy_coef",
        "normalize_observations",
    )
}
DEFAULTS["hidden"] = list(DEFAULTS["hidden"])
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


def check_train_options(options):
    """Returns the settings of a training and its `Task`, without importing TensorFlow.

    If the id in `options.env` has no version, the function adds the latest version. The
    module of an id `module:Id` is not imported, because the module may import TensorFlow.
    After the import, `choose_settings` returns the settings for its environment.

    Raises:
        ValueError, OSError: If an option or a setting of the training is invalid.
    """
    if options.env is None:
        raise ValueError(
            "The command needs an environment id, for example `tf-reinforce train "
            "CartPole-v1`, or `train --resume DIR` to continue a training."
        )
    if options.run_dir is not None:
        files.expect_empty_folder(pathlib.Path(options.run_dir))
    _check_export(options)
    _add_module(options)
    options.env = agent_files.resolve_env(options.env)
    if options.preset == cli_options.OWN_PRESET:
        options.preset = toml_files.own_name(options.env)
    settings, task = choose_settings(options, is_imported=":" not in options.env)
    train_messages.print_preset(options)
    return settings, task


def choose_settings(options, is_imported=True):
    """Returns the settings of a training and its `Task`; prints those of a default.

    Args:
        options: The options of the command.
        is_imported: Bool, whether the environment can be made. If not, its settings are
            those of any environment, to find mistakes.

    Raises:
        ValueError, OSError: If a setting is invalid.
    """
    preset = toml_files.read(options.preset) if options.preset else None
    if preset is not None and preset["env"] != options.env:
        raise ValueError(
            f"The preset {options.preset} is for another environment. "
            f"Expected: {preset['env']}. Received: {options.env}"
        )
    env_kwargs = {**(preset or {}).get("env_kwargs", {}), **dict(options.env_arg)}
    task = agent_files.any_task()
    if is_imported:
        task = agent_files.make_task(options.env, env_kwargs)
    explicit = cli_options.explicit_settings(options)
    limit = explicit["fit"].get("max_episode_steps")
    for path, value in options.set:
        limit = value if path == ("fit", "max_episode_steps") else limit
    limit = limit or task.max_episode_steps or config.DEFAULT_MAX_EPISODE_STEPS
    is_default = preset is None and _has_value_baseline(options, task)
    if is_default:
        preset = _default_preset(task, limit, options.engine == "compiled")
    settings = _merge(options, preset or dict(toml_files.EMPTY_PRESET), explicit)
    settings["env_kwargs"] = env_kwargs
    run_config.check_settings(settings)
    if is_imported and settings["agent"].get("head") is not None:
        default_settings.head_settings(settings["agent"]["head"], task.action_space)
    if is_default and is_imported:
        tables = settings["agent"], settings["fit"]
        text = default_settings.describe(task.action_space, limit, *tables)
        train_messages.say(f"without a preset, {text}")
    return settings, task


def _has_value_baseline(options, task):
    """Returns whether the settings for a value baseline are chosen by the environment.

    Without `--baseline`, plain REINFORCE is trained in environments with discrete actions
    and a compiled twin, because a compiled twin makes many updates per second.
    """
    baseline = options.baseline
    for path, value in options.set:
        baseline = value if path == ("agent", "baseline") else baseline
    is_discrete = type(task.action_space).__name__ == "Discrete"
    is_plain = options.env in config.TWINS and is_discrete
    return baseline == "value" or (baseline is None and not is_plain)


def _default_preset(task, limit, in_graph):
    agent, fit = default_settings.for_task(task.action_space, limit, in_graph)
    # With a limit of up to 1,000 steps, the evaluations of 100 episodes take at most
    # about as many environment steps as the training.
    every = min(max(round(100 * limit / 2048), 10), 50)
    return {"agent": agent, "fit": fit, "evaluation": {"every": every}}


def _merge(options, preset, explicit):
    """Returns the settings of a training from options, preset and defaults.

    `--set` overrides the other options, these override the preset, and the preset
    overrides the defaults.
    """
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
        settings = overrides.apply(settings, path, value)
    if settings["agent"]["baseline"] == "value":
        # `Reinforce.for_env` would choose other settings by the environment.
        settings["agent"]["baseline"] = dict(default_settings.VALUE)
    return settings


def _add_module(options):
    """Adds the module of the option `--import` to the environment id."""
    module, options.imported = options.imported, None
    if module is None:
        return
    if options.env is None or ":" in options.env:
        raise ValueError(
            "`--import MODULE` requires an environment id ENV without a module, and is "
            f"the same as the id MODULE:ENV. Received: {options.env} --import {module}"
        )
    options.env = f"{module}:{options.env}"


def check_resume_options(options):
    """Returns the settings of the training to continue.

    The function reads `config.json` of the run, and sets `options.env`, `options.engine`,
    `options.seed` and `options.seeds`. For safety, an id of the form `module:Id` is not
    read from the file, and must be passed as ENV.

    Raises:
        ValueError, OSError: If another option was passed, or the file is invalid.
    """
    check_resume_flags(options)
    _check_export(options)
    explicit = cli_options.explicit_settings(options)
    env_kwargs, fit = dict(options.env_arg), explicit["fit"]
    content = run_config.read_training(options.resume, env_kwargs, fit, options.seeds)
    env = content["env"]
    if options.env is None and ":" in env:
        command = run_config.resume_command(options.resume, content)
        raise ValueError(unknown_module(env, command))
    if options.env not in (None, env, re.sub(r"-v\d+$", "", env)):
        raise ValueError(
            f"The run in {options.resume} uses another environment. Expected: {env}. "
            f"Received: {options.env}"
        )
    options.env = env if ":" in env else agent_files.find_env(env)
    options.engine, options.preset = content["engine"], content.get("preset")
    seeds = content.get("seeds")
    options.seed = content["seed"] if seeds is None else seeds[0]
    options.seeds = None if seeds is None else len(seeds)
    settings = {name: content[name] for name in ("env_kwargs", *config.TABLES)}
    if content.get("target_return") is not None:
        settings["evaluation"]["target"] = content["target_return"]
    for table in ("checkpoint", "callbacks"):
        settings[table] = {**settings[table], **explicit[table]}
    return {**settings, "preset": options.preset}


def unknown_module(env, command):
    """Returns an error message about a run whose module the user has not named."""
    return (
        f"The run uses the environment {env}. For safety, `--resume` imports no module "
        f"that a run directory names. Give the id: {command}"
    )


def check_resume_flags(options):
    """Raises `ValueError` if `--resume` does not allow an option that was passed."""
    if options.env is not None:
        _add_module(options)
    internal = "resume", "command", "command_line", "engine"
    others = [
        name
        for name, value in vars(options).items()
        if name not in (*internal, *_WITH_RESUME) and value not in (None, [])
    ]
    others += ["engine"] if options.engine != "auto" else []
    if others:
        raise ValueError(
            "`--resume` continues a training with its own settings. Expected: no other "
            f"options, except ENV, {flags(_WITH_RESUME[1:])}. Received: {flags(others)}"
        )


def flags(names):
    """Returns the options with the given attribute names, separated by commas."""
    return ", ".join(map(cli_options.flag, names))


def _check_export(options):
    """Raises `ValueError` if the folder of `--export` cannot become a SavedModel."""
    if options.export is not None:
        files.expect_no_pattern(options.export or options.resume or options.run_dir or "")
    if options.export == "" and options.resume is not None:
        files.expect_replaceable_folder(os.path.join(options.resume, "policy"))
    if not options.export:  # no export, or a folder in the run directory
        return
    files.expect_replaceable_folder(options.export)
    folder = pathlib.Path(options.export).resolve()
    run = pathlib.Path(options.run_dir or "runs").resolve()
    if run.is_relative_to(folder):
        raise ValueError(
            "The folder of --export must not contain the run directory, because an "
            f"export replaces the whole folder. Received: --export {folder}, and the run "
            f"directory {run}"
        )


def check_engine(options, settings):
    """Raises `ValueError` if the settings do not allow `--engine` or `--ray`."""
    if options.engine == "compiled":
        refused, workers = host_settings(settings), settings["fit"].get("workers", 1)
        if not uses_one_program(options, settings) and workers != 1:
            refused["workers"] = workers
        if options.ray is not None:
            refused["ray"] = options.ray
        if refused:
            received = ", ".join(f"{flags([name])} {x}" for name, x in refused.items())
            raise ValueError(
                "`--engine compiled` takes no environment arguments, collects a fixed "
                "number of episodes for each update in one process, and drops no "
                "episodes. Pass `--episodes-per-epoch`, or `--engine host`. Received: "
                f"{received}"
            )
        config.check_twin(options.env)
    check_jobs(options)
    ray_workers(options, settings)  # raises errors


def check_jobs(options, has_seeds=False):
    """Raises `ValueError` if `--jobs` was passed, and there are no several seeds."""
    if options.jobs is not None and options.seeds is None and not has_seeds:
        raise ValueError(
            "`--jobs` is the number of processes that train the seeds of `--seeds`. "
            f"Received: --jobs {options.jobs} without --seeds"
        )


def uses_one_program(options, settings):
    """Returns whether one program trains all seeds of `--seeds`, in a twin.

    One program needs a number of updates, and supports neither callbacks, nor linear
    learning rates, nor the options of the host engine. Otherwise, each seed is trained in
    a process of its own.
    """
    agent = settings["agent"]
    value = default_settings.value_network(agent["baseline"]) or {}
    rates = agent["learning_rate"], value.get("learning_rate")
    return (
        options.seeds is not None
        and options.engine != "host"
        and options.env in config.TWINS
        and settings["fit"].get("epochs") is not None
        and not host_settings(settings)
        and not settings["callbacks"]
        and not any(isinstance(rate, dict) for rate in rates)
        and options.ray is None
    )


def ray_workers(options, settings):
    """Returns the `RayWorkers` of the option `--ray`, or `None` without the option.

    Raises:
        ValueError: If the address is invalid, or `--workers` or `--ray` is missing.
    """
    cores, count = options.num_cpus_per_worker, settings["fit"].get("workers")
    if options.ray is None and cores is None:
        return None
    if options.ray is None or count is None:
        raise ValueError(
            "`--ray`, the address of a Ray cluster, requires `--workers`, the number of "
            "workers on it, and `--num-cpus-per-worker` requires `--ray`. Received: "
            f"--ray {options.ray} --workers {count} --num-cpus-per-worker {cores}"
        )
    cores = config.RayWorkers.num_cpus_per_worker if cores is None else cores
    return config.RayWorkers(count, options.ray, num_cpus_per_worker=cores)


def host_settings(settings):
    """Returns a dict of the options whose settings the compiled engine does not support.

    `workers` is not among them: with `--engine auto`, it selects the host engine.
    """
    fit = settings["fit"]
    names = "steps_per_epoch", *config.FAULT_OPTIONS
    host_only = {x: fit[x] for x in names if fit.get(x, "raise") not in ("raise", None)}
    if settings["env_kwargs"]:
        host_only["env_arg"] = settings["env_kwargs"]
    return host_only
