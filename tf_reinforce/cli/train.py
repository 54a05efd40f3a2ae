"""The command `train`, with one seed or several."""

import contextlib
import dataclasses
import os
import pathlib
import tempfile
from typing import Annotated

from tf_reinforce import saving
from tf_reinforce.cli import options as cli_options
from tf_reinforce.cli import plans
from tf_reinforce.experiments import seed_processes
from tf_reinforce.settings import run_config
from tf_reinforce.settings import schema
from tf_reinforce.support import files
from tf_reinforce.support import startup
from tf_reinforce.support import validation

INTERRUPTED = 130  # exit code after Ctrl-C


@dataclasses.dataclass(kw_only=True)
class TrainOptions(cli_options.TaskOptions):
    """The options of `train` besides `options.SETTINGS`.

    Attributes:
        ray: Run the --workers on a Ray cluster: its address host:port, `auto` for the
            cluster of this machine, or `local` for a new one.
        num_cpus_per_worker: With --ray, the cores that a worker reserves on its machine
            (1); 0: any number of workers.
        seeds: Train N seeds, from --seed on: in one program if TensorFlow has an equal
            environment and --epochs is set, else in processes.
        jobs: With --seeds, the processes at the same time (number of cores).
        require_target: Exit with code 1 if the best agent misses the target; with
            --seeds, if the median of the seeds does.
        callbacks: MODULE:FUNCTION of your own, called with the run directory, which
            returns Keras callbacks.
        run_dir: Folder of this run (runs/ENV/DATE_seedN).
        resume: Continue the run in this folder, with its settings.
        max_bytes: With --resume, the largest size of the agent file last.keras, because a
            stranger's file could fill the memory (134217728).
        checkpoint_every: Updates (10) or seconds (60s) from one checkpoint to the next
            (60s).
    """

    ray: str | None = None
    num_cpus_per_worker: schema.NonNegative | None = None
    seeds: Annotated[int, schema.Range(1, run_config.MAX_SEEDS)] | None = None
    jobs: schema.Count | None = None
    require_target: bool = False
    callbacks: str | None = None
    run_dir: str | None = None
    resume: str | None = None
    max_bytes: schema.Count | None = None
    checkpoint_every: cli_options.Interval | None = None


def train(options: TrainOptions):
    """Train an agent on an environment.

    The settings are those of the environment's preset, if there is one. --no-preset takes
    the defaults instead, which follow from the environment (docs/presets.md).

    Use --epochs, --steps or --preset to set a budget. Training uses all of it and only
    reports whether the target was reached. Without a budget, training ends when an
    evaluation reaches the target return, or after the steps of the preset or 300 updates.

    If TF_CONFIG
    describes several learner processes, they train one agent together, and only the chief
    writes files and prints.
    """
    cluster = startup.learner_cluster(os.environ)
    if cluster is None or cluster[1] == 0:
        return _train(options, cluster)
    options.run_dir = None
    with open(os.devnull, "w") as file, contextlib.redirect_stdout(file):
        return _train(options, cluster)


def _train(options, cluster):
    """Trains in the current process, and returns the exit code."""
    if options.ray is None:
        cores = options.num_cpus_per_worker
        cli_options.expect_none("without --ray", num_cpus_per_worker=cores)
    if options.workers is None:
        cli_options.expect_none("without --workers", ray=options.ray)
    if options.resume is None:
        cli_options.expect_none("without --resume", max_bytes=options.max_bytes)
    elif seed_processes.folders(options.resume):
        return _resume_processes(options)
    if options.run_dir is not None:
        files.expect_empty_folder(pathlib.Path(options.run_dir))
    strategy = None if cluster is None else _strategy(options, cluster)
    plan = plans.make(options)
    if plan.num_seeds is None:
        cli_options.expect_none("without --seeds", jobs=options.jobs)
    if options.require_target and plan.target is None:
        raise ValueError(
            "`--require-target` needs a target return, and the environment "
            f"{plan.env} has no reward threshold. Add --target-return."
        )
    if plan.in_one_program:
        os.environ.setdefault("TF_NUM_INTRAOP_THREADS", "1")  # its operations are small
    startup.import_tensorflow()
    twin = plan.twin()
    if twin is not None and plan.engine == "auto":
        print(
            f"training on tf_reinforce.envs.{type(twin).__name__}, the compiled twin of "
            f"{plan.env}, all episodes at once; evaluating on {plan.env} itself "
            "(--engine host: both)"
        )
    if plan.num_seeds is None:
        return _train_agent(options, plan, strategy, twin, cluster)
    if options.resume is not None and not plan.in_one_program:
        raise ValueError(
            "`--resume` continues seeds that train in one program without callbacks. "
            f"Omit the options that add some. Received: {plan.settings['callbacks']}"
        )
    if twin is None or not plan.in_one_program:
        return _start_processes(options, plan, twin)
    return _train_seeds(options, plan, twin)


