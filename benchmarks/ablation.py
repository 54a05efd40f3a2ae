"""What each option of a preset is worth: presets with one thing changed.

    python benchmarks/ablation.py run [--tasks CartPole-v1 …] [--jobs 2]
    python benchmarks/ablation.py report

`run` trains the preset of each task, and all that differs from it in one option, from
three seeds, as `learning.py` does: one JSON each in benchmarks/results/ablation, stopped
and gone on with at will. It also measures, once per task, the variance of the gradient.
A task may be a TOML file of your own that is named like the task.

`report` puts tables and a picture into docs/ablation.md.
"""

import argparse
import inspect
import itertools
import json
import math
import pathlib
import sys
import time
from typing import NamedTuple

import ablation_gradients
import ablation_report
import gymnasium as gym
import learning

import tf_reinforce as tfr
from tf_reinforce import presets
from tf_reinforce.experiments import runs


class Task(NamedTuple):
    steps: int  # the budget of a run
    threshold: float  # of an evaluation as the policy samples: the steps to it are told


TASKS = {
    "CartPole-v1": Task(100_000, 475),
    "Pendulum-v1": Task(300_000, -200),
    "HalfCheetah-v5": Task(200_000, 500),
}
EVALUATIONS = 20
RESULTS = learning.HERE / "results" / "ablation"
GROUPS = 4
CHOICES = {
    "baseline": (
        "none",
        "mean",
        "moving_average",
        "time_step",
        "leave_one_out",
        {"kind": "leave_one_out", "groups": GROUPS},
        {"kind": "value", "passes": 10, "scale": 50},
    ),
    "gae_lambda": (1, 0.97, 0.95, 0.9, 0),
    "scale_advantages": (None, "running", "batch"),
    "scale_rewards": (False, True),
    "mean_over": ("episodes", "steps"),
    "minibatch_size": (None, 256, 64),
    "passes": (1, 4),
    "normalize_observations": (False, True),
    "entropy_coef": (0, 0.01, 0.1, 1),
}
# These change the estimate from a batch; the others what it is of, or its use.
MEASURED = ("baseline", "gae_lambda", "scale_advantages", "scale_rewards", "mean_over")
USUAL = {
    name: parameter.default
    for name, parameter in inspect.signature(tfr.Reinforce.__init__).parameters.items()
}


def said(value):
    """A setting as the names of variants say it."""
    if isinstance(value, dict):
        groups = value.get("groups")
        return value["kind"] + (f" in groups of {groups}" if groups else "")
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if number else str(value).lower()


LABELS = ["preset", *(f"{k}={said(v)}" for k, values in CHOICES.items() for v in values)]


def variants(settings):
    """The preset, and all that differs from it in one option, but what is refused.

    Args:
        settings: Dict, of `presets.read`.

    Returns:
        Dict from names to settings. A name says the option, its value, and what else
        had to change with it.
    """
    own = {**USUAL, **settings["agent"]}
    found = {"preset": settings}
    for option, value in ((k, v) for k, values in CHOICES.items() for v in values):
        needs_values = option == "gae_lambda" and value < 1
        if said(value) != said(own[option]) and not (needs_values and not valued(own)):
            agent, fit, notes = implied(option, value, own, settings)
            agent = {**settings["agent"], option: value, **agent}
            name = ", ".join([f"{option}={said(value)}", *notes])
            found[name] = {**settings, "agent": agent, "fit": fit}
    return found


def valued(agent):
    return said(agent["baseline"]) == "value"


def implied(option, value, own, settings):
    """What must change with an option: of the agent, the whole of `fit`, and in words."""
    agent, fit, notes = {}, dict(settings["fit"]), []
    if option == "baseline" and said(value) != "value" and own["gae_lambda"] < 1:
        agent["gae_lambda"] = 1  # without values it is refused
        notes.append("gae_lambda=1")
    if option == "baseline" and "groups" in said(value):
        limit = gym.spec(settings["env"]).max_episode_steps
        batch = fit.pop("steps_per_epoch", None)  # groups must be whole
        fit.setdefault("episodes_per_epoch", math.ceil(batch / limit) if batch else 16)
        count = fit["episodes_per_epoch"]
        fit["episodes_per_epoch"] = math.ceil(count / GROUPS) * GROUPS
        if fit != settings["fit"]:
            notes.append(f"episodes_per_epoch={fit['episodes_per_epoch']}")
    kept = own["baseline"] if isinstance(own["baseline"], dict) else {}
    if option == "scale_rewards" and value and kept.get("scale", 1) != 1:
        agent["baseline"] = {**kept, "scale": 1}  # values are no longer of that size
        notes.append("scale of values=1")
    return agent, fit, notes


