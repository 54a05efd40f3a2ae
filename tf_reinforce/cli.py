"""Defines the command line: `tf-reinforce`, also `python -m tf_reinforce`.

Modules that import TensorFlow are imported inside the commands, so that `--help` is fast.
"""

import argparse
import contextlib
import importlib
import importlib.util
import json
import math
import os
import pathlib
import shlex
import statistics
import sys
from typing import Any, NamedTuple

from tf_reinforce import config
from tf_reinforce import files
from tf_reinforce import startup
from tf_reinforce import validation
from tf_reinforce import version

INTERRUPTED = 130
OWN_PRESET = ""  # `--preset` without a name

# Values of settings that neither a preset nor an option of the command sets.
DEFAULTS = {
    "gamma": config.AgentOptions.gamma,
    "learning_rate": config.FOR_ENV_DEFAULTS["learning_rate"],
    "hidden": list(config.FOR_ENV_DEFAULTS["hidden"]),
    "baseline": config.FOR_ENV_DEFAULTS["baseline"],
    "entropy_coef": config.AgentOptions.entropy_coef,
    "normalize_observations": config.AgentOptions.normalize_observations,
}

# Options of other programs, and what to use instead.
UNKNOWN_OPTIONS = {
    ("--lr",): "--learning-rate",
    ("--timesteps", "--total-timesteps", "--total_timesteps"): "--steps",
    ("--episodes",): "--epochs (updates), --episodes-per-epoch or --steps",
}


def main(arguments=None):
    """Runs one command of `tf-reinforce` and returns the exit code.

    Args:
        arguments: List of strings, the command and its options. `arguments` defaults to
            the command-line arguments of the process.

    Returns:
        Exit code: 0 if the command succeeded; 1 if the environment failed or a number
        was not finite; 2 if an argument or a file was invalid; 130 after Ctrl-C; 143
        after SIGTERM.
    """
    arguments = sys.argv[1:] if arguments is None else arguments
    options = make_parser().parse_args(list(map(_escape_negative, arguments)))
    try:
        return options.command(options)
    except KeyboardInterrupt:
        return INTERRUPTED
    except Exception as error:
        code = _exit_code(error)
        if code is None:
            raise
        print(f"tf-reinforce: {error}", file=sys.stderr)
        return code


def _escape_negative(argument):
    """Returns an argument, with a leading space if the argument is a negative number.

    Without the leading space, argparse would read -1e-3 as an option.
    """
    try:
        float(argument)
    except ValueError:
        return argument
    return f" {argument}" if argument.startswith("-") else argument


def _exit_code(error):
    """Returns the exit code for an error, or `None` for a bug of the package."""
    # Modules that are not imported have raised no error. An import would take seconds.
    results = sys.modules.get("tf_reinforce.collect.results")
    gymnasium = sys.modules.get("gymnasium")
    failed = (FloatingPointError, *([results.EnvironmentFault] if results else ()))
    invalid = ValueError, OSError, ImportError
    invalid = (*invalid, *([gymnasium.error.Error] if gymnasium else ()))
    return 1 if isinstance(error, failed) else 2 if isinstance(error, invalid) else None


def _find_env(env):
    """Imports the module of an environment id, and returns the id with a version.

    If the id has the form `module:Id`, the module may be a file in the current folder.

    Raises:
        ValueError: If the module does not exist, or an Atari environment is used without
            the package ale-py.
        gymnasium.error.Error: If no environment with this id is registered.
    """
    module, colon, name = env.rpartition(":")
    if module:
        _import_module(module)
    import gymnasium
    from gymnasium.envs import registration

    if name.startswith("ALE/"):
        with contextlib.suppress(ImportError):
            importlib.import_module("ale_py")  # registers the environments
    namespace, base, number = registration.parse_env_id(name)
    if name not in gymnasium.registry and number is None:
        number = registration.find_highest_version(namespace, base)
        if number is not None:
            latest = registration.get_env_id(namespace, base, number)
            # Gymnasium would warn once for each environment that is made.
            print(
                f"tf-reinforce: {name} means {latest}, its latest version",
                file=sys.stderr,
            )
            name = latest
    try:
        return module + colon + gymnasium.spec(name).id
    except gymnasium.error.NamespaceNotFound as error:
        if namespace != "ALE":
            raise
        raise ValueError(
            f"{error} Atari environments require ale-py: "
            'pip install "tf-reinforce[atari]".'
        ) from error


def _import_module(module):
    _add_current_folder()
    try:
        importlib.import_module(module)
    except ModuleNotFoundError as error:
        if not f"{module}.".startswith(f"{error.name}."):
            raise  # the module exists, and imports a missing module
        raise _missing_module(error.name, module) from error


