"""The run directory, the folder with all files of one training."""

import contextlib
import dataclasses
import json
import logging
import numbers
import os
import shlex
import sys
import time

import gymnasium as gym
import keras

from tf_reinforce import callbacks as package_callbacks
from tf_reinforce import envs
from tf_reinforce.callbacks import diagnostics
from tf_reinforce.callbacks import run_files
from tf_reinforce.engine import agent_state
from tf_reinforce.engine import checkpoints
from tf_reinforce.engine import interruption
from tf_reinforce.engine import recorder
from tf_reinforce.envs import checks
from tf_reinforce.settings import config as settings
from tf_reinforce.settings import run_config
from tf_reinforce.settings import toml_files
from tf_reinforce.support import files
from tf_reinforce.support import optimizers
from tf_reinforce.support import validation
from tf_reinforce.support import version

LOG, EPISODES = "log.csv", "episodes.csv"
TENSORBOARD = "tensorboard"  # the folder of event files
_BEST, _LAST = "agent", "last"
_SUFFIXES = ".keras", ".weights.h5"  # of the whole model, and of its weights
LAST = f"{_LAST}.keras"
# Attributes of agents, language models and sampling models: the network that is trained.
_NETWORKS = "causal_lm", "policy", "model"
_MONITOR = "val_episode_return"  # the log key that says which agent is the best
# The log keys that a validation has too, but for `info_keys`.
_STATISTICS = ("return", "return_min", "return_max", "return_std", "length")
_VALIDATED = (*(f"episode_{x}" for x in _STATISTICS), "episodes", "env_steps", "success")
_VALIDATED += ("dropped_episodes", "env_restarts", "worker_restarts")

log = logging.getLogger("tf_reinforce")


