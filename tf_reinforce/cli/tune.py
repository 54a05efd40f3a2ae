"""Runs the command `tune`, which searches settings for a training."""

import dataclasses
import datetime
import importlib.util
import pathlib
import shlex
from typing import Annotated, Literal

from tf_reinforce.cli import agent_files
from tf_reinforce.cli import options as cli_options
from tf_reinforce.cli import train
from tf_reinforce.cli import train_settings
from tf_reinforce.experiments import run_config
from tf_reinforce.experiments import search_space
from tf_reinforce.settings import config
from tf_reinforce.settings import schema
from tf_reinforce.settings import toml_files
from tf_reinforce.settings.schema import Count
from tf_reinforce.support import files
from tf_reinforce.support import startup

_BEST = "best.toml"  # in the folder of the search, the preset of the best settings
_DEFAULT_STEPS = 100_000  # the budget of a training, without preset and options
# Options of `train` that `tune` does not have.
_WITHOUT = {"epochs", "eval_every", "grace", *config.TABLES["callbacks"]}
_UNUSED = "ray", "num_cpus_per_worker", "seeds", "jobs", "export", "run_dir", "resume"


@dataclasses.dataclass(kw_only=True)
class TuneOptions(cli_options.TaskOptions):
    """The options of `tune` besides `options.SETTINGS`.

    Attributes:
        trials: Finished trials at the end, with those of an earlier command.
        num_jobs: Processes side by side; one core for each.
        trainings: Trainings of each trial, each with a seed of its own.
        confirm: Further trainings of each of the five best trials at the end, which
            select the best; 0: none.
        ranges: TOML file with a table [ranges] (that of the preset).
        objective: steps: environment steps until an evaluation reaches the target;
            return: mean return at the end of the budget; or a key of log.csv, whose mean
            over the last tenth counts (steps if there is a target, else return).
        minimize: Smaller values of a log key are better.
        sampler: How to draw settings.
        no_prune: Do not end trials that are below the median.
        search_dir: Folder of the search (runs/ENV/tune_DATE); the search in it continues.
    """

    trials: Count = 20
    num_jobs: Count = 1
    trainings: Count = 3
    confirm: Annotated[int, schema.Range(0)] = 7
    ranges: str | None = None
    objective: str | None = None
    minimize: bool = False
    sampler: Literal["tpe", "random"] = "tpe"
    no_prune: bool = False
    search_dir: str | None = None


def add_parser(commands):
    """Adds the parser of `tf-reinforce tune`."""
    command = cli_options.add_command(commands, tune, TuneOptions)
    names = [name for name in cli_options.SETTINGS if name not in _WITHOUT]
    budget = f"{_DEFAULT_STEPS:,}"
    text = f"Environment steps of each training (those of the preset, else {budget})"
    cli_options.add_settings(command, names, steps=text)
    command.set_defaults(**dict.fromkeys(_UNUSED))


def tune(options):
    """Search settings for a training.

    Trains with different settings, and writes the best settings as a preset. The settings
    of --preset and of the options are the first trial. An interrupted search continues
    with the same command and its --run-dir.
    """
    settings, ranges, task = _check(options)
    startup.import_tensorflow()
    from tf_reinforce.experiments import tuning
    from tf_reinforce.experiments import tuning_trial

    content = tuning_trial.SearchConfig(
        options.env,
        settings,
        search_space.to_table(ranges),
        engine=_engine(options, settings, ranges),
        **_objective(options, settings, task),
        seed=options.seed or 0,
        seeds=options.trainings,
        confirm=options.confirm,
        sampler=options.sampler,
        prune=not options.no_prune,
    )
    directory = options.search_dir
    if directory is None:
        date = datetime.datetime.now().strftime("%Y-%m-%d_%H%M%S")
        name = options.env.replace(":", "_").replace("/", "_")
        directory = pathlib.Path("runs", name, f"tune_{date}")
    directory = pathlib.Path(directory)
    with tuning.open_search(directory, content) as search:
        return _search(search, options, directory)


