"""The ranges from which a search draws settings.

A range belongs to a setting in the table `agent` or `fit` of a preset. In a TOML file,
ranges look like this:

    [ranges.agent]
    learning_rate = {low = 1e-4, high = 1e-1, log = true}
    hidden = {choices = [[32], [64], [64, 64]]}
    baseline.learning_rate = {low = 1e-4, high = 1e-1, log = true}

    [ranges.fit]
    episodes_per_epoch = {low = 4, high = 64, log = true}
"""

import dataclasses
import functools
import itertools
import json
import math
from typing import Annotated, Any

from tf_reinforce.settings import config
from tf_reinforce.settings import default_settings
from tf_reinforce.settings import run_config
from tf_reinforce.settings import schema
from tf_reinforce.settings import toml_files

# Settings that a search does not change: the budget, and the use of the machine.
_FIXED = {"steps", "epochs", "workers", "num_envs", "step_timeout", "steps_per_execution"}
_CHOICES: dict[str, list] = {
    "gamma": [0.9, 0.95, 0.98, 0.99, 0.995, 0.999],
    "hidden": [[32], [64], [32, 32], [64, 64], [128, 128]],
}
_RATES = (
    ("agent", "learning_rate"),
    ("agent", "learning_rate", "first"),
    ("agent", "baseline", "learning_rate"),
)


@dataclasses.dataclass(frozen=True)
class Range:
    """The values that a search tries for one setting.

    Attributes:
        path: Tuple of strings, the table and the keys, for example
            `("agent", "learning_rate")`.
        low: Smallest number, or `None` for choices.
        high: Largest number, or `None` for choices.
        log: Bool, whether the logarithm is uniform instead of the number.
        choices: Sequence of TOML values, empty for numbers.
        whole: Bool, whether it is a range of whole numbers.
    """

    path: tuple[str, ...]
    low: Any = None
    high: Any = None
    log: bool = False
    choices: Any = ()
    whole: bool = False

    @property
    def name(self):
        """Returns the path as text, for example `"agent.learning_rate"`."""
        return ".".join(self.path)

    @property
    def labels(self):
        """Returns the texts that Optuna stores for the choices."""
        return [_label(choice) for choice in self.choices]

    def suggest(self, trial):
        """Returns the value of the setting in a trial of Optuna."""
        if self.choices:
            label = trial.suggest_categorical(self.name, self.labels)
            return self.choices[self.labels.index(label)]
        suggest = trial.suggest_int if self.whole else trial.suggest_float
        return suggest(self.name, self.low, self.high, log=self.log)

    def neighbors(self, number):
        """Returns the numbers halfway between a number and each end of the range.

        With `log`, halfway is measured in logarithms. For choices, the list is empty.
        """
        ends = () if self.choices else (self.low, self.high)
        middles = [math.sqrt(number * x) if self.log else (number + x) / 2 for x in ends]
        kind = round if self.whole else float
        return [x for x in dict.fromkeys(map(kind, middles)) if x != number]

    def parameter(self, value):
        """Returns Optuna's parameter for a value, or `None` outside of the range."""
        if self.choices:
            return _label(value) if _label(value) in self.labels else None
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return value if is_number and self.low <= value <= self.high else None


def _label(value):
    return value if isinstance(value, str) else json.dumps(value)


def _number_type(path, table=None):
    """Returns `int` for a setting that is a whole number, else `float`.

    An argument of the user's own is whole if both ends of its `table` are.
    """
    if table is not None and path[0] == "agent":
        is_whole = all(type(table.get(x)) is int for x in ("low", "high"))
        return int if is_whole else float
    hints = config.TABLES[path[0]]
    if path[:2] == ("agent", "baseline"):
        hints = schema.hints(config.ValueBaseline)
    return int if schema.kinds(hints.get(path[-1])) == [int] else float


def parse(table, own_agent=False):
    """Returns a tuple of `Range`s for the table `ranges` of a TOML file.

    Args:
        table: Dict.
        own_agent: Bool, whether `table["agent"]` is about the arguments of a function of
            the user.

    Raises:
        ValueError: If a range is invalid.

    Example:

    >>> parse({"agent": {"gamma": {"low": 0.9, "high": 0.99}}})[0].name
    'agent.gamma'
    """
    schema.expect_keys("The table `ranges`", table, ("agent", "fit"))
    parts = (_parse_table((name,), table[name], own_agent) for name in table)
    return tuple(itertools.chain(*parts))