def _strategy(options, cluster):
    """Returns the strategy of learner processes, before any other call of TensorFlow."""
    count = len(cluster[0])
    if options.seeds is not None:
        raise ValueError(
            "`--seeds` trains in one process, without TF_CONFIG. Received: "
            f"--seeds {options.seeds}, and {count} learner processes in TF_CONFIG."
        )
    print(f"training with {count} learner processes, from TF_CONFIG")
    # TensorFlow would print the loss of a process before `LearnerLost` names it.
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    startup.import_tensorflow()
    from tf_reinforce.engine import learner_processes

    return learner_processes.learner_strategy()


def _train_agent(options, plan, strategy, twin, cluster):
    """Trains one agent, prints its result, and returns the exit code."""
    from tf_reinforce.engine import checkpoints
    from tf_reinforce.engine import interruption
    from tf_reinforce.engine import learner_processes
    from tf_reinforce.experiments import runs

    settings, env, is_chief = plan.settings, plan.env, not (cluster and cluster[1])
    own, resumed = plan.own, options.resume and pathlib.Path(options.resume)
    directory = None
    with (
        learner_processes.get(strategy).explain_lost(),
        learner_processes.scope(strategy),
    ):
        maker, size = own.get("make_agent"), options.max_bytes or saving.MAX_BYTES
        agent = runs.make_agent(env, settings, plan.seed, maker, resumed, size)
    tables = {name: settings[name] for name in ("env_kwargs", "evaluation")}
    agent._fit_defaults = {**settings["fit"], **tables}
    if is_chief:
        _print_target(settings)
    try:
        with _run_directory(options, plan, is_chief) as directory:
            folder = checkpoints.Checkpoints(directory, **settings["checkpoint"])
            folder.settings = _config_entries(options, plan)
            callbacks = make_callbacks(settings, directory)
            callbacks += runs.make_callbacks(own.get("make_callbacks"), directory)
            agent.fit(
                env if twin is None else twin,
                validation_env=None if twin is None else env,
                seed=plan.seed,
                resume=folder,
                callbacks=callbacks,
                verbose=1 if is_chief else 0,
            )
    except (KeyboardInterrupt, interruption.Terminated) as error:
        if not is_chief or directory is None or not directory.exists():
            raise
        _print_interrupted(directory, plan, agent.updates)
        return getattr(error, "code", INTERRUPTED)
    if not is_chief or not options.require_target:
        return 0
    evaluation = run_config.read_evaluation(directory)
    return int(evaluation["episode_return"] < plan.target)


def _print_target(settings):
    """Tells which evaluation ends the training, if one does."""
    from tf_reinforce.experiments import runs

    if (stop := settings["callbacks"].get("stop_at_return")) is not None:
        episodes, fit = runs.evaluation_options(settings)["episodes"], settings["fit"]
        epochs, steps = fit.get("epochs"), fit.get("steps")
        limit = f"{epochs} updates" if epochs else f"{steps:,} steps"
        print(
            f"training ends when an evaluation over {episodes} episodes reaches the "
            f"target return {stop:g}, or after {limit}"
        )


def _config_entries(options, plan):
    """Returns the entries of `config.json` that `fit` does not know."""
    entries = {"preset": plan.settings["preset"], "target_return": plan.target}
    if plan.own:
        names = ["callbacks", *["agent"] * ("make_agent" in plan.own)]
        entries |= {**plan.own, **{name: plan.settings[name] for name in names}}
    return {**entries, "command": options.command_line}


def make_callbacks(settings, directory):
    """Returns the Keras callbacks that the table `callbacks` describes."""
    from tf_reinforce import callbacks
    from tf_reinforce.engine import run_directory

    table, result = settings["callbacks"], []
    if table.get("diagnose"):
        result.append(callbacks.Diagnostics())
    if (kind := table.get("tensorboard")) is not None:
        folder = directory / run_directory.TENSORBOARD
        histograms = kind == "histograms"
        result.append(callbacks.TensorBoardLogger(folder, histograms=histograms))
    if (target := table.get("stop_at_return")) is not None:
        result.append(callbacks.StopAtReturn(target, monitor="val_episode_return"))
    return result


@contextlib.contextmanager
def _run_directory(options, plan, is_chief=True):
    """Yields the folder of a run; a temporary one in all learners but the chief."""
    from tf_reinforce.experiments import runs

    if options.resume is not None:
        yield pathlib.Path(options.resume)
    elif is_chief:
        with runs.new_directory(options.run_dir, plan.env, plan.seed) as directory:
            yield directory
    else:
        with tempfile.TemporaryDirectory() as directory:
            yield pathlib.Path(directory)


