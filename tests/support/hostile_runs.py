"""Makes run directories that are broken or would do harm, for `train --resume`."""

import copy
import functools
import hashlib
import json
import os
import shutil
import sys

import numpy as np

from tf_reinforce.engine import checkpoints

# The names of cases that continue a training, because the directory does no harm.
HARMLESS = (
    "whole",
    "link agent.keras to a file outside",
    "link last.keras to a file outside",
    "link evaluation.json to a file outside",
    "FIFO versions.json",
    "FIFO .lock",
    "FIFO agent.keras",  # training replaces the file
    "link agent.keras to a device",
    "sparse agent.keras",
    "versions is a list",
    "unknown attribute",
    "leftover that is a link",
)
DIGESTS = ("format_version", "arrays", "sha256", "state", "manifest_sha256")
VALUE = {"kind": "value", "hidden": [4], "learning_rate": 0.01}
RAW = {
    "config is a list": "[]",
    "config is a number": "3",
    "config is empty": "",
    "config is no JSON": "{'env': 3}",
    "config is deep": "[" * 100_000 + "]" * 100_000,
    "config of 100 MB": "[" + "0," * 50_000_000 + "0]",
    "config of 10,000 digits": '{"seed": ' + "9" * 10_000 + "}",
}

# Changed entries of config.json: (name of the case, table or "", key, value)
ENTRIES = (
    ("env is a module", "", "env", "evil:CartPole-v1"),
    ("env is a module of a package", "", "env", "gymnasium.envs.toy_text:Taxi-v3"),
    ("env is a path", "", "env", "../../evil"),
    ("env is a list", "", "env", ["CartPole-v1"]),
    ("env is unknown", "", "env", "Evil-v7"),
    ("env has other spaces", "", "env", "Pendulum-v1"),
    ("engine is unknown", "", "engine", "evil"),
    ("engine is a list", "", "engine", ["host"]),
    ("seed is a boolean", "", "seed", True),
    ("seed of 100 digits", "", "seed", 10**100),
    ("seed is null", "", "seed", None),
    ("100,000 seeds", "", "seeds", list(range(100_000))),
    ("no seeds", "", "seeds", []),
    ("seeds of 100 digits", "", "seeds", [10**100]),
    ("target is NaN", "", "target_return", float("nan")),
    ("target of 400 digits", "", "target_return", 10**400),
    ("preset is a number", "", "preset", 3),
    ("agent is null", "", "agent", None),
    ("text in env_kwargs", "env_kwargs", "xml_file", "/etc/passwd"),
    ("list in env_kwargs", "env_kwargs", "a", [1]),
    ("infinite env_kwargs", "env_kwargs", "a", float("inf")),
    ("unknown env_kwargs", "env_kwargs", "evil", 1),
    ("layer of 10^12", "agent", "hidden", [10**12]),
    ("layers of 1 GB", "agent", "hidden", [15_000, 15_000]),
    ("layer of 400 digits", "agent", "hidden", [10**400]),
    ("300,000 layers", "agent", "hidden", [1] * 300_000),
    ("hidden is text", "agent", "hidden", "evil"),
    ("hidden is negative", "agent", "hidden", [-1]),
    ("head is a list", "agent", "head", ["os.system"]),
    ("head has unknown arguments", "agent", "head", {"kind": "Gaussian", "evil": 1}),
    ("head is a function", "agent", "head", "for_space"),
    ("baseline is a class", "agent", "baseline", "Baseline"),
    (
        "value network of 1 GB",
        "agent",
        "baseline",
        {"kind": "value", "hidden": [15_000] * 2},
    ),
    ("10^9 passes", "agent", "passes", 10**9),
    (
        "10^9 passes of the baseline",
        "agent",
        "baseline",
        {"kind": "value", "passes": 10**9},
    ),
    ("gamma is NaN", "agent", "gamma", float("nan")),
    ("gamma of 400 digits", "agent", "gamma", 10**400),
    ("learning rate is infinite", "agent", "learning_rate", float("inf")),
    ("minibatch of 400 digits", "agent", "minibatch_size", 10**400),
    ("mask is a number", "agent", "action_mask", 3),
    ("mask is a path", "agent", "action_mask", "../../evil"),
    ("unknown option", "agent", "evil", 1),
    ("5,000 workers", "fit", "workers", 5000),
    ("workers of 400 digits", "fit", "workers", 10**400),
    ("1,000,000 environments", "fit", "num_envs", 10**6),
    ("10^12 episodes", "fit", "episodes_per_epoch", 10**12),
    ("10^6 episodes", "fit", "episodes_per_epoch", 10**6),
    ("10^400 epochs", "fit", "epochs", 10**400),
    ("epochs is text", "fit", "epochs", "1"),
    ("10^9 steps of an episode", "fit", "max_episode_steps", 10**9),
    ("10^30 steps of an episode", "fit", "max_episode_steps", 10**30),
    ("callbacks in fit", "fit", "callbacks", ["evil"]),
    ("resume in fit", "fit", "resume", "/tmp/evil"),
    ("on_env_error is a list", "fit", "on_env_error", ["raise"]),
    ("evaluation of no episodes", "evaluation", "episodes", 0),
    ("evaluation target of 400 digits", "evaluation", "target", 10**400),
    ("grace of 400 digits", "checkpoint", "grace_seconds", 10**400),
    ("path in checkpoint", "checkpoint", "agent_path", "../evil.keras"),
    ("half an update", "checkpoint", "every_updates", 0.5),
)


