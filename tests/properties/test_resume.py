"""Tests that whatever trains continues to the same bits after an interruption.

An interruption is an error between two steps, as if the process ended there. A training
then continues with new objects, as in a new process.
"""

import csv
import importlib
import inspect
import io
import os
import pkgutil

import keras
import numpy as np
import pytest
import sweeps

pytest.importorskip("keras_hub", reason='needs pip install ".[text]"')
import language_models
import toys

import tf_reinforce as tfr
from tf_reinforce import heads

EPOCHS = 3
STEPS = {"agent": 1, "SequenceReinforce.fit": 2}  # of an epoch; 3 for the others
MONITOR = {
    "agent": "episode_return",
    "ScoreFunction.fit": "reward",
    "fit_logged": "policy_value",
    "SequenceReinforce.fit": "reward",
}
INPUTS = np.random.default_rng(0).normal(size=(10, 4)).astype("float32")
TARGETS = np.arange(10.0)[:, None].astype("float32")
PROMPTS = ["3+4=", "1+1=", "10+2="]


def is_largest(inputs, choices, targets=None):
    """A reward function in NumPy."""
    return (inputs[:, :3].argmax(axis=1) == choices) + 0.1 * choices


def sevens(completions):
    return [completion.count("7") + 0.1 * len(completion) for completion in completions]


def adam(learning_rate=0.05, **options):
    return keras.optimizers.Adam(learning_rate, use_ema=True, ema_momentum=0.5, **options)


def agent(compile_options=None, **options):
    def dense(size):
        initializer = keras.initializers.GlorotUniform(size)
        return keras.layers.Dense(size, "tanh", kernel_initializer=initializer)

    policy = keras.Sequential([keras.Input((1,)), dense(3), dense(2)])
    result = tfr.Reinforce(policy, **{"baseline": "moving_average", **options})
    result.compile(**{"optimizer": adam(), **(compile_options or {})})
    return result


def sampling_model(compile_options=None, **options):
    keras.utils.set_random_seed(1)  # data, dropout, samples and weights
    inputs = keras.Input((4,))
    hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(inputs))
    choice = tfr.layers.Sample(heads.Categorical(3))(keras.layers.Dense(3)(hidden))
    value = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    model = keras.Model(inputs, choice)
    if "loss" not in options:
        options = {"reward": is_largest, **options}
    result = tfr.ScoreFunction(model, **{"baseline": value, "samples": 2, **options})
    options = {"optimizer": adam(), "run_eagerly": True, **(compile_options or {})}
    result.compile(**options)
    return result


def language_model(compile_options=None, rewards=sevens, **options):
    defaults = dict(group_size=2, max_completion_length=3, seed=3)
    result = tfr.sequences.SequenceReinforce(
        language_models.text_gpt2(), rewards, **{**defaults, **options}
    )
    result.compile(
        **{"optimizer": adam(), "run_eagerly": True, **(compile_options or {})}
    )
    return result


def fit_agent(model, **options):
    defaults = dict(env=toys.Bandit, epochs=EPOCHS, episodes_per_epoch=4, seed=2)
    if "steps" in options or "steps_per_epoch" in options:
        del defaults["episodes_per_epoch" if "steps" not in options else "epochs"]
    return model.fit(**{**defaults, "verbose": 0, **options})


def fit_sampling_model(model, **options):
    defaults = dict(x=INPUTS, y=TARGETS, batch_size=4, epochs=EPOCHS)
    defaults["validation_data"] = INPUTS[:5], TARGETS[:5]
    return model.fit(**{**defaults, "verbose": 0, **options})


def fit_logged(model, **options):
    names = "contexts", "actions", "rewards", "propensities"
    log = INPUTS, np.arange(10) % 3, TARGETS[:, 0], np.full(10, 0.5)
    defaults = dict(zip(names, log), batch_size=4, epochs=EPOCHS)
    return model.fit_logged(**{**defaults, "verbose": 0, **options})


def fit_language_model(model, **options):
    defaults = dict(batch_size=2, epochs=EPOCHS, validation_data=PROMPTS[:1])
    return model.fit(**{"prompts": PROMPTS, **defaults, "verbose": 0, **options})


TRAINERS = {
    "agent": (agent, fit_agent),
    "ScoreFunction.fit": (sampling_model, fit_sampling_model),
    "fit_logged": (sampling_model, fit_logged),
    "SequenceReinforce.fit": (language_model, fit_language_model),
}
OTHERS = [name for name in TRAINERS if name != "agent"]


class Interrupt(keras.callbacks.Callback):
    """Calls a function after a number of steps."""

    def __init__(self, after, function):
        super().__init__()
        self.left, self.function = after, function

    def on_train_batch_end(self, batch, logs=None):
        self.left -= 1
        if self.left == 0:
            self.function()

    def get_state(self):  # nothing, otherwise the number of steps would continue
        return {}

    def set_state(self, state):
        pass


def fail():
    raise RuntimeError("the process ends")


