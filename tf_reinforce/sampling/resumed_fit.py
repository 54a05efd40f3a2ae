"""Runs Keras' `fit` with checkpoints, from which a killed training continues."""

import dataclasses
import functools
import hashlib
import inspect
import itertools
import math
import random
import types

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.engine import agent_state
from tf_reinforce.engine import checkpoints
from tf_reinforce.engine import recorder
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


class RecordedCallbacks(keras.callbacks.CallbackList):
    """Calls callbacks from the step of a checkpoint on, and writes checkpoints.

    Keras' loop begins with its first epoch. Up to the checkpoint, each step only reads
    its data, so datasets and generators arrive at the same element as before.

    Args:
        owner: Keras model that the callbacks receive.
        trained: Keras model whose `fit` runs; mostly the owner.
        folder: `checkpoints.Checkpoints`, which is open.
        describe: Function that returns the description of the training.
        callbacks, verbose, epochs: Arguments of Keras' `fit`.
    """

    def __init__(self, owner, trained, folder, describe, *, callbacks, verbose, epochs):
        options = dict(add_history=True, add_progbar=verbose != 0, model=owner)
        verbose = 1 if verbose == "auto" else verbose
        super().__init__(callbacks, **options, verbose=verbose, epochs=epochs, steps=None)
        self.trained = trained
        variables = functools.partial(_variables, trained)
        self.record = recorder.Recorder(
            folder, owner, self.callbacks, describe, variables
        )
        self.now = self.target = None

    def start(self, progress, steps):
        """Sets the `Progress` of a training from its beginning, and its steps."""
        self.now = progress
        self.set_params({**self.params, "steps": steps})

    @property
    def _skips(self):
        return self.now.position < self.target.position

    def on_train_begin(self, logs=None):
        self.target = self.record.restore(self.now)
        self._train, self.trained.train_function = (
            self.trained.train_function,
            self._run_step,
        )
        super().on_train_begin(logs)
        if self.target.step:
            super().on_epoch_begin(self.target.epoch)
        self.record.restore_callbacks()
        epochs = self.params["epochs"]
        self.record.announce(epochs, self.params["verbose"])
        if self.target.stopped or self.target.epoch >= epochs:
            self.now = self.target
            self.trained._initial_epoch = epochs  # Keras reads it after this method

    def end(self):
        """Gives the model its own training function again."""
        if self.target is not None:
            self.trained.train_function, self.trained._initial_epoch = self._train, None

    def _run_step(self, iterator):
        if not self._skips:
            return self._train(iterator)
        _read(iterator, self.trained.steps_per_execution)
        if (self.now.epoch, self.now.step + 1) != self.target.position:
            return {}
        self.record.assign_variables()  # among them the metrics of the epoch
        return self.trained.get_metrics_result()

    def on_epoch_begin(self, epoch, logs=None):
        if not self._skips:
            super().on_epoch_begin(epoch, logs)

    def on_train_batch_begin(self, batch, logs=None):
        if not self._skips:
            super().on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch, logs=None):
        skipped = self._skips
        self.now.step += 1
        if skipped:
            self._expect_data()
            self.record.raise_if_interrupted()
            return
        self.now.updates += 1
        super().on_train_batch_end(batch, logs)
        if not self.model.stop_training:  # which ends the epoch
            self._write(logs)

    def on_epoch_end(self, epoch, logs=None):
        skipped = self._skips
        if not skipped:
            super().on_epoch_end(epoch, logs)
        self.now.epoch, self.now.step = epoch + 1, 0
        if skipped:
            self._expect_data()
            if not self._skips:
                self.record.assign_variables()
            return
        self.now.stopped = bool(self.model.stop_training)
        if self.now.stopped or epoch + 1 == self.params["epochs"]:
            self.record.write(self.now)
        self._write(logs)

    def _expect_data(self):
        """Raises an error if the data has ended before the step of the checkpoint."""
        if self.now.position == self.target.position:
            self.now = dataclasses.replace(self.target)
        elif not self._skips:
            raise ValueError(
                f"The data has ended in epoch {self.target.epoch} (from 0) before step "
                f"{self.target.step}, after which the checkpoint was written. Pass the "
                "data of the interrupted training, from its beginning."
            )

    def _write(self, logs):
        """Writes a checkpoint if one is due; after a signal, also ends the training."""
        self._flush_futures()
        if not self.record.interrupted:
            self.record.write_if_due(self.now)
            return
        self.record.write(self.now)
        self.on_train_end(logs)
        self.record.raise_if_interrupted()

    def on_test_begin(self, logs=None):
        if not self._skips:
            super().on_test_begin(logs)
            return
        steps = self.trained.steps_per_execution
        self._test = self.trained.test_function
        self.trained.test_function = lambda iterator: _read(iterator, steps)

    def on_test_batch_begin(self, batch, logs=None):
        if not self._skips:
            super().on_test_batch_begin(batch, logs)

    def on_test_batch_end(self, batch, logs=None):
        if not self._skips:
            super().on_test_batch_end(batch, logs)

    def on_test_end(self, logs=None):
        if not self._skips:
            super().on_test_end(logs)
        else:
            self.trained.test_function = self._test


