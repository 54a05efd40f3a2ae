"""Files and checkpoints of Keras models that train another model."""

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import itertools
import math
import random
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.engine import agent_state
from tf_reinforce.engine import recorder
from tf_reinforce.engine import run_directory
from tf_reinforce.support import files
from tf_reinforce.support import optimizers

# Arguments of Keras' `fit` that must not change in a training.
_FIXED = (
    "batch_size",
    "shuffle",
    "class_weight",
    "initial_epoch",
    "steps_per_epoch",
    "validation_split",
)


class TrainingModel(keras.Model):
    """A Keras model that trains another one, with whole files and checkpoints.

    Subclasses define `description`, a dict of what must not change during a training.
    """

    def save(self, filepath: Any, overwrite: bool = True, **kwargs: Any) -> None:
        """Writes the model to a `.keras` file atomically, as `Reinforce.save` does."""
        target = filepath, overwrite, ".keras", f"a `{type(self).__name__}`"
        with files.atomic_model_file(*target) as temporary:
            super().save(temporary, **kwargs)

    def save_weights(self, filepath: Any, overwrite: bool = True) -> None:
        """Writes the weights to one file atomically, in Keras' format."""
        target = filepath, overwrite, ".weights.h5", "weights", self
        with files.atomic_model_file(*target) as temporary:
            super().save_weights(temporary)

    def variables_of_training(self) -> list:
        """Returns all variables that the present training reads or changes."""
        return agent_state.variables(self)


class RecordedCallbacks(keras.callbacks.CallbackList):
    """Writes checkpoints, and calls callbacks from a restored step on.

    Keras' training loop always begins with its first epoch. Until the checkpoint is
    reached, the steps only read their data, so that datasets and generators arrive at the
    same element as before.

    Args:
        model: Compiled `TrainingModel`.
        directory: `run_directory.RunDirectory`.
        settings: Dict of the arguments of `fit` that must not change.
        metrics: Function that returns the logs of the present epoch.
        callbacks, verbose, epochs: Arguments of Keras' `fit`.
    """

    def __init__(self, model, directory, settings, metrics, callbacks, verbose, epochs):
        callbacks = [*callbacks, *directory.callbacks]
        options = dict(add_history=True, add_progbar=verbose != 0, model=model)
        verbose = 1 if verbose == "auto" else verbose
        super().__init__(callbacks, **options, verbose=verbose, epochs=epochs, steps=None)
        every = self.callbacks
        self.record = recorder.Recorder(
            directory, every, self._describe, model.variables_of_training
        )
        self.now = self.target = None  # each a `Progress`
        self._settings = settings
        self._metrics = metrics
        self._skipped = None  # callbacks and functions that are not called before it

    def _describe(self):
        variables = self.model.variables_of_training()
        weights = [(tuple(x.shape), x.dtype) for x in variables]
        described = {**self.model.description(), "weights": weights}
        return {"settings": self._settings, "model": described, **recorder.software()}

    def on_train_begin(self, logs=None):
        self.target = self.record.restore(self.now)
        super().on_train_begin(logs)
        if self.target.step:
            super().on_epoch_begin(self.target.epoch)
        self.record.restore_callbacks()
        epochs, model = self.params["epochs"], self.model
        if hasattr(model, "updates"):  # a language model, whose failed updates do nothing
            model.train_function = functools.partial(self._guard, model.train_function)
        if self.target.stopped or self.target.epoch >= epochs:
            self.now = self.target
            model._initial_epoch = epochs  # Keras reads it after this method
        elif self.now.position < self.target.position:
            self._skipped = self.callbacks, model.train_function, model.test_function
            self.callbacks, model.train_function = [], self._skip_step
            model.test_function = self._read

    def _guard(self, function, iterator):
        with self.record.checkpoint_if_interrupted(self.now):
            return function(iterator)

    def close(self):
        """Gives the model its own functions again, also after an error."""
        self.model._initial_epoch = None
        if self._skipped is not None:
            self.callbacks, *functions = self._skipped
            self.model.train_function, self.model.test_function = functions
            self._skipped = None

    def _read(self, iterator):
        """Reads the batches for one call of a training or test function."""
        next(iterator)
        for _ in range(self.model.steps_per_execution - 1):
            next(iterator, None)
        return {}

    def _skip_step(self, iterator):
        self._read(iterator)
        if (self.now.epoch, self.now.step + 1) != self.target.position:
            return {}
        self.record.assign_variables()  # among them the metrics of the epoch
        return self._metrics()

    def _is_skipping(self):
        """Returns whether the step or epoch was skipped; ends skipping if it is due."""
        if self._skipped is None:
            return False
        self.record.raise_if_interrupted()
        if self.now.position > self.target.position:
            raise ValueError(
                "The data has ended before the step of the checkpoint. Pass the data of "
                "the interrupted training, from its beginning."
            )
        if self.now.position == self.target.position:
            self.now = dataclasses.replace(self.target)
            self.close()
        return True

    def on_train_batch_end(self, batch, logs=None):
        self.now.step += 1
        if self._is_skipping():
            return
        self.now.updates += 1
        super().on_train_batch_end(batch, logs)
        if not self.model.stop_training:  # which ends the epoch
            self._write(logs)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.now.epoch, self.now.step = epoch + 1, 0
        if self._is_skipping():
            return
        self.now.stopped = bool(self.model.stop_training)
        if self.now.stopped or epoch + 1 == self.params["epochs"]:
            self.record.write(self.now)
        self._write(logs)

    def _write(self, logs):
        """Writes a checkpoint if one is due; after a signal, also ends the training."""
        self._flush_futures()
        if not self.record.signal:
            self.record.write_if_due(self.now)
            return
        self.record.write(self.now)
        self.on_train_end(logs)
        self.record.raise_if_interrupted()


