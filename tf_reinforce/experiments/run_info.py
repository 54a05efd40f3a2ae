"""Reads settings, last log row and evaluation of a run, without TensorFlow."""

import json
import math
import os
import pathlib

from tf_reinforce import saving
from tf_reinforce.experiments import curves
from tf_reinforce.experiments import run_config
from tf_reinforce.experiments import seed_processes

_MAX_TEXT = 300  # characters of a value that are shown


def read(path, max_bytes=saving.MAX_BYTES):
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
        runs = {str(seed): read(folder) for seed, folder in seeds.items()}
        result = {"settings": next(iter(runs.values()))["settings"]}
        result["settings"].pop("seed", None)
        for name in ("log", "evaluation"):
            result[name] = {seed: run[name] for seed, run in runs.items() if name in run}
    elif path.is_dir():
        run_config.expect_file(path, run_config.FILE_NAME)
        result = {"settings": run_config.read(path), "log": _last_row(path)}
        result["evaluation"] = run_config.read_json(path / "evaluation.json")
    else:
        run_config.expect_path(path)
        result = {"settings": _agent(path, max_bytes)}
    return {name: section for name, section in result.items() if section}


def _last_row(path):
    """Returns the last finite number in each column of a log, or a dict from seeds."""
    found = curves.read(path).curves if (path / curves.LOG).exists() else []
    rows = {}
    for curve in found:
        finite = {key: x[[*map(math.isfinite, x)]] for key, x in curve.columns.items()}
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


def table(facts):
    """Returns the facts as lines of text, one fact in each line.

    Control characters are replaced, because the facts may come from an untrusted file.

    Example:

    >>> print(table({"settings": {"env": "CartPole-v1", "fit": {"epochs": 9}}}))
    settings
      env         CartPole-v1
      fit.epochs  9
    """
    lines = []
    for section, content in facts.items():
        rows = [*_rows(content)]
        width = max((len(name) for name, _ in rows), default=0)
        lines += [section, *(f"  {name:<{width}}  {value}" for name, value in rows)]
    return "\n".join("".join(x if x.isprintable() else "?" for x in y) for y in lines)


def _rows(content, prefix=""):
    """Yields names and texts; the names of nested facts contain a dot."""
    for name, value in content.items():
        if isinstance(value, dict) and value:
            yield from _rows(value, f"{prefix}{name}.")
            continue
        text = f"{value:.6g}" if isinstance(value, float) else value
        text = text if isinstance(text, str) else json.dumps(text)
        long = len(text) > _MAX_TEXT
        yield f"{prefix}{name}", f"{text[:_MAX_TEXT]} …" if long else text
