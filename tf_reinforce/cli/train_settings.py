"""Checks the options of `tf-reinforce train`, and returns the settings of a training.

The checks do not import TensorFlow, so that a mistake is reported within a second.
"""

import contextlib
import math
import os
import pathlib
import re

from tf_reinforce.cli import env_ids
from tf_reinforce.cli import train_defaults
from tf_reinforce.cli import train_messages
from tf_reinforce.cli import train_options
from tf_reinforce.settings import config
from tf_reinforce.settings import overrides
from tf_reinforce.settings import toml_files
from tf_reinforce.support import files
from tf_reinforce.support import validation

_CHECKPOINT_OPTIONS = ("checkpoint_every", "grace")
_CALLBACK_OPTIONS = ("diagnose", "tensorboard", "video")
# With `--resume`, these options confirm a number in `config.json` above its limit.
_LIMITED_OPTIONS = (
    "epochs",
    "steps",
    "episodes_per_epoch",
    "steps_per_epoch",
    "num_envs",
    "workers",
    "max_episode_steps",
    "seeds",
)


def check_train_options(options):
    """Returns the seed and the settings of a training, without importing TensorFlow.

    If the id in `options.env` has no version, the function adds the latest version. The
    module of an id `module:Id` is not imported, because the module may import TensorFlow.
    After the import, `choose_settings` returns the settings for its environment.

    Raises:
        ValueError, OSError: If an option or a setting of the training is invalid.
    """

    if options.env is None:
        raise ValueError(
            "`train` needs an environment id, for example `tf-reinforce train "
            "CartPole-v1`, or `--resume DIR` to continue a training."
        )
    seed = validation.check_seed(options.seed or 0)
    if options.target_return is not None:
        validation.within("target_return", options.target_return, -math.inf, math.inf)
    if options.run_dir is not None:
        files.expect_empty_folder(pathlib.Path(options.run_dir))
    _check_export(options)
    _add_module(options)
    options.env = env_ids.resolve_env(options.env)
    if options.preset == train_options.OWN_PRESET:
        options.preset = toml_files.own_name(options.env)
    settings = choose_settings(options, is_imported=False)
    train_messages.print_preset(options)
    return seed, settings


def choose_settings(options, is_imported=True):
    """Returns the settings of a training, and prints those of a value baseline.

    Args:
        options: The options of the command.
        is_imported: Bool, whether the module of an id `module:Id` has been imported.

    Raises:
        ValueError, OSError: If a setting is invalid.
    """
    from tf_reinforce.experiments import run_config
    from tf_reinforce.settings import presets

    preset, task = None, None
    if options.preset:
        preset = presets.read(options.preset)
    elif (task := train_defaults.task_of(options, is_imported)) is not None:
        preset = task.like_preset(options.env, options.engine == "compiled")
    settings = _settings(options, preset)
    run_config.check_settings(settings)
    if task is not None and (is_imported or ":" not in options.env):
        train_messages.print_defaults(task, settings)
    return settings


def _settings(options, preset):
    """Returns the settings of a training from options, preset and defaults.

    Options override the preset, and the preset overrides the defaults.
    """
    if preset is not None and preset["env"] != options.env:
        raise ValueError(
            f"The preset {options.preset} is for another environment. "
            f"Expected: {preset['env']}. Received: {options.env}"
        )
    settings = preset or {"env_kwargs": {}, "agent": {}, "fit": {}, "evaluation": {}}
    explicit = explicit_settings(options)
    fit = config.merge_options(settings["fit"], explicit["fit"])
    settings = {
        "preset": options.preset,
        "env_kwargs": {**settings["env_kwargs"], **dict(options.env_arg or ())},
        "agent": {**train_options.DEFAULTS, **settings["agent"], **explicit["agent"]},
        "fit": {"num_envs": config.FitOptions.num_envs, **fit},
        "evaluation": {**settings["evaluation"], **explicit["evaluation"]},
        "checkpoint": _checkpoint_settings(options),
        "callbacks": _callback_settings(options),
    }
    for path, value in options.set or ():
        settings = overrides.apply(settings, path, value)
    _expand_value(settings["agent"])
    return settings