def fit(owner, trained, resume, describe, *args, **kwargs):
    """Runs `keras.Model.fit` of a model, with checkpoints; returns Keras' `History`.

    Args:
        owner: `ScoreFunction`, compiled, which the callbacks receive.
        trained: Keras model whose steps are run: the owner, or one with its weights.
        resume: Path of a folder, or `Checkpoints`.
        describe: Dict of JSON values that describe the training.
        *args, **kwargs: Arguments of `keras.Model.fit`.
    """
    owner._assert_compile_called("fit")
    bound = inspect.signature(keras.Model.fit).bind(trained, *args, **kwargs)
    bound.apply_defaults()
    options = dict(list(bound.arguments.items())[1:])
    settings = {name: options[name] for name in _FIXED}
    settings |= {name: _digest(options[name]) for name in ("x", "y", "sample_weight")}

    def description():
        names = [x.name for x in trained.metrics]
        own = {
            **describe,
            "metrics": names,
            "steps per call": trained.steps_per_execution,
        }
        own |= agent_state.configs(
            owner, {"model": owner.model, "baseline": owner.baseline}
        )
        own["weights"] = [(tuple(v.shape), v.dtype) for v in _variables(trained)]
        return {"settings": settings, "model": own, **recorder.software()}

    names = "callbacks", "verbose", "epochs"
    listed = {name: options.pop(name) for name in names}
    with checkpoints.open_checkpoints(resume) as folder:
        callbacks = RecordedCallbacks(owner, trained, folder, description, **listed)
        start = recorder.Progress(
            options["initial_epoch"], data_seed=random.randrange(2**31)
        )
        seed = callbacks.record.read(start).data_seed
        specs, options = _prepare(options, seed)
        _build(owner, trained, specs)
        start.first_optimizer_step = optimizers.step_count(trained.optimizer)[1]
        callbacks.start(start, _num_steps(options))
        try:
            with callbacks.record:
                history = keras.Model.fit(
                    trained, **options, **{**listed, "callbacks": callbacks}
                )
        finally:
            callbacks.end()
    callbacks.record.raise_if_interrupted()  # a signal after the last step
    return history


def _variables(trained):
    """Returns all variables of a training, among them those of its metrics."""
    every = [*agent_state.variables(trained), *trained.metrics_variables]
    return list({id(variable): variable for variable in every}.values())


def _read(iterator, count):
    """Reads the batches of one call of a training or test function."""
    next(iterator)
    for _ in range(count - 1):
        next(iterator, None)
    return {}


def _num_steps(options):
    if options["steps_per_epoch"] is not None:
        return options["steps_per_epoch"]
    if not isinstance(options["x"], tf.data.Dataset):
        return None
    count = int(options["x"].cardinality())
    return count if count >= 0 else None


def _digest(data):
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


