"""Runs the races: sends requests to the workers, and returns their answers."""

import contextlib
import functools
import json
import os
import pathlib
import subprocess
import tempfile
import time

import numpy as np
import protocol

HERE = pathlib.Path(__file__).resolve().parent
NUM_UPDATES = 30

# Name: the folder of its virtual environment below `--venvs`, its script, its arguments.
HOST = {
    "tf_reinforce": ("ours", "host_ours.py"),
    "PyTorch by hand": ("torch", "host_torch.py"),
    "TorchRL": ("torch", "host_torchrl.py"),
    "TF-Agents": ("tfagents", "host_tfagents.py"),
    "Stable-Baselines3 A2C": ("torch", "host_sb3.py"),
    "Tianshou": ("torch", "host_tianshou.py"),
    "Keras, eager": ("ours", "host_keras.py"),
}
# With several processes, where that is faster. To solve CartPole takes too few steps.
WITH_PROCESSES = {"tf_reinforce, workers": ("ours", "host_ours.py", "workers")}
COMPILED = {
    "tf_reinforce": ("ours", "compiled_ours.py"),
    "JAX": ("jax", "compiled_jax.py", "while"),
    "JAX, lax.scan": ("jax", "compiled_jax.py", "scan"),
    "JAX, gymnax": ("jax", "compiled_jax.py", "gymnax"),
}
CONTINUOUS = {
    **WITH_PROCESSES,
    "tf_reinforce, workers, its preset": ("ours", "host_ours.py", "one-pass", "workers"),
    **{x: HOST[x] for x in HOST if x not in ("TF-Agents", "Keras, eager")},
}

PPO = {
    "tf_reinforce": ("ours", "host_ours.py", "preset"),
    "Stable-Baselines3 PPO": ("torch", "host_sb3.py", "ppo"),
}
PPO_TASKS = (
    "Ant-v5",
    "HalfCheetah-v5",
    "Hopper-v5",
    "Walker2d-v5",
    "Swimmer-v5",
    "Humanoid-v5",
    "Reacher-v5",
    "InvertedPendulum-v5",
    "InvertedDoublePendulum-v5",
)

# Steps of a round, if not 50,000: a slow worker needs only enough to learn something.
STEPS = {"Keras, eager": 2_000}


@contextlib.contextmanager
def start_workers(options, commands):
    """Starts workers, one process each, and yields them by name."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(start_worker(options, name, *arguments))
            for name, arguments in commands.items()
        }


def python(options, venv):
    return f"{options.venvs}/{venv}/bin/python"


@contextlib.contextmanager
def start_worker(options, name, venv, script, *arguments):
    process = protocol.Worker(name, python(options, venv), HERE / script, *arguments)
    try:
        yield process
    finally:
        process.close()


def interleaved(calls, rounds, first=0):
    """Calls all workers in each round, in random order, and returns lists of answers.

    Args:
        calls: Dict from names to functions from the number of a round to an answer.
        rounds: Int.
        first: Int, the number of the first round. Answers before round 0 are dropped.
    """
    rng, answers = np.random.default_rng(0), {name: [] for name in calls}
    for number in range(first, rounds):
        for name in rng.permutation(list(calls)):
            answer = calls[name](number)
            if number >= 0:
                answers[name].append(answer)
    return answers


def rates(calls, rounds):
    """Returns the steps per second by name, for each round after one that compiles."""
    answers_by_name = interleaved(calls, rounds, first=-1)
    return {
        name: [answer["steps"] / answer["seconds"] for answer in answers]
        for name, answers in answers_by_name.items()
    }


def equal_gradients(workers):
    """Exits if gradients differ by more than 1e-5 of their largest element."""
    rng = np.random.default_rng(0)
    shapes, lengths = [(4, 64), (64,), (64, 64), (64,), (64, 2), (2,)], (5, 17, 30, 1)
    rows, count = max(lengths), len(lengths)
    request = {
        "weights": [(0.3 * rng.normal(size=shape)).tolist() for shape in shapes],
        "observations": rng.normal(size=(rows + 1, count, 4)).tolist(),
        "actions": rng.integers(2, size=(rows, count)).tolist(),
        "lengths": lengths,
    }
    (_, first), *rest = [
        (worker.name, worker.request("gradient", **request)["gradients"])
        for worker in workers
    ]
    errors = {}
    for name, answer in rest:
        pairs = zip(first, answer, strict=True)
        differences = [
            np.abs(np.subtract(x, y)).max() / np.abs(x).max() for x, y in pairs
        ]
        errors[name] = max(differences)
        print(f"  {name}: the same gradient to {errors[name]:.1e}", flush=True)
        if errors[name] > 1e-5:
            raise SystemExit(f"{name} has another gradient: {errors[name]:.1e}")
    return errors


def worker_calls(workers, op, arguments):
    """Returns functions for `interleaved`: one operation of each worker.

    Args:
        workers: Dict of workers.
        op: Name of the operation.
        arguments: Function from the name of a worker and the number of a round to the
            keywords of the request.
    """
    return {
        name: lambda number, worker=worker: worker.request(
            op, **arguments(worker.name, number)
        )
        for name, worker in workers.items()
    }


def compiled(options):
    """Trains on CartPole's twin, with 64, 256 and 1,024 episodes at once."""
    rates_by_count = {}
    with start_workers(options, COMPILED) as workers:
        errors = equal_gradients(workers.values())
        for num_envs in (64, 256, 1024):

            def arguments(name, number, num_envs=num_envs):
                return dict(num_envs=num_envs, updates=NUM_UPDATES, seed=number + 1)

            rates_by_count[num_envs] = rates(
                worker_calls(workers, "train", arguments), options.rounds
            )
    return {"errors": errors, "rates": rates_by_count}


