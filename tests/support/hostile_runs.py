"""Run directories for `train --resume` that are broken or would do harm."""

import copy
import functools
import hashlib
import json
import os
import shutil
import sys

import numpy as np

from tf_reinforce.engine import checkpoints

DIGESTS = ("format_version", "arrays", "sha256", "state", "manifest_sha256")
BIG_VALUE = {"kind": "value", "hidden": [15_000] * 2}
# Changed entries of config.json: (name of the case, table or "", key, value)
ENTRIES = (
    ("format is negative", "", "format_version", -(10**12)),
    ("env is a module", "", "env", "evil:CartPole-v1"),
    ("env is a path", "", "env", "../../evil"),
    ("env has other spaces", "", "env", "Pendulum-v1"),
    ("seed of 100 digits", "", "seed", 10**100),
    ("target is NaN", "", "target_return", float("nan")),
    ("text in env_kwargs", "env_kwargs", "xml_file", "/etc/passwd"),
    ("layers of 1 GB", "agent", "hidden", [15_000, 15_000]),
    ("300,000 layers", "agent", "hidden", [1] * 300_000),
    ("head is a list", "agent", "head", ["os.system"]),
    ("head is a function", "agent", "head", "for_space"),
    ("value network of 1 GB", "agent", "baseline", BIG_VALUE),
    ("10^9 passes", "agent", "passes", 10**9),
    ("gamma is NaN", "agent", "gamma", float("nan")),
    ("mask is a path", "agent", "action_mask", "../../evil"),
    ("5,000 workers", "fit", "workers", 5000),
    ("10^12 episodes", "fit", "episodes_per_epoch", 10**12),
    ("10^400 epochs", "fit", "epochs", 10**400),
    ("callbacks in fit", "fit", "callbacks", ["evil"]),
    ("resume in fit", "fit", "resume", "/tmp/evil"),
    ("grace of 400 digits", "checkpoint", "grace_seconds", 10**400),
    ("path in checkpoint", "checkpoint", "agent_path", "../evil.keras"),
)


def edit_config(table, key, value, run, outside):
    path = run / "config.json"
    config = json.loads(path.read_text())
    (config[table] if table else config)[key] = value
    path.write_text(json.dumps(config))


def write_config(text, run, outside):
    (run / "config.json").write_text(text)


def folders(run):
    """Returns the checkpoint folders of a run."""
    return sorted((run / "checkpoints").iterdir())


def replace(name, make, run, outside):
    """Replaces each file or folder that matches a pattern by `make(path, outside)`."""
    for path in list(run.glob(name)) or [run / name]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        make(path, outside)


def link_to(target):
    """Returns a function that links to an absolute path, or to one outside the run."""
    return lambda path, outside: path.symlink_to(outside / target)


def fifo(path, outside):
    os.mkfifo(path)


def sparse(path, outside):
    with open(path, "wb") as file:
        file.truncate(2**40)


def removed(path, outside):
    """Makes nothing."""


SPECIAL = (
    ("no config.json", "config.json", removed),
    ("FIFO config.json", "config.json", fifo),
    ("link config.json to a device", "config.json", link_to("/dev/zero")),
    ("link .lock to a file outside", ".lock", link_to("mine.txt")),
    ("FIFO log.csv", "log.csv", fifo),
    ("link log.csv to a file outside", "log.csv", link_to("mine.txt")),
    ("link episodes.csv to a file outside", "episodes.csv", link_to("mine.txt")),
    ("link checkpoints to a folder outside", "checkpoints", link_to(".")),
    ("link each checkpoint to a folder outside", "checkpoints/*", link_to(".")),
    ("file checkpoints", "checkpoints", sparse),
    ("FIFO manifest.json", "checkpoints/*/manifest.json", fifo),
    ("sparse manifest.json", "checkpoints/*/manifest.json", sparse),
    ("link arrays.bin to a device", "checkpoints/*/arrays.bin", link_to("/dev/zero")),
    ("sparse arrays.bin", "checkpoints/*/arrays.bin", sparse),
    ("no arrays.bin", "checkpoints/*/arrays.bin", removed),
)


def rewrite(change, run, outside):
    """Changes state and header of each checkpoint, with valid digests."""
    for path in folders(run):
        checkpoint = checkpoints.read(path)
        state = copy.deepcopy(checkpoint.state)
        header = {key: x for key, x in checkpoint.header.items() if key not in DIGESTS}
        change(state, header)
        checkpoints.write_state(path, header, state)


