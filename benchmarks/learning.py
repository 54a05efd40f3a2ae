"""Learning curves of presets over seeds, and the tables and pictures made of them.

    python benchmarks/learning.py run PRESET… --seeds 1-5 [--steps N] [--jobs 2]
    python benchmarks/learning.py report

`run` trains each preset from each seed in a process of its own, on one thread, and writes
one JSON for each to benchmarks/results. Before the first update, whenever the next
multiple of 50,000 environment steps was passed, and at the end, the policy as it samples
is evaluated on 10 fresh episodes; the last policy, greedy, on 100.

With each evaluation the agent is saved. A run that was stopped, however that was, goes on
from there by the same command and ends with the same numbers, to the bit; one that has
finished is left alone.

`report` puts the tables into docs/results.md, and beside it the pictures and the runs
themselves (docs/results.jsonl): so the runs may be made on several days and machines.
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
import tensorflow as tf

import tf_reinforce as tfr
from tf_reinforce import presets
from tf_reinforce.data import seeding
from tf_reinforce.experiments import runs

HERE = pathlib.Path(__file__).resolve().parent
SAMPLED = {"episodes": 10, "deterministic": False}
GREEDY = {"episodes": 100, "deterministic": True}


class Keeper(keras.callbacks.Callback):
    """Evaluates when that is due, and keeps what a stopped run goes on from.

    Args:
        record: Dict, what the JSON of the run holds; it is changed.
        path: Path of that JSON.
    """

    def __init__(self, record, path):
        super().__init__()
        self.record = record
        self.path = path

    def on_train_begin(self, logs=None):
        self.since = time.perf_counter()
        if not self.record["curve"]:
            self.evaluate()

    def on_epoch_end(self, epoch, logs=None):
        every, last = self.record["every"], self.record["curve"][-1][0]
        due = min((last // every + 1) * every, self.record["steps"])
        if self.model.env_steps >= due:
            self.evaluate()

    def evaluate(self):
        agent, record = self.model, self.record
        began = time.perf_counter()
        record["training_seconds"] += began - self.since
        # Whoever trains on may take the same seed: these are other episodes each time.
        rng = seeding.generator(record["seed"], "validation/environment", agent.updates)
        figures = evaluated(agent, record, rng.integers(2**31), SAMPLED)
        mean, std = figures["episode_return"], figures["episode_return_std"]
        point = [agent.env_steps, mean, std, round(record["training_seconds"], 3)]
        record["curve"].append(point)
        for name in ("updates", "episodes_seen", "env_steps"):
            record[name] = getattr(agent, name)
        record["agent"] = f"{self.path.stem}_{agent.env_steps}.keras"
        agent.save(self.path.with_name(record["agent"]))
        self.since = time.perf_counter()
        record["evaluation_seconds"] += self.since - began
        write(self.path, record)
        print(
            f"{record['preset']}, seed {record['seed']}: {agent.env_steps:,} steps, "
            f"return {mean:,.2f} ± {std:,.2f}, {record['training_seconds']:,.0f} s",
            flush=True,
        )


def evaluated(agent, record, seed, how):
    """The figures of an evaluation, on the environment as the preset evaluates on it."""
    settings = record["settings"]
    options = {**runs.evaluation_options(settings), **how}
    return agent.evaluate(settings["env"], seed=seed, **options)


def write(path, record):
    """Writes the JSON, then removes what only the one before it named.

    The agent it names is there already: whenever the process dies, the JSON and an
    agent file belong together.
    """
    runs.write_json(path, record)
    for old in path.parent.glob(f"{path.stem}_*.keras"):
        if old.name != record["agent"]:
            old.unlink()


def begun(path, settings, seed, steps, every):
    """The record of a run, read or new; a run with other settings is refused."""
    versions = versions_of_all()
    if path.exists():
        record = json.loads(path.read_text())
        now = {"settings": settings, "every": every}
        if not record["finished"]:
            now["versions"] = versions
        for name, value in now.items():
            if record[name] != value:
                raise SystemExit(
                    f"{path} was begun with other {name}. Remove it or choose other "
                    f"--results.\nThere: {record[name]}\nNow: {value}"
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


def versions_of_all():
    """What a run is made with; of our own code, the sources that were imported."""
    sources = sorted(pathlib.Path(tfr.__file__).parent.rglob("*.py"))
    code = hashlib.sha256(b"".join(path.read_bytes() for path in sources)).hexdigest()
    found = runs.versions()
    return {**found, "tf-reinforce": f"{found['tf-reinforce']}, sources {code[:8]}"}


def name_of(preset):
    """`CartPole-v1`; of `/my/own.toml`, `own`."""
    return pathlib.Path(preset).name.removesuffix(".toml")


def budget_of(preset, steps):
    """The environment steps to train for: those given, or those of the preset."""
    steps = steps or presets.read(preset)["fit"].get("steps")
    if steps is None:
        raise SystemExit(f"The preset {preset} has no budget in steps. Give --steps.")
    return steps


def path_of(results, preset, seed, steps):
    return pathlib.Path(results, name_of(preset), f"{steps}_seed{seed}.json")


@contextlib.contextmanager
def alone(path):
    """Holds a run for this process. The lock goes when the process does."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path.with_name(f".{path.stem}.lock"), "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise SystemExit(f"{path} is being made by another process.") from None
        for aside in path.parent.glob(f".{path.stem}[._]*/"):
            shutil.rmtree(aside)  # what a kill left half written
        yield


