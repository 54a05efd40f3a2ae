"""Training in a run directory, the folder with all files of one training."""

import contextlib
import csv
import dataclasses
import datetime
import os
import pathlib
import signal
import time

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce import callbacks
from tf_reinforce import saving
from tf_reinforce.callbacks import evaluation
from tf_reinforce.engine import agent_state
from tf_reinforce.engine import checkpoints
from tf_reinforce.engine import interruption
from tf_reinforce.engine import learner_processes
from tf_reinforce.experiments import multi_seed
from tf_reinforce.experiments import run_config
from tf_reinforce.settings import config as training_options
from tf_reinforce.support import files
from tf_reinforce.support import locks

MAX_UPDATES = 300  # without a budget, if the target is not reached
# The evaluation options in the tables of a run, and their defaults.
_EVALUATION = {
    "evaluation": {"episodes": 100, "deterministic": True, "max_episode_steps": None},
    "fit": {
        "num_envs": 8,
        "workers": 1,
        "on_bad_env": "raise",
        "on_env_error": "raise",
        "info_keys": (),
    },
}
EVALUATION_FREQ = 10  # updates from one evaluation to the next
_LOG, _EPISODES = "log.csv", "episodes.csv"
# Files written before the first update ends.
_FIRST_FILES = *run_config.FILES, _LOG, _EPISODES


@contextlib.contextmanager
def new_directory(path, env, seed):
    """Yields the folder of a new run.

    If the run fails before the end of its first update, the files that it wrote are
    removed. The folder is then removed too, unless it contains other files.

    Args:
        path: Path of a new or empty folder, or `None` for `runs/ENV/DATE_seedN` with the
            seed N.
        env: String, the environment id.
        seed: Int, the seed of the run.

    Yields:
        `pathlib.Path` of the folder.

    Raises:
        FileExistsError: If the folder exists and is not empty.
    """
    path = pathlib.Path(path or default_directory(env, f"seed{seed}"))
    files.expect_empty_folder(path)
    path.mkdir(parents=True, exist_ok=True)
    try:
        yield path
    except BaseException as error:  # also Ctrl-C
        log = path / _LOG
        has_begun = (path / "checkpoints").exists() or log.exists() and log.stat().st_size
        if not has_begun and not isinstance(error, locks.FolderLocked):
            for name in (*_FIRST_FILES, locks.FILE_NAME):
                (path / name).unlink(missing_ok=True)
            with contextlib.suppress(OSError):  # it contains other files
                path.rmdir()
        raise


def default_directory(env, suffix):
    """Returns the path `runs/ENV/DATE_SUFFIX`."""
    date = datetime.datetime.now().strftime("%Y-%m-%d_%H%M%S")
    name = env.replace(":", "_").replace("/", "_")
    return pathlib.Path("runs") / name / f"{date}_{suffix}"


def train(
    agent,
    env,
    directory,
    settings,
    *,
    target,
    seed,
    twin=None,
    command=None,
    run_callbacks=(),
):
    """Trains and evaluates an agent, and saves its best and its last state.

    If the folder contains checkpoints of this training, the training continues from the
    newest one. After SIGINT or SIGTERM, it finishes the current update, writes a last
    checkpoint and ends. When several learner processes train the agent together, all of
    them train and evaluate, but only the chief writes files.

    Args:
        agent: A compiled `Reinforce`.
        env: String, the environment id.
        directory: `pathlib.Path` of an empty folder, or of the run to continue.
        settings: Dict that is saved in `config.json`. Its table `fit` contains arguments
            of `Reinforce.fit` for the budget and for collecting episodes; `checkpoint`,
            those of `Checkpoints`. For `evaluation` and `env_kwargs`, see
            `evaluation_options`.
        target: Float or `None`, the target return. Training stops when an evaluation
            reaches it, but only if `fit` has neither `epochs` nor `steps`.
        seed: Int, the master seed of the training.
        twin: `envs.TensorEnv` to train on instead of `env`, or `None`. Evaluations always
            use `env`.
        command: String for `command.txt`, the command that starts the training, or
            `None`.
        run_callbacks: Sequence of further Keras callbacks for `fit`.

    Returns:
        Dict with `evaluation` (metrics of the best agent on new episodes, `None` after a
        signal and in learner processes other than the chief), `updates`, `env_steps`,
        `seconds` (of training in this process), `evaluations` (their number) and
        `exit_code` (130 after SIGINT, 143 after SIGTERM, else 0).
    """
    fit = settings["fit"]
    has_budget = fit.get("epochs") is not None or fit.get("steps") is not None
    engine = "host" if twin is None else "compiled"
    config = {"env": env, "engine": engine, "seed": seed, "target_return": target}
    config |= settings
    is_chief = learner_processes.get(agent._distribute_strategy).is_chief
    progress = callbacks.ProgressLine()
    evaluator = evaluation.EvaluationCallback(
        env,
        evaluation_options(settings),
        seed,
        directory / "agent.keras" if is_chief else None,
        every=settings["evaluation"].get("every", EVALUATION_FREQ),
        target=None if has_budget else target,
        announce=progress.on_test_begin if is_chief else lambda: None,
    )
    logger = keras.callbacks.CSVLogger(os.fspath(directory / _LOG))
    fit = {**({} if has_budget else {"epochs": MAX_UPDATES}), **fit}
    fit |= {"env_kwargs": settings["env_kwargs"], "seed": seed, "verbose": 0}
    fit["callbacks"] = [evaluator, logger, callbacks.EpisodeLogger(directory / _EPISODES)]
    fit["callbacks"] += [*run_callbacks, *([progress] * is_chief)]
    result = {"exit_code": 0, "evaluation": None}
    with _checkpoints(directory, config, command, is_chief) as folder:
        start = time.perf_counter()
        resumable = f"To continue later: {run_config.resume_command(directory, config)}."
        explained = files.explain_failed_write(directory, resumable, files.DISK_ERRORS)
        try:
            with explained, _signals(result):
                agent.fit(env if twin is None else twin, resume=folder, **fit)
        finally:
            if logger.csv_file is not None:
                logger.csv_file.close()  # Keras closes the file only without an error
        result["seconds"] = time.perf_counter() - start
        if is_chief:
            with _signals(result):
                _finish(agent, evaluator, result)
    counts = {"updates": agent.updates, "env_steps": agent.env_steps}
    return {**result, **counts, "evaluations": evaluator.evaluations}


