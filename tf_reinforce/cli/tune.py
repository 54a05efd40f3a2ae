"""The command `tune`, which searches settings for a training."""

import dataclasses
import pathlib
import shlex
from typing import Annotated, ClassVar

from tf_reinforce.cli import options as cli_options
from tf_reinforce.cli import plans
from tf_reinforce.cli import train
from tf_reinforce.experiments import search_space
from tf_reinforce.settings import config
from tf_reinforce.settings import run_config
from tf_reinforce.settings import schema
from tf_reinforce.settings import toml_files
from tf_reinforce.settings.schema import Count
from tf_reinforce.support import extras
from tf_reinforce.support import files
from tf_reinforce.support import startup
from tf_reinforce.support import validation

_BEST = "best.toml"  # in the folder of the search, the preset of the best settings
_DEFAULT_STEPS = 100_000  # the budget of a training, without preset and options
# Options of `train` that `tune` does not have.
_WITHOUT = {"epochs", "steps", "eval_every", "grace", *config.TABLES["callbacks"]}


@dataclasses.dataclass(kw_only=True)
class TuneOptions(cli_options.TaskOptions):
    """The options of `tune` besides `settings`.

    Attributes:
        trials: Finished trials at the end, with those of an earlier command.
        steps: Environment steps of each training (those of the preset, else 100,000).
        jobs: Processes side by side, each on one core.
        trainings: Trainings of each trial, each with a seed of its own.
        confirm: Further trainings of each of the five best trials at the end, to choose
            between them; 0: none.
        objective: steps: environment steps until an evaluation reaches the target;
            return: mean return at the end of the budget; or a key of log.csv, whose mean
            over the last tenth counts (steps if there is a target, else return).
        minimize: Smaller values of the objective are better.
        prune: End trials that are below the median.
        space: MODULE:FUNCTION of your own, called with a trial of Optuna, which returns a
            dict of keyword arguments of --agent's function.
        run_dir: Folder of the search (runs/ENV/DATE_tune); a search in it continues.
    """

    settings: ClassVar = tuple(x for x in cli_options.SETTINGS if x not in _WITHOUT)

    trials: Count = 20
    steps: Count | None = None
    jobs: Count = 1
    trainings: Count = 3
    confirm: Annotated[int, schema.Range(0)] = 7
    objective: str | None = None
    minimize: bool = False
    prune: bool = True
    space: str | None = None
    run_dir: str | None = None


def tune(options: TuneOptions):
    """Search settings for a training.

    Trains with different settings, and writes the best ones as a preset. The first trial
    uses --preset and the options as they are. To continue an interrupted search, repeat
    the command with its --run-dir.
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
        prune=options.prune,
        **plan.own,
    )
    directory = options.run_dir or runs.default_directory(plan.env, "tune")
    directory = pathlib.Path(directory)
    with tuning.open_search(directory, content) as search:
        return _search(search, options, directory)


def _check(options):
    """Returns the `Plan` and the ranges of a search, without importing TensorFlow."""
    extras.load("optuna", "tune")
    folder = options.run_dir
    if folder is not None and not run_config.read(folder):
        files.expect_empty_folder(pathlib.Path(folder))
    plan = plans.make(options)
    fit = plan.settings["fit"]
    if fit.get("epochs") is not None:
        text = f"Received: epochs={fit['epochs']} in the preset {options.preset}"
        raise ValueError(f"A search counts steps, not updates. Pass --steps N. {text}")
    fit.setdefault("steps", _DEFAULT_STEPS)
    is_own = options.agent is not None
    if not is_own:
        cli_options.expect_none("without --agent", space=options.space)
    preset = toml_files.read_for_env(options.preset, plan.env, is_own)
    ranges = search_space.parse(preset["ranges"], is_own)
    if is_own and not ranges and options.space is None:
        raise ValueError(
            "A search with `--agent` needs ranges for the arguments of its function: the "
            "table [ranges.agent] in --preset FILE.toml, or --space MODULE:FUNCTION."
        )
    if not ranges and not is_own:
        ranges = search_space.default_ranges(plan.settings)
    search_space.check(ranges, plan.settings, is_own)
    return plan, ranges


def varied(plan, ranges):
    """Adds the options of `fit` that have a range to a plan, for its engine."""
    names = {x.path[1]: "a range" for x in ranges if x.path[0] == "fit"}
    settings = {**plan.settings, "fit": {**plan.settings["fit"], **names}}
    return dataclasses.replace(plan, settings=settings)


def _objective(options, plan):
    """Returns objective, direction and target, as arguments of a search."""
    key = options.objective or ("return" if plan.target is None else "steps")
    if key != "steps":
        return dict(objective=key, minimize=options.minimize, target=None)
    if plan.target is None:
        raise ValueError(
            f"`--objective steps` needs --target-return, because {plan.env} has no "
            "reward threshold."
        )
    return dict(objective=key, minimize=True, target=plan.target)


def _search(search, options, directory):
    """Runs the missing trials, prints the results, and returns the exit code."""
    from tf_reinforce.experiments import tuning

    _print_start(search, options)
    try:
        printable = validation.printable  # of the journal, which may be a stranger's
        show = lambda x: print(printable(tuning.trial_line(search, x)))  # noqa: E731
        tuning.run_trials(search, options.trials, options.jobs, show)
        if best := search.unconfirmed():
            seeds = search.config.confirm
            text = f"training the best {len(best)} trials with {seeds} further seeds each"
            print(f"{text} …")
        for index in best:
            search.confirm(index)
            print(printable(tuning.confirmed_line(search, index)))
    except KeyboardInterrupt:
        print(f"\ninterrupted; {len(search.finished())} finished trials are stored")
        _write_results(search, directory)
        folder = "" if options.run_dir else f" --run-dir {shlex.quote(str(directory))}"
        print(f"to continue: {options.command_line}{folder}")
        return train.INTERRUPTED
    return _write_results(search, directory)


def _print_start(search, options):
    """Prints what is searched, and how many trials are finished."""
    config = search.config
    names = [x.name for x in config.space] + [config.suggest]
    goal = f"{'lowest' if config.minimize else 'highest'} {config.objective}"
    if config.objective == "steps":
        goal = f"fewest steps to a return of {config.target}"
    print(
        f"searching {', '.join(x for x in names if x)}\n"
        f"for {goal}, with {config.seeds} training{'s' * (config.seeds > 1)} of at most "
        f"{config.budget:,} steps for each trial ({config.engine} engine)"
    )
    if count := len(search.finished()):
        print(f"finished trials: {count} of {max(count, options.trials)}")
    if missing := search.missing(options.trials)[: options.jobs]:
        print(f"running trial {' and '.join(map(str, missing))} …", flush=True)


def _write_results(search, directory):
    """Writes the best preset, prints the table, and returns the exit code."""
    from tf_reinforce.experiments import tuning

    if search.best() is None:
        print("no trial is complete")
        return 1
    print(f"\n{tuning.table(search)}\n")
    command = tuning.write_preset(search, directory / _BEST)
    print(f"best settings: {directory / _BEST}\nto use them: {command}")
    return 0