def new_callbacks(monitor):
    """Makes every public callback of Keras, and for agents those of the package."""
    monitored = dict(monitor=monitor, mode="max")
    arguments = {
        "CSVLogger": dict(filename="log.csv"),
        "EarlyStopping": dict(
            patience=99,
            restore_best_weights=True,
            monitor=monitor,
            mode="min",
            min_delta=0.01,
        ),
        "EpisodeLogger": dict(filename="episodes.csv"),
        "LearningRateScheduler": dict(schedule=lambda epoch, rate: 0.9 * rate),
        "ModelCheckpoint": dict(
            filepath="best.weights.h5",
            save_weights_only=True,
            save_best_only=True,
            save_freq=2,
            **monitored,
        ),
        "ReduceLROnPlateau": dict(patience=1, cooldown=2, min_delta=9.0, **monitored),
        "Diagnostics": dict(every=2, verbose=0),
        "ProgressLine": dict(stream=io.StringIO(), live=False),
        "StopAtReturn": dict(target=99.0),
        "SwapEMAWeights": dict(swap_on_epoch=True),
        "TensorBoard": dict(log_dir="board", update_freq=2),
        "TensorBoardLogger": dict(log_dir="events"),
    }
    modules = [keras.callbacks]
    if monitor == MONITOR["agent"]:
        modules += map(
            importlib.import_module,
            (x.name for x in pkgutil.iter_modules(*package(tfr.callbacks))),
        )
    kinds = {
        value.__name__: value
        for module in modules
        for value in vars(module).values()
        if inspect.isclass(value) and issubclass(value, keras.callbacks.Callback)
    }
    for name in LEFT_OUT:
        kinds.pop(name, None)
    return [kind(**arguments.get(name, {})) for name, kind in kinds.items()]


def package(module):
    return module.__path__, f"{module.__name__}."


LEFT_OUT = {
    "BackupAndRestore": "is refused",
    "CallbackList": "is no callback of a user",
    "EvaluationCallback": "is tested with runs",
    "OrbaxCheckpoint": "needs another package",
    "RemoteMonitor": "needs a server",
    "SlowEnvLine": "measures seconds",
}


def attributes(callback):
    """Returns the attributes of a callback that are data, for a comparison."""
    left_out = {"params", "_model", "append_header"}  # `append_header` is of the file
    return {
        f"{type(callback).__name__}.{name}": data(value)
        for name, value in vars(callback).items()
        if name not in left_out
    }


def data(value):
    if isinstance(value, dict):
        return {k: data(x) for k, x in value.items() if "second" not in str(k)}
    if isinstance(value, (list, tuple, set)):
        return type(value)(map(data, value)) if type(value) is list else repr(value)
    if isinstance(value, np.ndarray):
        return value.shape, value.tobytes()
    plain = value is None or isinstance(value, (bool, int, float, str, os.PathLike))
    return repr(value) if plain else type(value).__name__


def train(name, folder, interrupt=(), callbacks=True, **options):
    """Trains in a folder; returns everything that must be equal."""
    make, fit = TRAINERS[name]
    folder.mkdir(exist_ok=True)
    before = os.getcwd()
    os.chdir(folder)
    try:
        model = make()
        listed = new_callbacks(MONITOR[name]) if callbacks else []
        resume = tfr.Checkpoints("run", every_updates=1)
        options = {"resume": resume, "callbacks": [*listed, *interrupt], **options}
        history = fit(model, **options)
        result = {"log": read_log(folder / "log.csv")} if callbacks else {}
    finally:
        os.chdir(before)
        for file in [getattr(x, "csv_file", None) for x in listed]:
            if file is not None:
                file.close()  # Keras closes it only without an error
    variables = [*model.variables, *model.optimizer.variables]
    result |= {f"variable {n}": data(x.numpy()) for n, x in enumerate(variables)}
    for callback in [*listed, history]:
        result |= attributes(callback)
    return result


def read_log(path):
    with open(path) as file:
        return [data(row) for row in csv.DictReader(file)]


def differences(one, other):
    return {x for x in one.keys() | other.keys() if one.get(x) != other.get(x)}


@pytest.mark.parametrize(
    "name", sweeps.some(TRAINERS, always=TRAINERS.keys() - {"fit_logged"})
)
def test_every_callback_continues_after_an_interruption_in_each_epoch(name, tmp_path):
    """All attributes, weights, optimizer variables, logs and the history are equal.

    An attribute that differs between two trainings without interruption is a time.
    """
    whole = train(name, tmp_path / "whole")
    of_time = differences(whole, train(name, tmp_path / "again"))
    assert not any(x.startswith(("variable", "log", "History")) for x in of_time)
    parts, steps = tmp_path / "parts", STEPS.get(name, 3)
    for after in (steps + 1, *range(max(steps, 2), 1, -1)):
        with pytest.raises(RuntimeError, match="the process ends"):
            train(name, parts, [Interrupt(after, fail)])
    assert differences(whole, train(name, parts)) <= of_time