class RunDirectory:
    """Writes the files of one training beside its checkpoints.

    Args:
        folder: `checkpoints.Checkpoints`, open.
        model: The compiled Keras model that is trained.
        config: Dict, the content of `config.json`.
        monitors, columns: As in `run_files.BestModel` and `run_files.RunLog`.
        others: List of the Keras callbacks of the user. A log that one of them writes is
            left to it.
        verbose: As in `fit`.

    Attributes:
        callbacks: List of the Keras callbacks that write files.
    """

    def __init__(self, folder, model, config, monitors, columns, others, verbose):
        self.folder, self.path, self.model = folder, folder.path, model
        self.config = {**config, **folder.settings}
        self.verbose = verbose and folder.is_writer
        save = self._save_best if folder.is_writer else None
        self.best = run_files.BestModel(monitors, save)
        names = (getattr(x, "filename", None) for x in others)
        paths = (x for x in names if isinstance(x, (str, os.PathLike)))
        taken = {*map(os.path.abspath, paths)}
        logs = [run_files.RunLog(self.path / LOG, columns)]
        if "env" in config:
            logs.append(package_callbacks.EpisodeLogger(self.path / EPISODES))
        logs = [x for x in logs if os.path.abspath(x.filename) not in taken]
        self.callbacks = [self.best, *logs]
        self._logs = [os.path.basename(x.filename) for x in logs]
        self.suffix = _SUFFIXES[0]
        self._start, self._since = 0.0, ""

    def begin(self, progress, is_new):
        """Writes the first files, and tells where the training continues.

        Args:
            progress: `recorder.Progress` from which it continues.
            is_new: Bool, whether there is no checkpoint.
        """
        self._start = time.perf_counter()
        self._choose_suffix()
        if self.folder.is_writer:
            self._expect_own_files(is_new)
            command = self.config.pop("command", None) or _command()
            parts = (getattr(self.model, x, None) for x in _NETWORKS)
            network = next(x for x in parts if isinstance(x, keras.Model))
            self.config["model"] = describe(network)
            run_config.write(self.path, self.config, command)
        if not is_new:
            self._since = " since it continued"
            self._print(self._continues(progress))
        elif "env" in self.config:
            self._print(self._facts())

    def _facts(self):
        """Describes environment and agent in one line."""
        agent, env, name = self.model, self.config["env"], "max_episode_steps"
        limit = self.config["fit"].get(name) or _spec_value(env, name)
        limit = f", at most {limit:,} steps" if limit else ""
        observations, actions = map(_shape, (agent.observation_space, agent.action_space))
        return (
            f"{env}: {observations} observations, {actions} actions, head "
            f"{type(agent.head).__name__}{limit}"
        )

    def _choose_suffix(self):
        """Stores weights only, if Keras cannot serialize the model."""
        try:
            json.dumps(self.model.get_config())
        except (NotImplementedError, TypeError, ValueError) as error:
            self.suffix = _SUFFIXES[1]
            self.config.setdefault("only_in_script", []).append("model")
            text = str(error).strip().split("\n")[0]
            log.warning(
                "The run stores the weights of the model (%s%s), and not the model, "
                "because Keras cannot save it: %s",
                *(_BEST, self.suffix, text),
            )

    def _expect_own_files(self, is_new):
        """Raises `FileExistsError` if `fit` would replace files of the user.

        These are files that no run has written, and those of a finished run without a
        checkpoint. A run that was killed before its first checkpoint begins anew, without
        its files.
        """
        names = {*run_config.FILES, *self._logs, run_config.EVALUATION}
        names |= {f"{name}{x}" for name in (_BEST, _LAST) for x in _SUFFIXES}
        content = run_config.read_json(self.path / run_config.FILE_NAME)
        found = sorted(name for name in names if (self.path / name).exists())
        if found and version.CONFIG_KEY not in content:
            raise FileExistsError(
                f"{self.path} contains {', '.join(found)}, and no run that wrote "
                f"{'it' if len(found) == 1 else 'them'}. Choose another folder for "
                "`resume`, which would replace such files."
            )
        if is_new and self._finished_updates() is not None:
            raise FileExistsError(
                f"{self.path} contains a finished run without a checkpoint. Choose "
                "another folder for `resume`, or remove this one."
            )
        for name in found if is_new else ():
            (self.path / name).unlink()

    def _finished_updates(self):
        """Returns the number of updates of the evaluated agent, or `None`."""
        return self._metrics().get("updates")

    def _metrics(self):
        """Returns the metrics of the evaluated agent, `{}` if they are incomplete."""
        keys = "episode_return", "episode_return_std", "episodes"
        more = self.config["fit"].get("info_keys", ())
        return run_config.read_evaluation(self.path, (*keys, *more))

    def _continues(self, progress):
        fit = self.config["fit"]
        epochs, steps, done = fit.get("epochs"), fit.get("steps"), progress.number
        steps = steps and steps + progress.first_step
        env_steps = getattr(self.model, "env_steps", 0)
        unit = "epoch" if progress.updates else "update"
        finished = progress.epoch >= epochs if epochs else env_steps >= steps
        if finished or progress.stopped:
            total = f" of {epochs}" if epochs else ""
            return f"finished after {unit} {progress.epoch}{total}"
        if steps:
            return f"continuing at update {done + 1} ({env_steps:,} of {steps:,} steps)"
        return f"continuing at {unit} {progress.epoch + 1} of {epochs}"

    def save_last(self):
        self._save(_LAST)

    def _save_best(self, logs=None):
        """Saves the model; of a validated Keras model, also the metrics."""
        self._save(_BEST)
        # Callbacks may have added NumPy's numbers.
        scores = (x for x in (logs or {}).items() if isinstance(x[1], numbers.Real))
        metrics = {x[4:]: float(y) for x, y in scores if x.startswith("val_")}
        if metrics and "env" not in self.config:
            run_config.write_json(self.path / run_config.EVALUATION, metrics)

    def _save(self, name):
        is_whole = self.suffix == _SUFFIXES[0]
        save = self.model.save if is_whole else self.model.save_weights
        save(self._file(name))

    def interrupted(self, progress):
        """Returns the message for a training that a signal has ended.

        Args:
            progress: `recorder.Progress` of the last checkpoint, or `None`.
        """
        epochs, after = self.config["fit"].get("epochs"), ""
        if progress is not None:
            after = f" after update {progress.number}"
            after += f" of {epochs}" if epochs and not progress.updates else ""
        return (
            f"interrupted{after}. To continue, start the same program again: a "
            f"checkpoint is in {self._shown_path}"
        )

    def finish(self, validator):
        """Evaluates the best agent on new episodes, and prints its returns.

        Args:
            validator: `validation.Validation`.
        """
        seconds = time.perf_counter() - self._start
        updates = self.model.updates
        if not self.folder.is_writer:
            return
        metrics, trained = self._metrics(), ""
        if metrics.get("updates") != updates:
            if self._averages:
                self.save_last()  # the checkpoint needs the weights before averaging
            validator.compare()
            metrics = {**self._evaluate(validator), "updates": updates}
            run_config.write_json(self.path / run_config.EVALUATION, metrics)
            target = self.config["target_return"]
            if self.verbose and target is not None and metrics["episode_return"] < target:
                trained = self._advice(validator)
            trained += (
                f"trained {updates} update{'s' * (updates != 1)}, "
                f"{self.model.env_steps:,} steps, {seconds:.1f} s{self._since}\n"
            )
        self._print(f"{self._result(metrics)}\n{trained}saved in {self._shown_path}")

    def judge_last(self, epoch, validator, callbacks):
        """Judges the agent as `fit` leaves it, unless a validation has just done so.

        The last checkpoint, which is not written yet, will contain the result.

        Args:
            epoch: Int, the number of epochs.
            validator: `validation.Validation`.
            callbacks: Keras' `CallbackList`.
        """
        is_finished = self._finished_updates() == self.model.updates
        if is_finished or not self.folder.is_writer:
            return
        is_judged = self.best.judged_update == epoch and not self._averages
        validates = bool(validator.table["every"])
        if validates and is_judged:
            return
        if validates:  # without the lock, because a callback may wait for a thread
            callbacks.on_test_begin()
        with self._restored():
            optimizers.finalize(self.model.optimizer)
            if not validates:
                self._save_best()
                return
            metrics = validator.metrics()
            self.best.judge(metrics["episode_return"], epoch)
        callbacks.on_test_end(metrics)

    @property
    def _averages(self):
        """Returns whether `fit` ends with averaged weights."""
        return optimizers.step_count(self.model.optimizer)[0].use_ema

    def _evaluate(self, validator):
        """Plays new episodes with the best weights, whose file anyone may have written.

        It must therefore not be larger than expected for the agent.
        """
        size = 2**27 + 2 * sum(x.nbytes for x in self.model.get_weights())
        files.expect_regular_file(self._file(_BEST), size)
        text = f"interrupted; the trained agent is in {self._shown_path}"
        with interruption.explained(text), self._restored():
            self.model.load_weights(self._file(_BEST))
            self._print("evaluating the best agent on new episodes …")
            return validator.play("evaluation", 0)

    def _print(self, text):
        if self.verbose:
            print(validation.printable(text), flush=True)

    @property
    def _shown_path(self):
        """Returns the path, relative to the current folder if it is inside."""
        relative = os.path.relpath(self.path)
        return os.fspath(self.path) if relative.startswith(os.pardir) else relative

    def _file(self, name):
        return self.path / f"{name}{self.suffix}"

    @contextlib.contextmanager
    def _restored(self):
        """Assigns the present values to all variables after the `with` block.

        Other threads do not see the values in between: they wait as for an update.
        """
        with self.model._weights_lock:
            variables = agent_state.variables(self.model)
            values = [x.numpy() for x in variables]
            try:
                yield
            finally:
                optimizers.assign(variables, values)

    def _advice(self, validator):
        """Returns lines that say why the target was missed, and what may help."""
        lines, name = [], toml_files.own_name(self.config["env"])
        text = (
            "nothing known keeps the policy from learning. Train for longer, or search "
            "settings with `tf-reinforce tune`."
        )
        with contextlib.suppress(Exception):  # the training itself has succeeded
            for finding in diagnostics.examine(self.model, validator.collect())[:1]:
                text = finding.advice
            lines.append(f"diagnosis: {text}")
        if self.config["preset"] is None and name in toml_files.names():
            result = toml_files.read(name)["result"]
            option = f'`preset="{name}"` of `for_env`'
            option = f"`--preset {name}`" if "command" in self.folder.settings else option
            lines.append(f"the preset {name} has reached {result}: use {option}")
        return "".join(f"{line}\n" for line in lines)

    def _result(self, metrics):
        mean, target = metrics["episode_return"], self.config["target_return"]
        reached = ""
        if target is not None:
            reached = f", target {target:g} {'reached' if mean >= target else 'missed'}"
        keys = self.config["fit"].get("info_keys", ())
        return (
            f"\n{self.config['env']}: mean return {mean:.4g} ± "
            f"{metrics['episode_return_std']:.4g} over {metrics['episodes']:.0f} new "
            f"episodes{reached}{''.join(f', {x} {metrics[x]:.4g}' for x in keys)}"
        )


