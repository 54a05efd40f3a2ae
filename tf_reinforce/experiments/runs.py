"""Trains in a run directory, which holds everything about one training."""

import contextlib
import csv
import datetime
import importlib.metadata
import json
import os
import pathlib
import platform
import signal
import sys
import time

import gymnasium as gym
import keras

from tf_reinforce import agent as agents
from tf_reinforce import callbacks
from tf_reinforce import files
from tf_reinforce.callbacks import evaluation
from tf_reinforce.collect import batched_envs
from tf_reinforce.collect import make_envs
from tf_reinforce.data import action_masks
from tf_reinforce.data import seeding
from tf_reinforce.experiments import multi_seed
from tf_reinforce.presets import toml_files

MAX_UPDATES = 300  # where neither a budget nor a target ends the training
EPISODES = 100  # per evaluation
EVERY = 10  # updates from one evaluation to the next, at the most


def new_directory(path, env, seed):
    """The folder of a new run, made; never one that already holds something.

    Args:
        path: Path, or `None` for `runs/ENV/DATE_seedN`.
        env: Environment id.
        seed: Int.

    Raises:
        FileExistsError: when the folder exists and is not empty.
    """
    if path is None:
        date = datetime.datetime.now().strftime("%Y-%m-%d_%H%M%S")
        name = env.replace(":", "_").replace("/", "_")
        path = os.path.join("runs", name, f"{date}_seed{seed}")
    path = pathlib.Path(path)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(
            f"{path} already holds something, and nothing is overwritten. Choose "
            "another --run-dir, or remove it."
        )
    path.mkdir(parents=True, exist_ok=True)
    return path


def remove_if_unstarted(directory):
    """Removes the folder of a run that failed before its training began."""
    if not (directory / "log.csv").exists():
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


def reward_threshold(env, env_kwargs=None):
    """The environment's own reward threshold, or `None`."""
    with make_envs.open_envs(env, 1, env_kwargs=env_kwargs) as envs:
        return envs.spec.reward_threshold if envs.spec is not None else None


def train(learner, env, directory, settings, *, target, seed, twin=None, verbose=True):
    """Trains, evaluates and keeps an agent in a run directory.

    Args:
        learner: `Reinforce`, compiled.
        env: Environment id.
        directory: `pathlib.Path` of an empty folder.
        settings: Dict, kept in `config.json`. Of its tables, `fit` are keywords for
            `Reinforce.fit`, the budget and what to collect; for `evaluation` and
            `env_kwargs` see `evaluation_options`.
        target: Float or `None`; without a budget the training ends there.
        seed: Int.
        twin: `envs.TensorEnv` to train on instead of the environment itself, which
            the evaluations are made on all the same; or `None`.
        verbose: Bool. True shows a progress line.

    Returns:
        Dict: `evaluation` of the best agent on episodes it was not chosen on,
        `updates`, `env_steps`, `seconds` of training, `evaluations`, `interrupted`.
    """
    fit = settings["fit"]
    limitless = fit.get("epochs") is None and fit.get("steps") is None
    if limitless:
        fit = {**fit, "epochs": MAX_UPDATES}
    engine = "host" if twin is None else "compiled"
    config = {"env": env, "engine": engine, "seed": seed, "target_return": target}
    config |= {**settings, "fit": fit}
    write_json(directory / "config.json", config)
    write_json(directory / "versions.json", versions())
    options, path = evaluation_options(settings), directory / "agent.keras"
    judge = evaluation.EvaluationCallback(
        env,
        options,
        seed,
        path,
        every=settings["evaluation"].get("every", EVERY),
        target=target if limitless else None,
    )
    fit = {**fit, "env_kwargs": settings["env_kwargs"], "seed": seed}
    played = env if twin is None else twin
    seconds, interrupted = _learn(learner, played, directory, [judge], verbose, **fit)
    if not interrupted and judge.judged != learner.updates:
        judge.judge({})
    if not path.exists():
        learner.save(path)
    result = {
        "updates": learner.updates,
        "env_steps": learner.env_steps,
        "seconds": seconds,
        "evaluations": judge.evaluations,
        "interrupted": interrupted,
        "evaluation": None,
    }
    if not interrupted:
        result["evaluation"] = agents.load(path).evaluate(env, seed=seed, **options)
        write_json(directory / "evaluation.json", result["evaluation"])
    return result