def edit_config(table, key, value, run, outside):
    path = run / "config.json"
    config = json.loads(path.read_text())
    (config[table] if table else config)[key] = value
    if key == "seeds":
        del config["seed"]
    path.write_text(json.dumps(config))


def write_config(text, run, outside):
    (run / "config.json").write_text(text)


def folders(run):
    """Returns the folders of the checkpoints of a run."""
    return sorted((run / "checkpoints").iterdir())


def replace(name, make, run, outside):
    """Replaces each file or folder that matches a pattern by `make(path, outside)`."""
    paths = list(run.glob(name)) or [run / name]
    for path in paths:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        make(path, outside)


def link_to_file(path, outside):
    path.symlink_to(outside / "mine.txt")


def link_to_folder(path, outside):
    path.symlink_to(outside)


def link_to_device(path, outside):
    path.symlink_to("/dev/zero")


def fifo(path, outside):
    os.mkfifo(path)


def sparse(path, outside):
    with open(path, "wb") as file:
        file.truncate(2**40)


def folder_with_a_file(path, outside):
    path.mkdir()
    (path / "evil").write_text("x")


def removed(path, outside):
    """Makes nothing."""


SPECIAL = (
    ("no config.json", "config.json", removed),
    ("FIFO config.json", "config.json", fifo),
    ("folder config.json", "config.json", folder_with_a_file),
    ("link config.json to a device", "config.json", link_to_device),
    ("link config.json to a file outside", "config.json", link_to_file),
    ("FIFO versions.json", "versions.json", fifo),
    ("FIFO .lock", ".lock", fifo),
    ("link .lock to a file outside", ".lock", link_to_file),
    ("folder .lock", ".lock", folder_with_a_file),
    ("FIFO log.csv", "log.csv", fifo),
    ("no log.csv", "log.csv", removed),
    ("link log.csv to a file outside", "log.csv", link_to_file),
    ("link episodes.csv to a file outside", "episodes.csv", link_to_file),
    ("folder episodes.csv", "episodes.csv", folder_with_a_file),
    ("FIFO agent.keras", "agent.keras", fifo),
    ("link agent.keras to a device", "agent.keras", link_to_device),
    ("sparse agent.keras", "agent.keras", sparse),
    ("folder agent.keras", "agent.keras", folder_with_a_file),
    ("link checkpoints to a folder outside", "checkpoints", link_to_folder),
    ("link each checkpoint to a folder outside", "checkpoints/*", link_to_folder),
    ("file checkpoints", "checkpoints", sparse),
    ("FIFO checkpoints", "checkpoints", fifo),
    ("empty checkpoints", "checkpoints/*/*", removed),
    ("FIFO manifest.json", "checkpoints/*/manifest.json", fifo),
    ("link manifest.json to a device", "checkpoints/*/manifest.json", link_to_device),
    ("sparse manifest.json", "checkpoints/*/manifest.json", sparse),
    ("no manifest.json", "checkpoints/*/manifest.json", removed),
    ("FIFO arrays.bin", "checkpoints/*/arrays.bin", fifo),
    ("link arrays.bin to a device", "checkpoints/*/arrays.bin", link_to_device),
    ("sparse arrays.bin", "checkpoints/*/arrays.bin", sparse),
    ("no arrays.bin", "checkpoints/*/arrays.bin", removed),
)