@contextlib.contextmanager
def _signals(result):
    """Turns the exception of SIGINT or SIGTERM into the `exit_code` of a result."""
    try:
        yield
    except KeyboardInterrupt:
        result["exit_code"] = 128 + signal.SIGINT
    except interruption.Terminated as error:
        result["exit_code"] = error.code


@contextlib.contextmanager
def _checkpoints(directory, config, command, is_chief=True):
    """Yields the open `Checkpoints` of a run, after the chief wrote its first files."""
    folder = checkpoints.Checkpoints(
        directory, agent_path=directory / "last.keras", **config.get("checkpoint", {})
    )
    folder.is_writer = is_chief
    with folder.open():
        if is_chief:
            run_config.write(directory, config, command)
        yield folder


def _finish(agent, evaluator, result):
    """Saves the best agent, and evaluates it unless a signal ended the training.

    The metrics become `result["evaluation"]`. The agent's file of a continued run may
    come from an untrusted source, so it must not be larger than expected for the trained
    agent.
    """
    path, options = evaluator.path, evaluator.options
    if not result["exit_code"] and evaluator.evaluated_update != agent.updates:
        print("evaluating the last agent …", flush=True)
        evaluator.evaluate({})
    if not path.exists():
        agent.save(path)
    if result["exit_code"]:
        return
    print(
        f"evaluating the best agent on {options['episodes']} new episodes …", flush=True
    )
    variables = agent_state.variables(agent)
    size = sum(np.prod(x.shape, dtype=int) * tf.as_dtype(x.dtype).size for x in variables)
    best = saving.load(path, max_bytes=saving.MAX_BYTES + 2 * int(size))
    metrics = best.evaluate(evaluator.env, seed=evaluator.seed, **options)
    run_config.write_json(path.parent / "evaluation.json", metrics)
    result["evaluation"] = metrics


def train_seeds(make, env, directory, settings, twin, seeds, *, command=None):
    """Trains many seeds at once, evaluates each agent, and saves the best.

    If the folder contains checkpoints of this training, the training continues from the
    newest one.

    Args:
        make: Function from a seed to a compiled agent.
        env: String, the environment id for the evaluations.
        directory: `pathlib.Path` of an empty folder, or of the run to continue.
        settings: Dict, as for `train`. Its table `fit` contains `epochs`, and may contain
            `episodes_per_epoch` and `max_episode_steps`.
        twin: `envs.TensorEnv` to train on.
        seeds: Ints, one per agent.
        command: String, as for `train`.

    Returns:
        Dict with `returns` (from each seed to its mean return), `env_steps` (total over
        seeds) and `seconds` (of training in this process).

    Raises:
        KeyboardInterrupt, Terminated: After SIGINT or SIGTERM, and a last checkpoint.
    """
    seeds, fit = list(seeds), settings["fit"]
    config = {"env": env, "engine": "compiled", "seeds": seeds, **settings}
    names = ("epochs", "episodes_per_epoch", "max_episode_steps")
    budget = {name: fit[name] for name in names if fit.get(name) is not None}
    with _checkpoints(directory, config, command) as folder:
        folder.agent_path = None
        start = time.perf_counter()
        print(f"training {len(seeds)} seeds at once …", flush=True)
        results = multi_seed.train_seeds(make, twin, seeds, resume=folder, **budget)
        seconds = time.perf_counter() - start
        _write_history(directory / _LOG, results)
        options, returns, metrics = evaluation_options(settings), {}, {}
        text = f"evaluating each agent on {options['episodes']} episodes …"
        print(text, flush=True)
        for seed in seeds:
            agent = results.agent(seed)
            metrics[seed] = agent.evaluate(env, seed=seed, **options)
            returns[seed] = metrics[seed]["episode_return"]
            if seed == max(returns, key=returns.get):
                agent.save(directory / "agent.keras")
        run_config.write_json(directory / "evaluation.json", metrics)
    return {"returns": returns, "env_steps": results.env_steps, "seconds": seconds}


def _write_history(path, results):
    """Writes one CSV row per update and seed, NaN for failed updates."""
    names = list(results.history)
    with files.atomic_write(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", "seed", *names])
        for epoch, logs in enumerate(zip(*results.history.values())):
            writer.writerows(zip([epoch] * len(logs[0]), results.seeds, *logs))


def evaluation_options(settings):
    """Returns the keyword arguments for `Reinforce.evaluate` in a run's settings.

    Args:
        settings: Dict of dicts. `env_kwargs` is required. `evaluation` may contain
            `episodes`, `deterministic` and `max_episode_steps`; `fit` may contain
            `num_envs`, `workers`, `on_bad_env`, `on_env_error` and `info_keys`.
    """
    result = {
        name: settings[table].get(name, default)
        for table, defaults in _EVALUATION.items()
        for name, default in defaults.items()
    }
    if isinstance(result["workers"], training_options.RayWorkers):
        # The workers of the training are idle, and have reserved the cores.
        workers = dataclasses.replace(result["workers"], num_cpus_per_worker=0)
        result["workers"] = workers
    return {**result, "env_kwargs": settings["env_kwargs"]}