def _expand_value(agent):
    """Replaces the baseline `"value"` by its settings.

    In `Reinforce.for_env`, `baseline="value"` without a preset also chooses other
    settings. The command passes the settings that it has chosen itself.
    """
    from tf_reinforce.settings import default_settings

    if agent["baseline"] == "value":
        agent["baseline"] = dict(default_settings.VALUE)


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


def explicit_settings(options):
    """Returns the options that the user passed, as the dict `{table: {key: value}}`."""
    tables = {"agent": {}, "fit": {}, "evaluation": {}}
    for option in train_options.TRAIN_OPTIONS:
        value = getattr(options, option.name)
        for setting in option.settings if value is not None else ():
            table, key = setting.split(".")
            tables[table][key] = value
    return tables


def _checkpoint_settings(options):
    """Returns the arguments of `Checkpoints` that the options of the command set."""
    settings = {}
    if options.grace is not None:
        settings["grace_seconds"] = validation.within("grace", options.grace, 0, math.inf)
    if options.checkpoint_every is not None:
        kind, number = options.checkpoint_every
        settings.update(every_seconds=60.0, every_updates=None)
        settings[kind] = number
    return settings


def _callback_settings(options):
    """Returns the settings of the callbacks that the options of the command set."""
    values = {"diagnose": options.diagnose, "tensorboard": options.tensorboard}
    values["video"] = options.video
    settings = {name: value for name, value in values.items() if value is not None}
    return settings


def check_resume_options(options):
    """Returns the seed and the settings of the training to continue.

    The function reads `config.json` of the run, and sets `options.env`, `options.engine`
    and `options.seeds`. For safety, an id of the form `module:Id` is not read from the
    file, and must be passed as ENV.

    Raises:
        ValueError, OSError: If another option was passed, or the file is invalid.
    """
    from tf_reinforce.experiments import run_config

    check_resume_flags(options)
    _check_export(options)
    explicit = dict(options.env_arg or ())
    fit = explicit_settings(options)["fit"]
    config = run_config.read_training(options.resume, explicit, fit, options.seeds)
    _check_resumed_env(options, config)
    options.engine, options.preset = config["engine"], config.get("preset")
    seeds = config.get("seeds")
    options.seeds = None if seeds is None else len(seeds)
    settings = {name: config[name] for name in ("env_kwargs", "agent", "fit")}
    settings["preset"] = options.preset
    settings["evaluation"] = dict(config["evaluation"])
    if config.get("target_return") is not None:
        settings["evaluation"]["target"] = config["target_return"]
    settings["checkpoint"] = {**config["checkpoint"], **_checkpoint_settings(options)}
    settings["callbacks"] = {**config["callbacks"], **_callback_settings(options)}
    return config["seed"] if seeds is None else seeds[0], settings


def check_resume_flags(options):
    """Raises `ValueError` if `--resume` does not allow an option that was passed."""
    if options.env is not None:
        _add_module(options)
    allowed = ("env", "env_arg", "resume", "export", "command", "engine", "ray")
    allowed += ("num_cpus_per_worker", "require_target", "command_line", "jobs")
    allowed += _CALLBACK_OPTIONS
    allowed = (*allowed, *_CHECKPOINT_OPTIONS, *_LIMITED_OPTIONS)
    others = [
        name
        for name, value in vars(options).items()
        if name not in allowed and value is not None
    ]
    if others or options.engine != "auto":
        raise ValueError(
            "`--resume` continues a training with its own settings. Expected: no other "
            "options, except ENV, --env-arg, --export, --jobs, --ray, "
            f"{_flags(_CALLBACK_OPTIONS)}, {_flags(_CHECKPOINT_OPTIONS)}, "
            f"{_flags(_LIMITED_OPTIONS)}. Received: {_flags(others) or '--engine'}"
        )


def _flags(names):
    """Returns the options with the given attribute names, separated by commas."""
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


def _check_resumed_env(options, config):
    """Sets `options.env` to the environment id of a run that continues.

    The user may pass the id without its version.
    """
    from tf_reinforce.experiments import run_config

    env = config["env"]
    if options.env is None and ":" in env:
        command = run_config.resume_command(options.resume, config)
        raise ValueError(
            f"The run uses the environment {env}. For safety, `--resume` imports no "
            f"module that a run directory names. Give the id: {command}"
        )
    if options.env not in (None, env, re.sub(r"-v\d+$", "", env)):
        raise ValueError(
            f"The run in {options.resume} uses another environment. Expected: {env}. "
            f"Received: {options.env}"
        )
    options.env = env if ":" in env else env_ids.find_env(env)


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