def _add_current_folder():
    folder = os.getcwd()
    if folder not in sys.path and "" not in sys.path:
        sys.path.append(folder)  # a console script, unlike `python -m`, omits the folder


def _missing_module(name, module):
    return ValueError(
        f"There is no module {name!r}. Expected: {name}.py in the current folder, "
        f"{os.getcwd()}, or an installed package. Received: {module}"
    )


def _resolve_env(env):
    """Returns an environment id with a version, without importing a module.

    The module of an id `module:Id` is not imported, because the module may import
    TensorFlow. The function returns such an id unchanged if the module exists.
    """
    module = env.rpartition(":")[0]
    if not module:
        return _find_env(env)
    _add_current_folder()
    package = module.partition(".")[0]
    if not package or importlib.util.find_spec(package) is None:
        raise _missing_module(package, module)
    return env


def train(options):
    """Runs `tf-reinforce train` and returns the exit code."""
    if options.resume is None:
        seed, settings = _check_train_options(options)
    else:
        seed, settings = _check_resume_options(options)
    _check_env(options.env, settings)
    _check_engine(options, settings)
    startup.import_tensorflow()
    if ":" in options.env:
        options.env = _find_env(options.env)
    from tf_reinforce import agent as agents
    from tf_reinforce.experiments import runs

    env = options.env
    if options.seeds is not None:
        _use_one_thread_per_operation()
    twin = _select_twin(options, settings)
    threshold = runs.reward_threshold(env, settings["env_kwargs"])
    target = settings["evaluation"].get("target", threshold)
    if options.seeds is not None:
        return _train_seeds(options, settings, twin, seed, target)
    agent = agents.Reinforce.for_env(
        env, seed=seed, env_kwargs=settings["env_kwargs"], **settings["agent"]
    )
    _print_budget(settings, target, threshold)
    with _run_directory(options, seed) as directory:
        result = runs.train(
            agent, env, directory, settings, target=target, seed=seed, twin=twin
        )
    if result["exit_code"]:
        _print_interrupted(directory, f" after {result['updates']} updates")
        return result["exit_code"]
    return_line = _return_line(
        env,
        result["evaluation"],
        runs.random_return(env, settings, seed) if options.preset else None,
        target,
        threshold,
    )
    _print_summary(directory, return_line, result)
    _export(options, directory)
    _print_next_commands(options, directory)
    return 0


@contextlib.contextmanager
def _run_directory(options, seed):
    """Yields the folder of a run, and removes a new folder if training never began."""
    from tf_reinforce import locks
    from tf_reinforce.experiments import runs

    if options.resume is not None:
        yield pathlib.Path(options.resume)
        return
    directory = runs.new_directory(options.run_dir, options.env, seed)
    try:
        yield directory
    except locks.FolderLocked:
        raise
    except Exception:
        runs.remove_if_unstarted(directory)
        raise


def _print_interrupted(directory, when=""):
    print(
        f"interrupted{when}; saved in {directory}\n"
        f"to continue: tf-reinforce train --resume {directory}"
    )


def _check_train_options(options):
    """Returns the seed and the settings of a training, without importing TensorFlow.

    If the id in `options.env` has no version, the function adds the latest version. The
    module of an id `module:Id` is not imported, because the module may import TensorFlow.

    Raises:
        ValueError, OSError: If an option or a setting of the training is invalid.
    """
    from tf_reinforce import presets
    from tf_reinforce.experiments import run_config

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
    options.env = _resolve_env(options.env)
    if options.preset == OWN_PRESET:
        options.preset = options.env
    preset = presets.read(options.preset) if options.preset else None
    settings = _settings(options, preset)
    run_config.check_settings(settings)
    _print_preset(options)
    return seed, settings


def _check_env(env, settings):
    """Makes an environment if a setting requires it, and checks head and `env_kwargs`.

    The environment of an id `module:Id` is not made, because the module may import
    TensorFlow.
    """
    from tf_reinforce import env_arguments
    from tf_reinforce.presets import agent_settings

    env_kwargs, head = settings["env_kwargs"], settings["agent"].get("head")
    if ":" in env or (head is None and not env_kwargs):
        return
    import gymnasium

    with env_arguments.explain_errors_of_make(env, env_kwargs):
        gym_env = gymnasium.make(env, disable_env_checker=True, **env_kwargs)
    gym_env.close()
    if head is not None:
        agent_settings.head_settings(head, gym_env.action_space)


