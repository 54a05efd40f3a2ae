"""Runs the command `train`, with one seed or with several."""

import contextlib
import dataclasses
import os
import pathlib
import statistics
import tempfile

from tf_reinforce import saving
from tf_reinforce.cli import agent_files
from tf_reinforce.cli import options as cli_options
from tf_reinforce.cli import train_messages
from tf_reinforce.cli import train_seeds
from tf_reinforce.cli import train_settings
from tf_reinforce.experiments import run_config
from tf_reinforce.settings import schema
from tf_reinforce.support import startup

INTERRUPTED = 130  # exit code after Ctrl-C


@dataclasses.dataclass(kw_only=True)
class TrainOptions(cli_options.TaskOptions):
    """The options of `train` besides `options.SETTINGS`.

    Attributes:
        ray: Run the --workers on the machines of a Ray cluster: its address host:port,
            `auto` for the cluster of this machine, or `local` for a new one.
        num_cpus_per_worker: With --ray, the cores that a worker reserves on its machine
            (1); 0: any number of workers.
        seeds: Train N seeds, from --seed on: in one program if there is an equal
            environment in TensorFlow and --epochs is set, else in processes.
        jobs: With --seeds, the processes at the same time (number of cores).
        require_target: Exit with code 1 if the best agent misses the target; with
            --seeds, if the median of the seeds misses it.
        run_dir: Folder of this run (runs/ENV/DATE_seedN).
        resume: Continue the run in this folder, with its settings.
        checkpoint_every: Updates (10) or seconds (60s) from one checkpoint to the next
            (60s).
        export: Also write the best policy as a SavedModel (RUN/policy).
    """

    ray: str | None = None
    num_cpus_per_worker: schema.NonNegative | None = None
    seeds: schema.Count | None = None
    jobs: schema.Count | None = None
    require_target: bool = False
    run_dir: str | None = None
    resume: str | None = None
    checkpoint_every: cli_options.Interval | None = None
    export: str | None = None


def add_parser(commands):
    """Adds the parser of `tf-reinforce train`."""
    command = cli_options.add_command(commands, train, TrainOptions)
    cli_options.add_settings(command, cli_options.SETTINGS)


def train(options):
    """Train an agent on an environment.

    Without a budget (--epochs, --steps, or that of a preset) training ends when an
    evaluation over 100 episodes reaches the target return, or after 300 updates. With a
    budget, the target is only reported. docs/presets.md lists the settings without a
    preset. If TF_CONFIG describes several learner processes, they train one agent
    together, and only the chief writes files and prints.
    """
    cluster = startup.learner_cluster(os.environ)
    if cluster is None or cluster.number == 0:
        return _train(options, cluster)
    options.run_dir = options.export = None
    with open(os.devnull, "w") as file, contextlib.redirect_stdout(file):
        return _train(options, cluster)


def _train(options, cluster):
    """Trains in the current process, and returns the exit code."""
    if options.resume is not None and train_seeds.is_group(options.resume):
        return train_seeds.resume(options)
    settings, task = _check(options, cluster)
    startup.import_tensorflow()
    from tf_reinforce.support import replicas

    strategy = replicas.learner_strategy()  # before any other call of TensorFlow
    if ":" in options.env:
        options.env = agent_files.find_env(options.env)
        if options.resume is None:
            settings, task = train_settings.choose_settings(options)
    from tf_reinforce import agent as agents
    from tf_reinforce.engine import learner_processes

    env, env_kwargs = options.env, settings["env_kwargs"]
    if train_settings.uses_one_program(options, settings):
        _use_one_thread_per_operation()
    twin = _select_twin(options, settings)
    if (workers := train_settings.ray_workers(options, settings)) is not None:
        settings["fit"]["workers"] = workers
    task = task or agent_files.make_task(env, env_kwargs)
    target = settings["evaluation"].get("target", task.reward_threshold)
    if options.require_target and target is None:
        raise ValueError(
            "`--require-target` needs a target return, and the environment "
            f"{env} has no reward threshold. Add --target-return."
        )
    if options.seeds is not None:
        return _train_seeds(options, settings, twin, target)
    with learner_processes.get(strategy).explain_lost(), strategy.scope():
        agent = agents.Reinforce.for_env(
            env, seed=options.seed, env_kwargs=env_kwargs, **settings["agent"]
        )
    train_messages.print_budget(settings, target, task.reward_threshold)
    is_chief = cluster is None or cluster.number == 0
    with contextlib.ExitStack() as stack:
        if workers is not None:
            from tf_reinforce.cluster import ray_workers

            stack.enter_context(ray_workers.hold_connection(workers.address))
        directory = stack.enter_context(_run_directory(options, is_chief))
        result = _fit(options, settings, agent, directory, twin, target)
    if is_chief:
        return _report(options, settings, directory, result, task, target)
    return result["exit_code"]


