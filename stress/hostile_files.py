"""Loads hostile and broken files, each in a process of its own, and measures the harm.

    python stress/hostile_files.py [--out FILE.json] [--only TEXT]

The files are agent files, run directories and presets. A child process loads each of
them, or continues the run with `tf-reinforce train --resume`. The script checks that no
code of a file runs, that no file is written or changed (except in the run directory of a
training), that the memory grows by at most 1 GiB, that the child needs at most 60 s, and
that each file is refused with a reason.
"""

import argparse
import contextlib
import io
import json
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile

sys.path.append(str(pathlib.Path(__file__).parent.parent / "tests" / "support"))

import hostile_runs
from hostile_configs import CONFIGS
from hostile_configs import read
from hostile_configs import write

MAX_MEMORY = 2**30
MAX_SECONDS = 60.0
MIN_CASES = 60
# What a message quotes from the file is no advice.
OF_FILE = "'[^']*'|Cannot deserialize `[^`]*`"
# No message may ask the user to trust the file.
BAD_ADVICE = re.compile("trust the|safe_mode|unsafe", re.IGNORECASE)
MAKE_FILES = """
import json, pathlib, sys, keras, tf_reinforce as tfr
from tf_reinforce import cli
folder = pathlib.Path(sys.argv[1])
small = "--epochs 2 --episodes-per-epoch 2 --hidden 4 --engine host --checkpoint-every 1"
run = folder / "run"
assert cli.main(["train", "CartPole-v1", "--run-dir", str(run), *small.split()]) == 0
config = json.loads((run / "config.json").read_text())
config["evaluation"]["episodes"] = 2
(run / "config.json").write_text(json.dumps(config))
(run / "evaluation.json").unlink()  # the best agent is evaluated again
tfr.load(run / "agent.keras").save(folder / "agent.keras")
keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(folder / "plain.keras")
"""
# Cases that load, because the file does no harm.
HARMLESS = (
    "200 unreachable layers",
    "build_config with huge shape",  # the model has its input shape
    "repeated member",
    "without metadata.json",
    "data before the archive",
    "loss in compile",  # the agent uses no loss of Keras
)
# A module that leaves a mark if it is imported.
EVIL = "import pathlib; pathlib.Path('canary').write_text('x')"

# Hostile texts of config.json in an agent file
TEXTS = {
    "empty config": "",
    "config is a number": "3",
    "config in UTF-16": '{"a": 1}'.encode("utf-16"),
    "deep JSON": "[" * 100_000 + "]" * 100_000,
    "integer of 10,000 digits": '{"a": ' + "9" * 10_000 + "}",
    "repeated key": '{"class_name": "A", "class_name": "B", "config": {}}',
    "NaN": '{"class_name": "Reinforce", "config": NaN}',
    "config of 100 MB": "[" + "0," * 50_000_000 + "0]",
}
# Hostile texts of config.json in a run directory, for `evaluate`
RUNS = {
    "run: list": "[]",
    "run: deep": "[" * 100_000 + "]" * 100_000,
    "run: 100 MB": " " * 10**8,
    "run: NaN": '{"env": "CartPole-v1", "env_kwargs": {"a": NaN}}',
    "run: env is a module": '{"env": "evil:CartPole-v1", "env_kwargs": {}}',
    "run: env is a path": '{"env": "../../evil", "env_kwargs": {}}',
    "run: text in env_kwargs": '{"env": "CartPole-v1", "env_kwargs": {"xml": "/e"}}',
    "run: evaluation is a list": '{"env": "CartPole-v1", "evaluation": [1]}',
    "run: infinite limit": (
        '{"env": "CartPole-v1", "evaluation": {"max_episode_steps": Infinity}}'
    ),
}
PRESETS = {
    "preset: text in env_kwargs": 'env = "CartPole-v1"\n[env_kwargs]\nxml = "/evil"',
    "preset: another environment": 'env = "Pendulum-v1"',
    "preset: unknown table": 'env = "CartPole-v1"\n[evil]\na = 1',
    "preset: deep": "env = " + "[" * 10_000 + "]" * 10_000,
    "preset: a million environments": 'env = "CartPole-v1"\n[fit]\nnum_envs = 1000000',
    "preset: 100 MB": "a = 1 #" + "x" * 100_000_000,
    "preset: huge layer": 'env = "CartPole-v1"\n[agent]\nhidden = [1000000000000]',
}


def external_link(file):
    import h5py

    file["a"] = h5py.ExternalLink("/etc/passwd", "/")