def edit_manifest(change, run, outside):
    """Changes the manifest of each checkpoint, with a valid digest."""
    limit = sys.getrecursionlimit()
    sys.setrecursionlimit(10**5)
    for path in folders(run):
        manifest = json.loads((path / "manifest.json").read_text())
        del manifest["manifest_sha256"]
        change(manifest)
        text = json.dumps(manifest, sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()
        text = f'{text[:-1]}, "manifest_sha256": "{digest}"}}\n'
        (path / "manifest.json").write_text(text)
    sys.setrecursionlimit(limit)


def truncate(number, run, outside):
    for path in folders(run):
        os.truncate(path / "arrays.bin", number)


def sparse_best_agent(run, outside):
    """Replaces the best agent, and claims that the last one was evaluated."""
    change = set_callback("BestModel", "state", judged_update=2)
    rewrite(change, run, outside)
    replace("agent.keras", sparse, run, outside)


def set_state(**values):
    return lambda state, header: state.update(values)


def set_progress(**values):
    return lambda state, header: state["progress"].update(values)


def set_callback(name, part, **values):
    def change(state, header):
        entry = next(x for x in state["callbacks"] if x["name"].startswith(name))
        (entry if part is None else entry[part]).update(values)

    return change


def all_nan(state, header):
    state["variables"] = [
        np.full_like(x, np.nan) if x.dtype.kind == "f" else x for x in state["variables"]
    ]


def nested(manifest):
    inner = manifest["state"]["progress"]
    for _ in range(900):
        inner["a"] = {}
        inner = inner["a"]


def set_array(shape, dtype=None):
    """Returns a function that changes the entry of the first array in a manifest."""

    def change(manifest):
        manifest["arrays"][0] = [dtype or manifest["arrays"][0][0], shape]

    return change


def set_manifest(**values):
    return lambda manifest: manifest.update(values)


STATES = {
    "variables are text": set_state(variables=["a"]),
    "variable is a number": lambda state, header: state["variables"].__setitem__(0, 3),
    "another shape": lambda state, header: state["variables"].__setitem__(
        0, np.zeros((10**6,), "float32")
    ),
    "weights are NaN": all_nan,
    "callbacks is a dict": set_state(callbacks={}),
    "epoch is negative": set_progress(epoch=-5),
    "epoch of 400 digits": set_progress(epoch=10**400),
    "steps are negative": set_progress(first_step=-(10**30)),
    "log of negative length": set_callback("RunLog", None, log_bytes=-5),
    "history is text": set_callback("History", "attributes", history="evil"),
    "epochs of the history are a dict": set_callback("History", "attributes", epoch={}),
    "best value is text": set_callback("BestModel", "state", best_value="a"),
    "judged update is null": set_callback("BestModel", "state", judged_update=None),
    "no state of the best model": set_callback("BestModel", None, state={}),
    "agent of another class": lambda state, header: header.update(agent="evil"),
}
MANIFESTS = {
    "shape is negative": set_array([-1]),
    "shape of 10^18": set_array([10**9, 10**9]),
    "shape of many axes": set_array([1] * 10_000),
    "type is object": set_array([1], "variant"),
    "arrays is a number": set_manifest(arrays=3),
    "array is a path": set_manifest(arrays=["../../outside"]),
    "index is a path": lambda manifest: manifest["state"].update(
        variables=[{"tf_reinforce.array": "../../outside/mine.txt"}]
    ),
    "state of depth 900": nested,
    "format version is text": set_manifest(format_version="evil"),
    "format version is negative": set_manifest(format_version=-(10**12)),
}

# Functions of a run directory, which they change, and of a folder that must not change.
CASES = {
    "config is deep": functools.partial(write_config, "[" * 100_000 + "]" * 100_000),
    "config of 100 MB": functools.partial(write_config, " " * 10**8),
    **{x[0]: functools.partial(edit_config, *x[1:]) for x in ENTRIES},
    **{x[0]: functools.partial(replace, *x[1:]) for x in SPECIAL},
    "arrays.bin of half the size": functools.partial(truncate, 500),
    "best agent is a sparse file": sparse_best_agent,
    **{name: functools.partial(rewrite, change) for name, change in STATES.items()},
    **{name: functools.partial(edit_manifest, x) for name, x in MANIFESTS.items()},
}