def _check_engine(options, settings):
    """Raises `ValueError` if `--engine` or `--seeds` does not support the settings."""
    host_settings = _host_settings(settings)
    if options.engine == "compiled":
        if host_settings:
            raise ValueError(
                "`--engine compiled` takes no environment arguments, collects a fixed "
                "number of episodes for each update, and drops no episodes. Pass "
                "`--episodes-per-epoch`, or `--engine host`. Received: "
                + ", ".join(f"{name}={x}" for name, x in host_settings.items())
            )
        config.check_twin(options.env)
    if options.seeds is not None:
        validation.positive_int("seeds", options.seeds)
        is_host = host_settings or options.engine == "host"
        _check_seeds(
            options, settings["fit"], has_twin=not is_host and options.env in config.TWINS
        )


def _host_settings(settings):
    """Returns a dict of the settings that the compiled engine does not support."""
    fit = settings["fit"]
    names = "steps_per_epoch", *config.FAULT_OPTIONS
    host_settings = {
        name: fit[name] for name in names if fit.get(name, "raise") not in ("raise", None)
    }
    if settings["env_kwargs"]:
        host_settings["env_kwargs"] = settings["env_kwargs"]
    return host_settings


def _check_seeds(options, fit, has_twin):
    if not has_twin or fit.get("epochs") is None:
        raise ValueError(
            "`--seeds` requires an environment with a twin in TensorFlow, and a "
            "number of updates. "
            f"Expected: --epochs, and one of {list(config.TWINS)}. Received: "
            f"{options.env}, epochs={fit.get('epochs')}, --engine {options.engine}"
        )


def _check_resume_options(options):
    """Returns the seed and the settings of the training to continue.

    The function reads `config.json` of the run, and sets `options.env`, `options.engine`
    and `options.seeds`. For safety, an id of the form `module:Id` is not read from the
    file, and must be passed as ENV.

    Raises:
        ValueError, OSError: If another option was passed, or the file is invalid.
    """
    from tf_reinforce.experiments import run_config

    allowed = ("env", "env_arg", "resume", "export", "command", "engine")
    allowed = (*allowed, *_CHECKPOINT_OPTIONS, *_LIMITED_OPTIONS)
    others = [
        f"--{name.replace('_', '-')}"
        for name, value in vars(options).items()
        if name not in allowed and value is not None
    ]
    if others or options.engine != "auto":
        raise ValueError(
            "`--resume` continues a training with its own settings. Expected: no other "
            "options, except ENV, --env-arg, --export, --checkpoint-every, --grace, "
            "--num-envs and --workers. "
            f"Received: {', '.join(others) or '--engine'}"
        )
    _check_export(options)
    explicit = dict(options.env_arg or ())
    fit = explicit_settings(options)["fit"]
    config = run_config.read_training(options.resume, explicit, fit, options.seeds)
    _check_resumed_env(options, config["env"])
    options.engine, options.preset = config["engine"], config.get("preset")
    seeds = config.get("seeds")
    options.seeds = None if seeds is None else len(seeds)
    settings = {name: config[name] for name in ("env_kwargs", "agent", "fit")}
    settings["preset"] = options.preset
    settings["evaluation"] = dict(config["evaluation"])
    if config.get("target_return") is not None:
        settings["evaluation"]["target"] = config["target_return"]
    settings["checkpoint"] = {**config["checkpoint"], **_checkpoint_settings(options)}
    return config["seed"] if seeds is None else seeds[0], settings


def _check_resumed_env(options, env):
    """Sets `options.env` to the environment id of a run that continues."""
    if options.env is None and ":" in env:
        raise ValueError(
            f"The run uses the environment {env}. For safety, `--resume` imports no "
            f"module that a run directory names. Give the id: tf-reinforce train {env} "
            f"--resume {options.resume}"
        )
    if options.env not in (None, env):
        raise ValueError(
            f"The run in {options.resume} uses another environment. Expected: {env}. "
            f"Received: {options.env}"
        )
    options.env = env if ":" in env else _find_env(env)


def _check_export(options):
    """Raises `ValueError` if an export could not replace the folder of `--export`."""
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


def _print_preset(options):
    from tf_reinforce.presets import toml_files

    names = [] if options.preset else toml_files.names_for(options.env)
    if names:
        option = "--preset" if names[0] == options.env else f"--preset {names[0]}"
        print(
            f"there is a preset for {options.env}, and it is not used; add {option}",
            flush=True,
        )


def _use_one_thread_per_operation():
    """Uses one thread per TensorFlow operation, unless the user set the thread count."""
    import tensorflow as tf

    threading = tf.config.threading
    threads = threading.get_intra_op_parallelism_threads()
    if not threads and "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):  # TensorFlow has already started
            threading.set_intra_op_parallelism_threads(1)


