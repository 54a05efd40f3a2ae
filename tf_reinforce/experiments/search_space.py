"""Defines the ranges of a search for settings, and samples settings from them.

A range belongs to a setting in the table `agent` or `fit` of a preset. In a TOML file:

    [ranges.agent]
    learning_rate = {low = 1e-4, high = 1e-1, log = true}
    hidden = {choices = [[32], [64], [64, 64]]}
    baseline.learning_rate = {low = 1e-4, high = 1e-1, log = true}

    [ranges.fit]
    episodes_per_epoch = {low = 4, high = 64, log = true}
"""

import dataclasses
import json
import math
from typing import Annotated, Any

from tf_reinforce.experiments import run_config
from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings
from tf_reinforce.settings import overrides
from tf_reinforce.settings import schema
from tf_reinforce.settings import toml_files

_KEYS = {"low", "high", "log", "choices"}
# Settings that a search does not change: the budget, and the use of the machine.
_FIXED = {"steps", "epochs", "workers", "num_envs", "step_timeout", "steps_per_execution"}
_DISCOUNTS = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
_HIDDEN = ([32], [64], [32, 32], [64, 64], [128, 128])


@dataclasses.dataclass(frozen=True)
class Range:
    """The values that a search tries for one setting.

    Attributes:
        path: Tuple of strings, the table and the keys, for example
            `("agent", "learning_rate")`.
        low: Smallest number, or `None` for choices.
        high: Largest number, or `None` for choices.
        log: Bool, whether the logarithm of the number is uniform.
        choices: Tuple of TOML values, or an empty tuple for numbers.
    """

    path: tuple[str, ...]
    low: float | None = None
    high: float | None = None
    log: bool = False
    choices: tuple[Any, ...] = ()

    @property
    def name(self):
        """Returns the path as text, for example `"agent.learning_rate"`."""
        return ".".join(self.path)

    @property
    def is_whole(self):
        """Returns whether the setting is a whole number."""
        return _number_hint(self.path) is int

    @property
    def ends(self):
        """Returns the values at the ends of the range, or all choices."""
        return self.choices or (self.low, self.high)

    def suggest(self, trial):
        """Returns the value of the setting in a trial of Optuna.

        Real numbers are rounded, so that a preset file is easy to read.
        """
        if self.choices:
            labels = self.labels()
            return self.choices[
                labels.index(trial.suggest_categorical(self.name, labels))
            ]
        if self.is_whole:
            return trial.suggest_int(self.name, self.low, self.high, log=self.log)
        number = trial.suggest_float(self.name, self.low, self.high, log=self.log)
        return self.rounded(number)

    @property
    def digits(self):
        """Returns the number of digits of a real number: four, or more if `low` and
        `high` are so close that four digits distinguish few numbers between them.
        """
        largest = max(abs(self.low), abs(self.high))
        return max(4, 2 + math.ceil(math.log10(largest / (self.high - self.low))))

    def neighbors(self, number):
        """Returns the numbers half of the way from a number to each end of the range.

        The way is measured in logarithms if `log` is `True`. The list is empty for
        choices.
        """
        if self.choices:
            return []
        centers = [
            math.sqrt(number * end) if self.log else (number + end) / 2
            for end in self.ends
        ]
        numbers = [round(x) if self.is_whole else self.rounded(x) for x in centers]
        return [x for x in dict.fromkeys(numbers) if x != number]

    def rounded(self, number):
        """Returns a real number with few digits, inside of the range."""
        return min(max(float(f"{number:.{self.digits}g}"), self.low), self.high)

    def parameter(self, value):
        """Returns the parameter of Optuna for a value, or `None` outside of the range."""
        if self.choices:
            label = _label(value)
            return label if label in self.labels() else None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value if is_number and self.low <= value <= self.high else None

    def labels(self):
        """Returns the list of texts for the choices, which Optuna stores."""
        return [_label(choice) for choice in self.choices]


def _label(value):
    return value if isinstance(value, str) else json.dumps(value)


def _number_hint(path):
    """Returns `int` for a setting that is a whole number, else `float`."""
    hints = config.TABLES[path[0]]
    if path[:2] == ("agent", "baseline"):
        hints = schema.hints(config.ValueBaseline)
    kinds = [kind for kind, _ in schema.numbers(hints.get(path[-1]))]
    return int if kinds == [int] else float


def read(path):
    """Returns the ranges in the table `ranges` of a TOML file.

    Args:
        path: Path of a file with the table `ranges`, or of a preset file.

    Raises:
        ValueError, OSError: If the file or a range is invalid.
    """
    content = toml_files.read_toml(path, "file of ranges")
    schema.expect_keys(f"The file {path}", content, toml_files.PRESET_HINTS)
    ranges = parse(content.get("ranges", {}))
    if not ranges:
        raise ValueError(
            f"The file {path} contains no ranges. Expected: a table [ranges.agent] or "
            "[ranges.fit], for example `learning_rate = {low = 1e-4, high = 1e-1, "
            "log = true}`."
        )
    return ranges


def parse(table):
    """Returns a tuple of `Range`s for the table `ranges` of a TOML file.

    Raises:
        ValueError: If a range is invalid.

    Example:

    >>> parse({"agent": {"gamma": {"low": 0.9, "high": 0.99}}})[0].name
    'agent.gamma'
    """
    schema.expect_keys("The table `ranges`", table, ("agent", "fit"))
    return tuple(x for name in table for x in _parse_table((name,), table[name]))


