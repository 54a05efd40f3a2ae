"""New run directories, and the training of many seeds in one."""

import contextlib
import csv
import datetime
import inspect
import pathlib
import time

import gymnasium as gym
import keras

from tf_reinforce import agent as agents
from tf_reinforce import saving
from tf_reinforce.engine import checkpoints
from tf_reinforce.engine import run_directory
from tf_reinforce.engine.collect import batched_envs
from tf_reinforce.experiments import multi_seed
from tf_reinforce.settings import config as training_options
from tf_reinforce.settings import run_config
from tf_reinforce.support import files
from tf_reinforce.support import locks
from tf_reinforce.support import own_code

# The options of `fit` that also apply to evaluations.
_FIT_NAMES = "num_envs", "workers", *training_options.FAULT_OPTIONS, "info_keys"
# Files written before the first update ends.
_FIRST_FILES = *run_config.FILES, run_directory.LOG, run_directory.EPISODES


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
        log = path / run_directory.LOG
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


def make_agent(env, settings, seed, own=None, directory=None, max_bytes=saving.MAX_BYTES):
    """Makes the agent that the settings of a run describe.

    Args:
        env: String, the environment id.
        settings: Dict with the tables `agent` and `env_kwargs`. An empty table `agent`
            stands for the agent in the file `last.keras`.
        seed: Int.
        own: String `MODULE:FUNCTION`, the function of the user that makes it, or `None`.
        directory: `pathlib.Path` of the run.
        max_bytes: Int, the largest allowed size of `last.keras`.

    Raises:
        ValueError: If the function fails, or returns something else.
    """
    agent, env_kwargs = settings["agent"], settings["env_kwargs"]
    if own is None and not agent and directory is not None:
        path = run_config.find(directory, run_directory.LAST)
        return saving.load(path, max_bytes=max_bytes)
    if own is None:
        return agents.Reinforce.for_env(env, seed=seed, env_kwargs=env_kwargs, **agent)
    with batched_envs.explain_errors(env, env_kwargs):
        made = gym.make(env, disable_env_checker=True, **env_kwargs)
    with contextlib.closing(made):
        result = own_code.call("--agent", own, made, seed, **agent)
    return expect_returned(own, result, agents.Reinforce, "a tf_reinforce.Reinforce")


def expect_returned(own, result, kind, expected):
    """Returns what a function of the user has returned, or raises `ValueError`.

    Args:
        own: String `MODULE:FUNCTION`.
        result: What it has returned.
        kind: Type of which the result must be an instance.
        expected: String for the message, what it should be.
    """
    if not isinstance(result, kind):
        raise ValueError(f"{own} must return {expected}. Received: {repr(result)[:100]}")
    return result


def make_callbacks(own, directory):
    """Returns the list of the callbacks that a function of the user makes.

    Args:
        own: String `MODULE:FUNCTION`, or `None` for an empty list. The function receives
            the path of the run directory if its first argument has no default.
        directory: `pathlib.Path`.
    """
    if own is None:
        return []
    kinds = inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD
    first = own_code.parameters("--callbacks", own)[:1]
    is_required = any(x.kind in kinds and x.default is x.empty for x in first)
    result = own_code.call("--callbacks", own, *[directory] * is_required)
    result = list(result) if isinstance(result, (list, tuple)) else [result]
    kind = keras.callbacks.Callback
    return [expect_returned(own, x, kind, "Keras callbacks") for x in result]


def train_seeds(make, env, directory, settings, twin, seeds, *, command=None):
    """Trains many seeds at once, evaluates each agent, and saves the best.

    If the folder contains checkpoints of this training, the training continues from the
    newest one.

    Args:
        make: Function from a seed to a compiled agent.
        env: String, the environment id for the evaluations.
        directory: `pathlib.Path` of an empty folder, or of the run to continue.
        settings: Dict of tables that is saved in `config.json`. `fit` contains `epochs`,
            and may contain `episodes_per_epoch` and `max_episode_steps`. For `evaluation`
            and `env_kwargs`, see `evaluation_options`.
        twin: `envs.TensorEnv` to train on.
        seeds: Ints, one per agent.
        command: String for `command.txt`, the command that starts the training, or
            `None`.

    Returns:
        Dict with `returns` (from each seed to its mean return), `env_steps` (total over
        seeds) and `seconds` (of training in this process).

    Raises:
        KeyboardInterrupt, Terminated: After SIGINT or SIGTERM, and a last checkpoint.
    """
    seeds, fit = list(seeds), settings["fit"]
    model = run_directory.describe(make(seeds[0]).policy)
    config = {"env": env, "engine": "compiled", "seeds": seeds, "model": model}
    config |= settings
    names = ("epochs", "episodes_per_epoch", "max_episode_steps")
    budget = {name: fit[name] for name in names if fit.get(name) is not None}
    folder = checkpoints.Checkpoints(directory, **config.get("checkpoint", {}))
    with folder.open():
        run_config.write(directory, config, command)
        start = time.perf_counter()
        print(f"training {len(seeds)} seeds at once …", flush=True)
        results = multi_seed.train_seeds(make, twin, seeds, resume=folder, **budget)
        seconds = time.perf_counter() - start
        _write_history(directory / run_directory.LOG, results)
        options, returns, metrics = evaluation_options(settings), {}, {}
        print(f"evaluating each agent on {options['episodes']} episodes …", flush=True)
        for seed in seeds:
            agent = results.agent(seed)
            metrics[seed] = agent.evaluate(env, seed=seed, **options)
            returns[seed] = metrics[seed]["episode_return"]
            if seed == max(returns, key=returns.get):
                agent.save(directory / "agent.keras")
        run_config.write_json(directory / run_config.EVALUATION, metrics)
    return {"returns": returns, "env_steps": results.env_steps, "seconds": seconds}


def _write_history(path, results):
    """Writes one CSV row per update and seed, NaN for failed updates."""
    with files.atomic_write(path) as temporary, open(temporary, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["epoch", "seed", *results.history])
        for epoch, logs in enumerate(zip(*results.history.values())):
            writer.writerows(zip([epoch] * len(logs[0]), results.seeds, *logs))


def evaluation_options(settings):
    """Returns the keyword arguments for `Reinforce.evaluate` in a run's settings.

    Args:
        settings: Dict of dicts. `env_kwargs` is required. `evaluation` may contain
            `episodes`, `deterministic` and `max_episode_steps`; `fit` may contain
            `num_envs`, `workers`, `on_bad_env`, `on_env_error` and `info_keys`.
    """
    evaluation = training_options.RUN_EVALUATION | settings["evaluation"]
    fit, defaults = settings["fit"], training_options.FitOptions
    names = "episodes", "deterministic", "max_episode_steps"
    result = {name: evaluation[name] for name in names}
    result |= {name: fit.get(name, getattr(defaults, name)) for name in _FIT_NAMES}
    result["workers"] = training_options.idle_workers(result["workers"])
    return {**result, "env_kwargs": settings["env_kwargs"]}