def agent_of(settings, seed):
    """As `learner.agent_of`; a leave-one-out baseline may have groups."""
    agent = dict(settings["agent"])
    if "groups" in said(agent.get("baseline")):
        agent["baseline"] = tfr.baselines.LeaveOneOut(agent["baseline"]["groups"])
    return learning.agent_of({**settings, "agent": agent}, seed)


def compared(settings):
    """Those of the variants that give other gradients at the same weights."""
    measured = ("preset", *MEASURED)
    found = variants(settings).items()
    return {name: chosen for name, chosen in found if name.split("=")[0] in measured}


def run(arguments):
    """Trains and measures whatever is not finished, a process each."""
    commands = []
    for task in arguments.tasks:
        settings, steps = presets.read(task), budget_of(arguments, task)
        given = ["--tasks", task, f"--steps={steps}", f"--results={arguments.results}"]
        path = measured_at(arguments.results, task, steps)
        if not measured(path, settings):
            commands.append([sys.executable, __file__, "measure", *given])
        for seed, (name, chosen) in itertools.product(
            arguments.seeds, variants(settings).items()
        ):
            path = path_of(arguments.results, task, name, seed, steps)
            every = max(1, steps // EVALUATIONS)
            if not learning.begun(path, chosen, seed, steps, every)["finished"]:
                this = [f"--variant={name}", f"--seeds={seed}"]
                commands.append([sys.executable, __file__, "one", *given, *this])
    print(f"{len(commands)} runs are to be made.", flush=True)
    learning.call(commands, arguments.jobs)


def budget_of(arguments, task):
    return arguments.steps or TASKS[learning.name_of(task)].steps


def path_of(results, task, variant, seed, steps):
    folder = pathlib.Path(results, learning.name_of(task))
    return learning.path_of(folder, variant, seed, steps)


def measured_at(results, task, steps):
    return pathlib.Path(results, learning.name_of(task), f"{steps}_gradients.json")


def measured(path, settings):
    """Whether the gradients were measured; refused, if with another preset."""
    if not path.exists():
        return False
    if json.loads(path.read_text())["settings"] != settings:
        raise SystemExit(f"{path} is of another preset. Remove it.")
    return True


def one(arguments):
    learning.on_one_thread()
    (task,), (seed,), steps = arguments.tasks, arguments.seeds, arguments.steps
    path = path_of(arguments.results, task, arguments.variant, seed, steps)
    chosen = variants(presets.read(task))[arguments.variant]
    learning.train(path, chosen, seed, steps, steps // EVALUATIONS, agent_of)


def measure(arguments):
    """The variance of the gradients of one task."""
    learning.on_one_thread()
    (task,), steps = arguments.tasks, arguments.steps
    path, settings = measured_at(arguments.results, task, steps), presets.read(task)
    with learning.alone(path):
        began, chosen = time.perf_counter(), compared(settings)
        agents = {name: agent_of(found, seed=0) for name, found in chosen.items()}
        ablation_gradients.train(agents, chosen, steps)
        record = {
            "settings": settings,
            "env_steps": agents["preset"].env_steps,
            "batches": ablation_gradients.BATCHES,
            "relative_variance": ablation_gradients.measured(agents, chosen),
            "seconds": time.perf_counter() - began,
            "versions": runs.versions(),
        }
        runs.write_json(path, record)


def task(text):
    """One of `TASKS`, or a file named like one."""
    if learning.name_of(text) not in TASKS:
        raise argparse.ArgumentTypeError(f"{text} is none of {', '.join(TASKS)}")
    return text


def report(arguments):
    docs = pathlib.Path(arguments.docs)
    print(ablation_report.write(arguments.results, docs, TASKS, LABELS))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    verbs = parser.add_subparsers(required=True, metavar="{run,report}")
    for verb in (run, one, measure):
        running = verbs.add_parser(verb.__name__)
        running.set_defaults(verb=verb)
        running.add_argument(
            "--tasks", nargs="+", type=task, default=list(TASKS), metavar="TASK"
        )
        running.add_argument("--seeds", type=learning.seeds, default=range(3))
        running.add_argument(
            "--steps", type=learning.positive, help="instead of each task's budget"
        )
        running.add_argument("--variant", help=argparse.SUPPRESS)
        running.add_argument(
            "--jobs", type=learning.positive, default=1, help="processes at once"
        )
        running.add_argument("--results", default=RESULTS)
    reporting = verbs.add_parser("report")
    reporting.set_defaults(verb=report)
    reporting.add_argument("--results", default=RESULTS)
    reporting.add_argument("--docs", default=learning.HERE.parent / "docs")
    arguments = parser.parse_args()
    arguments.verb(arguments)


if __name__ == "__main__":
    main()