def _train_seeds(options, plan, twin):
    """Trains the seeds of `--seeds` in one program, and returns the exit code."""
    from tf_reinforce import agent as agents
    from tf_reinforce.engine import interruption
    from tf_reinforce.experiments import runs

    def make(seed):
        return agents.Reinforce.for_env(twin, seed=seed, **plan.settings["agent"])

    command = options.command_line
    with _run_directory(options, plan) as directory:
        run = plan.env, directory, plan.settings, twin, plan.seeds
        try:
            result = runs.train_seeds(make, *run, command=command)
        except (KeyboardInterrupt, interruption.Terminated) as error:
            _print_interrupted(directory, plan)
            return getattr(error, "code", INTERRUPTED)
    return _report_seeds(options, plan.env, directory, result, plan.target)


def _start_processes(options, plan, twin):
    """Trains seeds in new processes side by side, and returns the exit code."""
    from tf_reinforce.experiments import runs

    name = f"{plan.num_seeds}_seeds"
    directory = pathlib.Path(options.run_dir or runs.default_directory(plan.env, name))
    engine = "host" if twin is None else "compiled"
    content = {"env": plan.env, "engine": engine, "target_return": plan.target}
    content |= {**plan.settings, **plan.own}
    seed_processes.prepare(directory, content, plan.seeds, options.command_line)
    return _run_processes(options, directory, content)


def _resume_processes(options):
    """Continues the seeds of a folder in processes, and returns the exit code.

    The folder may come from a stranger. Each process therefore checks the files of its
    own run directory, and everything else comes from the options of the command.
    """
    plans.check_resume_options(options)
    explicit = {"env": options.env or "", "env_kwargs": dict(options.env_arg)}
    explicit |= {"agent": dict(options.agent_arg), **plans.own_names(options)}
    explicit["fit"] = cli_options.explicit_settings(options)["fit"]
    return _run_processes(options, pathlib.Path(options.resume), explicit)


def _run_processes(options, directory, explicit):
    """Runs the unfinished processes, prints the results, and returns the exit code.

    Args:
        options: The parsed options of `tf-reinforce train`.
        directory: `pathlib.Path` of the folder with the run directories.
        explicit: Dict of the settings that the user passed.
    """
    from tf_reinforce.experiments import curves

    folders = seed_processes.folders(directory)
    content = run_config.read(next(iter(folders.values())))
    env = str(content.get("env"))
    command = run_config.resume_command(directory, {**explicit, "env": env})
    if ":" in env and options.env is None:
        raise plans.unknown_module(env, command)
    size = options.max_bytes
    more = [] if size is None else ["--max-bytes", str(size)]
    commands = {
        seed: [*run_config.resume_words(path, explicit), *more]
        for seed, path in folders.items()
        if not run_config.read_evaluation(path)
    }
    jobs = options.jobs or len(os.sched_getaffinity(0))
    text = f"the trainings of all {len(folders)} seeds have ended"
    if commands:
        output = directory / "seed_N" / seed_processes.OUTPUT
        text = (
            f"training {len(commands)} of {len(folders)} seeds, each in its own process, "
            f"{jobs} at the same time; their output is in {output}"
        )
    print(text)
    try:
        code = seed_processes.run(commands, folders, jobs, _print)
    except KeyboardInterrupt:  # before the processes
        code = INTERRUPTED
    if code:
        _print(f"saved in {directory}\nto continue: {command}")
        return code
    target, result = content.get("target_return"), curves.results(folders)
    return _report_seeds(options, env, directory, result, target)


def _report_seeds(options, env, directory, result, target):
    """Prints the results of several seeds, and returns the exit code."""
    import numpy as np

    best = max(result["returns"], key=result["returns"].get)
    returns = list(result["returns"].values())
    median, reached = float(np.median(returns)), f" (seed {best})"
    if target is not None:
        count = sum(x >= target for x in returns)
        reached += f", {count} of {len(returns)} at {target:g}"
    _print(
        f"\n{env}: {len(returns)} seeds, {result['env_steps']:,} steps in "
        f"{result['seconds']:.1f} s of training\n"
        f"returns over new episodes: minimum {min(returns):.4g}, median {median:.4g}, "
        f"maximum {max(returns):.4g}{reached}\nsaved in {directory}"
    )
    return int(options.require_target and target is not None and median < target)


def _print(text):
    """Prints a text that may come from an untrusted run directory."""
    print(validation.printable(text))


def _print_interrupted(directory, plan, updates=None):
    """Prints the command that continues a training after a signal."""
    when = "" if updates is None else f" after {updates} update{'s' * (updates != 1)}"
    config = {"env": plan.env, **plan.settings, **plan.own}
    command = run_config.resume_command(directory, config)
    _print(f"interrupted{when}; saved in {directory}\nto continue: {command}")
