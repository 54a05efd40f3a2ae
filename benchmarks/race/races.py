"""The races: who takes part, what they are asked, and their answers as they came."""

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
UPDATES = 30

# Name: the folder of its Python below --venvs, its script and arguments.
HOST = {
    "tf_reinforce": ("ours", "host_ours.py"),
    "PyTorch by hand": ("torch", "host_torch.py"),
    "TorchRL": ("torch", "host_torchrl.py"),
    "TF-Agents": ("tfagents", "host_tfagents.py"),
    "Stable-Baselines3 A2C": ("torch", "host_sb3.py"),
    "Tianshou": ("torch", "host_tianshou.py"),
    "Keras, eager": ("ours", "host_keras.py"),
}
# Those that take several processes where that is faster. A solution has too few steps.
SEVERAL = {"tf_reinforce, workers": ("ours", "host_ours.py", "workers")}
COMPILED = {
    "tf_reinforce": ("ours", "compiled_ours.py"),
    "JAX": ("jax", "compiled_jax.py", "while"),
    "JAX, lax.scan": ("jax", "compiled_jax.py", "scan"),
    "JAX, gymnax": ("jax", "compiled_jax.py", "gymnax"),
}
CONTINUOUS = {
    **SEVERAL,
    "tf_reinforce, workers, its preset": ("ours", "host_ours.py", "preset", "workers"),
    **{x: HOST[x] for x in HOST if x not in ("TF-Agents", "Keras, eager")},
}

# Steps a round: enough for the slow ones to learn something, and no more.
STEPS = {"Keras, eager": 2_000}


@contextlib.contextmanager
def workers(options, which):
    """Workers by name, one process each."""
    with contextlib.ExitStack() as stack:
        yield {
            name: stack.enter_context(worker(options, name, *one))
            for name, one in which.items()
        }


def python(options, venv):
    return f"{options.venvs}/{venv}/bin/python"


@contextlib.contextmanager
def worker(options, name, venv, script, *arguments):
    one = protocol.Worker(name, python(options, venv), HERE / script, *arguments)
    try:
        yield one
    finally:
        one.close()


def interleaved(asked, rounds, first=0):
    """Each worker's answers over rounds: lists by name.

    Args:
        asked: Dict from names to functions from a round to an answer.
        rounds: Int.
        first: Round to begin with; what answers before round 0 are is not kept.
    """
    rng, found = np.random.default_rng(0), {name: [] for name in asked}
    for number in range(first, rounds):
        for name in rng.permutation(list(asked)):
            answer = asked[name](number)
            if number >= 0:
                found[name].append(answer)
    return found


def rates(asked, rounds):
    """Steps per second by name, over rounds; the round before them compiles."""
    found = interleaved(asked, rounds, first=-1)
    return {
        name: [one["steps"] / one["seconds"] for one in answers]
        for name, answers in found.items()
    }


def equal_gradients(taking_part):
    """Refuses to race unless all give one gradient, to 1e-5 of its largest number."""
    rng = np.random.default_rng(0)
    shapes, lengths = [(4, 64), (64,), (64, 64), (64,), (64, 2), (2,)], (5, 17, 30, 1)
    rows, count = max(lengths), len(lengths)
    question = {
        "weights": [(0.3 * rng.normal(size=shape)).tolist() for shape in shapes],
        "observations": rng.normal(size=(rows + 1, count, 4)).tolist(),
        "actions": rng.integers(2, size=(rows, count)).tolist(),
        "lengths": lengths,
    }
    (_, first), *others = [
        (one.name, one.ask("gradient", **question)["gradients"]) for one in taking_part
    ]
    errors = {}
    for name, answer in others:
        pairs = zip(first, answer, strict=True)
        apart = [np.abs(np.subtract(x, y)).max() / np.abs(x).max() for x, y in pairs]
        errors[name] = max(apart)
        print(f"  {name}: the same gradient to {errors[name]:.1e}", flush=True)
        if errors[name] > 1e-5:
            raise SystemExit(f"{name} has another gradient: {errors[name]:.1e}")
    return errors


def asking(taking_part, op, given):
    """For `interleaved`: an operation of each worker.

    Args:
        taking_part: Dict of workers.
        op: Name of the operation.
        given: Function from a worker's name and a round to the keywords of the question.
    """
    return {
        name: lambda number, one=one: one.ask(op, **given(one.name, number))
        for name, one in taking_part.items()
    }


def compiled(options):
    """Training on CartPole's twin, from scratch, with ever more episodes at once."""
    found = {}
    with workers(options, COMPILED) as taking_part:
        errors = equal_gradients(taking_part.values())
        for envs in (64, 256, 1024):

            def given(name, number, envs=envs):
                return dict(envs=envs, updates=UPDATES, seed=number + 1)

            found[envs] = rates(asking(taking_part, "train", given), options.rounds)
    return {"errors": errors, "rates": found}


def host(options):
    """Training on Gymnasium's own CartPole-v1, from scratch, with 8 environments."""

    def given(name, number):
        steps = STEPS.get(name, 50_000)
        return dict(env="CartPole-v1", envs=8, steps=steps, seed=number + 1)

    with workers(options, {**HOST, **SEVERAL}) as taking_part:
        reinforce = [one for one in taking_part.values() if "A2C" not in one.name]
        errors = equal_gradients(reinforce)
        found = rates(asking(taking_part, "train", given), options.rounds)
    return {"errors": errors, "rates": found}


