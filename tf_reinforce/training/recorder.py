"""Records the state of a training in checkpoints, and restores it."""

import contextlib
import dataclasses
import json
import logging

import gymnasium as gym
import keras
import numpy as np

from tf_reinforce import config
from tf_reinforce import version
from tf_reinforce.data import spaces
from tf_reinforce.training import agent_state
from tf_reinforce.training import callback_states
from tf_reinforce.training import learner
from tf_reinforce.training import refused_update

log = logging.getLogger("tf_reinforce")

# The parts of the state in a checkpoint of `fit`.
_STATE = ("progress", "variables", "callbacks")

# Parts of a description of a training that may differ when the training continues.
_MAY_DIFFER = ("versions", "flags")
# The options that the checkpoint of an earlier version may lack, by parts.
_DEFAULTS = {
    "agent": {x.name: x.default for x in dataclasses.fields(config.AgentOptions)},
    "settings": {x.name: x.default for x in dataclasses.fields(config.FitOptions)},
}


@dataclasses.dataclass
class Progress:
    """How far a training has come.

    Attributes:
        epoch: Int, the number of the next epoch.
        first_step: Int, the environment steps of the agent before the training.
        first_optimizer_step: Int, the steps of the optimizer before the training.
        stopped: Bool, whether a callback has ended the training.
    """

    epoch: int
    first_step: int
    first_optimizer_step: int
    stopped: bool = False


class NoRecorder(contextlib.nullcontext):
    """Records nothing: the recorder of a training without `resume`."""

    interrupted = False
    signal = 0

    def interrupt(self, number):
        """Ignores that another process has received a signal."""

    def restore(self, progress):
        """Returns `progress`, from which the training starts."""
        return progress

    def restore_callbacks(self):
        """Restores nothing."""

    def checkpoint_if_interrupted(self, progress):
        """Returns a context manager that does nothing."""
        return contextlib.nullcontext()

    def write_if_due(self, progress):
        """Writes nothing."""

    def write(self, progress):
        """Writes nothing."""

    def raise_if_interrupted(self):
        """Raises nothing, because Python itself has raised `KeyboardInterrupt`."""


class Recorder:
    """Writes the state of a training to checkpoints, and restores the newest one.

    Args:
        checkpoints: `checkpoints.Checkpoints`, which is open.
        agent: Built and compiled `Reinforce`.
        callbacks: List of all Keras callbacks of the training.
        settings: Dict of JSON values: the seed and the options of `fit` that determine
            the result of training. A checkpoint with other settings is refused.
    """

    def __init__(self, checkpoints, agent, callbacks, settings):
        self.checkpoints = checkpoints
        self.agent = agent
        self.callbacks = callbacks
        self.settings = settings
        self._restored = None
        self._written = None  # the `Progress` of the newest checkpoint
        self._stop = checkpoints.graceful_stop()
        for callback in callbacks:
            if isinstance(callback, keras.callbacks.BackupAndRestore):
                raise ValueError(
                    "`resume` and the callback BackupAndRestore both restore a training. "
                    "Expected: one of them. Received: both. Remove the callback; "
                    "`resume` also restores callbacks and log files."
                )
            callback_states.check_methods(callback)

    def __enter__(self):
        self._stop.__enter__()
        return self

    def __exit__(self, kind, error, traceback):
        self._stop.__exit__(kind, error, traceback)
        if isinstance(error, learner.UpdateNotFinite) and self.checkpoints.is_writer:
            folder = self.checkpoints.path
            refused_update.write(folder, self.agent, error, self._header())

    @property
    def interrupted(self):
        """Returns whether a signal has asked the training to stop."""
        return bool(self._stop.received)

    @property
    def signal(self):
        """Returns the number of the first received signal, or zero."""
        return int(self._stop.received[0]) if self.interrupted else 0

    def interrupt(self, number):
        """Stops the training as after a signal, unless `number` is zero."""
        if number and not self.interrupted:
            self._stop.received.append(number)

    def raise_if_interrupted(self):
        """Raises `KeyboardInterrupt` after SIGINT, or `Terminated` after SIGTERM."""
        self._stop.raise_if_received()

    def restore(self, progress):
        """Restores weights and logs from the newest checkpoint, if there is one.

        The method checks the whole checkpoint before it changes anything.

        Args:
            progress: `Progress` of a training that starts from the beginning.

        Returns:
            `Progress` from which the training continues.

        Raises:
            ValueError: If all checkpoints are damaged or belong to another training, or a
                log file has lost rows.
        """
        checkpoint = self.checkpoints.newest()
        if checkpoint is None:
            callback_states.check_logs(self.callbacks, [])
            return progress
        path, header, state = checkpoint
        check_same_training(path, header, self._header())
        variables = agent_state.variables(self.agent)
        _check_state(path, state, variables)
        callback_states.check_logs(self.callbacks, state["callbacks"])
        for variable, value in zip(variables, state["variables"], strict=True):
            variable.assign(value)
        callback_states.truncate_logs(self.callbacks, state["callbacks"])
        self._restored = state
        self._written = Progress(**state["progress"])
        return dataclasses.replace(self._written)

    def restore_callbacks(self):
        """Restores the states of callbacks, after `on_train_begin` has reset them."""
        if self._restored is not None:
            callback_states.set_states(self.callbacks, self._restored["callbacks"])
            self.agent.stop_training = self._restored["progress"]["stopped"]
            if self.agent.stop_training:
                log.warning(
                    "A callback has ended this training after %s epochs. The training "
                    "makes no further update. To train further, use another folder.",
                    self._restored["progress"]["epoch"],
                )

    @contextlib.contextmanager
    def checkpoint_if_interrupted(self, progress):
        """Writes a checkpoint if a signal has ended the collection of episodes.

        A terminal sends SIGINT also to the processes of environments, which then fail.

        Args:
            progress: `Progress` before the update for which the episodes are collected.
        """
        updates = self.agent.updates
        try:
            yield
        except BaseException:
            if self.interrupted and self.agent.updates == updates:
                self.write(progress)
                self.raise_if_interrupted()
            raise

    def write_if_due(self, progress):
        """Writes a checkpoint if the last one is old enough."""
        if self.checkpoints.is_due(progress.epoch):
            self.write(progress)

    def write(self, progress):
        """Writes a checkpoint unless the newest checkpoint has the same progress."""
        if progress == self._written or not self.checkpoints.is_writer:
            return
        variables = agent_state.variables(self.agent)
        state = {
            "progress": dataclasses.asdict(progress),
            "variables": [np.asarray(variable.numpy()) for variable in variables],
            "callbacks": callback_states.get_states(self.callbacks),
        }
        # If the process is killed between the two files, the older checkpoint is used,
        # and both files are written again.
        if self.checkpoints.agent_path is not None:
            self.agent.save(self.checkpoints.agent_path)
        self.checkpoints.write(progress.epoch, self._header(), state)
        self._written = dataclasses.replace(progress)

    def _header(self):
        return describe(self.agent, self.settings)


