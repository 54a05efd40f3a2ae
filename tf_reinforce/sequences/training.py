"""Batches of prompts for Keras' `fit`, and logs averaged over an epoch."""

import collections
import collections.abc
import hashlib
import json
import math

import keras
import numpy as np
import tensorflow as tf

from tf_reinforce.data import seeding
from tf_reinforce.sampling import resumed_fit
from tf_reinforce.support import validation

# Names that reward functions receive and that a column cannot have.
RESERVED = ("completions", "completion_ids", "truncated")


def read(prompts):
    """Returns prompts as a dict of lists with P entries each, among them `prompts`.

    Byte strings become strings if all of a column are UTF-8.

    Args:
        prompts: List of prompts, or tensor of strings; or dict of such columns with equal
            length, among them `prompts`.
    """
    is_columns = isinstance(prompts, collections.abc.Mapping)
    columns = prompts if is_columns else {"prompts": prompts}
    if "prompts" not in columns or not columns.keys().isdisjoint(RESERVED):
        raise ValueError(
            "The columns must contain `prompts`, and no column may be named like the "
            f"arguments {RESERVED} of reward functions. Received: {list(columns)}"
        )
    lists = {name: _to_list(name, values) for name, values in columns.items()}
    counts = {name: len(values) for name, values in lists.items()}
    if len(set(counts.values())) > 1 or not counts["prompts"]:
        raise ValueError(
            "All columns must have the same number of entries, at least one. Received: "
            f"{counts}"
        )
    return lists


def _to_list(name, values):
    """Returns a list of Python objects; raises an error if a column has no entries."""
    values = values.numpy() if hasattr(values, "numpy") else values
    values = values.tolist() if isinstance(values, np.ndarray) else values
    is_one = isinstance(values, (str, bytes, tf.data.Dataset))
    if is_one or not hasattr(values, "__len__"):
        raise TypeError(
            f"The column {name!r} must be a list with an entry for each prompt, as in a "
            f"batch of a dataset. Received: {values!r}"
        )
    entries = [x.tolist() if isinstance(x, np.ndarray) else x for x in values]
    try:
        return keras.tree.map_structure(
            lambda x: x.decode() if isinstance(x, bytes) else x, entries
        )
    except UnicodeDecodeError:
        return entries


class Batches:
    """The batches of prompts in each epoch, as a `tf.data.Dataset`.

    Args:
        prompts: What `read` accepts, or a `tf.data.Dataset` of batches of it.
        batch_size: Int, the number of prompts in a batch from a table.
        steps: Int, the number of batches in an epoch, which continues where the last one
            ended; or `None` for one pass over the prompts.
        seed: Int that determines the order of prompts, or `None` for no shuffling.
        first_epoch: Function that returns the number of the first epoch.

    Attributes:
        dataset: Dataset of indices into the columns, or that of the user.
        table: Dict of the columns, or `None` for a dataset of the user.
    """

    def __init__(self, prompts, batch_size, steps, seed=None, first_epoch=lambda: 0):
        validation.positive_int("batch_size", batch_size)
        validation.positive_int_or_none("steps", steps)
        self._prompts, self.table, self.dataset = prompts, None, prompts
        self._options = dict(batch_size=batch_size, steps_per_epoch=steps)
        self._options["seed of the order"] = seed

        def generator(number):
            number += 0 if steps else first_epoch()
            return seeding.generator(seed, "training/prompts", number)

        if not isinstance(prompts, tf.data.Dataset):
            self.table = read(prompts)
            count = len(self.table["prompts"])
            self.dataset = resumed_fit.index_batches(
                count, batch_size, None if seed is None else generator
            )
        if steps is not None:
            self.dataset = self.dataset.repeat().skip(steps * first_epoch())
        elif self.dataset.cardinality() in (0, tf.data.INFINITE_CARDINALITY):
            raise ValueError(
                "A dataset needs at least one batch, and `steps_per_epoch` or `steps` if "
                "endless. Received: no batch, or no end"
            )

    def columns(self, batch):
        """Returns the columns of a batch of the dataset."""
        if self.table is None:
            return read(batch)
        rows = batch.numpy()
        return {name: [x[i] for i in rows] for name, x in self.table.items()}

    def description(self):
        """Returns a dict that describes the batches, for a checkpoint."""
        if self.table is None:
            described = resumed_fit.digest(self._prompts)
        else:
            text = json.dumps(self.table, default=_to_text)
            described = hashlib.sha256(text.encode()).hexdigest()
        return {"prompts": described, **self._options}


def _to_text(value):
    return value.tolist() if hasattr(value, "tolist") else type(value).__name__


class Means(keras.callbacks.Callback):
    """Keras' training or test function: the means of logs over the batches of an epoch.

    Each batch counts with its number of prompts.

    Values that are not finite are left out of the averages. An example is the gradient
    norm of a step that mixed precision's loss scaling has skipped. This callback must be
    the first one, because it also adds the logs of a validation.

    Args:
        batches: `Batches`.
        function: Function from the columns of a batch to a dict of logs.
        validate: Function of an epoch's number that returns further logs.
    """

    def __init__(self, batches, function, validate=lambda epoch: {}):
        super().__init__()
        self._batches, self._function, self._validate = batches, function, validate
        self._sums = collections.defaultdict(float)
        self._counts = collections.defaultdict(int)

    def on_epoch_begin(self, epoch, logs=None):
        self._sums.clear()
        self._counts.clear()

    def on_epoch_end(self, epoch, logs=None):
        logs.update(self._validate(epoch))

    def __call__(self, iterator):
        """Adds the logs of the next batch; returns the means."""
        columns = self._batches.columns(next(iterator))
        logs, count = self._function(columns), len(columns["prompts"])
        for name, value in logs.items():
            is_finite = math.isfinite(value)
            self._sums[name] += count * value if is_finite else 0.0
            self._counts[name] += count if is_finite else 0
        return self.logs()

    def logs(self):
        """Returns the means as a dict of floats; NaN if no value counts."""
        return {
            name: total / self._counts[name] if self._counts[name] else math.nan
            for name, total in self._sums.items()
        }


class Progress(keras.callbacks.ProgbarLogger):
    """Keras' progress bar with rewards only, which fit into one line."""

    def on_train_batch_end(self, batch, logs=None):
        super().on_train_batch_end(batch, _rewards(logs))

    def on_epoch_end(self, epoch, logs=None):
        super().on_epoch_end(epoch, _rewards(logs))


def _rewards(logs):
    return {name: logs[name] for name in ("reward", "val_reward") if name in logs}


def text_metrics(columns, rewards, parts, group_size=None):
    """Returns metrics of completions as a dict of floats.

    Args:
        columns: Dict of lists, the arguments of reward functions.
        rewards: `[R]` floats.
        parts: Dict from each reward function's name to its rewards.
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
    if len(parts) > 1:
        metrics |= {f"reward_{name}": float(np.mean(x)) for name, x in parts.items()}
    return metrics
