"""Tests that whatever trains continues to the same bits after an interruption.

An interruption is an error between two steps, as if the process ended there. A training
then continues with new objects, as in a new process.
"""

import csv
import functools
import importlib
import inspect
import itertools
import os
import pkgutil
import re
import signal

import keras
import numpy as np
import pytest
import sweeps

pytest.importorskip("keras_hub", reason='needs pip install ".[text]"')
import language_models
import tensorflow as tf
import toys

import tf_reinforce as tfr
from tf_reinforce import heads
from tf_reinforce.engine import interruption
from tf_reinforce.engine import recorder
from tf_reinforce.sampling import resumed_fit
from tf_reinforce.settings import config
from tf_reinforce.support import locks

SIGNALS = {signal.SIGINT: KeyboardInterrupt, signal.SIGTERM: interruption.Terminated}
EPOCHS = 3
# After how many steps each process ends; an epoch of an agent has one, the others two.
ENDS = {"agent": (2, 2), "SequenceReinforce.fit": (4,)}
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
    defaults = dict(policy=policy, baseline="moving_average")
    result = tfr.Reinforce(**{**defaults, **options})
    result.compile(**{"optimizer": adam(), **(compile_options or {})})
    return result


def sampling_model(compile_options=None, **options):
    keras.utils.set_random_seed(1)  # data, dropout, samples and weights
    inputs = keras.Input((4,))
    hidden = keras.layers.Dropout(0.2)(keras.layers.BatchNormalization()(inputs))
    choice = tfr.layers.Sample(heads.Categorical(3))(keras.layers.Dense(3)(hidden))
    value = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    defaults = dict(model=keras.Model(inputs, choice), baseline=value, samples=2)
    if "loss" not in options:
        defaults["reward"] = is_largest
    result = tfr.ScoreFunction(**{**defaults, **options})
    options = {"optimizer": adam(), "run_eagerly": True, **(compile_options or {})}
    result.compile(**options)
    return result


def language_model(compile_options=None, **options):
    defaults = dict(causal_lm=language_models.text_gpt2(), rewards=sevens)
    defaults |= dict(group_size=2, max_completion_length=2)
    defaults["seed"] = 5  # the epochs begin and end with different prompts
    result = tfr.sequences.SequenceReinforce(**{**defaults, **options})
    result.compile(
        **{"optimizer": adam(), "run_eagerly": True, **(compile_options or {})}
    )
    return result


@functools.cache
def rewound_agent():
    """Returns an agent, and a function that restores its first state.

    It traces its programs once. New agents give equal results (`make slow`).
    """
    result = agent()
    return result, toys.rewinding(result, toys.Bandit())


def new_agent():
    result, rewind = rewound_agent()
    rewind()
    return result


def fit_agent(model, **options):
    defaults = dict(env=toys.Bandit, epochs=EPOCHS, episodes_per_epoch=4, seed=2)
    if "steps" in options or "steps_per_epoch" in options:
        del defaults["episodes_per_epoch" if "steps" not in options else "epochs"]
    return model.fit(**{**defaults, "verbose": 0, **options})


def fit_sampling_model(model, **options):
    defaults = dict(x=INPUTS, y=TARGETS, batch_size=5, epochs=EPOCHS)
    defaults["validation_data"] = INPUTS[:5], TARGETS[:5]
    return model.fit(**{**defaults, "verbose": 0, **options})


def fit_logged(model, **options):
    names = "contexts", "actions", "rewards", "propensities"
    log = INPUTS, np.arange(10) % 3, TARGETS[:, 0], np.full(10, 0.5)
    defaults = dict(zip(names, log), batch_size=5, epochs=EPOCHS)
    return model.fit_logged(**{**defaults, "verbose": 0, **options})


def fit_language_model(model, **options):
    defaults = dict(batch_size=2, epochs=2)
    return model.fit(**{"prompts": PROMPTS, **defaults, "verbose": 0, **options})