def agent_of(settings, seed):
    """A new agent as the settings of a preset say."""
    made = {**settings["agent"], "env_kwargs": settings["env_kwargs"]}
    return tfr.Reinforce.for_env(settings["env"], seed=seed, **made)


def train(path, settings, seed, steps, every, make=agent_of):
    """One run, from the beginning or from its last evaluation, to its end."""
    with alone(path):
        record = begun(path, settings, seed, steps, every)
        if record["finished"]:
            return
        fit = {**settings["fit"], "steps": steps}
        fit.pop("epochs", None)
        agent = make(settings, seed)
        if record["agent"]:
            agent = tfr.load(path.with_name(record["agent"]))
        fit["steps"] -= agent.env_steps
        if fit["steps"] > 0:
            agent.fit(
                settings["env"],
                **fit,
                seed=seed,
                env_kwargs=settings["env_kwargs"],
                callbacks=[Keeper(record, path)],
                verbose=0,
            )
        began = time.perf_counter()
        record["final"] = evaluated(agent, record, seed, GREEDY)
        record["evaluation_seconds"] += time.perf_counter() - began
        speed = record["env_steps"] / record["training_seconds"]
        record.update(steps_per_second=speed, finished=True, agent=None)
        write(path, record)


def run(arguments):
    """Trains whatever is not finished, a process each."""
    commands = []
    for seed, preset in itertools.product(arguments.seeds, arguments.presets):
        steps = budget_of(preset, arguments.steps)
        path = path_of(arguments.results, preset, seed, steps)
        settings = presets.read(preset)
        if begun(path, settings, seed, steps, arguments.every)["finished"]:
            print(f"{path} is finished.")
            continue
        options = dict(seeds=seed, steps=steps, every=arguments.every)
        given = [f"--{name}={value}" for name, value in options.items()]
        command = [sys.executable, __file__, "one", preset, *given]
        commands.append([*command, f"--results={arguments.results}"])
    call(commands, arguments.jobs)


def call(commands, count):
    """Runs commands, so many at once, each on one thread; says which ones failed."""
    with concurrent.futures.ThreadPoolExecutor(count) as pool:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        jobs = [pool.submit(subprocess.run, c, env=environment) for c in commands]
        try:
            failed = [job.result().args for job in jobs if job.result().returncode]
        except KeyboardInterrupt:
            pool.shutdown(cancel_futures=True)
            raise
    if failed:
        raise SystemExit("\n".join(["These failed:", *map(" ".join, failed)]))


def one(arguments):
    on_one_thread()
    (preset,), (seed,), steps = arguments.presets, arguments.seeds, arguments.steps
    path = path_of(arguments.results, preset, seed, steps)
    train(path, presets.read(preset), seed, steps, arguments.every)


def on_one_thread():
    """However many run side by side: sums are made in the same order."""
    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)


def report(arguments):
    results, docs = pathlib.Path(arguments.results), pathlib.Path(arguments.docs)
    groups, _ = learning_report.read(results, docs / learning_report.PUBLISHED)
    for (name, steps), records in groups.items():
        ours = name in presets.names()
        if ours and records[0]["settings"] != presets.read(name):
            raise SystemExit(
                f"The runs of {name} over {steps} steps were made with another preset "
                f"of that name. Remove them from {results} and {docs}, or run them again."
            )
    print(learning_report.write(results, docs))


def seeds(text):
    """`1-5` or `3`."""
    first, _, last = text.partition("-")
    chosen = range(int(first), int(last or first) + 1)
    if not chosen:
        raise argparse.ArgumentTypeError(
            f"{text} holds no seed; the smaller one is first"
        )
    return chosen


def positive(text):
    if int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text} is below 1")
    return int(text)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(required=True, metavar="{run,report}")
    for verb in (run, one):
        running = verbs.add_parser(verb.__name__)
        running.set_defaults(verb=verb)
        running.add_argument("presets", nargs="+", metavar="PRESET")
        running.add_argument("--seeds", type=seeds, default=range(1, 6), metavar="1-5")
        running.add_argument("--steps", type=positive, help="instead of the preset's own")
        running.add_argument("--every", type=positive, default=learning_report.EVERY)
        running.add_argument("--jobs", type=positive, default=1, help="processes at once")
        running.add_argument("--results", default=HERE / "results")
    reporting = verbs.add_parser("report")
    reporting.set_defaults(verb=report)
    reporting.add_argument("--results", default=HERE / "results")
    reporting.add_argument("--docs", default=HERE.parent / "docs")
    arguments = parser.parse_args()
    arguments.verb(arguments)


if __name__ == "__main__":
    main()