def run(model, resume, settings, metrics, prepare, validates, **options):
    """Runs Keras' `fit` with checkpoints; returns Keras' `History`.

    Args:
        model, settings, metrics: As in `RecordedCallbacks`.
        resume: Path of a run directory, or `Checkpoints`.
        prepare: Function that receives a seed for the order of the data, creates all
            variables, and returns the options of `fit` with the data, among them
            `steps_per_epoch` and `x`, a `tf.data.Dataset`.
        validates: Bool, whether epochs are validated.
        **options: `callbacks`, `verbose` and `epochs` of Keras' `fit`.
    """
    own = keras.tree.flatten(options["callbacks"] or [])
    options = {**options, "callbacks": own}
    with run_directory.of_model(model, resume, settings, validates, options) as directory:
        callbacks = RecordedCallbacks(model, directory, settings, metrics, **options)
        seed = random.randrange(2**31)
        start = recorder.Progress(settings["initial_epoch"], data_seed=seed)
        data = prepare(callbacks.record.read(start).data_seed)
        steps = data["steps_per_epoch"] or int(data["x"].cardinality())
        steps = steps if steps >= 0 else None  # unknown or endless
        callbacks.set_params({**callbacks.params, "steps": steps})
        start.first_optimizer_step = optimizers.step_count(model.optimizer)[1]
        callbacks.now = start
        with contextlib.closing(callbacks), callbacks.record.stop:
            history = keras.Model.fit(model, **data, **options | {"callbacks": callbacks})
    callbacks.record.raise_if_interrupted()  # a signal after the last step
    return history


def fit(model, resume, *args, **kwargs):
    """Runs `keras.Model.fit` of a `ScoreFunction` with checkpoints; returns `History`.

    Args:
        model: `ScoreFunction`, compiled.
        resume: Path of a folder, or `Checkpoints`.
        *args, **kwargs: Arguments of `keras.Model.fit`.
    """
    model._assert_compile_called("fit")
    bound = inspect.signature(keras.Model.fit).bind(model, *args, **kwargs)
    bound.apply_defaults()
    options = dict(list(bound.arguments.items())[1:])
    settings = {name: options[name] for name in _FIXED}
    settings |= {name: digest(options[name]) for name in ("x", "y", "sample_weight")}

    def prepare(seed):
        data = {**_as_dataset(options, seed), "shuffle": False}
        specs = _map(lambda spec: spec, data["x"].element_spec)
        model._build_for(keras.utils.unpack_x_y_sample_weight(specs)[0])
        optimizers.build(model.optimizer, model.trainable_variables)
        optimizers.begin_averages(model.optimizer)
        model._symbolic_build(data_batch=specs)
        return data

    listed = {name: options.pop(name) for name in ("callbacks", "verbose", "epochs")}
    validates = options["validation_data"] is not None or bool(
        options["validation_split"]
    )
    metrics = model.get_metrics_result
    return run(model, resume, settings, metrics, prepare, validates, **listed)