def host(options):
    """Trains on Gymnasium's CartPole-v1 with 8 environments."""

    def arguments(name, number):
        steps = STEPS.get(name, 50_000)
        return dict(env="CartPole-v1", num_envs=8, steps=steps, seed=number + 1)

    with start_workers(options, {**HOST, **WITH_PROCESSES}) as workers:
        reinforce = [x for x in workers.values() if "A2C" not in x.name]
        errors = equal_gradients(reinforce)
        rates_by_name = rates(worker_calls(workers, "train", arguments), options.rounds)
    return {"errors": errors, "rates": rates_by_name}


def mujoco(options):
    """Trains on HalfCheetah-v5 with 4 environments."""

    def arguments(name, number):
        return dict(env="HalfCheetah-v5", num_envs=4, steps=16_000, seed=number + 1)

    with start_workers(options, CONTINUOUS) as workers:
        return {"rates": rates(worker_calls(workers, "train", arguments), options.rounds)}


def ppo(options):
    """Trains the preset of each MuJoCo task, beside PPO."""
    rates_by_task = {}
    for task in PPO_TASKS:

        def arguments(name, number, task=task):
            return dict(env=task, num_envs=4, steps=16_384, seed=number + 1)

        with start_workers(options, PPO) as workers:
            rates_by_task[task] = rates(
                worker_calls(workers, "train", arguments), options.rounds
            )
    return {"rates": rates_by_task}


def parts(options):
    """Measures acting, and an update from 16 episodes of 500 steps."""
    acting = {}
    with start_workers(options, HOST) as workers:
        public = {"tf_reinforce, agent.act": workers["tf_reinforce"]}
        for batch in (1, 8, 64, 256):

            def arguments(name, number, batch=batch):
                return dict(batch=batch)

            calls = worker_calls(workers, "act", arguments)
            answers = interleaved(
                {**calls, **worker_calls(public, "act_publicly", arguments)}, 3
            )
            acting[batch] = _only("microseconds", answers)
        learning = interleaved(
            worker_calls(workers, "learn", lambda name, number: dict(rows=8000)), 3
        )
    return {"act": acting, "learn": _only("seconds", learning)}


def _only(key, answers):
    return {name: [answer[key] for answer in all_] for name, all_ in answers.items()}


def _solve_arguments(number):
    return dict(num_envs=8, seed=number + 1, limit=400_000)


def solve(options):
    """Trains until CartPole-v1 is solved, with 8 environments, after a warm-up."""
    with start_workers(options, {**HOST, **WITH_PROCESSES}) as workers:
        calls = worker_calls(
            workers, "solve", lambda name, number: _solve_arguments(number)
        )
        return {"answers": interleaved(calls, options.seeds, first=-1)}


