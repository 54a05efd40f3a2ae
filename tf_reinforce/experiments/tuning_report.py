"""Describes the trials of a search in lines, in a table, in a picture and in a preset."""

import math

import optuna

from tf_reinforce import version
from tf_reinforce.experiments import plots
from tf_reinforce.experiments import tuning_storage
from tf_reinforce.presets import toml_files

_STATES = optuna.trial.TrialState
_WORDS = {
    _STATES.COMPLETE: "complete",
    _STATES.PRUNED: "pruned",
    _STATES.FAIL: "failed",
}
_NUM_ROWS = 10  # of the table
_IMPORTANT = 6  # complete trials for which the importance of settings is estimated


def trial_line(search, index):
    """Returns a line about a finished trial, and the best trial so far."""
    [trial] = [x for x in search.finished() if search.index(x) == index]
    if trial.state == _STATES.FAIL:
        reason = trial.user_attrs[tuning_storage.ERROR].splitlines()[0]
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


def importance(search):
    """Returns a dict from settings to shares of the differences between trials.

    The shares are estimated from complete trials with PED-ANOVA (Watanabe et al., 2023),
    and add up to 1. The dict is empty with fewer than six complete trials.
    """
    complete = [x for x in search.finished() if x.state == _STATES.COMPLETE]
    if len(complete) < _IMPORTANT or len({x.value for x in complete}) < 2:
        return {}
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    shares = optuna.importance.get_param_importances(search.study, evaluator=evaluator)
    return {name: x for name, x in shares.items() if math.isfinite(x)}


def draw(search):
    """Draws the value of each trial, the best value so far, and the importance.

    A pruned trial is drawn at its last reported value. A confirmed trial is also drawn at
    the mean over all its trainings. The axis is logarithmic for the objective `"steps"`.

    Returns:
        A `matplotlib.figure.Figure` with a transparent background.

    Raises:
        ImportError: Without matplotlib.
    """
    trials, shares = search.finished(), importance(search)
    widths = (2.2, 1.0) if shares else (1.0,)
    figure, grid = plots.panels(
        1, len(widths), (9.0, 3.8), width_ratios=widths, squeeze=False
    )
    panel = grid[0, 0]
    objective = search.task.objective
    _draw_trials(search, panel, trials)
    _draw_best(search, panel, trials)
    is_steps = objective.key == "steps"
    plots.style(panel, "environment steps to target" if is_steps else objective.key)
    if is_steps:
        label = f"budget {objective.budget:,}"
        panel.axhline(objective.budget, color=plots.GRAY, dashes=(4, 3), label=label)
        plots.use_log_scale(panel)
    panel.set_xlabel("trial", color=plots.GRAY)
    panel.xaxis.get_major_locator().set_params(integer=True)
    panel.set_title(search.config.env, color=plots.GRAY)
    place = dict(loc="outside lower center", ncols=5)
    figure.legend(frameon=False, labelcolor=plots.GRAY, **place)
    if shares:
        _draw_importance(grid[0, 1], shares)
    return figure


def _draw_trials(search, panel, trials):
    """Draws a marker for each complete, pruned and confirmed trial."""
    groups = {
        _STATES.COMPLETE: ("o", plots.COLORS[0], "complete"),
        _STATES.PRUNED: ("x", plots.COLORS[1], "pruned"),
    }
    for state, (marker, color, label) in groups.items():
        points = [(search.index(x), _drawn(x)) for x in trials if x.state == state]
        points = [point for point in points if point[1] is not None]
        if points:
            style = dict(marker=marker, linestyle="", color=color, label=label)
            panel.plot(*zip(*points, strict=True), **style)
    means = [(search.index(x), search.confirmed(x)) for x in search.ranked()]
    if points := [point for point in means if point[1] is not None]:
        style = dict(marker="D", markersize=5, linestyle="", color=plots.COLORS[3])
        panel.plot(*zip(*points, strict=True), **style, label="with further seeds")


def _draw_importance(panel, shares):
    names = sorted(shares, key=shares.get)
    widths = [shares[name] for name in names]
    panel.barh(list(map(_short, names)), widths, color=plots.COLORS[0])
    plots.style(panel, "")
    panel.set_xlim(0, 1)
    panel.set_title("importance", color=plots.GRAY)


def _draw_best(search, panel, trials):
    sign, best, points = (1 if search.config.minimize else -1), None, []
    for trial in trials:
        if trial.state == _STATES.COMPLETE:
            values = [trial.value] if best is None else [best, trial.value]
            best = min(values, key=lambda value: sign * value)
        if best is not None:
            points.append((search.index(trial), best))
    if points:
        panel.step(
            *zip(*points, strict=True),
            where="post",
            color=plots.COLORS[2],
            linewidth=1.8,
            label="best so far",
        )


def _drawn(trial):
    """Returns the value of a complete trial, or the last reported value of another."""
    if trial.state == _STATES.COMPLETE:
        return trial.value
    step = max(trial.intermediate_values, default=None)
    value = None if step is None else trial.intermediate_values[step]
    return value if value is not None and math.isfinite(value) else None