def virtual_data(file):
    import h5py

    layout = h5py.VirtualLayout((10**6,), "float32")
    layout[:] = h5py.VirtualSource("other.h5", "a", (10**6,))
    file.create_virtual_dataset("a", layout)


def cycle(file):
    group = file.create_group("a")
    group["b"] = group


# Hostile HDF5 files of weights
WEIGHTS = {
    "weights are text": None,
    "external link": external_link,
    "external data": lambda file: file.create_dataset(
        "a", (10,), "uint8", external=[("/etc/passwd", 0, 10)]
    ),
    "virtual data": virtual_data,
    "cycle of groups": cycle,
    "8 GiB without data": lambda file: file.create_dataset("a", (2**31,), "float32"),
    "compressed zeros": lambda file: file.create_dataset(
        "a", data=bytearray(2**24), compression="gzip"
    ),
    "text array": lambda file: file.create_dataset("a", data="text"),
    "no weights": lambda file: None,
}


def hdf5(edit):
    """Returns the bytes of an HDF5 file that `edit(file)` fills, or a text."""
    import h5py

    if edit is None:
        return b"not HDF5"
    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        edit(file)
    return buffer.getvalue()


def archives(members):
    """Yields names of cases and the members of archives, or bytes."""
    yield "zip bomb", {**members, "model.weights.h5": bytes(2**28)}
    yield "repeated member", [*members.items(), next(iter(members.items()))]
    yield "member outside", {**members, "../canary": b"x"}
    yield "absolute member", {**members, "/tmp/canary": b"x"}
    yield "100,000 members", {f"assets/{i}": b"" for i in range(100_000)}
    for name in members:
        yield f"without {name}", {x: members[x] for x in members if x != name}
    buffer = io.BytesIO()
    write(buffer, members)
    data = buffer.getvalue()
    encrypted = bytearray(data)
    encrypted[data.index(b"PK\x01\x02") + 8] |= 1
    encrypted[6] |= 1
    yield "encrypted", bytes(encrypted)
    yield "data before the archive", b"PK\x03\x04" + data
    yield "empty", b""
    yield "half", data[: len(data) // 2]
    yield "random", os.urandom(10_000)
    yield "hdf5 with another name", members["model.weights.h5"]
    yield "end record only", b"PK\x05\x06" + bytes(18)
    flipped = bytearray(data)
    flipped[data.index(b'"gamma"') + 3] ^= 1
    yield "flipped bit", bytes(flipped)


def special_paths(folder):
    """Yields names of cases and paths that are no regular files."""
    os.mkfifo(folder / "fifo.keras")
    yield "FIFO", folder / "fifo.keras"
    yield "device", pathlib.Path("/dev/zero")
    (folder / "folder.keras").mkdir()
    yield "folder", folder / "folder.keras"
    (folder / "loop.keras").symlink_to("loop.keras")
    yield "symbolic link to itself", folder / "loop.keras"
    hostile_runs.sparse(folder / "sparse.keras", None)
    yield "sparse file of 1 TiB", folder / "sparse.keras"
    yield "URL", "hf://evil/agent.keras"
    yield "name with a null byte", "a\0.keras"
    yield "file in /proc", pathlib.Path("/proc/self/environ")


def cases(folder):
    """Yields pairs of a name and a path of a file or folder, after writing it."""
    members, number = read(folder / "agent.keras"), 0

    def new(suffix=".keras"):
        nonlocal number
        number += 1
        return folder / "cases" / f"case{number}{suffix}"

    contents = []
    for name, edit in CONFIGS.items():
        whole = json.loads(members["config.json"])
        edit(whole)
        contents.append((name, {**members, "config.json": json.dumps(whole)}))
    contents += [(x, {**members, "config.json": y}) for x, y in TEXTS.items()]
    contents += [(x, {**members, "model.weights.h5": hdf5(WEIGHTS[x])}) for x in WEIGHTS]
    for name, content in (*contents, *archives(members)):
        path = new()
        if isinstance(content, bytes):
            path.write_bytes(content)
        else:
            bomb = zipfile.ZIP_DEFLATED if name == "zip bomb" else zipfile.ZIP_STORED
            write(path, content, bomb)
        yield name, path
    yield "plain model", folder / "plain.keras"
    yield from special_paths(folder / "cases")
    for name, text in RUNS.items():
        run = new("")
        run.mkdir()
        write(run / "agent.keras", members)
        (run / "config.json").write_text(text)
        yield name, run
    for name, edit in hostile_runs.CASES.items():
        run = new("")
        shutil.copytree(folder / "run", run)
        edit(run, folder / "outside")
        yield f"resume: {name}", run
    for name, text in PRESETS.items():
        path = new(".toml")
        path.write_text(text)
        yield name, path


def in_fork(function, seconds=3600):
    """Returns what a function returns in a child process, as JSON, or an error text."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(seconds)
        try:
            answer = json.dumps(function())
        except BaseException:
            answer = json.dumps(traceback.format_exc()[-2000:])
        os.write(writer, answer.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(answer) if answer else f"the process ended with status {status}"


def load(name, path):
    """Loads a file as a user does, and returns the text of its refusal, or `None`."""
    import tf_reinforce as tfr
    from tf_reinforce import cli

    kind, printed = name.split(": ")[0], io.StringIO()
    words = {"run": ["evaluate", path, "--episodes", "1"]}
    words["resume"] = ["train", "--resume", path]
    with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(io.StringIO()):
        if kind in words:
            return printed.getvalue() if cli.main(words[kind]) else None
        try:
            if kind == "preset":
                tfr.Reinforce.for_env("CartPole-v1", preset=path)
            else:
                tfr.load(path)
        except (ValueError, OSError) as error:
            return str(error)
    return None


def measure(name, path):
    """Runs a case in a child process, and returns its message, memory and seconds."""

    def run():
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        message = load(name, path)
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        return {"message": message, "memory": 1024 * memory}

    start = time.monotonic()
    result = in_fork(run, int(2 * MAX_SECONDS))
    if isinstance(result, str):
        result = {"message": None, "memory": 0, "error": result}
    return {"name": name, "seconds": time.monotonic() - start, **result}


def harm(record, folder, before):
    """Returns what is wrong with a case, or `None`."""
    message = record["message"]
    if "error" in record:
        return f"another error: {record['error']}"
    is_bad = not message or BAD_ADVICE.search(re.sub(OF_FILE, "", message))
    if is_bad and not (message is None and record["name"] in HARMLESS):
        return f"accepted, or refused without a good reason: {message!r}"
    if record["memory"] > MAX_MEMORY or record["seconds"] > MAX_SECONDS:
        return f"{record['memory'] / 2**20:.0f} MiB, {record['seconds']:.1f} s"
    if snapshot(folder) != before:
        return "a file was written or changed"
    return None


def snapshot(folder):
    """Returns the files outside of the cases, with their contents."""
    places = [folder, pathlib.Path.cwd()]
    paths = [x for place in places for x in place.glob("*") if x.is_file()]
    paths += [*(folder / "outside").iterdir(), *pathlib.Path("/tmp").glob("canary")]
    return {str(path): path.read_bytes() for path in paths}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", metavar="FILE.json")
    parser.add_argument("--only", metavar="TEXT", default="", help="part of the names")
    options = parser.parse_args()
    out = pathlib.Path(options.out).resolve() if options.out else None
    records, failures = [], {}
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for part in ("cases", "outside", "current"):
            (folder / part).mkdir()
        (folder / "outside" / "mine.txt").write_text("a file of the user")
        subprocess.run([sys.executable, "-c", MAKE_FILES, name], check=True)
        os.chdir(folder / "current")
        pathlib.Path("evil.py").write_text(EVIL)
        sys.path.insert(0, str(folder / "current"))
        # The files are written in a child, so that this process stays small.
        found = in_fork(lambda: [(x, str(y)) for x, y in cases(folder)])
        if isinstance(found, str):
            raise SystemExit(found)
        import tf_reinforce.experiments.runs  # noqa: F401 (for all children)

        before = snapshot(folder)
        for case, path in found:
            if options.only in case:
                records.append(measure(case, path))
                if problem := harm(records[-1], folder, before):
                    failures[case] = problem
                    print(f"{case}: {problem}", flush=True)
    messages = {re.sub(r"\d+|/\S+", "", str(x["message"])) for x in records}
    result = {"cases": len(records), "messages": len(messages), "failures": failures}
    for key in ("memory", "seconds"):
        result[f"largest {key}"] = max(x[key] for x in records)
    print(json.dumps(result, indent=2))
    if out:
        out.write_text(json.dumps({**result, "records": records}, indent=2) + "\n")
    return int(bool(failures) or (not options.only and len(records) < MIN_CASES))


if __name__ == "__main__":
    sys.exit(main())
