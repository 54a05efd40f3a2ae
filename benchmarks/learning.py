"""Trains presets with several seeds, and reports their learning curves.

    python benchmarks/learning.py run PRESET… --seeds 1-5 [--steps N] [--jobs 2]
    python benchmarks/learning.py report

The command `run` trains each preset with each seed in its own process, on one thread.
Instead of a preset, the name of an environment and then `-default` stands for the
settings of `for_env(env, baseline="value")` without a preset. The command `run` writes
one JSON file per training run to benchmarks/results. The policy is evaluated before the
first update, each time that training passes a multiple of 50,000 environment steps, and
at the end. Each evaluation during training samples the actions of 10 new episodes. After
training, the greedy policy is evaluated in 100 episodes.

The command `run` saves the agent with each evaluation. If a training run is interrupted,
repeating the command continues the training run from the saved agent. The results of
interrupted and uninterrupted training runs are equal to the bit. The command `run` skips
finished runs.

The command `report` writes the tables into docs/results.md, the pictures into docs, and
all training runs into docs/results.jsonl. The file docs/results.jsonl keeps earlier runs,
so that training runs may be made on several days and machines.
"""

import argparse
import concurrent.futures
import contextlib
import fcntl
import hashlib
import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import time

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras
import learning_report
import learning_settings
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import presets
from tf_reinforce.data import seeding
from tf_reinforce.experiments import runs
from tf_reinforce.settings import run_config
from tf_reinforce.support import version

HERE = pathlib.Path(__file__).resolve().parent
SAMPLED = {"episodes": 10, "deterministic": False}
GREEDY = {"episodes": 100, "deterministic": True}