def cold(options):
    """Solves CartPole-v1 from a cold start, with imports and compilation."""

    def start_and_solve(name, number):
        start = time.perf_counter()
        with start_worker(options, name, *HOST[name]) as worker:
            worker.request("memory")
            imports = time.perf_counter() - start
            answer = worker.request("solve", **_solve_arguments(number))
            return {**answer, "imports": imports, **worker.request("memory")}

    return {
        "answers": interleaved(
            {n: functools.partial(start_and_solve, n) for n in HOST}, 3
        )
    }


def compiled_solve(options):
    """Solves CartPole-v1 on its twin, and evaluates on 100 episodes of Gymnasium's."""
    with start_worker(options, "tf_reinforce", *COMPILED["tf_reinforce"]) as worker:
        worker.request("solve", seed=options.seeds, num_envs=16, updates=5)  # compiles
        answers = [
            worker.request("solve", seed=seed, num_envs=16, updates=5)
            for seed in range(options.seeds)
        ]
    return {
        "answers": answers,
        "whole": [_command_line(options, seed) for seed in range(options.seeds)],
    }


def _command_line(options, seed):
    """Measures `tf-reinforce train CartPole-v1` from its start to its end."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder, "run")
        command = [python(options, "ours"), "-m", "tf_reinforce", "train", "CartPole-v1"]
        command += ["--seed", str(seed), "--run-dir", str(run)]
        seconds, _ = _run_timed(command)
        evaluation = json.loads((run / "evaluation.json").read_text())
    return {"seconds": seconds, "return": evaluation["episode_return"]}


def _run_timed(command):
    """Runs a command, and returns the seconds and what it printed."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    start = time.perf_counter()
    completed = subprocess.run(
        command, capture_output=True, check=True, env=environment, text=True
    )
    return time.perf_counter() - start, completed.stdout


def stepping(options):
    """Measures stepping alone, with random actions."""
    rates_by_count = {}
    with start_worker(options, "tf_reinforce", "ours", "stepping.py") as worker:
        for num_envs in (1, 8, 64, 1024):
            operations = ["vectorized", "played"] + ["one_by_one"] * (num_envs <= 8)
            calls = {
                operation: lambda _, operation=operation, num_envs=num_envs: (
                    worker.request(operation, num_envs=num_envs)
                )
                for operation in operations
            }
            rates_by_count[num_envs] = rates(calls, options.rounds)
    return {"rates": rates_by_count}


def scaling(options):
    """Measures time per step and memory, for 64 to 4,096 episodes at once."""
    runs_by_count = {}
    for num_envs in (64, 256, 1024, 4096):
        with start_worker(options, "tf_reinforce", *COMPILED["tf_reinforce"]) as worker:
            arguments = dict(num_envs=num_envs, updates=NUM_UPDATES)
            worker.request("train", num_envs=16, updates=1, seed=0)
            memory_before = worker.request("memory")["most"]
            worker.request("train", seed=0, **arguments)
            runs = [
                worker.request("train", seed=1 + seed, **arguments) for seed in range(3)
            ]
            runs_by_count[num_envs] = {
                "seconds": [run["seconds"] / run["steps"] for run in runs],
                "gigabytes": worker.request("memory")["most"] - memory_before,
            }
    with start_worker(options, "tf_reinforce", *COMPILED["tf_reinforce"]) as worker:
        long_run = worker.request("long", num_envs=256, updates=5, steps=10_000_000)
    return {"runs": runs_by_count, "long": long_run}


def seeds(options):
    """Trains 256 seeds at once, and single seeds in processes, all from a cold start."""

    def run_script(*arguments):
        command = [python(options, "ours"), str(HERE / "seeds.py"), *map(str, arguments)]
        seconds, output = _run_timed(command)
        return {**json.loads(output.splitlines()[-1]), "seconds": seconds}

    return {
        "alone": [run_script("one", seed) for seed in range(options.rounds)],
        "together": run_script("many", 256),
        # The differences of two runs give the speed after compilation.
        "more": [
            {
                "alone": [run_script("one", seed, updates, 1024) for updates in (20, 80)],
                "together": [
                    run_script("many", 256, updates, 64) for updates in (20, 32)
                ],
            }
            for seed in range(3)
        ],
    }


RACES = {
    race.__name__: race
    for race in (
        compiled,
        host,
        mujoco,
        ppo,
        parts,
        solve,
        cold,
        compiled_solve,
        stepping,
        scaling,
        seeds,
    )
}
