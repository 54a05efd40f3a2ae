"""Recording a training in checkpoints, and restoring it."""

import contextlib
import dataclasses
import functools
import json
import logging

import gymnasium as gym
import numpy as np

from tf_reinforce.data import spaces
from tf_reinforce.engine import agent_state
from tf_reinforce.engine import callback_states
from tf_reinforce.settings import config
from tf_reinforce.support import optimizers
from tf_reinforce.support import validation
from tf_reinforce.support import version

log = logging.getLogger("tf_reinforce")

# Parts of a description of a training that may differ when the training continues.
_MAY_DIFFER = ("versions", "flags")
_MAX_TEXT = 200  # characters of each part that differs, in a message
# The options that the checkpoint of an earlier version may lack, by parts.
_DEFAULTS = {
    "agent": {x.name: x.default for x in dataclasses.fields(config.AgentOptions)},
    "settings": {x.name: x.default for x in dataclasses.fields(config.FitOptions)},
}

_RATES = "learning rates"


@dataclasses.dataclass
class Progress:
    """How far a training has come.

    Attributes:
        epoch: Int, the number of the next epoch, or of one that has begun.
        first_step: Int, an agent's environment steps before the training.
        first_optimizer_step: Int, the optimizer's steps before the training.
        stopped: Bool, whether a callback has ended the training.
        step: Int, the number of steps in an epoch that has begun.
        updates: Int, the updates so far; zero for an agent, whose epochs are its updates.
        data_seed: Int, which determines the order of the data.
    """

    epoch: int
    first_step: int = 0
    first_optimizer_step: int = 0
    stopped: bool = False
    step: int = 0
    updates: int = 0
    data_seed: int = 0

    @property
    def number(self):
        """Returns the number of updates, which names a checkpoint."""
        return self.updates or self.epoch

    @property
    def position(self):
        """Returns the numbers of the epoch and of the next step."""
        return self.epoch, self.step


