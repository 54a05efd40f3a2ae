"""Loads hostile and broken files, each in a process of its own, and measures the harm.

    python stress/hostile_files.py [--out FILE.json] [--only TEXT]

The script writes agent files, run directories and presets that are broken or made to do
harm. A child process loads each of them, or continues the run with `tf-reinforce train
--resume`. The script checks that no code of a file runs, that no file is written or
changed (except in the run directory of a training), that the memory grows by at most 1
GiB, that the child needs at most 60 s, and that each file is refused with a reason.
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
import socket
import struct
import subprocess
import sys
import tempfile
import time
import traceback
import zipfile

sys.path.append(str(pathlib.Path(__file__).parent.parent / "tests" / "support"))

import hostile_runs
from hostile_configs import CONFIGS
from hostile_configs import nested
from hostile_configs import read
from hostile_configs import write

MAX_MEMORY = 2**30
MAX_SECONDS = 60.0
MIN_CASES = 100
MIN_MESSAGES = 25
# No message may ask the user to trust the file.
BAD_ADVICE = re.compile("trust the|safe_mode|unsafe", re.IGNORECASE)

MAKE_AGENTS = """
import sys, keras, tf_reinforce as tfr
folder = sys.argv[1]
agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(4,))
agent.fit("CartPole-v1", epochs=1, episodes_per_epoch=2, verbose=0)
agent.save(folder + "/agent.keras")
rate = {"first": 0.01, "last": 0.001}
value = {"kind": "value", "hidden": [4], "learning_rate": rate}
agent = tfr.Reinforce.for_env(
    "Pendulum-v1", hidden=(4,), baseline=value, normalize_observations=True
)
agent.fit("Pendulum-v1", epochs=1, episodes_per_epoch=2, verbose=0)
agent.save(folder + "/value.keras")
keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]).save(folder + "/plain.keras")
"""

# A training that ends after its second update; `--resume` evaluates its best agent again.
MAKE_RUN = """
import json, pathlib, sys
from tf_reinforce import cli
run = pathlib.Path(sys.argv[1], "run")
small = "--epochs 2 --episodes-per-epoch 2 --hidden 4 --engine host --checkpoint-every 1"
assert cli.main(["train", "CartPole-v1", "--run-dir", str(run), *small.split()]) == 0
config = json.loads((run / "config.json").read_text())
config["evaluation"]["episodes"] = 2
(run / "config.json").write_text(json.dumps(config))
"""
# A module that leaves a mark if it is imported.
EVIL = "import pathlib; pathlib.Path('canary').write_text('x')"


def hdf5(edit):
    """Returns the bytes of an HDF5 file that `edit(file)` fills."""
    import h5py

    buffer = io.BytesIO()
    with h5py.File(buffer, "w") as file:
        edit(file)
    return buffer.getvalue()


# Hostile texts of config.json
TEXTS = {
    "empty config": "",
    "config is a number": "3",
    "config is a list": "[]",
    "config is null": "null",
    "config is no JSON": "{'class_name': 'Reinforce'}",
    "config in UTF-16": '{"a": 1}'.encode("utf-16"),
    "deep JSON": "[" * 100_000 + "]" * 100_000,
    "JSON of depth 500": json.dumps({"config": {"a": nested(500)}, "class_name": "X"}),
    "integer of 10,000 digits": '{"a": ' + "9" * 10_000 + "}",
    "repeated key": '{"class_name": "A", "class_name": "B", "config": {}}',
    "NaN": '{"class_name": "Reinforce", "config": NaN}',
    "config of 100 MB": "[" + "0," * 50_000_000 + "0]",
    "config of many empty lists": "[" + "[]," * 600_000 + "[]]",
}


# Hostile HDF5 files of weights


def soft_link(file):
    import h5py

    file["a"] = h5py.SoftLink("/b")


def external_link(file):
    import h5py

    file["a"] = h5py.ExternalLink("/etc/passwd", "/")


def external_data(file):
    file.create_dataset("a", (10,), "uint8", external=[("/etc/passwd", 0, 10)])


def virtual_data(file):
    import h5py

    layout = h5py.VirtualLayout((10**6,), "float32")
    layout[:] = h5py.VirtualSource("other.h5", "a", (10**6,))
    file.create_virtual_dataset("a", layout)


def cycle(file):
    group = file.create_group("a")
    group["b"] = group


def two_names(file):
    file["a"] = [1.0] * 1000
    file["b"] = file["a"]


def deep_groups(file):
    for _ in range(300):
        file = file.create_group("a")


def many_groups(file):
    for number in range(50_000):
        file.create_group(str(number))


WEIGHTS = {
    "weights are empty": b"",
    "weights are text": b"not HDF5",
    "soft link": soft_link,
    "external link": external_link,
    "external data": external_data,
    "virtual data": virtual_data,
    "cycle of groups": cycle,
    "one array under two names": two_names,
    "300 nested groups": deep_groups,
    "50,000 groups": many_groups,
    "8 GiB without data": lambda file: file.create_dataset("a", (2**31,), "float32"),
    "compressed zeros": lambda file: file.create_dataset(
        "a", data=bytearray(2**24), compression="gzip"
    ),
    "text array": lambda file: file.create_dataset("a", data="text"),
    "array of references": lambda file: file.create_dataset(
        "a", data=[file.ref], dtype=__import__("h5py").ref_dtype
    ),
    "array without a shape": lambda file: file.create_dataset("a", dtype="float32"),
    "named type": lambda file: file.__setitem__("a", __import__("numpy").dtype("f4")),
    "no weights": lambda file: None,
}


# Hostile archives


def archives(folder, members):
    """Yields names of cases and paths of archives."""

    def path(name):
        return folder / f"{re.sub('[^a-z0-9]+', '-', name)}.keras"

    def archive(name, content, compression=zipfile.ZIP_STORED):
        write(path(name), content, compression)
        return name, path(name)

    def raw(name, data):
        path(name).write_bytes(data)
        return name, path(name)

    items = list(members.items())
    yield archive("compressed", members, zipfile.ZIP_DEFLATED)
    bomb = {**members, "model.weights.h5": bytes(2**28)}
    yield archive("zip bomb", bomb, zipfile.ZIP_DEFLATED)
    yield archive("zip bomb in bzip2", bomb, zipfile.ZIP_BZIP2)
    yield archive("repeated member", [*items, items[0]])
    yield archive("member outside", [*items, ("../canary", b"x")])
    yield archive("absolute member", [*items, ("/tmp/canary", b"x")])
    yield archive("asset outside", [*items, ("assets/../../canary", b"x")])
    yield archive("unknown member", [*items, ("evil.py", b"x")])
    yield archive("100,000 members", [(f"assets/{i}", b"") for i in range(100_000)])
    for name in members:
        rest = {key: data for key, data in items if key != name}
        yield archive(f"without {name}", rest)
    yield archive("letter", {"word/document.xml": b"<x/>"})
    good = path("whole")
    write(good, members)
    data = good.read_bytes()
    encrypted = bytearray(data)
    start = data.index(b"PK\x01\x02")
    encrypted[start + 8] |= 1
    encrypted[6] |= 1
    yield raw("encrypted", bytes(encrypted))
    yield raw("data before the archive", b"PK\x03\x04" + data)
    yield raw("data after the archive", data + b"PK\x05\x06")
    yield raw("two archives", data + data)
    yield raw("empty", b"")
    yield raw("half", data[: len(data) // 2])
    yield raw("all but one byte", data[:-1])
    yield raw("two bytes", data[:2])
    yield raw("random", os.urandom(10_000))
    yield raw("text", b"an agent")
    yield raw("hdf5 with another name", members["model.weights.h5"])
    yield raw("png", b"\x89PNG\r\n\x1a\n" + bytes(100))
    yield raw("end record only", b"PK\x05\x06" + bytes(18))
    large = bytearray(data)
    large[-10:-6] = struct.pack("<L", 2**31)
    yield raw("huge list of files", bytes(large))
    flipped = bytearray(data)
    flipped[data.index(b'"gamma"') + 3] ^= 1
    yield raw("flipped bit", bytes(flipped))
    sparse = path("sparse")
    with open(sparse, "wb") as file:
        file.truncate(2**40)
    yield "sparse file of 1 TiB", sparse
    sparse = path("sparse-zeros")
    with open(sparse, "wb") as file:
        file.truncate(2**27)
    yield "sparse file of 128 MiB", sparse
    yield "plain model", folder.parent.parent / "plain.keras"


def special_paths(folder):
    """Yields names of cases and paths that are no regular files."""
    os.mkfifo(folder / "fifo.keras")
    yield "FIFO", folder / "fifo.keras"
    yield "device", pathlib.Path("/dev/zero")
    yield "terminal", pathlib.Path("/dev/tty")
    endpoint = socket.socket(socket.AF_UNIX)
    endpoint.bind(str(folder / "socket.keras"))
    endpoint.close()
    yield "socket", folder / "socket.keras"
    (folder / "folder.keras").mkdir()
    (folder / "folder.keras" / "config.json").write_text("{}")
    yield "folder like a Keras folder", folder / "folder.keras"
    (folder / "loop.keras").symlink_to("loop.keras")
    yield "symbolic link to itself", folder / "loop.keras"
    (folder / "link.keras").symlink_to("/dev/zero")
    yield "symbolic link to a device", folder / "link.keras"
    yield "missing file", folder / "missing.keras"
    yield "URL", "hf://evil/agent.keras"
    yield "name of 10,000 characters", "a" * 10_000 + ".keras"
    yield "name with a null byte", "a\0.keras"
    yield "file in /proc", pathlib.Path("/proc/self/environ")


# Hostile run directories and presets
RUNS = {
    "run: list": "[]",
    "run: null": "null",
    "run: number": "3",
    "run: text": '"CartPole-v1"',
    "run: no JSON": "{",
    "run: empty": "",
    "run: binary": bytes(range(256)),
    "run: deep": "[" * 100_000 + "]" * 100_000,
    "run: deep object": '{"a":' * 500 + "1" + "}" * 500,
    "run: 100 MB": "[" + "0," * 50_000_000 + "0]",
    "run: integer of 10,000 digits": '{"a": ' + "9" * 10_000 + "}",
    "run: NaN": '{"env": "CartPole-v1", "env_kwargs": {"a": NaN}}',
    "run: env is a list": '{"env": ["CartPole-v1"]}',
    "run: env is a module": '{"env": "evil:CartPole-v1", "env_kwargs": {}}',
    "run: env is a path": '{"env": "../../evil", "env_kwargs": {}}',
    "run: unknown env": '{"env": "Evil-v7", "env_kwargs": {}}',
    "run: env_kwargs is a list": '{"env": "CartPole-v1", "env_kwargs": [1]}',
    "run: env_kwargs is null": '{"env": "CartPole-v1", "env_kwargs": null}',
    "run: env_kwargs is text": '{"env": "CartPole-v1", "env_kwargs": "a"}',
    "run: text in env_kwargs": '{"env": "CartPole-v1", "env_kwargs": {"xml": "/e"}}',
    "run: unknown env_kwargs": '{"env": "CartPole-v1", "env_kwargs": {"evil": 1}}',
    "run: evaluation is null": '{"env": "CartPole-v1", "evaluation": null}',
    "run: evaluation is a list": '{"env": "CartPole-v1", "evaluation": [1]}',
    "run: max_episode_steps is text": (
        '{"env": "CartPole-v1", "evaluation": {"max_episode_steps": "9"}}'
    ),
    "run: max_episode_steps is negative": (
        '{"env": "CartPole-v1", "evaluation": {"max_episode_steps": -9}}'
    ),
    "run: max_episode_steps is infinite": (
        '{"env": "CartPole-v1", "evaluation": {"max_episode_steps": Infinity}}'
    ),
}

PRESETS = {
    "preset: text in env_kwargs": 'env = "CartPole-v1"\n[env_kwargs]\nxml = "/evil"',
    "preset: list in env_kwargs": 'env = "CartPole-v1"\n[env_kwargs]\na = [1]',
    "preset: nan in env_kwargs": 'env = "CartPole-v1"\n[env_kwargs]\na = nan',
    "preset: another environment": 'env = "Pendulum-v1"',
    "preset: no TOML": "env = ",
    "preset: env is a number": "env = 3",
    "preset: unknown table": 'env = "CartPole-v1"\n[evil]\na = 1',
    "preset: agent is a list": 'env = "CartPole-v1"\nagent = [1]',
    "preset: deep": "env = " + "[" * 10_000 + "]" * 10_000,
    "preset: a million environments": 'env = "CartPole-v1"\n[fit]\nnum_envs = 1000000',
    "preset: 5,000 workers": 'env = "CartPole-v1"\n[fit]\nworkers = 5000',
    "preset: 100 MB": "a = 1 #" + "x" * 100_000_000,
    "preset: huge layer": 'env = "CartPole-v1"\n[agent]\nhidden = [1000000000000]',
}


def large_weights(config):
    """Makes layers that need almost as many weights as the largest allowed file has."""
    layers = config["config"]["policy"]["config"]["layers"]
    hidden = [layer for layer in layers if layer["class_name"] == "Dense"][0]
    hidden["config"]["units"] = 4_000_000
    layers[-1]["build_config"] = {"input_shape": [None, 4_000_000]}
    config["compile_config"] = None  # an optimizer would need more weights


def sequential(class_name, count, options):
    """Returns a function that makes a policy of `count` equal layers."""

    def edit(config):
        names = {"module": "keras.layers", "registered_name": None}
        last = config["config"]["policy"]["config"]["layers"][-1]
        inner = [{"class_name": class_name, "config": options, **names}] * count
        shape = {"batch_shape": [None, 5, 4], "dtype": "float32", "name": "x"}
        first = {"class_name": "InputLayer", "config": shape, **names}
        whole = {"name": "policy", "layers": [first, *inner, last]}
        names = {"module": "keras", "registered_name": None}
        model = {"class_name": "Sequential", "config": whole, **names}
        config["config"]["policy"] = model

    return edit


RECURRENT = {"units": 1, "return_sequences": True}
LARGE = {
    "112 MiB of weights": large_weights,
    "50 layers in sequence": sequential("Dense", 50, {"units": 4}),
    "15 recurrent layers": sequential("LSTM", 15, RECURRENT),
}


def make_cases(folder):
    """Returns pairs of a name and a path, whose files a child process writes.

    The memory of the process that measures the cases stays small.
    """
    child = os.fork()
    if child == 0:
        pairs = [(name, str(path)) for name, path in cases(folder)]
        (folder / "cases.json").write_text(json.dumps(pairs))
        os._exit(0)
    os.waitpid(child, 0)
    return json.loads((folder / "cases.json").read_text())


def cases(folder):
    """Yields pairs of a name and a path of a file or folder, after writing it."""
    number = 0
    members = read(folder / "agent.keras")
    members_of_value = read(folder / "value.keras")

    def new(suffix):
        nonlocal number
        number += 1
        return folder / "cases" / f"case{number}{suffix}"

    for name, edit in CONFIGS.items():
        for source in (members, members_of_value):
            whole = json.loads(source["config.json"])
            edit(whole)
            path = new(".keras")
            write(path, {**source, "config.json": json.dumps(whole)})
            yield f"{name} ({'value' if source is members_of_value else 'plain'})", path
    for name, text in TEXTS.items():
        path = new(".keras")
        write(path, {**members, "config.json": text})
        yield name, path
    for name, data in WEIGHTS.items():
        path = new(".keras")
        data = data if isinstance(data, bytes) else hdf5(data)
        write(path, {**members, "model.weights.h5": data})
        yield name, path
    large = hdf5(lambda file: file.create_dataset("a", data=bytearray(112 * 2**20)))
    for name, edit in LARGE.items():
        whole = json.loads(members["config.json"])
        edit(whole)
        path = new(".keras")
        content = {"config.json": json.dumps(whole), "model.weights.h5": large}
        write(path, {**members, **content})
        yield name, path
    special = folder / "cases" / "special"
    special.mkdir()
    yield from archives(special, members)
    yield from special_paths(special)
    for name, text in RUNS.items():
        run = new("")
        run.mkdir()
        write(run / "agent.keras", members)
        text = text if isinstance(text, bytes) else text.encode()
        (run / "config.json").write_bytes(text)
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


# Loading in a child process


def load(name, path):
    """Loads a file as a user does, and returns the text of its refusal, or `None`."""
    import tf_reinforce as tfr
    from tf_reinforce import cli

    commands = {
        "run": ["evaluate", str(path), "--episodes", "1"],
        "resume": ["train", "--resume", str(path)],
    }
    command = commands.get(name.split(": ")[0])
    if command is not None:
        errors = io.StringIO()
        with (
            contextlib.redirect_stderr(errors),
            contextlib.redirect_stdout(io.StringIO()),
        ):
            code = cli.main(command)
        return None if code == 0 else errors.getvalue()
    try:
        if name.startswith("preset: "):
            tfr.Reinforce.for_env("CartPole-v1", preset=str(path))
        else:
            tfr.load(path)
    except (ValueError, OSError) as error:
        return str(error)
    return None


def measure(name, path, limit):
    """Runs a case in a child process, and returns its record."""
    reader, writer = os.pipe()
    start = time.monotonic()
    child = os.fork()
    if child == 0:
        os.close(reader)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        signal.alarm(limit)
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, 1)
        os.dup2(null, 2)
        record = {"message": None, "error": None}
        try:
            record["message"] = load(name, path)
        except BaseException:
            record["error"] = traceback.format_exc()[-2000:]
        usage = resource.getrusage(resource.RUSAGE_SELF)
        record["memory"] = 1024 * (usage.ru_maxrss - before)
        os.write(writer, json.dumps(record).encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    record = json.loads(answer) if answer else {"message": None, "memory": 0}
    if not answer:
        record["error"] = f"the process ended with status {status}"
    return {"name": name, "seconds": time.monotonic() - start, **record}


def contents(folder, run):
    """Returns the paths below a folder, with the sizes and times of the files.

    Args:
        folder: Path of a folder.
        run: Path of the run directory that a training may change, or `None`.
    """
    return {
        str(path): (path.lstat().st_size, path.lstat().st_mtime_ns)
        for path in folder.rglob("*")
        # The time of a folder also changes if a file in it existed for a while.
        if path.is_symlink() or not path.is_dir()
        if run is None or not path.is_relative_to(run)
    }


def kind_of(message, path):
    """Returns a message without the path, the numbers and the values of a file."""
    message = message.replace(str(path), "PATH").splitlines()[0]
    return re.sub(r"'[^']*'|\"[^\"]*\"|[\d,]*\d|Received: .*", "…", message)[:160]


def problems(record, path, changed):
    """Returns the rules that a case violates."""
    message = record["message"]
    rules = {
        "raised an error that is no refusal": record["error"] is not None,
        f"wrote or changed {', '.join(changed)[:200]}": changed,
        "used too much memory": record["memory"] > MAX_MEMORY,
        "took too long": record["seconds"] > MAX_SECONDS,
        "gave bad advice": message is not None
        and BAD_ADVICE.search(re.sub("'[^']*'", "", message)),
        "printed several lines": message is not None
        and record["name"].startswith(("run: ", "resume: "))
        and len(message.strip().splitlines()) != 1,
    }
    return [name for name, is_violated in rules.items() if is_violated]


# Cases that load, because the file does no harm.
HARMLESS = (
    "200 unreachable layers",
    "negative seed",
    "head is null",  # the default head
    "build_config with huge shape",  # the model has its input shape
    "repeated member",
    "without metadata.json",
    "data before the archive",
    "two archives",
    "learning rate of a missing baseline (value)",  # the baseline is not missing
    "loss in compile",  # the agent uses no loss of Keras
    *(f"resume: {name}" for name in hostile_runs.HARMLESS),
)


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", metavar="FILE.json")
    parser.add_argument("--only", metavar="TEXT", default="")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        for inner in ("cases", "tmp", "work", "outside"):
            (folder / inner).mkdir()
        (folder / "work" / "evil.py").write_text(EVIL)
        (folder / "outside" / "mine.txt").write_text("a file of the user")
        for code in (MAKE_AGENTS, MAKE_RUN):
            command = [sys.executable, "-c", code, name]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        os.chdir(folder / "work")  # a canary would be written here
        tempfile.tempdir = str(folder / "tmp")
        import tf_reinforce as tfr  # the children inherit the imported modules

        __import__("tf_reinforce.experiments.runs")
        assert tfr.load.__doc__
        records = []
        for case, path in make_cases(folder):
            if options.only not in case:
                continue
            run = path if case.startswith("resume: ") else None
            before = contents(folder, run)
            record = measure(case, path, limit=60)
            after = contents(folder, run)
            changed = sorted(
                x for x in {*before, *after} if before.get(x) != after.get(x)
            )
            record["problems"] = problems(record, path, changed)
            print(
                f"{record['seconds']:5.1f} s {record['memory'] / 2**20:6.0f} MiB {case}",
                flush=True,
            )
            record["kind"] = record["message"] and kind_of(record["message"], path)
            records.append(record)
            for problem in record["problems"]:
                text = record["error"] or record["message"]
                print(f"{case}: {problem} ({record['seconds']:.1f} s)\n  {text}")
        os.chdir("/")
    return report(records, options.out)


def report(records, out):
    """Prints and writes the counts; returns 1 if a count misses the bar."""
    accepted = [record["name"] for record in records if record["message"] is None]
    unexpected = [x for x in accepted if not x.startswith(HARMLESS)]
    kinds = {record["kind"] for record in records if record["kind"]}
    counts = {
        "cases": len(records),
        "refused": len(records) - len(accepted),
        "accepted": accepted,
        "distinct messages": len(kinds),
        "problems": {r["name"]: r["problems"] for r in records if r["problems"]},
        "most memory (MiB)": max(r["memory"] for r in records) / 2**20,
        "most seconds": max(r["seconds"] for r in records),
    }
    print(json.dumps(counts, indent=2))
    if out:
        text = json.dumps({**counts, "records": records}, indent=1)
        pathlib.Path(out).write_text(text + "\n")
    is_good = not counts["problems"] and len(records) >= MIN_CASES
    return 0 if is_good and len(kinds) >= MIN_MESSAGES and not unexpected else 1


if __name__ == "__main__":
    sys.exit(main())