def _train_seeds(options, settings, twin, first_seed, target):
    from tf_reinforce import agent as agents
    from tf_reinforce.experiments import runs

    count, fit = validation.positive_int("seeds", options.seeds), settings["fit"]
    _check_seeds(options, fit, has_twin=twin is not None)

    def make(seed):
        return agents.Reinforce.for_env(twin, seed=seed, **settings["agent"])

    from tf_reinforce.training import interruption

    seeds = range(first_seed, first_seed + count)
    with _run_directory(options, first_seed) as directory:
        try:
            result = runs.train_seeds(make, options.env, directory, settings, twin, seeds)
        except (KeyboardInterrupt, interruption.Terminated) as error:
            _print_interrupted(directory)
            return getattr(error, "code", INTERRUPTED)
    returns = sorted(result["returns"].values())
    reached = ""
    if target is not None:
        reached = f", {sum(x >= target for x in returns)} of {count} at {target:g}"
    print(
        f"\n{options.env}: {count} seeds, {result['env_steps']:,} steps in "
        f"{result['seconds']:.1f} s\n"
        f"returns over fresh episodes: least {returns[0]:.1f}, median "
        f"{statistics.median(returns):.1f}, most {returns[-1]:.1f}{reached}\n"
        f"saved in {directory}"
    )
    _export(options, directory)
    return 0


def _export(options, directory):
    """Exports the policy of a run if the user passed `--export`."""
    from tf_reinforce.experiments import runs
    from tf_reinforce.loading import archive
    from tf_reinforce.loading import keras_file

    if options.export is not None:
        folder = options.export or directory / "policy"
        path = runs.agent_file(directory)
        keras_file.load(path, limits=archive.OWN_FILE).export(folder)
        print(f"exported to {folder}")


def _select_twin(options, settings):
    """Returns the `TensorEnv` to train on, or `None` to train on `options.env`.

    A twin is a `TensorEnv` that equals a Gymnasium environment step by step.
    """
    from tf_reinforce import envs

    fit = settings["fit"]
    uses_workers = options.seeds is None and fit.get("workers", 1) != 1
    if options.engine == "host" or (options.engine == "auto" and uses_workers):
        return None
    twin = None if _host_settings(settings) else envs.twin_of(options.env)
    if options.engine == "compiled":
        return twin or envs.make(options.env)
    if twin is not None:
        print(
            f"training on tf_reinforce.envs.{type(twin).__name__}, the compiled twin of "
            f"{options.env}, all episodes at once; evaluating on {options.env} itself "
            "(--engine host: both)"
        )
    return twin


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
    return {
        "preset": options.preset,
        "env_kwargs": {**settings["env_kwargs"], **dict(options.env_arg or ())},
        "agent": {**DEFAULTS, **settings["agent"], **explicit["agent"]},
        "fit": {"num_envs": config.FitOptions.num_envs, **fit},
        "evaluation": {**settings["evaluation"], **explicit["evaluation"]},
        "checkpoint": _checkpoint_settings(options),
    }


_CHECKPOINT_OPTIONS = ("checkpoint_every", "grace")
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


def _interval(text):
    """Returns `("every_updates", 10)` for "10", and `("every_seconds", 30.0)` for "30s".

    The value is the argument of `Checkpoints` that the option `--checkpoint-every` sets.
    """
    with contextlib.suppress(ValueError):
        if text.endswith("s"):
            return "every_seconds", validation.within("", float(text[:-1]), 0, math.inf)
        return "every_updates", validation.positive_int("", int(text))
    raise argparse.ArgumentTypeError(
        "must be a number of updates, for example 10, or of seconds, for example 60s. "
        f"Received: {text!r}"
    )


def explicit_settings(options):
    """Returns the options that the user passed, as the dict `{table: {key: value}}`."""
    tables = {"agent": {}, "fit": {}, "evaluation": {}}
    for option in TRAIN_OPTIONS:
        value = getattr(options, option.name)
        for setting in option.settings if value is not None else ():
            table, key = setting.split(".")
            tables[table][key] = value
    return tables


def _print_budget(settings, target, threshold):
    """Prints the target return that ends training, unless `epochs` or `steps` is set."""
    from tf_reinforce.experiments import runs

    fit = settings["fit"]
    if target is not None and fit.get("epochs") is None and fit.get("steps") is None:
        kind = "reward threshold" if target == threshold else "target return"
        episodes = runs.evaluation_options(settings)["episodes"]
        print(
            f"training ends when an evaluation over {episodes} episodes reaches the "
            f"{kind} {target:g}, or after {runs.MAX_UPDATES} updates",
            flush=True,
        )


