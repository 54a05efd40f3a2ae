"""Run directories: one folder with everything about one training."""

import datetime
import importlib.metadata
import json
import math
import os
import pathlib
import platform
import signal
import sys
import time

import keras

from tf_reinforce import agent as agents
from tf_reinforce import callbacks, checkpoints, seeding
from tf_reinforce.collect import fleets

MOST_UPDATES = 300  # where neither a budget nor a target ends the training
EPISODES = 100  # per evaluation
EVERY = 10  # updates from one evaluation to the next, at the most


class Judge(keras.callbacks.Callback):
    """Evaluates now and then, keeps the best agent, and stops at a target.

    An evaluation is due after every tenth update, and whenever the episodes of the
    update reach the target. It adds `val_episode_return` to the logs, NaN where none
    was due; its episodes are fresh ones each time.

    Args:
        env: Whatever `evaluate` takes.
        options: Dict of keywords for `evaluate`.
        seed: Int, the master seed.
        path: Path of the file for the best agent.
        target: Float, or `None` for none.
        stop: Bool. True stops when an evaluation reaches the target.
    """

    def __init__(self, env, options, seed, path, target, *, stop):
        super().__init__()
        self.env = env
        self.options = options
        self.seed = seed
        self.path = path
        self.target = target
        self.stop = stop
        self.best = -math.inf
        self.judged = None  # the update that was evaluated last
        self.evaluations = 0

    def on_epoch_end(self, epoch, logs=None):
        logs["val_episode_return"] = math.nan
        reached = self.target is not None and logs["episode_return"] >= self.target
        if reached or (epoch + 1) % EVERY == 0:
            self.judge(logs)

    def judge(self, logs):
        """Evaluates the agent as it is, and saves it if it is the best so far."""
        self.judged = self.model.updates
        rng = seeding.generator(self.seed, "validation/environment", self.judged)
        figures = self.model.evaluate(
            self.env, EPISODES, seed=rng.integers(2**31), **self.options
        )
        value = logs["val_episode_return"] = figures["episode_return"]
        self.evaluations += 1
        if value > self.best:
            self.best = value
            self.model.save(self.path)
        if self.stop and self.target is not None and value >= self.target:
            self.model.stop_training = True


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


def remove_unbegun(directory):
    """Removes the folder of a run that failed before its training began."""
    if not (directory / "log.csv").exists():
        for path in directory.iterdir():
            path.unlink()
        directory.rmdir()


def target_of(env):
    """The environment's own reward threshold, or `None`."""
    with fleets.open_fleet(env, 1) as fleet:
        return fleet.spec.reward_threshold if fleet.spec is not None else None


def train(env, directory, *, agent, fit, target, seed, verbose=True):
    """Trains, evaluates and keeps an agent in a run directory.

    Args:
        env: Environment id.
        directory: `pathlib.Path` of an empty folder.
        agent: Dict of keywords for `Reinforce.for_env`.
        fit: Dict of keywords for `Reinforce.fit`: the budget and what to collect.
        target: Float or `None`; without a budget the training ends there.
        seed: Int.
        verbose: Bool. True shows a progress line.

    Returns:
        Dict: `evaluation` of the best agent on episodes it was not chosen on,
        `updates`, `env_steps`, `seconds` of training, `evaluations`, `interrupted`.
    """
    limitless = fit.get("epochs") is None and fit.get("steps") is None
    if limitless:
        fit = {**fit, "epochs": MOST_UPDATES}
    config = dict(env=env, seed=seed, target_return=target, agent=agent, fit=fit)
    write_json(directory / "config.json", config)
    write_json(directory / "versions.json", versions())
    learner = agents.Reinforce.for_env(env, seed=seed, **agent)
    options = {
        name: fit[name] for name in ("num_envs", "max_episode_steps") if name in fit
    }
    path = directory / "agent.keras"
    judge = Judge(env, options, seed, path, target, stop=limitless)
    log = keras.callbacks.CSVLogger(os.fspath(directory / "log.csv"))
    listening = [
        judge,
        log,
        callbacks.EpisodeLogger(directory / "episodes.csv"),
    ]
    if verbose:
        listening.append(callbacks.ProgressLine())
    began = time.perf_counter()
    try:
        with _finishing_the_update(learner) as interrupted:
            learner.fit(env, seed=seed, callbacks=listening, verbose=0, **fit)
    finally:
        if log.csv_file is not None:
            log.csv_file.close()  # Keras closes it only where nothing failed
    seconds = time.perf_counter() - began
    if not interrupted and judge.judged != learner.updates:
        judge.judge({})
    if not path.exists():
        learner.save(path)
    result = {
        "updates": learner.updates,
        "env_steps": learner.env_steps,
        "seconds": seconds,
        "evaluations": judge.evaluations,
        "interrupted": bool(interrupted),
        "evaluation": None,
    }
    if not interrupted:
        best = agents.load(path)
        result["evaluation"] = best.evaluate(env, EPISODES, seed=seed, **options)
        write_json(directory / "evaluation.json", result["evaluation"])
    return result


class _finishing_the_update:
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
    """The environment id that a run directory names, and its limit, or `None`s.

    An id of the form `module:Id` is not taken from a file: making it would import the
    module, and the file may be a stranger's.
    """
    config = pathlib.Path(run) / "config.json"
    if not config.is_file():
        return None, None
    config = json.loads(config.read_text())
    env, limit = config.get("env"), config.get("fit", {}).get("max_episode_steps")
    return env if isinstance(env, str) and ":" not in env else None, limit


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
    with checkpoints.replacing(path) as aside:
        pathlib.Path(aside).write_text(json.dumps(content, indent=2) + "\n")