def _check(options, cluster):
    """Returns settings and `Task` of a training, without importing TensorFlow.

    The task of a run that continues in a module's environment is `None`.
    """
    options.seed = options.seed if options.resume else options.seed or 0
    if options.resume is None:
        settings, task = train_settings.check_train_options(options)
    else:
        settings, task = train_settings.check_resume_options(options), None
        if ":" not in options.env:
            task = agent_files.make_task(options.env, settings["env_kwargs"])
    train_settings.check_engine(options, settings)
    if cluster is not None and options.seeds is not None:
        raise ValueError(
            "`--seeds` trains in one process. Expected: one seed, or TF_CONFIG={}. "
            f"Received: --seeds {options.seeds}, and {len(cluster.hosts)} learner "
            "processes in TF_CONFIG."
        )
    if cluster is not None:
        count = len(cluster.hosts)
        train_messages.say(f"training with {count} learner processes, from TF_CONFIG")
        # TensorFlow would print the loss of a process before `LearnerLost` names it.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return settings, task


def _fit(options, settings, agent, directory, twin, target):
    """Trains an agent in a run directory, and returns the result of `runs.train`."""
    from tf_reinforce.experiments import runs
    from tf_reinforce.experiments import seed_processes

    if options.resume is not None and seed_processes.has_ended(directory):
        text = f"the training in {directory} has ended; its agents are evaluated again"
        train_messages.say(text)
    return runs.train(
        agent,
        options.env,
        directory,
        settings,
        target=target,
        seed=options.seed,
        twin=twin,
        command=options.command_line,
        run_callbacks=make_callbacks(options.env, settings, directory),
    )


def make_callbacks(env, settings, directory):
    """Returns the Keras callbacks that the table `callbacks` describes."""
    from tf_reinforce import callbacks
    from tf_reinforce.callbacks import tensorboard

    table, result = settings["callbacks"], []
    if table.get("diagnose"):
        result.append(callbacks.Diagnostics())
    if (kind := table.get("tensorboard")) is not None:
        folder = directory / "tensorboard"
        if not any(directory.glob("checkpoints/*")):
            for path in folder.glob(f"*{tensorboard.SUFFIX}"):
                path.unlink()  # events of a process that was killed
        logger = callbacks.TensorBoardLogger(folder, histograms=kind == "histograms")
        result.append(logger)
    if (every := table.get("video")) is not None:
        from tf_reinforce.experiments import video_recorder

        limit = settings["evaluation"].get("max_episode_steps")
        more = dict(env_kwargs=settings["env_kwargs"], max_episode_steps=limit)
        folder = directory / "videos"
        result.append(video_recorder.VideoRecorder(env, folder, every, **more))
    return result