def to_table(ranges):
    """Returns the table from which `parse` makes the ranges."""
    table: dict = {}
    for item in ranges:
        *tables, key = item.path
        inner = table
        for name in tables:
            inner = inner.setdefault(name, {})
        numbers = {"low": item.low, "high": item.high, "log": item.log}
        inner[key] = {"choices": list(item.choices)} if item.choices else numbers
    return table


def _parse_table(path, table):
    if isinstance(table, dict) and not table.keys() & _KEYS:
        for key, inner in table.items():
            yield from _parse_table((*path, key), inner)
        return
    name = ".".join(path)
    try:
        yield _parse_range(path, table)
    except ValueError as error:
        raise ValueError(
            f"The range of `{name}` must have the form {{low = 0.001, high = 0.1, "
            f"log = true}} or {{choices = [32, 64]}}: {error} "
            f"Received: {name} = {repr(table)[:100]}"
        ) from None


def _parse_range(path, table):
    schema.expect_keys("It", table, _KEYS)
    if len(path) < 2 or path[1] in _FIXED:
        raise ValueError(
            "All trainings of a search have the same budget and use of the machine."
        )
    if "choices" in table:
        choices = schema.check("choices", list, table["choices"])
        result = Range(path, choices=tuple(choices))
        if len(choices) < 2 or table.keys() != {"choices"}:
            raise ValueError("There must be at least two values, and no other keys.")
        if len(set(result.labels())) < len(choices):
            raise ValueError("The choices must be different.")
        return result
    number = Annotated[_number_hint(path), schema.Range()]
    hints = {"low": number, "high": number, "log": bool}
    table = schema.check_table("It", hints, table, required=("low", "high"))
    if table["low"] >= table["high"]:
        raise ValueError("`low` must be smaller than `high`.")
    if table.get("log") and table["low"] <= 0:
        raise ValueError("`low` must be larger than 0 if `log = true`.")
    return Range(path, **table)


def default_ranges(settings):
    """Returns the ranges of a search without a file of ranges.

    The ranges contain the settings of the training: learning rates and the number of
    episodes or steps per update vary around them by factors of ten and four.

    Args:
        settings: Dict with the tables `agent` and `fit` of a training.
    """
    agent, fit = settings["agent"], settings["fit"]
    rate = agent["learning_rate"]
    name = ("learning_rate", "first") if isinstance(rate, dict) else ("learning_rate",)
    rate = rate["first"] if isinstance(rate, dict) else rate
    ranges = [Range(("agent", *name), rate / 10, rate * 10, True)] if rate > 0 else []
    key = "steps_per_epoch" if fit.get("steps_per_epoch") else "episodes_per_epoch"
    count = fit.get(key, config.EPISODES_PER_EPOCH)
    return (
        *ranges,
        *_value_rate(agent["baseline"]),
        Range(("agent", "gamma"), choices=_with_value(_DISCOUNTS, agent["gamma"])),
        Range(("agent", "hidden"), choices=_with_value(_HIDDEN, list(agent["hidden"]))),
        Range(("fit", key), max(1, count // 4), 4 * count, True),
    )


def _value_rate(baseline):
    """Returns a list with the range of the learning rate of a value network, if any."""
    value = default_settings.value_network(baseline)
    rate = None if value is None else value["learning_rate"]
    if isinstance(rate, dict) or not rate:
        return []
    return [Range(("agent", "baseline", "learning_rate"), rate / 10, rate * 10, True)]


def _with_value(choices, value):
    return tuple(choices) if value in choices else (*choices, value)


def check(ranges, settings):
    """Raises `ValueError` if a range is invalid for the settings of a training.

    The function checks the settings at both ends of each range, and of all choices.
    """
    for item in ranges:
        for value in item.ends:
            try:
                run_config.check_settings(substitute(settings, {item.path: value}))
            except ValueError as error:
                raise ValueError(f"The range of `{item.name}`: {error}") from error


def start_trials(ranges, settings):
    """Returns the parameters of the first trials, which are close to the settings.

    Good settings are more often close to settings that someone has selected than
    elsewhere in the ranges. The first trial has the settings themselves. Each of the
    others moves one number half of the way to one end of its range.

    Returns:
        List of dicts, empty if a setting is outside of its range.
    """
    start = {x.name: x.parameter(_value_at(settings, x.path)) for x in ranges}
    if None in start.values():
        return []
    moved = [{**start, x.name: y} for x in ranges for y in x.neighbors(start[x.name])]
    return [start, *moved]


def _value_at(settings, path):
    if path == ("fit", "episodes_per_epoch"):
        return settings["fit"].get("episodes_per_epoch") or config.EPISODES_PER_EPOCH
    for depth, key in enumerate(path):
        if depth == 2 and path[:2] == ("agent", "baseline"):
            settings = default_settings.value_network(settings)  # with its defaults
        settings = settings.get(key) if isinstance(settings, dict) else None
    return settings


def suggest(ranges, settings, trial):
    """Returns the settings of a trial of Optuna."""
    return substitute(settings, {x.path: x.suggest(trial) for x in ranges})


def substitute(settings, values):
    """Returns a copy of the settings of a training, with other values.

    Args:
        settings: Dict with the tables `agent` and `fit`.
        values: Dict from paths to values.

    Raises:
        ValueError: If a path leads into a setting that is no table.

    Example:

    >>> settings = {"agent": {}, "fit": {"episodes_per_epoch": 8}}
    >>> substitute(settings, {("fit", "steps_per_epoch"): 500})["fit"]
    {'steps_per_epoch': 500}
    """
    for path, value in values.items():
        settings = overrides.apply(settings, path, value)
    return settings