def mujoco(options):
    """Training on HalfCheetah-v5 with 4 environments."""

    def given(name, number):
        return dict(env="HalfCheetah-v5", envs=4, steps=16_000, seed=number + 1)

    with workers(options, CONTINUOUS) as taking_part:
        return {"rates": rates(asking(taking_part, "train", given), options.rounds)}


def parts(options):
    """Acting for some observations, and an update from 16 episodes of 500 steps."""
    acting = {}
    with workers(options, HOST) as taking_part:
        public = {"tf_reinforce, agent.act": taking_part["tf_reinforce"]}
        for batch in (1, 8, 64, 256):

            def given(name, number, batch=batch):
                return dict(batch=batch)

            asked = asking(taking_part, "act", given)
            answers = interleaved({**asked, **asking(public, "act_publicly", given)}, 3)
            acting[batch] = _only("microseconds", answers)
        learning = interleaved(
            asking(taking_part, "learn", lambda name, number: dict(rows=8000)), 3
        )
    return {"act": acting, "learn": _only("seconds", learning)}


def _only(key, answers):
    return {name: [answer[key] for answer in all_] for name, all_ in answers.items()}


def _goal(number):
    return dict(envs=8, seed=number + 1, limit=400_000)


def solve(options):
    """Until CartPole-v1 is solved, on Gymnasium's own, with 8 environments; warm."""
    with workers(options, {**HOST, **SEVERAL}) as taking_part:
        asked = asking(taking_part, "solve", lambda name, number: _goal(number))
        return {"answers": interleaved(asked, options.seeds, first=-1)}


def cold(options):
    """The same from a cold start: imports, and a first solution with what it compiles."""

    def ask(name, number):
        began = time.perf_counter()
        with worker(options, name, *HOST[name]) as one:
            one.ask("memory")
            imports = time.perf_counter() - began
            answer = one.ask("solve", **_goal(number))
            return {**answer, "imports": imports, **one.ask("memory")}

    return {"answers": interleaved({n: functools.partial(ask, n) for n in HOST}, 3)}


def compiled_solve(options):
    """CartPole-v1 solved on its twin, verified on 100 episodes of Gymnasium's own."""
    with worker(options, "tf_reinforce", *COMPILED["tf_reinforce"]) as one:
        one.ask("solve", seed=options.seeds, envs=16, updates=5)  # compiles
        answers = [
            one.ask("solve", seed=seed, envs=16, updates=5)
            for seed in range(options.seeds)
        ]
    return {
        "answers": answers,
        "whole": [_commanded(options, seed) for seed in range(options.seeds)],
    }


def _commanded(options, seed):
    """The command line from a cold start until it has ended."""
    with tempfile.TemporaryDirectory() as folder:
        run = pathlib.Path(folder, "run")
        command = [python(options, "ours"), "-m", "tf_reinforce", "train", "CartPole-v1"]
        command += ["--seed", str(seed), "--run-dir", str(run)]
        seconds, _ = _ran(command)
        told = json.loads((run / "evaluation.json").read_text())
    return {"seconds": seconds, "return": told["episode_return"]}


def _ran(command):
    """How long a command took, and what it printed."""
    quiet = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    began = time.perf_counter()
    ran = subprocess.run(command, capture_output=True, check=True, env=quiet, text=True)
    return time.perf_counter() - began, ran.stdout


def stepping(options):
    """Stepping alone, with actions drawn at random."""
    found = {}
    with worker(options, "tf_reinforce", "ours", "stepping.py") as one:
        for envs in (1, 8, 64, 1024):
            ways = ["vectorized", "played"] + ["one_by_one"] * (envs <= 8)
            asked = {
                way: lambda _, way=way, envs=envs: one.ask(way, envs=envs) for way in ways
            }
            found[envs] = rates(asked, options.rounds)
    return {"rates": found}


def scaling(options):
    """Training with ever more episodes at once: time per step, and memory."""
    found = {}
    for envs in (64, 256, 1024, 4096):
        with worker(options, "tf_reinforce", *COMPILED["tf_reinforce"]) as one:
            asked = dict(envs=envs, updates=UPDATES)
            one.ask("train", envs=16, updates=1, seed=0)
            before = one.ask("memory")["most"]
            one.ask("train", seed=0, **asked)
            runs = [one.ask("train", seed=1 + seed, **asked) for seed in range(3)]
            found[envs] = {
                "seconds": [run["seconds"] / run["steps"] for run in runs],
                "gigabytes": one.ask("memory")["most"] - before,
            }
    with worker(options, "tf_reinforce", *COMPILED["tf_reinforce"]) as one:
        long = one.ask("long", envs=256, updates=5, steps=10_000_000)
    return {"runs": found, "long": long}


def seeds(options):
    """256 seeds at once beside as many processes, all from a cold start."""

    def ask(*given):
        script = [python(options, "ours"), str(HERE / "seeds.py"), *map(str, given)]
        seconds, printed = _ran(script)
        return {**json.loads(printed.splitlines()[-1]), "seconds": seconds}

    return {
        "alone": [ask("one", seed) for seed in range(options.rounds)],
        "together": ask("many", 256),
        # What more updates cost, once all is compiled and learned.
        "more": [
            {
                "alone": [ask("one", seed, updates, 1024) for updates in (20, 80)],
                "together": [ask("many", 256, updates, 64) for updates in (20, 32)],
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
        parts,
        solve,
        cold,
        compiled_solve,
        stepping,
        scaling,
        seeds,
    )
}
