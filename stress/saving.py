"""Kills processes while they save, and lets writes fail, at every step of a save.

    python stress/saving.py --kills 1000 --out saving.json

1. A process saves in a loop and is killed by SIGKILL after a random number of calls. Then
   the old or the new file must be complete, and the next save must leave no other file.
2. Every system call that writes, flushes or renames fails once, with ENOSPC (disk full),
   EDQUOT (quota), EIO (input/output error) and EROFS (read-only): `strace` injects the
   errors. The old file must be intact, and the error must name the path and the cause.
3. `strace` lists the calls of a save: every file is flushed before it is renamed.

Parts 2 and 3 need Linux and `strace`. Without `strace`, the program fails, unless the
option `--without-strace` is set.
"""

import argparse
import collections
import errno
import functools
import io
import json
import mmap
import os
import pathlib
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import gymnasium as gym
import h5py
import keras
import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests" / "support"))

import language_models

import tf_reinforce as tfr
from tf_reinforce.support import files

ERRORS = ("ENOSPC", "EDQUOT", "EIO", "EROFS")
CALLS = {
    "write": "write,pwrite64",
    "flush": "fsync",
    "rename": "rename,renameat,renameat2",
}


class AgentFile:
    """Saves an agent whose trained weights all equal the number of the save."""

    name = "agent.keras"

    def __init__(self, root):
        self.path = root / self.name

    def build(self):
        """Loads the file that the last process has left, or makes the first agent.

        TensorFlow runs only in forks of the main process, which itself never calls
        `build` and `save`: a fork of a process with threads of TensorFlow may not save.
        """
        if self.path.exists():
            self.agent = keras.saving.load_model(self.path)
            return
        self.agent = self.new()
        self.agent.optimizer.build(self.agent.trainable_variables)

    def new(self):
        agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(8,))
        agent.build_for_env(gym.make("CartPole-v1"))
        return agent

    def save(self, number):
        for variable in self.agent.trainable_variables:
            variable.assign(np.full(variable.shape, number, "float32"))
        self.agent.save(self.path)

    def read(self):
        """Returns the set of all numbers in the weights of the layers."""
        with zipfile.ZipFile(self.path) as archive:
            if archive.testzip() is not None:
                return {None}
            content = archive.read("model.weights.h5")
        numbers = set()

        def visit(name, item):
            is_weight = isinstance(item, h5py.Dataset) and "layers/" in name
            if is_weight and item.dtype == "float32":  # no seeds
                numbers.update(np.unique(item[()]).tolist())

        with h5py.File(io.BytesIO(content)) as file:
            file.visititems(visit)
        return numbers


class SamplingModelFile(AgentFile):
    """Saves a `ScoreFunction`."""

    name = "sampling.keras"

    def new(self):
        inputs = keras.Input((2,))
        logits = keras.layers.Dense(3)(inputs)
        choice = tfr.layers.Sample(tfr.heads.Categorical(3))(logits)
        model = tfr.ScoreFunction(keras.Model(inputs, choice), reward=first_input)
        model.compile("adam")
        return model


@keras.saving.register_keras_serializable("stress")
def first_input(inputs, choices):
    return inputs[:, 0]


class LanguageModelFile(AgentFile):
    """Saves a `SequenceReinforce`."""

    name = "language.keras"

    def new(self):
        model = tfr.sequences.SequenceReinforce(
            language_models.text_gpt2(), sevens, max_completion_length=4
        )
        model.compile("adam")
        return model


@keras.saving.register_keras_serializable("stress")
def sevens(completions):
    return [completion.count("7") for completion in completions]


class CheckpointFolder:
    """Writes checkpoints with arrays that all equal the number of the save."""

    name = "checkpoint"

    def __init__(self, root):
        self.path = root / self.name

    def build(self):
        """Makes nothing."""

    def save(self, number):
        arrays = [np.full(size, number, "float32") for size in (3, 5000, 20000)]
        folder = tfr.Checkpoints(self.path)  # here, because no lock works across a fork
        with folder.open():
            folder.write(number, {}, {"number": number, "arrays": arrays})

    def read(self):
        state = tfr.Checkpoints(self.path).newest().state
        return {state["number"], *np.unique(np.concatenate(state["arrays"])).tolist()}