def _check(options):
    """Returns settings, ranges and `Task` of a search.

    TensorFlow is imported only if the module of the environment is.
    """
    if importlib.util.find_spec("optuna") is None:
        raise ImportError(
            'Tuning needs Optuna. Install it with `pip install "tf-reinforce[tune]"`.'
        )
    if options.objective in ("steps", "return") and options.minimize:
        raise ValueError(
            "`--minimize` applies to a log key only. Received: --objective "
            f"{options.objective} --minimize"
        )
    folder = options.search_dir
    if folder is not None and not run_config.read(folder):
        files.expect_empty_folder(pathlib.Path(folder))
    settings, task = train_settings.check_train_options(options)
    if ":" in options.env:
        startup.import_tensorflow()  # the module may import TensorFlow
        options.env = agent_files.find_env(options.env)
        settings, task = train_settings.choose_settings(options)
    settings = {x: settings[x] for x in ("env_kwargs", *config.PRESET_TABLES)}
    if settings["fit"].get("epochs") is not None:
        raise ValueError(
            "The budget of a search must be in environment steps, because trials may "
            "have different numbers of steps in an update. Pass --steps N. Received: "
            f"epochs={settings['fit']['epochs']} in the preset {options.preset}"
        )
    settings["fit"].setdefault("steps", _DEFAULT_STEPS)
    train_settings.check_engine(options, {**settings, "callbacks": {}})
    if options.ranges is not None:
        ranges = search_space.read(options.ranges)
    else:
        preset = toml_files.read(options.preset) if options.preset else {"ranges": {}}
        ranges = search_space.parse(preset["ranges"])
        ranges = ranges or search_space.default_ranges(settings)
    search_space.check(ranges, settings)
    return settings, ranges, task


def _objective(options, settings, task):
    """Returns the objective, its direction and the target, as arguments of a search."""
    target = settings["evaluation"].get("target", task.reward_threshold)
    key = options.objective or ("return" if target is None else "steps")
    if key == "steps" and target is None:
        raise ValueError(
            "`--objective steps` needs a target, and the environment states no reward "
            "threshold. Pass --target-return, or --objective return. Received: "
            f"--objective steps for {options.env}"
        )
    is_steps = key == "steps"
    minimize = options.minimize or is_steps
    return dict(objective=key, minimize=minimize, target=target if is_steps else None)


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


def _search(search, options, directory):
    """Runs the missing trials, prints the results, and returns the exit code."""
    from tf_reinforce.experiments import tuning

    def show(line):
        return lambda index: print(line(search, index), flush=True)

    _print_start(search, options)
    jobs = options.trials, options.num_jobs
    try:
        tuning.run_trials(search, *jobs, show(tuning.trial_line))
        if count := len(search.unconfirmed()):
            seeds = search.config.confirm
            print(f"training the best {count} trials with {seeds} further seeds each …")
        search.confirm(show(tuning.confirmed_line))
    except KeyboardInterrupt:
        print(f"\ninterrupted; {len(search.finished())} finished trials are stored")
        _write_results(search, directory)
        folder = f" --run-dir {shlex.quote(str(directory))}"
        folder = "" if options.search_dir is not None else folder
        print(f"to continue: {options.command_line}{folder}")
        return train.INTERRUPTED
    code = _write_results(search, directory)
    if code == 0:
        budget = f"{search.config.budget:,} steps as in the search"
        words = ["tf-reinforce", "train", options.env, "--preset", str(directory / _BEST)]
        words += run_config.env_arg_options(search.config.settings["env_kwargs"])
        print(f"\nnext ({budget}; --steps N: more):\n  {shlex.join(words)}")
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
    from tf_reinforce.experiments import tuning

    if search.best() is None:
        print("no trial is complete")
        return 1
    print(f"\n{tuning.table(search)}\n")
    tuning.write_preset(search, directory / _BEST)
    if not any(tuning.reaches_target(search, x) for x in search.ranked()):
        print("no trial reached the target in all trainings; --steps N sets their budget")
    print(f"best settings: {directory / _BEST}")
    try:
        tuning.save_picture(search, directory / "tune.png")
        print(f"picture: {directory / 'tune.png'}")
    except ImportError as error:
        print(f"no picture: {error}")
    return 0
