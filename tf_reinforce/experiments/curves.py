"""Learning curves, settings and evaluations of runs, read without TensorFlow."""

import csv
import dataclasses
import json
import math
import os
import pathlib

import numpy as np

from tf_reinforce import saving
from tf_reinforce.experiments import seed_processes
from tf_reinforce.settings import run_config
from tf_reinforce.support import files
from tf_reinforce.support import validation

LOG = "log.csv"
X_AXES = {
    "steps": "environment steps",
    "episodes": "episodes",
    "updates": "updates",
    "seconds": "seconds of training",
}
# The log keys that say how good a policy is: that of agents, and those of other models.
SCORES = "episode_return", "reward", "policy_value", "loss"
_COMPARED = "make_agent", "agent", "fit", "evaluation"  # settings of runs
_MAX_TEXT = 300  # characters of a value that `info_table` shows
_MAX_BYTES = 2**28  # of a file of a run, which may come from an untrusted source


@dataclasses.dataclass(frozen=True)
class Curve:
    """The log of one training, one row per update.

    Attributes:
        path: Path of the log file.
        seed: Int, or `None` if unknown.
        columns: Dict from log keys to `[updates]` float64 arrays.
    """

    path: pathlib.Path
    seed: int | None
    columns: dict

    def x(self, axis):
        """Returns the position of each update on an axis in `X_AXES`."""
        if axis == "updates":
            return 1.0 + np.arange(len(self.columns["epoch"]))
        if axis == "episodes":
            return np.cumsum(self.column("episodes"))
        steps = self.column("env_steps")
        if axis == "steps":
            return steps
        return np.cumsum(np.diff(steps, prepend=0.0) / self.column("steps_per_second"))

    @property
    def score(self):
        """Returns the log key that says how good the policy is."""
        return next((x for x in SCORES if x in self.columns), SCORES[0])

    def column(self, key):
        """Returns the values of a log key, or raises `ValueError` if there are none."""
        if key not in self.columns:
            raise ValueError(
                f"{self.path} has no column {key!r}. Expected: one of "
                f"{', '.join(sorted(self.columns))}."
            )
        return self.columns[key]


@dataclasses.dataclass(frozen=True)
class Run:
    """Trainings with the same settings and different seeds.

    Attributes:
        name: String, the name of the folder.
        env: String, the environment id or the name of another trainer, or `None`.
        curves: List of `Curve`s, one per seed.
        evaluations: List of mean returns after training, one for each seed that was
            evaluated.
        model: String that describes the policy, or `None` if unknown.
        settings: Dict of the entries `_COMPARED` of `config.json`, empty if unknown.
    """

    name: str
    env: str | None
    curves: list
    evaluations: list
    model: str | None = None
    settings: dict = dataclasses.field(default_factory=dict)


def read(folder):
    """Reads a run directory, or a folder with a run directory for each seed.

    Args:
        folder: Path of a folder that contains `log.csv`, or whose subfolders do. These
            must have the same environment and settings.

    Returns:
        A `Run`.

    Raises:
        FileNotFoundError: If there is no log.
        ValueError: If a log is not a table of numbers, or environments or settings
            differ.
    """
    folder = pathlib.Path(folder)
    found = [folder / LOG] if (folder / LOG).exists() else sorted(folder.glob(f"*/{LOG}"))
    parts = [path.parent for path in found]
    if not parts:
        raise FileNotFoundError(
            f"{folder} contains no {LOG}. Expected: a run directory of `tf-reinforce "
            f'train` or of keras.callbacks.CSVLogger("DIR/{LOG}"), or a folder of several'
        )
    configs = [run_config.read(part) for part in parts]
    if len(set(map(_settings, configs))) > 1:
        raise ValueError(
            f"The runs in {folder} must have the same environment and settings, because "
            "they are read as seeds of one run. To compare different runs, name them one "
            f"by one, for example {folder}/*."
        )
    seeds, first = [config.get("seed") for config in configs], configs[0]
    env, model = first.get("env", first.get("trainer")), first.get("model")
    return Run(
        folder.resolve().name,
        env if isinstance(env, str) else None,
        [x for part, seed in zip(parts, seeds) for x in _read_log(part / LOG, seed)],
        [x for part in parts for x in _read_evaluations(part / run_config.EVALUATION)],
        model if isinstance(model, str) else None,
        {name: first[name] for name in _COMPARED if name in first},
    )


