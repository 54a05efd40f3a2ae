"""Kills trainings at random moments and at every step of a checkpoint, and resumes them.

Every trial trains in a process that is killed by SIGKILL again and again, and continues
the training in a new process, until the training ends. The result must equal that of a
training that was never killed: SHA-256 digests of the weights and optimizers, the columns
of the logs (without seconds), the history, the episodes and the evaluation.

    python stress/kills.py --runs 300 --kills 1500 --out kills.json

Half of the kills come at a random moment. The other half come at a boundary: before or
after a call that opens, writes, flushes, renames or removes a file. The boundaries of a
trial are taken in order, so that all of them are reached. One trial of twenty starts its
processes as a user does; the other processes are forks of a process that has imported the
package, which saves the seconds of the import.
"""

import argparse
import collections
import contextlib
import csv
import functools
import gc
import hashlib
import itertools
import json
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")
os.environ.setdefault("TF_NUM_INTEROP_THREADS", "1")

import keras
import numpy as np

sys.path.append(str(pathlib.Path(__file__).parents[1] / "tests" / "support"))

import language_models

import tf_reinforce as tfr
from tf_reinforce import cli
from tf_reinforce import saving
from tf_reinforce.engine import agent_state
from tf_reinforce.engine import checkpoints
from tf_reinforce.experiments import runs  # noqa: F401 (forks need no import of their own)

EVERY = ["--checkpoint-every", "1"]
COMMANDS = {
    "CartPole, host engine": [
        *("CartPole-v1", "--engine", "host", "--epochs", "6"),
        *("--episodes-per-epoch", "4", "--hidden", "8", *EVERY),
    ],
    "CartPole, compiled engine": [
        *("CartPole-v1", "--engine", "compiled", "--epochs", "6"),
        *("--episodes-per-epoch", "4", "--hidden", "8", *EVERY),
    ],
    "Pendulum, value baseline and normalizer": [
        *("Pendulum-v1", "--engine", "host", "--epochs", "5", "--baseline", "value"),
        *("--normalize-observations", "--max-episode-steps", "30"),
        *("--episodes-per-epoch", "4", "--hidden", "8", *EVERY),
    ],
    "CartPole, two workers": [
        *("CartPole-v1", "--engine", "host", "--epochs", "5", "--workers", "2"),
        *("--episodes-per-epoch", "4", "--hidden", "8", *EVERY),
    ],
    "CartPole, eight seeds": [
        *("CartPole-v1", "--seeds", "8", "--epochs", "6"),
        *("--episodes-per-epoch", "4", "--hidden", "8", *EVERY),
    ],
}
TIME_LIMIT = 300  # seconds of one process
PROMPTS = ["3+4=", "1+1=", "10+2=", "2+5=", "7+7="]


def run_command(arguments, folder):
    """Starts or continues a run of the command line; returns the exit code."""
    started = (folder / "config.json").exists()
    where = (
        ["--resume", str(folder)] if started else [*arguments, "--run-dir", str(folder)]
    )
    return cli.main(["train", *where])


def train(fit, folder, monitor, *args, callbacks=(), **options):
    """Trains with stateful callbacks of Keras, and writes the history.

    With the history, the file contains a digest of all variables in memory.
    """
    monitored = dict(monitor=monitor, mode="max")
    history = fit(
        *args,
        callbacks=[
            keras.callbacks.ReduceLROnPlateau(patience=1, **monitored),
            keras.callbacks.EarlyStopping(
                patience=4, restore_best_weights=True, **monitored
            ),
            keras.callbacks.CSVLogger(os.fspath(folder / "log.csv")),
            *callbacks,
        ],
        resume=tfr.Checkpoints(folder, every_updates=1),
        verbose=0,
        **options,
    )
    logs = {k: v for k, v in history.history.items() if k != "steps_per_second"}
    variables = _sha256([v.numpy() for v in agent_state.variables(fit.__self__)])
    text = json.dumps([history.epoch, logs, variables])
    (folder / "evaluation.json").write_text(text)