def train_seeds(make, env, directory, settings, twin, seeds):
    """Trains many seeds at once, evaluates each, and keeps the best in a run directory.

    Args:
        make: Function from a seed to an agent, compiled.
        env: Environment id, which the evaluations are made on.
        directory: `pathlib.Path` of an empty folder.
        settings: As for `train`; of `fit`, `epochs` and `episodes_per_epoch`.
        twin: `envs.TensorEnv` to train on.
        seeds: Ints.

    Returns:
        Dict: `returns` by seed, `env_steps` of all seeds, `seconds` of training.
    """
    seeds, fit = list(seeds), settings["fit"]
    config = {"env": env, "engine": "compiled", "seeds": seeds, **settings}
    write_json(directory / "config.json", config)
    write_json(directory / "versions.json", versions())
    names = ("epochs", "episodes_per_epoch", "max_episode_steps")
    chosen = {name: fit[name] for name in names if fit.get(name) is not None}
    began = time.perf_counter()
    trained = multi_seed.train_seeds(make, twin, seeds, **chosen)
    seconds = time.perf_counter() - began
    _write_curves(directory / "log.csv", trained)
    options, figures = evaluation_options(settings), {}
    for seed in seeds:
        agent = trained.agent(seed)
        figures[seed] = agent.evaluate(env, seed=seed, **options)
        best = max(figures, key=lambda known: figures[known]["episode_return"])
        if best == seed:
            agent.save(directory / "agent.keras")
    write_json(directory / "evaluation.json", figures)
    return {
        "returns": {seed: one["episode_return"] for seed, one in figures.items()},
        "env_steps": trained.env_steps,
        "seconds": seconds,
    }