def check_env_settings(env, settings):
    """Makes an environment if a setting requires it, and checks head and `env_kwargs`.

    The environment of an id `module:Id` is not made, because the module may import
    TensorFlow.
    """
    from tf_reinforce.engine.collect import env_arguments
    from tf_reinforce.settings import default_settings

    env_kwargs, head = settings["env_kwargs"], settings["agent"].get("head")
    if ":" in env or (head is None and not env_kwargs):
        return
    import gymnasium

    with env_arguments.explain_errors_of_make(env, env_kwargs):
        gym_env = gymnasium.make(env, disable_env_checker=True, **env_kwargs)
    gym_env.close()
    if head is not None:
        default_settings.head_settings(head, gym_env.action_space)


def check_engine(options, settings):
    """Raises `ValueError` if `--engine` or `--seeds` does not support the settings."""
    host_only = host_settings(settings)
    if options.engine == "compiled":
        refused, workers = dict(host_only), settings["fit"].get("workers", 1)
        if not uses_one_program(options, settings) and workers != 1:
            refused["workers"] = workers
        if options.ray is not None:
            refused["ray"] = options.ray
        if refused:
            raise ValueError(
                "`--engine compiled` takes no environment arguments, collects a fixed "
                "number of episodes for each update in one process, and drops no "
                "episodes. Pass `--episodes-per-epoch`, or `--engine host`. "
                "Received: "
                + ", ".join(f"{_flags([name])} {x}" for name, x in refused.items())
            )
        config.check_twin(options.env)
    if options.seeds is not None:
        validation.positive_int("seeds", options.seeds)
    check_jobs(options, options.seeds is not None)


def check_jobs(options, has_seeds):
    """Raises `ValueError` if `--jobs` is invalid, or there are no several seeds."""
    validation.positive_int_or_none("jobs", options.jobs)
    if options.jobs is not None and not has_seeds:
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
    baseline = agent["baseline"]
    rates = [agent["learning_rate"]]
    rates += [baseline.get("learning_rate")] if isinstance(baseline, dict) else []
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
    cores = options.num_cpus_per_worker
    if options.ray is None:
        if cores is not None:
            raise ValueError(
                "`--num-cpus-per-worker` requires `--ray`, the address of a Ray cluster. "
                f"Received: --num-cpus-per-worker {cores:g}"
            )
        return None
    count = settings["fit"].get("workers")
    if count is None:
        raise ValueError(
            "`--ray` requires `--workers`, the number of workers on the cluster. "
            f"Received: --ray {options.ray}"
        )
    default = config.RayWorkers.num_cpus_per_worker
    cores = default if cores is None else cores
    return config.RayWorkers(count, options.ray, num_cpus_per_worker=cores)


def hold_connection(workers):
    """Returns a context manager with the connection of `RayWorkers`, if there are any."""
    if workers is None:
        return contextlib.nullcontext()
    from tf_reinforce.engine.collect import ray_connection

    return ray_connection.hold(workers.address)


def check_cluster(options, cluster):
    """Raises `ValueError` if learner processes do not support the options."""
    if options.seeds is not None:
        raise ValueError(
            "`--seeds` trains in one process. Expected: one seed, or one process. "
            f"Received: --seeds {options.seeds}, and {len(cluster.hosts)} learner "
            "processes in TF_CONFIG. To train in one process, set TF_CONFIG={}."
        )


def host_settings(settings):
    """Returns a dict of the options whose settings the compiled engine does not support.

    `workers` is not among them: with `--engine auto`, it selects the host engine.
    """
    fit = settings["fit"]
    names = "steps_per_epoch", *config.FAULT_OPTIONS
    host_only = {
        name: fit[name] for name in names if fit.get(name, "raise") not in ("raise", None)
    }
    if settings["env_kwargs"]:
        host_only["env_arg"] = settings["env_kwargs"]
    return host_only
