"""Compares presets with variants in which one option is changed.

    python benchmarks/ablation.py run [--tasks CartPole-v1 …] [--jobs 2]
    python benchmarks/ablation.py report

The command `run` trains the preset of each task and all variants of the preset, with
three seeds, like `learning.py`. The command `run` writes one JSON file per training run
to benchmarks/results/ablation. Repeating the command continues interrupted training runs.
The command `run` also measures the variance of the gradient, once per task. A task may be
the path of a TOML file with the name of the task.

The command `report` writes tables and a picture into docs/ablation.md.
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
import learning_settings

import tf_reinforce as tfr
from tf_reinforce import presets
from tf_reinforce.experiments import run_config
from tf_reinforce.support import version


class Task(NamedTuple):
    steps: int  # environment steps of a run
    threshold: float  # the mean return to reach


TASKS = {
    "CartPole-v1": Task(100_000, 475),
    "Pendulum-v1": Task(300_000, -200),
    "HalfCheetah-v5": Task(200_000, 500),
}
# The tasks whose preset in the ablation has another name.
PRESETS = {
    "Pendulum-v1": "Pendulum-v1-one-pass",
    "HalfCheetah-v5": "HalfCheetah-v5-one-pass",
}
EVALUATIONS = 20
RESULTS = learning.HERE / "results" / "ablation"
GROUPS = 4
OPTIONS = {
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
# These options change the estimate from a given batch at given weights.
GRADIENT_OPTIONS = (
    "baseline",
    "gae_lambda",
    "scale_advantages",
    "scale_rewards",
    "mean_over",
)
DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(tfr.Reinforce.__init__).parameters.items()
}


def format_value(value):
    """Returns the value of an option as text, for the name of a variant."""
    if isinstance(value, dict):
        groups = value.get("groups")
        return value["kind"] + (f" in groups of {groups}" if groups else "")
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if is_number else str(value).lower()


PAIRS = [(option, value) for option, values in OPTIONS.items() for value in values]
LABELS = ["preset", *(f"{option}={format_value(value)}" for option, value in PAIRS)]


def variants(settings):
    """Returns the settings of a preset and of its variants with one changed option.

    The result does not contain variants that would raise an error.

    Args:
        settings: Dict from `presets.read`.

    Returns:
        Dict from names to settings. A name contains the option, its value, and the
        settings that had to change with it.
    """
    preset = {**DEFAULTS, **settings["agent"]}
    results = {"preset": settings}
    has_values = format_value(preset["baseline"]) == "value"
    for option, value in PAIRS:
        is_preset = format_value(value) == format_value(preset[option])
        needs_values = option == "gae_lambda" and value < 1
        if is_preset or (needs_values and not has_values):
            continue
        agent, fit, notes = required_changes(option, value, preset, settings)
        agent = {**settings["agent"], option: value, **agent}
        name = ", ".join([f"{option}={format_value(value)}", *notes])
        results[name] = {**settings, "agent": agent, "fit": fit}
    return results


def required_changes(option, value, preset, settings):
    """Returns the other settings that must change together with an option.

    Returns:
        Dict of changed arguments of the agent, dict of all arguments of `fit`, and a
        list of texts for the name of the variant.
    """
    agent, fit, notes = {}, dict(settings["fit"]), []
    without_values = option == "baseline" and format_value(value) != "value"
    if without_values and preset["gae_lambda"] < 1:
        agent["gae_lambda"] = 1  # smaller values need a value baseline
        notes.append("gae_lambda=1")
    if option == "baseline" and "groups" in format_value(value):
        limit = gym.spec(settings["env"]).max_episode_steps
        steps = fit.pop("steps_per_epoch", None)  # groups need a fixed episode number
        fit.setdefault("episodes_per_epoch", math.ceil(steps / limit) if steps else 16)
        count = fit["episodes_per_epoch"]
        fit["episodes_per_epoch"] = math.ceil(count / GROUPS) * GROUPS
        if fit != settings["fit"]:
            notes.append(f"episodes_per_epoch={fit['episodes_per_epoch']}")
    baseline = preset["baseline"] if isinstance(preset["baseline"], dict) else {}
    if option == "scale_rewards" and value and baseline.get("scale", 1) != 1:
        agent["baseline"] = {**baseline, "scale": 1}  # scaled returns have a size near 1
        notes.append("scale of values=1")
    return agent, fit, notes


def make_agent(settings, seed):
    """Returns an agent for `settings`, which may contain leave-one-out groups."""
    agent = dict(settings["agent"])
    if "groups" in format_value(agent.get("baseline")):
        agent["baseline"] = tfr.baselines.LeaveOneOut(agent["baseline"]["groups"])
    return learning.make_agent({**settings, "agent": agent}, seed)


def gradient_variants(settings):
    """Returns the preset and all variants that change the gradient of a given batch."""
    options = ("preset", *GRADIENT_OPTIONS)
    items = variants(settings).items()
    return {name: variant for name, variant in items if name.split("=")[0] in options}


def run(arguments):
    """Makes all unfinished training runs and measurements, each in its own process."""
    commands = []
    for task in arguments.tasks:
        settings, steps = read_preset(task), training_steps(arguments, task)
        options = ["--tasks", task, f"--steps={steps}", f"--results={arguments.results}"]
        path = gradients_path(arguments.results, task, steps)
        if not has_gradients(path, settings):
            commands.append([sys.executable, __file__, "measure", *options])
        for seed, (name, variant) in itertools.product(
            arguments.seeds, variants(settings).items()
        ):
            path = record_path(arguments.results, task, name, seed, steps)
            every = max(1, steps // EVALUATIONS)
            record = learning.load_or_create(path, variant, seed, steps, every)
            if not record["finished"]:
                command = ["run_one", f"--variant={name}", f"--seeds={seed}"]
                commands.append([sys.executable, __file__, *command, *options])
    print(f"{len(commands)} runs are not finished.", flush=True)
    learning.run_commands(commands, arguments.jobs)


def read_preset(task):
    """Returns the settings of the preset of a task, or of a preset file."""
    return presets.read(PRESETS.get(task, task))


def training_steps(arguments, task):
    return arguments.steps or TASKS[learning_settings.preset_name(task)].steps


def record_path(results, task, variant, seed, steps):
    folder = pathlib.Path(results, learning_settings.preset_name(task))
    return learning.record_path(folder, variant, seed, steps)


def gradients_path(results, task, steps):
    return pathlib.Path(
        results, learning_settings.preset_name(task), f"{steps}_gradients.json"
    )


def has_gradients(path, settings):
    """Returns whether gradients were measured; raises if the settings were different."""
    if not path.exists():
        return False
    if json.loads(path.read_text())["settings"] != settings:
        raise SystemExit(
            f"The gradients in {path} were measured with other settings than those of "
            "the preset. Remove the file."
        )
    return True


def run_one(arguments):
    learning.use_one_thread()
    (task,), (seed,), steps = arguments.tasks, arguments.seeds, arguments.steps
    path = record_path(arguments.results, task, arguments.variant, seed, steps)
    variant = variants(read_preset(task))[arguments.variant]
    learning.train(path, variant, seed, steps, steps // EVALUATIONS, make_agent)


def measure(arguments):
    """Measures the variance of the gradients of one task."""
    learning.use_one_thread()
    (task,), steps = arguments.tasks, arguments.steps
    path, settings = gradients_path(arguments.results, task, steps), read_preset(task)
    with learning.lock_run(path):
        start, settings_of = time.perf_counter(), gradient_variants(settings)
        agents = {name: make_agent(variant, 0) for name, variant in settings_of.items()}
        ablation_gradients.train(agents, settings_of, steps)
        variances = ablation_gradients.relative_variances(agents, settings_of)
        record = {
            "settings": settings,
            "env_steps": agents["preset"].env_steps,
            "batches": ablation_gradients.BATCHES,
            "relative_variance": variances,
            "seconds": time.perf_counter() - start,
            "versions": version.installed(),
        }
        run_config.write_json(path, record)


def parse_task(text):
    """Returns `text` if `text` names one of `TASKS`, or a file for one of `TASKS`."""
    if learning_settings.preset_name(text) not in TASKS:
        raise argparse.ArgumentTypeError(
            f"expected one of {', '.join(TASKS)}. Received: {text}"
        )
    return text


def report(arguments):
    docs = pathlib.Path(arguments.docs)
    print(ablation_report.write(arguments.results, docs, TASKS, LABELS))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    subparsers = parser.add_subparsers(required=True, metavar="{run,report}")
    for command in (run, run_one, measure):
        run_parser = subparsers.add_parser(command.__name__)
        run_parser.set_defaults(command=command)
        run_parser.add_argument(
            "--tasks", nargs="+", type=parse_task, default=list(TASKS), metavar="TASK"
        )
        run_parser.add_argument("--seeds", type=learning.parse_seeds, default=range(3))
        run_parser.add_argument(
            "--steps", type=learning.positive_int, help="instead of each task's budget"
        )
        run_parser.add_argument("--variant", help=argparse.SUPPRESS)
        run_parser.add_argument(
            "--jobs",
            type=learning.positive_int,
            default=1,
            help="number of parallel processes",
        )
        run_parser.add_argument("--results", default=RESULTS)
    report_parser = subparsers.add_parser("report")
    report_parser.set_defaults(command=report)
    report_parser.add_argument("--results", default=RESULTS)
    report_parser.add_argument("--docs", default=learning.HERE.parent / "docs")
    arguments = parser.parse_args()
    arguments.command(arguments)


if __name__ == "__main__":
    main()
