"""Prints what a training does, its results, and the commands that use the run."""

import shlex
import statistics

from tf_reinforce.experiments import run_config
from tf_reinforce.settings import toml_files


def say(text):
    """Prints a line at once, also to a file or a pipe."""
    print(text, flush=True)


def print_preset(options):
    """Prints the preset of the environment if the user passed no preset."""
    names = [] if options.preset else toml_files.names_for(options.env)
    if names:
        is_own = names[0] == toml_files.own_name(options.env)
        option = "--preset" if is_own else f"--preset {names[0]}"
        say(f"{options.env} has a preset with tuned settings: add {option} to use it")


def print_budget(settings, target, threshold):
    """Prints the target return that ends training, unless `epochs` or `steps` is set."""
    from tf_reinforce.experiments import runs

    fit = settings["fit"]
    if target is not None and fit.get("epochs") is None and fit.get("steps") is None:
        kind = "reward threshold" if target == threshold else "target return"
        episodes = runs.evaluation_options(settings)["episodes"]
        say(
            f"training ends when an evaluation over {episodes} episodes reaches the "
            f"{kind} {target:g}, or after {runs.MAX_UPDATES} updates"
        )


def print_interrupted(directory, config, when=""):
    """Prints the command that continues a training which a signal stopped."""
    print(
        f"interrupted{when}; saved in {directory}\n"
        f"to continue: {run_config.resume_command(directory, config)}"
    )


def return_line(env, metrics, target, threshold):
    """Returns a line with the mean return and the target return."""
    mean, deviation = metrics["episode_return"], metrics["episode_return_std"]
    line = (
        f"{env}: mean return {mean:.4g} ± {deviation:.4g} over "
        f"{metrics['episodes']:.0f} new episodes"
    )
    if target is None:
        return line
    kind = "threshold" if target == threshold else "target"
    return f"{line}, {kind} {target:g} {'reached' if mean >= target else 'missed'}"


def count_text(count, noun):
    """Returns a count with its noun, for example `"1 update"` or `"2 updates"`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def print_summary(directory, first_line, result):
    """Prints the returns, the updates and the time of a training."""
    updates = count_text(result["updates"], "update")
    evaluations = count_text(result["evaluations"], "evaluation")
    print(
        f"\n{first_line}\n"
        f"trained {updates}, {result['env_steps']:,} steps, "
        f"{result['seconds']:.1f} s with {evaluations}\n"
        f"saved in {directory}"
    )


def print_seeds_summary(env, directory, result, target):
    """Prints the returns and the time of a training of several seeds."""
    best = max(result["returns"], key=result["returns"].get)
    returns = sorted(result["returns"].values())
    count, reached = len(returns), f" (seed {best})"
    if target is not None:
        reached += f", {sum(x >= target for x in returns)} of {count} at {target:g}"
    print(
        f"\n{env}: {count} seeds, {result['env_steps']:,} steps in "
        f"{result['seconds']:.1f} s of training\n"
        f"returns over new episodes: minimum {returns[0]:.4g}, median "
        f"{statistics.median(returns):.4g}, maximum {returns[-1]:.4g}{reached}\n"
        f"saved in {directory}"
    )


def print_group_commands(directory, best, env):
    """Prints the commands that use the runs of several seeds.

    Args:
        directory: `pathlib.Path` of the folder with the run directories.
        best: `pathlib.Path` of the run directory with the best evaluation.
        env: String, the environment id.
    """
    words = [str(best), *(["--env", env] if ":" in env else []), "--episodes", "1000"]
    print(
        f"\nnext:\n  tf-reinforce compare {shlex.quote(str(directory))}\n"
        f"  tf-reinforce plot {shlex.quote(str(directory))}\n"
        f"  tf-reinforce evaluate {shlex.join(words)}"
    )


def print_next_commands(options, directory, env_kwargs, renders=True):
    """Prints the commands that evaluate, draw, record and export the agent of a run."""
    run = shlex.quote(str(directory))
    # No command reads an id of the form `module:Id` from a file.
    words = ["--env", options.env] if ":" in options.env else []
    words += run_config.env_arg_options(env_kwargs)
    env = f" {shlex.join(words)}" if words else ""
    print(
        f"\nnext:\n  tf-reinforce evaluate {run}{env} --episodes 1000\n"
        f"  tf-reinforce plot {run}"
    )
    if renders:
        print(f"  tf-reinforce record {run}{env}")
    if options.export is None:
        out = shlex.quote(str(directory / "policy"))
        print(f"  tf-reinforce export {run} --out {out}")