def _settings(config):
    """Returns what the seeds of a run must have in common, as text."""
    common = {name: config.get(name) for name in ("env", "env_kwargs", "agent")}
    fit = config.get("fit", {}).items()
    common["fit"] = {name: x for name, x in fit if name not in run_config.MAY_DIFFER}
    return json.dumps(common, sort_keys=True)


def _read_log(path, seed):
    """Reads the `Curve`s in a log file, more than one if it has a column of seeds.

    An unfinished last line is dropped: the training may still be writing it.
    """
    files.expect_regular_file(path, _MAX_BYTES)
    text = path.read_text(encoding="utf-8", errors="replace")
    header, *lines = text[: text.rfind("\n") + 1].splitlines() or [""]
    if "epoch" not in header.split(",") or not lines:
        raise ValueError(f"{path} must have a column `epoch` and at least one row.")
    # Keras' CSVLogger writes NA for a log key that is missing in an update.
    rows = [line.replace("NA", "nan") for line in lines]
    try:
        table = np.loadtxt(rows, delimiter=",", comments=None, ndmin=2, unpack=True)
        table = dict(zip(next(csv.reader([header])), table, strict=True))
        seeds = table.pop("seed", None)
        names = [] if seeds is None else [*dict.fromkeys(map(int, seeds))]
    except (csv.Error, OverflowError, ValueError) as error:
        raise ValueError(f"{path} is no table of numbers: {error}") from None
    if seeds is None:
        return [Curve(path, seed if isinstance(seed, int) else None, table)]
    return [
        Curve(path, one, {key: x[seeds == one] for key, x in table.items()})
        for one in names
    ]


