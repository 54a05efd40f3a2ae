"""Runs the command `train`, with one seed or with several."""

import contextlib
import os
import pathlib

from tf_reinforce import startup
from tf_reinforce import validation
from tf_reinforce.cli import env_ids
from tf_reinforce.cli import train_messages
from tf_reinforce.cli import train_settings

INTERRUPTED = 130  # exit code after Ctrl-C


def train(options):
    """Runs `tf-reinforce train` and returns the exit code."""
    check = train_settings.check_train_options
    if options.resume is not None:
        check = train_settings.check_resume_options
    seed, settings = check(options)
    train_settings.check_env_settings(options.env, settings)
    train_settings.check_engine(options, settings)
    workers = train_settings.ray_workers(options, settings)
    startup.import_tensorflow()
    if ":" in options.env:
        options.env = env_ids.find_env(options.env)
    from tf_reinforce import agent as agents
    from tf_reinforce.experiments import runs

    env = options.env
    if options.seeds is not None:
        _use_one_thread_per_operation()
    twin = _select_twin(options, settings)
    settings["fit"].update({} if workers is None else {"workers": workers})
    threshold = runs.reward_threshold(env, settings["env_kwargs"])
    target = settings["evaluation"].get("target", threshold)
    if options.seeds is not None:
        return _train_seeds(options, settings, twin, seed, target)
    agent = agents.Reinforce.for_env(
        env, seed=seed, env_kwargs=settings["env_kwargs"], **settings["agent"]
    )
    train_messages.print_budget(settings, target, threshold)
    with _run_directory(options, seed) as directory:
        result = runs.train(
            agent, env, directory, settings, target=target, seed=seed, twin=twin
        )
    if result["exit_code"]:
        when = f" after {result['updates']} updates"
        train_messages.print_interrupted(directory, {"env": env, **settings}, when)
        return result["exit_code"]
    return_line = train_messages.return_line(
        env,
        result["evaluation"],
        runs.random_return(env, settings, seed) if options.preset else None,
        target,
        threshold,
    )
    train_messages.print_summary(directory, return_line, result)
    _export(options, directory)
    train_messages.print_next_commands(options, directory, settings["env_kwargs"])
    return 0


def _select_twin(options, settings):
    """Returns the `TensorEnv` to train on, or `None` to train on `options.env`.

    A twin is a `TensorEnv` that equals a Gymnasium environment step by step.
    """
    from tf_reinforce import envs

    fit = settings["fit"]
    uses_workers = options.ray is not None or fit.get("workers", 1) != 1
    uses_workers = options.seeds is None and uses_workers
    if options.engine == "host" or (options.engine == "auto" and uses_workers):
        return None
    twin = None if train_settings.host_settings(settings) else envs.twin_of(options.env)
    if options.engine == "compiled":
        return twin or envs.make(options.env)
    if twin is not None:
        print(
            f"training on tf_reinforce.envs.{type(twin).__name__}, the compiled twin of "
            f"{options.env}, all episodes at once; evaluating on {options.env} itself "
            "(--engine host: both)"
        )
    return twin


def _run_directory(options, seed):
    """Returns a context manager that yields the folder of a run."""
    from tf_reinforce.experiments import runs

    if options.resume is not None:
        return contextlib.nullcontext(pathlib.Path(options.resume))
    return runs.new_directory(options.run_dir, options.env, seed)


def _train_seeds(options, settings, twin, first_seed, target):
    """Trains the seeds of `--seeds` on a twin, and returns the exit code."""
    from tf_reinforce import agent as agents
    from tf_reinforce.experiments import runs

    count, fit = validation.positive_int("seeds", options.seeds), settings["fit"]
    train_settings.check_seeds(options, fit, has_twin=twin is not None)

    def make(seed):
        return agents.Reinforce.for_env(twin, seed=seed, **settings["agent"])

    from tf_reinforce.training import interruption

    seeds = range(first_seed, first_seed + count)
    with _run_directory(options, first_seed) as directory:
        try:
            result = runs.train_seeds(make, options.env, directory, settings, twin, seeds)
        except (KeyboardInterrupt, interruption.Terminated) as error:
            config = {"env": options.env, "seeds": seeds, **settings}
            train_messages.print_interrupted(directory, config)
            return getattr(error, "code", INTERRUPTED)
    train_messages.print_seeds_summary(options.env, directory, result, target)
    _export(options, directory)
    return 0


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
    from tf_reinforce.loading import archive
    from tf_reinforce.loading import keras_file

    if options.export is not None:
        folder = options.export or directory / "policy"
        path = run_config.agent_file(directory)
        keras_file.load(path, limits=archive.OWN_FILE).export(folder)
        print(f"exported to {folder}")