def run_plateau(folder):
    """Starts or continues a training in Python of an agent."""
    agent = tfr.Reinforce.for_env("CartPole-v1", hidden=(8,), seed=1)
    episodes = tfr.callbacks.EpisodeLogger(folder / "episodes.csv")
    options = dict(epochs=7, episodes_per_epoch=4, callbacks=[episodes])
    train(agent.fit, folder, "episode_return", "CartPole-v1", **options)
    agent.save(folder / "agent.keras")


def run_sampling_model(folder, logged):
    """Starts or continues `ScoreFunction.fit`, or `fit_logged`."""
    keras.utils.set_random_seed(1)  # weights, and the order of the data
    inputs = keras.Input((4,))
    hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(inputs))
    choice = tfr.layers.Sample(tfr.heads.Categorical(3))(keras.layers.Dense(3)(hidden))
    value = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model = tfr.ScoreFunction(
        keras.Model(inputs, choice), reward=is_largest, baseline=value, samples=2
    )
    model.compile(keras.optimizers.Adam(0.05))
    rng = np.random.default_rng(0)
    contexts = rng.normal(size=(60, 4)).astype("float32")
    actions = rng.integers(0, 3, 60)
    options = dict(epochs=5, batch_size=16)
    if logged:
        log = contexts, actions, is_largest(contexts, actions), np.full(60, 1 / 3)
        train(model.fit_logged, folder, "policy_value", *log, **options)
    else:
        options["validation_split"] = 0.2
        train(model.fit, folder, "val_reward", contexts, **options)


def is_largest(inputs, choices):
    return (inputs[:, :3].argmax(axis=1) == choices).astype("float32")


def run_language_model(folder):
    """Starts or continues `SequenceReinforce.fit`."""
    model = tfr.sequences.SequenceReinforce(
        language_models.text_gpt2(),
        sevens,
        group_size=2,
        max_completion_length=4,
        seed=3,
    )
    model.compile(keras.optimizers.Adam(0.01), run_eagerly=True)  # no tracing
    options = dict(epochs=4, batch_size=2, validation_data=PROMPTS[:2])
    train(model.fit, folder, "val_reward", PROMPTS, **options)


def sevens(completions):
    return [completion.count("7") + 0.1 * len(completion) for completion in completions]


TRAININGS = {
    **{
        name: functools.partial(run_command, arguments)
        for name, arguments in COMMANDS.items()
    },
    "CartPole, ReduceLROnPlateau and EarlyStopping": run_plateau,
    "ScoreFunction.fit": functools.partial(run_sampling_model, logged=False),
    "ScoreFunction.fit_logged": functools.partial(run_sampling_model, logged=True),
    "SequenceReinforce.fit": run_language_model,
}


def digest(folder):
    """Returns the digests of all results of a training.

    TensorFlow runs only in forks of the main process, because a fork of a process with
    threads of TensorFlow would wait for them for ever.
    """
    path = folder / "digest.json"
    if wait(fork(lambda: path.write_text(json.dumps(_digest(folder))) * 0), TIME_LIMIT):
        raise RuntimeError("the results could not be read")
    return json.loads(path.read_text())


def _digest(folder):
    newest = max((folder / "checkpoints").iterdir(), key=lambda path: int(path.name))
    state = checkpoints.read(newest).state
    result = {"checkpoint": _sha256(state["variables"])} if "variables" in state else {}
    for name in ("agent.keras", "last.keras"):
        if (folder / name).exists():
            agent = saving.load(folder / name)
            result[name] = _sha256([v.numpy() for v in agent_state.variables(agent)])
    for name in ("log.csv", "episodes.csv", "evaluation.json"):
        if (folder / name).exists():
            result[name] = hashlib.sha256(_without_seconds(folder / name)).hexdigest()
    return result


def _sha256(arrays):
    return hashlib.sha256(b"".join(array.tobytes() for array in arrays)).hexdigest()