def env_name(env):
    """Returns the id of an environment, or the name of its class or function."""
    if isinstance(env, str):
        return env
    spec = env if isinstance(env, gym.envs.registration.EnvSpec) else None
    spec = spec or getattr(env, "spec", None)
    if isinstance(spec, gym.envs.registration.EnvSpec):
        return spec.id
    return getattr(env, "__qualname__", type(env).__qualname__)


def describe(agent, settings):
    """Returns a description of a training for the manifest of a checkpoint.

    Args:
        agent: Built and compiled `Reinforce`.
        settings: Dict, the other settings of the training.
    """
    description = {
        "settings": settings,
        "observation space": spaces.to_config(agent.observation_space),
        "action space": spaces.to_config(agent.action_space),
        "agent": agent_state.signature(agent),
        "versions": version.installed(),
        "flags": version.flags(),
    }
    # The result equals a description that was read from a manifest.
    return json.loads(json.dumps(description, default=_to_json))


def check_same_training(path, expected, received):
    """Raises an error if a checkpoint belongs to another training.

    Other versions of packages and other TensorFlow flags give a warning only. An option
    that the checkpoint of an earlier version lacks had its default.

    Args:
        path: Path of the checkpoint.
        expected: Dict, the manifest of the checkpoint.
        received: Result of `describe`.
    """
    for part, current in received.items():
        stored, defaults = expected.get(part), _DEFAULTS.get(part, {})
        if isinstance(stored, dict):
            stored = {x: defaults[x] for x in current if x in defaults} | stored
        _compare(path, part, stored, current)


def _check_state(path, state, variables):
    """Raises a `ValueError` unless a state that was read from a file can be restored."""
    valid = isinstance(state, dict) and state.keys() == set(_STATE)
    valid = valid and isinstance(state["progress"], dict)
    valid = valid and callback_states.is_valid(state["callbacks"])
    if valid:
        kinds = {field.name: field.type for field in dataclasses.fields(Progress)}
        progress = {name: type(value) for name, value in state["progress"].items()}
        numbers = state["progress"].values()
        shapes = [_shape_and_type(x) for x in _as_list(state["variables"])]
        expected = [(tuple(x.shape), x.dtype) for x in variables]
        valid = progress == kinds and shapes == expected
        valid = valid and all(0 <= number < 2**63 for number in numbers)
    if not valid:
        raise ValueError(
            f"The checkpoint {path} cannot be restored: its state is invalid. Expected: "
            "the state that a training has written. To train from the start, use another "
            "folder."
        )


def _as_list(value):
    return value if isinstance(value, list) else []


def _shape_and_type(value):
    is_array = isinstance(value, np.ndarray)
    return (value.shape, value.dtype.name) if is_array else None


def _to_json(value):
    """Returns arrays as lists, and other objects as the names of their classes."""
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__


def _without_later(old, new):
    """Returns `[class, config]` of a layer without arguments that an old config lacks."""
    is_layer = isinstance(old, list) and len(old) == 2 and isinstance(old[1], dict)
    if not is_layer or not isinstance(new, list) or not isinstance(new[-1], dict):
        return new
    return [new[0], {key: x for key, x in new[1].items() if key in old[1]}]


def _compare(path, part, expected, received):
    """Raises an error, or writes a warning, if a part of a header differs.

    Other versions and flags may round results differently. All other differences would
    continue another training.
    """
    pairs = [(part, expected, received)]
    if isinstance(expected, dict) and isinstance(received, dict):
        names = {**expected, **received}
        pairs = [(f"{part}, {x}", expected.get(x), received.get(x)) for x in names]
    for name, old, new in pairs:
        new = _without_later(old, new)
        if json.dumps(old, sort_keys=True) == json.dumps(new, sort_keys=True):
            continue  # NaN equals NaN
        if part in _MAY_DIFFER:
            log.warning(
                "The training continues with another value of %s: %s instead of %s. The "
                "result may differ in its last bits from that of a training without "
                "interruption.",
                name,
                new,
                old,
            )
        else:
            raise ValueError(
                f"The checkpoint {path} belongs to another training: its {name} differs. "
                f"Expected, as in the checkpoint: {old}. Received: {new}. Pass the same "
                "arguments as before the interruption, or train in another folder."
            )
