"""Runs the command `tune`, which searches settings for a training."""

import datetime
import importlib.util
import pathlib
import shlex

from tf_reinforce.cli import argument_types
from tf_reinforce.cli import env_ids
from tf_reinforce.cli import train_options
from tf_reinforce.cli import train_settings
from tf_reinforce.support import files
from tf_reinforce.support import startup
from tf_reinforce.support import validation

_BEST = "best.toml"  # in the folder of the search, the preset of the best settings
_DEFAULT_STEPS = 100_000  # the budget of a training, without preset and options
_INTERRUPTED = 130  # exit code after Ctrl-C
# The options of `train` that set no setting, and that `tune` has too.
_SHARED = "env", "--preset", "--env-arg", "--engine", "--seed", "--set", "--import"
# Options of `train` that set a setting, and that `tune` does not have.
_EXCLUDED = "--epochs", "--eval-every"
# Options of `train` that mean something else for `tune`.
_OTHER_HELP = {
    "--steps": "environment steps of each training (those of the preset, else "
    f"{_DEFAULT_STEPS:,})",
    "--workers": "processes that collect the episodes of a training (1); host only",
    "--target-return": "mean return that `--objective steps` reaches (the environment's "
    "reward threshold)",
}
# Names of the attribute, defaults and meanings of options that are whole numbers.
_COUNTS = {
    "--trials": (
        "trials",
        20,
        "finished trials at the end, with those of an earlier command",
    ),
    "--jobs": ("num_jobs", 1, "processes side by side; one core for each"),
    "--trainings": (
        "trainings",
        3,
        "trainings of each trial, each with a seed of its own",
    ),
    "--confirm": (
        "confirm",
        7,
        "further trainings of each of the five best trials at the end, which select the "
        "best; 0: none",
    ),
}
_OPTIONS = {
    "--ranges": dict(
        metavar="FILE", help="TOML file with a table [ranges] (that of the preset)"
    ),
    "--objective": dict(
        metavar="NAME",
        help="steps: environment steps until an evaluation reaches the target; "
        "return: mean return at the end of the budget; or a key of log.csv, whose "
        "mean over the last tenth counts (steps if there is a target, else return)",
    ),
    "--minimize": dict(
        action="store_true", help="smaller values of a log key are better"
    ),
    "--sampler": dict(
        choices=("tpe", "random"), default="tpe", help="how to draw settings (tpe)"
    ),
    "--no-prune": dict(
        action="store_true", help="do not end trials that are below the median"
    ),
    "--run-dir": dict(
        dest="search_dir",
        metavar="DIR",
        help="folder of the search (runs/ENV/tune_DATE); the search in it continues",
    ),
}


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce tune`."""
    command = subparsers.add_parser(
        "tune",
        help="search settings for a training",
        description="Trains with different settings, and writes the best settings as a "
        "preset. The settings of --preset and of the options are the first trial. An "
        "interrupted search continues with the same command and its --run-dir.",
    )
    for option in train_options.TRAIN_OPTIONS:
        is_setting = bool(option.settings) and option.flag not in _EXCLUDED
        if is_setting or option.flag in _SHARED:
            help = _OTHER_HELP.get(option.flag, option.arguments.get("help"))
            command.add_argument(option.flag, **{**option.arguments, "help": help})
        else:  # an option of `train` that `tune` does not have
            command.set_defaults(**{option.name: None})
    for flag, (name, default, text) in _COUNTS.items():
        command.add_argument(
            flag,
            dest=name,
            type=argument_types.count,
            default=default,
            metavar="N",
            help=f"{text} ({default})",
        )
    for flag, arguments in _OPTIONS.items():
        command.add_argument(flag, **arguments)
    command.set_defaults(command=run)


def run(options):
    """Runs `tf-reinforce tune` and returns the exit code."""
    seed, settings, ranges = _check(options)
    startup.import_tensorflow()
    from tf_reinforce.experiments import search_space
    from tf_reinforce.experiments import tuning
    from tf_reinforce.experiments import tuning_trial

    if ":" in options.env:
        options.env = env_ids.find_env(options.env)
    config = tuning_trial.SearchConfig(
        options.env,
        settings,
        search_space.to_table(ranges),
        engine=_engine(options, settings, ranges),
        **_objective(options, settings),
        seed=seed,
        seeds=options.trainings,
        confirm=options.confirm,
        sampler=options.sampler,
        prune=not options.no_prune,
    )
    directory = _directory(options)
    if not tuning.expect_same_search(directory, config):
        tuning_trial.check_objective(config)
    with tuning.open_search(directory, config) as search:
        return _search(search, options, directory)


def start_child():
    """Prepares a child process for trials; see `tuning.end_with_parent`."""
    startup.import_tensorflow()
    from tf_reinforce.experiments import tuning

    tuning.end_with_parent()


def _objective(options, settings):
    """Returns the objective, its direction and the target, as arguments of a search."""
    from tf_reinforce.experiments import runs

    target = settings["evaluation"].get("target")
    if target is None:
        target = runs.reward_threshold(options.env, settings["env_kwargs"])
    key = options.objective or ("return" if target is None else "steps")
    if key == "steps" and target is None:
        raise ValueError(
            "`--objective steps` needs a target, and the environment states no reward "
            "threshold. Pass --target-return, or --objective return. Received: "
            f"--objective steps for {options.env}"
        )
    return {"objective": key, "minimize": options.minimize or key == "steps"} | {
        "target": target if key == "steps" else None
    }


def _engine(options, settings, ranges):
    """Returns `"compiled"` if trainings can use the twin of the environment."""
    from tf_reinforce import envs

    varies_steps = any(x.path == ("fit", "steps_per_epoch") for x in ranges)
    if options.engine == "compiled":
        if varies_steps:
            raise ValueError(
                "`--engine compiled` collects a fixed number of episodes for each "
                "update. Received: a range for fit.steps_per_epoch"
            )
        return "compiled"
    workers = settings["fit"].get("workers", 1)
    is_host = varies_steps or workers != 1 or options.engine == "host"
    if is_host or train_settings.host_settings(settings):
        return "host"
    twin, limit = envs.twin_of(options.env), settings["fit"].get("max_episode_steps")
    has_limit = twin is not None and (twin.max_episode_steps or limit)
    return "compiled" if has_limit else "host"


def _directory(options):
    """Returns the path of the folder of the search."""
    if options.search_dir is not None:
        return pathlib.Path(options.search_dir)
    date = datetime.datetime.now().strftime("%Y-%m-%d_%H%M%S")
    name = options.env.replace(":", "_").replace("/", "_")
    return pathlib.Path("runs", name, f"tune_{date}")


def _search(search, options, directory):
    """Runs the missing trials, prints the results, and returns the exit code."""
    from tf_reinforce.experiments import tuning
    from tf_reinforce.experiments import tuning_report

    _print_start(search, options)
    try:
        tuning.run_trials(
            search,
            options.trials,
            options.num_jobs,
            lambda index: print(tuning_report.trial_line(search, index), flush=True),
            start_child,
        )
        if count := len(search.unconfirmed()):
            seeds = search.config.confirm
            print(f"training the best {count} trials with {seeds} further seeds each …")
        search.confirm(
            lambda index: print(tuning_report.confirmed_line(search, index), flush=True)
        )
    except KeyboardInterrupt:
        print(f"\ninterrupted; {len(search.finished())} finished trials are stored")
        _write_results(search, directory)
        print(f"to continue: {_resume_command(options, directory)}")
        return _INTERRUPTED
    code = _write_results(search, directory)
    if code == 0:
        budget = f"{search.config.budget:,} steps as in the search"
        print(
            f"\nnext ({budget}; --steps N: more):\n  {_next_command(search, directory)}"
        )
    return code


def _print_start(search, options):
    """Prints what is searched, and how many trials are missing."""
    config, trainings = search.config, search.config.seeds
    goal = f"{'lowest' if config.minimize else 'highest'} {config.objective}"
    if config.objective == "steps":
        goal = f"fewest steps to a return of {config.target}"
    print(
        f"searching {', '.join(x.name for x in search.config.space)}\n"
        f"for {goal}, with {trainings} training{'s' * (trainings > 1)} of at most "
        f"{config.budget:,} steps for each trial ({config.engine} engine)"
    )
    if search.retried:
        numbers = ", ".join(map(str, search.retried))
        print(f"tried again, because their process has ended: trials {numbers}")
    if count := len(search.finished()):
        print(f"finished trials: {count} of {max(count, options.trials)}", flush=True)


def _write_results(search, directory):
    """Writes the best preset and the picture, prints the table, returns the exit code."""
    from tf_reinforce.experiments import tuning_report

    if search.best() is None:
        print("no trial is complete")
        return 1
    print(f"\n{tuning_report.table(search)}\n")
    tuning_report.write_preset(search, directory / _BEST)
    if not any(tuning_report.reaches_target(search, x) for x in search.ranked()):
        print("no trial reached the target in all trainings; --steps N sets their budget")
    print(f"best settings: {directory / _BEST}")
    try:
        tuning_report.save_picture(search, directory / "tune.png")
        print(f"picture: {directory / 'tune.png'}")
    except ImportError as error:
        print(f"no picture: {error}")
    return 0


def _next_command(search, directory):
    """Returns the command that trains with the best settings."""
    from tf_reinforce.experiments import run_config

    env_kwargs = search.config.settings["env_kwargs"]
    path = str(directory / _BEST)
    words = ["tf-reinforce", "train", search.config.env, "--preset", path]
    return shlex.join([*words, *run_config.env_arg_options(env_kwargs)])


def _resume_command(options, directory):
    """Returns the command that continues the search, quoted for a shell."""
    is_named = options.search_dir is not None
    folder = "" if is_named else f" --run-dir {shlex.quote(str(directory))}"
    return options.command_line + folder


def _check(options):
    """Returns seed, settings and ranges, without importing TensorFlow."""
    from tf_reinforce.experiments import search_space
    from tf_reinforce.settings import toml_files

    _check_own_options(options)
    seed, settings = train_settings.check_train_options(options)
    if ":" in options.env:
        startup.import_tensorflow()  # the module may import TensorFlow
        options.env = env_ids.find_env(options.env)
        settings = train_settings.choose_settings(options)
    preset = toml_files.read(options.preset) if options.preset else {"ranges": {}}
    settings = {x: settings[x] for x in ("env_kwargs", "agent", "fit", "evaluation")}
    _check_budget(options, settings["fit"])
    train_settings.check_env_settings(options.env, settings)
    train_settings.check_engine(options, settings)
    if options.ranges is not None:
        ranges = search_space.read(options.ranges)
    else:
        ranges = search_space.parse(preset["ranges"])
        ranges = ranges or search_space.default_ranges(settings)
    search_space.check(ranges, settings)
    return seed, settings, ranges


def _check_own_options(options):
    """Raises `ValueError` if an option that `train` does not have is invalid."""
    from tf_reinforce.experiments import run_config

    if importlib.util.find_spec("optuna") is None:
        raise ImportError(
            'Tuning needs Optuna. Install it with `pip install "tf-reinforce[tune]"`.'
        )
    numbers = {"trials": options.trials, "jobs": options.num_jobs}
    for name, value in {**numbers, "trainings": options.trainings}.items():
        validation.positive_int(name, value)
    validation.whole_number("confirm", options.confirm, low=0)
    if options.objective in ("steps", "return") and options.minimize:
        raise ValueError(
            "`--minimize` applies to a log key only. Received: --objective "
            f"{options.objective} --minimize"
        )
    if options.env is None:
        raise ValueError(
            "`tune` needs an environment id, for example `tf-reinforce tune CartPole-v1`."
        )
    if options.search_dir is not None and not run_config.read(options.search_dir):
        files.expect_empty_folder(pathlib.Path(options.search_dir))


def _check_budget(options, fit):
    """Sets the default budget; raises if the preset states it in updates."""
    if fit.get("epochs") is not None:
        raise ValueError(
            "The budget of a search must be in environment steps, because trials may "
            "have different numbers of steps in an update. Pass --steps N. Received: "
            f"epochs={fit['epochs']} in the preset {options.preset}"
        )
    if fit.get("steps") is None:
        fit["steps"] = _DEFAULT_STEPS