def describe(model):
    """Returns the name and the size of a Keras model."""
    return f"{model.name}, {model.count_params():,} weights"


@contextlib.contextmanager
def of_agent(agent, given, options, table, others):
    """Yields the open `RunDirectory` of `Reinforce.fit`.

    Args:
        agent: Compiled `Reinforce`.
        given: Dict of the arguments of `fit`.
        options: `config.FitOptions`.
        table: Dict, the table `evaluation` of the run's settings.
        others: As in `RunDirectory`.
    """
    strategy = agent._distribute_strategy
    with checkpoints.open_checkpoints(given["resume"], strategy) as folder:
        config = _config(agent, folder, given, options, table, others)
        columns = ["success"]  # and others that the first row of the log may lack
        if table["every"]:
            columns += [f"val_{name}" for name in (*_VALIDATED, *options.info_keys)]
        parts = (_MONITOR,), columns, others, given["verbose"]
        with _explained(folder):
            yield RunDirectory(folder, agent, config, *parts)


@contextlib.contextmanager
def of_model(model, resume, arguments, validates, options):
    """Yields the open `RunDirectory` of another model's `fit`.

    Args:
        model: Compiled `resumed_fit.TrainingModel`.
        resume: Argument of `fit`.
        arguments: Dict of the arguments of `fit` that must not change.
        validates: Bool, whether epochs are validated.
        options: Dict of the arguments `callbacks`, `verbose` and `epochs` of `fit`.
    """
    names = "val_reward", "val_loss", "reward", "policy_value", "loss"
    monitors = names[:2] if validates else names[2:]
    others, verbose = options["callbacks"], options["verbose"]
    counts = {x: y for x, y in arguments.items() if isinstance(y, int)}
    config = {
        "trainer": type(model).__name__,
        "fit": {**counts, "epochs": int(options["epochs"])},
    }
    with checkpoints.open_checkpoints(resume) as folder, _explained(folder):
        columns = None if validates else ()
        yield RunDirectory(folder, model, config, monitors, columns, others, verbose)


