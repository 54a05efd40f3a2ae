"""Runs the races: sends requests to the workers, and returns their answers."""

import contextlib
import pathlib

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


def solve(options):
    """Trains until CartPole-v1 is solved, with 8 environments, after a warm-up."""
    with start_workers(options, {**HOST, **WITH_PROCESSES}) as workers:

        def arguments(name, number):
            return dict(num_envs=8, seed=number + 1, limit=400_000)

        calls = worker_calls(workers, "solve", arguments)
        return {"answers": interleaved(calls, options.seeds, first=-1)}


RACES = {x.__name__: x for x in (compiled, host, mujoco, ppo, solve)}
