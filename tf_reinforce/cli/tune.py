"""The command `tune`, which searches settings for a training."""

import dataclasses
import importlib.util
import pathlib
import shlex
from typing import Annotated, Literal

from tf_reinforce.cli import agent_files
from tf_reinforce.cli import options as cli_options
from tf_reinforce.cli import plans
from tf_reinforce.cli import train
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


@dataclasses.dataclass(kw_only=True)
class TuneOptions(cli_options.TaskOptions):
    """The options of `tune` besides `options.SETTINGS`.

    Attributes:
        trials: Finished trials at the end, with those of an earlier command.
        jobs: Processes side by side, each on one core.
        trainings: Trainings of each trial, each with a seed of its own.
        confirm: Further trainings of each of the five best trials at the end, to choose
            between them; 0: none.
        ranges: TOML file with a table [ranges] (that of the preset).
        objective: steps: environment steps until an evaluation reaches the target;
            return: mean return at the end of the budget; or a key of log.csv, whose mean
            over the last tenth counts (steps if there is a target, else return).
        minimize: Smaller values of a log key are better.
        sampler: How to draw settings.
        no_prune: Do not end trials that are below the median.
        run_dir: Folder of the search (runs/ENV/DATE_tune); a search in it continues.
    """

    trials: Count = 20
    jobs: Count = 1
    trainings: Count = 3
    confirm: Annotated[int, schema.Range(0)] = 7
    ranges: str | None = None
    objective: str | None = None
    minimize: bool = False
    sampler: Literal["tpe", "random"] = "tpe"
    no_prune: bool = False
    run_dir: str | None = None


def add_parser(commands):
    """Adds the parser of `tf-reinforce tune`."""
    command = cli_options.add_command(commands, tune, TuneOptions)
    names = [name for name in cli_options.SETTINGS if name not in _WITHOUT]
    budget = f"{_DEFAULT_STEPS:,}"
    text = f"Environment steps of each training (those of the preset, else {budget})"
    cli_options.add_settings(command, names, steps=text)


def tune(options):
    """Search settings for a training.

    Trains with different settings, and writes the best as a preset. The first trial uses
    --preset and the options as they are. Repeat an interrupted command with its --run-dir
    to continue the search.
    """
    plan, ranges = _check(options)
    startup.import_tensorflow()
    from tf_reinforce.experiments import runs
    from tf_reinforce.experiments import tuning
    from tf_reinforce.experiments import tuning_trial

    content = tuning_trial.SearchConfig(
        plan.env,
        {name: plan.settings[name] for name in ("env_kwargs", *config.PRESET_TABLES)},
        search_space.to_table(ranges),
        engine="host" if varied(plan, ranges).twin() is None else "compiled",
        **_objective(options, plan),
        seed=plan.seed,
        seeds=options.trainings,
        confirm=options.confirm,
        sampler=options.sampler,
        prune=not options.no_prune,
    )
    directory = options.run_dir or runs.default_directory(plan.env, "tune")
    directory = pathlib.Path(directory)
    with tuning.open_search(directory, content) as search:
        return _search(search, options, directory)


def _check(options):
    """Returns the `Plan` and the ranges of a search.

    It imports TensorFlow only if the environment's module does.
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
    folder = options.run_dir
    if folder is not None and not run_config.read(folder):
        files.expect_empty_folder(pathlib.Path(folder))
    plan = plans.make(options)
    if plan.task is None:
        startup.import_tensorflow()  # the module may import TensorFlow
        agent_files.find_env(plan.env)
        plan = plans.make(options)
    fit = plan.settings["fit"]
    if fit.get("epochs") is not None:
        raise ValueError(
            "The budget of a search must be in environment steps, because trials may "
            "have different numbers of steps in an update. Pass --steps N. Received: "
            f"epochs={fit['epochs']} in the preset {options.preset}"
        )
    fit.setdefault("steps", _DEFAULT_STEPS)
    if options.ranges is not None:
        ranges = search_space.read(options.ranges)
    else:
        preset = toml_files.read_for_env(options.preset, plan.env)
        ranges = search_space.parse(preset["ranges"])
        ranges = ranges or search_space.default_ranges(plan.settings)
    search_space.check(ranges, plan.settings)
    return plan, ranges


def varied(plan, ranges):
    """Adds the options of `fit` that have a range to a plan, for its engine."""
    names = {x.path[1]: "a range" for x in ranges if x.path[0] == "fit"}
    settings = {**plan.settings, "fit": {**plan.settings["fit"], **names}}
    return dataclasses.replace(plan, settings=settings)


def _objective(options, plan):
    """Returns objective, direction and target, as arguments of a search."""
    key = options.objective or ("return" if plan.target is None else "steps")
    if key == "steps" and plan.target is None:
        raise ValueError(
            "`--objective steps` needs a target, and the environment states no reward "
            "threshold. Pass --target-return, or --objective return. Received: "
            f"--objective steps for {plan.env}"
        )
    is_steps = key == "steps"
    target = plan.target if is_steps else None
    return dict(objective=key, minimize=options.minimize or is_steps, target=target)


def _search(search, options, directory):
    """Runs the missing trials, prints the results, and returns the exit code."""
    from tf_reinforce.experiments import tuning

    def show(line):
        return lambda index: print(line(search, index))

    _print_start(search, options)
    try:
        show_trial = show(tuning.trial_line)
        tuning.run_trials(search, options.trials, options.jobs, show_trial)
        if count := len(search.unconfirmed()):
            seeds = search.config.confirm
            print(f"training the best {count} trials with {seeds} further seeds each …")
        search.confirm(show(tuning.confirmed_line))
    except KeyboardInterrupt:
        print(f"\ninterrupted; {len(search.finished())} finished trials are stored")
        _write_results(search, directory)
        folder = "" if options.run_dir else f" --run-dir {shlex.quote(str(directory))}"
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
        f"searching {', '.join(x.name for x in config.space)}\n"
        f"for {goal}, with {trainings} training{'s' * (trainings > 1)} of at most "
        f"{config.budget:,} steps for each trial ({config.engine} engine)"
    )
    if search.retried:
        numbers = ", ".join(map(str, search.retried))
        print(f"tried again, because their process has ended: trials {numbers}")
    if count := len(search.finished()):
        print(f"finished trials: {count} of {max(count, options.trials)}")


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