def _return_line(env, metrics, random_return, target, threshold):
    """Returns a line with mean returns (agent, random policy) and the target return."""
    mean, deviation = metrics["episode_return"], metrics["episode_return_std"]
    line = (
        f"{env}: mean return {mean:.4g} ± {deviation:.4g} over "
        f"{metrics['episodes']:.0f} new episodes"
    )
    if random_return is not None:
        line += f", of a random policy {random_return:.4g}"
    if target is None:
        return line
    kind = "threshold" if target == threshold else "target"
    return f"{line}, {kind} {target:g} {'reached' if mean >= target else 'missed'}"


def _print_summary(directory, return_line, result):
    print(
        f"\n{return_line}\n"
        f"trained {result['updates']} updates, {result['env_steps']:,} steps, "
        f"{result['seconds']:.1f} s with {result['evaluations']} evaluations\n"
        f"saved in {directory}"
    )


def _print_next_commands(options, directory):
    # `evaluate` never reads an id of the form `module:Id` from a file.
    env_option = f" --env {options.env}" if ":" in options.env else ""
    for name, value in options.env_arg or ():
        if isinstance(value, str):  # `evaluate` reads no text from a file
            env_option += f" --env-arg {shlex.quote(f'{name}={value}')}"
    print(f"\nnext:\n  tf-reinforce evaluate {directory}{env_option} --episodes 1000")
    if options.export is None:
        print(f"  tf-reinforce export {directory} --out {directory}/policy")


def evaluate(options):
    """Runs `tf-reinforce evaluate` and returns the exit code."""
    _check_evaluate_options(options)
    limits = _load_limits(options)
    _expect_run(options.run, limits)
    startup.import_tensorflow()
    from tf_reinforce.experiments import runs
    from tf_reinforce.loading import keras_file

    agent = keras_file.load(runs.agent_file(options.run), limits=limits)
    env, env_options = runs.read_env(options.run, dict(options.env_arg or ()))
    env = options.env or env
    if env is None:
        raise ValueError(
            f"{options.run} contains no environment id, or an id of the form "
            "`module:Id`. For safety, `evaluate` imports no module that a run "
            "directory names. Give --env."
        )
    metrics = agent.evaluate(
        _find_env(env),
        options.episodes,
        deterministic=not options.stochastic,
        seed=options.seed,
        num_envs=options.num_envs,
        workers=options.workers,
        env_kwargs=env_options["env_kwargs"],
        max_episode_steps=options.max_episode_steps or env_options["max_episode_steps"],
    )
    print(json.dumps(metrics, indent=2))
    return 0


def _check_evaluate_options(options):
    for name in ("episodes", "num_envs", "workers"):
        validation.positive_int(name, getattr(options, name))
    validation.positive_int_or_none("max_episode_steps", options.max_episode_steps)
    validation.check_seed(options.seed)
    if options.env is not None:
        options.env = _resolve_env(options.env)


def _load_limits(options):
    """Returns the `LoadLimits` that `--max-bytes` and `--max-layers` set."""
    from tf_reinforce.loading import archive

    limits = {name: getattr(options, name) for name in ("max_bytes", "max_layers")}
    return archive.LoadLimits(**{k: x for k, x in limits.items() if x is not None})


def _expect_run(run, limits):
    """Raises an error unless a run directory or a path has a whole agent file."""
    path = pathlib.Path(run)
    path = path / "agent.keras" if path.is_dir() else path
    _expect_path(path)
    from tf_reinforce.loading import archive

    try:
        archive.read(os.fspath(path), limits)
    except ValueError as error:
        raise ValueError(f"{path} cannot be loaded. {error}") from error.__cause__


def _expect_path(path):
    if not os.path.exists(path):
        raise FileNotFoundError(f"There is no file {path}.")


def export(options):
    """Runs `tf-reinforce export` and returns the exit code."""
    files.expect_replaceable_folder(options.out)
    limits = _load_limits(options)
    _expect_run(options.run, limits)
    startup.import_tensorflow()
    from tf_reinforce.experiments import runs
    from tf_reinforce.loading import keras_file

    path = runs.agent_file(options.run)
    keras_file.load(path, limits=limits).export(options.out)
    print(f"exported to {options.out}: act, sample, distribution, log_prob")
    return 0