def _without_seconds(path):
    text = path.read_text()
    if path.suffix != ".csv":
        return text.encode()
    rows = [
        {k: v for k, v in row.items() if "second" not in k}
        for row in csv.DictReader(text.splitlines())
    ]
    return json.dumps(rows).encode()


class Boundaries:
    """Kills the process before or after call number `index` that changes a file."""

    def __init__(self, index):
        self.index = index
        self.count = 0

    def install(self):
        for name in (
            "fsync",
            "replace",
            "rename",
            "mkdir",
            "rmdir",
            "unlink",
            "truncate",
        ):
            setattr(os, name, self._counted(getattr(os, name)))
        for name in ("write_bytes", "write_text"):
            method = getattr(pathlib.Path, name)
            setattr(pathlib.Path, name, self._half_written(method))
        sys.addaudithook(self._audit)

    def _pass(self):
        self.count += 1
        if self.count == self.index:
            os.kill(os.getpid(), signal.SIGKILL)

    def _counted(self, function):
        def call(*args, **kwargs):
            self._pass()
            result = function(*args, **kwargs)
            self._pass()
            return result

        return call

    def _half_written(self, method):
        def write(path, content, *args, **kwargs):
            self.count += 1
            if self.count == self.index:
                method(path, content[: len(content) // 2], *args, **kwargs)
                os.kill(os.getpid(), signal.SIGKILL)
            return method(path, content, *args, **kwargs)

        return write

    def _audit(self, event, args):
        if event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax"):
            self._pass()


def fork(function):
    """Runs a function in a fork of the process; returns the process number."""
    process = os.fork()
    if process:
        return process
    try:
        os.setsid()  # the group contains the worker processes
        null = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1):
            os.dup2(null, descriptor)
        code = function()
    except BaseException as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        code = 70
    os._exit(code or 0)


def spawn(name, folder):
    """Starts or continues a training from the command line or a script, like a user."""
    command = [sys.executable, "-m", "tf_reinforce", "train"]
    if name not in COMMANDS:
        train = f"kills.TRAININGS[{name!r}](kills.pathlib.Path({str(folder)!r}))"
        command = [sys.executable, "-c", f"import kills; {train}"]
    elif (folder / "config.json").exists():
        command += ["--resume", str(folder)]
    else:
        command += [*COMMANDS[name], "--run-dir", str(folder)]
    options = dict(cwd=pathlib.Path(__file__).parent, stdout=subprocess.DEVNULL)
    return subprocess.Popen(command, **options, start_new_session=True).pid


def wait(process, seconds):
    """Waits for a process, kills it after `seconds`; returns its wait status."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        done, status = os.waitpid(process, os.WNOHANG)
        if done:
            return status
        time.sleep(0.002)
    os.kill(process, signal.SIGKILL)
    return os.waitpid(process, 0)[1]


def end_group(process):
    """Ends the workers of a killed process."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process, signal.SIGKILL)


class Trial:
    """One training that is killed up to `max_kills` times.

    Args:
        name: Name of the training.
        spawns: Bool, whether processes start as a user starts them.
        seconds: Float, the duration of the training without kills.
        boundaries: Iterator of the numbers of the boundaries at which to kill.
        rng: `random.Random`.
    """

    def __init__(self, name, spawns, seconds, boundaries, rng):
        self.name = name
        self.spawns = spawns
        self.seconds = seconds
        self.boundaries = boundaries
        self.rng = rng
        self.kills = collections.Counter()

    def run(self, folder, max_kills):
        """Trains with kills until the training ends; returns the digests."""
        while True:
            kind = self.rng.choice(("random", "boundary"))
            if sum(self.kills.values()) >= max_kills:
                kind = None
            elif self.spawns:
                kind = "random"
            status = self._run_process(folder, kind)
            if status == signal.SIGKILL and kind is not None:
                self.kills[kind] += 1
            elif status == 0:
                return digest(folder)
            else:
                raise RuntimeError(f"a process ended with wait status {status}")

    def _run_process(self, folder, kind):
        """Runs a process that is killed as `kind` says; returns its wait status."""
        limit = TIME_LIMIT
        if kind == "random":
            limit = self.rng.uniform(0.1, 1.0) * self.seconds
        if self.spawns:
            process = spawn(self.name, folder)
        else:
            boundary = next(self.boundaries) if kind == "boundary" else 0
            process = fork(lambda: self._train(folder, boundary))
        status = wait(process, limit)
        end_group(process)
        return status

    def _train(self, folder, boundary):
        if boundary:
            Boundaries(boundary).install()
        return TRAININGS[self.name](folder)


def reference(name, root):
    """Trains without a kill; returns the digests, seconds and number of boundaries."""
    folder, seconds = root / "reference", {}
    count = root / "boundaries"

    def train():
        boundaries = Boundaries(None)
        boundaries.install()
        code = TRAININGS[name](folder)
        number = boundaries.count
        count.write_text(str(number))
        return code

    for spawns in (True, False):
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        start = time.monotonic()
        process = spawn(name, folder) if spawns else fork(train)
        status = wait(process, TIME_LIMIT)
        if status != 0:
            raise RuntimeError(f"{name}: wait status {status}")
        seconds[spawns] = time.monotonic() - start
    return digest(folder), seconds, int(count.read_text())


def leftovers(folder):
    """Returns the temporary files and folders in a run directory."""
    return [path.name for path in folder.rglob("*") if path.name.endswith(".tmp")]


def run_trials(name, root, num_runs, kills, seed):
    """Makes trials of one training; returns a dict of counts."""
    expected, seconds, num_boundaries = reference(name, root)
    rng = random.Random(f"{name} {seed}")
    order = rng.sample(range(1, num_boundaries + 1), num_boundaries)
    boundaries = itertools.cycle(order)
    counts = collections.Counter(runs=0, equal=0, leftovers=0)
    differences = []
    while counts["runs"] < num_runs or counts["random"] + counts["boundary"] < kills:
        folder = root / f"{counts['runs']}"
        folder.mkdir()
        spawns = counts["runs"] % 20 == 19
        trial = Trial(name, spawns, seconds[spawns], boundaries, rng)
        try:
            received = trial.run(folder, max_kills=-(-kills // num_runs))
            if received == expected:
                counts["equal"] += 1
            else:
                differences.append({"expected": expected, "received": received})
        except RuntimeError as error:
            differences.append(str(error))
        counts["runs"] += 1
        counts.update(trial.kills)
        counts["leftovers"] += len(leftovers(folder))
        shutil.rmtree(folder)
    result = {**counts, "boundaries": num_boundaries, "seconds": seconds[False]}
    return {**result, "differences": differences}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--runs", type=int, default=36)
    parser.add_argument("--kills", type=int, default=180)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", help="part of the name of a training")
    parser.add_argument("--out", help="JSON file for the counts")
    options = parser.parse_args()
    names = [n for n in TRAININGS if not options.only or options.only in n]
    num_runs, kills = (-(-x // len(names)) for x in (options.runs, options.kills))
    results = {}
    gc.freeze()  # otherwise every fork would copy the memory of the imported modules
    for name in names:
        with tempfile.TemporaryDirectory() as root:
            result = run_trials(name, pathlib.Path(root), num_runs, kills, options.seed)
        results[name] = result
        print(name, {k: v for k, v in result.items() if k != "differences"}, flush=True)
        for difference in result["differences"]:
            print("  not equal:", difference, flush=True)
    totals = {
        key: sum(result.get(key, 0) for result in results.values())
        for key in ("runs", "equal", "random", "boundary", "leftovers")
    }
    print(totals)
    if options.out:
        text = json.dumps({"totals": totals, "trainings": results}, indent=2)
        pathlib.Path(options.out).write_text(text + "\n")
    return totals["equal"] != totals["runs"] or totals["leftovers"] > 0


if __name__ == "__main__":
    sys.exit(main())
