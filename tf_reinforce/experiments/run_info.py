"""Describes a run directory or an agent file, without TensorFlow."""

import json
import math
import os
import pathlib

from tf_reinforce import files
from tf_reinforce.experiments import curves
from tf_reinforce.experiments import run_config
from tf_reinforce.experiments import seed_processes
from tf_reinforce.loading import archive

_MAX_BYTES = 2**20  # of a small file of a run, which may come from an untrusted source
_MAX_TEXT = 300
_FOLDERS = ("checkpoints", "policy", "tensorboard", "videos", "wandb")


def read(path, limits=None):
    """Returns facts about a run directory, a folder of several seeds, or an agent file.

    Args:
        path: Path of the folder or file. Its content may come from an untrusted source.
        limits: `LoadLimits` of the agent file, or `None` for the defaults.

    Returns:
        Dict of JSON values: sections of facts. A fact that the files do not contain is
        left out.

    Raises:
        FileNotFoundError: If there is neither a run nor an agent file.
        ValueError: If a file is damaged or too large.
    """
    path, limits = pathlib.Path(path), limits or archive.LoadLimits()
    if (seeds := seed_processes.folders(path)) and path.is_dir():
        return _seeds(seeds)
    if not path.is_dir():
        run_config.expect_path(path)
        return {"agent": _agent(path, limits)}
    run_config.expect_file(path, run_config.FILE_NAME)
    result = {"run": _run(path)}
    seeds = run_config.read(path).get("seeds")
    if isinstance(seeds, list):  # all seeds in one program
        result["seeds"] = _trainings(path, seeds)
    else:
        result["training"] = _training(path)
    agent = run_config.agent_file(path)
    if agent.exists():
        result["agent"] = _agent(agent, limits)
    result["settings"] = _settings(path)
    result["versions"] = _json(path / "versions.json")
    result["files"] = _files(path)
    return {name: section for name, section in result.items() if section}


def _seeds(folders):
    """Returns facts about the run directories of several seeds, a dict `{seed: path}`."""
    first = next(iter(folders.values()))
    run = {name: fact for name, fact in _run(first).items() if name != "seed"}
    return {
        "run": {**run, "seeds": list(folders)},
        "seeds": {str(seed): _training(folder) for seed, folder in folders.items()},
        "settings": _settings(first),
    }


def _run(path):
    config = run_config.read(path)
    names = ("env", "preset", "engine", "seed", "seeds", "target_return")
    facts = {name: config[name] for name in names if config.get(name) is not None}
    command = path / "command.txt"
    if command.exists():
        facts["command"] = _text(command)
    return facts


def _training(path):
    """Returns the progress and the returns of a training."""
    found = _curves(path)
    return _progress(found[0] if found else None, _json(path / "evaluation.json"))


def _trainings(path, seeds):
    """Returns the progress and the returns of each seed of one program."""
    found = {curve.seed: curve for curve in _curves(path)}
    evaluations = _json(path / "evaluation.json")
    evaluations = evaluations if isinstance(evaluations, dict) else {}
    return {
        str(seed): _progress(found.get(seed), evaluations.get(str(seed)))
        for seed in dict.fromkeys(x for x in seeds if isinstance(x, int))
    }


def _curves(path):
    return curves.read(path).curves if (path / curves.LOG).exists() else []


def _progress(curve, evaluation):
    facts = {}
    if curve is not None:
        for name in ("env_steps", "episode_return", "val_episode_return"):
            values = curve.columns.get(name, [])
            values = [float(x) for x in values if math.isfinite(x)]
            if values:
                facts[name] = values[-1]
        facts = {"updates": len(curve.columns["epoch"]), **facts}
    if evaluation:
        facts["evaluation"] = evaluation
    facts["state"] = "ended" if evaluation else "not ended: continue with --resume"
    return facts


def _settings(path):
    config = run_config.read(path)
    tables = ("agent", "fit", "evaluation", "env_kwargs", "checkpoint", "callbacks")
    return {table: config[table] for table in tables if config.get(table)}


def _agent(path, limits):
    """Returns the parts of an agent from the configuration in its file."""
    with archive.name_file(path):
        config, weights = archive.read(os.fspath(path), limits)
    parts = config.get("config", {}) if isinstance(config, dict) else {}
    facts = {
        "file": str(path),
        "bytes": path.stat().st_size,
        "weight_bytes": len(weights),
    }
    for name in ("policy", "head", "baseline"):
        if isinstance(parts.get(name), dict):
            facts[name] = parts[name].get("class_name")
    for name in ("observation_space", "action_space", "normalize_observations", "gamma"):
        if name in parts:
            facts[name] = parts[name]
    return facts


def _files(path):
    return {
        entry.name: _size(entry)
        for entry in sorted(path.iterdir())
        if not entry.name.startswith(".") and not entry.is_symlink()
    }


def _size(entry):
    if entry.is_dir():
        if entry.name not in _FOLDERS:
            return "folder"
        return sum(x.stat().st_size for x in entry.rglob("*") if x.is_file())
    return entry.stat().st_size


def _json(path):
    """Returns the content of a small JSON file, or an empty dict without the file."""
    if not path.exists():
        return {}
    try:
        content = json.loads(_read(path))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON file: {error}") from None
    return content


def _text(path):
    return _read(path).strip()[:_MAX_TEXT]


def _read(path):
    files.expect_regular_file(path)
    if path.stat().st_size > _MAX_BYTES:
        raise ValueError(
            f"{path} must have at most {_MAX_BYTES} bytes. Received: "
            f"{path.stat().st_size} bytes"
        )
    return path.read_text(encoding="utf-8", errors="replace")


def table(facts):
    """Returns the facts as lines of text, one fact in each line.

    Control characters are replaced, because the facts may come from an untrusted file.

    Example:

    >>> print(table({"run": {"env": "CartPole-v1", "seed": 0}}))
    run
      env   CartPole-v1
      seed  0
    """
    facts = dict(facts)
    run = {name: facts.pop(name) for name in ("run",) if name in facts}
    seeds = facts.pop("seeds", {})
    facts = {**run, **{f"seed {seed}": x for seed, x in seeds.items()}, **facts}
    lines = []
    for section, content in facts.items():
        rows = _rows(content)
        width = max((len(name) for name, _ in rows), default=0)
        lines.append(section)
        lines += [f"  {name:<{width}}  {value}" for name, value in rows]
    return "\n".join("".join(x if x.isprintable() else "?" for x in y) for y in lines)


def _rows(content, prefix=""):
    """Returns a list of names and texts; the names of nested facts contain a dot."""
    if not isinstance(content, dict):
        return [(prefix.rstrip("."), _value(content))]
    rows = []
    for name, value in content.items():
        is_space = isinstance(value, dict) and "kind" in value
        nested = isinstance(value, dict) and value and not is_space
        text = [(f"{prefix}{name}", _value(value))]
        rows += _rows(value, f"{prefix}{name}.") if nested else text
    return rows


def _value(value):
    if isinstance(value, float):
        return f"{value:,.6g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = value if isinstance(value, str) else json.dumps(value)
    return text if len(text) <= _MAX_TEXT else f"{text[:_MAX_TEXT]} …"