def _read_evaluations(path):
    """Returns the score of each seed in the evaluation of a run."""
    content = run_config.read_json(path)
    values = content.values()
    tables = values if all(isinstance(x, dict) for x in values) else [content]
    try:
        return [float(table[next(x for x in SCORES if x in table)]) for table in tables]
    except (OverflowError, StopIteration, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no evaluation of a run: {error!r}") from None


def results(folders):
    """Returns the results of several seeds that have ended.

    Args:
        folders: Dict from seeds to their run directories.

    Returns:
        Dict with `returns` (from each seed to its mean return in the evaluation),
        `env_steps` and `seconds` of training (totals over seeds).
    """
    runs = {seed: read(folder) for seed, folder in folders.items()}
    returns = {seed: run.evaluations[0] for seed, run in runs.items()}
    curves = [run.curves[0] for run in runs.values()]
    ends = np.sum([[x.x("steps")[-1], x.x("seconds")[-1]] for x in curves], axis=0)
    return {"returns": returns, "env_steps": int(ends[0]), "seconds": float(ends[1])}


def smooth(values, window):
    """Returns a moving mean over each value and those before it.

    Args:
        values: `[N]` array. Values that are not finite are left out.
        window: Positive int, the number of values in a mean. The first means have fewer.

    Returns:
        `[N]` array, NaN where a window contains no finite value.
    """
    finite = np.isfinite(values)
    totals = np.cumsum([np.where(finite, values, 0.0), finite], axis=1)
    totals[:, window:] -= totals[:, :-window]
    sums, counts = totals
    return np.divide(sums, counts, out=np.full(len(values), math.nan), where=counts > 0)


def on_common_grid(curves, key, axis, window=1, points=200):
    """Interpolates the curves of several seeds at the same positions.

    Args:
        curves: List of `Curve`s.
        key: String, a log key.
        axis: String, a key of `X_AXES`.
        window: Positive int, as for `smooth`.
        points: Int, the number of positions.

    Returns:
        `[points]` positions on the range that all curves cover, and `[seeds, points]`
        values.
    """
    drawn = []
    for curve in curves:
        x, y = curve.x(axis), smooth(curve.column(key), window)
        used = np.isfinite(x) & np.isfinite(y)
        if used.any():
            drawn.append((x[used], y[used]))
    if not drawn:
        raise ValueError(f"The log key {key!r} has no finite value.")
    start, end = max(x[0] for x, _ in drawn), min(x[-1] for x, _ in drawn)
    grid = np.linspace(start, max(start, end), points)
    return grid, np.stack([np.interp(grid, x, y) for x, y in drawn])


def info(path, max_bytes=saving.MAX_BYTES):
    """Returns what is known about a run, or the settings in an agent file.

    The files may come from an untrusted source.

    Args:
        path: Path of a run directory, a folder of several seeds, or an agent file.
        max_bytes: Int, the largest allowed size of an agent file.

    Returns:
        Dict of JSON values with the keys `settings`, `log` (the last number in each
        column) and `evaluation`. With several seeds, `log` and `evaluation` have an entry
        for each seed.

    Raises:
        FileNotFoundError: If there is neither a run nor an agent file.
        ValueError: If a file is damaged or too large.
    """
    path = pathlib.Path(path)
    if seeds := seed_processes.folders(path):
        runs = {str(seed): info(folder) for seed, folder in seeds.items()}
        result = {"settings": next(iter(runs.values())).get("settings", {})}
        result["settings"].pop("seed", None)
        for name in ("log", "evaluation"):
            result[name] = {seed: run[name] for seed, run in runs.items() if name in run}
    elif path.is_dir():
        run_config.find(path, run_config.FILE_NAME)
        result = {"settings": run_config.read(path), "log": _last_row(path)}
        result["evaluation"] = run_config.read_json(path / run_config.EVALUATION)
    else:
        result = {"settings": _agent(run_config.find(path), max_bytes)}
    return {name: section for name, section in result.items() if section}


def _last_row(path):
    """Returns each column's last finite number, by seed if the log has several."""
    rows = {}
    for curve in read(path).curves if (path / LOG).exists() else ():
        finite = {key: x[np.isfinite(x)] for key, x in curve.columns.items()}
        rows[str(curve.seed)] = {key: float(x[-1]) for key, x in finite.items() if len(x)}
    return rows if len(rows) > 1 else next(iter(rows.values()), {})


def _agent(path, max_bytes):
    """Returns the settings in an agent file, with classes in place of nested parts."""
    config = saving.read(os.fspath(path), max_bytes)
    parts = config.get("config") if isinstance(config, dict) else None
    if not isinstance(parts, dict):
        raise ValueError(f"{path} is no agent file: it contains no settings of an agent.")
    return {
        name: value.get("class_name", value) if isinstance(value, dict) else value
        for name, value in parts.items()
    }


def info_table(facts):
    """Formats the result of `info`, one fact per line.

    Example:

    >>> print(info_table({"settings": {"env": "CartPole-v1", "fit": {"epochs": 9}}}))
    settings.env         CartPole-v1
    settings.fit.epochs  9
    """
    return align([*flat(facts)])


def flat(content, prefix=""):
    """Yields the dotted name and the text of each fact in nested dicts."""
    for key, value in content.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{prefix}{key}.")
        else:
            text = f"{value:.6g}" if isinstance(value, float) else value
            text = text if isinstance(text, str) else json.dumps(text)
            yield f"{prefix}{key}", text[:_MAX_TEXT] + " …" * (len(text) > _MAX_TEXT)


def align(rows):
    """Joins rows of texts, maybe from untrusted files, to lines with aligned columns."""
    rows = [[validation.printable(x).replace("\n", "?") for x in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = ["  ".join(x.ljust(n) for x, n in zip(row, widths)).rstrip() for row in rows]
    return "\n".join(lines)