class ReplacedFolder:
    """Replaces a folder, as an export does, with files that contain one number."""

    name = "export"
    NAMES = ("a", "b", "c")

    def __init__(self, root):
        self.path = root / self.name

    def build(self):
        """Makes nothing."""

    def save(self, number):
        with files.atomic_replace_folder(self.path) as folder:
            os.mkdir(folder)
            for name in self.NAMES:
                pathlib.Path(folder, name).write_text(f"{number}\n" * 2000)

    def read(self):
        files.remove_leftovers(self.path.parent)  # as the next write does
        lines = [(self.path / name).read_text().split() for name in self.NAMES]
        complete = all(len(x) == 2000 for x in lines)
        return {float(n) for x in lines for n in x} if complete else {None}


KINDS = AgentFile, SamplingModelFile, LanguageModelFile, CheckpointFolder, ReplacedFolder


def fork(function):
    """Runs a function in a fork, which ends with exit code 0, or 1 after an error."""
    process = os.fork()
    if process == 0:
        code = 1
        try:
            function()
            code = 0
        except BaseException as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
        os._exit(code)
    return process


def save(target, number):
    """Saves in a fork."""

    def build_and_save():
        target.build()
        target.save(number)

    if os.waitpid(fork(build_and_save), 0)[1]:
        raise RuntimeError(f"{target.path} could not be saved")


def temporary_files(root):
    return [path for path in root.rglob("*") if path.name.endswith(".tmp")]


def kill_while_saving(target, root, kills, rng):
    """Kills processes that save in a loop; returns counts."""
    counts, last = collections.Counter(), 0
    save(target, 0)
    for trial in range(1, kills + 1):
        first = 1000 * trial
        position = rng.random()
        child = fork(functools.partial(_save_until_killed, target, first, position))
        status = os.waitpid(child, 0)[1]
        counts["kills"] += os.WIFSIGNALED(status)
        # Such a process could not load the file, or not save.
        counts["problems: not killed"] += not os.WIFSIGNALED(status)
        try:
            numbers = target.read()
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            counts["lost"] += 1
            save(target, first)
            last = first
            continue
        counts["inconsistent"] += len(numbers) != 1 or min(numbers) < last
        counts["with a temporary file"] += bool(temporary_files(root))
        last = max(numbers)
    save(target, 1000 * kills + 999)
    counts["leftovers after the next save"] += len(temporary_files(root))
    return dict(counts)


def _save_until_killed(target, number, position):
    """Saves in a loop, and kills the process after up to three times the calls of a save.

    Args:
        position: Float in [0, 1), the fraction of these calls after which it is killed.
    """
    target.build()
    left = int(3 * position * _calls_of_a_save(target, number))

    def count(*_):
        nonlocal left
        left -= 1
        if left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(count)
    while True:
        number += 1
        target.save(number)


def _calls_of_a_save(target, number):
    calls = 0

    def count(*_):
        nonlocal calls
        calls += 1

    sys.setprofile(count)
    target.save(number)
    sys.setprofile(None)
    return calls


def save_under_strace(target, number, options, log):
    """Saves in a fork that `strace` watches; returns the error text, or `None`."""
    report = mmap.mmap(-1, 4096)  # shared with the fork, and written without a call

    def save():
        target.build()
        os.kill(os.getpid(), signal.SIGSTOP)
        text = "saved"
        try:
            target.save(number)
        except OSError as error:
            text = f"{type(error).__name__}: {error}"
        report[: len(text.encode())] = text.encode()

    process = fork(save)
    os.waitpid(process, os.WUNTRACED)
    command = ["strace", "-f", "-y", "-o", str(log), "-p", str(process), *options]
    tracer = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    tracer.stderr.readline()  # "strace: Process … attached"
    os.kill(process, signal.SIGCONT)
    os.waitpid(process, 0)
    tracer.wait()
    tracer.stderr.close()
    text = report[:].rstrip(b"\0").decode()
    return None if text == "saved" else text


