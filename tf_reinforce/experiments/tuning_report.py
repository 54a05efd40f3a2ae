"""Describes the trials of a search in lines, in a table, in a picture and in a preset."""

import warnings

import optuna

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
    text = f"{_value_text(search, trial)} · {seconds:.0f} s · {_parameters(trial)}"
    best = search.best()
    if best is not None and best.number == trial.number:
        return f"trial {index}: {text} · best so far"
    return f"trial {index}: {text}"


def confirmed_line(search, index):
    """Returns a line about a trial that was trained with further seeds."""
    [trial] = [x for x in search.ranked() if search.index(x) == index]
    mean, count = search.confirmed(trial), search.config.confirm
    if mean is None:
        reason = search.confirmation_error(trial).splitlines()[0]
        return f"trial {index}: a training with a further seed failed: {reason[:200]}"
    trainings = "1 further training" if count == 1 else f"{count} further trainings"
    return f"trial {index}: mean {mean:,.5g} {unit(search)} with {trainings}"


def unit(search):
    """Returns the unit of the values of trials, for example `"steps"`."""
    return search.task.objective.key


def _value_text(search, trial):
    """Returns the value of a trial with its unit, and what the trial has reached."""
    objective = search.task.objective
    trainings = trial.user_attrs["trainings"]
    if trial.state == _STATES.PRUNED:
        steps = sum(x["env_steps"] for x in trainings)
        return f"pruned after {steps:,} steps"
    if objective.key != "steps":
        return f"{objective.key} {trial.value:.5g}"
    reached = sum(x["reached"] for x in trainings)
    if reached == len(trainings):
        return f"{trial.value:,.0f} steps to {objective.target:g}"
    returns = sum(x["best_return"] for x in trainings) / len(trainings)
    return (
        f"{reached} of {len(trainings)} reach {objective.target:g}, return {returns:.4g}"
    )


def reaches_target(search, trial):
    """Returns whether all trainings of a trial reach the target return, if it has one."""
    trainings = trial.user_attrs["trainings"]
    return search.task.objective.key != "steps" or all(x["reached"] for x in trainings)


def _parameters(trial):
    texts = (f"{_short(name)} {_number(x)}" for name, x in trial.params.items())
    return ", ".join(texts)


def _short(name):
    """Returns the name of a setting without its table."""
    return name.partition(".")[2]


def _number(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def table(search):
    """Returns a table of the best trials as text, with one row for each trial."""
    names = [x.name for x in search.task.ranges]
    confirmed = f"confirmed ({unit(search)})"
    header = ["trial", "result", confirmed, *map(_short, names), ""]
    best = search.best()
    rows = [header]
    for trial in search.ranked()[:_NUM_ROWS]:
        values = [_number(trial.params[name]) for name in names]
        mean = search.confirmed(trial)
        first = [str(search.index(trial)), _value_text(search, trial)]
        last = "best" if trial.number == best.number else ""
        rows.append([*first, "" if mean is None else f"{mean:,.5g}", *values, last])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(x.ljust(n) for x, n in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return "\n".join([*lines, summary(search.finished())])


def summary(trials):
    """Returns a line with the numbers of complete, pruned and failed trials."""
    counts = {word: 0 for word in _WORDS.values()}
    for trial in trials:
        counts[_WORDS[trial.state]] += 1
    return ", ".join(f"{count} {word}" for word, count in counts.items())


def write_preset(search, path):
    """Writes the settings of the best trial as a preset file."""
    best = search.best()
    seeds = ", ".join(str(x["seed"]) for x in best.user_attrs["trainings"])
    result = f"{_value_text(search, best)} (seeds {seeds})"
    if search.confirmed(best) is not None:
        mean, count = search.confirmed(best), search.config.confirm
        result += f"; mean {mean:,.5g} {unit(search)} with {count} further seeds"
    settings = {"env": search.config.env, "result": result, **search.settings(best)}
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
            search.study, target_name=unit(search)
        )
    plots.save(panel.figure, path)