def replay(options):
    """Runs `tf-reinforce replay` and returns the exit code."""
    _expect_path(options.update)
    limits = _load_limits(options)
    startup.import_tensorflow()
    from tf_reinforce.experiments import replay as replays

    result = replays.replay(options.update, limits=limits)
    print(result)
    return 0 if result.error is None else 1


def explain(options):
    """Runs `tf-reinforce explain` and returns the exit code."""
    from tf_reinforce.functional import explained_action

    arguments = {
        name: getattr(options, name)
        for name in ("probs", "logits", "action", "counts", "mean", "std", "sample")
        if getattr(options, name) is not None
    }
    explained_action.check(**arguments)
    startup.import_tensorflow()
    from tf_reinforce.functional import explanation

    print(explanation.text(**arguments))
    return 0


def check_env(options):
    """Runs `tf-reinforce check-env` and returns the exit code, 1 if there is an error."""
    validation.check_seed(options.seed)
    validation.positive_int("episodes", options.episodes)
    validation.positive_int_or_none("max_episode_steps", options.max_episode_steps)
    env = _resolve_env(options.env)
    startup.import_tensorflow()
    env = _find_env(env)
    from tf_reinforce.testing import environments

    report = environments.check_env(
        env,
        episodes=options.episodes,
        seed=options.seed,
        env_kwargs=dict(options.env_kwargs),
        max_episode_steps=options.max_episode_steps,
        action_mask=options.action_mask,
    )
    print(report)
    return int(bool(report.errors))


def _keyword(text):
    """Returns the name and the value in the text `NAME=VALUE` of an option."""
    name, equals, value = text.partition("=")
    if not name.isidentifier() or not equals:
        raise argparse.ArgumentTypeError(
            f"must be NAME=VALUE, for example gravity=9.8. Received: {text!r}"
        )
    with contextlib.suppress(ValueError):
        return name, json.loads(value)
    return name, value


def _count(text):
    """Returns the int in the text of an option, for example 100000 or 1e5."""
    try:
        return int(text)
    except ValueError:
        with contextlib.suppress(ValueError):
            if (number := float(text)).is_integer():
                return int(number)
    raise argparse.ArgumentTypeError(
        f"must be a whole number, for example 100000 or 1e5. Received: {text!r}"
    )


def _env_argument(text):
    """Returns the name and the value of an environment argument, NAME=VALUE.

    A value in JSON format, for example a number or `true`, is converted, and any other
    value is text.
    """
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise argparse.ArgumentTypeError(
            f"must have the form NAME=VALUE, for example gravity=9.8. Received: {text!r}"
        )
    with contextlib.suppress(ValueError, RecursionError):
        value = json.loads(value)
    return name, value


_ENV_ARG = dict(
    action="append",
    type=_env_argument,
    metavar="NAME=VALUE",
    help="argument of the environment's constructor; the option may be repeated",
)


class _Unknown(argparse.Action):
    """Rejects an option of other libraries, like `--lr`, and prints the option to use."""

    def __call__(self, parser, namespace, values, option_string=None):
        parser.error(f"there is no option {option_string}. Use {self.const}.")


class _Option(NamedTuple):
    """An option of `tf-reinforce train`.

    Attributes:
        flag: String, the option on the command line, for example `--seed`.
        settings: The settings that the option overrides, each as `"table.key"` of a
            preset. An option with `settings=()` overrides no setting; the function
            `train` reads the option.
        arguments: Dict of keyword arguments for argparse's `add_argument`.
    """

    flag: str
    settings: tuple[str, ...]
    arguments: dict[str, Any]

    @property
    def name(self):
        """Returns the attribute name of the option in the parsed options."""
        return self.flag.lstrip("-").replace("-", "_")