class EvaluationCallback(keras.callbacks.Callback):
    """Evaluates the agent at fixed steps, and saves the state of the run.

    Args:
        record: Dict, the content of the run's JSON file; the callback changes `record`.
        path: Path of the run's JSON file.
    """

    def __init__(self, record, path):
        super().__init__()
        self.record = record
        self.path = path

    def on_train_begin(self, logs=None):
        self.training_start = time.perf_counter()
        if not self.record["curve"]:
            self.evaluate_and_save()

    def on_epoch_end(self, epoch, logs=None):
        every, last = self.record["every"], self.record["curve"][-1][0]
        due = min((last // every + 1) * every, self.record["steps"])
        if self.model.env_steps >= due:
            self.evaluate_and_save()

    def evaluate_and_save(self):
        agent, record = self.model, self.record
        start = time.perf_counter()
        record["training_seconds"] += start - self.training_start
        # The seed depends on the update, so that each evaluation has new episodes.
        rng = seeding.generator(record["seed"], "validation/environment", agent.updates)
        metrics = evaluate(agent, record, rng.integers(2**31), SAMPLED)
        mean, std = metrics["episode_return"], metrics["episode_return_std"]
        point = [agent.env_steps, mean, std, round(record["training_seconds"], 3)]
        record["curve"].append(point)
        for name in ("updates", "episodes_seen", "env_steps"):
            record[name] = getattr(agent, name)
        record["agent"] = f"{self.path.stem}_{agent.env_steps}.keras"
        agent.save(self.path.with_name(record["agent"]))
        self.training_start = time.perf_counter()
        record["evaluation_seconds"] += self.training_start - start
        write_record(self.path, record)
        print(
            f"{record['preset']}, seed {record['seed']}: {agent.env_steps:,} steps, "
            f"return {mean:,.2f} ± {std:,.2f}, {record['training_seconds']:,.0f} s",
            flush=True,
        )


def evaluate(agent, record, seed, options):
    """Returns the metrics of an evaluation in the environment of the preset."""
    settings = record["settings"]
    options = {**runs.evaluation_options(settings), **options}
    return agent.evaluate(settings["env"], seed=seed, **options)


def write_record(path, record):
    """Writes the JSON file, then removes older agent files of the run.

    The agent file that the record names already exists. If the process is killed, the
    JSON file therefore always names an existing agent file.
    """
    run_config.write_json(path, record)
    for agent_path in path.parent.glob(f"{path.stem}_*.keras"):
        if agent_path.name != record["agent"]:
            agent_path.unlink()


def load_or_create(path, settings, seed, steps, every):
    """Returns the record of a run; raises if the saved record has other settings."""
    versions = all_versions()
    if path.exists():
        record = json.loads(path.read_text())
        expected = {"settings": settings, "every": every}
        if not record["finished"]:
            expected["versions"] = versions
        for name, value in expected.items():
            if record[name] != value:
                raise SystemExit(
                    f"The run in {path} was started with other {name}. Remove the "
                    f"file, or pass another folder as --results.\nExpected: {value}\n"
                    f"Received: {record[name]}"
                )
        return record
    return {
        "preset": path.parent.name,
        "seed": seed,
        "steps": steps,
        "every": every,
        "settings": settings,
        "versions": versions,
        "finished": False,
        "agent": None,
        "curve": [],
        "curve_columns": "environment steps, mean return, its std, training seconds",
        "training_seconds": 0.0,
        "evaluation_seconds": 0.0,
    }


def all_versions():
    """Returns the software versions, and a hash of the package's source files."""
    sources = sorted(pathlib.Path(tfr.__file__).parent.rglob("*.py"))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    versions = version.installed()
    sources = f"{versions['tf-reinforce']}, sources {code[:8]}"
    return {**versions, "tf-reinforce": sources}


def record_path(results, preset, seed, steps):
    return pathlib.Path(
        results, learning_settings.preset_name(preset), f"{steps}_seed{seed}.json"
    )


@contextlib.contextmanager
def lock_run(path):
    """Locks a run for this process, until the end of the context or of the process."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.stem}.lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"Another process is writing {path}.") from None
        for temporary_path in path.parent.glob(f".{path.stem}[._]*/"):
            shutil.rmtree(temporary_path)  # from a killed process
        yield


def train(path, settings, seed, steps, every):
    """Trains one run to its end, from the start or from its last evaluation."""
    with lock_run(path):
        record = load_or_create(path, settings, seed, steps, every)
        if record["finished"]:
            return
        env, env_kwargs = settings["env"], settings["env_kwargs"]
        fit = {x: y for x, y in settings["fit"].items() if x not in ("epochs", "steps")}
        if record["agent"]:
            agent = tfr.load(path.with_name(record["agent"]))
        else:
            options = {**settings["agent"], "env_kwargs": env_kwargs}
            agent = tfr.Reinforce.for_env(env, seed=seed, **options)
        if agent.env_steps < steps:
            agent.fit(
                env,
                **fit,
                steps=steps - agent.env_steps,
                seed=seed,
                env_kwargs=env_kwargs,
                callbacks=[EvaluationCallback(record, path)],
                verbose=0,
            )
        start = time.perf_counter()
        record["final"] = evaluate(agent, record, seed, GREEDY)
        record["evaluation_seconds"] += time.perf_counter() - start
        speed = record["env_steps"] / record["training_seconds"]
        record.update(steps_per_second=speed, finished=True, agent=None)
        write_record(path, record)


def run(arguments):
    """Trains every run that is not finished, each in its own process, on one thread."""
    commands = []
    for seed, preset in itertools.product(arguments.seeds, arguments.presets):
        steps = learning_settings.steps_of(preset, arguments.steps)
        path = record_path(arguments.results, preset, seed, steps)
        settings = learning_settings.read(preset)
        record = load_or_create(path, settings, seed, steps, arguments.every)
        if record["finished"]:
            print(f"{path} is finished.")
            continue
        options = dict(seeds=seed, steps=steps, every=arguments.every)
        options["results"] = arguments.results
        command = [sys.executable, str(HERE / "learning.py"), "run_one", str(preset)]
        commands.append([*command, *(f"--{x}={y}" for x, y in options.items())])
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        futures = [pool.submit(subprocess.run, c, env=environment) for c in commands]
        try:
            processes = [future.result() for future in futures]
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    failed = [" ".join(x.args) for x in processes if x.returncode]
    if failed:
        raise SystemExit("\n".join(["These commands failed:", *failed]))


def run_one(arguments):
    # With one thread, the order of summation is fixed.
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    (preset,), (seed,), steps = arguments.presets, arguments.seeds, arguments.steps
    path = record_path(arguments.results, preset, seed, steps)
    train(path, learning_settings.read(preset), seed, steps, arguments.every)


def report(arguments):
    results, docs = pathlib.Path(arguments.results), pathlib.Path(arguments.docs)
    groups, _ = learning_report.read(results, docs / learning_report.PUBLISHED)
    for (name, steps), records in groups.items():
        default = f"{records[0]['settings']['env']}{learning_report.DEFAULT}"
        known = name in (*presets.names(), default)
        if known and records[0]["settings"] != learning_settings.read(name):
            raise SystemExit(
                f"The runs of {name} over {steps} steps were made with other settings "
                "than those of the preset. Remove the runs from "
                f"{results} and {docs}, or run them again."
            )
    print(learning_report.write(results, docs, learning_settings.is_default))


def parse_seeds(text):
    """Returns the seeds of a text like `1-5` or `3`."""
    first, _, last = text.partition("-")
    seeds = range(int(first), int(last or first) + 1)
    if not seeds:
        raise argparse.ArgumentTypeError(
            f"expected seeds like 1-5, the smaller one first. Received: {text}"
        )
    return seeds


def positive_int(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected an int above 0. Received: {text}")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    subparsers = parser.add_subparsers(required=True, metavar="{run,report}")
    for command in (run, run_one):
        run_parser = subparsers.add_parser(command.__name__)
        run_parser.set_defaults(command=command)
        run_parser.add_argument("presets", nargs="+", metavar="PRESET")
        run_parser.add_argument(
            "--seeds", type=parse_seeds, default=range(1, 6), metavar="1-5"
        )
        run_parser.add_argument(
            "--steps", type=positive_int, help="instead of the preset's own"
        )
        run_parser.add_argument(
            "--every", type=positive_int, default=learning_report.EVERY
        )
        run_parser.add_argument(
            "--jobs", type=positive_int, default=1, help="number of parallel processes"
        )
        run_parser.add_argument("--results", default=HERE / "results")
    report_parser = subparsers.add_parser("report")
    report_parser.set_defaults(command=report)
    report_parser.add_argument("--results", default=HERE / "results")
    report_parser.add_argument("--docs", default=HERE.parent / "docs")
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