def _explained(folder):
    saved = "Its last checkpoint is complete, and the training can continue from it."
    return files.explain_failed_write(folder.path, saved, files.DISK_ERRORS)


def _config(agent, folder, given, options, table, others):
    """Returns the content of `config.json`, the settings of an agent's training.

    Its entry `only_in_script` names the arguments of `fit` that no file can contain.
    """
    env, kwargs = given["env"], given["env_kwargs"]
    if kwargs is None:
        kwargs = agent._fit_defaults.get("env_kwargs") or {}
    twin = _twin_id(env, given["validation_env"])
    shown = env if twin is None else twin
    defaults = {**vars(settings.FitOptions(epochs=1)), "epochs": None}
    fit = {name: getattr(options, name) for name in settings.FIT_OPTIONS}
    stored = {name: x for name, x in kwargs.items() if _is_json(x)}
    known, unknown = _callback_table(others, folder.path)
    missing = {
        "env": not isinstance(shown, str),  # an instance may have any wrapper
        "env_kwargs": stored != kwargs,
        "validation_env": given["validation_env"] not in (None, shown),
        "validation_freq": not isinstance(table["every"], int),
        "callbacks": unknown and "make_callbacks" not in folder.settings,
        "reset_options": given["reset_options"] is not None,
        "env_attrs": given["env_attrs"] is not None,
        "initial_epoch": given["initial_epoch"] > 0,
    }
    return {
        "env": recorder.env_name(shown),
        "engine": "host" if twin is None else "compiled",
        "seed": given["seed"],
        "target_return": _target(agent, shown, known),
        "preset": None,
        "env_kwargs": stored,
        "agent": {},
        "fit": {name: x for name, x in fit.items() if x != defaults[name]},
        "evaluation": table,
        "checkpoint": folder.options(),
        "callbacks": known,
        "only_in_script": [name for name, is_missing in missing.items() if is_missing],
        **agent._settings,
    }