# The options of `tf-reinforce train`, from which parser and settings are made.
TRAIN_OPTIONS = (
    _Option(
        "env",
        (),
        dict(metavar="ENV", nargs="?", help="environment id, also module:Id-v0"),
    ),
    _Option(
        "--preset",
        (),
        dict(
            metavar="NAME",
            nargs="?",
            const=OWN_PRESET,
            help="a preset of docs/presets.md, or FILE.toml (without NAME: that of ENV)",
        ),
    ),
    _Option("--env-arg", (), _ENV_ARG),
    _Option("--epochs", ("fit.epochs",), dict(type=_count, help="number of updates")),
    _Option(
        "--steps",
        ("fit.steps",),
        dict(type=_count, help="number of environment steps, instead of --epochs"),
    ),
    _Option(
        "--episodes-per-epoch",
        ("fit.episodes_per_epoch",),
        dict(type=_count, help=f"episodes per update ({config.EPISODES_PER_EPOCH})"),
    ),
    _Option(
        "--steps-per-epoch",
        ("fit.steps_per_epoch",),
        dict(type=_count, help="steps per update, instead of episodes"),
    ),
    _Option(
        "--num-envs",
        ("fit.num_envs",),
        dict(
            type=_count,
            help=f"environments side by side ({config.FitOptions.num_envs}); host only",
        ),
    ),
    _Option(
        "--workers",
        ("fit.workers",),
        dict(
            type=_count,
            help="processes that collect the episodes "
            f"({config.FitOptions.workers}); host only",
        ),
    ),
    _Option(
        "--engine",
        (),
        dict(
            choices=("auto", "host", "compiled"),
            default="auto",
            help="compiled: all episodes in one XLA program, if the environment has a "
            "twin in TensorFlow; host: Gymnasium's environment; auto: compiled if the "
            "registered environment equals the twin",
        ),
    ),
    _Option("--seed", (), dict(type=_count, help="number for all random draws (0)")),
    _Option(
        "--seeds",
        (),
        dict(type=_count, metavar="K", help="train K seeds at once, from --seed on"),
    ),
    _Option(
        "--learning-rate",
        ("agent.learning_rate",),
        dict(type=float, help=f"learning rate of Adam ({DEFAULTS['learning_rate']:g})"),
    ),
    _Option(
        "--gamma",
        ("agent.gamma",),
        dict(type=float, help=f"discount factor ({DEFAULTS['gamma']:g})"),
    ),
    _Option(
        "--hidden",
        ("agent.hidden",),
        dict(
            type=_count,
            nargs="*",
            help=f"hidden layer sizes ({' '.join(map(str, DEFAULTS['hidden']))})",
        ),
    ),
    _Option(
        "--head",
        ("agent.head",),
        dict(
            metavar="NAME",
            help=f"head for a Box: {', '.join(config.BOX_HEADS[:2])}, …",
        ),
    ),
    _Option(
        "--baseline",
        ("agent.baseline",),
        dict(
            choices=config.PRESET_BASELINES,
            help=f"baseline ({DEFAULTS['baseline']})",
        ),
    ),
    _Option(
        "--entropy-coef",
        ("agent.entropy_coef",),
        dict(
            type=float,
            help=f"coefficient of the entropy bonus ({DEFAULTS['entropy_coef']:g})",
        ),
    ),
    _Option(
        "--normalize-observations",
        ("agent.normalize_observations",),
        dict(action=argparse.BooleanOptionalAction),
    ),
    _Option(
        "--max-episode-steps",
        ("fit.max_episode_steps", "evaluation.max_episode_steps"),
        dict(type=_count, help="time limit (that of the environment)"),
    ),
    _Option(
        "--on-bad-env",
        ("fit.on_bad_env",),
        dict(
            choices=config.FAULT_OPTIONS["on_bad_env"],
            help="if the environment returns an invalid value: stop with an error, or "
            f"replace the episode ({config.FitOptions.on_bad_env}); host only",
        ),
    ),
    _Option(
        "--on-env-error",
        ("fit.on_env_error",),
        dict(
            choices=config.FAULT_OPTIONS["on_env_error"],
            help="if the environment raises an exception: stop with an error, or make "
            "the environment again and replace the episode "
            f"({config.FitOptions.on_env_error}); host only",
        ),
    ),
    _Option(
        "--target-return",
        ("evaluation.target",),
        dict(type=float, help="target (the environment's reward threshold)"),
    ),
    _Option(
        "--run-dir",
        (),
        dict(metavar="DIR", help="folder of this run (runs/ENV/DATE_seedN)"),
    ),
    _Option(
        "--resume",
        (),
        dict(metavar="DIR", help="continue the run in this folder, with its settings"),
    ),
    _Option(
        "--checkpoint-every",
        (),
        dict(
            type=_interval,
            metavar="N",
            help="updates (10) or seconds (60s) from one checkpoint to the next (60s)",
        ),
    ),
    _Option(
        "--grace",
        (),
        dict(
            type=float,
            metavar="SECONDS",
            help="after SIGTERM, end at the latest after this time (30)",
        ),
    ),
    _Option(
        "--export",
        (),
        dict(
            metavar="DIR",
            nargs="?",
            const="",
            help="also write the best policy as a SavedModel (RUN/policy)",
        ),
    ),
)