def to_table(ranges):
    """Returns the table from which `parse` makes the ranges."""
    table: dict = {}
    for item in ranges:
        numbers = {"low": item.low, "high": item.high, "log": item.log}
        node = functools.reduce(lambda x, key: x.setdefault(key, {}), item.path, table)
        node.update({"choices": list(item.choices)} if item.choices else numbers)
    return table


def _parse_table(path, table, own_agent):
    name, keys = ".".join(path), {"low", "high", "log", "choices"}
    if isinstance(table, dict) and not table.keys() & keys:
        for key, inner in table.items():
            yield from _parse_table((*path, key), inner, own_agent)
        return
    if len(path) < 2 or path[1] in _FIXED:
        raise ValueError(f"`{name}` is the same in all trainings, and has no range.")
    kind = _number_type(path, table if own_agent else None)
    number = Annotated[kind, schema.Range()]
    hints = {"low": number, "high": number, "log": bool, "choices": list}
    table = schema.check_table(f"The range of `{name}`", hints, table, f"{name}.")
    result = Range(path, **table, whole=kind is int)
    if "choices" in table:
        is_valid = len(table) == 1 < len(set(result.labels)) == len(result.choices)
    else:
        is_valid = table.keys() >= {"low", "high"} and result.low < result.high
        is_valid = is_valid and (result.low > 0 or not result.log)
    if not is_valid:
        raise ValueError(
            f"The range of `{name}` must have the form {{low = 0.001, high = 0.1, "
            "log = true}, with low < high and, if `log = true`, low > 0, or the form "
            f"{{choices = [32, 64]}} with different values. Received: {repr(table)[:100]}"
        )
    yield result


def default_ranges(settings):
    """Returns ranges around the settings of a training, for a search that names none.

    A learning rate may be up to ten times smaller or larger than in the settings, and the
    number of episodes or steps per update up to four times. The discount and the hidden
    layers are chosen from a list that includes the values in the settings.

    Args:
        settings: Dict with the tables `agent` and `fit`.
    """
    rates = {path: _value_at(settings, path) for path in _RATES}
    rates = {path: x for path, x in rates.items() if x and not isinstance(x, dict)}
    key = "steps_per_epoch"
    key = key if settings["fit"].get(key) else "episodes_per_epoch"
    count = _value_at(settings, ("fit", key))
    agent = {**settings["agent"], "hidden": list(settings["agent"]["hidden"])}
    choices = {
        name: values if agent[name] in values else [*values, agent[name]]
        for name, values in _CHOICES.items()
    }
    return (
        *(Range(path, rate / 10, rate * 10, True) for path, rate in rates.items()),
        *(Range(("agent", name), choices=x) for name, x in choices.items()),
        Range(("fit", key), max(1, count // 4), 4 * count, True, whole=True),
    )


def check(ranges, settings, own_agent=False):
    """Raises `ValueError` if a training rejects an end of a range, or a choice."""
    for item in ranges:
        for value in item.choices or (item.low, item.high):
            try:
                changed = substitute(settings, {item.path: value})
                run_config.check_settings(changed, own_agent=own_agent)
            except ValueError as error:
                raise ValueError(f"The range of `{item.name}`: {error}") from error


def start_trials(ranges, settings):
    """Returns the parameters of the first trials, which stay close to the settings.

    Good settings are more often found near the given ones than elsewhere in the ranges.
    The first trial therefore uses the given settings, and each further one moves a
    single number halfway to an end of its range.

    Returns:
        List of dicts, empty if a setting is outside of its range.
    """
    start = {x.name: x.parameter(_value_at(settings, x.path)) for x in ranges}
    if None in start.values():
        return []
    moved = [{**start, x.name: y} for x in ranges for y in x.neighbors(start[x.name])]
    return [start, *moved]


def _value_at(settings, path):
    """Returns a setting, or its default for baselines and the number of episodes."""
    if path == ("fit", "episodes_per_epoch"):
        return settings["fit"].get("episodes_per_epoch") or config.EPISODES_PER_EPOCH
    for depth, key in enumerate(path):
        if depth == 2 and path[:2] == ("agent", "baseline"):
            settings = default_settings.value_network(settings)  # with its defaults
        settings = settings.get(key) if isinstance(settings, dict) else None
    return settings


def substitute(settings, values):
    """Returns a copy of a training's settings with other values.

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
        settings = toml_files.override(settings, path, value)
    return settings
