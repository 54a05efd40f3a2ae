"""Trains the seeds of `--seeds` in processes side by side."""

import os
import pathlib
import shlex
import statistics

from tf_reinforce.cli import options as cli_options
from tf_reinforce.cli import train_messages
from tf_reinforce.cli import train_settings
from tf_reinforce.experiments import run_config


def run(options, settings, engine, target):
    """Trains seeds in new processes, and returns the exit code.

    Args:
        options: The parsed options of `tf-reinforce train`.
        settings: Dict of the settings of the training.
        engine: `"host"` or `"compiled"`.
        target: Float, the target return, or `None`.
    """
    from tf_reinforce.experiments import runs
    from tf_reinforce.experiments import seed_processes

    seeds = range(options.seed, options.seed + options.seeds)
    name = f"{options.seeds}_seeds"
    directory = pathlib.Path(options.run_dir or runs.default_directory(options.env, name))
    # No file names the workers on a cluster.
    fit = settings["fit"]
    in_file = dict(fit)
    if options.ray is not None:
        del in_file["workers"]
    content = {"env": options.env, "engine": engine, "target_return": target, **settings}
    content["fit"] = in_file
    seed_processes.prepare(directory, content, seeds, options.command_line)
    explicit = {"env": options.env, "env_kwargs": settings["env_kwargs"], "fit": fit}
    return _run(options, directory, explicit, target)


def is_group(directory):
    """Returns whether a folder contains the run directories of several seeds."""
    from tf_reinforce.experiments import seed_processes

    return bool(seed_processes.folders(directory))


def resume(options):
    """Continues the seeds of a folder in processes, and returns the exit code.

    The files in the folder may come from an untrusted source. Each process checks those
    of its own run directory. Everything else comes from the options of the command.
    """
    from tf_reinforce.experiments import seed_processes

    train_settings.check_resume_flags(options)
    explicit = {"fit": cli_options.explicit_settings(options)["fit"]}
    if (workers := train_settings.ray_workers(options, explicit)) is not None:
        explicit["fit"]["workers"] = workers
    directory = pathlib.Path(options.resume)
    found = seed_processes.folders(directory)
    if options.seeds not in (None, len(found)):
        raise ValueError(
            "The training has another number of seeds. Expected: that of "
            f"{directory}, {len(found)}. Received: --seeds {options.seeds}"
        )
    content = run_config.read(next(iter(found.values())))
    env = content.get("env")
    if options.env is None and isinstance(env, str) and ":" in env:
        words = ["tf-reinforce", "train", env, "--resume", options.resume]
        raise ValueError(train_settings.unknown_module(env, shlex.join(words)))
    explicit |= {"env": options.env or "", "env_kwargs": dict(options.env_arg)}
    options.env = options.env or (env if isinstance(env, str) else "")
    return _run(options, directory, explicit, content.get("target_return"))


def _run(options, directory, explicit, target):
    """Runs the processes that have not ended, prints the results, returns the exit code.

    Args:
        options: The parsed options of `tf-reinforce train`.
        directory: `pathlib.Path` of the folder with the run directories.
        explicit: Dict of the settings that the user has passed.
        target: Float, the target return, or `None`.
    """
    from tf_reinforce.experiments import curves
    from tf_reinforce.experiments import seed_processes

    say, folders = train_messages.say, seed_processes.folders(directory)
    commands = {
        seed: run_config.resume_words(path, explicit)
        for seed, path in folders.items()
        if not seed_processes.has_ended(path)
    }
    jobs = options.jobs or len(os.sched_getaffinity(0))
    if commands:
        output = directory / "seed_N" / seed_processes.OUTPUT
        say(
            f"training {len(commands)} of {len(folders)} seeds, each in its own process, "
            f"{jobs} at the same time; their output is in {output}"
        )
    else:
        say(f"the trainings of all {len(folders)} seeds have ended")
    processes = seed_processes.Processes(commands, folders, jobs, say)
    try:
        code = processes.run()
    except KeyboardInterrupt:  # before the processes
        code = 130
    if code:
        env = [options.env] if ":" in options.env else []
        words = ["tf-reinforce", "train", *env, "--resume", str(directory)]
        print(f"saved in {directory}\nto continue: {shlex.join(words)}")
        return code
    result = curves.results(folders)
    train_messages.print_seeds_summary(options.env, directory, result, target)
    best = max(folders, key=result["returns"].get)
    train_messages.print_group_commands(directory, folders[best], options.env)
    median = statistics.median(result["returns"].values())
    return int(options.require_target and target is not None and median < target)
