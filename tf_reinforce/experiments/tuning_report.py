"""Describes the trials of a search in lines, in a table, in a picture and in a preset."""

import collections
import warnings

import optuna

from tf_reinforce.experiments import comparison
from tf_reinforce.experiments import plots
from tf_reinforce.experiments import tuning
from tf_reinforce.settings import toml_files
from tf_reinforce.support import version

_STATES = optuna.trial.TrialState
_WORDS = {
    _STATES.COMPLETE: "complete",
    _STATES.PRUNED: "pruned",
    _STATES.FAIL: "failed",
}
_NUM_ROWS = 10  # of the table


def trial_line(search, index):
    """Returns a line about a finished trial, and the best trial so far."""
    [trial] = [x for x in search.finished() if search.index(x) == index]
    if trial.state == _STATES.FAIL:
        reason = trial.user_attrs[tuning.ERROR].splitlines()[0]
        return f"trial {index}: failed: {reason[:200]}"
    seconds = sum(x["seconds"] for x in trial.user_attrs.get("trainings", ()))
    parameters = (f"{_short(name)} {_number(x)}" for name, x in trial.params.items())
    text = f"{_value_text(search, trial)} · {seconds:.0f} s · {', '.join(parameters)}"
    best = search.best()
    is_best = best is not None and best.number == trial.number
    return f"trial {index}: {text}" + " · best so far" * is_best


def confirmed_line(search, index):
    """Returns a line about a trial that was trained with further seeds."""
    [trial] = [x for x in search.ranked() if search.index(x) == index]
    mean, count = search.confirmed(trial), search.config.confirm
    if mean is None:
        reason = search.confirmation(trial).splitlines()[0]
        return f"trial {index}: a training with a further seed failed: {reason[:200]}"
    trainings = "1 further training" if count == 1 else f"{count} further trainings"
    unit = search.config.objective
    return f"trial {index}: mean {mean:,.5g} {unit} with {trainings}"


def _value_text(search, trial):
    """Returns the value of a trial with its unit, and what the trial has reached."""
    config, trainings = search.config, trial.user_attrs["trainings"]
    if trial.state == _STATES.PRUNED:
        steps = sum(x["env_steps"] for x in trainings)
        return f"pruned after {steps:,} steps"
    if config.objective != "steps":
        return f"{config.objective} {trial.value:.5g}"
    reached = sum(x["reached"] for x in trainings)
    if reached == len(trainings):
        return f"{trial.value:,.0f} steps to {config.target:g}"
    returns = sum(x["best_return"] for x in trainings) / len(trainings)
    return f"{reached} of {len(trainings)} reach {config.target:g}, return {returns:.4g}"


def reaches_target(search, trial):
    """Returns whether all trainings of a trial reach the target return, if it has one."""
    trainings = trial.user_attrs["trainings"]
    return search.config.objective != "steps" or all(x["reached"] for x in trainings)


def _short(name):
    """Returns the name of a setting without its table."""
    return name.partition(".")[2]


def _number(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(search):
    """Returns a table of the best trials as text, with one row for each trial."""
    names = [x.name for x in search.config.space]
    confirmed = f"confirmed ({search.config.objective})"
    best = search.best()
    rows = [["trial", "result", confirmed, *map(_short, names), ""]]
    for trial in search.ranked()[:_NUM_ROWS]:
        mean = search.confirmed(trial)
        first = [str(search.index(trial)), _value_text(search, trial)]
        values = [_number(trial.params[name]) for name in names]
        last = "best" if trial.number == best.number else ""
        rows.append([*first, "" if mean is None else f"{mean:,.5g}", *values, last])
    counts = collections.Counter(_WORDS[trial.state] for trial in search.finished())
    summary = ", ".join(f"{counts[word]} {word}" for word in _WORDS.values())
    return f"{comparison.align(rows)}\n{summary}"


def write_preset(search, path):
    """Writes the settings of the best trial as a preset file."""
    best, config = search.best(), search.config
    seeds = ", ".join(str(x["seed"]) for x in best.user_attrs["trainings"])
    result = f"{_value_text(search, best)} (seeds {seeds})"
    if (mean := search.confirmed(best)) is not None:
        further = f"{config.confirm} further seeds"
        result += f"; mean {mean:,.5g} {config.objective} with {further}"
    settings = {"env": config.env, "result": result, **search.settings(best)}
    comment = f"Trial {search.index(best)} of tf-reinforce tune {version.VERSION}."
    toml_files.write(path, settings, comment)


def save_picture(search, path):
    """Draws the value of each complete trial, and the best value so far.

    Raises:
        ImportError: Without matplotlib.
    """
    plots.import_matplotlib()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        panel = optuna.visualization.matplotlib.plot_optimization_history(
            search.study, target_name=search.config.objective
        )
    plots.save(panel.figure, path)
