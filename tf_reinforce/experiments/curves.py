"""Reads learning curves, settings and evaluations of runs, without TensorFlow."""

import dataclasses
import json
import math
import os
import pathlib

import numpy as np

from tf_reinforce import saving
from tf_reinforce.experiments import run_config
from tf_reinforce.experiments import seed_processes
from tf_reinforce.support import files

LOG = "log.csv"
X_AXES = {
    "steps": "environment steps",
    "episodes": "episodes",
    "updates": "updates",
    "seconds": "seconds of training",
}
_MAX_TEXT = 300  # characters of a value that `info_table` shows
_MAX_BYTES = 2**28  # of a file of a run, which may come from an untrusted source


@dataclasses.dataclass(frozen=True)
class Curve:
    """The log of one training, with a row for each update.

    Attributes:
        path: Path of the log file.
        seed: Int, or `None` if the run states no seed.
        columns: Dict from log keys to float64 arrays `[updates]`.
    """

    path: pathlib.Path
    seed: int | None
    columns: dict

    def x(self, axis):
        """Returns the values of a key of `X_AXES` after each update, an array."""
        if axis == "updates":
            return 1.0 + np.arange(len(self.columns["epoch"]))
        if axis == "episodes":
            return np.cumsum(self.column("episodes"))
        steps = self.column("env_steps")
        if axis == "steps":
            return steps
        return np.cumsum(np.diff(steps, prepend=0.0) / self.column("steps_per_second"))

    def column(self, key):
        """Returns the values of a log key, an array; raises `ValueError` without it."""
        if key not in self.columns:
            raise ValueError(
                f"{self.path} has no column {key!r}. Expected: one of "
                f"{', '.join(sorted(self.columns))}."
            )
        return self.columns[key]


@dataclasses.dataclass(frozen=True)
class Run:
    """The trainings with the same settings and different seeds.

    Attributes:
        name: String, the name of the folder.
        env: String, the environment id, or `None` if the run states none.
        curves: List of `Curve`s, one for each seed.
        evaluations: List of the mean returns of the evaluations after training, one for
            each seed that has one.
    """

    name: str
    env: str | None
    curves: list
    evaluations: list


def read(folder):
    """Reads a run directory, or a folder that contains run directories of several seeds.

    Args:
        folder: Path of a run directory, which contains `log.csv`, or of a folder whose
            folders are run directories with the same environment.

    Returns:
        A `Run`.

    Raises:
        FileNotFoundError: If the folder contains no log.
        ValueError: If a log is no table of numbers, or environments or settings differ.
    """
    folder = pathlib.Path(folder)
    run_config.expect_path(folder)
    parts = _folders_of_logs(folder)
    if not parts:
        raise FileNotFoundError(
            f"{folder} contains no {LOG}. Expected: a run directory, or a folder of run "
            "directories. `tf-reinforce train ENV --run-dir DIR` writes one, and so does "
            f'`fit` with keras.callbacks.CSVLogger("DIR/{LOG}").'
        )
    configs = [run_config.read(part) for part in parts]
    if len(set(map(_settings, configs))) > 1:
        raise ValueError(
            f"The runs in {folder} must have the same environment and settings, because "
            "they are read as seeds of one run. To compare different runs, name them one "
            f"by one, for example {folder}/*."
        )
    seeds, env = [config.get("seed") for config in configs], configs[0].get("env")
    return Run(
        folder.resolve().name,
        env if isinstance(env, str) else None,
        [x for part, seed in zip(parts, seeds) for x in _read_log(part / LOG, seed)],
        [x for part in parts for x in _read_evaluations(part / "evaluation.json")],
    )


def read_all(folders):
    """Reads several folders as `read` does, and skips those without a log.

    A pattern such as `runs/*` also selects folders of runs that wrote no log, for example
    of a search.

    Returns:
        List of `Run`s, and the list of the skipped folders.

    Raises:
        FileNotFoundError: If a folder does not exist, or no folder contains a log.
        ValueError: As `read`.
    """
    skipped = [x for x in folders if os.path.isdir(x) and not _folders_of_logs(x)]
    skipped = [] if len(skipped) == len(folders) else skipped
    return [read(folder) for folder in folders if folder not in skipped], skipped


def _folders_of_logs(folder):
    """Returns the folder if it contains a log, else its folders that contain one."""
    folder = pathlib.Path(folder)
    found = [folder / LOG] if (folder / LOG).exists() else sorted(folder.glob(f"*/{LOG}"))
    return [path.parent for path in found]


def _settings(config):
    """Returns a text of what runs of several seeds have in common."""
    common = {name: config.get(name) for name in ("env", "env_kwargs", "agent")}
    fit = config.get("fit", {}).items()
    common["fit"] = {name: x for name, x in fit if name not in run_config.MAY_DIFFER}
    return json.dumps(common, sort_keys=True)