class Recorder:
    """Writes the state of a training to checkpoints, and restores the newest one.

    Args:
        run: `run_directory.RunDirectory` of a model, which the callbacks receive.
        callbacks: List of all Keras callbacks of the training, before `on_train_begin`.
        describe: Function that returns a dict of JSON values which describe the training.
            Checkpoints with another description are refused.
        variables: Function that returns a list of all variables that the training reads
            or changes. It and `describe` are called once the model is built.

    Attributes:
        stop: Context manager that receives the signals which end the training.
    """

    def __init__(self, run, callbacks, describe, variables):
        self.run = run
        self.checkpoints, self.model = run.folder, run.model
        self.describe = describe
        self.variables = variables
        self._checkpoint = None  # the newest one
        self._header = None
        self._written = None  # the `Progress` of the newest checkpoint
        self._states = callback_states.CallbackStates(callbacks)
        self.stop = self.checkpoints.graceful_stop()

    @property
    def signal(self):
        """Returns the number of the signal that ends the training, or zero."""
        return int(self.stop.received[0]) if self.stop.received else 0

    def interrupt(self, number):
        """Stops the training as a signal would, unless `number` is zero."""
        if number and not self.signal:
            self.stop.received.append(number)

    def raise_if_interrupted(self):
        """Raises `KeyboardInterrupt` after SIGINT, or `Terminated` after SIGTERM."""
        self.stop.raise_if_received(self.run.interrupted(self._written))

    def read(self, progress):
        """Returns the `Progress` from which the training continues; changes nothing.

        Args:
            progress: `Progress` at the beginning, for a training without a checkpoint.

        Raises:
            ValueError: If all checkpoints are damaged.
        """
        self._checkpoint = self.checkpoints.newest()
        if self._checkpoint is None:
            return progress
        self._written = _read_progress(self._checkpoint)
        return self._written

    def restore(self, progress):
        """Restores variables and logs from the newest checkpoint, if there is one.

        The checkpoint is checked as a whole before anything changes.

        Args:
            progress: As in `read`.

        Returns:
            As `read`.

        Raises:
            ValueError: If all checkpoints are damaged or belong to another training, or a
                log file has lost rows.
        """
        result = dataclasses.replace(self._written or self.read(progress))
        header, rates = _to_plain(self.describe()), _learning_rates(self.model)
        self._header = {**header, _RATES: rates}
        if self._checkpoint is None:
            self._states.check_logs([])
            self.run.begin(result, is_new=True)
            return result
        path, stored, state = self._checkpoint
        check_same_training(path, stored, header)
        # A model that has been trained since may have other rates than at the start.
        self._header[_RATES] = stored.get(_RATES, rates)
        steps = optimizers.step_count(self.model.optimizer)[1]
        if steps == result.first_optimizer_step:
            _compare(path, _RATES, self._header[_RATES], rates)
        received = [(tuple(x.shape), x.dtype.name) for x in state["variables"]]
        if received != [(tuple(x.shape), x.dtype) for x in self.variables()]:
            raise _invalid(path)
        self._states.check_logs(state["callbacks"])
        self.assign_variables()
        self.run.begin(result, is_new=False)
        self._states.restore_logs(state["callbacks"])
        return result

    def assign_variables(self):
        """Assigns the checkpoint's values to all variables."""
        optimizers.assign(self.variables(), self._checkpoint.state["variables"])

    def restore_callbacks(self):
        """Restores the states of callbacks, after `on_train_begin` has reset them.

        If training continues within an epoch, `on_epoch_begin` is called first. Callbacks
        use this call to make what they need in an epoch, and they may change variables in
        it.
        """
        self._states.begin()
        if self._checkpoint is None:
            return
        self._states.set(self._checkpoint.state["callbacks"])
        self.assign_variables()
        self.model.stop_training = self._written.stopped
        if self._written.stopped:
            log.warning(
                "A callback has ended this training after %s epochs, and it makes no "
                "further update. To train further, use another folder.",
                self._written.epoch,
            )

    @contextlib.contextmanager
    def checkpoint_if_interrupted(self, progress):
        """Writes a checkpoint if a signal has ended the collection of episodes.

        When you press Ctrl-C, a terminal also sends SIGINT to the processes of the
        environments, which then fail.

        Args:
            progress: `Progress` before the update for which episodes are collected.
        """
        updates = int(self.model.updates)
        try:
            yield
        except BaseException:
            if self.signal and int(self.model.updates) == updates:
                self.write(progress)
                self.raise_if_interrupted()
            raise

    def write_if_due(self, progress):
        """Writes a checkpoint if the last one is old enough."""
        if self.checkpoints.is_due(progress.number):
            self.write(progress)

    def finish(self, progress, validator, callbacks):
        """Judges the last agent, and writes the last checkpoint, also after an error."""
        try:
            if not self.signal:
                self.run.judge_last(progress.epoch, validator, callbacks)
        finally:
            self.write(progress)

    def write(self, progress):
        """Writes a checkpoint unless the newest one has the same progress."""
        if not self.checkpoints.is_writer or progress == self._written:
            return
        state = {
            "progress": dataclasses.asdict(progress),
            "variables": [np.asarray(x.numpy()) for x in self.variables()],
            "callbacks": self._states.get(),
        }
        # If the process is killed between the two files, the older checkpoint is used,
        # and both files are written again.
        self.run.save_last()
        self.checkpoints.write(progress.number, self._header, state)
        self._written = dataclasses.replace(progress)


def of_agent(run, agent, callbacks, settings, options):
    """Returns the `Recorder` of an agent's training.

    Args:
        run, callbacks: As in `Recorder`.
        agent: Built and compiled `Reinforce`.
        settings: Dict that describes the training, beside agent and options.
        options: `config.FitOptions`.
    """
    settings = {
        **settings,
        "env": env_name(settings["env"]),
        "env_kwargs": settings["env_kwargs"] or agent._fit_defaults.get("env_kwargs", {}),
        "learning_rates": [list(rate) for rate in agent._learning_rates],
        **{name: getattr(options, name) for name in config.RESULT_OPTIONS},
        **vars(options.env_settings),
    }
    describing = functools.partial(describe, agent, settings)
    variables = functools.partial(agent_state.variables, agent)
    return Recorder(run, callbacks, describing, variables)


def env_name(env):
    """Returns the id of an environment, or the name of its class or function."""
    spec = getattr(env, "spec", env)
    if isinstance(spec, gym.envs.registration.EnvSpec):
        return spec.id
    is_id = isinstance(env, str)
    return env if is_id else getattr(env, "__qualname__", type(env).__qualname__)