def fail_every_call(target, root):
    """Lets every call of a save fail once; returns counts."""
    counts, problems = collections.Counter(), []
    number = int(max(target.read()))
    log = root.parent / "strace.log"
    for error in ERRORS:
        for kind, calls in CALLS.items():
            for position in range(1, 1000):
                inject = f"inject={calls}:error={error}:when={position}"
                options = ["-e", f"trace={calls}", "-e", inject]
                text = save_under_strace(target, number + 1, options, log)
                if "(INJECTED)" not in log.read_text():
                    number = max(target.read())
                    break
                counts["failed calls"] += 1
                numbers = target.read()
                cause = os.strerror(getattr(errno, error))
                if text is None:
                    counts["no error, and the new file is complete"] += numbers == {
                        number + 1
                    }
                    counts["reported success without the new file"] += numbers != {
                        number + 1
                    }
                    number = max(numbers)
                    continue
                intact = numbers in ({number}, {number + 1})
                named = str(target.path) in text and cause in text
                counts["old or new file complete"] += intact
                counts["error names path and cause"] += named
                if not (intact and named):
                    problems.append([error, kind, position, text, sorted(numbers)])
                number = max(numbers)
                number += 1
                save(target, number)
                counts["leftovers"] += len(temporary_files(root))
    return {**counts, "problems": problems}


def order_of_calls(target, root):
    """Returns whether each renamed file was flushed before, and its folder after."""
    log = root.parent / "strace.log"
    options = ["-e", "trace=fsync,rename,renameat,renameat2"]
    save_under_strace(target, 10**6, options, log)
    flushed, renamed, ordered = set(), 0, 0
    lines = log.read_text().splitlines()
    for position, line in enumerate(lines):
        if match := re.search(r"fsync\(\d+<([^>]*)>\)\s+= 0", line):
            flushed.add(match[1])
        elif match := re.search(r'rename\w*\((?:[^"]*)"([^"]*)".*"([^"]*)"', line):
            source, new = match.groups()
            if ".tmp/" not in source or ".tmp/" in new:
                continue  # an old file that is moved away
            renamed += 1
            folder = os.path.dirname(new)
            after = any(f"<{folder}>" in x for x in lines[position:] if "fsync" in x)
            ordered += source in flushed and after
    return {"renames": renamed, "flushed before, folder flushed after": ordered}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--kills", type=int, default=250)
    parser.add_argument(
        "--without-strace",
        action="store_true",
        help="succeed although the parts that need `strace` are skipped",
    )
    parser.add_argument("--out", help="JSON file for the counts")
    options = parser.parse_args()
    start, rng, result = time.monotonic(), random.Random(0), {}
    has_strace = shutil.which("strace") is not None
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            root = pathlib.Path(folder, kind.name.replace(".", "_"))
            root.mkdir()
            target = kind(root)
            counts = kill_while_saving(target, root, -(-options.kills // len(KINDS)), rng)
            result[kind.name] = {"kills while saving": counts}
            print(kind.name, counts, flush=True)
            if has_strace:
                for function in (fail_every_call, order_of_calls):
                    counts = function(target, root)
                    result[kind.name][function.__name__.replace("_", " ")] = counts
                    print(kind.name, function.__name__, counts, flush=True)
    result["seconds"] = time.monotonic() - start
    if not has_strace:
        print("skipped without strace: failing calls, and the order of calls")
    if options.out:
        pathlib.Path(options.out).write_text(json.dumps(result, indent=2) + "\n")
    return is_bad(result) or not (has_strace or options.without_strace)


def is_bad(result):
    """Returns whether a count that must be zero is not zero."""
    zero = "lost", "inconsistent", "leftovers", "problems", "reported success"
    if isinstance(result, dict):
        return any(
            bool(value)
            if name.startswith(zero) and not isinstance(value, dict)
            else is_bad(value)
            for name, value in result.items()
        )
    return False


if __name__ == "__main__":
    sys.exit(main())