def _write_curves(path, trained):
    """One row for each update of each seed; nothing where it would not be finite."""
    names = list(trained.history)
    with files.atomic_write(path) as aside, open(aside, "w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["epoch", "seed", *names])
        for epoch, figures in enumerate(zip(*trained.history.values(), strict=True)):
            for seed, *of_seed in zip(trained.seeds, *figures, strict=True):
                rows.writerow([epoch, seed, *of_seed])


def _learn(learner, env, directory, listening, verbose, **fit):
    """Fits, with the logs of a run. How long it took, and whether Ctrl-C came."""
    log = keras.callbacks.CSVLogger(os.fspath(directory / "log.csv"))
    listening = [
        *listening,
        log,
        callbacks.EpisodeLogger(directory / "episodes.csv"),
    ]
    if verbose:
        listening.append(callbacks.ProgressLine())
    began = time.perf_counter()
    try:
        with _GracefulInterrupt(learner) as interrupted:

            def stop_now(logs):  # Ctrl-C may come before the training begins
                learner.stop_training |= bool(interrupted)

            listening.append(keras.callbacks.LambdaCallback(on_train_begin=stop_now))
            learner.fit(env, callbacks=listening, verbose=0, **fit)
    finally:
        if log.csv_file is not None:
            log.csv_file.close()  # Keras closes it only where nothing failed
    return time.perf_counter() - began, bool(interrupted)


def evaluation_options(settings):
    """Keywords for `Reinforce.evaluate`, as the settings of a run say.

    Args:
        settings: Dict. `env_kwargs` for the environment's constructor; in the table
            `evaluation`, where they are not the usual ones, `episodes`,
            `deterministic` and `max_episode_steps`; in `fit`, `num_envs` and `workers`.
    """
    chosen = settings["evaluation"]
    return {
        "episodes": chosen.get("episodes", EPISODES),
        "deterministic": chosen.get("deterministic", True),
        "max_episode_steps": chosen.get("max_episode_steps"),
        "num_envs": settings["fit"].get("num_envs", 8),
        "workers": settings["fit"].get("workers", 1),
        "env_kwargs": settings["env_kwargs"],
    }


def random_return(env, settings, seed):
    """The mean return of a random policy on the episodes of a run's evaluation.

    Actions are drawn by `gymnasium.Space.sample`, from the legal ones where the
    settings of the agent name an `action_mask`.

    Args:
        env: Environment id.
        settings: As for `train`.
        seed: Int; an episode begins as the evaluation's of that seed does.
    """
    options = evaluation_options(settings)
    world = gym.make(
        env,
        max_episode_steps=options["max_episode_steps"],
        disable_env_checker=True,
        **options["env_kwargs"],
    )
    where = settings["agent"].get("action_mask")
    find = action_masks.MaskPath(where).find if where else lambda *answer: None
    limit = world.spec.max_episode_steps or batched_envs.DEFAULT_MAX_EPISODE_STEPS
    rng = seeding.generator(seed, "evaluation/action")
    world.action_space.seed(int(rng.integers(2**31)))
    starts = seeding.EpisodeSeeds(seed, "evaluation", update=0)
    total = 0.0
    with contextlib.closing(world):
        for episode in range(options["episodes"]):
            observation, info = world.reset(seed=starts.environment(episode))
            for _ in range(limit):
                mask = find(observation, info)
                action = world.action_space.sample(mask)
                observation, reward, *ended, info = world.step(action)
                total += float(reward)
                if any(ended):
                    break
    return total / options["episodes"]


class _GracefulInterrupt:
    """The first Ctrl-C ends training after the update, the second at once."""

    def __init__(self, learner):
        self._learner = learner
        self._came = []

    def __enter__(self):
        try:
            self._before = signal.signal(signal.SIGINT, self._stop)
        except ValueError:  # not the main thread: leave signals alone
            self._before = None
        return self._came

    def _stop(self, number, frame):
        if self._came:
            raise KeyboardInterrupt
        self._came.append(number)
        self._learner.stop_training = True
        print("\nfinishing the update, then saving …", file=sys.stderr)

    def __exit__(self, *error):
        if self._before is not None:
            signal.signal(signal.SIGINT, self._before)


def agent_file(run):
    """The agent file of a run: the file itself, or `agent.keras` in a run directory."""
    path = pathlib.Path(run)
    return path / "agent.keras" if path.is_dir() else path


def environment_of(run):
    """The environment id that a run directory names, its keywords and its limit.

    The file may be a stranger's. An id of the form `module:Id` is not taken from it:
    making it would import the module. Of the keywords for the environment's constructor
    only numbers and booleans are (`toml_files.SAFE_TYPES`).

    Returns:
        The id or `None`, and a dict of keywords for `Reinforce.evaluate`.

    Raises:
        ValueError: naming a keyword that is not taken.
    """
    path = pathlib.Path(run) / "config.json"
    config = json.loads(path.read_text()) if path.is_file() else {}
    env, env_kwargs = config.get("env"), config.get("env_kwargs", {})
    for name, value in env_kwargs.items():
        if not isinstance(value, toml_files.SAFE_TYPES):
            raise ValueError(
                f"{path} makes its environment with {name}={value!r}, and from a file "
                "only numbers and booleans are taken. Evaluate it in Python: "
                f"tfr.load({os.fspath(agent_file(run))!r}).evaluate(env, env_kwargs=…)."
            )
    options = {
        "env_kwargs": env_kwargs,
        "max_episode_steps": config.get("evaluation", {}).get("max_episode_steps"),
    }
    return env if isinstance(env, str) and ":" not in env else None, options


def versions():
    """What the run was made with."""
    packages = (
        "tf-reinforce",
        "tensorflow",
        "keras",
        "tensorflow-probability",
        "gymnasium",
        "numpy",
        "ai-edge-litert",
        "mujoco",
    )
    found = {"python": platform.python_version(), "platform": platform.platform()}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            found[package] = None
    return found


def write_json(path, content):
    """Writes a JSON file whole or not at all."""
    with files.atomic_write(path) as aside:
        pathlib.Path(aside).write_text(json.dumps(content, indent=2) + "\n")