def _report(options, settings, directory, result, task, target):
    """Prints the result of a training with one seed, and returns the exit code."""
    env = options.env
    if result["exit_code"]:
        when = f" after {train_messages.count_text(result['updates'], 'update')}"
        train_messages.print_interrupted(directory, {"env": env, **settings}, when)
        return result["exit_code"]
    metrics, threshold = result["evaluation"], task.reward_threshold
    line = train_messages.return_line(env, metrics, target, threshold)
    train_messages.print_summary(directory, line, result)
    _export(options, directory)
    env_kwargs = settings["env_kwargs"]
    train_messages.print_next_commands(options, directory, env_kwargs, task.renders)
    return int(options.require_target and metrics["episode_return"] < target)


def _select_twin(options, settings):
    """Returns the `TensorEnv` to train on, or `None` to train on `options.env`.

    A twin is a `TensorEnv` that equals a Gymnasium environment step by step.
    """
    from tf_reinforce import envs

    fit = settings["fit"]
    uses_workers = options.ray is not None or fit.get("workers", 1) != 1
    uses_workers = uses_workers and not train_settings.uses_one_program(options, settings)
    if options.engine == "host" or (options.engine == "auto" and uses_workers):
        return None
    twin = None if train_settings.host_settings(settings) else envs.twin_of(options.env)
    if options.engine == "compiled":
        return twin or envs.make(options.env)
    if twin is not None and not (twin.max_episode_steps or fit.get("max_episode_steps")):
        return None  # the compiled engine needs a time limit
    if twin is not None:
        print(
            f"training on tf_reinforce.envs.{type(twin).__name__}, the compiled twin of "
            f"{options.env}, all episodes at once; evaluating on {options.env} itself "
            "(--engine host: both)"
        )
    return twin


@contextlib.contextmanager
def _run_directory(options, is_chief=True):
    """Yields the folder of a run, or a temporary folder in other learner processes."""
    from tf_reinforce.experiments import runs

    if options.resume is not None:
        yield pathlib.Path(options.resume)
    elif is_chief:
        new = runs.new_directory(options.run_dir, options.env, options.seed)
        with new as directory:
            yield directory
    else:
        with tempfile.TemporaryDirectory() as directory:
            yield pathlib.Path(directory)


def _train_seeds(options, settings, twin, target):
    """Trains the seeds of `--seeds`, and returns the exit code."""
    from tf_reinforce import agent as agents
    from tf_reinforce.engine import interruption
    from tf_reinforce.experiments import runs

    if twin is None or not train_settings.uses_one_program(options, settings):
        engine = "host" if twin is None else "compiled"
        return train_seeds.run(options, settings, engine, target)

    def make(seed):
        return agents.Reinforce.for_env(twin, seed=seed, **settings["agent"])

    seeds, env = range(options.seed, options.seed + options.seeds), options.env
    command = options.command_line
    with _run_directory(options) as directory:
        run = env, directory, settings, twin, seeds
        try:
            result = runs.train_seeds(make, *run, command=command)
        except (KeyboardInterrupt, interruption.Terminated) as error:
            content = {"env": env, "seeds": seeds, **settings}
            train_messages.print_interrupted(directory, content)
            return getattr(error, "code", INTERRUPTED)
    train_messages.print_seeds_summary(env, directory, result, target)
    _export(options, directory)
    train_messages.print_next_commands(options, directory, {})
    median = statistics.median(result["returns"].values())
    return int(options.require_target and median < target)


def _use_one_thread_per_operation():
    """Uses one thread per TensorFlow operation, unless the user set the thread count."""
    import tensorflow as tf

    threading = tf.config.threading
    threads = threading.get_intra_op_parallelism_threads()
    if not threads and "TF_NUM_INTRAOP_THREADS" not in os.environ:
        with contextlib.suppress(RuntimeError):  # TensorFlow has already started
            threading.set_intra_op_parallelism_threads(1)


def _export(options, directory):
    """Exports the policy of a run if the user passed `--export`."""
    if options.export is not None:
        folder = options.export or directory / "policy"
        path = run_config.find(directory)
        saving.load(path, max_bytes=os.path.getsize(path)).export(folder)
        print(f"exported to {folder}")
