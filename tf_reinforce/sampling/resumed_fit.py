"""Runs Keras' `fit` with checkpoints, from which a killed training continues."""

import contextlib
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

    Keras' loop begins with its first epoch. Up to the checkpoint, steps only read their
    data, so datasets and generators arrive at the same element as before.

    Args:
        model: Compiled Keras model.
        folder: `checkpoints.Checkpoints`, which is open.
        describe, variables: As in `recorder.Recorder`.
        metrics: Function that returns the logs of the present epoch.
        callbacks, verbose, epochs: Arguments of Keras' `fit`.
    """

    def __init__(
        self, model, folder, describe, variables, metrics, *, callbacks, verbose, epochs
    ):
        options = dict(add_history=True, add_progbar=verbose != 0, model=model)
        verbose = 1 if verbose == "auto" else verbose
        super().__init__(callbacks, **options, verbose=verbose, epochs=epochs, steps=None)
        every = self.callbacks
        self.record = recorder.Recorder(folder, model, every, describe, variables)
        self.now = self.target = None
        self._metrics = metrics
        self._skipped = None  # callbacks and functions that are not called before it

    def start(self, progress, steps):
        """Sets the `Progress` of a training from its beginning, and its steps."""
        self.now = progress
        self.set_params({**self.params, "steps": steps})

    def on_train_begin(self, logs=None):
        self.target = self.record.restore(self.now)
        super().on_train_begin(logs)
        if self.target.step:
            super().on_epoch_begin(self.target.epoch)
        self.record.restore_callbacks()
        epochs, model = self.params["epochs"], self.model
        if hasattr(model, "updates"):  # a language model, whose failed updates do nothing
            model.train_function = functools.partial(self._guard, model.train_function)
        self.record.announce(epochs, self.params["verbose"])
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
        """Reads the batches of one call of a training or test function."""
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

    def _end_skipping_if_due(self):
        self.record.raise_if_interrupted()
        if self.now.position > self.target.position:
            raise ValueError(
                f"The data has ended in epoch {self.target.epoch} (from 0) before step "
                f"{self.target.step}, after which the checkpoint was written. Pass the "
                "data of the interrupted training, from its beginning."
            )
        if self.now.position == self.target.position:
            self.now = dataclasses.replace(self.target)
            self.close()

    def on_train_batch_end(self, batch, logs=None):
        self.now.step += 1
        if self._skipped is not None:
            self._end_skipping_if_due()
            return
        self.now.updates += 1
        super().on_train_batch_end(batch, logs)
        if not self.model.stop_training:  # which ends the epoch
            self._write(logs)

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, logs)
        self.now.epoch, self.now.step = epoch + 1, 0
        if self._skipped is not None:
            self._end_skipping_if_due()
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


def run(model, resume, start, describe, variables, metrics, prepare, **options):
    """Runs Keras' `fit` with checkpoints; returns Keras' `History`.

    Args:
        model: Compiled Keras model.
        resume: Path of a folder, or `Checkpoints`.
        start: `recorder.Progress` from the beginning.
        describe, variables, metrics: As in `RecordedCallbacks`.
        prepare: Function of the `data_seed` of the training that creates all variables,
            and returns the options of `fit` with the data, among them `x` and
            `steps_per_epoch`.
        **options: `callbacks`, `verbose` and `epochs` of Keras' `fit`.
    """
    with checkpoints.open_checkpoints(resume) as folder:
        functions = describe, variables, metrics
        callbacks = RecordedCallbacks(model, folder, *functions, **options)
        record = callbacks.record
        data = prepare(record.read(start).data_seed)
        steps = data["steps_per_epoch"]
        if steps is None and isinstance(data["x"], tf.data.Dataset):
            steps = int(data["x"].cardinality())
        start.first_optimizer_step = optimizers.step_count(model.optimizer)[1]
        callbacks.start(start, steps if steps is None or steps >= 0 else None)
        with contextlib.closing(callbacks), record.stop:
            history = keras.Model.fit(model, **data, **options | {"callbacks": callbacks})
    record.raise_if_interrupted()  # a signal after the last step
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
    settings |= {name: _digest(options[name]) for name in ("x", "y", "sample_weight")}

    def description():
        parts = {"model": model.model, "baseline": model.baseline}
        own = {
            **model.description(),
            "metrics": [x.name for x in model.metrics],
            "steps per call": model.steps_per_execution,
            **agent_state.configs(model, parts),
            "weights": [(tuple(v.shape), v.dtype) for v in model.variables_of_training()],
        }
        return {"settings": settings, "model": own, **recorder.software()}

    def prepare(seed):
        specs, data = _prepare(options, seed)
        model._build_for(keras.utils.unpack_x_y_sample_weight(specs)[0])
        optimizers.build(model.optimizer, model.trainable_variables)
        model._symbolic_build(data_batch=specs)
        return data

    listed = {name: options.pop(name) for name in ("callbacks", "verbose", "epochs")}
    seed = random.randrange(2**31)
    start = recorder.Progress(options["initial_epoch"], data_seed=seed)
    functions = description, model.variables_of_training, model.get_metrics_result
    return run(model, resume, start, *functions, prepare, **listed)


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
    if _are_arrays(x) and not isinstance(x, tf.data.Dataset):
        options = _from_arrays(options, seed)
        return _map(lambda spec: spec, options["x"].element_spec), options
    if isinstance(x, tf.data.Dataset):
        return _map(lambda spec: spec, x.element_spec), {**options, "shuffle": False}
    if isinstance(x, keras.utils.PyDataset):
        if options["shuffle"]:
            raise ValueError(
                "The order of a `PyDataset` that Keras shuffles cannot be continued. "
                "Received: resume and shuffle=True. Pass `shuffle=False`."
            )
        first = x[0]
    elif isinstance(x, types.GeneratorType):
        first = next(x)
        rest = (batch for batch in itertools.chain([first], x))
        options |= {"x": rest, "shuffle": False}
    else:
        raise TypeError(
            "With `resume`, the data must be arrays, a tf.data.Dataset, a "
            f"keras.utils.PyDataset or a generator. Received: {type(x).__name__}"
        )
    return _map(lambda x: tf.TensorSpec((None, *x.shape[1:]), x.dtype), first), options


def _from_arrays(options, seed):
    """Returns the arguments of `fit` with a dataset in place of arrays."""
    parts = [options.pop(name) for name in ("x", "y", "sample_weight")]
    split, shuffle = options.pop("validation_split"), options["shuffle"]
    options["shuffle"] = False
    data = _map(_tensor, keras.utils.pack_x_y_sample_weight(*parts))
    sizes = {int(x.shape[0]) for x in keras.tree.flatten(data) if x is not None}
    if len(sizes) != 1 or 0 in sizes or shuffle == "batch":
        raise ValueError(
            "Arrays must have one row for each example, at least one, and `shuffle` must "
            f"be a bool. Received: {sorted(sizes)} rows and shuffle={shuffle!r}"
        )
    (count,) = sizes
    if split and options["validation_data"] is None:
        rest = math.floor(count * (1 - split))
        options["validation_data"] = _map(lambda x: x[rest:], data)
        count = rest
    steps = options["steps_per_epoch"]
    size = options.pop("batch_size") or (math.ceil(count / steps) if steps else 32)
    options["validation_batch_size"] = options["validation_batch_size"] or size
    passes = itertools.count()

    def order():  # in each pass another order, which follows from the seed alone
        if not shuffle:
            return np.arange(count)
        return np.random.default_rng([seed, next(passes)]).permutation(count)

    data = keras.tree.lists_to_tuples(data)
    batches = index_batches(count, size, order)
    batches = batches.map(lambda rows: _map(lambda x: tf.gather(x, rows), data))
    return {**options, "x": batches.prefetch(tf.data.AUTOTUNE)}


def index_batches(count, size, order):
    """Returns a dataset of batches of the indices below a count.

    Args:
        count, size: Ints, the numbers of all indices and of those in a batch.
        order: Function that returns a permutation of the indices for the next pass.
    """

    def batches():
        indices = order()
        yield from (indices[begin : begin + size] for begin in range(0, count, size))

    spec = tf.TensorSpec([None], tf.int64)
    dataset = tf.data.Dataset.from_generator(batches, output_signature=spec)
    return dataset.apply(tf.data.experimental.assert_cardinality(-(-count // size)))


def _tensor(array):
    """Returns an array as a tensor; Keras' `fit` also converts floats to `floatx`."""
    if not isinstance(array, tf.RaggedTensor):
        array = tf.convert_to_tensor(array)
    return tf.cast(array, keras.config.floatx()) if array.dtype.is_floating else array


def _map(function, data):
    """Applies a function to the arrays of nested data, in which `None` is no array."""
    return keras.tree.map_structure(
        lambda x: function(x) if hasattr(x, "shape") else None, data
    )