def _read_log(path, seed):
    """Returns the list of the `Curve`s of a log file, in which rows may name seeds.

    A last row without its end is left out: the training may still write it.
    """
    files.expect_regular_file(path, _MAX_BYTES)
    text = path.read_text(encoding="utf-8", errors="replace")
    header, *lines = text[: text.rfind("\n") + 1].splitlines() or [""]
    header = header.split(",")
    if "epoch" not in header or not lines:
        raise ValueError(f"{path} must have a column `epoch` and at least one row.")
    # Keras' CSVLogger writes NA for a log key that is missing in an update.
    rows = [line.replace("NA", "nan") for line in lines]
    try:
        table = np.loadtxt(rows, delimiter=",", comments=None, ndmin=2, unpack=True)
        table = dict(zip(header, table, strict=True))
    except ValueError as error:
        raise ValueError(f"{path} is no table of numbers: {error}") from None
    seeds = table.pop("seed", None)
    if seeds is None:
        return [Curve(path, seed if isinstance(seed, int) else None, table)]
    return [
        Curve(path, int(one), {key: x[seeds == one] for key, x in table.items()})
        for one in dict.fromkeys(seeds.tolist())
    ]


def _read_evaluations(path):
    """Returns the mean returns in the evaluation of a run, one for each seed."""
    content = run_config.read_json(path)
    tables = [content] if "episode_return" in content else content.values()
    try:
        return [float(table["episode_return"]) for table in tables]
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is no evaluation of a run: {error!r}") from None


def results(folders):
    """Returns the results of the trainings that have ended.

    Returns:
        Dict with `returns` (dict from each seed to the mean return of its evaluation),
        `env_steps` and `seconds` of training (of all seeds together).
    """
    returns, steps, seconds = {}, 0, 0.0
    for seed, folder in folders.items():
        if seed_processes.has_ended(folder):
            run = read(folder)
            [curve], [returns[seed]] = run.curves, run.evaluations
            steps += int(curve.x("steps")[-1])
            seconds += float(curve.x("seconds")[-1])
    return {"returns": returns, "env_steps": steps, "seconds": seconds}


def smooth(values, window):
    """Returns the mean of each value and the values before it in a window.

    Args:
        values: Array `[N]`. Values that are not finite are left out of the means.
        window: Positive int, the number of values in a mean, fewer at the start.

    Returns:
        Array `[N]`, NaN where no value in the window is finite.
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
        window: Positive int, argument of `smooth`.
        points: Int, the number of positions.

    Returns:
        Positions `[points]`, from the largest first to the smallest last position of the
        curves, and values `[seeds, points]`.
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


def default_window(curves):
    """Returns a fiftieth of the updates of the longest curve, at least one."""
    return max(1, max(len(curve.columns["epoch"]) for curve in curves) // 50)


def info(path, max_bytes=saving.MAX_BYTES):
    """Returns what the files of a run state, or the settings in an agent file.

    Args:
        path: Path of a run directory, of a folder of several seeds, or of an agent file.
            Its content may come from an untrusted source.
        max_bytes: Int, the largest size of an agent file.

    Returns:
        Dict of JSON values: `settings`; `log`, the last number in each column; and
        `evaluation`. For several seeds, `log` and `evaluation` have an entry for each.

    Raises:
        FileNotFoundError: If there is neither a run nor an agent file.
        ValueError: If a file is damaged or too large.
    """
    path = pathlib.Path(path)
    if seeds := seed_processes.folders(path):
        runs = {str(seed): info(folder) for seed, folder in seeds.items()}
        result = {"settings": next(iter(runs.values()))["settings"]}
        result["settings"].pop("seed", None)
        for name in ("log", "evaluation"):
            result[name] = {seed: run[name] for seed, run in runs.items() if name in run}
    elif path.is_dir():
        run_config.find(path, run_config.FILE_NAME)
        result = {"settings": run_config.read(path), "log": _last_row(path)}
        result["evaluation"] = run_config.read_json(path / "evaluation.json")
    else:
        result = {"settings": _agent(run_config.find(path), max_bytes)}
    return {name: section for name, section in result.items() if section}


def _last_row(path):
    """Returns the last finite number in each column of a log, or a dict from seeds."""
    rows = {}
    for curve in read(path).curves if (path / LOG).exists() else ():
        finite = {key: x[np.isfinite(x)] for key, x in curve.columns.items()}
        rows[str(curve.seed)] = {key: float(x[-1]) for key, x in finite.items() if len(x)}
    return rows if len(rows) > 1 else next(iter(rows.values()), {})


def _agent(path, max_bytes):
    """Returns the configuration in an agent file, and the classes of its parts."""
    config, _ = saving.read(os.fspath(path), max_bytes)
    parts = config.get("config") if isinstance(config, dict) else None
    if not isinstance(parts, dict):
        raise ValueError(f"{path} is no agent file: it contains no settings of an agent.")
    return {
        name: value.get("class_name", value) if isinstance(value, dict) else value
        for name, value in parts.items()
    }


def info_table(facts):
    """Returns the facts as lines of text, one fact in each line.

    Control characters are replaced, because the facts may come from an untrusted file.

    Example:

    >>> print(info_table({"settings": {"env": "CartPole-v1", "fit": {"epochs": 9}}}))
    settings
      env         CartPole-v1
      fit.epochs  9
    """
    lines = []
    for section, content in facts.items():
        rows = {name: _text(value) for name, value in run_config.flat(content).items()}
        width = max(map(len, rows), default=0)
        lines += [section, *(f"  {name:<{width}}  {x}" for name, x in rows.items())]
    return "\n".join("".join(x if x.isprintable() else "?" for x in y) for y in lines)


def _text(value):
    text = f"{value:.6g}" if isinstance(value, float) else value
    text = text if isinstance(text, str) else json.dumps(text)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} …"