def link_output(name, run, outside):
    """Replaces a file that training writes, which must not change the linked file."""
    (run / name).unlink()
    (run / name).symlink_to(outside / "mine.txt")
    if name == "agent.keras":  # is loaded unless training writes it
        shutil.rmtree(run / "checkpoints")
        for log in ("log.csv", "episodes.csv"):
            (run / log).unlink()


def leftover_link(run, outside):
    for folder in (run, run / "checkpoints"):
        (folder / ".mine.txt.abcd1234.tmp").symlink_to(outside)


def rewrite(change, run, outside):
    """Changes the state and the header of each checkpoint, with valid digests."""
    for path in folders(run):
        checkpoint = checkpoints.read(path)
        state = copy.deepcopy(checkpoint.state)
        header = {key: x for key, x in checkpoint.header.items() if key not in DIGESTS}
        change(state, header)
        checkpoints.write_state(path, header, state)


def edit_manifest(change, run, outside):
    """Changes the manifest of each checkpoint, with a valid digest of the manifest."""
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


def flip(run, outside):
    for path in folders(run):
        content = bytearray((path / "arrays.bin").read_bytes())
        content[7] ^= 1
        (path / "arrays.bin").write_bytes(content)


def huge_array(run, outside):
    """Declares one more array of 4 GiB, whose zeros take no space on the disk."""
    size = 2**32
    arrays = {path: path / "arrays.bin" for path in folders(run)}
    digests = {}
    for path, file in arrays.items():
        digest = hashlib.sha256(file.read_bytes())
        for _ in range(size // 2**20):
            digest.update(bytes(2**20))
        digests[json.loads((path / "manifest.json").read_text())["sha256"]] = digest
        os.truncate(file, file.stat().st_size + size)

    def declare(manifest):
        manifest["arrays"].append(["uint8", [size]])
        manifest["sha256"] = digests[manifest["sha256"]].hexdigest()

    edit_manifest(declare, run, outside)


def sparse_best_agent(run, outside):
    """Replaces the best agent, and states that the last agent has been evaluated."""
    change = set_callback("EvaluationCallback", "state", evaluated_update=2)
    rewrite(change, run, outside)
    replace("agent.keras", sparse, run, outside)


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


def nested(manifest, depth):
    inner = manifest["state"]["progress"]
    for _ in range(depth):
        inner["a"] = {}
        inner = inner["a"]


def arrays(**changes):
    """Returns a function that changes the entry of the first array in a manifest."""

    def change(manifest):
        entry = manifest["arrays"][0]
        manifest["arrays"][0] = [changes.get("dtype", entry[0]), changes["shape"]]

    return change


STATES = {
    "state is a list": lambda state, header: state.clear(),
    "no variables": lambda state, header: state.update(variables=[]),
    "variables are text": lambda state, header: state.update(variables=["a"]),
    "variable is a number": lambda state, header: state["variables"].__setitem__(0, 3),
    "another shape": lambda state, header: state["variables"].__setitem__(
        0, np.zeros((10**6,), "float32")
    ),
    "weights are NaN": all_nan,
    "epoch is negative": set_progress(epoch=-5),
    "epoch of 400 digits": set_progress(epoch=10**400),
    "epoch is text": set_progress(epoch="1"),
    "stopped is a number": set_progress(stopped=3),
    "steps are negative": set_progress(first_step=-(10**30)),
    "unknown progress": set_progress(evil=1),
    "callbacks is a dict": lambda state, header: state.update(callbacks={}),
    "log of negative length": set_callback("CSVLogger", None, log_bytes=-5),
    "log of 10^30 bytes": set_callback("EpisodeLogger", None, log_bytes=10**30),
    "columns of the log are a number": set_callback("CSVLogger", "attributes", keys=3),
    "history is text": set_callback("History", "attributes", history="evil"),
    "epochs of the history are a dict": set_callback("History", "attributes", epoch={}),
    "unknown attribute": set_callback("History", "attributes", model="evil"),
    "best return is text": set_callback("EvaluationCallback", "state", best_return="a"),
    "evaluations are null": set_callback("EvaluationCallback", "state", evaluations=None),
    "no state of the evaluation": set_callback("EvaluationCallback", None, state={}),
    "state of the evaluation is a list": set_callback(
        "EvaluationCallback", None, state=[1]
    ),
    "agent of another class": lambda state, header: header.update(agent="evil"),
    "no settings": lambda state, header: header.update(settings=None),
    "versions is a list": lambda state, header: header.update(versions=[1]),
}
MANIFESTS = {
    "shape is text": arrays(shape="evil"),
    "shape is negative": arrays(shape=[-1]),
    "shape of 10^18": arrays(shape=[10**9, 10**9]),
    "shape of many axes": arrays(shape=[1] * 10_000),
    "empty array of 2^78": arrays(shape=[0, 2**39, 2**39]),
    "type is unknown": arrays(dtype="evil", shape=[1]),
    "type is object": arrays(dtype="variant", shape=[1]),
    "type is text": arrays(dtype="string", shape=[1]),
    "type is a list": arrays(dtype=["float32"], shape=[1]),
    "arrays is a number": lambda manifest: manifest.update(arrays=3),
    "arrays is null": lambda manifest: manifest.update(arrays=None),
    "array is a path": lambda manifest: manifest.update(arrays=["../../outside"]),
    "index of no array": lambda manifest: manifest["state"].update(
        variables=[{"tf_reinforce.array": 10**6}]
    ),
    "index is a path": lambda manifest: manifest["state"].update(
        variables=[{"tf_reinforce.array": "../../outside/mine.txt"}]
    ),
    "state of depth 900": functools.partial(nested, depth=900),
    "state of depth 5,000": functools.partial(nested, depth=5000),
    "state is null": lambda manifest: manifest.update(state=None),
    "format version is text": lambda manifest: manifest.update(format_version="evil"),
    "format version of 100 digits": lambda manifest: manifest.update(
        format_version=10**100
    ),
}

# Functions of a run directory, which they change, and of a folder that must not change.
CASES = {
    "whole": lambda run, outside: None,
    **{name: functools.partial(write_config, text) for name, text in RAW.items()},
    **{x[0]: functools.partial(edit_config, *x[1:]) for x in ENTRIES},
    **{x[0]: functools.partial(replace, *x[1:]) for x in SPECIAL},
    **{
        f"link {name} to a file outside": functools.partial(link_output, name)
        for name in ("agent.keras", "last.keras", "evaluation.json")
    },
    "leftover that is a link": leftover_link,
    "arrays.bin of half the size": functools.partial(truncate, 500),
    "arrays.bin is empty": functools.partial(truncate, 0),
    "arrays.bin with a flipped bit": flip,
    "best agent is a sparse file": sparse_best_agent,
    "array of 4 GiB that takes no space": huge_array,
    **{name: functools.partial(rewrite, change) for name, change in STATES.items()},
    **{name: functools.partial(edit_manifest, x) for name, x in MANIFESTS.items()},
}
