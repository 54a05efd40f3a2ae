"""Runs the epochs of `fit` for language models, and calls Keras callbacks."""

import collections
import hashlib
import itertools
import json
import math

import numpy as np
import tensorflow as tf

from tf_reinforce.callbacks import lists
from tf_reinforce.engine import recorder
from tf_reinforce.sequences import prompts as prompt_tables
from tf_reinforce.support import optimizers


class Batches:
    """The batches of prompts of each epoch.

    Args:
        prompts: `PromptTable` or `tf.data.Dataset`.
        batch_size: Int, the number of prompts of a batch of a `PromptTable`.
        seed: Int that determines the order of prompts, or `None` for no shuffling.
        steps_per_epoch: Int, or `None` for all batches.
    """

    def __init__(self, prompts, batch_size, seed=None, steps_per_epoch=None):
        self.prompts = prompts
        self.batch_size = batch_size
        self.seed = seed
        self.steps_per_epoch = steps_per_epoch

    @property
    def count(self):
        """Returns the number of batches of an epoch, or `None` if it is not known."""
        if self.steps_per_epoch is not None:
            return self.steps_per_epoch
        if isinstance(self.prompts, prompt_tables.PromptTable):
            return -(-len(self.prompts) // self.batch_size)
        count = int(self.prompts.cardinality())
        return count if count >= 0 else None

    def expect_finite(self, argument):
        """Raises `ValueError` if an epoch of the prompts would never end.

        Args:
            argument: String, the name of the argument that limits an epoch.
        """
        if self.steps_per_epoch is not None:
            return
        if isinstance(self.prompts, prompt_tables.PromptTable):
            return
        if self.prompts.cardinality() == tf.data.INFINITE_CARDINALITY:
            raise ValueError(
                f"A dataset without end needs `{argument}`. Received: an infinite "
                f"`tf.data.Dataset` and {argument}=None"
            )

    def description(self):
        """Returns a dict that describes the batches, for a checkpoint."""
        prompts = None
        if isinstance(self.prompts, prompt_tables.PromptTable):
            text = json.dumps(self.prompts.columns, default=_to_text)
            prompts = hashlib.sha256(text.encode()).hexdigest()
        else:
            prompts = repr(self.prompts.element_spec), int(self.prompts.cardinality())
        return {
            "prompts": prompts,
            "batch_size": self.batch_size,
            "steps_per_epoch": self.steps_per_epoch,
            "seed of the order": self.seed,
        }

    def after(self, begin, progress):
        """Yields for each epoch that is left its number and its iterator of batches.

        A dataset is read again up to the batch at which the training continues.

        Args:
            begin: Int, the number of the first epoch of the training.
            progress: `recorder.Progress`.
        """
        epoch = progress.epoch
        is_table = isinstance(self.prompts, prompt_tables.PromptTable)
        if self.steps_per_epoch is None and not is_table:
            for _ in range(begin, epoch):
                collections.deque(self.prompts.as_numpy_iterator(), maxlen=0)
        for number, batches in zip(itertools.count(epoch), self.of_epochs(epoch)):
            read = progress.step if number == epoch else 0
            yield number, itertools.islice(enumerate(batches), read, None)

    def of_epochs(self, first):
        """Yields for each epoch, from the number `first` on, its iterator of batches.

        With `steps_per_epoch`, an epoch begins where the epoch before has ended, also if
        the epoch before belongs to an interrupted training.
        """
        if self.steps_per_epoch is None:
            for epoch in itertools.count(first):
                yield self._pass(epoch)
        skipped = first * self.steps_per_epoch
        start = 0
        if isinstance(self.prompts, prompt_tables.PromptTable):
            start, skipped = divmod(skipped, -(-len(self.prompts) // self.batch_size))
        passes = map(self._pass, itertools.count(start))
        every = itertools.islice(_joined(passes), skipped, None)
        while True:
            yield itertools.islice(every, self.steps_per_epoch)

    def _pass(self, number):
        """Yields the batches of one pass over the prompts, dicts of columns."""
        if isinstance(self.prompts, prompt_tables.PromptTable):
            order = None
            if self.seed is not None:
                order = self.prompts.permutation(self.seed, number)
            yield from self.prompts.batches(self.batch_size, order)
            return
        for batch in self.prompts.as_numpy_iterator():
            yield prompt_tables.read_batch(batch)


def _joined(passes):
    """Yields the batches of one pass after the other, until a pass is empty."""
    for batches in passes:
        first = next(batches, None)
        if first is None:
            return
        yield first
        yield from batches


def _to_text(value):
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__


def run_epochs(
    model,
    make_update,
    validate,
    batches,
    callbacks,
    *,
    epochs,
    initial_epoch,
    verbose,
    make_recorder,
):
    """Makes an update from each batch of each epoch, and calls the callbacks.

    Args:
        model: `SequenceReinforce`, which the callbacks receive.
        make_update: Function of the columns of a batch that returns the logs of an
            update.
        validate: Function of the number of an epoch that returns the logs of a
            validation, or an empty dict.
        batches: `Batches`.
        callbacks: List of Keras callbacks, or `None`.
        epochs, initial_epoch, verbose: As in `keras.Model.fit`.
        make_recorder: Function from the list of all callbacks to a `recorder.Recorder`
            or `recorder.NoRecorder`.

    Returns:
        Keras' `History`.
    """
    callbacks = lists.callback_list(
        callbacks,
        model,
        verbose=verbose,
        add_progbar=verbose != 0,
        epochs=epochs,
        steps=batches.count,
        history=True,
    )
    optimizer_steps = optimizers.step_count(model.optimizer)
    model.stop_training, logs = False, {}
    model._initial_epoch = None
    means = Means()
    record = make_recorder([*callbacks.callbacks, means])
    start = recorder.Progress(initial_epoch, first_optimizer_step=optimizer_steps[1])
    progress = record.restore(start)
    record.announce(epochs, verbose)
    callbacks.on_train_begin()
    if progress.step:
        callbacks.on_epoch_begin(progress.epoch)
    record.restore_callbacks()
    # Keras' BackupAndRestore sets this attribute in `on_train_begin`.
    progress.epoch, model._initial_epoch = model._initial_epoch or progress.epoch, None
    ended = model.stop_training or progress.epoch >= epochs
    with record:
        for epoch, steps in () if ended else batches.after(initial_epoch, progress):
            if epoch >= epochs or model.stop_training or record.interrupted:
                break
            state = callbacks, means, record, progress
            logs = _run_epoch(model, make_update, validate, steps, *state) or logs
        if progress.updates:
            record.write(progress)
    first = optimizer_steps[0], progress.first_optimizer_step
    optimizers.finalize(model.optimizer, first)
    callbacks.on_train_end(logs)
    record.raise_if_interrupted()
    return model.history


def _run_epoch(model, make_update, validate, steps, callbacks, means, record, progress):
    """Runs an epoch, and returns its logs, or `None` if a signal ends it.

    Args:
        model, make_update, validate, callbacks: As in `run_epochs`.
        steps: Iterator of the numbers of the steps and the columns of their batches.
        means: `Means` of the epoch.
        record: `recorder.Recorder` or `recorder.NoRecorder`.
        progress: `recorder.Progress`, which is updated.
    """
    epoch = progress.epoch
    if not progress.step:
        callbacks.on_epoch_begin(epoch)
        means.reset()
    for step, columns in steps:
        callbacks.on_train_batch_begin(step)
        with record.checkpoint_if_interrupted(progress):
            logs = make_update(columns)
        means.add(logs, len(columns["prompts"]))
        callbacks.on_train_batch_end(step, means.logs())
        progress.step, progress.updates = step + 1, progress.updates + 1
        if model.stop_training:
            break
        if record.interrupted:
            return None
        record.write_if_due(progress)
    logs = means.logs()
    if not logs:
        raise ValueError(
            f"An epoch needs at least one batch of prompts. Received: epoch {epoch} "
            "without a batch. Repeat the dataset, or pass fewer epochs."
        )
    logs.update(validate(epoch))
    callbacks.on_epoch_end(epoch, logs)
    progress.epoch, progress.step = epoch + 1, 0
    progress.stopped = bool(model.stop_training)
    record.write_if_due(progress)
    return logs


class Means:
    """The means of logs, weighted by the numbers of prompts of their batches.

    Values that are not finite do not count: the gradient norm of a step that the loss
    scale of mixed precision has skipped.
    """

    def __init__(self):
        self._sums = collections.defaultdict(float)
        self._counts = collections.defaultdict(int)

    def reset(self):
        """Forgets all logs, at the begin of an epoch."""
        self._sums.clear()
        self._counts.clear()

    def add(self, logs, count):
        """Adds the logs of a batch of `count` prompts."""
        for name, value in logs.items():
            is_finite = math.isfinite(value)
            self._sums[name] += count * value if is_finite else 0.0
            self._counts[name] += count if is_finite else 0

    def logs(self):
        """Returns the means as a dict of floats; NaN if no value counts."""
        return {
            name: total / self._counts[name] if self._counts[name] else math.nan
            for name, total in self._sums.items()
        }


def text_metrics(columns, rewards, group_size):
    """Returns metrics of completions as a dict of floats.

    Args:
        columns: Dict of lists, the arguments of reward functions.
        rewards: `[R]` floats.
        group_size: Int, the number of consecutive completions of a prompt, or `None`
            for greedy completions.
    """
    lengths = [len(ids) for ids in columns["completion_ids"]]
    metrics = {
        "reward": float(np.mean(rewards)),
        "completion_length": float(np.mean(lengths)),
        "truncated": float(np.mean(columns["truncated"])),
    }
    if group_size is not None:
        groups = np.reshape(rewards, [-1, group_size])
        equal = groups.max(axis=1) == groups.min(axis=1)
        metrics["equal_reward_groups"] = float(np.mean(equal))
    return metrics


def reward_parts(parts):
    """Returns the mean reward of each reward function, if there are several."""
    if len(parts) == 1:
        return {}
    return {f"reward_{name}": float(np.mean(x)) for name, x in parts.items()}


def run_evaluation(model, evaluate, batches, callbacks, verbose):
    """Evaluates all batches, calls the callbacks, and returns the mean logs.

    Args:
        model, callbacks, verbose: As in `run_epochs`.
        evaluate: Function of the columns of a batch that returns its logs.
        batches: `Batches`.
    """
    callbacks = lists.callback_list(
        callbacks,
        model,
        verbose=verbose,
        add_progbar=verbose not in (0, "auto"),
        epochs=1,
        steps=batches.count,
        history=False,
    )
    means = Means()
    callbacks.on_test_begin()
    for step, columns in enumerate(next(batches.of_epochs(0))):
        callbacks.on_test_batch_begin(step)
        means.add(evaluate(columns), len(columns["prompts"]))
        callbacks.on_test_batch_end(step, means.logs())
    logs = means.logs()
    if not logs:
        raise ValueError(
            "An evaluation needs at least one batch of prompts. Received: a dataset "
            "without a batch"
        )
    callbacks.on_test_end(logs)
    return logs


def compiled(function, run_eagerly, jit_compile):
    """Returns a `tf.function`, or the function itself if it runs eagerly."""
    if run_eagerly:
        return function
    return tf.function(
        function,
        autograph=False,
        jit_compile=jit_compile,
        reduce_retracing=not jit_compile,  # XLA needs the number of completions
    )