TRAINERS = {
    "agent": (new_agent, fit_agent),
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
    """Makes every public callback of Keras, one of them twice, and for agents ours."""
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
    second = keras.callbacks.EarlyStopping(patience=98, **monitored)
    return [*(kind(**arguments.get(x, {})) for x, kind in kinds.items()), second]


def package(module):
    return module.__path__, f"{module.__name__}."


LEFT_OUT = {
    "ProgressLine": "measures seconds",
    "BackupAndRestore": "is refused",
    "CallbackList": "is no callback of a user",
    "BestModel": "is in every run",
    "RunLog": "is in every run",
    "OrbaxCheckpoint": "needs another package",
    "RemoteMonitor": "needs a server",
}


def attributes(callback, title):
    """Returns the attributes of a callback that are data, for a comparison."""
    left_out = {"params", "_model", "append_header", "_training", "_update_start"}
    return {
        f"{title}.{name}": data(value)
        for name, value in vars(callback).items()
        if name not in left_out
    }


def data(value):
    if isinstance(value, dict):
        timed = re.compile("second|_share")
        return {k: data(x) for k, x in value.items() if not timed.search(str(k))}
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
        listed = new_callbacks(MONITOR[name]) if callbacks is True else callbacks
        resume = tfr.Checkpoints("run", every_updates=1)
        options = {"resume": resume, "callbacks": [*listed, *interrupt], **options}
        history = fit(model, **options)
        result = {"log": read_log(folder / "log.csv")} if listed else {}
    finally:
        os.chdir(before)
        for file in [getattr(x, "csv_file", None) for x in listed]:
            if file is not None:
                file.close()  # Keras closes it only without an error
    variables = [*model.variables, *model.optimizer.variables]
    result |= {f"variable {n}": data(x.numpy()) for n, x in enumerate(variables)}
    for number, callback in enumerate([history, *listed]):
        result |= attributes(callback, f"{number} {type(callback).__name__}")
    return result


def read_log(path):
    with open(path) as file:
        return [data(row) for row in csv.DictReader(file)]


def differences(one, other):
    return {x for x in one.keys() | other.keys() if one.get(x) != other.get(x)}


@pytest.mark.parametrize("name", sweeps.some(TRAINERS, always=["agent"]))
def test_every_callback_continues_after_an_interruption_in_each_epoch(name, tmp_path):
    """All attributes, weights, optimizer variables, logs and the history are equal."""

    def run(folder, *interrupts, **options):
        if name == "SequenceReinforce.fit":  # each pass has another order
            rows = tf.data.Dataset.from_tensor_slices(PROMPTS)
            options |= dict(prompts=rows.shuffle(3, seed=1).batch(2))
        return train(name, tmp_path / folder, interrupts, **options)

    whole, used = run("whole"), new_callbacks(MONITOR[name])
    for after in ENDS.get(name, (3, 2)):  # as in a notebook, with the same callbacks
        with pytest.raises(RuntimeError, match="the process ends"):
            run("parts", Interrupt(after, fail), callbacks=used)
    assert differences(whole, run("parts")) == set()


def batches(size=5):
    rows = tf.data.Dataset.from_tensor_slices((INPUTS, TARGETS))
    return rows.shuffle(10, seed=4).batch(size)


class Subclassed(keras.Model):
    """A model that is built by its first batch."""

    def __init__(self):
        super().__init__()
        self.logits = keras.layers.Dense(3)
        self.choice = tfr.layers.Sample(heads.Categorical(3))

    def call(self, inputs, training=False):
        return self.choice(self.logits(inputs), training=training)


DATA = {
    "shuffled dataset": lambda: dict(x=batches()),
    # The second of two calls in an epoch has a batch less than the first.
    "several steps in a call": lambda: dict(
        x=batches(4), steps_per_execution=2, epochs=2
    ),
    "steps and split": lambda: dict(
        x=INPUTS, y=TARGETS, steps_per_epoch=2, validation_data=None, validation_split=0.3
    ),
}


@pytest.mark.parametrize("kind", sweeps.some(DATA, always=["several steps in a call"]))
def test_data_of_every_kind_is_read_again_up_to_the_checkpoint(
    kind, tmp_path, monkeypatch
):
    """The model is not built before, and the metrics of `compile` are neither."""

    def train(folder, *callbacks):
        keras.utils.set_random_seed(2)
        options = dict(baseline="moving_average", reward=is_largest, samples=2)
        model = tfr.ScoreFunction(Subclassed(), **options)
        defaults = {"y": None, "batch_size": None, **DATA[kind]()}
        steps = defaults.pop("steps_per_execution", 1)
        options = dict(run_eagerly=True, steps_per_execution=steps)
        model.compile(adam(), metrics=["mae"], **options)
        resume = tfr.Checkpoints(tmp_path / folder, every_updates=1)
        options = {**defaults, "resume": resume, "callbacks": list(callbacks)}
        history = fit_sampling_model(model, **options)
        return data(model.get_weights()), data(history.history)

    whole = train("whole")
    for after in (2, 3):
        with pytest.raises(RuntimeError, match="the process ends"):
            train("parts", Interrupt(after, fail))
    assert train("parts") == whole


@pytest.mark.parametrize("parts", [(INPUTS,), (INPUTS, TARGETS)], ids=len)
def test_validation_split_holds_out_the_last_rows(parts):
    """As in Keras."""
    names = "x", "y", "sample_weight", "validation_data", "steps_per_epoch", "batch_size"
    options = dict.fromkeys((*names, "validation_batch_size"))
    options |= dict(zip(names, parts), validation_split=0.3, shuffle=False)
    options = resumed_fit._as_dataset(options, 0)
    trained = [np.concatenate(x) for x in zip(*map(keras.tree.flatten, options["x"]))]
    held_out = keras.tree.flatten(options["validation_data"])
    for array, first, last in zip(parts, trained, held_out, strict=True):
        np.testing.assert_array_equal(first, array[:7])
        np.testing.assert_array_equal(last, array[7:])
    assert "validation_split" not in options


def test_data_that_cannot_be_read_again_is_refused(tmp_path):
    model, resume = sampling_model(), tmp_path / "run"
    with pytest.raises(TypeError, match="must be arrays or a tf.data.Dataset"):
        model.fit(iter([INPUTS]), resume=resume)
    with pytest.raises(ValueError, match="equal lengths. Received: .9, 10"):
        model.fit(INPUTS, TARGETS[1:], resume=resume)
    with pytest.raises(ValueError, match="must leave rows .*=0.95 for 10 rows"):
        model.fit(INPUTS, TARGETS, validation_split=0.95, resume=resume)
    rows = tf.data.Dataset.from_tensor_slices((INPUTS, TARGETS)).batch(5)
    unknown = rows.filter(lambda *_: True)  # of unknown size
    options = dict(y=None, batch_size=None, steps_per_epoch=2, resume=resume)
    with pytest.raises(KeyboardInterrupt, match="start the same program again"):
        stop = Interrupt(2, lambda: signal.raise_signal(signal.SIGINT))
        fit_sampling_model(model, x=unknown, callbacks=[stop], **options)
    with pytest.raises(
        ValueError, match="another training, with another value of settings, x"
    ):
        fit_sampling_model(sampling_model(), x=rows, **options)
    with (
        pytest.raises(ValueError, match="ended before the step of the checkpoint"),
        pytest.warns(UserWarning, match="ran out of data"),
    ):
        fit_sampling_model(sampling_model(), x=unknown.take(1), **options)


# Arguments of Keras' `fit` that may differ when a training continues.
MAY_DIFFER = {"self", "epochs", "verbose", "callbacks", "validation_data"}
MAY_DIFFER |= {"validation_steps", "validation_batch_size", "validation_freq"}


def test_stopped_training_of_arrays_is_that_without_a_folder(tmp_path):
    """It makes no further epoch. All other arguments belong to the training, and so does
    the shape of its targets.
    """

    def fit(**options):
        stop = dict(mode="max", min_delta=9, patience=1)  # after the second epoch
        stop = keras.callbacks.EarlyStopping("reward", **stop)
        model = sampling_model()
        options = {"shuffle": False, "callbacks": [stop], **options}
        history = fit_sampling_model(model, **options)
        return model, data([history.history, model.get_weights()])

    _, whole = fit()
    assert fit(resume=tmp_path)[1] == whole
    model, again = fit(resume=tmp_path)
    assert again == whole and fit_sampling_model(model, epochs=1).epoch == [0]
    stored = tfr.Checkpoints(tmp_path).newest().header["settings"]
    arguments = inspect.signature(keras.Model.fit).parameters.keys()
    assert stored.keys() == arguments - MAY_DIFFER
    with pytest.raises(ValueError, match="value of settings, y"):
        fit(resume=tmp_path, y=TARGETS[:, 0])


@pytest.mark.parametrize(
    ("name", "number"),
    sweeps.some(itertools.product(OTHERS, SIGNALS), [("fit_logged", signal.SIGINT)]),
)
def test_signal_ends_training_after_the_step_and_a_checkpoint(name, number, tmp_path):
    """Another training in the folder is refused, and disturbs nothing."""

    def interrupt():
        with pytest.raises(locks.FolderLocked, match="Another training uses the folder"):
            train(name, tmp_path / "parts", callbacks=())
        signal.raise_signal(number)

    last = Interrupt(3, lambda: pytest.fail("the step after the signal must not run"))
    with pytest.raises(SIGNALS[number]):
        interrupts = [Interrupt(2, interrupt), last]
        options = dict(callbacks=(), resume="run")
        train(name, tmp_path / "parts", interrupts, **options)
    (checkpoint,) = (tmp_path / "parts" / "run" / "checkpoints").iterdir()
    assert checkpoint.name == "00000002"
    whole = train(name, tmp_path / "whole", callbacks=())
    assert train(name, tmp_path / "parts", callbacks=()) == whole


def test_reward_function_that_fails_after_a_signal_leaves_a_checkpoint(tmp_path):
    """A terminal sends SIGINT also to the processes of a reward function."""
    calls = []

    def rewards(completions):
        calls.append(completions)
        if len(calls) == 2:
            signal.raise_signal(signal.SIGINT)
            raise OSError("the process of the reward function has ended")
        return sevens(completions)

    model = language_model(rewards=rewards)
    with pytest.raises(KeyboardInterrupt, match="start the same program again"):
        fit_language_model(model, resume=tmp_path)
    (checkpoint,) = (tmp_path / "checkpoints").iterdir()
    assert checkpoint.name == "00000001"


@pytest.mark.slow
def test_keras_backup_continues_with_the_prompts_of_its_epoch(tmp_path):
    """The next training of the same model begins with its first epoch again."""
    seen = []

    def rewards(prompts, completions):
        seen.extend(prompts[::2])
        return sevens(completions)

    def new_model():
        seen.clear()
        return language_model(rewards=rewards)

    fit_language_model(new_model())
    expected = list(seen)
    backup = keras.callbacks.BackupAndRestore(tmp_path)
    with pytest.raises(RuntimeError, match="the process ends"):
        stop = Interrupt(3, fail)  # in the second epoch
        fit_language_model(new_model(), callbacks=[backup, stop])
    model = new_model()
    fit_language_model(model, callbacks=backup)
    assert seen == expected[3:]
    seen.clear()
    fit_language_model(model)
    assert seen == expected


def test_description_of_a_training_contains_every_option_of_the_agent():
    """A checkpoint is refused if one of them differs."""
    made = new_agent()
    described = recorder.describe(made, {})["agent"]
    assert described.keys() >= set(config.AGENT_OPTIONS)