def make_parser():
    parser = argparse.ArgumentParser(
        prog="tf-reinforce", description="REINFORCE for people who think in Keras."
    )
    parser.add_argument("--version", action="version", version=version.VERSION)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    _train_parser(commands)

    command = commands.add_parser("evaluate", help="evaluate a trained agent")
    command.set_defaults(command=evaluate)
    command.add_argument("run", metavar="RUN", help="run directory or agent file")
    command.add_argument("--episodes", type=_count, default=100)
    command.add_argument("--env", help="environment id (that of the run)")
    command.add_argument("--env-arg", **_ENV_ARG)
    command.add_argument("--seed", type=_count, default=0)
    command.add_argument("--num-envs", type=_count, default=config.FitOptions.num_envs)
    command.add_argument(
        "--workers",
        type=_count,
        default=config.FitOptions.workers,
        help="processes that collect the episodes",
    )
    command.add_argument(
        "--max-episode-steps", type=_count, help="time limit (that of the run)"
    )
    command.add_argument(
        "--stochastic",
        action="store_true",
        help="sample actions instead of taking the most likely one",
    )
    _add_load_limits(command)

    command = commands.add_parser("export", help="write a SavedModel of the policy")
    command.set_defaults(command=export)
    command.add_argument("run", metavar="RUN", help="run directory or agent file")
    command.add_argument("--out", required=True, metavar="DIR", help="folder to write")
    _add_load_limits(command)
    _check_env_parser(commands)
    _replay_parser(commands)
    _explain_parser(commands)
    return parser


def _check_env_parser(commands):
    command = commands.add_parser(
        "check-env",
        help="check an environment, and explain what to correct",
        description="Collects episodes with a random policy, as in training, and prints "
        "errors, warnings and notes. The exit code is 1 if there is an error. The rules "
        "are in docs/environments.md.",
    )
    command.set_defaults(command=check_env)
    command.add_argument("env", metavar="ENV", help="environment id, also module:Id-v0")
    command.add_argument(
        "--env-kwargs",
        type=_keyword,
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="keyword arguments of the environment, with values in JSON or as text",
    )
    command.add_argument("--episodes", type=_count, default=5)
    command.add_argument("--seed", type=_count, default=0)
    command.add_argument("--max-episode-steps", type=_count, help="time limit")
    command.add_argument(
        "--action-mask", metavar="PATH", help="for example info/action_mask"
    )


def _replay_parser(commands):
    command = commands.add_parser(
        "replay",
        help="repeat and explain an update that was refused as not finite",
        description="Repeats an update that was refused because a number was not "
        "finite, and explains the cause. The exit code is 1 if the update is refused "
        "again, and 0 if it is finite.",
    )
    command.set_defaults(command=replay)
    command.add_argument(
        "update", metavar="DIR", help="folder refused_update_N of a run directory"
    )
    _add_load_limits(command)


def _add_load_limits(command):
    """Adds the options of a command that loads an agent, one for each `LoadLimits`."""
    for name in ("bytes", "layers"):
        command.add_argument(
            f"--max-{name}",
            type=_count,
            metavar="N",
            help=f"largest number of {name} of the agent file; the limit refuses files "
            "that would fill the memory",
        )


def _explain_parser(commands):
    command = commands.add_parser(
        "explain",
        help="print the gradient of one action's log-probability",
        description="Prints the characteristic eligibility, d log-probability / d "
        "parameter, in closed form beside automatic differentiation. Give --probs or "
        "--logits with --action or --counts, or --mean, --std and --sample. With "
        "--counts alone, all probabilities are equal.",
    )
    command.set_defaults(command=explain)
    add = command.add_argument
    add("--probs", type=float, nargs="+", metavar="P", help="relative probabilities")
    add("--logits", type=float, nargs="+", metavar="Z")
    add("--action", type=float, metavar="A", help="the sampled category, from 0")
    add(
        "--counts",
        type=float,
        nargs="+",
        metavar="N",
        help="how often each category was sampled",
    )
    add("--mean", type=float, nargs="+", metavar="M", help="of a diagonal Gaussian")
    add("--std", type=float, nargs="+", metavar="S")
    add("--sample", type=float, nargs="+", metavar="Y")


def _train_parser(commands):
    command = commands.add_parser(
        "train",
        help="train an agent on an environment",
        description="Without a budget (--epochs, --steps, or that of a preset) training "
        "ends when an evaluation over 100 episodes reaches the target return, or after "
        "300 updates. With a budget, the target is only reported.",
    )
    command.set_defaults(command=train)
    for option in TRAIN_OPTIONS:
        command.add_argument(option.flag, **option.arguments)
    for names, replacement in UNKNOWN_OPTIONS.items():
        suppress = dict(default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        command.add_argument(
            *names, action=_Unknown, nargs="?", const=replacement, **suppress
        )
