"""Trains the seeds of `--seeds` in processes side by side."""

import os
import pathlib
import shlex
import statistics

from tf_reinforce.cli import train_messages
from tf_reinforce.cli import train_settings


def run(options, settings, engine, first_seed, target):
    """Trains seeds in new processes, and returns the exit code.

    Args:
        options: The parsed options of `tf-reinforce train`.
        settings: Dict of the settings of the training.
        engine: `"host"` or `"compiled"`.
        first_seed: Int, the first of `options.seeds` seeds.
        target: Float, the target return, or `None`.
    """
    from tf_reinforce.experiments import run_config
    from tf_reinforce.experiments import runs
    from tf_reinforce.experiments import seed_processes

    seeds = range(first_seed, first_seed + options.seeds)
    directory = pathlib.Path(
        options.run_dir or runs.default_directory(options.env, f"{options.seeds}_seeds")
    )
    content = {"env": options.env, "engine": engine, "target_return": target, **settings}
    workers = content["fit"].pop("workers", None)
    if isinstance(workers, int):
        content["fit"]["workers"] = workers
    seed_processes.prepare(directory, content, seeds, options.command_line)
    fit = {**settings["fit"], **({} if workers is None else {"workers": workers})}
    explicit = {"env": options.env, "env_kwargs": settings["env_kwargs"], "fit": fit}
    commands = {
        seed: run_config.resume_words(path, explicit)
        for seed, path in seed_processes.folders(directory).items()
    }
    return _run(options, directory, commands, target)


def is_group(directory):
    """Returns whether a folder contains the run directories of several seeds."""
    from tf_reinforce.experiments import seed_processes

    return bool(seed_processes.folders(directory))


def resume(options):
    """Continues the seeds of a folder in processes, and returns the exit code.

    The files in the folder may come from an untrusted source. Each process checks those
    of its own run directory. Everything else comes from the options of the command.
    """
    from tf_reinforce.experiments import run_config
    from tf_reinforce.experiments import seed_processes

    train_settings.check_resume_flags(options)
    train_settings.check_jobs(options, has_seeds=True)
    explicit = {"env": options.env or "", "env_kwargs": dict(options.env_arg or ())}
    explicit["fit"] = train_settings.explicit_settings(options)["fit"]
    workers = train_settings.ray_workers(options, explicit)
    if workers is not None:
        explicit["fit"]["workers"] = workers
    directory = pathlib.Path(options.resume)
    found = seed_processes.folders(directory)
    if options.seeds not in (None, len(found)):
        raise ValueError(
            "The training has another number of seeds. Expected: that of "
            f"{directory}, {len(found)}. Received: --seeds {options.seeds}"
        )
    contents = [run_config.read(path) for path in found.values()]
    options.env = _resumed_env(options, contents[0].get("env"))
    target = contents[0].get("target_return")
    commands = {
        seed: run_config.resume_words(path, explicit)
        for seed, path in found.items()
        if not seed_processes.has_ended(path)
    }
    return _run(options, directory, commands, target)


def _resumed_env(options, env):
    """Returns the environment id of runs that continue; `env` is the id in a file."""
    if options.env is None and isinstance(env, str) and ":" in env:
        words = shlex.join(["tf-reinforce", "train", env, "--resume", options.resume])
        raise ValueError(
            f"The runs use the environment {env}. For safety, `--resume` imports no "
            f"module that a run directory names. Give the id: {words}"
        )
    return options.env or (env if isinstance(env, str) else "")


def _run(options, directory, commands, target):
    """Runs the processes, prints the results, and returns the exit code."""
    from tf_reinforce.experiments import seed_processes

    folders = seed_processes.folders(directory)
    jobs = options.jobs or len(os.sched_getaffinity(0))
    if commands:
        output = directory / "seed_N" / seed_processes.OUTPUT
        _print(
            f"training {len(commands)} of {len(folders)} seeds, each in its own process, "
            f"{jobs} at the same time; their output is in {output}"
        )
    else:
        _print(f"the trainings of all {len(folders)} seeds have ended")
    processes = seed_processes.Processes(commands, folders, jobs, _print)
    try:
        code = processes.run()
    except KeyboardInterrupt:  # before the processes
        code = 130
    if code:
        env = [options.env] if ":" in options.env else []
        words = ["tf-reinforce", "train", *env, "--resume", str(directory)]
        print(f"saved in {directory}\nto continue: {shlex.join(words)}")
        return code
    result = seed_processes.results(folders)
    train_messages.print_seeds_summary(options.env, directory, result, target)
    best = max(folders, key=result["returns"].get)
    train_messages.print_group_commands(directory, folders[best], options.env)
    median = statistics.median(result["returns"].values())
    return int(bool(options.require_target) and target is not None and median < target)


def _print(text):
    print(text, flush=True)
