"""Runs the command `train`, with one seed or with several."""

import argparse
import contextlib
import os
import pathlib
import statistics
import tempfile

from tf_reinforce import saving
from tf_reinforce.cli import env_ids
from tf_reinforce.cli import train_callbacks
from tf_reinforce.cli import train_messages
from tf_reinforce.cli import train_options
from tf_reinforce.cli import train_seeds
from tf_reinforce.cli import train_settings
from tf_reinforce.support import learner_cluster
from tf_reinforce.support import startup

INTERRUPTED = 130  # exit code after Ctrl-C


def add_parser(subparsers):
    """Adds the parser of `tf-reinforce train`."""
    command = subparsers.add_parser(
        "train",
        help="train an agent on an environment",
        description="Without a budget (--epochs, --steps, or that of a preset) training "
        "ends when an evaluation over 100 episodes reaches the target return, or after "
        "300 updates. With a budget, the target is only reported.",
    )
    command.set_defaults(command=run)
    for option in train_options.TRAIN_OPTIONS:
        command.add_argument(option.flag, **option.arguments)
    for names, replacement in train_options.unknown_options().items():
        suppress = dict(default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        command.add_argument(
            *names, action=_Unknown, nargs="?", const=replacement, **suppress
        )


class _Unknown(argparse.Action):
    """Rejects an option of other libraries, like `--lr`, and prints the option to use."""

    def __call__(self, parser, namespace, values, option_string=None):
        parser.error(f"there is no option {option_string}. Use {self.const}.")


def run(options):
    """Runs `tf-reinforce train` and returns the exit code.

    If `TF_CONFIG` describes several learner processes, they train one agent together.
    All processes train, and only the chief writes files and prints.
    """
    cluster = learner_cluster.from_environment(os.environ)
    if cluster is None or cluster.number == 0:
        return _train(options, cluster)
    options.run_dir = options.export = None
    with open(os.devnull, "w") as file, contextlib.redirect_stdout(file):
        return _train(options, cluster)


def _train(options, cluster):
    """Trains in the current process, and returns the exit code."""
    if options.resume is not None and train_seeds.is_group(options.resume):
        return train_seeds.resume(options)
    seed, settings = _check(options, cluster)
    startup.import_tensorflow()
    from tf_reinforce.support import replicas

    strategy = replicas.learner_strategy()  # before any other call of TensorFlow
    if ":" in options.env:
        options.env = env_ids.find_env(options.env)
        if options.resume is None:
            settings = train_settings.choose_settings(options)
    from tf_reinforce import agent as agents
    from tf_reinforce.engine import learner_processes
    from tf_reinforce.experiments import runs

    env = options.env
    if train_settings.uses_one_program(options, settings):
        _use_one_thread_per_operation()
    twin = _select_twin(options, settings)
    if (workers := train_settings.ray_workers(options, settings)) is not None:
        settings["fit"]["workers"] = workers
    train_messages.print_ended(options.resume)
    threshold = runs.reward_threshold(env, settings["env_kwargs"])
    target = settings["evaluation"].get("target", threshold)
    _check_required_target(options, target)
    if options.seeds is not None:
        return _train_seeds(options, settings, twin, seed, target)
    with learner_processes.get(strategy).explain_lost(), strategy.scope():
        agent = agents.Reinforce.for_env(
            env, seed=seed, env_kwargs=settings["env_kwargs"], **settings["agent"]
        )
    train_messages.print_budget(settings, target, threshold)
    is_chief = cluster is None or cluster.number == 0
    with (
        train_settings.hold_connection(workers),
        _run_directory(options, seed, is_chief) as directory,
    ):
        numbers = {"target": target, "seed": seed}
        result = _fit(options, settings, agent, directory, twin=twin, **numbers)
    if is_chief:
        return _report(options, settings, directory, result, (target, threshold))
    return result["exit_code"]


def _fit(options, settings, agent, directory, **more):
    """Trains an agent in a run directory; the arguments are those of `runs.train`."""
    from tf_reinforce.experiments import runs

    return runs.train(
        agent,
        options.env,
        directory,
        settings,
        command=options.command_line,
        run_callbacks=train_callbacks.make(options, settings, directory),
        **more,
    )


def _report(options, settings, directory, result, numbers):
    """Prints the result of a training with one seed, and returns the exit code."""
    env, (target, threshold) = options.env, numbers
    if result["exit_code"]:
        when = f" after {train_messages.count_text(result['updates'], 'update')}"
        train_messages.print_interrupted(directory, {"env": env, **settings}, when)
        return result["exit_code"]
    metrics = result["evaluation"]
    line = train_messages.return_line(env, metrics, target, threshold)
    train_messages.print_summary(directory, line, result)
    _export(options, directory)
    train_messages.print_next_commands(options, directory, settings["env_kwargs"])
    return _target_exit_code(options, metrics["episode_return"], target)


def _check_required_target(options, target):
    """Raises `ValueError` if `--require-target` was passed and there is no target."""
    if options.require_target and target is None:
        raise ValueError(
            "`--require-target` needs a target return, and the environment "
            f"{options.env} has no reward threshold. Add --target-return."
        )


def _target_exit_code(options, mean_return, target):
    """Returns 1 if `--require-target` was passed and a return misses it, else 0."""
    return int(bool(options.require_target) and mean_return < target)


def _check(options, cluster):
    """Returns the seed and the settings of a training, without importing TensorFlow."""
    if options.resume is None:
        seed, settings = train_settings.check_train_options(options)
    else:
        seed, settings = train_settings.check_resume_options(options)
    train_settings.check_env_settings(options.env, settings)
    train_settings.check_engine(options, settings)
    train_settings.ray_workers(options, settings)  # raises errors
    if cluster is not None:
        train_settings.check_cluster(options, cluster)
        train_messages.print_cluster(cluster)
        # TensorFlow would print the loss of a process before `LearnerLost` names it.
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return seed, settings


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
def _run_directory(options, seed, is_chief=True):
    """Yields the folder of a run, or a temporary folder in other learner processes."""
    from tf_reinforce.experiments import runs

    if options.resume is not None:
        yield pathlib.Path(options.resume)
    elif is_chief:
        with runs.new_directory(options.run_dir, options.env, seed) as directory:
            yield directory
    else:
        with tempfile.TemporaryDirectory() as directory:
            yield pathlib.Path(directory)


def _train_seeds(options, settings, twin, first_seed, target):
    """Trains the seeds of `--seeds`, and returns the exit code."""
    from tf_reinforce import agent as agents
    from tf_reinforce.experiments import runs

    if twin is None or not train_settings.uses_one_program(options, settings):
        engine = "host" if twin is None else "compiled"
        return train_seeds.run(options, settings, engine, first_seed, target)

    def make(seed):
        return agents.Reinforce.for_env(twin, seed=seed, **settings["agent"])

    from tf_reinforce.engine import interruption

    seeds = range(first_seed, first_seed + options.seeds)
    with _run_directory(options, first_seed) as directory:
        try:
            result = runs.train_seeds(
                make,
                options.env,
                directory,
                settings,
                twin,
                seeds,
                command=options.command_line,
            )
        except (KeyboardInterrupt, interruption.Terminated) as error:
            config = {"env": options.env, "seeds": seeds, **settings}
            train_messages.print_interrupted(directory, config)
            return getattr(error, "code", INTERRUPTED)
    train_messages.print_seeds_summary(options.env, directory, result, target)
    _export(options, directory)
    train_messages.print_next_commands(options, directory, {})
    return _target_exit_code(
        options, statistics.median(result["returns"].values()), target
    )


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
    from tf_reinforce.experiments import run_config

    if options.export is not None:
        folder = options.export or directory / "policy"
        path = run_config.agent_file(directory)
        saving.load(path, max_bytes=os.path.getsize(path)).export(folder)
        print(f"exported to {folder}")