def _prepare(options, seed):
    """Returns the specs of a batch, and the arguments of `fit` with data in an order.

    Arrays become a dataset whose order in each epoch is a function of the seed.
    """
    x, options = options["x"], dict(options)
    if isinstance(x, tf.data.Dataset):
        return _specs_of(x), {**options, "shuffle": False}
    if isinstance(x, keras.utils.PyDataset):
        if options["shuffle"]:
            raise ValueError(
                "The order of a `PyDataset` that Keras shuffles cannot be continued. "
                "Received: resume and shuffle=True. Pass `shuffle=False`, and let the "
                "`PyDataset` shuffle as a function of its number of passes."
            )
        return _specs(x[0]), options
    if isinstance(x, types.GeneratorType):
        first = next(x)
        return _specs(first), {**options, "x": _chained(first, x), "shuffle": False}
    if not _are_arrays(x):
        raise TypeError(
            "With `resume`, the data must be arrays, a tf.data.Dataset, a "
            f"keras.utils.PyDataset or a generator. Received: {type(x).__name__}"
        )
    return _from_arrays(options, seed)


def _from_arrays(options, seed):
    parts = [options.pop(name) for name in ("x", "y", "sample_weight")]
    split, shuffle = options.pop("validation_split"), options["shuffle"]
    options["shuffle"] = False
    data = _map(_tensor, keras.utils.pack_x_y_sample_weight(*parts))
    sizes = {int(x.shape[0]) for x in keras.tree.flatten(data) if x is not None}
    if len(sizes) != 1 or 0 in sizes or shuffle == "batch":
        raise ValueError(
            "Arrays must have one row for each example, at least one, and `shuffle` must "
            "be a bool. "
            f"Received: {sorted(sizes)} rows and shuffle={shuffle!r}"
        )
    (count,) = sizes
    if split and options["validation_data"] is None:
        rest = math.floor(count * (1 - split))
        held_out = _map(lambda x: x[rest:], data)
        options["validation_data"] = held_out if len(parts) else None
        count = rest
    steps = options["steps_per_epoch"]
    size = options.pop("batch_size") or (math.ceil(count / steps) if steps else 32)
    options["validation_batch_size"] = options["validation_batch_size"] or size
    passes = itertools.count()

    def indices():  # in each pass another order, which follows from the seed alone
        order = np.arange(count)
        if shuffle:
            order = np.random.default_rng([seed, next(passes)]).permutation(count)
        yield from (order[begin : begin + size] for begin in range(0, count, size))

    data = keras.tree.lists_to_tuples(data)
    batches = tf.data.Dataset.from_generator(
        indices, output_signature=tf.TensorSpec([None], tf.int64)
    )
    batches = batches.apply(tf.data.experimental.assert_cardinality(-(-count // size)))
    batches = batches.map(lambda rows: _map(lambda x: tf.gather(x, rows), data))
    options["x"] = batches.prefetch(tf.data.AUTOTUNE)
    return _specs_of(options["x"]), options


def _tensor(array):
    """Returns an array as a tensor; Keras' `fit` also converts floats to `floatx`."""
    if not isinstance(array, tf.RaggedTensor):
        array = tf.convert_to_tensor(array)
    return tf.cast(array, keras.config.floatx()) if array.dtype.is_floating else array


def _chained(first, rest):
    yield first
    yield from rest


def _specs_of(dataset):
    """Returns the specs of the batches of a dataset; `None` is no array."""
    return keras.tree.map_structure(
        lambda spec: spec if hasattr(spec, "shape") else None, dataset.element_spec
    )


def _specs(batch):
    """Returns the specs of the arrays of a batch of any size."""
    return _map(lambda x: tf.TensorSpec((None, *x.shape[1:]), x.dtype), batch)


def _map(function, data):
    """Applies a function to the arrays of nested data, in which `None` is no array."""
    return keras.tree.map_structure(lambda x: None if x is None else function(x), data)


def _build(owner, trained, specs):
    """Creates all variables of a training."""
    inputs = keras.utils.unpack_x_y_sample_weight(specs)[0]
    owner._build_for(inputs)
    optimizers.build(trained.optimizer, trained.trainable_variables)
    trained._symbolic_build(data_batch=specs)