def _twin_id(env, validation_env):
    """Returns the id of the environment whose twin trains, or `None`."""
    twin = envs.TWINS.get(validation_env) if isinstance(validation_env, str) else None
    if twin is None or not isinstance(env, twin):
        return None
    is_changed = checks.constants(env) != checks.constants(envs.make(validation_env))
    return None if is_changed else validation_env


def agent_settings(options):
    """Returns the arguments of `Reinforce.for_env` as JSON values, `{}` if some are none.

    Args:
        options: Dict of the arguments and their defaults.
    """
    fields = dataclasses.fields(settings.AgentSettings)
    result = {field.name: field.default for field in fields} | options
    if result["baseline"] == "value":
        result["baseline"] = dict(settings.VALUE_NETWORK)
    return json.loads(json.dumps(result)) if _is_json(result) else {}


def _is_json(value):
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        return False
    return True


def _callback_table(others, path):
    """Returns the table `callbacks` of a run, and whether there are other callbacks."""
    table, unknown = {}, False
    for callback in others:
        kind = type(callback)
        if kind is package_callbacks.Diagnostics and callback.every == 10:
            table["diagnose"] = True
        elif kind is package_callbacks.StopAtReturn and callback.monitor == _MONITOR:
            table["stop_at_return"] = callback.target
        elif kind is package_callbacks.TensorBoardLogger and (
            os.path.abspath(callback.log_dir) == os.fspath(path / TENSORBOARD)
        ):
            table["tensorboard"] = "histograms" if callback.histograms else "scalars"
        elif kind is not package_callbacks.ProgressLine:
            unknown = True
    return table, unknown


def _target(agent, env, callbacks):
    """Returns the target return: that of the preset, of a callback or of `env`."""
    target = (agent._fit_defaults.get("evaluation") or {}).get("target")
    target = callbacks.get("stop_at_return") if target is None else target
    if target is not None:
        return target
    threshold = _spec_value(env, "reward_threshold")
    return None if threshold is None else float(threshold)


def _spec_value(env, name):
    """Returns what the registration of an environment says, or `None`."""
    spec = getattr(env, "spec", env)
    with contextlib.suppress(gym.error.Error, ImportError):
        spec = gym.spec(spec) if isinstance(spec, str) else spec
    return getattr(spec, name, None)


def _shape(space):
    """Returns the kind and size of a space in a few characters."""
    name = type(space).__name__
    if isinstance(space, gym.spaces.Discrete):
        return f"{name}({space.n})"
    if space.shape:
        return f"{name}{space.shape}"
    return f"{name}({len(space)})" if hasattr(space, "__len__") else name


def _command():
    """Returns the command that started this process, or `None` in a notebook."""
    is_interactive = hasattr(sys, "ps1") or "ipykernel" in sys.modules
    return None if is_interactive else shlex.join(sys.orig_argv)