def describe(agent, settings):
    """Describes an agent's training with these other settings, as a dict."""
    description = {
        "settings": settings,
        "observation space": spaces.to_config(agent.observation_space),
        "action space": spaces.to_config(agent.action_space),
        "agent": agent_state.signature(agent),
        **software(),
    }
    return _to_plain(description)


def software():
    """Returns the parts of a description that may differ when a training continues."""
    return {"versions": version.installed(), "flags": version.flags()}


def _to_plain(description):
    """Returns a description as it is read from a manifest."""

    def convert(value):  # arrays to lists, functions to names, other objects to classes
        if hasattr(value, "tolist"):
            return value.tolist()
        return getattr(value, "__qualname__", type(value).__name__)

    return json.loads(json.dumps(description, default=convert))


def _learning_rates(model):
    """Returns the constant learning rates of a model's optimizers."""
    inner = [getattr(x, "inner_optimizer", x) for x in agent_state.optimizers(model)]
    rates = [optimizer.get_config()["learning_rate"] for optimizer in inner]
    return [rate for rate in rates if isinstance(rate, float)]


def check_same_training(path, expected, received):
    """Raises an error if a checkpoint belongs to another training.

    If only package versions or TensorFlow flags differ, a warning is given instead. An
    option that an earlier version did not store counts as having its default.

    Args:
        path: Path of the checkpoint.
        expected: Dict, its manifest.
        received: Dict, the description of the training that would continue.
    """
    for part, current in received.items():
        stored, defaults = expected.get(part), _DEFAULTS.get(part, {})
        pairs = {part: (stored, current)}
        if isinstance(stored, dict) and isinstance(current, dict):
            stored = {x: defaults[x] for x in current if x in defaults} | stored
            # An earlier version had fewer settings.
            names = stored if part == "settings" else {**stored, **current}
            pairs = {f"{part}, {x}": (stored.get(x), current.get(x)) for x in names}
        for name, (old, new) in pairs.items():
            _compare(path, name, old, _without_later(old, new), part in _MAY_DIFFER)


def _read_progress(checkpoint):
    """Returns the `Progress` of a checkpoint; raises if its state cannot be restored."""
    path, _, state = checkpoint
    try:
        progress, callbacks = Progress(**state["progress"]), state["callbacks"]
        numbers = [*vars(progress).values()]
        numbers += [callback.get("log_bytes") or 0 for callback in callbacks]
        attributes = {callback["name"]: callback["attributes"] for callback in callbacks}
        history = attributes.get("History 0", {})
        is_valid = (
            all(isinstance(x, int) and 0 <= x < 2**63 for x in numbers)
            and all(isinstance(x, np.ndarray) for x in state["variables"])
            and isinstance(callbacks, list)
            and isinstance(history.get("history", {}), dict)
            and isinstance(history.get("epoch", []), list)
        )
    except (AttributeError, KeyError, TypeError):
        is_valid = False
    if not is_valid:
        raise _invalid(path)
    return progress


def _invalid(path):
    return ValueError(
        f"The checkpoint {path} cannot be restored: its state is invalid. To train from "
        "the start, use another folder."
    )


def _without_later(old, new):
    """Drops the arguments in a layer's `[class, config]` that an old config lacks."""
    is_layer = isinstance(old, list) and len(old) == 2 and isinstance(old[1], dict)
    if not is_layer or not isinstance(new, list) or not isinstance(new[-1], dict):
        return new
    return [new[0], {key: x for key, x in new[1].items() if key in old[1]}]


def _compare(path, name, old, new, may_differ=False):
    """Raises an error, or logs a warning, if a part of a header differs.

    Other versions and flags may round results differently, so they only give a warning.
    With any other difference, another training would continue, which is an error.
    """
    if json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True):
        return  # NaN equals NaN
    if not may_differ:
        if isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
            pairs = [(x, y) for x, y in zip(old, new, strict=True) if x != y]
            old, new = map(list, zip(*pairs, strict=True))
        old, new = (repr(x)[:_MAX_TEXT] for x in (old, new))
        raise ValueError(
            f"The checkpoint {path} belongs to another training, with another value of "
            f"{name}. Expected, as in the checkpoint: {old}. Received: {new}. Pass the "
            "same arguments as before the interruption, or train in another folder."
        )
    log.warning(
        "The training continues with another value of %s: %s instead of %s. Its result "
        "may differ in the last bits.",
        *(validation.printable(str(x))[:_MAX_TEXT] for x in (name, new, old)),
    )