def digest(data):
    """Returns a digest of arrays, or a description of other data."""
    if isinstance(data, tf.data.Dataset):
        return [repr(data.element_spec), int(data.cardinality())]
    if data is None or not _are_arrays(data):
        return type(data).__name__
    digest = hashlib.sha256()
    for array in map(np.asarray, keras.tree.flatten(data)):
        digest.update(repr((array.shape, array.dtype.name)).encode())
        is_object = array.dtype == object  # for example of texts
        digest.update(repr(array.tolist()).encode() if is_object else array.tobytes())
    return digest.hexdigest()


def _are_arrays(data):
    return all(hasattr(x, "shape") for x in keras.tree.flatten(data))


def _as_dataset(options, seed):
    """Returns the arguments of `fit` with a dataset in place of arrays.

    Its order is a function of seed and epoch. As in Keras, `validation_split` takes the
    last rows before they are shuffled, unless there is `validation_data`.
    """
    if isinstance(options["x"], tf.data.Dataset):
        return options
    options = dict(options)
    parts = [options.pop(name) for name in ("x", "y", "sample_weight")]
    if not _are_arrays(parts[0]):
        raise TypeError(
            "With `resume`, the data must be arrays or a tf.data.Dataset. Received: "
            f"{type(parts[0]).__name__}"
        )
    data = _map(_tensor, keras.utils.pack_x_y_sample_weight(*parts))
    sizes = {int(x.shape[0]) for x in keras.tree.flatten(data) if x is not None}
    if len(sizes) != 1 or 0 in sizes:
        raise ValueError(f"Arrays must have equal lengths. Received: {sorted(sizes)}")
    (count,) = sizes
    split, data = options.pop("validation_split"), keras.tree.lists_to_tuples(data)
    if split and options["validation_data"] is None:
        rows, count = count, math.floor(count * (1 - split))
        if not 0 < count < rows:
            raise ValueError(
                "`validation_split` must leave rows for training and for validation. "
                f"Received: validation_split={split} for {rows} rows"
            )
        held_out = _map(lambda x: x[count:], data)
        options["validation_data"], data = held_out, _map(lambda x: x[:count], data)
    steps, shuffle = options["steps_per_epoch"], options["shuffle"]
    size = options.pop("batch_size") or (math.ceil(count / steps) if steps else 32)
    options["validation_batch_size"] = options["validation_batch_size"] or size
    generator = (
        (lambda number: np.random.default_rng([seed, number])) if shuffle else None
    )
    batches = index_batches(count, size, generator)
    batches = batches.map(lambda rows: _map(lambda x: tf.gather(x, rows), data))
    return {**options, "x": batches.prefetch(tf.data.AUTOTUNE)}


def index_batches(count, size, generator):
    """Returns a dataset of batches of the indices from 0 to `count` - 1.

    Args:
        count: Int.
        size: Int, the number of indices in a batch.
        generator: Function from the number of a pass over the dataset to the NumPy
            generator of its order; or `None` for no shuffling.
    """
    passes = itertools.count()

    def batches():
        number, indices = next(passes), np.arange(count)
        indices = indices if generator is None else generator(number).permutation(count)
        yield from (indices[begin : begin + size] for begin in range(0, count, size))

    spec = tf.TensorSpec([None], tf.int64)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
    return dataset.apply(tf.data.experimental.assert_cardinality(-(-count // size)))


def _tensor(array):
    """Returns an array as a tensor, with floats in Keras' `floatx`, as in `fit`."""
    if not isinstance(array, tf.RaggedTensor):
        array = tf.convert_to_tensor(array)
    return tf.cast(array, keras.config.floatx()) if array.dtype.is_floating else array


def _map(function, data):
    """Applies a function to the arrays in nested data; all else becomes `None`."""
    return keras.tree.map_structure(
        lambda x: function(x) if hasattr(x, "shape") else None, data
    )
